"""Draws the memory timeline: live bytes by category over the steps, and the layout of the arena."""

from __future__ import annotations

from collections.abc import Sequence

from .layers import Span, block_of, spans
from .model import CATEGORIES, Picture, live_bytes, taken_over
from .plot import LEFT, LETTER, RIGHT, WIDTH, Plot, along, columns, layers_row, steps_axis
from .svg import document, human_bytes, tag, text

TOP, AREA, GAP, ARENA = 60.0, 240.0, 82.0, 200.0
# Limits as multiples of the peak. Higher elements are not drawn, because the plan would become too
# small to see.
HIGHEST_LINE = 1.25  # the line of the budget
HIGHEST_OUTLINE = 3.0  # the outline of saving everything, which is cut off there
LARGEST_BASE = 1.5  # the caller's bytes
GREY = "grey", "saving everything; dashed: the floor"  # an entry of a legend
MOST_BOXES = 4000  # limit on the lifetimes drawn in the arena; the largest are drawn


def stack_of(picture: Picture) -> dict[str, list[int]]:
    """Returns the live bytes during each step, by category. Categories without bytes are left
    out."""
    begins = taken_over(picture.lives)
    rows = {
        category: live_bytes(
            (life for life in picture.lives if life.category == category), picture.n_step, begins
        )
        for category in CATEGORIES
    }
    return {category: row for category, row in rows.items() if any(row)}


def blocks_of(picture: Picture) -> list[Span]:
    """Returns the layers as spans of steps."""
    return spans([block_of(picture.paths[op]) for op in picture.steps]) if picture.paths else []


def _areas(picture: Picture, plot: Plot) -> list[str]:
    body = []
    wide = columns(picture.live)
    below = [0] * picture.n_step
    for category, row in stack_of(picture).items():
        above = [b + size for b, size in zip(below, row, strict=True)]
        edges = [plot.stairs(values, wide) for values in (above, below)]
        points = " ".join([edges[0], *reversed(edges[1].split())])
        title = f"{category}: up to {human_bytes(max(row))}"
        area = tag("polygon", title, css="area", points=points)
        body.append(f'<g class="{category}">{area}</g>')
        below = above
    return body


def _base(picture: Picture, plot: Plot) -> list[str]:
    """Draws the memory that the caller holds, below the curve."""
    body: list[str] = []
    top = 0
    for name, size in picture.base if plot.below else ():
        css = "parameter" if name.startswith("parameter") else "optimizer"
        if name == "inputs":
            css = "input"
        area = tag("rect", f"{name}: {human_bytes(size)}", css="area", x=LEFT, y=plot.y(top),
                   width=WIDTH - LEFT - RIGHT, height=plot.y(top - size) - plot.y(top))  # fmt: skip
        body.append(f'<g class="{css}">{area}</g>')
        top -= size
    return body


def outlines(picture: Picture, plot: Plot) -> list[str]:
    """Draws the outline of saving everything, and the floor, in grey."""
    body = []
    if picture.everything:
        title = f"saving everything: up to {human_bytes(max(picture.everything))}"
        body.append(plot.outline(picture.everything, title))
    if picture.floor_bytes:
        title = f"floor: no plan in this order peaks below {human_bytes(picture.floor_bytes)}"
        body.append(plot.outline([picture.floor_bytes] * picture.n_step, title, "outline floor"))
    return body


def _peak(picture: Picture, plot: Plot, line: float | None) -> list[str]:
    """Draws a dot at the peak, with its bytes and op. `line` is the y coordinate of the budget."""
    if not picture.live:
        return []
    step = max(range(picture.n_step), key=lambda i: picture.live[i])
    x, y = plot.x(step + 0.5), plot.y(picture.live[step])
    op = picture.ops[picture.steps[step]]
    title = f"step {step}: {op.name} {op.location}"
    dot = tag("circle", title, cx=x, cy=y, r=4, fill="currentColor")
    anchor = "end" if x > WIDTH * 0.6 else "start"
    shift = -8 if anchor == "end" else 8
    if line is not None and anchor == "start":  # keep the label above the budget line
        y = min(y, line + 2)
    name = op.name if len(op.name) <= 40 else op.name[:39] + "\N{HORIZONTAL ELLIPSIS}"
    label = f"peak {human_bytes(picture.live[step])} at {name}"
    return [along([dot, text(x + shift, y - 6, label, anchor)], "peak", at=x)]


def _live_plot(picture: Picture, measured: Sequence[int] | None) -> tuple[Plot, int | None]:
    """Returns the plot of live bytes, and the budget if it is drawn."""
    highest = max([1, *picture.live, *(measured or ())])
    budget = picture.live_budget
    if budget is not None and budget > HIGHEST_LINE * highest:
        budget = None
    everything = max(picture.everything, default=0)
    most = 1.08 * max(highest, budget or 0, min(everything, HIGHEST_OUTLINE * highest))
    held = sum(size for _, size in picture.base)
    below = held if held <= LARGEST_BASE * highest else 0
    return Plot(picture.n_step, TOP + AREA, AREA, most, below), budget


