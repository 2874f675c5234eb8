"""Draws a frontier: saved bytes on the x axis, extra time on the y axis. Lower left is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .page import MOST_ROWS, page
from .svg import document, fragment, human_bytes, nice_ticks, tag, text
from .table import scroll, table

Point = Mapping[str, Any]
"""The numbers of a plan of PyTorch's partitioner (budget, saved_bytes, peak_bytes, time_ps,
redraws), or of a plan of Cutback for a peak budget (budget, peak_bytes, time_ps)."""

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960.0, 460.0, 74.0, 150.0, 40.0, 46.0
LABELS = {
    "autograd": "save all",
    "recompute_all": "recompute all",
    "conservative": "min-cut, conservative",
    "aggressive": "min-cut, aggressive",
    "torch-compat": "PyTorch's min-cut",
    "shape-aware": "min-cut, shape-aware",
    "regions": "checkpointed regions",
}
MEANING = {
    "hull": "a corner of the hull: no plan is better",
    "step": "between two corners",
    "fill": "found greedily between two steps",
}


class _Scale:
    """Maps bytes and shares of extra time to picture coordinates."""

    def __init__(self, bytes_top: float, extra_top: float) -> None:
        self.bytes_top, self.extra_top = max(1.0, bytes_top), max(1e-4, extra_top)

    def x(self, saved: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * saved / self.bytes_top

    def y(self, extra: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * extra / self.extra_top


def _share_ticks(top: float) -> list[float]:
    """Returns round numbers from 0 to `top` for the ticks of shares."""
    raw = top / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(f * unit for f in (1, 2, 5, 10) if f * unit >= raw)
    return [i * step for i in range(int(top / step) + 1)]


def _axes(scale: _Scale, label: str) -> list[str]:
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    body = [
        text(LEFT, TOP - 14, "extra time"),
        text(right, base + 36, label, "end"),
    ]
    for extra in _share_ticks(scale.extra_top):
        y = scale.y(extra)
        body.append(tag("line", css="grid", x1=LEFT, x2=right, y1=y, y2=y))
        body.append(text(LEFT - 8, y + 4, f"{100 * extra:g} %", "end", "note"))
    for saved in nice_ticks(scale.bytes_top):
        x = scale.x(saved)
        body.append(tag("line", css="axis", x1=x, x2=x, y1=base, y2=base + 4))
        body.append(text(x, base + 18, human_bytes(saved), "middle", "note"))
    body.append(tag("line", css="axis", x1=LEFT, x2=right, y1=base, y2=base))
    return body


def _line(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _extra(frontier: Mapping[str, Any], time: float) -> float:
    return float((time - frontier["once_ps"]) / max(1, frontier["once_ps"]))


def _points(frontier: Mapping[str, Any], scale: _Scale) -> list[str]:
    """Draws the lower bound as an area, and the points as dots on a staircase."""
    columns = (frontier[key] for key in ("saved_bytes", "time_ps", "bound_ps", "kind"))
    rows = list(zip(*columns, strict=True))
    bound = [(scale.x(saved), scale.y(_extra(frontier, low))) for saved, _, low, _ in rows]
    floor = [(bound[-1][0], scale.y(0)), (bound[0][0], scale.y(0))]
    title = "no plan can be in this area (bound of the linear relaxation)"
    area = tag("polygon", title, css="area", points=_line(bound + floor), opacity=0.3)
    body = [f'<g class="temporary">{area}</g>']
    stairs: list[tuple[float, float]] = []
    for saved, time, _, _ in rows:
        x, y = scale.x(saved), scale.y(_extra(frontier, time))
        stairs += [(x, stairs[-1][1] if stairs else y), (x, y)]
    line = tag("polyline", css="line", points=_line(stairs), stroke_opacity=0.5)
    body.append(f'<g class="saved">{line}</g>')
    for i, (saved, time, low, kind) in enumerate(rows):
        extra = _extra(frontier, time)
        title = (
            f"point {i}: saves {human_bytes(saved)}, {100 * extra:.2f} % more time\n"
            f"{MEANING[kind]}; no plan of this size takes less than "
            f"{100 * _extra(frontier, low):.2f} %"
        )
        css = {"hull": "saved", "step": "saved", "fill": "recomputed"}[kind]
        radius = 4.0 if kind == "hull" else 2.2
        dot = tag("circle", title, css="area", cx=scale.x(saved), cy=scale.y(extra), r=radius)
        body.append(f'<g class="{css}">{dot}</g>')
    return body


def _baselines(frontier: Mapping[str, Any], scale: _Scale, key: str) -> list[str]:
    """Draws the presets as diamonds. Labels that would overlap are moved up."""
    body: list[str] = []
    placed: list[tuple[float, float]] = []
    rows = sorted(frontier["baselines"].items(), key=lambda item: item[1]["time_ps"])
    for name, row in rows:
        extra = _extra(frontier, row["time_ps"])
        x, y = scale.x(row[key]), scale.y(extra)
        verb = "saves" if key == "saved_bytes" else "peaks at"
        title = f"{name}: {verb} {human_bytes(row[key])}, {100 * extra:.2f} % more time"
        shape = _line([(x, y - 7), (x + 7, y), (x, y + 7), (x - 7, y)])
        body.append(f'<g class="gradient">{tag("polygon", title, css="area", points=shape)}</g>')
        label_y = y - 10
        while any(abs(label_y - other) < 13 and abs(x - at) < 150 for at, other in placed):
            label_y -= 13
        placed.append((x, label_y))
        body.append(text(x + 8, label_y, LABELS.get(name, name)))
    return body


def _references(
    frontier: Mapping[str, Any], references: Sequence[Point], scale: _Scale, key: str
) -> list[str]:
    """Draws PyTorch's points as discs, or as crosses if the plan draws random masks again, which
    makes the gradients wrong."""
    body = []
    for point in references:
        extra = _extra(frontier, point["time_ps"])
        x, y = scale.x(point[key]), scale.y(extra)
        title = (
            f"PyTorch at {point['budget']:g}: {human_bytes(point['saved_bytes'])} saved, peak "
            f"{human_bytes(point['peak_bytes'])}, {100 * extra:.2f} % more time"
        )
        if point["redraws"]:
            title += f"\nredraws {point['redraws']} masks: wrong gradients"
            shape = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
            mark = tag("path", title, css="line", d=shape, stroke_width=2)
            body.append(f'<g class="offloaded">{mark}</g>')
        else:
            disc = tag("circle", title, css="area", cx=x, cy=y, r=5.0)
            body.append(f'<g class="scratch">{disc}</g>')
    return body


def _legend(rows: Sequence[tuple[str, float, str]]) -> list[str]:
    y, x, body = 16.0, LEFT + 90, []
    for css, radius, label in rows:
        if radius > 0:
            mark = tag("circle", css="area", cx=x, cy=y - 4, r=radius)
        else:
            mark = tag(
                "path", css="line", d=f"M{x - 4:.1f} {y - 8:.1f}l8 8m0 -8l-8 8", stroke_width=2
            )
        body.append(f'<g class="{css}">{mark}</g>')
        body.append(text(x + 10, y, label))
        x += 30 + 6.2 * len(label)
    return body


_TORCH = [("scratch", 5.0, "PyTorch"), ("offloaded", 0.0, "PyTorch, masks redrawn")]


def _torch_legend(references: Sequence[Point]) -> list[tuple[str, float, str]]:
    kinds = {bool(point["redraws"]) for point in references}
    return [row for row, kind in zip(_TORCH, (False, True), strict=True) if kind in kinds]


def _scale(
    frontier: Mapping[str, Any], rows: Sequence[tuple[float, float]], most_extra: float = 4.0
) -> _Scale:
    """Returns a scale that shows all (bytes, time) rows whose extra time is at most
    `most_extra`."""
    extra = max(_extra(frontier, time) for _, time in rows)
    return _Scale(1.02 * max(size for size, _ in rows), 1.08 * min(extra, most_extra))


def frontier_svg(frontier: Mapping[str, Any], references: Sequence[Point] = ()) -> str:
    """Draws a frontier document (``docs/planner.md``): points, bound, presets and PyTorch's
    points."""
    rows = list(zip(frontier["saved_bytes"], frontier["time_ps"], strict=True))
    rows += [(row["saved_bytes"], row["time_ps"]) for row in frontier["baselines"].values()]
    rows += [(point["saved_bytes"], point["time_ps"]) for point in references]
    scale = _scale(frontier, rows)
    body = _axes(scale, "bytes saved between forward and backward")
    body += _points(frontier, scale)
    body += _references(frontier, references, scale, "saved_bytes")
    body += _baselines(frontier, scale, "saved_bytes")
    body += _legend(
        [
            ("saved", 4.0, "exact"),
            ("saved", 2.2, "between corners"),
            ("recomputed", 2.2, "greedy"),
            ("gradient", 5.0, "presets"),
            *_torch_legend(references),
            ("temporary", 6.0, "no plan below this"),
        ]
    )
    return document(WIDTH, HEIGHT, body, "frontier of saved bytes and time")


def peaks_svg(
    frontier: Mapping[str, Any], peaks: Sequence[Point], references: Sequence[Point] = ()
) -> str:
    """Draws plans for peak budgets, with presets and PyTorch's points."""
    rows = [(point["peak_bytes"], point["time_ps"]) for point in peaks]
    rows += [(point["peak_bytes"], point["time_ps"]) for point in references]
    rows += [(row["peak_bytes"], row["time_ps"]) for row in frontier["baselines"].values()]
    scale = _scale(frontier, rows)
    body = _axes(scale, "peak of live bytes")
    body += _references(frontier, references, scale, "peak_bytes")
    body += _baselines(frontier, scale, "peak_bytes")
    stairs: list[tuple[float, float]] = []
    for point in sorted(peaks, key=lambda one: one["peak_bytes"]):
        x, y = scale.x(point["peak_bytes"]), scale.y(_extra(frontier, point["time_ps"]))
        stairs += [(x, stairs[-1][1] if stairs else y), (x, y)]
    if stairs:
        line = tag("polyline", css="line", points=_line(stairs), stroke_opacity=0.5)
        body.append(f'<g class="saved">{line}</g>')
    for point in peaks:
        extra = _extra(frontier, point["time_ps"])
        x, y = scale.x(point["peak_bytes"]), scale.y(extra)
        title = (
            f"budget {point['budget']}: peak {human_bytes(point['peak_bytes'])}, "
            f"{100 * extra:.2f} % more time"
        )
        dot = tag("circle", title, css="area", cx=x, cy=y, r=4.0)
        body.append(f'<g class="saved">{dot}</g>')
        body.append(text(x + 6, y + 14, point["budget"], css="note"))
    legend = [("saved", 4.0, "budgets"), ("gradient", 5.0, "presets"), *_torch_legend(references)]
    body += _legend(legend)
    return document(WIDTH, HEIGHT, body, "frontier of peak and time")


