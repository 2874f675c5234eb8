"""PTX with one thing left out: a barrier, fence, wait, warp synchronisation or shuffle by itself.

What gives a result (a shuffle, a barrier that reduces) gives the thread's own operand instead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

# What orders threads. Commits are left: without them a wait waits for more than it asks for.
ORDERING = re.compile(
    r"\s*(bar\.sync|barrier\.sync|bar\.warp\.sync|membar\.gl|fence\.[\w.]*gpu|cp\.async\.wait_\w+)\b"
)
EXCHANGE = re.compile(
    r"\s*(?P<predicate>@!?%\w+\s+)?"
    r"(?P<what>shfl\.sync\.\w+\.b32|(?:bar|barrier)\.(?:cta\.)?red\.(?:or|and)\.pred)\s+"
    r"(?P<to>%\w+)(?:\|%\w+)?,\s*(?P<operands>[^;]+);"
)


def _left_out(line: str) -> tuple[str, str] | None:
    """What the line has, and the line without it."""
    if found := ORDERING.match(line):
        return found[1], ""
    if found := EXCHANGE.match(line):
        operands = [operand.strip() for operand in found["operands"].split(",")]
        is_shuffle = found["what"].startswith("shfl")
        own, type_ = (operands[0], "b32") if is_shuffle else (operands[-1], "pred")
        return found["what"], f"{found['predicate'] or ''}mov.{type_} {found['to']}, {own};"
    return None


def kernel_of(lines: list[str], at: int) -> str:
    """The entry that a line stands in."""
    for line in reversed(lines[: at + 1]):
        found = re.search(r"\.entry\s+(\w+)", line)
        if found:
            return found[1]
    raise ValueError(at)


def deletions(
    text: str, kernels: tuple[str, ...], instead: str | None = None
) -> Iterator[tuple[str, str]]:
    """What was deleted, as "kernel instruction number", and the rest of the text. ``instead``: an
    instruction in its place."""
    lines = text.splitlines()
    met: Counter[str] = Counter()
    for i, line in enumerate(lines):
        found = _left_out(line)
        if found and kernel_of(lines, i) in kernels:
            what = f"{kernel_of(lines, i)} {found[0]}"
            met[what] += 1
            yield (
                f"{what} {met[what]}",
                "\n".join([*lines[:i], instead or found[1], *lines[i + 1 :]]) + "\n",
            )


def is_among_few(what: str) -> bool:
    """All but shuffles, of which there are many alike: the first, and one in seven."""
    number = int(what.split()[-1])
    return "shfl" not in what or number == 1 or number % 7 == 0
