"""Device times of calls by events of the driver, and the host time it takes to submit them.

clock = DeviceClock()
times = clock.measure({"ours": Candidate(lambda: step(x, stream=clock.stream))})
print(times["ours"].device_ms, times["ours"].host_ms)

All candidates run in turns on one stream. Before each call, zeros are written over four times the
size of the L2 cache, so no call finds its inputs there. This is repeated until it takes the device
longer than the host needs to submit the call: then the device never waits for the host between two
kernels, and the events show the device's time even if the host is slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import items

ROUNDS = 20
WARMUP = 2
MOST_SECONDS = 3.0  # host time for the calls of one candidate
MULTIPROCESSORS, L2_BYTES = 16, 38  # attributes of cuDeviceGetAttribute
NON_BLOCKING = 1  # a stream that does not wait for the legacy stream
VERSIONED = {  # entries whose exported name ends in _v2
    "cuCtxPushCurrent", "cuMemAlloc", "cuMemFree", "cuMemAllocHost", "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
}  # fmt: skip


def is_small() -> bool:
    """True if sizes should be small: on the stand-in driver, whose times mean nothing."""
    return bool(os.environ.get("CUTBACK_GPU_ROWS_SMALL"))


class DriverError(RuntimeError):
    """A driver call failed, or the driver lacks the function."""


class Driver:
    """libcuda by ctypes, in the primary context of the first device, as cutback and PyTorch use it.

    Raises:
        DriverError: if a call fails. OSError: if there is no driver.
    """

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("CUTBACK_CUDA_DRIVER") or "libcuda.so.1")
        self.device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxPushCurrent", context)

    def call(self, entry: str, *arguments: Any) -> None:
        """Calls an entry of the driver."""
        function = getattr(self.library, f"{entry}_v2" if entry in VERSIONED else entry, None)
        if function is None:
            raise DriverError(f"the driver has no {entry}")
        if code := function(*arguments):
            name = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(name))
            raise DriverError(f"{entry}: {(name.value or b'?').decode()} ({code})")

    def attribute(self, number: int) -> int:
        """Returns an attribute of the device (cuDeviceGetAttribute)."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Allocates device memory."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def event(self) -> ctypes.c_void_p:
        """Returns an event with timing."""
        made = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(made), 0)
        return made


def nothing() -> None:
    """Does nothing."""


class Candidate(NamedTuple):
    """A timed candidate.

    ``run`` submits work to the clock's stream and returns. ``before`` submits work that is not
    timed. ``after`` is called when the work is done. ``own_ms`` returns the device time if only a
    part of ``run`` counts; without it, the time between events around ``run`` is taken.
    """

    run: Callable[[], Any]
    before: Callable[[], Any] = nothing
    after: Callable[[], Any] = nothing
    own_ms: Callable[[], float] | None = None


class Times(NamedTuple):
    """Milliseconds of a candidate: medians over the rounds, and the least and most device time."""

    device_ms: float
    host_ms: float
    least_ms: float
    most_ms: float


