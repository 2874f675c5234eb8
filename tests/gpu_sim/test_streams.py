"""Streams, events and graphs: requested order is kept, and missing order is noticed."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import cases
from client import CudaError, Driver, Memory
from test_checks import fails

INT, FLOAT = ctypes.c_int, ctypes.c_float
N = 1000


def axpy(driver: Driver, x: Memory, y: Memory, a: float, stream: Any = None) -> None:
    """Computes y += a x."""
    text = cases.ptx("pointwise")
    driver.launch(text, "axpy", 4, 256, x, y, FLOAT(a), INT(N), stream=stream)


def scale(driver: Driver, x: Memory, y: Memory, a: float, stream: Any = None) -> None:
    """Computes y = a x."""
    text = cases.ptx("pointwise")
    driver.launch(text, "scale", 4, 256, x, y, FLOAT(a), INT(N), stream=stream)


def after(driver: Driver, later: Any, earlier: Any) -> None:
    """Makes the next work in one stream wait for the work in another."""
    event = driver.event()
    driver.call("cuEventRecord", event, earlier)
    driver.call("cuStreamWaitEvent", later, event, 0)
    driver.call("cuEventDestroy", event)


class Work:
    """Computes y = 2 x in one stream, z = y + z in another, then x = z in the first; parts may be
    skipped."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        driver.load(cases.ptx("pointwise"))  # before a capture
        self.x = driver.put(cases.normal(N))
        self.y, self.z = driver.put(np.zeros(N, np.float32)), driver.put(np.ones(N, np.float32))
        self.first, self.second = driver.stream(), driver.stream()

    def run(self, left_out: str = "") -> None:
        scale(self.driver, self.x, self.y, 2, self.first)
        if left_out != "second waits":
            after(self.driver, self.second, self.first)
        axpy(self.driver, self.y, self.z, 1, self.second)
        if left_out != "first waits":
            after(self.driver, self.first, self.second)
        scale(self.driver, self.z, self.x, 1, self.first)
        self.driver.call("cuStreamSynchronize", self.first)

    def check(self, times: int = 1) -> None:
        x, z = cases.normal(N), np.ones(N, np.float32)
        for _ in range(times):
            z = 2 * x + z
            x = z
        assert (self.driver.get(self.x, np.float32, N) == x).all()


@pytest.mark.parametrize("seed", range(8))
def test_order_that_is_asked_for(driver: Driver, seed: int) -> None:
    with driver.watching(seed):
        work = Work(driver)
        for _ in range(3):
            work.run()
        work.check(3)
        assert driver.reports() == ""


@pytest.mark.parametrize("left_out", ["second waits", "first waits"])
@pytest.mark.parametrize("seed", range(8))
def test_a_missing_wait_is_found_in_every_order(driver: Driver, seed: int, left_out: str) -> None:
    work = Work(driver)
    driver.seed(seed)
    driver.set(races=1)
    fails(driver, lambda: work.run(left_out), "LAUNCH_FAILED", "missing order of streams")


def test_a_missing_wait_changes_the_result_in_some_order(driver: Driver) -> None:
    """Late and random orders are real: without race detection some give wrong numbers."""
    wrong = 0
    for seed in range(10):
        driver.seed(seed)
        work = Work(driver)
        work.run("second waits")
        driver.wait()
        x = cases.normal(N)
        wrong += bool((driver.get(work.z, np.float32, N) != 2 * x + 1).any())
    assert 0 < wrong < 10


def test_the_host_must_wait(driver: Driver) -> None:
    """A legacy copy does not wait for non-blocking streams."""
    x, y, stream = driver.put(cases.normal(N)), driver.put(np.zeros(N, np.float32)), driver.stream()
    driver.set(races=1)
    scale(driver, x, y, 2, stream)
    fails(driver, lambda: driver.get(y, np.float32, N), "LAUNCH_FAILED", "missing order")


def test_blocking_streams_wait_for_the_legacy_stream(driver: Driver) -> None:
    for seed in range(5):
        with driver.watching(seed):
            stream = ctypes.c_void_p()
            driver.call("cuStreamCreate", ctypes.byref(stream), 0)
            x, y = driver.put(cases.normal(N)), driver.put(np.zeros(N, np.float32))
            scale(driver, x, y, 2)
            axpy(driver, x, y, 1, stream)
            assert np.allclose(driver.get(y, np.float32, N), 3 * cases.normal(N))
            driver.call("cuStreamDestroy", stream)


def allocate_async(driver: Driver, size: int, stream: Any) -> Memory:
    address = ctypes.c_uint64()
    driver.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), stream)
    return Memory(address.value, size)


def test_allocation_in_stream_order(driver: Driver) -> None:
    for seed in range(5):
        with driver.watching(seed):
            stream, x = driver.stream(), driver.put(cases.normal(N))
            y = allocate_async(driver, 4 * N, stream)
            scale(driver, x, y, 2, stream)
            driver.call("cuMemFreeAsync", ctypes.c_uint64(y.address), stream)
            driver.call("cuStreamSynchronize", stream)
            driver.free(x)


