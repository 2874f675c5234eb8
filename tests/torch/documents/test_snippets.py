"""The Python snippets of README.md and docs/ run, and mypy accepts them.

Those of docs/cuda.md run in tests/gpu_sim/test_document.py, on the stand-in for a GPU. Pyright
checks all of them in ``make lint``.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

import doc_snippets

PROGRAMS = [p for p in doc_snippets.programs() if not p.name.startswith("docs/cuda.md")]
OWN_PROCESS = "docs/torch.md#1"  # makes a process group
WARNS = "docs/compile.md"  # shows two warnings


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_it_runs(
    program: doc_snippets.Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of the measured device
    torch._dynamo.reset()
    torch.manual_seed(0)
    code = program.given + program.code
    if program.name == OWN_PROCESS:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    expected = pytest.warns(RuntimeWarning) if program.name == WARNS else contextlib.nullcontext()
    with expected as seen:
        exec(compile(code, program.name, "exec"), {"__name__": "snippets"})
    if seen is not None:
        assert len(seen) == 2


def test_mypy_accepts_them() -> None:
    pytest.importorskip("mypy")
    done = doc_snippets.check("mypy")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_would_find_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mypy")
    wrong = "import cutback\ncutback.compile(lambda p: p.sum(), optimiser=None)\ncutback.dance\n"
    program = doc_snippets.Program("wrong", "", wrong)
    monkeypatch.setattr(doc_snippets, "programs", lambda: [program])
    said = doc_snippets.check("mypy").stdout
    assert "optimiser" in said and "dance" in said
