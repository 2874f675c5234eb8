#!/usr/bin/env python3
"""Writes the generated parts of documents: docs/ops.md from csrc/ir/ops.def, docs/names.md from the
package's tables of names, and the figures of README.md, ARCHITECTURE.md and docs/*.md from
benchmarks/results (doc_figures.py says how).

    tools/gen_docs.py            writes all
    tools/gen_docs.py --check    prints the differences, and exits with 1 if there are any

Run it after a change of the op table or of results; `make check` runs the check.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import doc_figures
import names_page
import wrap_docs

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "csrc/ir/ops.def"
OPS = ROOT / "docs/ops.md"

# Flags worth mentioning, in this order. What kernels read (STRIDED, MATRIX) concerns only the
# builder.
KINDS = {
    "SOURCE": "argument",
    "POINTWISE": "pointwise",
    "REDUCE": "reduction",
    "VIEW": "view",
    "COMPUTE": "compute",
    "RANDOM": "random",
    "GRAD": "made by autodiff",
}

HEAD = """\
# Operations

This page is written by `tools/gen_docs.py` from the op table, `csrc/ir/ops.def`; edit the table.
`cb_graph_add_op`, `cutback.Graph` and the text form of a graph use these names.

`cutback.nn.functional` implements the signatures of `torch.nn.functional` with these operations.
PyTorch's options that are not supported raise NotImplementedError, and class scores are in the last
axis.

Inputs of pointwise operations broadcast as in NumPy; their dtypes must agree. An operation with
several outputs lists them after `->`. Attributes are integers, numbers, lists of integers (`[]`)
or element types.

*Kind*: a **view** shares the elements of its input and costs nothing; **pointwise** operations and
**reductions** are bound by memory and cheap to recompute; **compute** operations are expensive;
**random** operations draw from the counter-based generator, so recomputing one gives the same
numbers. *Gradient*: `yes`; `no` if the operation has no gradient by definition; `expanded` if the
operation is rewritten into others and those are differentiated.
"""

TAIL = """\
## Special values

NaN, infinities, signed zeros, subnormal and huge numbers are treated as in PyTorch, in values and
gradients (`tests/torch/graph/test_special_values.py` compares every differentiable operation), with
these exceptions:

- `sign(NaN)`, and so the gradient of `abs` there, is NaN; PyTorch returns 0.
- `gelu` returns x at infinity, and x or 0 where the square of x overflows; the derivative of
  `gelu_tanh` is 0 or 1 in these cases. PyTorch returns NaN or inf.
- `log1p`, `sigmoid` and `silu` keep subnormal results, some of which PyTorch flushes to zero.
- The gradient of `rsqrt` at -0 has the sign of 1/x.
- If a window contains several NaN, `max_pool2d` gives the gradient to the first, PyTorch to the
  last.
- For its gradient, `cross_entropy` keeps the logsumexp of a row instead of all log-probabilities:
  if logits are 1e7 (f32) or larger, differences below their rounding error are lost.
- Norms sum squares in f32 (in f64 for f64 inputs). A row whose variance overflows (|x| of 1e19 or
  more in f32) has `rstd` 0, so y is the bias and the gradient is 0. PyTorch's `layer_norm` does the
  same at 1e20 and returns NaN at 1e30; its `batch_norm` sums in f64. Cast such inputs to f64.
- The mean of a row of equal numbers may be off by one unit in the last place, so `layer_norm` of
  such a row is not exactly 0 (0.04 at 1000, where rstd is 316).
- Sums are computed in a different order, so a sum of large numbers that cancel may differ.

