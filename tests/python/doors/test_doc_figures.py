"""Figures in documents come from committed rows, and the check detects those that do not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

import doc_figures

ROWS = [
    {"model": "A", "budget": "min, 10 %", "peak_bytes": 3 * 2**20, "median": 1.25, "ok": True},
    {"model": "B", "budget": 0.5, "peak_bytes": 2**19, "median": 0.5},
]
ORIGIN = {"commit": "0123abc", "machine": {"cpu": "a cpu", "isa": "avx2"}}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes README.md of a repository with one file of results."""
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "rows.json").write_text(json.dumps(ORIGIN | {"rows": ROWS}))
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "ARCHITECTURE.md", "docs/cuda.md"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(doc_figures, "ROOT", tmp_path)
    monkeypatch.setattr(doc_figures, "RESULTS", results)
    monkeypatch.setattr(doc_figures, "ALLOWED", {})
    monkeypatch.setattr(doc_figures, "gpu_tables", lambda: "")
    doc_figures.results_of.cache_clear()
    yield tmp_path / "README.md"
    doc_figures.results_of.cache_clear()


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("model=A; peak_bytes; MiB.1", "3.0 MiB"),
        ("budget=min, 10 %; peak_bytes; bytes.0", "3,145,728 bytes"),
        ("budget=0.5; peak_bytes; KiB.0 bare", "512"),
        ("model=A; model=A; median; ms.2", "1.25 ms"),
    ],
)
def test_a_mark_is_filled_from_its_row(text: Path, what: str, expected: str) -> None:
    text.write_text(f"It takes <!--row rows; {what}-->?<!--/row-->.")
    (said,) = doc_figures.check()
    assert said.startswith("README.md:1: ? is ")
    doc_figures.write()
    assert text.read_text() == f"It takes <!--row rows; {what}-->{expected}<!--/row-->."
    assert not doc_figures.check()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("none; model=A; median; ms.1", "no benchmarks/results/none.json"),
        ("rows; model=C; median; ms.1", "0 rows"),
        ("rows; median; ms.1", "2 rows"),
        ("rows; model=A; ok; ms.1", "not a number"),
        ("rows; model=A; median; parsecs.1", "UNIT.DIGITS"),
        ("rows; model; median; ms.1", "not key=value"),
        ("rows; ms.1", "a mark is"),
    ],
)
def test_a_mark_without_a_row_is_reported(text: Path, what: str, why: str) -> None:
    text.write_text(f"\n\n<!--row {what}-->1 ms<!--/row-->")
    (said,) = doc_figures.check()
    assert said.startswith("README.md:3: ") and why in said
    with pytest.raises(ValueError, match="<!--row "):
        doc_figures.write()


def test_figures_outside_marks_are_reported(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text.write_text("It takes 3 ms,\n`6GiB`, 4.5 MiB and 2 layers.\n```\n7 s\n```\n    8 s\n")
    assert [line.partition(" stands")[0] for line in doc_figures.check()] == [
        "README.md:1: 3 ms", "README.md:2: 4.5 MiB",
    ]  # fmt: skip
    monkeypatch.setattr(
        doc_figures, "ALLOWED", {"README.md": {"3 ms": "", "4.5 MiB": "", "9 s": "gone"}}
    )
    assert doc_figures.check() == ["README.md: 9 s of ALLOWED is not in it"]


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({"commit": "0123abc+"}, "a clean commit"),
        ({"machine": {"cpu": "a cpu"}}, "an instruction set"),
        ({"machine": {"isa": "avx2"}}, "a machine"),
    ],
)
def test_rows_say_where_they_come_from(text: Path, change: dict[str, Any], lacks: str) -> None:
    text.write_text("<!--row rows; model=A; median; ms.2-->1.25 ms<!--/row-->")
    assert not doc_figures.check()
    file = doc_figures.RESULTS / "rows.json"
    file.write_text(json.dumps(ORIGIN | change | {"rows": ROWS}))
    doc_figures.results_of.cache_clear()
    assert doc_figures.check() == [f"benchmarks/results/rows.json lacks {lacks}: measure it again"]
