"""The Java that Spark runs on: finding it, and how it is told to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

JAVA_VERSION: Final = 17
"""The oldest Java that Spark 4 runs on."""

FAST: Final = "-XX:+UseParallelGC"
"""Nobody waits for a single pause of a report: the collector with the least work takes a sixth off a scan."""

QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=192m"
"""Room for compiled code is only reserved, so that it costs nothing. Without the optimising compiler Java would reserve
48 MB, which are enough for a report, but not for a session that goes on: once they are full nothing is compiled any
more, all is several times slower, and Java itself may end."""

INSTALL: Final = (
    f"Spark needs Java {JAVA_VERSION} or newer: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
)


def find_java() -> str | None:
    """The Java that Spark would run: that of ``JAVA_HOME``, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")


def java_version() -> int | None:
    """The major version of :func:`find_java`'s Java; ``None`` if it does not say."""
    java = find_java()
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
