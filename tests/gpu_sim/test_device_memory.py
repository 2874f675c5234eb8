"""The memory of results is kept for the next step, reused only after all work on it is done, and
released if the device runs out. Races are detected, and each necessary ordering is skipped once."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import CudaError, Driver
from cutback import cuda

ROOT = Path(__file__).parents[2]
N = 3000
ASKS_DRIVER = (
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuCtxSynchronize",
)


@pytest.fixture(autouse=True)
def nothing_kept(gpu: Driver) -> Iterator[None]:
    """Releases kept memory, so that no test finds blocks of another."""
    gpu.wait()
    cuda.release_memory()
    cuda.memory(reset_peak=True)
    yield
    gpu.wait()


@pytest.fixture(scope="module")
def double() -> cb.Step:
    return cb.compile(lambda x: x * 2, argnums=None, device="cuda")


@contextmanager
def calls_none_of(gpu: Driver, *entries: str) -> Iterator[None]:
    """Makes the entries fail if they are called."""
    for entry in entries:
        gpu.fail(entry, 1)
    try:
        yield
        assert [entry for entry in entries if not gpu.is_due(entry)] == []
    finally:
        for entry in entries:
            gpu.fail(entry, 0)


def reads(gpu: Driver, array: cb.DeviceArray, to: Any, stream: ctypes.c_void_p) -> None:
    """Lets another library copy the array on its own stream."""
    source, size = ctypes.c_uint64(array.address), ctypes.c_size_t(4 * N)
    gpu.call("cuMemcpyDtoDAsync", ctypes.c_uint64(to.address), source, size, stream)


def of_many(params: Any) -> Any:
    total = (params[0] * params[0]).sum()
    for p in params[1:]:
        total = total + (p * p).sum()
    return total


@pytest.mark.parametrize("way", ["waits", "stream", "dlpack"])
def test_a_steady_step_asks_the_driver_for_no_memory(gpu: Driver, way: str) -> None:
    """The step has 148 gradients, like the parameters of GPT-2."""
    params = cuda.to_device([np.full(4 + i % 5, i, np.float32) for i in range(148)])
    step = cb.value_and_grad(of_many, device="cuda")
    ours, theirs = gpu.stream(), gpu.stream()
    more = {} if way == "waits" else {"stream": ours.value}

    def run() -> None:
        value, grads = step(params, **more)
        if way == "dlpack":
            held = [g.__dlpack__(stream=theirs.value, max_version=(1, 0)) for g in grads]
            del held
        del value, grads

    for seed in (0, 1, 3):
        gpu.seed(seed)
        run()
        run()
        with calls_none_of(gpu, *ASKS_DRIVER):
            for _ in range(3):
                run()
        gpu.wait()
    _, grads = step(params)
    assert all(np.array_equal(g, 2 * p.numpy()) for g, p in zip(grads, params, strict=True))


def test_counts_on_the_driver_that_runs_nothing() -> None:
    """The benchmark's rows hold with fewer parameters."""
    script = ROOT / "benchmarks" / "gpu" / "bench_memory.py"
    command = [sys.executable, str(script), "--quick", "--no-write"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(out.splitlines()) == 3
    assert not any(entry in out for entry in ASKS_DRIVER), out


# ---- order


def reuse_after_consumer(
    gpu: Driver,
    double: cb.Step,
    streams: list[ctypes.c_void_p],
    at_release: Callable[[], None] = lambda: None,
    at_reuse: Callable[[], None] = lambda: None,
) -> None:
    """Lets a library read a result and release it at once; a later step gets the same block."""
    x = cuda.to_device(np.arange(N, dtype=np.float32))
    ours, theirs = streams
    target = gpu.allocate(4 * N)
    y = double(x, stream=ours.value)
    address = y.address
    capsule = y.__dlpack__(stream=theirs.value, max_version=(1, 0))
    reads(gpu, y, target, theirs)
    del y
    other = double(x, stream=ours.value)  # the library still holds the first
    assert other.address != address
    at_release()
    del capsule
    at_reuse()
    z = double(other, stream=ours.value)
    assert z.address == address
    gpu.wait()
    assert np.array_equal(gpu.get(target, np.float32, N), 2 * x.numpy())
    gpu.free(target)


@pytest.mark.parametrize("seed", range(4))
def test_memory_is_used_again_after_the_consumer(gpu: Driver, double: cb.Step, seed: int) -> None:
    gpu.seed(seed)
    reuse_after_consumer(gpu, double, [gpu.stream(), gpu.stream()])


@pytest.mark.parametrize("entry", ["cuStreamWaitEvent", "cuEventRecord"])
def test_the_order_after_the_consumer_is_needed(gpu: Driver, double: cb.Step, entry: str) -> None:
    """If the mark at the release or the wait for it is skipped, the stand-in reports a write to a
    block that a library still reads."""
    streams, found = [gpu.stream(), gpu.stream()], ""
    at = "at_release" if entry == "cuEventRecord" else "at_reuse"
    for nth in (1, 2, 3):
        gpu.seed(1)
        try:
            skips = {at: lambda nth=nth: gpu.skip(entry, nth)}
            reuse_after_consumer(gpu, double, streams, **skips)
        except CudaError as error:
            found += str(error)
        gpu.fail(entry, 0)
        gpu.recover()
    assert "missing order of streams: read of byte 0 of memory" in found
    assert "after the write by kernel" in found


def test_work_of_another_stream_keeps_a_block(gpu: Driver, double: cb.Step) -> None:
    """The block is not reused while its last step's stream is busy, and is reused afterwards."""
    x = cuda.to_device(np.arange(N, dtype=np.float32))
    a, b = gpu.stream(), gpu.stream()
    double(x, stream=gpu.stream().value)  # for the arena
    gpu.seed(1)  # work runs as late as possible
    y = double(x, stream=a.value)
    address = y.address
    del y
    z = double(x, stream=b.value)
    assert z.address != address
    w = double(x, stream=a.value)
    assert w.address == address  # after its own work
    del w
    gpu.call("cuStreamSynchronize", a)
    v = double(x, stream=b.value)
    assert v.address == address
    assert np.array_equal(v, 2 * x.numpy()) and np.array_equal(z, v)


def test_a_block_without_pending_work_is_taken_without_a_wait(gpu: Driver, double: cb.Step) -> None:
    """The stream need not have used the block before."""
    x = cuda.to_device(np.arange(N, dtype=np.float32))
    other = cb.compile(lambda x: x * 3, argnums=None, device="cuda")
    a, b = gpu.stream(), gpu.stream()
    kept = other(x, stream=b.value)
    y = double(x, stream=a.value)
    y.__dlpack__(stream=gpu.stream().value)
    address = y.address
    del y
    gpu.wait()
    with calls_none_of(gpu, "cuStreamWaitEvent"):
        z = other(x, stream=b.value)
    assert z.address == address and np.array_equal(z, kept)


def test_marks_of_a_block_that_changes_streams_are_dropped_once(
    gpu: Driver, double: cb.Step
) -> None:
    """Otherwise one result's event would be recorded for another one and freed twice."""
    x = cuda.to_device(np.arange(N, dtype=np.float32))
    triple, more = (cb.compile(lambda x, k=k: x * k, argnums=None, device="cuda") for k in (3, 5))
    a, b, c = (gpu.stream().value for _ in range(3))
    gpu.seed(1)  # work runs as late as possible
    y = double(x, stream=a)
    address = y.address
    last = double(x, stream=a)  # now only y has the mark of the previous run
    del y
    gpu.wait()
    z = triple(x, stream=b)
    assert z.address == address
    later = double(x, stream=a)
    assert np.array_equal(more(z, stream=c), 15 * x.numpy())
    del last, later, z
    gpu.wait()
    assert cuda.release_memory() >= 4 * 4 * N


@pytest.mark.parametrize("entry", ["cuEventCreate", "cuEventRecord"])
def test_a_mark_that_fails_at_the_release(gpu: Driver, double: cb.Step, entry: str) -> None:
    """If the mark fails, the block waits for the whole device, and no event leaks."""
    x = cuda.to_device(np.arange(N, dtype=np.float32))
    theirs = gpu.stream()
    y, z = double(x), double(x)
    y.__dlpack__(stream=theirs.value)
    z.__dlpack__(stream=theirs.value)
    gpu.fail(entry, 1)
    del y
    assert not gpu.is_due(entry)
    if entry == "cuEventRecord":
        with calls_none_of(gpu, "cuEventCreate"):
            del z
    assert np.array_equal(double(x), 2 * x.numpy())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", ["dlpack", "interface", "stream of a thread"])
def test_users_on_unknown_streams(gpu: Driver, double: cb.Step, seed: int, way: str) -> None:
    """One wait for the device covers all blocks of unknown streams, and happens only when one of
    them is needed."""
    gpu.seed(seed)
    x = cuda.to_device(np.arange(N, dtype=np.float32))
    ours, theirs = gpu.stream(), gpu.stream()
    targets = [gpu.allocate(4 * N) for _ in range(3)]
    results = [double(x, stream=ours.value) for _ in range(3)]
    addresses = {y.address for y in results}
    double.wait()
    for y, target in zip(results, targets, strict=True):
        if way == "dlpack":
            y.__dlpack__(stream=-1)
        elif way == "stream of a thread":
            y.__dlpack__(stream=2)
        else:
            assert y.__cuda_array_interface__["data"][0] == y.address
        reads(gpu, y, target, theirs)
    with calls_none_of(gpu, *ASKS_DRIVER):
        del results, y
    gpu.fail("cuCtxSynchronize", 2)
    again = [double(x, stream=ours.value) for _ in range(3)]
    assert gpu.is_due("cuCtxSynchronize")
    gpu.fail("cuCtxSynchronize", 0)
    assert {y.address for y in again} == addresses
    gpu.wait()
    for target in targets:
        assert np.array_equal(gpu.get(target, np.float32, N), 2 * x.numpy())
        gpu.free(target)


def test_streams_that_are_gone(gpu: Driver, double: cb.Step) -> None:
    """The stream that made a result is gone, and so is the one named by a library."""
    x = cuda.to_device(np.arange(N, dtype=np.float32))
    gpu.seed(1)
    ours, theirs, target = gpu.stream(), gpu.stream(), gpu.allocate(4 * N)
    y = double(x, stream=ours.value)
    capsule = y.__dlpack__(stream=theirs.value)
    reads(gpu, y, target, theirs)
    for stream in (ours, theirs):
        gpu.streams.remove(stream)
        gpu.call("cuStreamDestroy", stream)
    other = double(y, stream=gpu.stream().value)
    assert np.array_equal(other, 4 * x.numpy()) and np.array_equal(y, 2 * x.numpy())
    del capsule, y, other
    z = [double(x) for _ in range(2)]
    assert all(np.array_equal(a, 2 * x.numpy()) for a in z)
    gpu.wait()
    assert np.array_equal(gpu.get(target, np.float32, N), 2 * x.numpy())
    gpu.free(target)


def test_more_streams_than_are_remembered(gpu: Driver, double: cb.Step) -> None:
    x = cuda.to_device(np.arange(N, dtype=np.float32))
    for seed in range(3):
        gpu.seed(seed)
        targets = [gpu.allocate(4 * N) for _ in range(6)]
        y = double(x)
        for target in targets:
            theirs = gpu.stream()
            y.__dlpack__(stream=theirs.value)
            reads(gpu, y, target, theirs)
        del y
        z = double(x)
        assert np.array_equal(z, 2 * x.numpy())
        gpu.wait()
        for target in targets:
            assert np.array_equal(gpu.get(target, np.float32, N), 2 * x.numpy())
        gpu.free(*targets)


def test_a_release_in_the_middle_of_a_capture(gpu: Driver, double: cb.Step) -> None:
    """At that time the stream named by the library is being captured; the capture stays intact."""
    x = cuda.to_device(np.arange(N, dtype=np.float32))
    theirs, graph = gpu.stream(), ctypes.c_void_p()
    target = gpu.allocate(4 * N)
    y = double(x)
    capsule = y.__dlpack__(stream=theirs.value)
    gpu.call("cuStreamBeginCapture", theirs, 0)
    gpu.call("cuMemsetD8Async", ctypes.c_uint64(target.address), 1, ctypes.c_size_t(8), theirs)
    del capsule, y
    z = double(x)
    gpu.call("cuStreamEndCapture", theirs, ctypes.byref(graph))
    assert graph.value and np.array_equal(z, 2 * x.numpy())
    gpu.call("cuGraphDestroy", graph)
    gpu.free(target)


# ---- amounts


def test_bytes_are_reported_and_given_back(gpu: Driver, double: cb.Step) -> None:
    x = cuda.to_device(np.ones(N, np.float32))
    before = cuda.memory(reset_peak=True)
    assert before.kept == 0 and before.peak == before.in_use >= 4 * N
    y, z = double(x), double(x)
    del y
    now = cuda.memory()
    assert now.in_use == before.in_use + 4 * N and now.kept == 4 * N
    assert now.peak == before.in_use + 8 * N
    y = double(x)  # reuses the kept block
    assert cuda.memory().in_use == before.in_use + 8 * N and cuda.memory().kept == 0
    del y
    allocated = gpu.library.sim_allocated()
    assert cuda.release_memory() == 4 * N
    assert gpu.library.sim_allocated() == allocated - 4 * N
    assert cuda.memory(reset_peak=True).kept == 0 and cuda.memory().peak == now.in_use
    assert cuda.release_memory() == 0
    assert np.array_equal(z, 2 * x.numpy())


def test_sizes_that_are_a_little_smaller_fit(gpu: Driver) -> None:
    """A request gets a block of exactly its size if there is one, otherwise one that is less than
    an eighth larger."""
    large, fitting = (cuda.to_device(np.ones(n, np.float32)) for n in (N, N - 9))
    first, second = large.address, fitting.address
    del large, fitting
    a, b, c = (cuda.to_device(np.ones(n, np.float32)) for n in (N - 9, N - 9, N - 9))
    assert a.address == second and b.address == first and c.address not in (first, second)
    del b
    for n in (N // 2, N * 13 // 15):
        assert cuda.to_device(np.ones(n, np.float32)).address != first
    larger = cuda.to_device(np.ones(N * 4 // 3, np.float32)).address
    assert cuda.to_device(np.ones(N - 40, np.float32)).address != larger


@pytest.mark.parametrize("mode", [0, 1])
def test_a_thread_keeps_its_mode_of_captures(gpu: Driver, mode: int) -> None:
    """Allocating switches to relaxed mode, and restores the previous mode."""

    def exchange(new: int) -> int:
        value = ctypes.c_int(new)
        gpu.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(value))
        return value.value

    exchange(mode)
    array = cuda.to_device(np.ones(N, np.float32))
    assert exchange(mode) == mode
    del array
    cuda.release_memory()
    assert exchange(0) == mode


def test_a_device_that_is_full_costs_no_memory_of_the_host(gpu: Driver) -> None:
    """Each attempt allocates a host block for its request, and frees it."""

    class Heap(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in (*"abcdefg", "used", "free", "top")]

    count = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if count is None:
        pytest.skip("this C library does not count its memory")
    count.restype = Heap

    def tries(n: int) -> int:
        for _ in range(n):
            with pytest.raises(MemoryError):
                cuda.to_device(array)
        return int(count().used)

    array = np.ones(N, np.float32)
    gpu.set(memory=gpu.library.sim_allocated() + 64)
    before = tries(10)
    assert tries(400) - before < 400 * 50


def test_kept_memory_is_given_back_when_there_is_no_more(gpu: Driver, double: cb.Step) -> None:
    """The kept memory is used for another array, and for another program's memory."""
    x = cuda.to_device(np.ones(N, np.float32))
    kept = [cuda.to_device(np.ones(50_000, np.float32)) for _ in range(2)]
    del kept
    gpu.set(memory=gpu.library.sim_allocated() + 1000)
    try:
        large = cuda.to_device(np.ones(80_000, np.float32))
        assert cuda.memory().kept == 0
        del large
        gpu.set(memory=gpu.library.sim_allocated() + 1000)
        wide = cb.compile(
            lambda x: cb.exp(x) / cb.exp(x).sum() + cb.exp(x).max(), argnums=None, device="cuda"
        )
        y = wide(x)
        assert y.shape == (N,)
        with pytest.raises(MemoryError, match="OUT_OF_MEMORY"):
            cuda.to_device(np.ones(1_000_000, np.float32))
    finally:
        gpu.set(memory=8 << 30)
    assert np.array_equal(double(x), 2 * x.numpy())


def test_the_last_kept_byte_is_given_back(gpu: Driver) -> None:
    one = cuda.to_device(np.ones(1, np.uint8))
    del one
    assert cuda.memory().kept == 1
    gpu.fail("cuMemAlloc_v2", 1, 2)  # out of memory, once
    eight = cuda.to_device(np.ones(8, np.uint8))
    assert np.array_equal(eight, np.ones(8)) and cuda.memory().kept == 0


# ---- threads, forks


def test_threads_with_streams_of_their_own(gpu: Driver) -> None:
    """Each creates and releases results while the others do the same."""
    gpu.seed(2)
    wrong: list[Any] = []
    steps = [cb.compile(lambda x: x * 2 + 1, argnums=None, device="cuda") for _ in range(3)]
    data = [cuda.to_device(np.full(N, k, np.float32)) for k in range(3)]
    for step, x in zip(steps, data, strict=True):
        step(x)
    streams = [gpu.stream().value for _ in range(3)]

    def work(k: int) -> None:
        try:
            for i in range(12):
                y = steps[k](data[k], stream=streams[k] if i % 3 else None)
                z = steps[k](y, stream=streams[k])
                del y
                if not np.array_equal(z, np.full(N, 4 * k + 3)):
                    wrong.append((k, i))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_lets_go_of_arrays(gpu: Driver, double: cb.Step) -> None:
    """The child ends normally, even if another thread was in the pool, and the parent continues."""
    x = cuda.to_device(np.ones(N, np.float32))
    y, lent = double(x), double(x)
    lent.__dlpack__(stream=gpu.stream().value)
    child = os.fork()
    if child == 0:
        if cuda.memory().kept != 0:
            os._exit(8)
        del y, lent
        cuda.memory()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    kept = cuda.memory().kept
    del y, lent
    assert cuda.memory().kept == kept + 8 * N
    assert np.array_equal(double(x), 2 * x.numpy())
