"""Several processes train one model. Each plans on its own, and all get the same plan. The tests
share one set of processes, since starting them takes longest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

HERE = Path(__file__).parents[1]
DOCUMENT = Path(__file__).parents[3] / "docs/torch.md"
# for processes that wait for one that is gone; each prints where it waits
LIMIT_S = float(os.environ.get("RANKS_LIMIT_S", "300"))

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")


def run_all(modes: str, directory: Path, ranks: int = 2) -> list[dict[str, Any]]:
    """Returns the results of each rank, by mode. Ranks meet through a file, so no port is
    needed."""
    directory.mkdir(exist_ok=True)
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "ranks.py"), modes, str(k), str(ranks), str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "RANKS_LIMIT_S": str(LIMIT_S - 30)},
        )
        for k in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not any(process.returncode for process in processes), "\n".join(said)
    return [json.loads((directory / f"rank{k}.json").read_text()) for k in range(ranks)]


def run(mode: str, directory: Path, ranks: int = 2) -> list[dict[str, Any]]:
    """Returns the results of each rank in one mode."""
    return [found[mode] for found in run_all(mode, directory, ranks)]


Found = dict[str, Any]


def check_ddp(first: Found, second: Found) -> None:
    """Checks DDP around the compiled module, the compiled module around DDP, and a plan of rank
    0."""
    for results in (first, second):
        for way in results.keys() & {"inside", "around", "given"}:
            found = results[way]
            assert found["steps"] == first["inside"]["steps"] or way != "given"
            assert found["same"], way
            (live,), (budget,) = found["live"], found["budget"]
            assert found["peak"] <= live <= budget < found["plain_peak"], way


def check_tensor_parallel(first: Found, second: Found) -> None:
    """Checks that each rank has eager mode's bits, the planned peaks except for a result that gloo
    still holds, and the same collectives in the same order. Plans may differ by measured
    scratch."""
    (budget,) = first["0.5x"]["budget"]
    assert max(first["0.5x"]["peak"], budget) < first["0.5x"]["plain_peak"]
    for way, found in first.items():
        if way == "processor_s":
            continue
        assert found["collectives"] == second[way]["collectives"] != [[]], way
        for results in (found, second[way]):
            assert results["same"] or way == "inductor", way
            assert results["close"], way
            for live, budget in zip(results["live"], results["budget"], strict=True):
                late = results["exchanged"]
                if way != "inductor":
                    assert results["peak"] <= live + late, way
                assert budget is None or results["peak"] <= budget + late, way


def check_sharded_both_ways(first: Found, second: Found) -> None:
    """Checks for the bits of plain FSDP2, and a peak within the budget of the whole step plus two
    blocks with gathered parameters and their gradients."""
    for way, found in first.items():
        if way == "processor_s":
            continue
        assert found["live"], way
        for results in (found, second[way]):
            assert results["same"], way
            assert results["peak"] < results["plain_peak"], way
            if "limit" in results:
                assert results["peak"] <= results["limit"] + 4 * results["block_bytes"], way


def check_gathers(first: Found, second: Found) -> None:
    """Checks that ranks gather again only if all have the same plan, that the bits are eager
    mode's, and that the peaks are the planned ones except for a result that gloo still holds."""
    for results in (first, second):
        for way, found in results.items():
            if way in ("processor_s", "alone"):
                continue
            (live,), (budget,) = found["live"], found["budget"]
            assert found["same"], way
            assert live <= budget, way
            assert found["peak"] <= live + found["exchanged"], way
    ways = [way for way, found in first.items() if isinstance(found, dict)]
    again = {way: [results[way]["again"] for results in (first, second)] for way in ways}
    assert again["agreed"][0] == again["agreed"][1] > [0]
    assert first["agreed"]["steps"] == second["agreed"]["steps"]
    assert again["different"] == [[0], [0]]
    assert first["different"]["steps"] != second["different"]["steps"]


def check_pipeline(found: list[Found]) -> None:
    """Checks for the bits of uncompiled stages, and no more memory. From the second step on the
    budget is met, including what the schedule receives and sends and what its losses hold."""
    for results in found:
        for way in results.keys() - {"processor_s"}:
            stage = results[way]
            assert stage["same"], way
            assert stage["peaks"][-1] <= stage["plain_peaks"][-1], way
            assert not any("no plan fits" in text for text in stage["said"]), (way, stage)
            assert max(stage["peaks"][1:]) <= stage["limit"], (way, stage)


