"""Draws the memory timeline: live bytes by category over the steps, and the layout of the arena."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .model import CATEGORIES, Picture, live_bytes, taken_over
from .svg import document, human_bytes, nice_ticks, tag, text

WIDTH, LEFT, RIGHT, TOP = 960.0, 84.0, 18.0, 34.0
AREA, GAP, ARENA = 240.0, 54.0, 220.0
MOST_COLUMNS = 900  # about one per pixel; in longer schedules a column shows its fullest step
HIGHEST_LINE = 1.25  # a budget further above the peak is not drawn
MOST_BOXES = 4000  # number of lives drawn in the arena; the largest are drawn


def _stack(picture: Picture) -> dict[str, list[int]]:
    """Live bytes during each step, by category."""
    begins = taken_over(picture.lives)
    return {
        category: live_bytes(
            (life for life in picture.lives if life.category == category), picture.n_step, begins
        )
        for category in CATEGORIES
    }


def _x(picture: Picture, step: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / max(1, picture.n_step)


def columns(live: Sequence[int]) -> list[tuple[int, int, int]]:
    """Groups steps into columns of a picture: (first step, step after the last, fullest step)."""
    n = len(live)
    wide = min(n, MOST_COLUMNS)
    edges = [n * i // wide for i in range(wide + 1)] if wide else [0]
    return [
        (low, high, max(range(low, high), key=live.__getitem__)) for low, high in pairwise(edges)
    ]


def staircase(points: Sequence[tuple[float, float, float]]) -> str:
    """SVG points of a step line through (left, right, y) segments; neighbours of equal y merge."""
    out: list[str] = []
    for i, (left, right, y) in enumerate(points):
        if i == 0 or y != points[i - 1][2]:
            out.append(f"{left:.1f},{y:.1f}")
        if i + 1 == len(points) or points[i + 1][2] != y:
            out.append(f"{right:.1f},{y:.1f}")
    return " ".join(out)


def _stairs(
    picture: Picture, values: Sequence[float], top: float, base: float, height: float
) -> str:
    """SVG points of a step line through one value per step."""
    live = [int(value) for value in values]
    return staircase(
        [
            (_x(picture, low), _x(picture, high), round(base - height * values[at] / top, 1))
            for low, high, at in columns(live)
        ]
    )


def _areas(picture: Picture, top: float, base: float) -> list[str]:
    body = []
    spans = columns(picture.live)
    below = [0] * len(spans)
    for category, row in _stack(picture).items():
        if not any(row):
            continue
        above = [b + row[at] for b, (_, _, at) in zip(below, spans, strict=True)]
        edges = [
            staircase(
                [
                    (_x(picture, low), _x(picture, high), round(base - AREA * value / top, 1))
                    for (low, high, _), value in zip(spans, values, strict=True)
                ]
            )
            for values in (above, below)
        ]
        points = " ".join([edges[0], *reversed(edges[1].split())])
        title = f"{category}: up to {human_bytes(max(row))}"
        area = tag("polygon", title, css="area", points=points)
        body.append(f'<g class="{category}">{area}</g>')
        below = above
    return body


def _axes(picture: Picture, top: float, base: float, height: float, label: str) -> list[str]:
    body = [text(LEFT, base - height - 10, label)]
    for tick in nice_ticks(top):
        y = base - height * tick / top
        body.append(tag("line", css="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        body.append(text(LEFT - 8, y + 4, human_bytes(tick), "end", "note"))
    x = _x(picture, picture.backward_starts)
    body.append(tag("line", css="axis", x1=x, x2=x, y1=base - height, y2=base))
    body.append(text(x - 6, base + 16, "forward", "end", "note"))
    body.append(text(x + 6, base + 16, "backward", "start", "note"))
    return body


def _legend(picture: Picture, y: float) -> list[str]:
    body, x = [], LEFT
    present = {life.category for life in picture.lives}
    for category in CATEGORIES:
        if category in present:
            body.append(
                f'<g class="{category}">'
                f"{tag('rect', css='area', x=x, y=y - 9, width=11, height=11)}</g>"
            )
            body.append(text(x + 16, y, category))
            x += 34 + 7 * len(category)
    return body


def timeline_svg(picture: Picture, measured: Sequence[int] | None = None) -> str:
    """The memory timeline of a plan as an ``<svg>``: live bytes by category over the steps, with
    the peak and the budget, and the arena below.

    Args:
        picture: the result of :func:`read`.
        measured: bytes that a run used during each step, drawn as a dotted line.

    >>> svg = report.timeline_svg(report.read(plan))
    """
    highest = max([1, *picture.live, *(measured or ())])
    budget = picture.budget_bytes
    if budget is not None and budget > HIGHEST_LINE * highest:
        budget = None
    top = 1.08 * max(highest, budget or 0)
    base = TOP + AREA
    body = _axes(picture, top, base, AREA, "live bytes while each step runs")
    body += _areas(picture, top, base)
    line = None if budget is None else base - AREA * budget / top
    if picture.live:
        peak = max(range(picture.n_step), key=lambda i: picture.live[i])
        x, y = _x(picture, peak + 0.5), base - AREA * picture.live[peak] / top
        op = picture.ops[picture.steps[peak]]
        body.append(
            tag(
                "circle",
                f"step {peak}: {op.name} {op.location}",
                cx=x,
                cy=y,
                r=4,
                fill="currentColor",
            )
        )
        anchor = "end" if x > WIDTH * 0.6 else "start"
        shift = -8 if anchor == "end" else 8
        if line is not None and anchor == "start":  # keep the label above the budget line
            y = min(y, line + 2)
        body.append(
            text(x + shift, y - 6, f"peak {human_bytes(picture.live[peak])} at {op.name}", anchor)
        )
    if budget is not None and line is not None:
        body.append(
            tag("line", "budget", css="budget", x1=LEFT, x2=WIDTH - RIGHT, y1=line, y2=line)
        )
        body.append(text(WIDTH - RIGHT, line - 4, f"budget {human_bytes(budget)}", "end"))
    if measured:
        points = _stairs(picture, measured, top, base, AREA)
        body.append(tag("polyline", "measured in a run", css="measured", points=points))
    body += _arena(picture, base + GAP)
    height = base + GAP + ARENA + 50
    body += _legend(picture, height - 12)
    if measured:
        peak_bytes = human_bytes(max(measured))
        note = f"dotted: measured, peak {peak_bytes}, every storage allocated separately"
        body.append(text(WIDTH - RIGHT, height - 12, note, "end", "note"))
    return document(WIDTH, height, body, "memory timeline")


def _arena(picture: Picture, top_edge: float) -> list[str]:
    """Draws each life as a rectangle: steps on the x axis, addresses on the y axis."""
    arena = max([1, *(life.offset + life.bytes for life in picture.lives)])
    base = top_edge + ARENA
    body = _axes(picture, arena, base, ARENA, f"addresses in the arena ({human_bytes(arena)})")
    lives = [life for life in picture.lives if life.bytes]
    if len(lives) > MOST_BOXES:
        lives = sorted(lives, key=lambda life: life.bytes * (life.last - life.made + 1))
        note = f"the largest {MOST_BOXES} of {len(lives)} lives"
        body.append(text(WIDTH - RIGHT, top_edge - 10, note, "end", "note"))
        lives = lives[-MOST_BOXES:]
    for life in lives:
        last = min(life.last + 1, picture.n_step)
        x, width = _x(picture, life.made), _x(picture, last) - _x(picture, life.made)
        height = ARENA * life.bytes / arena
        title = (
            f"{life.label}: {human_bytes(life.bytes)} at {life.offset}, "
            f"steps {life.made}-{last - 1} ({life.category})"
        )
        shown = "box" if min(width, height) > 3 else "area"  # outlines would hide small boxes
        box = tag(
            "rect",
            title,
            css=shown,
            x=x,
            y=base - ARENA * (life.offset + life.bytes) / arena,
            width=max(width, 0.5),
            height=max(height, 0.3),
        )
        body.append(f'<g class="{life.category}">{box}</g>')
    return body
