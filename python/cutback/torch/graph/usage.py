"""Draws memory by category over the time of a measured step, and writes the page of a profile."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from ...report.page import page
from ...report.plot import staircase
from ...report.svg import document, escape, human_bytes, nice_ticks, tag, text
from ...report.table import scroll, table
from .records import Peak, Row, Uses, Value

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960.0, 360.0, 84.0, 18.0, 34.0, 64.0
MOST_COLUMNS = 900
MOST_ROWS = 400
_LEAST = 1e-9  # minimum seconds of a column, so that views, which take no time, are visible


def _columns(edges: Sequence[float], total: Sequence[int]) -> list[tuple[float, float, int]]:
    """Returns columns of equal time: (left, right, the row in it with the most memory), and their
    seconds."""
    n, end = len(total), edges[-1]
    found = []
    wide = min(MOST_COLUMNS, max(1, 4 * n))
    for i in range(wide):
        low, high = end * i / wide, end * (i + 1) / wide
        first = min(n - 1, max(0, bisect_right(edges, low) - 1))
        last = min(n, max(first + 1, bisect_right(edges, high)))
        found.append((low, high, max(range(first, last), key=total.__getitem__)))
    return found


def usage_svg(
    ops: Sequence[tuple[str, float]],
    categories: Mapping[str, Sequence[int]],
    phases: Sequence[tuple[str, int]],
) -> str:
    """Draws stacked areas over time and returns them as SVG. ``ops`` has the name and seconds of
    each op in order; ``categories`` has the bytes while each op runs, from the bottom up;
    ``phases`` has the name and number of ops of each phase, in order.
    """
    n = len(ops)
    total = [sum(row[k] for row in categories.values()) for k in range(n)]
    edges = [0.0, *accumulate(max(seconds, _LEAST) for _, seconds in ops)]
    end = edges[-1] or 1.0
    top, base = 1.08 * max([1, *total]), HEIGHT - BOTTOM
    wide = WIDTH - LEFT - RIGHT

    def y(size: float) -> float:
        return round(base - (base - TOP) * size / top, 1)

    body = [text(LEFT, TOP - 14, "bytes by category over the time of a step")]
    for tick in nice_ticks(top):
        body.append(tag("line", css="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick)))
        body.append(text(LEFT - 8, y(tick) + 4, human_bytes(tick), "end", "note"))
    spans = _columns(edges, total) if n else []
    below = [0] * len(spans)
    for category, row in categories.items():
        above = [b + row[k] for b, (_, _, k) in zip(below, spans, strict=True)]
        lines = [
            staircase(
                [
                    (LEFT + wide * low / end, LEFT + wide * high / end, y(size))
                    for (low, high, _), size in zip(spans, sizes, strict=True)
                ]
            )
            for sizes in (above, below)
        ]
        points = " ".join([lines[0], *reversed(lines[1].split())])
        title = f"{category}: up to {human_bytes(max(row, default=0))}"
        area = tag("polygon", title, css="area", points=points)
        body.append(f'<g class="{category.split()[0]}">{area}</g>')
        below = above
    body += _marks(ops, total, edges, phases, y)
    x = LEFT
    for category in categories:
        mark = tag("rect", css="area", x=x, y=HEIGHT - 21, width=11, height=11)
        body.append(f'<g class="{category.split()[0]}">{mark}</g>')
        body.append(text(x + 16, HEIGHT - 12, category))
        x += 34 + 7 * len(category)
    return document(WIDTH, HEIGHT, body, "memory by category over time")


def _marks(
    ops: Sequence[tuple[str, float]],
    total: Sequence[int],
    edges: Sequence[float],
    phases: Sequence[tuple[str, int]],
    y: Callable[[float], float],
) -> list[str]:
    """Draws the starts of phases, the time axis, and the peak."""
    end, base, wide = edges[-1] or 1.0, HEIGHT - BOTTOM, WIDTH - LEFT - RIGHT
    body, at = [], 0
    for phase, n in phases:
        x = LEFT + wide * edges[at] / end
        body.append(tag("line", css="axis", x1=x, x2=x, y1=TOP, y2=base))
        body.append(text(x + 6, base + 16, phase, "start", "note"))
        at += n
    body.append(text(WIDTH - RIGHT, base + 16, f"{1e3 * end:.2f} ms", "end", "note"))
    if ops:
        k = max(range(len(ops)), key=total.__getitem__)
        x = LEFT + wide * (edges[k] + edges[k + 1]) / 2 / end
        body.append(tag("circle", f"row {k}: {ops[k][0]}", cx=x, cy=y(total[k]), r=4,
                        fill="currentColor"))  # fmt: skip
        side, shift = ("end", -8) if x > WIDTH * 0.6 else ("start", 8)
        label = f"peak {human_bytes(total[k])} at {ops[k][0]}"
        body.append(text(x + shift, y(total[k]) - 6, label, side))
    return body


def _value_row(value: Value) -> tuple[str, ...]:
    def span(uses: Uses | None) -> str:
        return "" if uses is None else f"{uses.first} - {uses.last}"

    return (
        value.name, value.type, human_bytes(value.bytes), value.category, span(value.forward),
        span(value.backward), f"{1e3 * value.inactive_seconds:.3f}",
        f"{1e3 * value.swap_out_seconds:.3f}", f"{1e3 * value.swap_in_seconds:.3f}",
    )  # fmt: skip


def usage_page(
    title: str, picture: str, peak: Peak, rows: Sequence[Row], values: Sequence[Value], runs: int
) -> str:
    """Returns a complete page: the picture, the peak, and the tables of ops and values, largest
    first."""
    seconds = sum(row.seconds for row in rows)
    parts = [
        (category, human_bytes(size), f"{size / max(1, peak.total_bytes):.1%}")
        for category, size in peak.by_category.items()
        if size
    ]
    longest = sorted(enumerate(rows), key=lambda item: -item[1].seconds)[:MOST_ROWS]
    ops = [
        (k, row.phase, row.name, row.kind, row.location, f"{1e3 * row.seconds:.3f}",
         human_bytes(row.bytes), human_bytes(row.live_bytes))
        for k, row in longest
    ]  # fmt: skip
    largest = sorted(values, key=lambda v: -v.bytes)[:MOST_ROWS]
    return page(
        title,
        f'<div class="cb">{scroll(picture, "memory over time")}</div>'
        f"<h2>The peak</h2><p>{human_bytes(peak.total_bytes)} at {escape(peak.name)}, of which the "
        f"step itself holds {human_bytes(peak.bytes)}.</p>"
        + table(("category", "bytes", "share"), parts, numeric=(1, 2))
        + f"<h2>Ops, the most expensive first</h2><p>{len(rows)} ops, "
        f"{1e3 * seconds:.2f} ms, medians of {runs} runs.</p>"
        + table(("row", "phase", "op", "kind", "source", "ms", "made", "live"), ops,
                numeric=(0, 5, 6, 7))
        + "<h2>Values, the largest first</h2><p>Uses are rows, first and last.</p>"
        + table(("made by", "type", "bytes", "category", "forward", "backward", "idle ms", "out ms",
                 "in ms"), [_value_row(v) for v in largest], numeric=(2, 6, 7, 8)),
    )  # fmt: skip
