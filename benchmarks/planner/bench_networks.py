"""Claim: on generated networks of up to a million nodes, a cut takes a thousandth of networkx's
time on the same network.

python benchmarks/planner/bench_networks.py [--largest NODES] [--others NODES]

Builds and runs bench_flow.c and keeps its rows. Networks of up to `--others` nodes are also solved
by networkx (minimum_cut_value, its default algorithm) and SciPy (maximum_flow), counting the time
of the solver only, without building the network; rows say by how much they are slower than our
solve, and than our build and solve. networkx must find our value. SciPy has 32-bit capacities: it
solves the same network with rounded capacities, so its value is not compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from common import save  # noqa: E402


def read_dimacs(path: Path) -> tuple[int, np.ndarray[Any, Any]]:
    """Returns the nodes, and the arcs as rows of tail, head and capacity; the source is node 1, the
    sink 2."""
    n_node, arcs = 0, []
    with path.open() as lines:
        for text in lines:
            if text.startswith("a "):
                arcs.append([int(part) for part in text.split()[1:]])
            elif text.startswith("p "):
                n_node = int(text.split()[2])
    return n_node, np.array(arcs, np.int64)


def networkx_ms(arcs: np.ndarray[Any, Any]) -> tuple[float, int]:
    """Returns the milliseconds of the solver, and the cut's value."""
    import networkx

    network = networkx.DiGraph()
    for tail, head, capacity in arcs.tolist():
        before = network.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        network.add_edge(tail, head, capacity=before + capacity)
    begin = time.process_time()
    value = networkx.minimum_cut_value(network, 1, 2)
    return 1e3 * (time.process_time() - begin), value


def scipy_ms(n_node: int, arcs: np.ndarray[Any, Any]) -> float:
    """Returns the milliseconds of the solver: the best of three."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    scale = -(-int(arcs[:, 2].max()) // (2**31 - 1))
    ends = (arcs[:, 0] - 1, arcs[:, 1] - 1)
    sums = coo_array((arcs[:, 2], ends), shape=(n_node, n_node)).tocsr()
    sums.data = np.minimum(-(-sums.data // scale), 2**31 - 1)
    network = sums.astype(np.int32)
    times = []
    for _ in range(3):
        begin = time.process_time()
        maximum_flow(network, 0, 1)
        times.append(1e3 * (time.process_time() - begin))
    return min(times)


def compare(row: dict[str, Any], path: Path) -> None:
    """Adds the times of the other solvers."""
    n_node, arcs = read_dimacs(path)
    assert n_node == row["nodes"] and len(arcs) == row["arcs"]
    other, value = networkx_ms(arcs)
    assert value == row["cut"], (path.name, value, row["cut"])
    ours = row["build_ms"] + row["solve_ms"]
    row |= {"networkx_ms": other, "networkx / solve": other / row["solve_ms"]}
    row |= {"networkx / build and solve": other / ours}
    other = scipy_ms(n_node, arcs)
    row |= {"scipy_ms": other, "scipy / solve": other / row["solve_ms"]}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--others", type=int, default=100_000)
    options = parser.parse_args()
    build = ROOT / "build" / "bench"
    configure = ["cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DCB_BENCH=ON"]
    subprocess.check_call([*configure, "-DCB_TESTS=OFF"], stdout=subprocess.DEVNULL)
    target = ["cmake", "--build", build, "--target", "bench_flow"]
    subprocess.check_call(target, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        command = [build / "bench_flow", str(options.rounds), str(options.largest), folder]
        lines = subprocess.check_output(command, text=True).splitlines()
        rows = [json.loads(line) for line in lines]
        for row in rows:
            if row["size"] <= options.others:
                compare(row, Path(folder) / f"{row['graph']}-{row['size']}.txt")
            print(row)
    command_line = "python benchmarks/planner/bench_networks.py"
    save("planner_networks", command_line, rows, "networkx", "scipy")


if __name__ == "__main__":
    main()
