"""The scripts for people with a GPU (tests/gpu, benchmarks/gpu), on the stand-in: every check and
every row runs there, what is known is not run again, and what fails is said."""

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


@pytest.mark.parametrize(
    "prefix",
    [
        *("row 6", "optimizer nadam", "index", "arrays"),
        pytest.param("", marks=pytest.mark.very_slow, id="all"),
    ],
)
def test_checks(tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "checks.json"
    done = run(CHECKS, file, "--only", prefix)
    assert done.returncode == 0, done.stdout + done.stderr
    known = json.loads(file.read_text())
    assert known and all("failed" not in row for row in known.values())
    again = run(CHECKS, file, "--only", prefix)
    assert again.stdout.count(": known") == len(known)


@pytest.mark.parametrize(
    "prefix",
    ["copy", "row 3", "adamw GPT", pytest.param("", marks=pytest.mark.very_slow, id="all")],
)
def test_rows(tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "rows.json"
    done = run(ROWS, file, "--only", prefix)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, row in json.loads(file.read_text()).items():
        assert "stand-in" in row["gpu"] and row["bytes"] > 0, name


def test_a_row_that_fails_is_said_and_run_again(tmp_path: Path) -> None:
    file = tmp_path / "checks.json"
    file.write_text(json.dumps({"index": {"failed": "a fault of another day"}, "arrays": {}}))
    done = run(CHECKS, file, "--only", "index")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "index: known" not in done.stdout
    assert json.loads(file.read_text()).keys() == {"index", "arrays"}
