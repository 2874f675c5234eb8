"""Steps and shapes that share memory on a device: runs on other streams wait for earlier ones, and
a bound counts blocks and results there. With race detection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback import cuda

SIZES = (3000, 500, 9000)


@pytest.fixture(autouse=True)
def nothing_held(gpu: Driver) -> Iterator[None]:
    gpu.wait()
    cb.release_memory()
    cuda.release_memory()
    yield
    gpu.wait()


def share(x: Any) -> Any:
    """Computes a function whose intermediates are in the arena."""
    y = cb.exp(x)
    return y / y.sum()


def square(x: Any) -> Any:
    y = cb.sin(x)
    return y * y.mean()


def xs() -> list[Any]:
    return [np.linspace(-1, 1, n, dtype=np.float32) for n in SIZES]


def test_shapes_and_steps_on_several_streams(gpu: Driver) -> None:
    memory = cb.Memory()
    steps = [cb.compile(f, argnums=None, device="cuda", memory=memory) for f in (share, square)]
    apart = [cb.compile(f, argnums=None, device="cuda") for f in (share, square)]
    expected = [[f(x) for x in cuda.to_device(xs())] for f in apart]
    streams = [gpu.stream() for _ in range(3)]
    for step in steps:
        for x in cuda.to_device(xs()):
            step.prepare(x)
    for turn in range(2):
        given = cuda.to_device(xs())
        found = [
            (k, i, steps[k](given[i], stream=streams[(i + k + turn) % 3].value))
            for i in (0, 2, 1)
            for k in (0, 1)
        ]
        for k, i, y in found:
            assert y.numpy().tobytes() == expected[k][i].numpy().tobytes()
    programs = [p for s in steps for p in s._known._programs.values()]
    largest = max(p.run.planned.arena_bytes for p in programs)
    assert sum(memory.held().arenas.values()) == largest > 4 * SIZES[1]
    before = gpu.library.sim_allocated()
    assert memory.release() == largest
    assert gpu.library.sim_allocated() == before - largest
    assert gpu.reports() == ""


def test_a_block_that_is_released_or_grows_while_work_is_pending(gpu: Driver) -> None:
    memory = cb.Memory()
    step = cb.compile(share, argnums=None, device="cuda", memory=memory)
    expected = [step(x).numpy().tobytes() for x in cuda.to_device(xs())]
    given = cuda.to_device(xs())
    one, two = gpu.stream(), gpu.stream()
    memory.release()
    small = step(given[1], stream=one.value)
    large = step(given[2], stream=two.value)  # frees the block used by the first
    assert memory.release() > 0
    middle = step(given[0], stream=one.value)
    for i, y in ((1, small), (2, large), (0, middle)):
        assert y.numpy().tobytes() == expected[i]


def test_a_full_device(gpu: Driver) -> None:
    step = cb.compile(share, argnums=None, device="cuda", memory=(memory := cb.Memory()))
    small, large = cuda.to_device([np.ones(500, np.float32), np.ones(9000, np.float32)])
    for x in (small, large):
        expected = step(x).numpy()
    memory.release()
    step(small)
    cuda.release_memory()
    gpu.fail("cuMemAlloc_v2", 2, 2)  # the first one is for the result
    with pytest.raises(MemoryError, match="no memory for the arena"):
        step(large)
    gpu.fail("cuMemAlloc_v2", 0)
    assert sum(memory.held().arenas.values()) == 0
    assert np.array_equal(step(large).numpy(), expected)


def test_a_bound_counts_what_is_on_the_device(gpu: Driver) -> None:
    step = cb.compile(share, argnums=None, device="cuda")
    (x,) = cuda.to_device([np.ones(9000, np.float32)])
    expected = step(x).numpy()
    cuda.release_memory()
    with cb.memory(cb.memory().total + 2 * expected.nbytes) as memory:
        first = step(x)
        with pytest.raises(cb.MemoryLimitError, match="results of step `share`"):
            kept = [step(x) for _ in range(4)]
        del first
        kept = [step(x)]
        assert np.array_equal(kept[0].numpy(), expected)
        assert memory.held().results > 0


def test_shapes_share_copies_of_arguments_on_the_host(gpu: Driver) -> None:
    """Shapes share copies of the parameters in particular, which have the same size for every
    shape."""
    params = np.linspace(-1, 1, 40_000, dtype=np.float32)
    optimizer = cb.optim.AdamW(lr=0.1)
    step = cb.compile(lambda p, x: (p * p).sum() * x.sum(), optimizer=optimizer, device="cuda")
    twin, same = cb.compile(lambda p, x: (p * p).sum() * x.sum(), optimizer=cb.optim.AdamW(lr=0.1),
                            backend="debug"), params.copy()  # fmt: skip
    sizes = (50, 10, 40)
    for n in sizes:
        step(params, np.ones(n, np.float32))
        twin(same, np.ones(n, np.float32))
        after = gpu.library.sim_allocated()
        if n == sizes[0]:
            first = after
    assert after - first < params.nbytes / 2
    assert np.allclose(params, same, atol=1e-6)
    step.clear()
    gpu.wait()
    assert gpu.library.sim_allocated() < first - 3 * params.nbytes
