# Sourced by the other scripts: makes the virtual environment and installs what is missing.
# Assumes only git, bash and Python >= 3.11.

# Python compiles each module once, not again in each of the hundreds of processes that the tests start, also where the
# environment forbids it to write next to the sources.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$PWD/.venv/pycache"

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

# Run as root, through sudo where that needs no password.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

# Another program may install packages at the same time, as Debian does by itself on a new machine.
apt_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    as_root env DEBIAN_FRONTEND=noninteractive sh -c '
        apt-get update -qq  # of two at a time, one fails
        for package in "$@"; do
            apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$package" && exit 0
        done; exit 1' sh "$@" >&2
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed. Install it, or name it: PYTHON=/path/to/python3 $0"
}

prepare_python() {
    local python stamp
    if [ ! -x .venv/bin/python ]; then
        python=$(find_python)
        say "Making a virtual environment in .venv with $("$python" --version)"
        if ! "$python" -m venv .venv 2>/dev/null; then
            rm -rf .venv
            say "This Python has no venv module; installing it"
            apt_install python3-venv || fail "cannot make a virtual environment: install Python's venv module (Debian: apt-get install python3-venv)"
            "$python" -m venv .venv
        fi
    fi
    stamp=$(.venv/bin/python -c 'import hashlib, sys; print(hashlib.sha256(b"".join(open(f, "rb").read() for f in sys.argv[1:])).hexdigest())' pyproject.toml uv.lock scripts/vendor.toml)
    if [ "$(cat .venv/.installed 2>/dev/null)" != "$stamp" ]; then
        say "Installing what uv.lock names (PySpark is 450 MB: this takes a minute)"
        .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
        .venv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
        VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv sync --quiet --active --locked --inexact --all-extras
        .venv/bin/python scripts/vendor.py --dev || fail "the npm packages of the web pages and their tests could not be fetched"
        printf '%s' "$stamp" > .venv/.installed
    fi
}

java_works() {
    local java version
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$version" ] && [ "$version" -ge 17 ]
}

prepare_java() {
    java_works && return
    say "Spark needs Java 17 or newer; installing it through the system's package manager"
    apt_install openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless \
        || { command -v dnf >/dev/null 2>&1 && as_root dnf install -y -q java-17-openjdk-headless >&2; } \
        || { command -v apk >/dev/null 2>&1 && as_root apk add -q openjdk17-jre-headless >&2; } \
        || { command -v brew >/dev/null 2>&1 && brew install -q openjdk@17 >&2 && JAVA_HOME=$(brew --prefix openjdk@17) && export JAVA_HOME; } \
        || true
    java_works || fail "Java 17 or newer is needed and could not be installed here. Install it (Debian: sudo apt-get install openjdk-17-jre-headless) or set JAVA_HOME, and run this again."
}

