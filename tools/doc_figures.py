"""Figures in the documents come from committed rows.

A figure with a unit is inside a mark that names its row:

    <!--row step_memory; model=GPT-2; what=eager; peak_bytes; MiB.1-->97.7 MiB<!--/row-->

`step_memory` is benchmarks/results/step_memory.json; `key=value` parts select one row; then come
the column and the format. A format is a unit of UNITS, the number of digits after a point, and
"bare" to leave the unit out (in a table whose heading has it). `tools/gen_docs.py` fills marks,
and its `--check` reports marks that differ from their rows, and times and sizes outside marks, code
and ALLOWED. The tables of GPUs in docs/cuda.md are compared with their rows as well.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MARK = re.compile(r"<!--row (?P<what>[^>]*?)-->(?P<text>.*?)<!--/row-->", re.DOTALL)
FIGURE = re.compile(
    r"(?<![\w.])\d[\d,.]*\s?(?:ns|us|µs|ms|s|seconds?|minutes?|hours?|bytes?|[KMGT]i?B)(?:/s)?\b"
)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^(?:    .*\n)+", re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")

# Unit in the text: (factor from the unit of the rows, suffix).
UNITS = {
    "KiB": (2.0**-10, " KiB"),
    "MiB": (2.0**-20, " MiB"),
    "GiB": (2.0**-30, " GiB"),
    "bytes": (1.0, " bytes"),
    "us": (1.0, " us"),
    "ms": (1.0, " ms"),
    "ms_from_s": (1e3, " ms"),
    "s": (1.0, " s"),
    "%": (1.0, " %"),
    "%_from_share": (1e2, " %"),
    "x": (1.0, "x"),
    "number": (1.0, ""),
}

# Times and sizes that are not measurements, by document, with the reason for each.
_EXAMPLE = "planned bytes of an example in the text"
_LAYOUT = "a size that the code fixes"
_TARGET = "about how long a command takes"
_TWO_RANKS = "peaks that tests/torch/compiler/test_ranks.py measures on two processes"
ALLOWED: dict[str, dict[str, str]] = {
    "docs/cuda.md": {
        "4 MiB": _LAYOUT,
        "16 bytes": _LAYOUT,
        "96 bytes": "traffic of eight elements, counted from the machine code",
    },
    "docs/fusion.md": {
        "408.6 MiB": _EXAMPLE,
        "240.4 MiB": _EXAMPLE,
        "40 MiB": _EXAMPLE,
        "256.4 MiB": _EXAMPLE,
        "32 MiB": _EXAMPLE,
        "786,432 bytes": _EXAMPLE,
        "16 bytes": _LAYOUT,
        "4 bytes": _LAYOUT,
    },
    "docs/optim.md": {
        "4 bytes": _LAYOUT,
        "8 bytes": _LAYOUT,
        "16 bytes": _LAYOUT,
        "64 MiB": _LAYOUT,
    },
    "docs/planner.md": {"1,000 s": _LAYOUT},
    "docs/testing.md": {
        "20 minutes": _TARGET,
        "10 seconds": "the limit of a fuzzed input",
        "4 bytes": _LAYOUT,
        "16 bytes": _LAYOUT,
    },
    "docs/torch.md": {
        "3.09 MB": _TWO_RANKS,
        "2.62 MB": _TWO_RANKS,
        "1.58 MB": _TWO_RANKS,
        "64 KiB": _LAYOUT,
        "1 MiB": _LAYOUT,
        "4 KiB": _LAYOUT,
        "4 bytes": _LAYOUT,
        "8 bytes": _LAYOUT,
        "10 GB/s": "the default of a device's link",
    },
}


@cache
def results_of(name: str) -> dict[str, Any]:
    """Returns a file of results."""
    document: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return document


def origin(name: str) -> str:
    """Returns what a file's rows lack to be reproducible, or ""."""
    document = results_of(name)
    lacks = ["a clean commit"] if "+" in document.get("commit", "+") else []
    machine = document.get("machine", {})
    if "isa" not in machine and not name.startswith("gpu_"):
        lacks.append("an instruction set")
    return " and ".join(lacks + ([] if "cpu" in machine else ["a machine"]))


