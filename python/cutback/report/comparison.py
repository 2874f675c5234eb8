"""Compares two plans of one problem: their numbers, memory timelines and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .model import Picture
from .page import page, table
from .svg import document, escape, fragment, human_bytes, nice_ticks, tag, text
from .timeline import columns, staircase

Difference = Mapping[str, Any]
"""The JSON document of ``planner.Difference``, with ``totals`` and ``changes``."""

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960.0, 320.0, 84.0, 18.0, 34.0, 34.0
MOST_ROWS = 400
NAMES = {
    "arena_bytes": "arena peak",
    "live_bytes": "live peak",
    "saved_bytes": "saved between forward and backward",
    "time_ps": "modelled time",
}


def moments(picture: Picture) -> tuple[list[int], list[int]]:
    """The operations in program order, and the peak of live bytes for each: over its first run and
    the reruns right before it. This common axis makes different schedules comparable."""
    order: list[int] = []
    most: list[int] = []
    seen: set[int] = set()
    pending = 0
    for step, op in enumerate(picture.steps):
        pending = max(pending, picture.live[step])
        if op not in seen and (not order or op > order[-1]):
            order.append(op)
            most.append(pending)
            pending = 0
        seen.add(op)
    return order, most


def _line(
    ops: Sequence[int], order: Sequence[int], most: Sequence[int], top: float, css: str, name: str
) -> str:
    at = {op: size for op, size in zip(order, most, strict=True)}
    values: list[int] = []
    for op in ops:  # a plan without this operation keeps the value of the one before
        values.append(at.get(op, values[-1] if values else 0))
    scale = (WIDTH - LEFT - RIGHT) / max(1, len(ops))
    base = HEIGHT - BOTTOM
    points = staircase(
        [
            (
                LEFT + scale * low,
                LEFT + scale * high,
                round(base - (base - TOP) * values[i] / top, 1),
            )
            for low, high, i in columns(values)
        ]
    )
    line = tag("polyline", f"{name}: up to {human_bytes(max(values, default=0))}",
               css="line", points=points, stroke_width=1.6)  # fmt: skip
    return f'<g class="{css}">{line}</g>'


def timelines_svg(before: Picture, after: Picture) -> str:
    """Draws the live bytes of both plans over the operations of the program."""
    sides = [moments(before), moments(after)]
    ops = sorted({op for order, _ in sides for op in order})
    top = 1.08 * max([1, *sides[0][1], *sides[1][1]])
    base = HEIGHT - BOTTOM
    body = [text(LEFT, TOP - 14, "live bytes along the program")]
    for tick in nice_ticks(top):
        y = base - (base - TOP) * tick / top
        body.append(tag("line", css="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        body.append(text(LEFT - 8, y + 4, human_bytes(tick), "end", "note"))
    forward = sum(op in set(before.steps[: before.backward_starts]) for op in ops)
    x = LEFT + (WIDTH - LEFT - RIGHT) * forward / max(1, len(ops))
    body.append(tag("line", css="axis", x1=x, x2=x, y1=TOP, y2=base))
    body.append(text(x - 6, base + 16, "forward", "end", "note"))
    body.append(text(x + 6, base + 16, "backward", "start", "note"))
    for (order, most), css, name in zip(
        sides, ("recomputed", "saved"), ("before", "after"), strict=True
    ):
        body.append(_line(ops, order, most, top, css, name))
    for x, css, name in ((WIDTH - 190, "recomputed", "before"), (WIDTH - 100, "saved", "after")):
        mark = tag("line", css="line", x1=x, x2=x + 22, y1=16.0, y2=16.0, stroke_width=2)
        body.append(f'<g class="{css}">{mark}</g>')
        body.append(text(x + 28, 20, name))
    return document(WIDTH, HEIGHT, body, "memory timelines of two plans")


def _totals(difference: Difference) -> str:
    rows = []
    for key, (before, after) in difference["totals"].items():
        shown = [
            f"{n / 1e9:.3f} ms" if key == "time_ps" else human_bytes(n) for n in (before, after)
        ]
        rows.append((NAMES[key], *shown, f"{100 * (after - before) / max(1, before):+.2f} %"))
    return table(("", "before", "after", "change"), rows, numeric=(1, 2, 3))


def _changes(difference: Difference) -> str:
    rows = [
        (
            change["type"],
            human_bytes(change["bytes"]),
            change["name"],
            change["location"],
            f"{change['before']} \N{RIGHTWARDS ARROW} {change['after']}",
            f"{change['runs'][0]} \N{RIGHTWARDS ARROW} {change['runs'][1]}",
            f"{change['time_ps'] / 1e6:+,.0f} us",
        )
        for change in difference["changes"][:MOST_ROWS]
    ]
    rest = len(difference["changes"]) - MOST_ROWS
    note = f"<p>{rest} smaller ones are not shown.</p>" if rest > 0 else ""
    headers = ("type", "bytes", "made by", "source", "decision", "runs", "time")
    return table(headers, rows, numeric=(1, 6)) + note


def difference_fragment(difference: Difference, before: Picture, after: Picture) -> str:
    """HTML with the totals, both timelines and the values that are treated differently."""
    found = f"{len(difference['changes'])} values are treated differently"
    return fragment(
        f"{_totals(difference)}{timelines_svg(before, after)}"
        f"<details open><summary>{escape(found)}</summary>{_changes(difference)}</details>"
    )


def render_difference(fragment: str, title: str) -> str:
    """A whole HTML page around the fragment."""
    return page(title, fragment)
