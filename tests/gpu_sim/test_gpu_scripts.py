"""The scripts for people with a GPU (tests/gpu, benchmarks/gpu), on the stand-in: every check and
every row runs, known results are not repeated, and failures are reported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import nvrtc

ROOT = Path(__file__).parents[2]
CHECKS, ROWS = ROOT / "tests" / "gpu" / "run.py", ROOT / "benchmarks" / "gpu" / "bench_gpu.py"

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed")


def run(script: Path, file: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), "--installed", "--stand-in", "--json", str(file), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.very_slow
@pytest.mark.parametrize(
    "prefixes",
    [
        "row 6,optimizer nadam,index,arrays",
        pytest.param("row,opt,torch,plans,index,arrays", marks=pytest.mark.very_slow, id="all"),
    ],
)
def test_checks(tmp_path: Path, prefixes: str) -> None:
    command = [sys.executable, str(CHECKS), "--installed", "--stand-in", "--folder", str(tmp_path)]
    asked = ["--only", "checks", "--items", prefixes]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
    checks = json.loads((tmp_path / "state.json").read_text())["results"]["checks"]
    for name, records in checks.items():
        assert records[0]["status"] == "ok", name + done.stdout
        assert records[0]["value"].get("repeats", True), name
    assert set(checks) >= {"row 6", "optimizer nadam", "index", "arrays"}
    assert checks["row 6"][0]["value"]["equal"] == 2
