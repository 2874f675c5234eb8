"""Renders the report as one self-contained HTML file."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from .chart import CHART_STYLE, script, timeline_chart
from .kernels import HEADERS, group_rows, kernels_svg, single_rows, totals
from .ladder import graph_svg
from .model import Picture, Plan, read
from .summary import layers_table, lives_table
from .svg import STYLE, escape, fragment, human_bytes
from .table import scroll, table
from .timeline import timeline_svg

if TYPE_CHECKING:
    from ..explanation import ExplainedValue, Explanation, Kernels


class Measured(TypedDict, total=False):
    """Measurements of a run of the step. Missing entries are not shown.

    >>> measured = report.Measured(peak_bytes=1 << 20, ms=1.5)
    >>> html = report.render_html(plan, measured, "A step")
    """

    peak_bytes: int
    """Peak of the bytes in use."""
    ms: float
    """Milliseconds of the step."""
    timeline: Sequence[int] | None
    """Bytes in use during each step."""


PAGE_STYLE = """
body {
  font: 15px/1.5 system-ui, sans-serif; color: #1d2733;
  margin: 2rem auto; max-width: 75rem; padding: 0 1rem; overflow-wrap: break-word;
}
figure.chart { font: inherit; }
.scroll { overflow-x: auto; }
@media (max-width: 700px) {
  body { margin: 1rem auto; padding: 0 .6rem; }
  .scroll svg { max-width: none; } .scroll table { min-width: 34rem; }
}
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td {
  text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid #8884;
}
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.w { min-width: 11rem; } code { font-size: 12px; } summary { cursor: pointer; }
@media (prefers-color-scheme: dark) {
  body { color: #d7dee7; background: #14181d; } a { color: #8ab4f8; }
}
"""

MOST_ROWS, MOST_GROUPS, MOST_KERNELS = 400, 18, 40
NO_GAP = "n/a: the bound is 0"
BOUND = {
    "trivial": "trivial bound: extra time of running everything once",
    "any": "lower bound on the extra time of any plan within the budget",
    "ordered": "lower bound on the extra time of plans within the budget that keep the order of "
    "operations",
}
AT_PEAK = "; alive at the peak"
OTHERWISE = (
    "Otherwise: the change if only this decision were different (for a group: its first value)."
)
WHY = {
    "cut": "on the minimum cut, where saving is cheapest",
    "forbidden": "may not be recomputed under this preset",
    "policy": "required by the policy",
    "held": "an output, which is alive in any case",
    "cheap": "cheaper to recompute than to save",
    "peak": "would be alive at the peak, where the budget needs its bytes",
    "preset": "the preset treats all values this way",
    "none": "",
}


def _numbers(picture: Picture, measured: Measured, kernels: Kernels | None = None) -> str:
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
    bound = 100 * max(0, n["lower_bound_ps"] - n["once_ps"]) / once
    rows.append((BOUND[n["bound_class"]], f"{bound:.1f} %", ""))
    gap = NO_GAP if n["gap"] is None else f"{100 * n['gap']:.2f} %"
    rows.append(("gap to that bound", gap, ""))
    if picture.budget_bytes is not None:
        rows.append(("budget", human_bytes(picture.budget_bytes), ""))
    arena = _compiled(picture, kernels)
    if arena:
        rows.append(("arena as compiled, with operations in groups", arena, ""))
    if measured.get("peak_bytes") is not None:
        rows.append(("measured peak", human_bytes(measured["peak_bytes"]), ""))
    if measured.get("ms") is not None:
        rows.append(("measured time of a step", f"{measured['ms']:.2f} ms", ""))
    return table(("", "this plan", "save everything"), rows, numeric=(1, 2))


def _signed(change: int) -> str:
    return ("-" if change < 0 else "+") + human_bytes(abs(change)) if change else "0 B"


def _otherwise(row: ExplainedValue, measure: str) -> tuple[str, str]:
    """Returns the change of the peak (or of the saved bytes) and of the time if only this decision
    were different."""
    other = row["otherwise"]
    if not other:
        return "", ""
    change = other["saved_bytes"] if measure == "saved" else other["peak_bytes"]
    return _signed(change), f"{other['time_ps'] / 1e6:+,.0f} us"


def _other_headers(measure: str) -> tuple[str, str]:
    return f"{'saved' if measure == 'saved' else 'peak'} otherwise", "time otherwise"


def _readers(row: ExplainedValue) -> str:
    names = [*row["forward_readers"], *row["backward_readers"]]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def values_table(explanation: Explanation, most: int = MOST_ROWS) -> str:
    """Returns an HTML table of the values that the backward needs, one row per storage, largest
    first.

    Args:
        explanation: ``Plan.explanation``.
        most: limit on the number of rows; a line below gives the number of values left out.

    >>> html = report.values_table(plan.explanation, most=10)
    """
    rows = explanation["values"]
    measure = explanation["measure"]
    shown = [
        (
            row["type"],
            human_bytes(row["bytes"]),
            row["name"],
            row["at"],
            _readers(row),
            row["decision"],
            WHY.get(row["reason"], row["reason"]) + (AT_PEAK if row["at_peak"] else ""),
            *_otherwise(row, measure),
        )
        for row in rows[:most]
    ]
    headers = (
        "type", "bytes", "made by", "source", "read by", "decision", "why",
        *_other_headers(measure),
    )  # fmt: skip
    rest = f"<p>{len(rows) - most} smaller values are not shown.</p>" if len(rows) > most else ""
    marks = [f'data-s="{row["storage"]}"' for row in rows[:most]]
    return table(headers, shown, (1, 7, 8), marks) + rest


def groups_table(explanation: Explanation, most: int = MOST_GROUPS) -> str:
    """Returns an HTML table with one row for all values of equal kind, type, decision and reason,
    largest total first."""
    groups: dict[tuple[str, ...], list[ExplainedValue]] = {}
    for row in explanation["values"]:
        key = row["kind"], row["type"], row["decision"], row["reason"]
        groups.setdefault(key, []).append(row)
    ordered = sorted(groups.items(), key=lambda item: -sum(row["bytes"] for row in item[1]))
    shown = []
    for (kind, type_, decision, reason), rows in ordered[:most]:
        first = rows[0]
        shown.append(
            (
                f"{len(rows)} \N{MULTIPLICATION SIGN} {type_}",
                human_bytes(sum(row["bytes"] for row in rows)),
                kind,
                first["at"] or first["name"],
                decision,
                WHY.get(reason, reason),
                *_otherwise(first, explanation["measure"]),
            )
        )
    other = _other_headers(explanation["measure"])
    headers = "values", "bytes", "kind", "first", "decision", "why", *other
    rest = len(ordered) - most
    note = f"<p>{rest} smaller groups are not shown.</p>" if rest > 0 else ""
    return table(headers, shown, numeric=(1, 6, 7)) + note


def facts(rows: Sequence[tuple[str, str]], *collapsed: tuple[str, str]) -> str:
    """Returns the HTML that a notebook shows for an object: a table of names and figures, then
    collapsed parts (title, HTML)."""
    body = "".join(_details(title, part) for title, part in collapsed)
    shown = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(figure)}</td></tr>" for name, figure in rows
    )
    return fragment(f"<table><tbody>{shown}</tbody></table>{body}")


def code(text: str) -> str:
    """Returns preformatted text as HTML."""
    return "<pre>" + "\n".join(map(escape, text.splitlines())) + "</pre>"


def _details(title: str, body: str, is_open: bool = False) -> str:
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{body}</details>"
    )


def _download(name: str, text: str) -> str:
    packed = gzip.compress(text.encode(), mtime=0)
    data = base64.b64encode(packed).decode()
    return f'<a download="{name}" href="data:application/gzip;base64,{data}">{name}</a>'


def _compiled(picture: Picture, kernels: Kernels | None) -> str:
    """Returns the size of the compiled arena as text, or "" if grouping did not change it."""
    arena: int | None = None if kernels is None else kernels["arena_bytes"]
    return "" if arena in (None, picture.numbers["arena_bytes"]) else human_bytes(arena or 0)


def _headline(picture: Picture, kernels: Kernels | None = None) -> str:
    """Returns a sentence about the plan. The peak is that of the arena if the budget bounds the
    arena, else that of live bytes."""
    n = picture.numbers
    once = max(1, n["once_ps"])
    peak, whole = n["live_bytes"], n["save_all_live_bytes"]
    if picture.measure == "arena":
        peak, whole = n["arena_bytes"], n["save_all_arena_bytes"]
    share = 100 * peak / max(1, whole)
    text = (
        f"{human_bytes(peak)} at the peak instead of {human_bytes(whole)} ({share:.1f} %), for "
        f"{100 * (n['time_ps'] - once) / once:.1f} % more time"
    )
    trivial = "trivial " if n["bound_class"] == "trivial" else ""
    above = "" if n["gap"] is None else f", {100 * n['gap']:.2f} % above the {trivial}bound"
    arena = _compiled(picture, kernels)
    position = f"<p><b>{escape(picture.position)}</b></p>" if picture.position else ""
    if n["recomputed"] == 0 and n["time_ps"] == once and round(share) == 100:
        text, above = f"{human_bytes(peak)} at the peak: everything is saved", ""
    compiled = f"; the compiled arena has {arena}" if arena else ""
    return f"{position}<p><b>{text}</b>{above}{compiled}.</p>"


def _floor(explanation: Explanation) -> str:
    """Returns HTML about the smallest peak of any plan with this order of ops, and the largest
    working sets."""
    floor = explanation["floor"]
    if floor is None:
        return ""
    rows = [
        (human_bytes(row["bytes"]), row["name"], row["kind"], row["at"])
        for row in explanation["working_sets"]
    ]
    place = f" ({floor['at']})" if floor["at"] else ""
    return (
        f"<p>No plan with this order of operations takes less than {human_bytes(floor['bytes'])}: "
        f"{escape(floor['name'])}{escape(place)} needs that much, including the inputs of later "
        "operations.</p><p>Largest working sets (inputs, outputs and scratch of one operation):</p>"
        + table(("bytes", "operation", "kind", "source"), rows, numeric=(0,))
    )


def _peak(plan: Plan) -> str:
    """Returns HTML about the parts of the peak, and the smallest plans that other options allow."""
    rows = plan.holdings
    whole = max(1, sum(row.bytes for row in rows))
    shares = [(human_bytes(r.bytes), f"{100 * r.bytes / whole:.0f} %", r.what) for r in rows]
    body = table(("bytes", "of the peak", "what"), shares, numeric=(0, 1))
    if plan.savings:
        smallest = [
            (human_bytes(row.bytes), f"{100 * row.extra:.0f} %", row.options or "this plan")
            for row in plan.savings
        ]
        body += "<p>The smallest plans with other options:</p>"
        body += table(("live bytes", "more time", "options"), smallest, numeric=(0, 1))
    return body


def kernels_section(kernels: Kernels | None, most: int = MOST_KERNELS) -> str:
    """Returns HTML about the fused groups of a compiled step, or "" without a compiled step."""
    if not kernels or not kernels["groups"]:
        return ""
    rows = group_rows(kernels)
    rest = f"<p>{len(rows) - most} smaller rows are not shown.</p>" if len(rows) > most else ""
    single = table(
        ("op", "groups", "read", "written", "why"), single_rows(kernels), numeric=(1, 2, 3)
    )
    return (
        f"<h2>Kernels: which operations run together</h2><p>{escape(totals(kernels))}</p>"
        + scroll(kernels_svg(kernels), "kernels")
        + (table(HEADERS, rows[:most], numeric=(3, 4, 5)) + rest if rows else "")
        + _details("ops that run separately", single)
    )


def section(
    title: str,
    plan: Plan,
    measured: Measured,
    kernels: Kernels | None = None,
) -> str:
    """Returns the report of one plan as an HTML fragment.

    Args:
        title: the heading.
        plan: a :class:`cutback.Plan`.
        measured: measurements of a run: any of ``peak_bytes``, ``ms`` and ``timeline`` (the bytes
            in use during each step).
        kernels: for a compiled step, the JSON of ``Plan.explain(kernels=True, as_json=True)``.

    >>> body = report.section("Half the memory", plan, {"ms": 1.5})
    >>> html = report.page("Plans", body)
    """
    picture, explanation = read(plan), plan.explanation
    layers = layers_table(picture)
    return "".join(
        [
            f"<h2>{escape(title)}</h2>",
            _headline(picture, kernels),
            timeline_chart(picture, measured.get("timeline")),
            _details("layers, and the bytes that they save", layers, is_open=True),
            _details("the arena as a table", lives_table(picture)),
            _numbers(picture, measured, kernels),
            "<h2>What is saved, what is recomputed, and why</h2>",
            f"<p>{OTHERWISE}</p>",
            groups_table(explanation),
            _details("every value", values_table(explanation)),
            _details(
                "joint graph, with saved values",
                scroll(graph_svg(picture), "joint graph"),
            ),
            _details("parts of the peak", _peak(plan)),
            _details("lower limit of the peak", _floor(explanation)),
            kernels_section(kernels),
            f"<p>{_download('problem.json.gz', plan.core.problem.to_json())} ",
            f"{_download('plan.json.gz', plan.core.to_json())}</p>",
        ]
    )


def page(title: str, body: str) -> str:
    """Returns a whole HTML document.

    Args:
        title: title of the page, also its first heading.
        body: the HTML below the heading.

    >>> html = report.page("Plans", "<p>nothing yet</p>")
    """
    code = script() if '<figure class="chart' in body else ""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    # Allow only our own script, because names in a graph may contain anything.
    only = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    rules = f'<meta http-equiv="Content-Security-Policy" content="{only}">' if code else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{rules}<style>{PAGE_STYLE}{STYLE}{CHART_STYLE if code else ''}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}"
        f"{f'<script>{code}</script>' if code else ''}</body></html>"
    )


def render_html(
    plan: Plan,
    measured: Measured,
    title: str,
    kernels: Kernels | None = None,
) -> str:
    """Returns the report of one plan as a whole HTML document.

    Args:
        plan, measured, kernels: as for :func:`section`.
        title: title of the page, also its first heading.

    >>> html = report.render_html(plan, {}, "A step")
    """
    return page(title, section("Plan", plan, measured, kernels))


def render_fragment(plan: Plan) -> str:
    """Returns the HTML that a notebook shows: numbers, timeline and collapsed tables.

    Args:
        plan: a :class:`cutback.Plan`.

    >>> html = report.render_fragment(plan)
    """
    picture = read(plan)
    graph = _details("joint graph", graph_svg(picture))
    values = _details("saved and recomputed values", groups_table(plan.explanation))
    words = _headline(picture) + _numbers(picture, {})
    return fragment(words + timeline_svg(picture) + values + graph)
