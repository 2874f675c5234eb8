"""Tests steps that run on addresses, in memory provided by the caller."""

from __future__ import annotations

import os

import numpy as np
import pytest

import cutback as cb
from cutback import _native

pytestmark = pytest.mark.skipif(
    "CUTBACK_TEST_BACKEND" in os.environ, reason="only the cpu takes a block of the caller"
)


def address(array):
    """Returns the address of the first element."""
    return array.ctypes.data


def block_of(step, shift=0):
    """Returns scratch for a run, aligned to 64 bytes plus `shift`, and its address."""
    room = np.zeros(step.run_bytes + 128, np.uint8)
    return room, -(-address(room) // 64) * 64 + shift


def normed():
    """Computes the softmax of a product; the product needs space in the arena."""
    g = cb.Graph()
    x, w = g.input("x", (8, 16)), g.input("w", (16, 4))
    h = g.op("matmul", x, w)
    g.output(g.op("softmax", h))
    g.output(g.op("sum", h, axes=(0,), keepdims=False))
    return g.compile()


@pytest.fixture
def arrays():
    """Makes inputs and outputs of `normed`."""
    rng = np.random.default_rng(3)
    ins = [rng.standard_normal(n, np.float32) for n in ((8, 16), (16, 4))]
    return ins, [np.full(n, np.nan, np.float32) for n in ((8, 4), (4,))]


def test_gives_what_a_run_gives(arrays):
    """The bits are the same, whatever the block contains."""
    made = normed()
    ins, outs = arrays
    wanted = made(*ins)[0]
    step = made.native
    assert step.run_bytes > 0
    room, block = block_of(step)
    room[:] = 255
    assert step.call(*map(address, (*ins, *outs)), block) is None
    for found, result in zip(outs, wanted, strict=True):
        assert found.tobytes() == np.asarray(result).tobytes()


def test_takes_nothing_of_the_memory(arrays):
    """Runs in the caller's block do not allocate in the core."""
    step = normed().native
    ins, outs = arrays
    room, block = block_of(step)
    before = _native.memory()["n_alloc"]
    step.call(*map(address, (*ins, *outs)), block)
    assert _native.memory()["n_alloc"] == before
    assert room.any()


def test_says_what_is_wrong(arrays):
    """The mistakes are wrong counts, a missing or misaligned block, and outputs that overlap
    inputs."""
    step = normed().native
    ins, outs = arrays
    room, block = block_of(step)
    given = [*map(address, (*ins, *outs))]
    with pytest.raises(
        TypeError, match="2 inputs and 2 outputs, a block and perhaps a seed, got 3"
    ):
        step.call(*given[:3])
    with pytest.raises(ValueError, match=f"needs a block of {step.run_bytes} bytes"):
        step.call(*given, 0)
    with pytest.raises(ValueError, match="not aligned to 64 bytes"):
        step.call(*given, block + 8)
    with pytest.raises(TypeError):
        step.call(*given[:3], "4", block)
    with pytest.raises(ValueError, match="overlap"):
        step.call(given[0], given[1], given[0], given[3], block)
    with pytest.raises(ValueError, match="no memory given"):
        step.call(0, *given[1:], block)
    step.call(*given, block)
    assert np.isfinite(outs[0]).all() and room.any()


def test_gradients_inside_are_not_kept():
    """The caller owns the block again when the call returns."""
    g = cb.Graph()
    w = g.input("w", (4,), role="param")
    g.output(g.op("sum", g.op("square", w)))
    step = g.compile(wrt=["w"], keep_gradients=True).native
    array, loss = np.ones(4, np.float32), np.zeros((), np.float32)
    room, block = block_of(step)
    step.call(address(array), address(loss), 0, block)
    assert loss == 4 and room.size
    with pytest.raises(ValueError, match="no run to wait for"):
        step.wait()
