"""The picture of a frontier: saved bytes across, extra time upwards; lower and left is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .. import devices
from .page import page, table
from .svg import document, human_bytes, nice_ticks, tag, text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960.0, 460.0, 74.0, 150.0, 40.0, 46.0
LABELS = {
    "autograd": "save all",
    "recompute_all": "recompute all",
    "conservative": "min-cut, conservative",
    "aggressive": "min-cut, aggressive",
    "torch-compat": "PyTorch's min-cut",
    "shape-aware": "min-cut, shape-aware",
}
MEANING = {
    "hull": "a corner of the hull: no plan is better",
    "step": "between two corners",
    "fill": "greedily, between two steps",
}


class _Scale:
    """Bytes and shares of extra time to picture coordinates."""

    def __init__(self, bytes_top: float, extra_top: float) -> None:
        self.bytes_top, self.extra_top = max(1.0, bytes_top), max(1e-4, extra_top)

    def x(self, saved: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * saved / self.bytes_top

    def y(self, extra: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * extra / self.extra_top


def _share_ticks(top: float) -> list[float]:
    """Round shares from 0 to `top`."""
    raw = top / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(f * unit for f in (1, 2, 5, 10) if f * unit >= raw)
    return [i * step for i in range(int(top / step) + 1)]


def _axes(scale: _Scale) -> list[str]:
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    body = [
        text(LEFT, TOP - 14, "extra time"),
        text(right, base + 36, "bytes saved between forward and backward", "end"),
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
    """The bound as an area, the points as a staircase with a dot each."""
    columns = (frontier[key] for key in ("saved_bytes", "time_ps", "bound_ps", "kind"))
    rows = list(zip(*columns, strict=True))
    bound = [(scale.x(saved), scale.y(_extra(frontier, low))) for saved, _, low, _ in rows]
    floor = [(bound[-1][0], scale.y(0)), (bound[0][0], scale.y(0))]
    title = "no plan lies in here: the bound of the linear relaxation"
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
            f"{MEANING[kind]}; no plan of this size is below {100 * _extra(frontier, low):.2f} %"
        )
        css = {"hull": "saved", "step": "saved", "fill": "recomputed"}[kind]
        radius = 4.0 if kind == "hull" else 2.2
        dot = tag("circle", title, css="area", cx=scale.x(saved), cy=scale.y(extra), r=radius)
        body.append(f'<g class="{css}">{dot}</g>')
    return body


def _baselines(frontier: Mapping[str, Any], scale: _Scale) -> list[str]:
    """Presets as diamonds; labels that would collide move up."""
    body: list[str] = []
    placed: list[tuple[float, float]] = []
    rows = sorted(frontier["baselines"].items(), key=lambda item: item[1]["time_ps"])
    for name, row in rows:
        extra = _extra(frontier, row["time_ps"])
        x, y = scale.x(row["saved_bytes"]), scale.y(extra)
        title = f"{name}: saves {human_bytes(row['saved_bytes'])}, {100 * extra:.2f} % more time"
        shape = _line([(x, y - 7), (x + 7, y), (x, y + 7), (x - 7, y)])
        body.append(f'<g class="gradient">{tag("polygon", title, css="area", points=shape)}</g>')
        label_y = y - 10
        while any(abs(label_y - other) < 13 and abs(x - at) < 150 for at, other in placed):
            label_y -= 13
        placed.append((x, label_y))
        body.append(text(x + 8, label_y, LABELS.get(name, name)))
    return body


def _legend() -> list[str]:
    y, x, body = 16.0, LEFT + 110, []
    for css, radius, label in (
        ("saved", 4.0, "exact"),
        ("saved", 2.2, "between corners"),
        ("recomputed", 2.2, "greedy"),
        ("gradient", 5.0, "presets"),
        ("temporary", 6.0, "no plan can lie below"),
    ):
        body.append(f'<g class="{css}">{tag("circle", css="area", cx=x, cy=y - 4, r=radius)}</g>')
        body.append(text(x + 10, y, label))
        x += 34 + 6.5 * len(label)
    return body


def frontier_svg(frontier: Mapping[str, Any]) -> str:
    """Points, bound and presets of a frontier document (``docs/planner.md``)."""
    presets = frontier["baselines"].values()
    scale = _Scale(
        1.02 * max([*frontier["saved_bytes"], *(row["saved_bytes"] for row in presets)]),
        1.08 * _extra(frontier, max([*frontier["time_ps"], *(row["time_ps"] for row in presets)])),
    )
    body = _axes(scale) + _points(frontier, scale) + _baselines(frontier, scale) + _legend()
    return document(WIDTH, HEIGHT, body, "frontier of saved bytes and time")


def render_frontier(frontier: Mapping[str, Any], title: str = "Cutback frontier") -> str:
    """A page of its own: the picture, the presets, and every exact point as a table."""

    def row(name: str, saved: int, time: int) -> tuple[str, str, str]:
        return name, human_bytes(saved), f"{100 * _extra(frontier, time):.2f} %"

    presets = [
        row(LABELS.get(name, name), b["saved_bytes"], b["time_ps"])
        for name, b in frontier["baselines"].items()
    ]
    points = zip(frontier["saved_bytes"], frontier["time_ps"], frontier["kind"], strict=True)
    exact = [
        row(f"point {i}", saved, time)
        for i, (saved, time, kind) in enumerate(points)
        if kind == "hull"
    ]
    headers = ("", "saved", "extra time")
    device = devices.name(frontier["device"])
    return page(
        title,
        f"{frontier_svg(frontier)}<p>{len(frontier['kind'])} points; times by the cost model of "
        f"{device}.</p><h2>Presets</h2>{table(headers, presets, numeric=(1, 2))}"
        f"<h2>Exact points</h2>{table(headers, exact, numeric=(1, 2))}",
    )
