"""What a process beside runs where tuning is limited: the module that its task names, after the limits are set."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from tests.api.small import limit_tuning

if __name__ == "__main__":
    limit_tuning()
    import_module(json.loads(Path(sys.argv[1]).read_text())["runs"]).main(sys.argv[1:])
