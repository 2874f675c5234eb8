"""A picture on a page, with buttons, a search field, a legend, and a card with data at the
pointer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TypedDict

from ..files import one_line
from .layers import block_of
from .model import Op, Picture
from .plot import LEFT, RIGHT, WIDTH, columns
from .svg import escape
from .timeline import legend_of, measured_note, stack_of, timeline_svg

CHART_STYLE = """
figure.chart { margin: 1rem 0; }
figure.chart svg { display: block; touch-action: pan-y; }
figure.chart > svg:focus-visible { outline: 2px solid #2f6fde; outline-offset: -2px; }
tr:focus-visible { outline: 2px solid #2f6fde; outline-offset: -2px; }
.tools {
  display: flex; flex-wrap: wrap; gap: .4rem .6rem; align-items: center; font-size: 13px;
  margin-bottom: .4rem;
}
.tools[hidden] { display: none; }
.tools button, .tools select, .tools input {
  font: inherit; color: inherit; background: none; border: 1px solid #8888; border-radius: 4px;
  padding: .15rem .5rem; min-height: 1.8rem; max-width: 100%;
}
.tools option { color: #1d2733; background: #ffffff; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: 13px; padding: 0; margin: 0; }
.legend li { list-style: none; }
.legend i {
  display: inline-block; width: 11px; height: 11px; margin-right: .35rem;
  background: var(--c); opacity: .75;
}
.legend .grey i, .legend .dotted i { background: none; height: 0; border-top: 2px solid; }
.legend .grey i, .legend .dotted i { width: 14px; vertical-align: middle; opacity: .5; }
.legend .dotted i { border-top-style: dotted; opacity: 1; }
.card {
  position: fixed; z-index: 9; max-width: min(26rem, 90vw); padding: .4rem .6rem; font-size: 12px;
  background: #ffffff; color: #1d2733; border: 1px solid #8888; border-radius: 4px;
  box-shadow: 0 2px 8px #0003; pointer-events: none; overflow-wrap: anywhere;
}
.card div { display: flex; gap: 1rem; justify-content: space-between; }
.card div[class] span:first-child { border-left: 8px solid var(--c, #888); padding-left: .35rem; }
.card[hidden] { display: none; }
.cursor { stroke: currentColor; stroke-opacity: .5; pointer-events: none; }
.brush { fill: currentColor; fill-opacity: .12; pointer-events: none; }
.choosing rect[data-s]:not(.chosen) { opacity: .2; }
rect.chosen { fill-opacity: .95; stroke: currentColor; stroke-width: 1.5; }
tr[data-s], tr[data-layers] { cursor: pointer; }
tr.chosen td { background: #2f6fde33; }
@media (prefers-color-scheme: dark) { .card { background: #222a33; color: #d7dee7; } }
"""


class Data(TypedDict, total=False):
    """The data for the card of a chart, one entry per column."""

    unit: str
    edges: list[int]
    at: list[int]
    ps: list[int]
    text: list[list[str]]
    series: list[tuple[str, str, list[int]]]


@cache
def script() -> str:
    """Returns the script of the page."""
    text = (Path(__file__).parent / "script.js").read_text(encoding="utf-8")
    return text.replace("FRAME", json.dumps([WIDTH, LEFT, RIGHT]), 1)


def texts(op: Op, layer: str, phase: str) -> list[str]:
    """Returns the texts that the card shows for an op: name, kind, source, layer, phase."""
    return [one_line(part) for part in (op.name, op.kind, op.location, layer, phase)]


def data_of(picture: Picture) -> Data:
    """Returns the data of a memory timeline."""
    wide = columns(picture.live)
    at = [full for _, _, full in wide]
    starts = [0, *accumulate(picture.times_ps)]
    rows = {"live": picture.live, **stack_of(picture), "saving everything": picture.everything}
    text = []
    for step in at:
        op = picture.ops[picture.steps[step]]
        text.append(texts(op, block_of(picture.paths[op.id]), picture.phase(step)))
    edges = [low for low, _, _ in wide] + [picture.n_step]
    return {
        "edges": edges,
        "at": at,
        "ps": [starts[edge] for edge in edges],
        "text": text,
        "series": [
            (name, name.split()[0], [row[step] for step in at]) for name, row in rows.items() if row
        ],
    }


def _json(data: Data) -> str:
    """Returns JSON without characters that could end the HTML element around it."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _tools(with_time: bool, with_search: bool) -> str:
    buttons = "".join(
        f'<button type="button" data-do="{what}" aria-label="{label}">{sign}</button>'
        for what, label, sign in (
            ("in", "zoom in", "+"),
            ("out", "zoom out", "\N{MINUS SIGN}"),
            ("all", "show all steps", "all"),
        )
    )
    axis = (
        '<label>x axis <select><option value="steps">steps</option>'
        '<option value="time">modelled time</option></select></label>'
    )
    find = (
        '<label>search <input type="search" placeholder="name, kind or source"> '
        '<output aria-live="polite"></output></label>'
    )
    return (
        f'<div class="tools" hidden>{buttons}{axis if with_time else ""}'
        f"{find if with_search else ''}</div>"
    )


def chart(
    svg: str, data: Data, legend: Sequence[tuple[str, str]], with_search: bool = False
) -> str:
    """Returns the HTML of a picture with its tools. The x axis is that of the data.

    Args:
        svg: the picture, made with plot.py.
        data: the contents of the card at the pointer.
        legend: (CSS class, name) of each colour.
        with_search: add a field that searches the page's table of values.
    """
    entries = "".join(f'<li class="{css}"><i></i>{escape(name)}</li>' for css, name in legend)
    shown = svg.replace("<svg ", '<svg tabindex="0" ', 1)
    return (
        f'<figure class="chart cb">{_tools("ps" in data, with_search)}{shown}'
        f'<ul class="legend">{entries}</ul>'
        f'<script type="application/json">{_json(data)}</script></figure>'
    )


def timeline_chart(picture: Picture, measured: Sequence[int] | None = None) -> str:
    """Returns the memory timeline as a chart."""
    svg = timeline_svg(picture, measured, legend=False)
    legend = legend_of(picture)
    if measured:
        legend.append(("dotted", measured_note(measured)))
    return chart(svg, data_of(picture), legend, with_search=True)
