"""Several processes train one model: each plans by itself, and all have the same plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

HERE = Path(__file__).parents[1]
LIMIT_S = 300  # for a process that waits for one that is gone


def run(mode: str, directory: Path) -> list[dict[str, Any]]:
    """What each rank found; they meet at a file, so no port is needed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "ranks.py"), mode, str(rank), str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    return [json.loads((directory / f"rank{k}.json").read_text()) for k in range(2)]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
@pytest.mark.very_slow
def test_distributed_data_parallel(tmp_path: Path) -> None:
    first, second = run("ddp", tmp_path)
    assert first["inside"]["steps"] == second["inside"]["steps"] == first["given"]["steps"]
    assert second["given"]["steps"] == first["given"]["steps"]
    for results in (first, second):
        for way, found in results.items():
            assert found["same"], way
            (live,), (budget,) = found["live"], found["budget"]
            assert found["peak"] == live <= budget < found["plain_peak"], way


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_distributed_data_parallel_by_name(tmp_path: Path) -> None:
    """The graph that PyTorch cuts into buckets is an error that says what to set; with that set,
    one plan, its peak, and DDP's bits. `compile` leaves the cuts where no budget is to be kept."""
    for results in run("by_name", tmp_path):
        assert "torch._dynamo.config.optimize_ddp = False" in results["cut"]
        assert results["graphs"]["0.75x"] == 1 < results["graphs"]["min"]
        found = results["whole"]
        (live,), (budget,) = found["live"], found["budget"]
        assert found["same"] and found["peak"] == live <= budget < found["plain_peak"]


def check_tensor_parallel(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Bits of eager on each rank, peaks that are the planned ones but for a result that gloo still
    holds, and one plan for all ranks."""
    for way, found in first.items():
        assert found["steps"] == second[way]["steps"], way
        for results in (found, second[way]):
            assert results["same"] or way == "inductor", way
            assert results["close"], way
            for live, budget in zip(results["live"], results["budget"], strict=True):
                late = results["exchanged"]
                if way != "inductor":
                    assert live <= results["peak"] <= live + late, way
                assert budget is None or results["peak"] <= budget + late, way


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_tensor_parallel(tmp_path: Path) -> None:
    first, second = run("tp", tmp_path)
    check_tensor_parallel(first, second)
    (budget,) = first["0.5x"]["budget"]
    assert max(first["0.5x"]["peak"], budget) < first["0.5x"]["plain_peak"]


@pytest.mark.very_slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_tensor_parallel_by_all_doors(tmp_path: Path) -> None:
    directory = tmp_path / "all"
    directory.mkdir()
    first, second = run("tp", directory)
    check_tensor_parallel(first, second)
    assert set(first) > {"None", "min", "0.7x", "inductor", "given", "by_name", "plain_name"}


def check_sharded_both_ways(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Bits of plain FSDP2, one plan on all ranks, and a peak within the budget of the whole step.
    On top of it come two blocks whose parameters FSDP2 has gathered, and their gradients."""
    for way, found in first.items():
        assert found["steps"] == second[way]["steps"] and found["live"], way
        for results in (found, second[way]):
            assert results["same"], way
            assert results["peak"] < results["plain_peak"], way
            if "limit" in results:
                assert results["peak"] <= results["limit"] + 4 * results["block_bytes"], way


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_fully_sharded_both_ways(tmp_path: Path) -> None:
    check_sharded_both_ways(*run("fsdp2", tmp_path))


@pytest.mark.very_slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_fully_sharded_by_several_budgets(tmp_path: Path) -> None:
    directory = tmp_path / "all"
    directory.mkdir()
    check_sharded_both_ways(*run("fsdp2", directory))


@pytest.mark.very_slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_fully_sharded(tmp_path: Path) -> None:
    first, second = run("fsdp", tmp_path)
    for way, plans in (("blocks", 3), ("whole", 1)):
        assert first[way]["steps"] == second[way]["steps"]
        for results in (first, second):
            found = results[way]
            assert found["same"], way
            assert len(found["live"]) == plans
            for live, budget in zip(found["live"], found["budget"], strict=True):
                assert live <= budget
            assert found["peak"] < found["plain_peak"], way
