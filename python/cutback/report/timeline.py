"""The memory timeline: live bytes over the steps by category, and the arena as rectangles."""

from __future__ import annotations

from collections.abc import Sequence

from .model import CATEGORIES, Picture
from .svg import document, human_bytes, nice_ticks, tag, text

WIDTH, LEFT, RIGHT, TOP = 960.0, 84.0, 18.0, 34.0
AREA, GAP, ARENA = 240.0, 54.0, 220.0


def _stack(picture: Picture) -> dict[str, list[int]]:
    """Bytes of each category at each step."""
    n = picture.n_step
    series = {}
    for category in CATEGORIES:
        change = [0] * (n + 1)
        for life in picture.lives:
            if life.category == category:
                change[life.made] += life.bytes
                change[min(life.last + 1, n)] -= life.bytes
        total, row = 0, []
        for delta in change[:-1]:
            total += delta
            row.append(total)
        series[category] = row
    return series


def _x(picture: Picture, step: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / max(1, picture.n_step)


def _steps_path(
    picture: Picture, values: Sequence[float], top: float, base: float, height: float
) -> str:
    """A staircase through one value a step."""
    points = []
    for i, value in enumerate(values):
        y = base - height * value / top
        points.append(f"{_x(picture, i):.1f},{y:.1f} {_x(picture, i + 1):.1f},{y:.1f}")
    return " ".join(points)


def _areas(picture: Picture, top: float, base: float) -> list[str]:
    body = []
    below = [0.0] * picture.n_step
    for category, row in _stack(picture).items():
        if not any(row):
            continue
        above = [a + b for a, b in zip(below, row, strict=True)]
        upper = _steps_path(picture, above, top, base, AREA)
        lower = " ".join(reversed(_steps_path(picture, below, top, base, AREA).split()))
        title = f"{category}: up to {human_bytes(max(row))}"
        body.append(
            f'<g class="{category}">'
            f"{tag('polygon', title, css='area', points=f'{upper} {lower}')}</g>"
        )
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
    """Planned bytes by category and step, the peak, the budget, and, if given, `measured` bytes
    at each step."""
    top = 1.08 * max([1, *picture.live, *(measured or ())])
    base = TOP + AREA
    body = _axes(picture, top, base, AREA, "live bytes while each step runs")
    body += _areas(picture, top, base)
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
        body.append(
            text(x + shift, y - 6, f"peak {human_bytes(picture.live[peak])} at {op.name}", anchor)
        )
    budget = picture.numbers.get("budget_bytes")
    if budget is not None and budget <= top:
        y = base - AREA * budget / top
        body.append(tag("line", "budget", css="budget", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        body.append(text(WIDTH - RIGHT, y - 4, f"budget {human_bytes(budget)}", "end"))
    if measured:
        points = _steps_path(picture, measured, top, base, AREA)
        body.append(tag("polyline", "measured in a run", css="measured", points=points))
    body += _arena(picture, base + GAP)
    height = base + GAP + ARENA + 50
    body += _legend(picture, height - 12)
    if measured:
        peak_bytes = human_bytes(max(measured))
        note = f"dotted: measured, peak {peak_bytes}, every storage allocated by itself"
        body.append(text(WIDTH - RIGHT, height - 12, note, "end", "note"))
    return document(WIDTH, height, body, "memory timeline")


def _arena(picture: Picture, top_edge: float) -> list[str]:
    """Every life as a rectangle: steps across, addresses upwards."""
    arena = max([1, *(life.offset + life.bytes for life in picture.lives)])
    base = top_edge + ARENA
    body = _axes(picture, arena, base, ARENA, f"addresses in the arena ({human_bytes(arena)})")
    for life in picture.lives:
        if not life.bytes:
            continue
        last = min(life.last + 1, picture.n_step)
        x, width = _x(picture, life.made), _x(picture, last) - _x(picture, life.made)
        height = ARENA * life.bytes / arena
        title = (
            f"{life.label}: {human_bytes(life.bytes)} at {life.offset}, "
            f"steps {life.made}-{last - 1} ({life.category})"
        )
        shown = "box" if min(width, height) > 3 else "area"  # outlines would drown small ones
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
