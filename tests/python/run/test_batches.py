"""Runs short rows, and rows that are not whole iterations, several at a time. They have the bits of
one kernel per instruction, which the debug backend runs, on any number of threads and instruction
set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cutback
import cutback.nn.functional as F

# rows, columns: blocks of 16 rows and rests, runs of 128 rows, several tasks
SIZES = ((70, 4), (900, 7), (2500, 16), (149, 20), (333, 31), (77, 40), (1200, 49), (37, 64),
         (129, 96), (260, 196), (19, 250), (35, 784), (18, 1000), (9, 1089))  # fmt: skip
DTYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": pytest.importorskip("ml_dtypes").bfloat16,
}


def bits(x):
    """Makes all NaNs the same."""
    x = np.ascontiguousarray(x)
    word = np.dtype(f"u{x.dtype.itemsize}").type
    return np.where(np.isnan(x), word(0), x.view(word).reshape(x.shape) + word(1))


def rows_loss(x, weight, bias, scale):
    y = F.layer_norm(x, (x.shape[-1],), weight, bias)
    z = F.softmax(y * scale.reshape(-1, 1), -1)
    least, most = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    z = (z + F.rms_norm(x - least, (x.shape[-1],), weight)) * most
    z = F.log_softmax(z, -1) + z.sum(axis=-1, keepdims=True)
    return (z * y).mean() + F.relu(y).sum(axis=-1).sum()


def dropped(x, weight, bias, scale):
    return rows_loss(F.dropout(x, 0.3), weight, bias, scale)


def transposed(x, weight, bias, scale):
    return rows_loss(x.T, weight, bias, scale)


def arrays(rows, columns, dtype, special):
    rng = np.random.default_rng(rows + columns)
    x = rng.standard_normal((rows, columns)).astype(dtype)
    if special:
        x[1, 0], x[2, 1], x[3, columns - 1], x[4] = np.nan, np.inf, -np.inf, -0.0
    small = [1 + 0.3 * rng.standard_normal(n) for n in (columns, columns, rows)]
    return x, [a.astype(dtype) for a in small]


def outcome(loss, backend, x, small):
    step = cutback.value_and_grad(loss, argnums=tuple(range(4)), backend=backend)
    value, gradients = step(x, *small)
    return step, [bits(a) for a in (value, *gradients)]


FEW = [
    pytest.param(*size, dtype, marks=[] if few else pytest.mark.very_slow)
    for dtype in DTYPES
    for size in SIZES
    for few in [dtype == "f32" or size in ((900, 7), (260, 196))]
]


@pytest.mark.parametrize(("rows", "columns", "dtype"), FEW)
@pytest.mark.filterwarnings("ignore")
def test_rows_have_the_bits_of_their_instructions(rows, columns, dtype):
    for special in (False, True):
        x, small = arrays(rows, columns, DTYPES[dtype], special)
        losses = [rows_loss, *([dropped] if columns % 8 == 0 else [])]
        for loss in losses:
            _, together = outcome(loss, "cpu", x, small)
            _, one_by_one = outcome(loss, "debug", x, small)
            for a, b in zip(together, one_by_one, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_sums_repeat_a_number_for_each_row(dtype):
    """Whole vectors of an array are written without records."""

    def squares(x, *_):
        return (x.sum(-1) ** 2).mean()

    def with_sums(x, *_):
        return squares(x) + (2 * x.mean(-1)).sum()

    for rows, columns in ((2500, 8), (333, 12), (900, 16), (130, 64), (70, 80)):
        x, small = arrays(rows, columns, dtype, False)
        for loss in (squares, with_sums):
            _, found = outcome(loss, "cpu", x, small)
            _, expected = outcome(loss, "debug", x, small)
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("columns", [70001, pytest.param(200000, marks=pytest.mark.very_slow)])
def test_long_rows(columns):
    """Separate kernels sum long rows in segments."""
    x, small = arrays(16, columns, np.float32, False)
    step, together = outcome(rows_loss, "cpu", x, small)
    _, one_by_one = outcome(rows_loss, "debug", x, small)
    for a, b in zip(together, one_by_one, strict=True):
        np.testing.assert_array_equal(a, b)
    assert f"[16x{columns}]" in step.executable.text("program")


@pytest.mark.parametrize(("rows", "columns"), [(900, 7), (260, 196)])
def test_rows_of_a_transposed_array(rows, columns):
    x, small = arrays(rows, columns, np.float32, False)
    _, together = outcome(transposed, "cpu", np.ascontiguousarray(x.T), small)
    _, one_by_one = outcome(transposed, "debug", np.ascontiguousarray(x.T), small)
    for a, b in zip(together, one_by_one, strict=True):
        np.testing.assert_array_equal(a, b)


NORMS = (
    (3, 12, 4, 5, 5),
    (2, 64, 8, 33, 33),
    (16, 8, 8, 7, 7),
    (4, 6, 1, 14, 14),
    (2, 16, 2, 9, 9),
    (3, 40, 40, 7, 7),
)


@pytest.mark.parametrize(("n", "channels", "groups", "height", "width"), NORMS)
def test_norms_of_channels_are_one_group(n, channels, groups, height, width):
    """The norms have a weight for each channel, whose gradient is a sum over odd pieces of rows."""
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((n, channels, height, width)).astype(np.float32)
    x[0, 0] = -0.0
    small = [rng.standard_normal(channels).astype(np.float32) for _ in range(3)]

    def loss(x, weight, bias, scale):
        y = F.relu(F.group_norm(x, groups, weight, bias)) * scale.reshape(-1, 1, 1)
        return (y * y).mean()

    step, together = outcome(loss, "cpu", x, small)
    _, one_by_one = outcome(loss, "debug", x, small)
    for a, b in zip(together, one_by_one, strict=True):
        np.testing.assert_array_equal(a, b)
    full = [k for k in step.executable.text("program").splitlines() if "= layer_norm" in k]
    assert len(full) == 2  # forward and backward, without a group in between
    assert all(" l" in k.split("=")[0] or "out" in k.split("=")[0] for k in full)


PRINTS = """
import hashlib
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import test_batches as t
import cutback
cutback.set_num_threads(int(sys.argv[2]))
found = hashlib.sha256()
for rows, columns in t.SIZES:
    for bits in t.outcome(t.rows_loss, "cpu", *t.arrays(rows, columns, np.float32, False))[1]:
        found.update(bits.tobytes())
print(found.hexdigest())
"""


@pytest.mark.very_slow
@pytest.mark.skipif("CUTBACK_TEST_BACKEND" in os.environ, reason="of the CPU's executor")
def test_bits_depend_neither_on_threads_nor_on_the_instruction_set():
    cases = [("1", None), ("3", None), ("1", "avx2"), ("1", "baseline")]
    found = set()
    for threads, isa in cases:
        environment = {**os.environ, **({"CUTBACK_ISA": isa} if isa else {})}
        command = [sys.executable, "-c", PRINTS, str(Path(__file__).parent), threads]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(run.stdout)
    assert len(found) == 1
