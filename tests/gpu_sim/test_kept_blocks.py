"""The memory of a result that nobody holds is reused, but never while pending work still accesses
it: on another stream, on the step's own stream, or by a copy from the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback import cuda

X = np.arange(3000, dtype=np.float32)


def steps() -> tuple[cb.Step, cb.Step]:
    """Returns two steps, because runs of a single step wait for each other. For the same reason the
    tests give each step its own argument."""
    return (
        cb.compile(lambda x: x * 2, argnums=None, device="cuda"),
        cb.compile(lambda x: x + 1, argnums=None, device="cuda"),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("later", ["another stream", "no stream", "copy"])
def test_a_block_waits_for_the_stream_that_it_was_left_on(
    gpu: Driver, seed: int, later: str
) -> None:
    """A result is dropped while the work that writes it is pending; the next result of that size
    comes from elsewhere. Without the wait there is a race, and some orders give wrong numbers."""
    double, more = steps()
    x, y = cuda.to_device((X, X))
    gpu.wait()
    gpu.seed(seed)
    a, b = gpu.stream().value, gpu.stream().value
    for _ in range(3):
        result = double(x, stream=a)
        del result
        if later == "copy":
            found: Any = cuda.to_device(X + 1)
        else:
            found = more(y, **({"stream": b} if later == "another stream" else {}))
        assert (found.numpy() == X + 1).all()
    for step in (double, more):
        if step.n_compiled:
            step.wait()


@pytest.mark.parametrize("seed", range(3))
def test_a_block_of_two_streams_waits_for_both(gpu: Driver, seed: int) -> None:
    """A result is made on one stream and read on another; the next result on the first must not
    overwrite it before it is read."""
    double, more = steps()
    x = cuda.to_device(X)
    more(cuda.to_device(X))
    gpu.wait()
    gpu.seed(seed)
    a, b = gpu.stream().value, gpu.stream().value
    kept = []
    for _ in range(3):
        between = double(x, stream=a)
        kept.append(more(between, stream=b))
        del between
        double(x, stream=a)
    for result in kept:
        assert (result.numpy() == 2 * X + 1).all()
    double.wait()
    more.wait()


def test_blocks_of_one_stream_are_used_again(gpu: Driver) -> None:
    """Later work of the same stream need not wait, and nothing is allocated."""
    double, _ = steps()
    x, a = cuda.to_device(X), gpu.stream().value
    result = double(x, stream=a)
    del result
    before = gpu.library.sim_allocated()
    for _ in range(4):
        assert (double(x, stream=a).numpy() == 2 * X).all()
    assert gpu.library.sim_allocated() == before
    double.wait()
