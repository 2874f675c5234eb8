"""Renders HTML tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .svg import escape

LONG = 30  # cells with more letters get a wider column


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Any]],
    numeric: Sequence[int] = (),
    attributes: Sequence[str] = (),
) -> str:
    """Returns an HTML table.

    Args:
        headers: the title of each column.
        rows: the cells of each row; their text is escaped.
        numeric: indices of right-aligned columns.
        attributes: HTML attributes of each row; empty for no attributes.

    >>> html = report.table(["layer", "bytes"], [["linear", 4096]], numeric=[1])
    """

    def cells(row: Sequence[Any], name: str) -> str:
        return "".join(_cell(str(cell), name, i in numeric) for i, cell in enumerate(row))

    starts = [f"<tr {one}>" for one in attributes] or ["<tr>"] * len(rows)
    body = "".join(f"{a}{cells(row, 'td')}</tr>" for a, row in zip(starts, rows, strict=True))
    whole = f"<table><thead><tr>{cells(headers, 'th')}</tr></thead><tbody>{body}</tbody></table>"
    return scroll(whole)


def _cell(text: str, name: str, is_numeric: bool) -> str:
    css = " class=n" if is_numeric else " class=w" if len(text) > LONG else ""
    return f"<{name}{css}>{escape(text)}</{name}>"


def scroll(body: str, label: str = "table") -> str:
    """Wraps HTML so that it scrolls sideways if it is wider than the page, also with the
    keyboard."""
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(label)}">{body}</div>'
    )
