"""Graphs and plans in files: reading them, and laying measured times over a graph.

A graph file holds a problem (``docs/problem.md``) or a joint graph as a tracer of PyTorch writes
it, as JSON, gzipped or not.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Mapping
from typing import Any

from . import _native

MOST_BYTES = 1 << 30
"""Largest text that is read, unpacked: a graph of a million operations takes half of it."""

MOST_PACKED = 100
"""A packed file of more than :data:`SMALL` bytes unpacks to at most so many times its size; graphs
come to 30 times."""

SMALL = 64 << 20


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text; gzipped if the name ends in ``.gz``."""
    opened = gzip.open if os.fspath(path).endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(text)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file, unpacked when it is gzipped (told by its first bytes).

    Raises:
        OSError: it cannot be read. ValueError: it is no text, damaged, or too large.
    """
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        limit = MOST_BYTES
        if packed:
            limit = min(limit, max(SMALL, MOST_PACKED * os.fstat(file.fileno()).st_size))
        file.seek(0)
        try:
            source = gzip.GzipFile(fileobj=file) if packed else file
            data = source.read(limit + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{os.fspath(path)}: damaged gzip file ({error})") from None
    if len(data) > limit:
        what = "unpacks to" if packed else "is"
        raise ValueError(
            f"{os.fspath(path)}: {what} more than {limit >> 20} MiB of text, which no graph is"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)}: no UTF-8 text (byte {error.start})") from None


def to_json(document: Any, what: str, indent: int | None = None) -> str:
    """A document as JSON.

    Raises:
        TypeError, ValueError: it holds what JSON has not, or itself; the text names ``what``.
    """
    try:
        return json.dumps(document, indent=indent)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None
    except RecursionError:
        raise ValueError(f"{what}: nested too deeply for JSON") from None


def is_traced(text: str) -> bool:
    """Is this the text of a traced graph rather than of a problem?"""
    head = text[:4096]
    return '"cutback.problem"' not in head and '"nodes"' in text


MOST_SECONDS = 2.0**50 * 1e-12
"""Longest time of one operation: 18 minutes."""


def read_times(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The seconds by operation in a file: an object ``{"matmul_12": 1.5e-5, ...}``, or one with
    ``format`` "cutback.times", ``version`` 1 and that object under ``seconds``.

    Raises:
        OSError: the file cannot be read. ValueError: it holds something else.
    """
    document = json.loads(read_text(path))
    if isinstance(document, dict) and document.get("format") == "cutback.times":
        if document.get("version") != 1:
            raise ValueError(f"{os.fspath(path)}: version {document.get('version')!r}, not 1")
        document = document.get("seconds")
    if not isinstance(document, dict):
        raise ValueError(f"{os.fspath(path)}: a profile is an object of operation: seconds")
    return document


def _ids_by_name(ops: list[dict[str, Any]]) -> dict[str, list[int]]:
    table: dict[str, list[int]] = {}
    for i, op in enumerate(ops):
        if op.get("name"):
            table.setdefault(op["name"], []).append(i)
    return table


def with_times(problem: str, times: Mapping[Any, Any]) -> str:
    """The problem (JSON) with measured times: seconds by operation, named by its name or its id.
    Those go before the cost model; operations that are not among them keep the model's time, which
    is not scaled. Views and placeholders take no time whatever is said of them.

    Raises:
        ValueError: no such operation, a name that several have, or a time that is no number from 0
            to :data:`MOST_SECONDS`.
    """
    document = json.loads(problem)
    lay_times(document, times)
    document.pop("fingerprint", None)
    return _native.problem_json(json.dumps(document))


def lay_times(document: dict[str, Any], times: Mapping[Any, Any]) -> None:
    """:func:`with_times` on a problem's document, in place."""
    ops = document["ops"]
    names = _ids_by_name(ops)
    for key, seconds in times.items():
        found = names.get(str(key), [])
        if not found and str(key).isdecimal() and int(key) < len(ops):
            found = [int(key)]
        if len(found) != 1:
            what = "several operations are called" if found else "the graph has no operation"
            raise ValueError(f"profile: {what} {str(key)!r}" + (f": {found}" if found else ""))
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not number or not math.isfinite(seconds) or not 0 <= seconds <= MOST_SECONDS:
            raise ValueError(
                f"profile: {key!r} takes {seconds!r} seconds; a time is a number from 0 to "
                f"{MOST_SECONDS:.0f}"
            )
        ops[found[0]]["time_ps"] = round(seconds * 1e12)
