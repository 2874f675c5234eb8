"""Check every C file with clang's front end, warnings as errors; nothing is compiled.

python tools/clang_warnings.py TREE    TREE: a CMake tree configured with clang
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def check(entry: dict[str, str]) -> str:
    """Returns clang's output for one file; empty if there are no warnings."""
    command = shlex.split(re.sub(r" -o \S+", "", entry["command"]))
    done = subprocess.run(
        [*command, "-fsyntax-only"], cwd=entry["directory"], capture_output=True, text=True
    )
    if done.returncode and not done.stderr:
        return f"{entry['file']}: clang ended with status {done.returncode}\n"
    return done.stderr


def main() -> int:
    entries = json.loads((Path(sys.argv[1]) / "compile_commands.json").read_text())
    written = [entry for entry in entries if Path(entry["file"]).exists()]  # not what a build makes
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = [text for text in pool.map(check, written) if text]
    print("".join(said), end="")
    print(f"clang: {len(written)} files, {len(said)} with warnings")
    return 1 if said or not written else 0


if __name__ == "__main__":
    sys.exit(main())
