"""Finds everything that orders threads, line by line: each barrier, fence, wait, warp
synchronisation and shuffle of PTX. The stand-in skips one at a time (``Driver.leave_out``), so
nothing is recompiled: an instruction with a result (a shuffle, a reducing barrier) returns the
thread's own operand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

# Instructions that order threads. Commits are not included: without them a wait only waits for
# more.
ORDERING = re.compile(
    r"\s*(bar\.sync|barrier\.sync|bar\.warp\.sync|membar\.gl|fence\.[\w.]*gpu|cp\.async\.wait_\w+)\b"
)
EXCHANGE = re.compile(
    r"\s*(?:@!?%\w+\s+)?"
    r"(shfl\.sync\.\w+\.b32|(?:bar|barrier)\.(?:cta\.)?red\.(?:or|and)\.pred)\s"
)


class Deletion(NamedTuple):
    """``what`` is "kernel instruction number"; ``line`` counts from 1."""

    what: str
    kernel: str
    line: int


def deletions(text: str, kernels: tuple[str, ...]) -> Iterator[Deletion]:
    """Yields all deletions of these kernels."""
    kernel = ""
    met: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if entry := re.search(r"\.entry\s+(\w+)", line):
            kernel = entry[1]
        found = ORDERING.match(line) or EXCHANGE.match(line)
        if found and kernel in kernels:
            what = f"{kernel} {found[1]}"
            met[what] += 1
            yield Deletion(f"{what} {met[what]}", kernel, number)


def is_among_few(what: str) -> bool:
    """True for everything except shuffles, many of which are alike; of these, for the first one and
    for one in seven."""
    number = int(what.split()[-1])
    return "shfl" not in what or number == 1 or number % 7 == 0