@pytest.mark.parametrize("seed", range(5))
def test_memory_that_another_stream_frees(driver: Driver, seed: int) -> None:
    stream, other, x = driver.stream(), driver.stream(), driver.put(cases.normal(N))
    driver.seed(seed)
    driver.set(races=1)

    def work() -> None:
        y = allocate_async(driver, 4 * N, stream)
        scale(driver, x, y, 2, stream)
        driver.call("cuMemFreeAsync", ctypes.c_uint64(y.address), other)

    with pytest.raises(CudaError) as error:
        work()
        driver.wait()
    assert error.value.name in ("LAUNCH_FAILED", "ILLEGAL_ADDRESS")


@pytest.mark.parametrize("seed", range(5))
def test_free_does_not_wait(driver: Driver, seed: int) -> None:
    stream, x, y = driver.stream(), driver.put(cases.normal(N)), driver.allocate(4 * N)
    driver.seed(seed)
    driver.set(races=1)
    with pytest.raises(CudaError) as error:
        scale(driver, x, y, 2, stream)
        driver.free(y)
        driver.wait()
    assert error.value.name in ("LAUNCH_FAILED", "ILLEGAL_ADDRESS")


def test_pinned_memory_is_read_when_the_copy_runs(driver: Driver) -> None:
    """Pageable memory is read during the call."""
    stream, y = driver.stream(), driver.allocate(4 * N)
    memory = ctypes.c_void_p()
    driver.call("cuMemAllocHost", ctypes.byref(memory), ctypes.c_size_t(4 * N))
    pinned = np.ctypeslib.as_array(ctypes.cast(memory, ctypes.POINTER(ctypes.c_float)), (N,))
    for host, seen in ((np.ones(N, np.float32), 1), (pinned, 2)):
        driver.seed(1)  # as late as possible
        host[:] = 1
        to, at = ctypes.c_uint64(y.address), ctypes.c_void_p(host.ctypes.data)
        driver.call("cuMemcpyHtoDAsync", to, at, ctypes.c_size_t(4 * N), stream)
        host[:] = 2
        driver.call("cuStreamSynchronize", stream)
        assert (driver.get(y, np.float32, N) == seen).all()
        driver.seed(0)
    driver.call("cuMemFreeHost", memory)


def test_events(driver: Driver) -> None:
    driver.seed(1)
    stream, event, x = driver.stream(), driver.event(), driver.put(cases.normal(N))
    assert driver.result("cuEventQuery", event) == 0  # nothing was recorded
    scale(driver, x, x, 2, stream)
    driver.call("cuEventRecord", event, stream)
    assert driver.error_name(driver.result("cuEventQuery", event)) == "NOT_READY"
    assert driver.error_name(driver.result("cuStreamQuery", stream)) == "NOT_READY"
    driver.call("cuEventSynchronize", event)
    assert driver.result("cuEventQuery", event) == 0
    assert driver.result("cuStreamQuery", stream) == 0
    begin, end = ctypes.c_void_p(), ctypes.c_void_p()
    for one in (begin, end):
        driver.call("cuEventCreate", ctypes.byref(one), 0)
    driver.call("cuEventRecord", begin, stream)
    scale(driver, x, x, 2, stream)
    driver.call("cuEventRecord", end, stream)
    driver.wait()
    elapsed = ctypes.c_float()
    driver.call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
    assert elapsed.value > 0


def test_host_functions(driver: Driver) -> None:
    seen: list[int] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(data: int) -> None:
        seen.append(driver.result("cuCtxSynchronize"))

    stream = driver.stream()
    driver.seed(1)
    driver.call("cuLaunchHostFunc", stream, function, None)
    assert seen == []
    driver.call("cuStreamSynchronize", stream)
    assert [driver.error_name(code) for code in seen] == ["NOT_PERMITTED"]


def test_many_streams(driver: Driver) -> None:
    """Slots of destroyed streams are reused once the host knows that their work is done."""
    for _ in range(300):
        stream = driver.stream()
        driver.call("cuStreamSynchronize", stream)
        driver.call("cuStreamDestroy", stream)
    with pytest.raises(CudaError, match="INVALID_HANDLE"):
        driver.call("cuStreamSynchronize", stream)


# Graphs


def begin(driver: Driver, stream: Any, mode: int = 0) -> None:
    driver.call("cuStreamBeginCapture", stream, mode)


def end(driver: Driver, stream: Any) -> ctypes.c_void_p:
    graph = ctypes.c_void_p()
    driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph


def capture(driver: Driver, work: Work) -> ctypes.c_void_p:
    """Returns the work of both streams as an executable graph."""
    begin(driver, work.first)
    scale(driver, work.x, work.y, 2, work.first)
    after(driver, work.second, work.first)
    axpy(driver, work.y, work.z, 1, work.second)
    scale(driver, work.x, work.x, 1, work.first)  # not part of the chain
    after(driver, work.first, work.second)
    scale(driver, work.z, work.x, 1, work.first)
    graph, executable = end(driver, work.first), ctypes.c_void_p()
    flags = ctypes.c_uint64(0)
    driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, flags)
    driver.call("cuGraphDestroy", graph)
    return executable


