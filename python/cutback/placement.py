"""Offsets for buffers in one block of memory.

>>> import cutback.placement
>>> buffers = cutback.placement.read_csv("id,lower,upper,size\\na,0,2,64\\nb,1,3,32\\n")
>>> cutback.placement.place(buffers, capacity=96)
[0, 64]

The search is the one that places the tensors of a plan (``docs/planner.md``). Files have the format
of the MiniMalloc allocator (Moffitt, ASPLOS 2023): each line is a buffer, which takes ``size``
bytes from time ``lower`` up to, but not including, ``upper``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from . import _native
from .budgets import text as bytes_text

__all__ = ["Buffer", "place", "read_csv", "write_csv"]

_COLUMNS = ("id", "lower", "upper", "size")
_MOST = 2**63


@dataclass(frozen=True)
class Buffer:
    """``size`` bytes (at least 0) that are in use at the times ``lower <= t < upper``."""

    id: str
    lower: int
    upper: int
    size: int


def _integer(text: str, what: str, line: int) -> int:
    digits = text.strip()
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(f"line {line}: {what} is {text!r}; write a whole number, 0 or more")
    if len(digits) > 19 or int(digits) >= _MOST:
        raise ValueError(f"line {line}: {what} is {digits[:20]}, which is 2^63 or more")
    return int(digits)


def _buffer(row: Sequence[str], column: dict[str, int], line: int) -> Buffer:
    if len(row) != len(column):
        raise ValueError(
            f"line {line} has {len(row)} fields, but the first line names {len(column)} columns"
        )
    lower, upper, size = (_integer(row[column[name]], name, line) for name in _COLUMNS[1:])
    if lower >= upper:
        raise ValueError(
            f"line {line}: lower is {lower} and upper is {upper}; upper must be larger than lower, "
            "because the buffer is free again at that time"
        )
    return Buffer(row[column["id"]].strip(), lower, upper, size)


def read_csv(text: str) -> list[Buffer]:
    """Reads buffers from a CSV text.

    The first line names the columns ``id``, ``lower``, ``upper`` and ``size``, in any order.

    Raises:
        ValueError: if a column is missing, unknown or named twice, a line has the wrong number of
            fields, a number is not an integer or is too small or too large, or an id is used twice.
            The message names the line.
    """
    rows = csv.reader(io.StringIO(text))
    names = [name.strip() for name in next(rows, [])]
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise ValueError(
            f"line 1 must name the columns {','.join(_COLUMNS)}; {missing[0]!r} is missing"
        )
    for name in names:
        if name not in _COLUMNS or names.count(name) > 1:
            why = "named twice" if name in _COLUMNS else f"not one of {','.join(_COLUMNS)}"
            raise ValueError(f"line 1: column {name!r} is {why}")
    column = {name: names.index(name) for name in _COLUMNS}
    buffers: list[Buffer] = []
    lines: dict[str, int] = {}
    for row in rows:
        if not row:
            continue
        buffer = _buffer(row, column, rows.line_num)
        if buffer.id in lines:
            raise ValueError(
                f"line {rows.line_num}: id {buffer.id!r} is already used on line {lines[buffer.id]}"
            )
        lines[buffer.id] = rows.line_num
        buffers.append(buffer)
    return buffers


def write_csv(buffers: Sequence[Buffer], offsets: Sequence[int]) -> str:
    """Writes buffers as CSV, in the format of :func:`read_csv` with an additional column
    ``offset`` (bytes)."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow((*_COLUMNS, "offset"))
    for b, offset in zip(buffers, offsets, strict=True):
        rows.writerow((b.id, b.lower, b.upper, b.size, offset))
    return out.getvalue()


def place(buffers: Sequence[Buffer], capacity: int) -> list[int]:
    """Returns an offset in bytes for each buffer, so that buffers in use at the same time do not
    overlap.

    Args:
        buffers: the buffers to place. Only the order of their times matters.
        capacity: size of the block in bytes; all buffers end at or below it.

    Raises:
        ValueError: if it is proven that no offsets fit, or if the search found none within its
            limit, a number of search steps that takes about ten seconds. The message says which.
        NotImplementedError: if there are too many buffers to search.
    """
    times = sorted({t for b in buffers for t in (b.lower, b.upper)})
    moment = {t: k for k, t in enumerate(times)}
    taking = [k for k, b in enumerate(buffers) if b.size > 0]
    lives = [
        (moment[buffers[k].lower], moment[buffers[k].upper] - 1, buffers[k].size) for k in taking
    ]
    fit, found, live, fullest, _ = _native.place(lives, min(capacity, _MOST - 1))
    if fit != "found":
        _refuse(fit, capacity, live, times[fullest])
    offsets = [0] * len(buffers)
    for k, offset in zip(taking, found, strict=True):
        offsets[k] = offset
    return offsets


def _refuse(fit: str, capacity: int, live: int, time: int) -> None:
    size = f"{bytes_text(capacity)} ({capacity} bytes)"
    if live > capacity:
        raise ValueError(
            f"the buffers do not fit into {size}: at time {time} they take {live} bytes, so the "
            f"capacity must be at least {bytes_text(live)}"
        )
    if fit == "none":
        raise ValueError(
            f"the buffers do not fit into {size}, although they never take more than {live} bytes "
            "at one time: every placement leaves gaps; use a larger capacity"
        )
    raise ValueError(
        f"the search found no placement within {size} and did not prove that none exists; the "
        f"buffers take up to {live} bytes at one time; use a larger capacity"
    )
