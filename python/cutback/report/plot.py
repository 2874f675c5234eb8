"""The frame of a picture over steps: columns, axes in steps and in time, layers, grey outlines.

Elements that move when a reader zooms are inside ``<svg class="over">`` or ``<g class="along">``.
The script of the page (script.js) changes their x coordinates, and those of elements to the right
of the plot."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from .layers import Span
from .svg import human_bytes, nice_ticks, tag, text

WIDTH, LEFT, RIGHT = 960.0, 84.0, 18.0
MOST_COLUMNS = 900  # about one per pixel; for longer schedules a column shows its fullest step
LETTER = 6.4  # pixels
BAND = 18.0  # height of the row of layers


@dataclass(frozen=True)
class Plot:
    """The area of a picture: `n` steps from left to right, and bytes from 0 (at y = `base`) to
    `most` (`height` pixels above). `below` bytes are drawn under 0."""

    n: int
    base: float
    height: float
    most: float
    below: int = 0

    def x(self, step: float) -> float:
        """Returns the x coordinate of the start of a step."""
        return LEFT + (WIDTH - LEFT - RIGHT) * step / max(1, self.n)

    def y(self, size: float) -> float:
        """Returns the y coordinate of a number of bytes."""
        share = (size + self.below) / (self.most + self.below)
        return round(self.base - self.height * share, 1)

    def stairs(self, values: Sequence[int], spans: Sequence[tuple[int, int, int]]) -> str:
        """Returns the SVG points of a step line through one value per step, drawn by columns."""
        return staircase(
            [(self.x(low), self.x(high), self.y(values[at])) for low, high, at in spans]
        )

    def outline(self, values: Sequence[int], title: str, css: str = "outline") -> str:
        """Returns a step line through one value per step."""
        points = self.stairs(values, columns(values))
        return tag("polyline", title, css=css, points=points)

    def moving(self, body: Iterable[str]) -> str:
        """Wraps elements that move with the x axis and are cut off at the edges of the plot."""
        top, wide = self.base - self.height, WIDTH - LEFT - RIGHT
        box = f'x="{LEFT:.0f}" y="{top:.1f}" width="{wide:.0f}" height="{self.height:.1f}"'
        view = f"{LEFT:.0f} {top:.1f} {wide:.0f} {self.height:.1f}"
        return f'<svg class="over" {box} viewBox="{view}">{"".join(body)}</svg>'

    def bytes_axis(self) -> str:
        """Draws horizontal lines at round numbers of bytes."""
        body = []
        for tick in nice_ticks(self.most + self.below):
            y = self.y(tick - self.below)
            body.append(tag("line", css="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
            body.append(text(LEFT - 8, y + 4, human_bytes(tick), "end", "note"))
        return f'<g class="bytes">{"".join(body)}</g>'

    def phases(self, backward_starts: int, label_y: float | None) -> list[str]:
        """Draws a line where the backward starts, and the names of both phases."""
        x = self.x(backward_starts)
        line = tag("line", css="axis", x1=x, x2=x, y1=self.base - self.height, y2=self.base)
        if label_y is None:
            return [along([line], at=x)]
        words = [
            text(x - 6, label_y, "forward", "end", "note"),
            text(x + 6, label_y, "backward", "start", "note"),
        ]
        return [along([line, *words], at=x)]


def along(body: Iterable[str], css: str = "", at: float | None = None) -> str:
    """Wraps elements that move with the x axis; elements that leave the plot are hidden. With `at`,
    they keep their distance from that x coordinate."""
    anchor = "" if at is None else f' data-x="{at:.1f}"'
    return f'<g class="{f"along {css}".strip()}"{anchor}>{"".join(body)}</g>'


def columns(live: Sequence[int]) -> list[tuple[int, int, int]]:
    """Groups steps into columns of a picture: (first step, step after the last, fullest step)."""
    n = len(live)
    wide = min(n, MOST_COLUMNS)
    edges = [n * i // wide for i in range(wide + 1)] if wide else [0]
    return [
        (low, high, max(range(low, high), key=live.__getitem__)) for low, high in pairwise(edges)
    ]


def staircase(points: Sequence[tuple[float, float, float]]) -> str:
    """Returns the SVG points of a step line through (left, right, y) segments; neighbours with
    equal y are merged."""
    out: list[str] = []
    for i, (left, right, y) in enumerate(points):
        if i == 0 or y != points[i - 1][2]:
            out.append(f"{left:.1f},{y:.1f}")
        if i + 1 == len(points) or points[i + 1][2] != y:
            out.append(f"{right:.1f},{y:.1f}")
    return " ".join(out)


def round_ticks(top: float, about: int = 6) -> list[float]:
    """Returns round numbers from 0 to at most `top`."""
    if top <= 0:
        return [0.0]
    unit = 10.0 ** math.floor(math.log10(top / about))
    step = next(f * unit for f in (1, 2, 5, 10) if f * unit >= top / about)
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def steps_axis(plot: Plot, y: float, times_ps: Sequence[int], unit: str = "step") -> str:
    """Draws ticks in steps, and below them ticks in milliseconds of modelled time."""
    body = [text(LEFT - 8, y, unit, "end", "note")]
    for tick in round_ticks(plot.n):
        if tick == int(tick):
            body += _tick(plot, tick, y, f"{tick:.0f}")
    total = sum(times_ps)
    if total > 0:
        body.append(text(LEFT - 8, y + 15, "ms", "end", "note"))
        edges = [0, *accumulate(times_ps)]
        right = -1e9
        for ms in round_ticks(total / 1e9):
            label = f"{ms:g}"
            step = min(plot.n, bisect.bisect_left(edges, ms * 1e9))
            x, wide = plot.x(step), LETTER * len(label) + 8
            if x - wide / 2 >= right:
                body.append(text(x, y + 15, label, "middle", "note"))
                right = x + wide / 2
    return f'<g class="ticks">{"".join(body)}</g>'


def _tick(plot: Plot, step: float, y: float, label: str) -> list[str]:
    x = plot.x(step)
    return [
        tag("line", css="axis", x1=x, x2=x, y1=plot.base, y2=plot.base + 4),
        text(x, y, label, "middle", "note"),
    ]


def layers_row(plot: Plot, spans: Sequence[Span], y: float) -> str:
    """Draws a row of boxes, one for each layer, with as much of its name as fits."""
    body = []
    for i, span in enumerate(spans):
        if not span.layer:
            continue
        x, wide = plot.x(span.first), plot.x(span.stop) - plot.x(span.first)
        css = "layer odd" if i % 2 else "layer"
        box = tag("rect", span.layer, css=css, x=x, y=y, width=wide, height=BAND - 2)
        body.append(box)
        label = shortened(span.layer, wide)
        if label:
            body.append(text(x + wide / 2, y + 12, label, "middle", "name"))
    return along(body, "layers") if body else ""


def shortened(name: str, wide: float) -> str:
    """Returns the longest suffix of a dotted name that fits in this number of pixels, or "" if not
    even the last part fits."""
    parts = name.split(".")
    for i in range(len(parts)):
        label = ".".join(parts[i:])
        if LETTER * len(label) <= wide - 4:
            return label
    return ""
