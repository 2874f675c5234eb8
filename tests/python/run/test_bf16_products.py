"""Tests products of bf16, which use the instruction that multiplies pairs of them if the processor
has it, and f32 otherwise. Both are close to the product in f64, and the bits depend only on the
inner axis."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import cutback

ml_dtypes = pytest.importorskip("ml_dtypes")
BF16 = ml_dtypes.bfloat16

SHAPES = [
    (1, 1, 1), (1, 7, 33), (2, 64, 16), (3, 255, 17), (12, 256, 32), (13, 257, 31), (130, 300, 47),
    (16, 1024, 130), (129, 31, 129), (28, 513, 64),
]  # fmt: skip


def product(a: Any, b: Any, left: bool = False, right: bool = False) -> np.ndarray:
    """Computes a @ b, with operands stored transposed if `left` or `right`."""
    a = np.ascontiguousarray(a.T) if left else a
    b = np.ascontiguousarray(b.T) if right else b
    step = cutback.compile(lambda a, b: (a.T if left else a) @ (b.T if right else b), argnums=None)
    return np.asarray(step(a, b))


def operands(n: int, k: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + k + m)
    a, b = rng.standard_normal((n, k)), rng.standard_normal((k, m))
    return a.astype(BF16), b.astype(BF16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_f64_in_every_layout(shape: tuple[int, int, int]) -> None:
    a, b = operands(*shape)
    wide = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    first = product(a, b)
    error = np.abs(first.astype(np.float64) - wide)
    assert (error <= 2.0**-8 * np.abs(wide) + 2.0**-20 * bound).all()
    for left in (False, True):
        for right in (False, True):
            assert product(a, b, left, right).tobytes() == first.tobytes()


def test_parts_have_the_bits_of_the_whole() -> None:
    a, b = operands(150, 700, 140)
    whole = product(a, b)
    assert product(a[17:18], b).tobytes() == whole[17:18].tobytes()
    assert product(a[:40], b[:, 50:53].copy()).tobytes() == whole[:40, 50:53].copy().tobytes()
    batch = np.stack([a[:50], a[50:100], a[100:]])
    step = cutback.compile(lambda a, b: a @ b, argnums=None)
    assert np.asarray(step(batch, b)).tobytes() == whole.tobytes()
    before = cutback.get_num_threads()
    try:
        for threads in (1, 2, 5):
            cutback.set_num_threads(threads)
            assert product(a, b).tobytes() == whole.tobytes()
    finally:
        cutback.set_num_threads(before)


def test_numbers_next_to_what_is_not_one() -> None:
    """Rows, columns and the padding of an odd inner axis do not mix."""
    a, b = operands(5, 9, 6)
    a[2, 8], b[3, 4] = np.nan, np.inf
    found = product(a, b).astype(np.float64)
    wide = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wide))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wide))


CODE = """
import ml_dtypes, numpy as np, cutback, sys
rng = np.random.default_rng(0)
a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((40, 300), (300, 50)))
y = np.asarray(cutback.compile(lambda a, b: a @ b, argnums=None)(a, b))
sys.stdout.buffer.write(y.tobytes())
"""


def test_an_instruction_set_that_is_asked_for_widens() -> None:
    """The bits are the same under all instruction sets that widen."""
    found = set()
    for isa in ("avx2", "avx512"):
        environment = {**os.environ, "CUTBACK_ISA": isa}
        run = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True)
        assert run.returncode == 0, run.stderr.decode()
        found.add(run.stdout)
    assert len(found) == 1
