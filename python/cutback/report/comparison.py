"""Compares two plans of one problem: their numbers, memory timelines and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .chart import Data, chart, texts
from .layers import block_of, spans
from .model import Picture
from .page import page
from .plot import LEFT, WIDTH, Plot, columns, layers_row, steps_axis
from .svg import document, escape, fragment, human_bytes, tag, text
from .table import table
from .timeline import GREY

Difference = Mapping[str, Any]
"""The JSON document of ``planner.Difference``, with ``totals`` and ``changes``."""

TOP, AREA = 60.0, 260.0
MOST_ROWS = 400
NAMES = {
    "arena_bytes": "arena peak",
    "live_bytes": "live peak",
    "saved_bytes": "saved between forward and backward",
    "time_ps": "modelled time",
}


def moments(picture: Picture) -> tuple[list[int], list[int]]:
    """Returns the operations in program order, and the peak of live bytes for each: the peak over
    its first run and the reruns just before that. On this common axis, different schedules can be
    compared."""
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


def _along_ops(picture: Picture, ops: Sequence[int], values: Sequence[int]) -> list[int]:
    """Returns the value for each op. If the plan does not have the op, it is the value of the op
    before."""
    at = dict(zip(moments(picture)[0], values, strict=True))
    found: list[int] = []
    for op in ops:
        found.append(at.get(op, found[-1] if found else 0))
    return found


@dataclass
class Sides:
    """The data that pictures and cards show of two plans, over the same ops."""

    ops: list[int]
    before: list[int]
    after: list[int]
    everything: list[int]
    forward: int  # number of ops of the forward


def sides(before: Picture, after: Picture) -> Sides:
    """Returns the live bytes of two plans, and of saving everything, over the ops of the
    program."""
    ops = sorted({op for picture in (before, after) for op in moments(picture)[0]})
    ours, theirs = (_along_ops(one, ops, moments(one)[1]) for one in (before, after))
    first = {op: k for k, op in reversed(list(enumerate(before.steps)))}
    everything = [before.everything[first[op]] if op in first else 0 for op in ops]
    forward = set(before.steps[: before.backward_starts])
    return Sides(ops, ours, theirs, everything, sum(op in forward for op in ops))


def timelines_svg(before: Picture, after: Picture, legend: bool = True) -> str:
    """Draws the live bytes of both plans over the operations of the program, with saving everything
    and the floor in grey."""
    both = sides(before, after)
    highest = max([1, *both.before, *both.after])
    most = 1.08 * max(highest, min(max(both.everything, default=0), 3 * highest))
    plot = Plot(len(both.ops), TOP + AREA, AREA, most)
    inside = [plot.outline(both.everything, "saving everything")] if both.everything else []
    if before.floor_bytes:
        title = f"floor: no plan in this order peaks below {human_bytes(before.floor_bytes)}"
        inside.append(plot.outline([before.floor_bytes] * plot.n, title, "outline floor"))
    for css, name, values in (
        ("recomputed", "before", both.before),
        ("saved", "after", both.after),
    ):
        title = f"{name}: up to {human_bytes(max(values, default=0))}"
        line = plot.outline(values, title, "line side")
        inside.append(f'<g class="{css}">{line}</g>')
    body = [text(LEFT, 14, "live bytes along the program"), plot.bytes_axis()]
    layers = spans([block_of(before.paths[op]) for op in both.ops])
    body += [plot.moving(inside), layers_row(plot, layers, TOP - 32)]
    body += plot.phases(both.forward, plot.base + 32)
    body.append(steps_axis(plot, plot.base + 16, (), "op"))
    if legend:
        for x, css, name in (
            (WIDTH - 190, "recomputed", "before"),
            (WIDTH - 100, "saved", "after"),
        ):
            mark = tag("line", css="line side", x1=x, x2=x + 22, y1=10.0, y2=10.0)
            body.append(f'<g class="{css}">{mark}</g>{text(x + 28, 14, name)}')
    return document(WIDTH, plot.base + 40, body, "memory timelines of two plans")


def _chart(before: Picture, after: Picture) -> str:
    """Returns both timelines as a chart."""
    both = sides(before, after)
    wide = columns([max(pair) for pair in zip(both.before, both.after, strict=True)])
    at = [full for _, _, full in wide]
    ops = [before.ops[both.ops[k]] for k in at]
    rows = ("before", "recomputed", both.before), ("after", "saved", both.after), (
        "saving everything", "grey", both.everything
    )  # fmt: skip
    data: Data = {
        "unit": "op",
        "edges": [low for low, _, _ in wide] + [len(both.ops)],
        "at": at,
        "text": [
            texts(op, block_of(before.paths[op.id]), "backward" if op.backward else "forward")
            for op in ops
        ],
        "series": [(name, css, [values[k] for k in at]) for name, css, values in rows if values],
    }
    legend = ("recomputed", "before"), ("saved", "after"), GREY
    return chart(timelines_svg(before, after, legend=False), data, legend)


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
    note = f"<p>{rest} smaller values are not shown.</p>" if rest > 0 else ""
    headers = ("type", "bytes", "made by", "source", "decision", "runs", "time")
    return table(headers, rows, numeric=(1, 6)) + note


def _tables(difference: Difference) -> str:
    found = f"{len(difference['changes'])} values are treated differently"
    return f"<details open><summary>{escape(found)}</summary>{_changes(difference)}</details>"


def difference_fragment(difference: Difference, before: Picture, after: Picture) -> str:
    """Returns HTML with the totals, both timelines and the values that are treated differently."""
    return fragment(_totals(difference) + timelines_svg(before, after) + _tables(difference))


def render_difference(difference: Difference, before: Picture, after: Picture, title: str) -> str:
    """Returns a whole HTML page with the totals, both timelines, which can be zoomed, and the
    values that are treated differently."""
    return page(title, _totals(difference) + _chart(before, after) + _tables(difference))