browser_is_there() {
    local name
    for name in "${CHROMIUM:-}" chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable chrome; do
        [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 && return
    done
    return 1
}

# For the tests of the web pages and of report.html: without a browser they are skipped, which is said, and the others run.
# Debian's build of Chromium without windows takes half of the processor time for each page. Beside another browser it is
# asked for once.
prepare_browser() {
    command -v "${CHROMIUM:-chromium-headless-shell}" >/dev/null 2>&1 && return
    if browser_is_there; then
        [ -e .venv/.headless-shell ] && return
        : > .venv/.headless-shell
        apt-cache show chromium-headless-shell >/dev/null 2>&1 || return 0
    fi
    say "The web pages are tested in Chromium; installing it through the system's package manager"
    apt_install chromium-headless-shell chromium || browser_is_there \
        || { command -v dnf >/dev/null 2>&1 && as_root dnf install -y -q chromium >&2; } \
        || { command -v apk >/dev/null 2>&1 && as_root apk add -q chromium >&2; } \
        || true
    browser_is_there || say "No Chromium could be installed here: the web pages are not tested in a browser. Name one with CHROMIUM=/path/to/it"
}

# For the tests of the alert rules only. Debian's package of Prometheus would start a server: nothing but the tool is
# taken out of it, after apt has verified it.
prepare_promtool() {
    local folder
    if [ -x .venv/bin/promtool ] || command -v "${PROMTOOL:-promtool}" >/dev/null 2>&1; then return; fi
    say "Alert rules are checked by Prometheus' promtool; taking it from the system's packages"
    folder=$(mktemp -d)
    chmod 755 "$folder"
    { unpack_promtool "$folder" && mv "$folder/promtool" .venv/bin/promtool; } \
        || { command -v brew >/dev/null 2>&1 && brew install -q prometheus >&2; } \
        || say "No promtool could be had here: the alert rules are not checked by Prometheus. Name one with PROMTOOL=/path/to/it"
    rm -rf "$folder"
}

unpack_promtool() (
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 && cd "$1" || return 1
    apt-get download -qq prometheus >/dev/null 2>&1 \
        || { as_root apt-get update -qq && apt-get download -qq prometheus; } >/dev/null 2>&1 || return 1
    dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool > promtool && [ -s promtool ] && chmod 755 promtool
)

# For the crash tests of storage only: they stand between a server and its files with a library of their own.
prepare_compiler() {
    command -v "${CC:-cc}" >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 && return
    say "Crash tests of storage compile a small library; installing a C compiler through the system's package manager"
    { apt_install gcc && apt_install libc6-dev; } \
        || { command -v dnf >/dev/null 2>&1 && as_root dnf install -y -q gcc >&2; } \
        || { command -v apk >/dev/null 2>&1 && as_root apk add -q gcc musl-dev >&2; } \
        || say "No C compiler could be installed here: servers are not killed at the seams of their storage. Name one with CC=/path/to/it"
}

# For the tests of SRT, which PyAV's wheels do not have, and of rare media inputs, which it makes.
prepare_ffmpeg() {
    command -v ffmpeg >/dev/null 2>&1 && return
    say "SRT and rare media inputs are tested with ffmpeg; installing it through the system's package manager"
    apt_install ffmpeg \
        || { command -v dnf >/dev/null 2>&1 && as_root dnf install -y -q ffmpeg-free >&2; } \
        || { command -v apk >/dev/null 2>&1 && as_root apk add -q ffmpeg >&2; } \
        || { command -v brew >/dev/null 2>&1 && brew install -q ffmpeg >&2; } \
        || say "No ffmpeg could be installed here: SRT and rare media inputs are not tested."
}

# For scripts/media-table only.
prepare_vlc() {
    command -v vlc >/dev/null 2>&1 && return
    say "The media table has a column for VLC; installing it through the system's package manager"
    { apt_install vlc-bin && apt_install vlc-plugin-base; } \
        || { command -v dnf >/dev/null 2>&1 && as_root dnf install -y -q vlc >&2; } \
        || { command -v apk >/dev/null 2>&1 && as_root apk add -q vlc >&2; } \
        || say "No VLC could be installed here: its column stays empty."
}

# For the tests of the configurations in docs/how-to/behind-a-proxy.md only.
prepare_proxies() {
    local name
    for name in nginx haproxy caddy; do
        command -v "$name" >/dev/null 2>&1 || [ -x "/usr/sbin/$name" ] && continue
        say "The proxies of docs/how-to/behind-a-proxy.md are tested; installing $name through the system's package manager"
        install_without_service "$name" \
            || { command -v dnf >/dev/null 2>&1 && as_root dnf install -y -q "$name" >&2; } \
            || { command -v apk >/dev/null 2>&1 && as_root apk add -q "$name" >&2; } \
            || { command -v brew >/dev/null 2>&1 && brew install -q "$name" >&2; } \
            || say "No $name could be installed here: it is not tested."
    done
}

# Debian's packages of servers start them, unless this file forbids it (/usr/share/doc/init-system-helpers).
install_without_service() {
    local policy=/usr/sbin/policy-rc.d forbidden=
    if [ ! -e "$policy" ]; then
        forbidden=yes
        as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy" 2>/dev/null || return 1
    fi
    apt_install "$1"
    local status=$?
    [ -z "$forbidden" ] || as_root rm -f "$policy"
    return "$status"
}
