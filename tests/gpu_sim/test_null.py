"""The null driver: every entry that the backend uses works, calls are counted and recorded, and a
training step runs on it from beginning to end."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import nvrtc
from client import BUILD, Driver
from null_driver import NullDriver, build

HERE = Path(__file__).parent
ENTRIES = HERE.parents[1] / "cuda" / "cu_entries.def"


@pytest.fixture
def null() -> NullDriver:
    driver = NullDriver()
    driver.set(log=1, memory=80 << 30, capability=90, version=13000, registers=32)
    driver.clear()
    return driver


def result(driver: NullDriver, entry: str, *arguments: object) -> int:
    return int(getattr(driver.library, entry)(*arguments))


def allocate(driver: NullDriver, size: int, *more: object, entry: str = "cuMemAlloc_v2") -> int:
    address = ctypes.c_uint64()
    assert result(driver, entry, ctypes.byref(address), ctypes.c_size_t(size), *more) == 0
    return address.value


def test_has_every_entry_that_the_backend_takes(null: NullDriver) -> None:
    wanted = re.findall(r"^DRIVER\((\d+), (\w+)", ENTRIES.read_text(), re.MULTILINE)
    assert len(wanted) > 30
    for since, name in wanted:
        found = ctypes.c_void_p()
        arguments = (name.encode(), ctypes.byref(found), int(since), ctypes.c_uint64(0), None)
        assert result(null, "cuGetProcAddress_v2", *arguments) == 0, name
        assert found.value


def test_no_entry_falls_over_zeros(null: NullDriver) -> None:
    """Every entry returns an error code of the API for null pointers."""
    zeros = [ctypes.c_void_p(0)] * 11
    for name in null.entries():
        assert 0 <= result(null, name, *zeros) < 1000, name
    assert set(null.counts()) == set(null.entries())


def test_counts_and_log(null: NullDriver) -> None:
    first = allocate(null, 1000)
    assert result(null, "cuMemsetD8Async", ctypes.c_uint64(first), 1, ctypes.c_size_t(8), None) == 0
    assert result(null, "cuMemFree_v2", ctypes.c_uint64(first)) == 0
    assert null.calls("cuMemAlloc") == 1 and null.calls("cuMemFree") == 1
    assert null.counts() == {"cuMemAlloc_v2": 1, "cuMemFree_v2": 1, "cuMemsetD8Async": 1}
    made, _, freed = null.events()
    assert (made.entry, made.address, made.bytes) == ("cuMemAlloc_v2", first, 1000)
    assert (freed.entry, freed.address, freed.bytes, freed.result) == (
        "cuMemFree_v2", first, 1000, 0)  # fmt: skip
    assert made.begin_ns <= freed.begin_ns and null.seconds > 0
    null.clear()
    assert null.counts() == {} and null.events() == [] and null.seconds == 0
    null.set(log=0)
    allocate(null, 10)
    assert null.calls("cuMemAlloc") == 1 and null.events() == []


def test_bytes_and_reuse(null: NullDriver) -> None:
    before = null.live_bytes
    blocks = [allocate(null, size) for size in (1, 512, 513, 1 << 30)]
    assert len(set(blocks)) == 4
    assert null.live_bytes - before == 1 + 512 + 513 + (1 << 30)
    assert result(null, "cuMemFree_v2", ctypes.c_uint64(blocks[3])) == 0
    assert null.peak_bytes - null.live_bytes == 1 << 30
    assert allocate(null, (1 << 30) - 5) == blocks[3]  # the address is reused
    assert result(null, "cuMemFree_v2", ctypes.c_uint64(blocks[0] + 1)) == 1
    for block in blocks:
        assert result(null, "cuMemFree_v2", ctypes.c_uint64(block)) == 0
        assert result(null, "cuMemFree_v2", ctypes.c_uint64(block)) == 1
    null.set(memory=before + 100)
    refused = ctypes.c_uint64()
    assert result(null, "cuMemAlloc_v2", ctypes.byref(refused), ctypes.c_size_t(101)) == 2
    allocate(null, 100)


def test_pool(null: NullDriver) -> None:
    pool, number = ctypes.c_void_p(), ctypes.c_uint64()
    assert result(null, "cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0) == 0

    def attribute(which: int) -> int:
        assert result(null, "cuMemPoolGetAttribute", pool, which, ctypes.byref(number)) == 0
        return number.value

    reserved, used = 5, 7
    kept = ctypes.c_uint64(600)
    assert result(null, "cuMemPoolSetAttribute", pool, 4, ctypes.byref(kept)) == 0
    blocks = [allocate(null, 1000, None, entry="cuMemAllocAsync") for _ in range(2)]
    assert attribute(used) == 2000 and attribute(reserved) == 2000
    for block in blocks:
        assert result(null, "cuMemFreeAsync", ctypes.c_uint64(block), None) == 0
    assert attribute(used) == 0 and attribute(reserved) == 2000
    assert result(null, "cuCtxSynchronize") == 0 and attribute(reserved) == 600
    assert result(null, "cuMemPoolTrimTo", pool, ctypes.c_size_t(0)) == 0
    assert attribute(reserved) == 0


def test_kernels(null: NullDriver) -> None:
    library, function, value = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    nothing = (None, None, 0, None, None, 0)
    assert result(null, "cuLibraryLoadData", ctypes.byref(library), b"any", *nothing) == 0
    assert result(null, "cuLibraryGetKernel", ctypes.byref(function), library, b"scale") == 0
    null.set(registers=64)
    assert result(null, "cuFuncGetAttribute", ctypes.byref(value), 4, function) == 0
    assert value.value == 64
    occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    for threads, shared, blocks in ((256, 0, 4), (1024, 0, 1), (64, 100000, 2)):
        arguments = (ctypes.byref(value), function, threads, ctypes.c_size_t(shared))
        assert result(null, occupancy, *arguments) == 0 and value.value == blocks
    assert result(null, "cuLaunchKernel", function, 7, 2, 1, 32, 4, 1, 16, None, None, None) == 0
    assert result(null, "cuLaunchKernel", function, 1, 1, 1, 1025, 1, 1, 0, None, None, None) == 1
    good, bad = null.launches()
    assert (good.kernel, good.grid, good.block, good.shared) == ("scale", (7, 2, 1), (32, 4, 1), 16)
    assert bad.result == 1


def test_memory_cannot_be_read_by_the_host(null: NullDriver) -> None:
    program = (
        "import ctypes; from null_driver import NullDriver\n"
        "n, a = NullDriver(), ctypes.c_uint64()\n"
        "assert n.library.cuMemAlloc_v2(ctypes.byref(a), ctypes.c_size_t(8)) == 0\n"
        "ctypes.string_at(a.value, 1)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, check=False)
    assert done.returncode == -signal.SIGSEGV


def test_shares_a_process_with_the_stand_in(null: NullDriver) -> None:
    """In either order, neither uses the other's addresses."""
    allocate(null, 1 << 30)
    driver = Driver()
    block = driver.allocate(1000)
    driver.free(block)
    allocate(null, 1 << 30)


