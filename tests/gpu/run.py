"""Runs the checks of checks.py on a GPU.

python tests/gpu/run.py [--only PREFIX] [--again] [--installed] [--stand-in] [--json FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import resumed


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="PREFIX", help="names that begin so")
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--installed", action="store_true", help="the package as it is installed")
    parser.add_argument("--stand-in", action="store_true", help="without a GPU")
    parser.add_argument("--json", type=Path, default=resumed.BUILD / "checks.json", metavar="FILE")
    args = parser.parse_args()
    if not args.stand_in and resumed.gpus() == 0:
        print("there is no GPU here that a driver sees; --stand-in runs without", file=sys.stderr)
        return 1
    variables = resumed.environment(args.installed, args.stand_in)
    listing = "import checks; print(*(name for name, _ in checks.named()), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", listing], cwd=HERE, env=variables, capture_output=True, text=True
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    names = [name for name in done.stdout.splitlines() if name.startswith(args.only)]
    command = [sys.executable, str(HERE / "checks.py")]
    results = resumed.run_all(args.json, names, command, variables, again=args.again)
    failed = [name for name, row in results.items() if "failed" in row]
    for name in failed:
        print(f"--- {name}\n{results[name].get('text', results[name]['failed'])}", file=sys.stderr)
    print(f"{len(names) - len(failed)} of {len(names)} checks pass; {args.json}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
