"""Claim: a cut, a frontier and a warm ban on generated networks of up to a million nodes.

python benchmarks/planner/bench_networks.py [--largest NODES]

Builds and runs bench_flow.c and keeps its rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from common import save  # noqa: E402


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest", type=int, default=1_000_000)
    options = parser.parse_args()
    build = ROOT / "build" / "bench"
    configure = ["cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DCB_BENCH=ON"]
    subprocess.check_call([*configure, "-DCB_TESTS=OFF"], stdout=subprocess.DEVNULL)
    target = ["cmake", "--build", build, "--target", "bench_flow"]
    subprocess.check_call(target, stdout=subprocess.DEVNULL)
    command = [build / "bench_flow", str(options.rounds), str(options.largest)]
    lines = subprocess.check_output(command, text=True).splitlines()
    rows = [json.loads(line) for line in lines]
    save("planner_networks", "python benchmarks/planner/bench_networks.py", rows)


if __name__ == "__main__":
    main()
