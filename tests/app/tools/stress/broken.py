"""A worker whose publishing process exits without a report when the run begins."""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__":
    for line in sys.stdin:
        if "go" in json.loads(line) and sys.argv[1] == "publish":
            os._exit(3)
        print(json.dumps({"report": {}, "ready": True}), flush=True)