STEP = """
import numpy as np, cutback as cb
from cutback import cuda
from null_driver import NullDriver

driver = NullDriver()
params = {"w": np.ones((64, 32), np.float32), "b": np.zeros(32, np.float32)}
loss = lambda p, x: ((x @ p["w"] + p["b"]) ** 2).mean()
step = cb.compile(loss, optimizer=cb.optim.AdamW(lr=0.1), device="cuda")
params, x = cuda.to_device(params), cuda.to_device(np.ones((16, 64), np.float32))
step(params, x)
driver.clear()
step(params, x)
kernels = [event.kernel for event in driver.launches()]
assert kernels and all(name.startswith("cb_") for name in kernels), kernels
assert driver.calls("cuLaunchKernel") == len(kernels) and not driver.calls("cuLibraryLoadData")
assert all(event.result == 0 for event in driver.events())
assert np.asarray(params["b"]).tolist() == [0.0] * 32
"""


@pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed")
def test_a_training_step() -> None:
    """Runs in its own process, which opens no other driver."""
    found = {
        "CUTBACK_CUDA_DRIVER": str(build()),
        "CUTBACK_NVRTC": str(nvrtc.library()),
        "CUTBACK_CUBLASLT": "none",
        "CUTBACK_CACHE_DIR": str(BUILD / "cutback_kernels"),
    }
    command = [sys.executable, "-c", STEP]
    done = subprocess.run(
        command, cwd=HERE, env=os.environ | found, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
