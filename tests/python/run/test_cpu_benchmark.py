"""The benchmark of fused kernels on a CPU runs at tiny sizes: each row separately, and the whole
benchmark with its processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback

FOLDER = Path(__file__).parents[3] / "benchmarks" / "cpu"
MODULES = ("bench_fused", "contest", "in_torch", "ours", "rows", "worker")


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """Imports its modules by name, hidden from other tests."""
    from importlib import import_module
    from types import SimpleNamespace

    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield SimpleNamespace(**{name: import_module(name) for name in ("rows", "contest", "worker")})
    sys.path[:] = before
    for name in MODULES:
        sys.modules.pop(name, None)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "bench_fused.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("number", [*range(1, 25), 36, 37])
def test_each_row_has_gradients_of_all_its_parameters(bench: Any, number: int) -> None:
    subject = bench.worker.ours(number, True, cutback.get_num_threads())
    params, data = bench.rows.inputs(number, True)
    gradients = subject.gradients()
    assert [g.shape for g in gradients] == [p.shape for p in bench.rows.leaves(params)]
    assert all(np.isfinite(g).all() and g.any() for g in gradients)
    facts = subject.facts()
    assert facts["peak_bytes"] >= 0  # a step that is one group may need none
    assert facts["least_bytes"] == 4 + sum(
        array.nbytes for array in bench.rows.leaves((params, params, data))
    )
    if number in (10, 11):
        assert [array.shape for array in subject.products()[0]] == [
            (16, 3 * params["x"].shape[-1]),
            (16, params["x"].shape[-1]),
            params["qkv"]["weight"].shape,
        ]


@pytest.mark.very_slow
@pytest.mark.slow
def test_the_whole_of_it(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    done = run("--quick", "--only", "3,5,11", "--threads", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["row"].split()[0] for row in rows] == ["3", "5", "11"]
    assert all(row["median"] > 0 and row["peak_bytes"] >= 0 for row in rows)
    assert "products" in rows[2] and "products" not in rows[0]
    assert not any("met" in row for row in rows)  # tiny sizes prove nothing
    if find_spec("torch") is not None:
        assert rows[0]["gradient error"] <= 1e-4 and rows[2]["gradient error"] <= 1e-4
        assert "gradient error" not in rows[1] and "eager" in rows[1]


def test_rows_that_are_not_there() -> None:
    done = run("--only", "3,99")
    assert done.returncode == 2 and "no row 99" in done.stderr


def test_other_gradients_are_seen(bench: Any, tmp_path: Path) -> None:
    for name, last in (("a", 4.0), ("b", 4.0), ("c", 4.01), ("d", np.nan)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "0.npy", np.array([1, 2, last], np.float32))
    a = tmp_path / "a"
    assert bench.contest.distance(a, tmp_path / "b") == 0
    assert bench.contest.distance(a, tmp_path / "c") == pytest.approx(0.01 / 4.01, rel=1e-3)
    assert bench.contest.distance(tmp_path / "d", a) == np.inf
    np.save(a / "1.npy", np.zeros(1))
    with pytest.raises(bench.contest.WorkerError):
        bench.contest.distance(a, tmp_path / "b")


def test_a_worker_that_ends_says_why(bench: Any, tmp_path: Path) -> None:
    settings = bench.contest.Settings(1, True, str(tmp_path))
    with bench.contest.Worker("ours", 3, settings) as worker:
        assert worker.ask("step")["ms"] > 0
        with pytest.raises(bench.contest.WorkerError, match="what is 'nonsense"):
            worker.ask("nonsense")


@pytest.mark.very_slow
def test_the_benchmark_of_groups_runs() -> None:
    """The benchmark finds the same bits under every plan."""
    command = [sys.executable, str(FOLDER / "bench_groups.py"), "--quick", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("planned in groups, min-cut") == 2
