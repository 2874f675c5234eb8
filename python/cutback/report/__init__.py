"""Draws plans: the memory timeline, the joint graph, tables of saved values, and the HTML report.

>>> plan.report("plan.html")  # the whole report
>>> picture = cutback.report.read(plan)
>>> svg = cutback.report.timeline_svg(picture)  # a single picture

Plans of other processes can be drawn too: ``cutback.Plan(problem, document)`` reads a plan from its
documents (``docs/problem.md``). Drawing only needs NumPy.
"""

# This folder imports only top-level modules of the package. The planner folder uses it to make
# pages. Start at page.py, then read model.py.

from __future__ import annotations

from .kernels import kernels_svg, kernels_text
from .ladder import graph_svg
from .model import Picture, read
from .page import Measured, page, render_fragment, render_html, section, values_table
from .svg import document, human_bytes
from .table import table
from .timeline import timeline_svg

__all__ = [
    "Measured",
    "Picture",
    "document",
    "graph_svg",
    "human_bytes",
    "kernels_svg",
    "kernels_text",
    "page",
    "read",
    "render_fragment",
    "render_html",
    "section",
    "table",
    "timeline_svg",
    "values_table",
]
