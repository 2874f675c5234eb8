"""The driver API from Python: the few calls of a program that launches kernels, on the stand-in.

``Driver()`` builds the stand-in if necessary, opens it and makes a context. Arrays go in with
``put`` and come back with ``get``; an entry that fails raises ``CudaError`` with the driver's name
for it."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "gpu_sim"
LIBRARY = BUILD / "libcuda.so.1"


class CudaError(Exception):
    """An entry failed; ``name`` is the driver's name for the error, without CUDA_ERROR_."""

    def __init__(self, entry: str, name: str, reports: str) -> None:
        super().__init__(f"{entry}: {name}\n{reports}")
        self.name, self.reports = name, reports


@functools.cache
def build() -> Path:
    """Returns the stand-in's path. A process builds it once; concurrent processes wait."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        steps = [["cmake", "--build", str(BUILD)]]
        if not (BUILD / "CMakeCache.txt").exists():
            steps.insert(0, ["cmake", "-S", str(HERE), "-B", str(BUILD), "-DCB_WERROR=ON"])
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(step)}:\n{done.stdout}\n{done.stderr}")
    return LIBRARY


class Memory:
    """Device memory; ``address`` may be shifted to refer to a part of it."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size

    def __add__(self, offset: int) -> Memory:
        return Memory(self.address + offset, self.size - offset)


class Driver:
    """The stand-in, opened once per process, with a current context."""

    _opened: ctypes.CDLL | None = None
    modules: ClassVar[dict[str, ctypes.c_void_p]] = {}
    streams: ClassVar[list[ctypes.c_void_p]] = []

    def __init__(self) -> None:
        if Driver._opened is None:
            Driver._opened = ctypes.CDLL(str(build()))
            Driver._opened.sim_set(b"quiet", ctypes.c_long(1))
            Driver._opened.sim_entry.restype = ctypes.c_char_p
            Driver._opened.sim_allocated.restype = ctypes.c_size_t
            Driver._opened.sim_leave_out.restype = ctypes.c_ulong
        self.library = Driver._opened
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def result(self, entry: str, *arguments: Any) -> int:
        """Returns the result code of an entry; a name without a version means the newest
        version."""
        for name in (f"{entry}_v2", entry):
            if hasattr(self.library, name):
                return int(getattr(self.library, name)(*arguments))
        raise AttributeError(entry)

    def call(self, entry: str, *arguments: Any) -> None:
        """Calls an entry; raises if it fails."""
        code = self.result(entry, *arguments)
        if code:
            raise CudaError(entry, self.error_name(code), self.reports())

    def error_name(self, code: int) -> str:
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"?").decode().removeprefix("CUDA_ERROR_")

    def reports(self) -> str:
        """Returns and clears the stand-in's reports."""
        text = ctypes.create_string_buffer(1 << 16)
        self.library.sim_reports(text, ctypes.c_size_t(len(text)))
        return text.value.decode()

    def set(self, **settings: int) -> None:
        for name, value in settings.items():
            assert self.library.sim_set(name.encode(), ctypes.c_long(value)) == 0, name

    def seed(self, seed: int) -> None:
        self.library.sim_seed(ctypes.c_uint(seed))

    def recover(self) -> str:
        """Makes a failed context usable again; returns the reports."""
        self.library.sim_recover()
        return self.reports()

    def fail(self, entry: str, nth: int = 1, code: int = 999) -> None:
        assert self.library.sim_fail(entry.encode(), nth, code) == 0, entry

    def skip(self, entry: str, nth: int = 1) -> None:
        """Makes the n-th call from now succeed without doing anything."""
        assert self.library.sim_skip(entry.encode(), nth) == 0, entry

    def leave_out(self, kernel: str = "", line: int = 0) -> int:
        """Makes threads skip the barrier, wait or fence in that line of a kernel's PTX from now on;
        without a line, they skip nothing. Returns how often the previous one was skipped."""
        return int(self.library.sim_leave_out(kernel.encode(), ctypes.c_uint(line)))

    def is_due(self, entry: str) -> bool:
        """True if the last failure or skip ordered for the entry has not happened yet."""
        return bool(self.library.sim_is_due(entry.encode()))

    # Memory

    def allocate(self, size: int) -> Memory:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc", ctypes.byref(address), ctypes.c_size_t(size))
        return Memory(address.value, size)

    def free(self, *memories: Memory) -> None:
        for memory in memories:
            self.call("cuMemFree", ctypes.c_uint64(memory.address))

    def put(self, array: np.ndarray[Any, Any]) -> Memory:
        """Allocates memory with an array's bytes."""
        array = np.ascontiguousarray(array)
        memory = self.allocate(array.nbytes)
        to, size = ctypes.c_uint64(memory.address), ctypes.c_size_t(array.nbytes)
        self.call("cuMemcpyHtoD", to, ctypes.c_void_p(array.ctypes.data), size)
        return memory

    def get(self, memory: Memory, dtype: Any, shape: int | tuple[int, ...]) -> np.ndarray[Any, Any]:
        array = np.empty(shape, dtype)
        start, size = ctypes.c_uint64(memory.address), ctypes.c_size_t(array.nbytes)
        self.call("cuMemcpyDtoH", ctypes.c_void_p(array.ctypes.data), start, size)
        return array

    # Kernels

    def load(self, ptx: str) -> ctypes.c_void_p:
        """Returns a library from PTX; each text is loaded once."""
        if ptx not in self.modules:
            library = ctypes.c_void_p()
            nothing = (None, None, 0, None, None, 0)
            self.call("cuLibraryLoadData", ctypes.byref(library), ptx.encode(), *nothing)
            self.modules[ptx] = library
        return self.modules[ptx]

    def function(self, ptx: str, name: str) -> ctypes.c_void_p:
        kernel, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuLibraryGetKernel", ctypes.byref(kernel), self.load(ptx), name.encode())
        self.call("cuKernelGetFunction", ctypes.byref(function), kernel)
        return function

    def launch(
        self,
        ptx: str,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Any,
        shared: int = 0,
        stream: ctypes.c_void_p | None = None,
    ) -> None:
        """Launches a kernel; arguments are Memory, or ctypes numbers."""
        values = [ctypes.c_uint64(a.address) if isinstance(a, Memory) else a for a in arguments]
        places = (ctypes.c_void_p * (len(values) + 1))(*(ctypes.addressof(v) for v in values))
        shape = []
        for extents in (grid, block):
            listed = (extents,) if isinstance(extents, int) else tuple(extents)
            shape += [*listed, *(1,) * (3 - len(listed))]
        self.call("cuLaunchKernel", self.function(ptx, name), *shape, shared, stream, places, None)

    def wait(self) -> None:
        self.call("cuCtxSynchronize")

    # Streams

    def stream(self) -> ctypes.c_void_p:
        """Returns a stream that does not synchronize with the legacy one."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.streams.append(stream)
        return stream

    def end_streams(self) -> None:
        """Destroys the streams made so far, except those that a test destroyed itself."""
        while self.streams:
            self.result("cuStreamDestroy", self.streams.pop())

    def event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 2)
        return event

    @contextmanager
    def watching(self, seed: int = 0) -> Iterator[None]:
        """Looks for races, in the order given by a seed."""
        self.seed(seed)
        self.set(races=1)
        try:
            yield
        finally:
            self.recover()
            self.seed(0)
            self.set(races=0)
