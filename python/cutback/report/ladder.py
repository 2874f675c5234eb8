"""Draws the joint graph as a ladder: the forward runs down the left side, the backward up the right
side, and every saved value is a rung. Repeated blocks are folded into one, marked "x6"."""

from __future__ import annotations

from dataclasses import dataclass, field

from .folding import Fold, folds
from .model import Picture
from .svg import document, human_bytes, tag, text

ROW, WIDTH, TOP = 19.0, 960.0, 46.0
LEFT_X, RIGHT_X, BOX = 40.0, 610.0, 310.0


@dataclass
class Row:
    """One row of the ladder: an op on one side. It also represents the folded copies of that op."""

    label: str
    css: str
    title: str
    step: int
    fold: Fold | None = None
    y: float = 0.0
    aliases: list[int] = field(default_factory=list)  # steps of the folded copies drawn by this row


def _signature(picture: Picture, step: int, css: str) -> tuple[object, ...]:
    """Returns a step's op kind, output types and colour class. Steps with equal signatures may be
    folded."""
    op = picture.ops[picture.steps[step]]
    return op.kind, tuple(picture.values[v].type for v in op.outputs), css


def _colours(picture: Picture, steps: list[int]) -> dict[int, str]:
    """Returns the CSS class of each step: "recomputed" for a rerun, "saved" if its result is saved
    for the backward, else "temporary"."""
    saved = {life.made for life in picture.lives if life.category == "saved"}
    return {
        step: "recomputed" if picture.is_rerun[step] else "saved" if step in saved else "temporary"
        for step in steps
    }


def _side(picture: Picture, steps: list[int]) -> list[Row]:
    """Returns the rows of one side in execution order, with repeats folded. Views are left out,
    because they cost nothing."""
    runs = [s for s in steps if picture.actions[s] == "run"]
    shown = [s for s in runs if not picture.ops[picture.steps[s]].view]
    css = _colours(picture, shown)
    found = folds([_signature(picture, step, css[step]) for step in shown])
    pending = {fold.start: fold for fold in found}
    rows: list[Row] = []
    i = 0
    while i < len(shown):
        fold = pending.get(i)
        if fold is None:
            rows.append(_row(picture, shown[i], css[shown[i]]))
            i += 1
            continue
        block = [_row(picture, step, css[step]) for step in shown[i : i + fold.period]]
        for k, row in enumerate(block):
            row.aliases = [shown[i + k + c * fold.period] for c in range(1, fold.count)]
        block[0].fold = fold
        rows += block
        i = fold.stop
    return rows


def _row(picture: Picture, step: int, css: str) -> Row:
    op = picture.ops[picture.steps[step]]
    types = ", ".join(picture.values[v].type for v in op.outputs)
    size = sum(picture.storage_bytes[picture.values[v].storage] for v in op.outputs)
    return Row(f"{op.kind}  {types}", css, f"{op.name} {op.location} {human_bytes(size)}", step)


def _rungs(picture: Picture, left: list[Row], right: list[Row]) -> list[str]:
    """Draws a line from the forward op that made a storage to each backward op that reads it."""
    row_of = {step: row for row in left + right for step in [row.step, *row.aliases]}
    maker: dict[int, int] = {}  # storage -> the step that made its current life
    body: list[str] = []
    drawn: set[tuple[int, int]] = set()
    for step, op_id in enumerate(picture.steps):
        op = picture.ops[op_id]
        if picture.actions[step] == "in":  # copied back from the host, so not saved
            for value in op.outputs:
                maker.pop(picture.values[value].storage, None)
        if op.view or picture.actions[step] != "run":
            continue
        for value in op.inputs:
            storage = picture.values[value].storage
            source = maker.get(storage, picture.n_step)
            if not source < picture.backward_starts <= step:
                continue
            pair = (id(row_of[source]), id(row_of[step]))
            if pair not in drawn:
                drawn.add(pair)
                body.append(_rung(picture, row_of[source], row_of[step], storage))
        maker.update((picture.values[value].storage, step) for value in op.outputs)
    return body


def _rung(picture: Picture, source: Row, sink: Row, storage: int) -> str:
    x1, x2 = LEFT_X + BOX, RIGHT_X
    middle = (x1 + x2) / 2
    y1, y2 = source.y + 7, sink.y + 7
    path = f"M{x1:.0f} {y1:.1f} C{middle:.0f} {y1:.1f} {middle:.0f} {y2:.1f} {x2:.0f} {y2:.1f}"
    title = (
        f"{source.title} is saved for {sink.title}: {human_bytes(picture.storage_bytes[storage])}"
    )
    line = tag("path", title, css="line", d=path, stroke_opacity=0.55, stroke_width=1.2)
    return f'<g class="saved">{line}</g>'


def _draw(row: Row, x: float) -> str:
    box = tag("rect", row.title, css="box", x=x, y=row.y, width=BOX, height=ROW - 4, rx=3)
    label = row.label if len(row.label) < 48 else row.label[:46] + "..."
    return f'<g class="{row.css}">{box}</g>{text(x + 6, row.y + 11, label)}'


def _fold_mark(row: Row, x: float, upwards: bool) -> list[str]:
    """Draws a bracket next to a folded block, with the number of copies."""
    assert row.fold is not None
    span = row.fold.period * ROW - 4
    top = row.y - span + ROW - 4 if upwards else row.y
    side = x - 8 if x < WIDTH / 2 else x + BOX + 8
    label_x, anchor = (side - 6, "end") if x < WIDTH / 2 else (side + 6, "start")
    return [
        tag("line", css="axis", x1=side, x2=side, y1=top, y2=top + span),
        text(label_x, top + span / 2, f"\N{MULTIPLICATION SIGN}{row.fold.count}", anchor),
    ]


def graph_svg(picture: Picture) -> str:
    """Returns the joint graph of a plan as an ``<svg>``: the forward on the left, the backward on
    the right. Blue rungs between them are saved values; orange boxes are recomputed operations.

    Args:
        picture: the result of :func:`read`.

    >>> svg = report.graph_svg(report.read(plan))
    """
    left = _side(picture, list(range(picture.backward_starts)))
    right = _side(picture, list(range(picture.backward_starts, picture.n_step)))
    rows = max(len(left), len(right), 1)
    for i, row in enumerate(left):
        row.y = TOP + i * ROW
    for i, row in enumerate(right):
        row.y = TOP + (rows - 1 - i) * ROW
    body = [
        text(LEFT_X, 18, "forward, downwards"),
        text(RIGHT_X, 18, "backward, upwards"),
        text(LEFT_X, 34, "blue: saved for the backward", css="note"),
        text(RIGHT_X, 34, "orange: recomputed", css="note"),
    ]
    body += _rungs(picture, left, right)
    for row in left:
        body.append(_draw(row, LEFT_X))
        body += _fold_mark(row, LEFT_X, upwards=False) if row.fold else []
    for row in right:
        body.append(_draw(row, RIGHT_X))
        body += _fold_mark(row, RIGHT_X, upwards=True) if row.fold else []
    return document(WIDTH, TOP + rows * ROW + 10, body, "joint graph")