def _presets_table(frontier: Mapping[str, Any], references: Sequence[Point]) -> str:
    """Returns an HTML table of the presets and of PyTorch's points."""

    def row(name: str, point: Mapping[str, Any], note: str = "") -> tuple[str, ...]:
        extra = f"{100 * _extra(frontier, point['time_ps']):.2f} %"
        sizes = human_bytes(point["saved_bytes"]), human_bytes(point["peak_bytes"])
        return name, *sizes, extra, note

    rows = [row(LABELS.get(name, name), point) for name, point in frontier["baselines"].items()]
    for point in references:
        redraws = f"redraws {point['redraws']} masks: wrong gradients" if point["redraws"] else ""
        rows.append(row(f"PyTorch at {point['budget']:g}", point, redraws))
    return table(("", "saved", "peak", "extra time", ""), rows, numeric=(1, 2, 3))


def points_table(frontier: Mapping[str, Any], most: int = MOST_ROWS) -> str:
    """Returns an HTML table of the points with their kinds. For a long frontier, it lists only the
    exact points."""
    columns = (frontier[key] for key in ("saved_bytes", "time_ps", "bound_ps", "kind"))
    points = list(enumerate(zip(*columns, strict=True)))
    shown = points if len(points) <= most else [p for p in points if p[1][3] == "hull"][:most]
    rows = [
        (
            f"point {i}",
            human_bytes(saved),
            f"{100 * _extra(frontier, time):.2f} %",
            f"{100 * _extra(frontier, bound):.2f} %",
            MEANING[kind],
        )
        for i, (saved, time, bound, kind) in shown
    ]
    rest = len(points) - len(shown)
    note = f"<p>{rest} other points are not shown.</p>" if rest else ""
    headers = ("", "saved", "extra time", "no plan below", "")
    return table(headers, rows, numeric=(1, 2, 3)) + note


def render_frontier(
    frontier: Mapping[str, Any],
    title: str,
    references: Sequence[Point] = (),
    peaks: Sequence[Point] | None = None,
) -> str:
    """Returns a whole HTML page with the pictures, and tables of presets, PyTorch's points and
    exact points."""

    device = frontier["device"]
    name = device if isinstance(device, str) else device["name"]
    parts = [
        scroll(frontier_svg(frontier, references), "frontier"),
        f"<p>{len(frontier['kind'])} points; times are from the cost model of {name}.</p>",
    ]
    if peaks is not None:
        parts += ["<h2>Peak and time</h2>", scroll(peaks_svg(frontier, peaks, references), "peaks")]
    parts += ["<h2>Baselines</h2>", _presets_table(frontier, references)]
    parts += ["<h2>Points</h2>", points_table(frontier)]
    return page(title, "".join(parts))


def frontier_fragment(frontier: Mapping[str, Any], references: Sequence[Point] = ()) -> str:
    """Returns the HTML that a notebook shows: the picture, and collapsed tables."""
    tables = _presets_table(frontier, references) + points_table(frontier)
    return fragment(
        frontier_svg(frontier, references)
        + f"<details><summary>the same data as tables</summary>{tables}</details>"
    )