class DeviceClock:
    """Measures candidates on ``stream``; ``torch_stream()`` gives it to PyTorch."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.driver = Driver()
        self.rounds = 2 if is_small() else rounds
        stream = ctypes.c_void_p()
        self.driver.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        assert stream.value is not None
        self.stream: int = stream.value
        l2 = self.driver.attribute(L2_BYTES) or 64 << 20
        self.flush_bytes = 1 << 12 if is_small() else 4 * l2
        self._memory = self.driver.allocate(self.flush_bytes)
        self._begin, self._end = self.driver.event(), self.driver.event()
        self._flush_ms = 0.0
        self._flush_ms = max(self._once(lambda: self.flush(4))[0] / 4, 1e-3)

    def flush(self, times: int = 1) -> None:
        """Overwrites the L2 cache with zeros."""
        size, stream = ctypes.c_size_t(self.flush_bytes), ctypes.c_void_p(self.stream)
        for _ in range(times):
            self.driver.call("cuMemsetD8Async", self._memory, ctypes.c_ubyte(0), size, stream)

    def record(self, event: ctypes.c_void_p) -> None:
        """Puts an event on the stream."""
        self.driver.call("cuEventRecord", event, ctypes.c_void_p(self.stream))

    def wait(self) -> None:
        """Waits until the stream is empty."""
        self.driver.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def _once(self, run: Callable[[], Any]) -> tuple[float, float]:
        """Returns (device ms, host ms) of one call."""
        self.record(self._begin)
        begin = time.perf_counter()
        result = run()
        host = 1e3 * (time.perf_counter() - begin)
        self.record(self._end)
        self.driver.call("cuEventSynchronize", self._end)
        del result  # its memory may be reused only from here on
        return self.elapsed_ms(self._begin, self._end), host

    def elapsed_ms(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Returns the milliseconds between two events that the device has reached."""
        elapsed = ctypes.c_float()
        self.driver.call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
        return float(elapsed.value)

    def _round(self, candidate: Candidate, fills: int) -> tuple[float, float]:
        candidate.before()
        self.flush(fills)
        device, host = self._once(candidate.run)
        candidate.after()
        return (candidate.own_ms() if candidate.own_ms else device), host

    def _fills(self, host_ms: float) -> int:
        """Returns the number of flushes that take the device longer than the host needs for a call.
        It is limited, because a full driver queue would block the host."""
        return 1 if is_small() else min(2 + int(1.5 * host_ms / self._flush_ms), 300)

    def measure(self, candidates: Mapping[str, Candidate]) -> dict[str, Times]:
        """Returns times by name. The order of the candidates is reversed after each round. If calls
        take the host long, there are fewer rounds, but at least three."""
        fills, slowest = {}, 1e-3
        for name, candidate in candidates.items():
            for _ in range(WARMUP):
                _, host = self._round(candidate, 1)
            fills[name] = self._fills(host)
            slowest = max(slowest, host)
        rounds = min(self.rounds, max(3, int(1e3 * MOST_SECONDS / slowest)))
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
        for turn in range(rounds):
            for name in reversed(candidates) if turn % 2 else candidates:
                rows[name].append(self._round(candidates[name], fills[name]))
        found = {}
        for name, measured in rows.items():
            device, host_ms = ([row[k] for row in measured] for k in range(2))
            found[name] = Times(
                statistics.median(device), statistics.median(host_ms), min(device), max(device)
            )
        return found

    @contextlib.contextmanager
    def torch_stream(self) -> Iterator[None]:
        """Makes the clock's stream PyTorch's current stream."""
        import torch

        if not torch.cuda.is_available():
            yield
            return
        with torch.cuda.stream(torch.cuda.ExternalStream(self.stream)):
            yield


def torch_with_gpu() -> tuple[Any, str]:
    """Returns (PyTorch, ""), or (None, the reason why it cannot be used).
    CUTBACK_GPU_TORCH_ON_CPU=1 lets it run on the CPU next to the stand-in, to test its part of the
    scripts."""
    try:
        import torch
    except Exception as error:
        return None, items.no_torch(error)
    if torch.cuda.is_available() or (is_small() and os.environ.get("CUTBACK_GPU_TORCH_ON_CPU")):
        return torch, ""
    return None, f"PyTorch {torch.__version__} sees no GPU"


def torch_device(torch: Any) -> str:
    """Returns the device of PyTorch's part."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def tensor(torch: Any, array: Any) -> Any:
    """Returns PyTorch's view of a device array, or a copy if PyTorch has no GPU."""
    if torch.cuda.is_available():
        return torch.from_dlpack(array)
    host = array.numpy()
    if array.core_dtype == "bf16":
        return torch.from_numpy(host.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(host)


def about() -> dict[str, Any]:
    """Returns the card and the versions recorded with a row."""
    from importlib.metadata import PackageNotFoundError, version

    import cutback
    from cutback import cuda

    try:
        theirs = version("torch")
    except PackageNotFoundError:
        theirs = "absent"
    return {"gpu": cuda.prepare(), "cutback": cutback.__version__, "torch": theirs}
