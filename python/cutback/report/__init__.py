"""Pictures of plans: the memory timeline, the joint graph as a ladder, the table of saved values,
the HTML report.

Everything is drawn from the JSON documents of a problem and a plan (`docs/problem.md`), so a plan
made elsewhere can be looked at too. Nothing here needs more than NumPy. Imports the modules beside
the folders alone; ``planner`` asks for pages. Start at ``page.py``, then ``model.py``.
"""

from __future__ import annotations

from .kernels import kernels_svg, kernels_text
from .ladder import graph_svg
from .model import Picture, read
from .page import page, render_fragment, render_html, section, table, values_table
from .svg import document, human_bytes
from .timeline import timeline_svg

__all__ = [
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