def check_grid(found: list[Found]) -> None:
    """Checks for the bits of FSDP2 over tensor parallelism, with less memory."""
    for results in found:
        for way in results.keys() - {"processor_s"}:
            assert results[way]["same"], way
            assert results[way]["collectives"] == found[0][way]["collectives"], way
            assert results[way]["peak"] < results[way]["plain_peak"], way


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """Runs one mode of each kind."""
    first, second = run_all("ddp,tp,fsdp2,gathers,pipeline,grid", tmp_path / "two")
    check_ddp(first["ddp"], second["ddp"])
    check_tensor_parallel(first["tp"], second["tp"])
    check_sharded_both_ways(first["fsdp2"], second["fsdp2"])
    check_gathers(first["gathers"], second["gathers"])
    check_pipeline([first["pipeline"], second["pipeline"]])
    check_grid([first["grid"], second["grid"]])


@pytest.mark.very_slow
def test_four_processes(tmp_path: Path) -> None:
    check_grid(run("grid", tmp_path / "four", ranks=4))


@pytest.mark.very_slow
def test_distributed_data_parallel(tmp_path: Path) -> None:
    first, second = run("ddp", tmp_path / "all")
    check_ddp(first, second)
    assert set(first) > {"inside", "around", "given"}


@pytest.mark.very_slow
def test_distributed_data_parallel_by_name(tmp_path: Path) -> None:
    """If PyTorch cuts the graph into buckets, an error names the setting to change. With that
    setting there is one plan with its peak, and DDP's bits. `compile` allows the cuts if there is
    no budget."""
    for results in run("by_name", tmp_path):
        assert "torch._dynamo.config.optimize_ddp = False" in results["cut"]
        assert results["graphs"]["0.75x"] == 1 < results["graphs"]["min"]
        found = results["whole"]
        (live,), (budget,) = found["live"], found["budget"]
        assert found["same"] and found["peak"] == live <= budget < found["plain_peak"]


@pytest.mark.very_slow
def test_tensor_parallel_by_all_doors(tmp_path: Path) -> None:
    first, second = run("tp", tmp_path / "all")
    check_tensor_parallel(first, second)
    assert set(first) > {"None", "min", "0.7x", "inductor", "given", "by_name", "plain_name"}


@pytest.mark.very_slow
def test_fully_sharded_by_several_budgets(tmp_path: Path) -> None:
    check_sharded_both_ways(*run("fsdp2", tmp_path / "all"))


@pytest.mark.very_slow
def test_fully_sharded(tmp_path: Path) -> None:
    first, second = run("fsdp", tmp_path)
    for way, plans in (("blocks", 3), ("whole", 1)):
        for results in (first, second):
            found = results[way]
            assert found["same"], way
            assert len(found["live"]) == plans
            for live, budget in zip(found["live"], found["budget"], strict=True):
                assert live <= budget
            assert found["peak"] < found["plain_peak"], way


@pytest.mark.very_slow
def test_what_the_documentation_says_of_fully_sharded_models(tmp_path: Path) -> None:
    text = " ".join(DOCUMENT.read_text().split())
    eager, blocks, whole = (
        float(size)
        for size in re.search(
            r"eager mode takes (\S+) MB, .* at position 0 take (\S+) MB, .* whole takes (\S+) MB",
            text,
        ).groups()
    )
    for found in run("fsdp2_figures", tmp_path):
        assert found["blocks"]["same"] and found["whole"]["same"]
        assert round(found["whole"]["plain_peak"] / 1e6, 2) == eager
        assert round(found["blocks"]["peak"] / 1e6, 2) == blocks
        assert round(found["whole"]["peak"] / 1e6, 2) == whole


@pytest.mark.very_slow
def test_gathers_again(tmp_path: Path) -> None:
    """A fast network makes gathering cheap, `collective_again=False` forbids it, plans in files
    keep it, and no rank waits for one that is late or compiles another graph alone."""
    first, second = run("gathers", tmp_path / "all")
    check_gathers(first, second)
    for results in (first, second):
        assert results["fast network"]["again"] > [0]
        assert results["off"]["again"] == results["late"]["again"] == [0]
        assert results["given"]["steps"] == results["agreed"]["steps"]
        assert results["off"]["live"] > results["agreed"]["live"]
    assert "PlansDifferError" in first["alone"] and "collective_again=False" in first["alone"]
    assert "After 0.25 s there is no answer from rank 1 of 2" in first["alone"]
    assert second["alone"] == ""


@pytest.mark.very_slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_pipelines(ranks: int, tmp_path: Path) -> None:
    check_pipeline(run("pipeline", tmp_path / "all", ranks))


@pytest.mark.very_slow
def test_sharded_over_tensor_parallel(tmp_path: Path) -> None:
    check_grid(run("grid", tmp_path / "all", ranks=4))
