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
OWN_PROCESS = ("docs/torch.md#1", "docs/howto/fsdp.md")  # these make a process group
SLOW = {"docs/howto/fsdp.md": pytest.mark.very_slow}  # like docs/torch.md#1, with more steps
WARNS = "docs/compile.md"  # shows two warnings


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, id=p.name, marks=SLOW.get(p.name, ())) for p in PROGRAMS],
)
def test_it_runs(
    program: doc_snippets.Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # for the measured device
    torch._dynamo.reset()
    torch.manual_seed(0)
    code = program.given + program.code
    if program.name in OWN_PROCESS:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    expected = pytest.warns(RuntimeWarning) if program.name == WARNS else contextlib.nullcontext()
    with expected as seen:
        exec(compile(code, program.name, "exec"), {"__name__": "snippets"})
    if seen is not None:
        assert len(seen) == 2


@pytest.mark.very_slow  # `make lint` checks them without PyTorch
def test_mypy_accepts_them() -> None:
    pytest.importorskip("mypy")
    done = doc_snippets.check("mypy")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.very_slow
def test_mypy_would_find_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mypy")
    wrong = "import cutback\ncutback.compile(lambda p: p.sum(), optimiser=None)\ncutback.dance\n"
    program = doc_snippets.Program("wrong", "", wrong)
    monkeypatch.setattr(doc_snippets, "programs", lambda: [program])
    said = doc_snippets.check("mypy").stdout
    assert "optimiser" in said and "dance" in said


TYPES = """\
from typing import Any, assert_type

import numpy as np

import cutback as cb

Loss = np.ndarray[Any, np.dtype[Any]]
Params = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def loss(params, x):
    return (cb.tanh(x @ params["w"]) ** 2).mean()


params: Params = {"w": np.ones((2, 2), np.float32)}
x = np.ones((2, 2), np.float32)
decaying = cb.optim.AdamW(lr=lambda t: 1e-3 / (1 + t))
assert_type(cb.compile(loss, budget="0.5x", optimizer=decaying)(params, x), Loss)
assert_type(cb.compile(loss, optimizer=decaying, has_aux=True)(params, x), tuple[Loss, Any])
assert_type(cb.compile(loss)(params, x), tuple[Loss, Params])
assert_type(cb.value_and_grad(loss)(params, x), tuple[Loss, Params])
assert_type(cb.value_and_grad(loss, has_aux=True)(params, x), tuple[tuple[Loss, Any], Params])
assert_type(cb.grad(loss)(params, x), Params)
assert_type(cb.grad(loss).prepare(params, x)(params, x), Params)
assert_type(cb.grad(loss, (0, 1))(params, x), Any)
"""


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_calls_have_types(checker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(checker)
    program = doc_snippets.Program("typed calls", "", TYPES)
    monkeypatch.setattr(doc_snippets, "programs", lambda: [program])
    done = doc_snippets.check(checker)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_about_types_runs() -> None:
    exec(compile(TYPES.replace(", has_aux=True", ""), "typed calls", "exec"), {"__name__": "calls"})
