"""Real data that needs no download: the standard library's text, and scikit-learn's digits."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Text:
    """Characters as ids; `alphabet[id]` is the character."""

    ids: np.ndarray  # int32 [n]
    alphabet: str


def stdlib_text(limit: int = 2_000_000) -> Text:
    """Returns the first `limit` characters of the standard library's modules, non-ASCII as "?"."""
    parts: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_text(encoding="utf-8", errors="replace"))
        size += len(parts[-1])
        if size >= limit:
            break
    text = "".join(parts)[:limit].encode("ascii", "replace").decode("ascii")
    alphabet = "".join(sorted(set(text)))
    table = np.zeros(128, np.int32)
    table[[ord(c) for c in alphabet]] = np.arange(len(alphabet), dtype=np.int32)
    return Text(table[np.frombuffer(text.encode("ascii"), np.uint8)], alphabet)


def text_batches(
    text: Text, batch: int, context: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields endless random windows: tokens [batch, context] and the tokens that follow them."""
    rng = np.random.default_rng(seed)
    window = np.arange(context + 1)
    while True:
        start = rng.integers(0, len(text.ids) - context - 1, size=batch)
        rows = text.ids[start[:, None] + window]
        yield np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


@dataclass(frozen=True)
class Digits:
    """8x8 images [n, 1, 8, 8] in [0, 1] and labels [n], split for training and test."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def digits(seed: int = 0) -> Digits:
    """Returns 1,797 handwritten digits (UCI, shipped with scikit-learn); a fixed fifth is the test
    set."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    images = (x / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = y.astype(np.int32)
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = order[: len(labels) // 5], order[len(labels) // 5 :]
    return Digits(images[train], labels[train], images[test], labels[test])


def digit_batches(data: Digits, batch: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields endless epochs of shuffled full batches."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(data.train_y))
        for start in range(0, len(order) - batch + 1, batch):
            rows = order[start : start + batch]
            yield data.train_x[rows], data.train_y[rows]