@pytest.mark.parametrize("seed", range(5))
def test_graphs(driver: Driver, seed: int) -> None:
    work = Work(driver)
    driver.wait()
    executable = capture(driver, work)
    assert (driver.get(work.y, np.float32, N) == 0).all()  # a capture runs nothing
    with driver.watching(seed):
        for _ in range(3):
            driver.call("cuGraphLaunch", executable, work.first)
        driver.call("cuStreamSynchronize", work.first)
        work.check(3)
        assert driver.reports() == ""
    driver.call("cuGraphExecDestroy", executable)


def test_branches_of_a_graph_that_disagree(driver: Driver) -> None:
    work = Work(driver)
    begin(driver, work.first)
    scale(driver, work.x, work.z, 1, work.first)
    after(driver, work.second, work.first)
    scale(driver, work.x, work.y, 2, work.second)
    scale(driver, work.x, work.y, 3, work.first)
    after(driver, work.first, work.second)
    graph, executable = end(driver, work.first), ctypes.c_void_p()
    driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    driver.set(races=1)
    launch = lambda: driver.call("cuGraphLaunch", executable, work.first)  # noqa: E731
    fails(driver, launch, "LAUNCH_FAILED", "missing order of streams")


def capture_fails(driver: Driver, work: Any, code: str, at_end: str = "") -> None:
    stream = driver.stream()
    begin(driver, stream)
    with pytest.raises(CudaError) as error:
        work(stream)
    assert error.value.name == code
    assert "captur" in error.value.reports or code != "STREAM_CAPTURE_UNSUPPORTED"
    with pytest.raises(CudaError) as error:
        end(driver, stream)
    assert error.value.name == (at_end or "STREAM_CAPTURE_INVALIDATED")
    driver.call("cuStreamSynchronize", stream)  # the stream is usable again


def test_what_a_capture_forbids(driver: Driver) -> None:
    x = driver.put(cases.normal(N))
    unsupported = "STREAM_CAPTURE_UNSUPPORTED"
    capture_fails(driver, lambda s: driver.allocate(4), unsupported)
    capture_fails(driver, lambda s: driver.free(x), unsupported)
    capture_fails(driver, lambda s: driver.wait(), unsupported)
    capture_fails(driver, lambda s: driver.call("cuStreamSynchronize", s), unsupported)
    capture_fails(driver, lambda s: driver.call("cuStreamQuery", s), unsupported)
    capture_fails(driver, lambda s: driver.get(x, np.float32, N), unsupported)
    capture_fails(driver, lambda s: driver.load(cases.ptx("tiles") + "\n"), unsupported)
    invalidated = "STREAM_CAPTURE_INVALIDATED"
    capture_fails(driver, lambda s: allocate_async(driver, 4, s), invalidated)

    def copies_out(stream: Any) -> None:
        host = np.empty(N, np.float32)
        to, start = ctypes.c_void_p(host.ctypes.data), ctypes.c_uint64(x.address)
        driver.call("cuMemcpyDtoHAsync", to, start, ctypes.c_size_t(4 * N), stream)

    capture_fails(driver, copies_out, unsupported)


def test_captures_that_are_not_joined(driver: Driver) -> None:
    work = Work(driver)
    begin(driver, work.first)
    after(driver, work.second, work.first)
    axpy(driver, work.y, work.z, 1, work.second)
    with pytest.raises(CudaError, match="UNJOINED"):
        end(driver, work.first)


def test_events_across_captures(driver: Driver) -> None:
    work, event = Work(driver), driver.event()
    driver.call("cuEventRecord", event, work.second)
    waits = lambda stream: driver.call("cuStreamWaitEvent", stream, event, 0)  # noqa: E731
    capture_fails(driver, waits, "STREAM_CAPTURE_ISOLATION")
    begin(driver, work.first)
    driver.call("cuEventRecord", event, work.first)
    for entry in ("cuEventSynchronize", "cuEventQuery"):
        assert driver.error_name(driver.result(entry, event)) == "CAPTURED_EVENT"
    end(driver, work.first)
    with pytest.raises(CudaError, match="CAPTURED_EVENT"):
        waits(work.second)


def test_the_legacy_stream_beside_a_capture(driver: Driver) -> None:
    x, stream = driver.put(cases.normal(N)), ctypes.c_void_p()
    driver.load(cases.ptx("pointwise"))
    driver.call("cuStreamCreate", ctypes.byref(stream), 0)
    begin(driver, stream)
    with pytest.raises(CudaError, match="STREAM_CAPTURE_IMPLICIT"):
        scale(driver, x, x, 2)
    with pytest.raises(CudaError, match="INVALIDATED"):
        end(driver, stream)


def test_a_thread_may_allow_itself_more(driver: Driver) -> None:
    stream, mode = driver.stream(), ctypes.c_int(2)  # relaxed
    begin(driver, stream)
    driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == 0
    x = driver.allocate(4 * N)
    driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    driver.call("cuGraphDestroy", end(driver, stream))
    driver.free(x)
