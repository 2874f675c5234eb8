"""Graphs and plans in files: reading them.

A graph file holds a problem (``docs/problem.md``) or a joint graph as a tracer of PyTorch writes
it, as JSON, gzipped or not.
"""

from __future__ import annotations

import gzip
import os
import zlib

MOST_BYTES = 1 << 30
"""Largest text that is read, unpacked: a graph of a million operations takes half of it."""

MOST_PACKED = 100
"""A packed file of more than :data:`SMALL` bytes unpacks to at most so many times its size; graphs
come to 30 times."""

SMALL = 64 << 20


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


def is_traced(text: str) -> bool:
    """Is this the text of a traced graph rather than of a problem?"""
    head = text[:4096]
    return '"cutback.problem"' not in head and '"nodes"' in text
