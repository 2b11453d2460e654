"""nginx with the nchan module: channels in C, one worker, a stream of chunks to each reader."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

MODULES = (Path("/usr/lib/nginx/modules"), Path("/usr/lib64/nginx/modules"), Path("/usr/share/nginx/modules"))
MODULE = "ngx_nchan_module.so"

CONFIG = """
load_module {module};
daemon off;
worker_processes 1;
error_log stderr error;
pid {folder}/pid;
events {{ worker_connections 16384; use epoll; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 1000000000;
    client_body_buffer_size 128k;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    nchan_shared_memory_size 256m;
    nchan_message_buffer_length 256;
    nchan_message_timeout 60s;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location ~ ^/trickle/([^/]+)/publish$ {{
            nchan_publisher;
            nchan_channel_id $1;
        }}
        location ~ ^/trickle/([^/]+)/ {{
            nchan_subscriber http-chunked;
            nchan_subscriber_timeout 0;
            nchan_channel_id $1;
        }}
    }}
}}
"""


def missing() -> str | None:
    """What keeps it from being run here, or ``None``."""
    if shutil.which("nginx") is None:
        return "there is no nginx (Debian: apt-get install nginx-light libnginx-mod-nchan)"
    if _module() is None:
        return "nginx has no nchan module (Debian: apt-get install libnginx-mod-nchan)"
    return None


def _module() -> Path | None:
    return next((folder / MODULE for folder in MODULES if (folder / MODULE).exists()), None)


def main() -> None:
    """Listen on a free port, say which, and become nginx, which takes the socket over as in its own upgrades."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    port = listener.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="tricklecast-nchan-"))
    folder.chmod(0o755)  # started by root, nginx works as somebody else
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(module=_module(), folder=folder, port=port), encoding="utf-8")
    listener.set_inheritable(True)
    os.environ["NGINX"] = f"{listener.fileno()};"
    sys.stdout.write(f"nchan is listening on http://127.0.0.1:{port}/\n")
    sys.stdout.flush()
    # What is wrong goes to standard error all the same; notices do not.
    os.execvp("nginx", ["nginx", "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(config)])


if __name__ == "__main__":
    main()
