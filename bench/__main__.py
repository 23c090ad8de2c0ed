"""Runs every benchmark in turn, each in a process of its own: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent

for name in sorted(path.stem for path in FOLDER.glob("[!_]*.py")):
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"bench.{name}"], check=True, cwd=FOLDER.parent)
