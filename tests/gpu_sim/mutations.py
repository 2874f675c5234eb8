"""PTX with one thing deleted: each barrier, fence, wait and warp synchronisation by itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

# What orders threads. Commits are left: without them a wait waits for more than it asks for.
ORDERING = re.compile(
    r"\s*(bar\.sync|barrier\.sync|bar\.warp\.sync|membar\.gl|fence\.[\w.]*gpu|cp\.async\.wait_\w+)\b"
)


def kernel_of(lines: list[str], at: int) -> str:
    """The entry that a line stands in."""
    for line in reversed(lines[: at + 1]):
        found = re.search(r"\.entry\s+(\w+)", line)
        if found:
            return found[1]
    raise ValueError(at)


def deletions(text: str, kernels: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What was deleted, as "kernel instruction number", and the rest of the text."""
    lines = text.splitlines()
    met: Counter[str] = Counter()
    for i, line in enumerate(lines):
        found = ORDERING.match(line)
        if found and kernel_of(lines, i) in kernels:
            what = f"{kernel_of(lines, i)} {found[1]}"
            met[what] += 1
            yield f"{what} {met[what]}", "\n".join([*lines[:i], "", *lines[i + 1 :]]) + "\n"
