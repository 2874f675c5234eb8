"""The report as one HTML file: no network, no script needed to read it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .ladder import graph_svg
from .model import Picture, Value, read
from .svg import STYLE, human_bytes
from .timeline import timeline_svg

PAGE_STYLE = """
body {
  font: 15px/1.5 system-ui, sans-serif; color: #1d2733;
  margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
}
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td {
  text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid #8884;
}
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: 12px; } summary { cursor: pointer; }
@media (prefers-color-scheme: dark) {
  body { color: #d7dee7; background: #14181d; } a { color: #8ab4f8; }
}
"""

WHY = {
    "cut": "on the minimum cut: the cheapest place to save",
    "forbidden": "may not be recomputed under this preset",
    "policy": "the policy says so",
    "held": "an output, alive anyway",
    "cheap": "cheaper to run again than to keep",
    "peak": "was alive at the peak; the budget needed the room",
    "preset": "the preset treats all such values alike",
    "none": "",
}


def table(
    headers: Sequence[str], rows: Sequence[Sequence[Any]], numeric: Sequence[int] = ()
) -> str:
    """An HTML table; columns in `numeric` are right-aligned. Cells are escaped."""

    def cells(row: Sequence[Any], name: str) -> str:
        return "".join(
            f"<{name}{' class=n' if i in numeric else ''}>{escape(str(cell))}</{name}>"
            for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(headers, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _numbers(picture: Picture, measured: Mapping[str, Any]) -> str:
    n = picture.numbers
    once = max(1, n["once_ps"])
    rows = [
        (
            "arena peak (offsets, alignment)",
            human_bytes(n["arena_bytes"]),
            human_bytes(n["save_all_arena_bytes"]),
        ),
        ("live peak", human_bytes(n["live_bytes"]), human_bytes(n["save_all_live_bytes"])),
        (
            "saved between forward and backward",
            human_bytes(n["saved_bytes"]),
            human_bytes(n["save_all_saved_bytes"]),
        ),
        ("modelled extra time", f"{100 * (n['time_ps'] - n['once_ps']) / once:.1f} %", "0.0 %"),
    ]
    if n.get("lower_bound_ps") is not None:
        bound = 100 * (n["lower_bound_ps"] - n["once_ps"]) / once
        rows.append(("least extra time that such plans can take", f"{bound:.1f} %", ""))
    if n.get("budget_bytes") is not None:
        rows.append(("budget", human_bytes(n["budget_bytes"]), ""))
    if measured.get("peak_bytes") is not None:
        rows.append(("measured peak", human_bytes(measured["peak_bytes"]), ""))
    if measured.get("ms") is not None:
        rows.append(("measured time of a step", f"{measured['ms']:.2f} ms", ""))
    return table(("", "this plan", "save everything"), rows, numeric=(1, 2))


def _value_row(picture: Picture, value: Value) -> tuple[str, ...]:
    op = picture.ops[value.op]
    size = picture.storage_bytes[value.storage]
    return (
        value.type,
        human_bytes(size),
        op.name,
        op.location,
        value.decision,
        WHY.get(value.reason, value.reason),
    )


def values_table(
    picture: Picture, decisions: Sequence[str] = ("save", "recompute", "offload")
) -> str:
    """One row a value that the backward needs, largest first; each storage once."""
    chosen: dict[int, Value] = {}
    for value in picture.values:
        if value.decision in decisions and not picture.ops[value.op].view:
            chosen.setdefault(value.storage, value)
    rows = sorted(chosen.values(), key=lambda v: -picture.storage_bytes[v.storage])
    headers = ("type", "bytes", "made by", "source", "decision", "why")
    return table(headers, [_value_row(picture, value) for value in rows], numeric=(1,))


def _details(title: str, body: str, is_open: bool = False) -> str:
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{body}</details>"
    )


def _download(name: str, content: str) -> str:
    data = base64.b64encode(content.encode()).decode()
    return f'<a download="{name}" href="data:application/json;base64,{data}">{name}</a>'


def section(
    title: str, problem: Mapping[str, Any], plan: Mapping[str, Any], measured: Mapping[str, Any]
) -> str:
    """Everything about one plan, as a fragment of a page."""
    picture = read(problem, plan)
    return "".join(
        [
            f"<h2>{escape(title)}</h2>",
            _numbers(picture, measured),
            timeline_svg(picture, measured.get("timeline")),
            _details("joint graph: what is saved for what", graph_svg(picture)),
            _details("what is saved, what is recomputed, and why", values_table(picture)),
            f"<p>{_download('problem.json', json.dumps(problem))} ",
            f"{_download('plan.json', json.dumps(plan))}</p>",
        ]
    )


def page(title: str, body: str) -> str:
    """A whole document around `body`."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{PAGE_STYLE}{STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>"
    )


def render_html(
    problem: Mapping[str, Any],
    plan: Mapping[str, Any],
    measured: Mapping[str, Any] | None = None,
    title: str = "Cutback plan",
) -> str:
    """The report of one plan. `measured` may hold peak_bytes, ms, and timeline: the bytes in use
    while each step ran."""
    return page(title, section("Plan", problem, plan, measured or {}))


def render_fragment(problem: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """What a notebook shows: numbers, timeline, and the tables folded away."""
    picture = read(problem, plan)
    graph = _details("joint graph", graph_svg(picture))
    values = _details("saved and recomputed values", values_table(picture))
    return f'<div class="cb">{_numbers(picture, {})}{timeline_svg(picture)}{graph}{values}</div>'
