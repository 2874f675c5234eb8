"""The snippets of docs/cuda.md run, on the stand-in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from client import Driver

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import doc_snippets

PROGRAMS = [p for p in doc_snippets.programs() if p.name.startswith("docs/cuda.md")]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_it_runs(gpu: Driver, program: doc_snippets.Program) -> None:
    exec(compile(program.given + program.code, program.name, "exec"), {"__name__": "snippets"})