def _budget(plot: Plot, budget: int) -> list[str]:
    """Draws the line of the budget, with its bytes below the line; those of the peak are above."""
    y, right = plot.y(budget), WIDTH - RIGHT
    line = tag("line", "budget", css="budget", x1=LEFT, x2=right, y1=y, y2=y)
    return [line, text(LEFT + 4, y + 13, f"budget {human_bytes(budget)}", css="limit")]


def timeline_svg(
    picture: Picture, measured: Sequence[int] | None = None, legend: bool = True
) -> str:
    """Returns the memory timeline of a plan as an ``<svg>``: live bytes by category over the steps,
    with the peak, the budget and, in grey, saving everything and the floor. The arena is below.

    Args:
        picture: the result of :func:`read`.
        measured: bytes that a run used during each step, drawn as a dotted line.
        legend: if true, adds a legend.

    >>> svg = report.timeline_svg(report.read(plan))
    """
    plot, budget = _live_plot(picture, measured)
    held = f", above {human_bytes(plot.below)} always held" if plot.below else " of each step"
    body = [text(LEFT, 14, f"live bytes{held}"), plot.bytes_axis()]
    inside = _areas(picture, plot) + _base(picture, plot) + outlines(picture, plot)
    if measured:
        inside.append(plot.outline(measured, "measured in a run", "measured"))
    body.append(plot.moving(inside))
    body.append(layers_row(plot, blocks_of(picture), TOP - 32))
    body += plot.phases(picture.backward_starts, plot.base + 46)
    body += _peak(picture, plot, None if budget is None else plot.y(budget))
    if budget is not None:
        body += _budget(plot, budget)
    body.append(steps_axis(plot, plot.base + 16, picture.times_ps))
    body += _arena(picture, plot.base + GAP)
    height = plot.base + GAP + ARENA + 10
    if legend:
        rows, height = _legend(picture, plot, height + 18)
        body += rows
    if measured and legend:
        height += 18
        body.append(text(LEFT, height - 8, measured_note(measured), css="note"))
    peak = human_bytes(max(picture.live, default=0))
    label = f"memory timeline of {picture.n_step} steps: peak {peak} of live bytes"
    return document(WIDTH, height, body, label)


def measured_note(measured: Sequence[int]) -> str:
    """Returns the entry of the legend for the dotted line."""
    return f"dotted: measured, peak {human_bytes(max(measured))}, separate allocations"


def legend_of(picture: Picture, below: bool = True) -> list[tuple[str, str]]:
    """Returns (CSS class, name) for each colour of a timeline."""
    present = {life.category for life in picture.lives}
    rows = [(category, category) for category in CATEGORIES if category in present]
    for name, _ in picture.base if below else ():
        css = "parameter" if name.startswith("parameter") else "optimizer"
        rows.append(("input" if name == "inputs" else css, name))
    return [*rows, GREY]


def _legend(picture: Picture, plot: Plot, y: float) -> tuple[list[str], float]:
    """Draws the legend in rows, starting at `y`. Returns its elements and the y coordinate where it
    ends."""
    body, x = [], LEFT
    for css, name in legend_of(picture, plot.below > 0):
        wide = 34 + LETTER * len(name)
        if x > LEFT and x + wide > WIDTH:
            x, y = LEFT, y + 18
        thick = 2 if css == "grey" else 11  # the line of an outline
        box = tag("rect", css="area", x=x, y=y - 4 - thick / 2, width=11, height=thick)
        body += [f'<g class="{css}">{box}</g>', text(x + 16, y, name)]
        x += wide
    return body, y + 8


def _arena(picture: Picture, top_edge: float) -> list[str]:
    """Draws each lifetime as a rectangle: steps on the x axis, addresses on the y axis."""
    arena = max([1, *(life.offset + life.bytes for life in picture.lives)])
    plot = Plot(picture.n_step, top_edge + ARENA, ARENA, arena)
    label = f"addresses in the arena ({human_bytes(arena)})"
    body = [text(LEFT, top_edge - 10, label), plot.bytes_axis()]
    lives = [life for life in picture.lives if life.bytes]
    if len(lives) > MOST_BOXES:
        lives = sorted(lives, key=lambda life: life.bytes * (life.last - life.made + 1))
        note = f"the largest {MOST_BOXES} of {len(lives)} lifetimes"
        body.append(text(WIDTH - RIGHT, top_edge - 10, note, "end", "note"))
        lives = lives[-MOST_BOXES:]
    boxes = []
    for life in lives:
        last = min(life.last + 1, picture.n_step)
        x, width = plot.x(life.made), plot.x(last) - plot.x(life.made)
        height = ARENA * life.bytes / arena
        title = (
            f"{life.label}: {human_bytes(life.bytes)} at {life.offset}, "
            f"steps {life.made}-{last - 1} ({life.category})"
        )
        shown = "box" if min(width, height) > 3 else "area"  # outlines would hide small boxes
        marks = {} if life.storage is None else {"data_s": life.storage}
        boxes.append(
            tag(
                "rect", title, css=f"{shown} {life.category}", x=x,
                y=plot.base - ARENA * (life.offset + life.bytes) / arena,
                width=max(width, 0.5), height=max(height, 0.3), **marks,
            )
        )  # fmt: skip
    return [*body, plot.moving(boxes), *plot.phases(picture.backward_starts, None)]