The p of a dropout is rounded to a multiple of 2^-16, both for the mask and for 1 / (1-p). A dropout
with p = 1 multiplies by 0, like PyTorch's: NaN and infinities become NaN.
"""

ROW = re.compile(
    r'CB_OP\((?P<id>\w+), "(?P<name>\w+)", (?P<least>\d+), (?P<most>-?\d+), (?P<outs>\d+), '
    r'(?P<flags>[\w |]+), (?P<infer>\w+), (?P<vjp>\w+), "(?P<attrs>[^"]*)", "(?P<doc>[^"]*)"\)$'
)
HEADING = re.compile(r"/\* (?P<text>.*) \*/$")


@dataclass
class Op:
    """One row of the table."""

    name: str
    inputs: str
    outputs: str
    kind: str
    attrs: str
    gradient: str
    doc: str


@dataclass
class Section:
    """The rows under one comment."""

    heading: str
    ops: list[Op] = field(default_factory=list)


def attribute(item: str) -> str:
    """Returns `axes=d` in the form for readers: `axes []`."""
    name, slot = item.split("=")
    return f"`{name}`" + {"d": " []", "t": " type", "f": " number"}.get(slot[0], "")


def read_row(match: re.Match[str]) -> Op:
    """Returns a row in the form for readers."""
    least, most = match["least"], match["most"]
    flags = {flag.strip().removeprefix("CB_OPF_") for flag in match["flags"].split("|")}
    gradient = {"zero": "no", "expand": "expanded"}.get(match["vjp"], "yes")
    return Op(
        name=match["name"],
        inputs=least if least == most else f"{least}.." + ("" if most == "-1" else most),
        outputs=match["outs"],
        kind=", ".join(word for flag, word in KINDS.items() if flag in flags),
        attrs=", ".join(attribute(item) for item in match["attrs"].split()),
        gradient=gradient,
        doc=match["doc"],
    )


def read_table(text: str) -> list[Section]:
    """Returns the table by sections. Raises ValueError, with the line, for a row that it cannot
    parse."""
    body = text[text.index("*/") + 2 :]
    first_line = text[: len(text) - len(body)].count("\n") + 1
    sections: list[Section] = []
    for number, line in enumerate(body.splitlines(), first_line):
        if heading := HEADING.match(line):
            sections.append(Section(heading["text"]))
        elif row := ROW.match(line):
            sections[-1].ops.append(read_row(row))
        elif line.strip():
            raise ValueError(f"{TABLE.name}:{number}: not a row of the table: {line}")
    return sections


def cell(text: str) -> str:
    """Returns `text` escaped for a table cell."""
    return text.replace("|", "\\|") or " "


def write_ops(sections: list[Section]) -> str:
    """Returns the text of docs/ops.md."""
    lines = [HEAD]
    for section in sections:
        heading, _, rest = section.heading.partition(": ")
        lines.append(f"## {heading[:1].upper()}{heading[1:]}\n")
        if rest:
            lines.append(f"({rest}.)\n")
        lines.append("| op | in | out | attributes | kind | gradient | meaning |")
        lines.append("|---|---|---|---|---|---|---|")
        for op in section.ops:
            cells = (
                f"`{op.name}`", op.inputs, op.outputs, op.attrs, op.kind, op.gradient,
                op.doc,
            )  # fmt: skip
            lines.append("| " + " | ".join(cell(text) for text in cells) + " |")
        lines.append("")
    lines.append(TAIL)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Writes or checks; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check: bool = parser.parse_args().check
    fresh = write_ops(read_table(TABLE.read_text(encoding="utf-8")))
    made = {OPS: fresh, names_page.PAGE: names_page.text()}
    pages = {page: wrap_docs.wrapped(text) for page, text in made.items()}
    if not check:
        for page, wanted in pages.items():
            page.write_text(wanted, encoding="utf-8")
        doc_figures.write()
        return 0
    said = doc_figures.check()
    for page, wanted in pages.items():
        there = page.read_text(encoding="utf-8") if page.exists() else ""
        if there != wanted:
            name = str(page.relative_to(ROOT))
            diff = difflib.unified_diff(
                there.splitlines(True), wanted.splitlines(True), name, "from the tables"
            )
            sys.stdout.writelines(diff)
            said.append(f"{name} is out of date: run tools/gen_docs.py")
    print(*said, sep="\n", end="\n" if said else "")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
