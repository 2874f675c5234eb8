"""Writes SVG without dependencies, with selectable text, and dark mode through CSS."""

from __future__ import annotations

import html

from ..files import shown

STYLE = """
.cb { font: 12px system-ui, sans-serif; color: #1d2733; background: #ffffff; --page: #ffffff; }
.cb table { border-collapse: collapse; font-size: 13px; }
.cb td, .cb th { padding: .15rem .8rem .15rem 0; text-align: left; }
.cb td.n, .cb th.n { text-align: right; font-variant-numeric: tabular-nums; }
.cb svg { max-width: 100%; height: auto; }
.cb text { fill: currentColor; }
.cb .peak text, .cb .limit { paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
.cb .axis { stroke: currentColor; stroke-opacity: .35; stroke-width: 1; fill: none; }
.cb .grid { stroke: currentColor; stroke-opacity: .12; stroke-width: 1; }
.cb .note { fill-opacity: .65; }
.cb .saved { --c: #2f6fde; } .cb .recomputed { --c: #e07b1a; } .cb .temporary { --c: #9aa7b5; }
.cb .gradient { --c: #2a9d62; } .cb .scratch { --c: #8d6cc9; } .cb .offloaded { --c: #b0413e; }
.cb .parameter { --c: #1f8a99; } .cb .optimizer { --c: #b0569b; } .cb .input { --c: #c2a01e; }
.cb .activation { --c: #2f6fde; } .cb .other { --c: #9aa7b5; }
.cb .fused { --c: #2f6fde; } .cb .single { --c: #9aa7b5; }
.cb .grey { --c: #8a8f98; }
.cb .outline { stroke: currentColor; stroke-opacity: .5; fill: none; stroke-width: 1.2; }
.cb .side { stroke-width: 1.8; }
.cb .floor { stroke-dasharray: 5 4; }
.cb .layer { fill: currentColor; fill-opacity: .10; } .cb .odd { fill-opacity: .18; }
.cb .name { font-size: 11px; }
.cb rect.area { fill: var(--c); }
.cb .area { fill: var(--c); fill-opacity: .75; }
.cb .box { fill: var(--c); fill-opacity: .18; stroke: var(--c); }
.cb .line { stroke: var(--c); fill: none; }
.cb .budget { stroke: #c62f2f; stroke-dasharray: 6 4; fill: none; }
.cb .measured { stroke: currentColor; fill: none; stroke-width: 1.2; stroke-dasharray: 2 2; }
@media (prefers-color-scheme: dark) {
  .cb { color: #d7dee7; background: #14181d; --page: #14181d; }
}
.cb.inside, .cb .cb { color: inherit; background: none; }
.cb.inside, .cb.inside .cb { --page: transparent; }
.cb.inside table, .cb.inside th, .cb.inside td { color: inherit; }
.cb.inside pre { color: inherit; background: none; overflow-x: auto; }
"""


def escape(text: str) -> str:
    """Escapes a text for HTML. Invisible and direction-changing characters are spelled out."""
    return html.escape(shown(text))


def text(x: float, y: float, label: str, anchor: str = "start", css: str = "") -> str:
    """Returns an element with one line of text; `anchor` is start, middle or end."""
    attribute = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attribute}>{escape(label)}</text>'


def tag(name: str, title: str = "", **attributes: object) -> str:
    """Returns an SVG element, with `title` as its tooltip. Underscores in attribute names become
    dashes, and `css` becomes class."""
    parts = []
    for key, value in attributes.items():
        shown = f"{value:.1f}" if isinstance(value, float) else escape(str(value))
        parts.append(f'{"class" if key == "css" else key.replace("_", "-")}="{shown}"')
    opening = f"<{name} {' '.join(parts)}"
    return f"{opening}><title>{escape(title)}</title></{name}>" if title else f"{opening}/>"


def document(width: float, height: float, body: list[str], label: str) -> str:
    """Returns a standalone ``<svg>`` that includes its style sheet.

    Args:
        width, height: size in pixels.
        body: the elements.
        label: description of the picture for screen readers.

    >>> svg = report.document(100, 20, ['<text x="0" y="15">a picture</text>'], "a text")
    """
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="cb" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(label)}">'
        f"<style>{STYLE}</style>{''.join(body)}</svg>"
    )


def fragment(body: str) -> str:
    """Returns HTML that adapts to the theme of a notebook: it uses the surrounding text colour and
    has no background. (The system may be light while the notebook is dark.)"""
    return f'<div class="cb inside"><style>{STYLE}</style>{body}</div>'


def human_bytes(n: float) -> str:
    """Formats ``n`` bytes in the largest unit that gives at least 1.

    Example:
        >>> human_bytes(1536)
        '1.50 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} B" if unit == "B" else f"{n:.2f} {unit}"
        n /= 1024
    return f"{n:.2f} TiB"


def nice_ticks(top: float, about: int = 5) -> list[float]:
    """Returns about `about` ticks from 0 to at most `top`, at round multiples of a power-of-1024
    unit."""
    if top <= 0:
        return [0.0]
    unit = 1.0
    while top / unit >= 1024:
        unit *= 1024
    step = unit
    for factor in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500):
        step = factor * unit
        if top / step <= about:
            break
    return [i * step for i in range(int(top / step) + 1)]
