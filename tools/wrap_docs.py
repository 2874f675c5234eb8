#!/usr/bin/env python3
"""Finds lines of Markdown documents that are over 100 columns, and breaks them.

    tools/wrap_docs.py               names them; the exit status is 1 if there are any
    tools/wrap_docs.py --fix [PATH]  breaks them in all documents, or in these

Only paragraphs with a line that is too long are filled again. Tables, code and single words that
are longer, such as addresses, stay as they are. A code span, a link and a mark of a figure
(tools/doc_figures.py) are never broken, because other tools read them line by line.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100

FENCE = re.compile(r"^\s*(`{3,}|~{3,}|:{3,})")
ITEM = re.compile(r"^(\s*(?:[-*+]|\d{1,3}[.)]|>|\[\^?[^\]]+\]:)\s+)")
OTHER = re.compile(r"^\s*(?:\||#|<!--(?!row )|<(?!!--)|:|\$\$|\(\S+\)=)|^\s*$|(?:  |\\)$")
# Words that must not begin a line, because Markdown would read them as something else.
MARKER = re.compile(r"(?:[-*+>|:=]|#+|\d{1,3}[.)])$|[|>#<]|-{2,}$|={2,}$|:")
WHOLE = re.compile(r"<!--row .*?<!--/row-->|`[^`]*`|!?\[[^\]]*\]\([^)]*\)", re.DOTALL)


def words(text: str) -> list[str]:
    """Returns the parts of a paragraph that lines may be made of."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(" ".join(found[0].split()))
        return f"\0{len(kept) - 1}\0"

    def back(word: str) -> str:
        while "\0" in word:
            word = re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], word)
        return word

    return [back(word) for word in WHOLE.sub(keep, text).split()]


def filled(lines: list[str]) -> list[str]:
    """Returns a paragraph whose lines have at most COLUMNS columns, where its words allow it."""
    head = ITEM.match(lines[0])
    first = head[1] if head else re.match(r"\s*", lines[0])[0]  # type: ignore[index]
    later = re.match(r"\s*", lines[1])[0] if len(lines) > 1 else " " * len(first)  # type: ignore[index]
    if first.lstrip().startswith(">"):
        later = first
    text = " ".join([lines[0][len(first) :], *(line.lstrip("> ") for line in lines[1:])])
    made, line = [], first
    for word in words(text):
        room = len(line) + 1 + len(word) <= COLUMNS
        if line == later or (line == first and not made):
            line += word
        elif room or MARKER.match(word):
            line += " " + word
        else:
            made.append(line)
            line = later + word
    return [*made, line]


def paragraphs(text: str) -> Iterator[tuple[list[str], bool]]:
    """Runs of lines, and whether they are a paragraph that may be filled."""
    run: list[str] = []
    fence = ""
    for line in text.split("\n"):
        mark = FENCE.match(line)
        if fence or mark or OTHER.search(line) or (not run and re.match(r"^(?: {4}|\t)", line)):
            if run:
                yield run, True
                run = []
            yield [line], False
            if mark and not fence:
                fence = mark[1]
            elif fence and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        if run and ITEM.match(line) and not line.lstrip().startswith(">"):
            yield run, True
            run = []
        run.append(line)
    if run:
        yield run, True


def wrapped(text: str) -> str:
    """Returns a document whose lines are broken where they can be."""
    made: list[str] = []
    for lines, may in paragraphs(text):
        long = any(len(line) > COLUMNS for line in lines)
        made += filled(lines) if may and long else lines
    return "\n".join(made)


def documents() -> list[Path]:
    """Returns all Markdown files of the repository, without those that a program writes."""
    told = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = (ROOT / name for name in told.stdout.split())
    return [path for path in found if path.name != "RESULTS.md" and not path.is_symlink()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fix", action="store_true", help="break the lines in the files")
    parser.add_argument("paths", nargs="*", type=Path)
    given = parser.parse_args()
    status = 0
    for path in given.paths or documents():
        old = path.read_text(encoding="utf-8")
        new = wrapped(old)
        if new == old:
            continue
        if given.fix:
            path.write_text(new, encoding="utf-8")
            continue
        status = 1
        print(f"{path}: lines over {COLUMNS} columns: run tools/wrap_docs.py --fix")
    return status


if __name__ == "__main__":
    sys.exit(main())
