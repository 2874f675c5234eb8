"""Documents and links of the repository as pages of the site.

A line ``% page: ../ARCHITECTURE.md`` in a page stands for that document, ``% page: ../README.md
until ## Arrays`` for it up to a line. Links to documents that have a page lead there, links to
other files to copies in the site, and links to folders become text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "benchmarks/RESULTS.md": "results.md",
}
PAGE = re.compile(r"^% page: (?P<path>\S+)(?: until (?P<end>.+))?$", re.MULTILINE)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)#: ]+)(?P<anchor>#[^)]*)?\)")


def as_page(text: str, home: Path) -> str:
    """A document of the folder ``home``, with the links that the site needs."""

    def link(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(home / match["path"]))
        name, anchor = path.relative_to(ROOT).as_posix(), match["anchor"] or ""
        if match["image"]:
            return f"![{match['text']}]({os.path.relpath(path, DOCS)})"
        if name in PAGES:
            return f"[{match['text']}](/{PAGES[name]}{anchor})"
        if (
            path.suffix == ".ipynb"
        ):  # behind a link to a folder, which Markdown's links cannot follow
            return f"{{doc}}`{match['text']} </notebooks/{path.stem}>`"
        if path.is_relative_to(DOCS) and path.is_file() and "extending" not in name:
            return f"[{match['text']}](/{path.relative_to(DOCS).as_posix()}{anchor})"
        if path.is_file():
            return f"{{download}}`{match['text']} <{os.path.relpath(path, DOCS)}>`"
        return match["text"] if path.is_dir() else match[0]  # Sphinx reports what is missing

    return LINK.sub(link, text)


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Called with the text of each page, which it may change."""
    path = Path(app.env.doc2path(page))
    if path.suffix != ".md":
        return

    def document(match: re.Match[str]) -> str:
        original = (path.parent / match["path"]).resolve()
        app.env.note_dependency(str(original))
        text = original.read_text(encoding="utf-8")
        if match["end"]:
            text, end, _ = text.partition(f"\n{match['end']}")
            if not end:
                raise ValueError(f"{path}: no line in {original} begins with {match['end']!r}")
        return as_page(text, original.parent)

    text = source[0]
    source[0] = PAGE.sub(document, text) if PAGE.search(text) else as_page(text, path.parent)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