def value_of(what: str) -> str:
    """Returns the text for a mark.

    Raises:
        ValueError: the mark is malformed, or does not name exactly one number.
    """
    parts = [part.strip() for part in what.split(";")]
    if len(parts) < 3:
        raise ValueError("a mark is `row FILE; key=value; ...; COLUMN; FORMAT`")
    name, *wanted, column, form = parts
    if not (RESULTS / f"{name}.json").exists():
        raise ValueError(f"there is no benchmarks/results/{name}.json")
    pairs = [part.partition("=") for part in wanted]
    if any(not sep for _, sep, _ in pairs):
        raise ValueError(f"not key=value: {', '.join(wanted)}")
    found = [
        row for row in results_of(name)["rows"] if all(str(row.get(k)) == v for k, _, v in pairs)
    ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows of {name}.json have {', '.join(wanted)}")
    value = found[0].get(column)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{column!r} of this row of {name}.json is not a number")
    unit, _, rest = form.partition(".")
    digits, _, bare = rest.partition(" ")
    if unit not in UNITS or not digits.isdecimal() or bare not in ("", "bare"):
        raise ValueError(f"{form!r} is not UNIT.DIGITS or UNIT.DIGITS bare, UNIT one of {[*UNITS]}")
    scale, suffix = UNITS[unit]
    return f"{value * scale:,.{int(digits)}f}{'' if bare else suffix}"


def documents() -> list[Path]:
    """Returns the documents whose figures are checked."""
    return [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


def filled(text: str) -> str:
    """Returns a document with its marks filled.

    Raises:
        ValueError: a mark is malformed; the message quotes it.
    """

    def fill(mark: re.Match[str]) -> str:
        try:
            return f"<!--row {mark['what']}-->{value_of(mark['what'])}<!--/row-->"
        except ValueError as error:
            raise ValueError(f"<!--row {mark['what']}-->: {error}") from None

    return MARK.sub(fill, text)


def unmarked(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, figure) of the times and sizes outside marks, code and the tables of GPUs."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    tables = re.compile(
        r"<!-- results of GPUs: begin -->.*?<!-- results of GPUs: end -->", re.DOTALL
    )
    for pattern in (MARK, tables, FENCE, INDENTED, CODE):
        text = pattern.sub(blank, text)
    for found in FIGURE.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].split())


def gpu_tables() -> str:
    """Returns the tables of docs/cuda.md, from the rows of each card."""
    sys.path[:0] = [str(ROOT / "benchmarks" / "gpu"), str(ROOT / "benchmarks")]
    import results  # type: ignore[import-not-found]

    return f"{results.BEGIN}\n\n{results.tables(results.kept(RESULTS))}\n\n{results.END}"


def write() -> None:
    """Fills the marks of all documents."""
    for path in documents():
        old = path.read_text(encoding="utf-8")
        new = filled(old)
        if new != old:
            path.write_text(new, encoding="utf-8")


def check() -> list[str]:
    """Returns all errors, one line each."""
    said = []
    used: set[str] = set()
    for path in documents():
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        for mark in MARK.finditer(text):
            line = text.count("\n", 0, mark.start()) + 1
            try:
                wanted = value_of(mark["what"])
            except ValueError as error:
                said.append(f"{name}:{line}: <!--row {mark['what']}-->: {error}")
                continue
            used.add(mark["what"].partition(";")[0].strip())
            if mark["text"] != wanted:
                said.append(f"{name}:{line}: {mark['text']} is {wanted} in {mark['what']}")
        allowed = ALLOWED.get(name, {})
        found = list(unmarked(text))
        said += [
            f"{name}:{line}: {figure} stands outside a mark and is not in ALLOWED of doc_figures.py"
            for line, figure in found
            if figure not in allowed
        ]
        figures = {figure for _, figure in found}
        said += [f"{name}: {f} of ALLOWED is not in it" for f in allowed if f not in figures]
    for name in sorted(used):
        lacks = origin(name)
        if lacks:
            said.append(f"benchmarks/results/{name}.json lacks {lacks}: measure it again")
    if gpu_tables() not in (ROOT / "docs" / "cuda.md").read_text(encoding="utf-8"):
        said.append("docs/cuda.md: the tables of GPUs differ from benchmarks/results/gpu_*.json")
    return said
