"""The entries of the driver API: each can be made to fail, none crashes on invalid arguments, and
programs that look for a driver find it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cases
import client
import nvrtc
from client import CudaError, Driver


def entries() -> list[str]:
    """Returns all names in entries.def."""
    driver, names = Driver(), []
    while name := driver.library.sim_entry(len(names)):
        names.append(name.decode())
    return names


NAMES = entries()
# Entries that return success for zeros: there is nothing to do, or nothing is asked for.
WITHOUT_ARGUMENTS = {
    *("cuInit", "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent", "cuCtxSynchronize"),
    *("cuMemFree_v2", "cuStreamSynchronize", "cuStreamQuery"),
    *(f"cuMemcpy{way}{rest}_v2" for way in ("HtoD", "DtoH", "DtoD") for rest in ("", "Async")),
}


def test_there_are_entries() -> None:
    assert len(NAMES) >= 75 and len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_fails_once(driver: Driver, name: str) -> None:
    """Only the second call from now fails with the code."""
    zeros = [ctypes.c_void_p(0)] * 11
    for _ in range(3):
        Driver()  # contexts to be released
    entry = getattr(driver.library, name)
    before = entry(*zeros)
    driver.fail(name, 2, 719)
    seen = [entry(*zeros) for _ in range(3)]
    assert seen[1] == 719
    assert seen[0] == before and seen[2] == before
    assert (before == 0) == (name in WITHOUT_ARGUMENTS)
    Driver()  # a current context, in case a zero removed it


def test_unknown_names(driver: Driver) -> None:
    assert driver.library.sim_fail(b"cuNothing", 1, 1) == -1
    assert driver.library.sim_set(b"nothing", ctypes.c_long(1)) == -1
    assert driver.library.sim_entry(10000) is None


def test_wrong_handles(driver: Driver) -> None:
    """Destroyed handles, handles of another kind, and non-handles are refused."""
    stream, event, wild = driver.stream(), driver.event(), ctypes.c_void_p(0x1234560)
    driver.call("cuStreamDestroy", stream)
    for wrong in (stream, event, wild):
        for call in (
            lambda h: driver.call("cuStreamSynchronize", h),
            lambda h: driver.call("cuStreamWaitEvent", h, event, 0),
            lambda h: driver.call("cuModuleUnload", h),
            lambda h: driver.call("cuGraphLaunch", h, None),
            lambda h: driver.call("cuLaunchKernel", h, 1, 1, 1, 1, 1, 1, 0, None, None, None),
        ):
            with pytest.raises(CudaError, match="INVALID_HANDLE"):
                call(wrong)


def test_launches_that_are_refused(driver: Driver) -> None:
    text, x = cases.ptx("pointwise"), driver.put(np.ones(4, np.float32))
    rest = (x, x, ctypes.c_float(1), ctypes.c_int(4))
    for grid, block, shared in (
        (0, 1, 0), (1, 0, 0), (1, 1025, 0), (1, (1, 1, 65), 0), ((1, 65536), 1, 0), (1, 1, 49153),
    ):  # fmt: skip
        with pytest.raises(CudaError, match="INVALID_VALUE"):
            driver.launch(text, "scale", grid, block, *rest, shared=shared)
    with pytest.raises(CudaError, match="INVALID_VALUE"):  # __launch_bounds__(256)
        driver.launch(cases.ptx("tiles"), "sgemm", 1, 257, x, x, x, *(ctypes.c_int(0),) * 3)
    with pytest.raises(CudaError, match="NOT_FOUND"):
        driver.launch(text, "no_such_kernel", 1, 1)


def test_more_shared_memory_is_asked_for(driver: Driver) -> None:
    text = cases.ptx("rows")
    function, value = driver.function(text, "cross_entropy"), ctypes.c_int()
    driver.call("cuFuncSetAttribute", function, 8, 100000)
    driver.call("cuFuncGetAttribute", ctypes.byref(value), 8, function)
    assert value.value == 100000
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        driver.call("cuFuncSetAttribute", function, 8, 300000)
    blocks = ctypes.c_int()
    shape = (ctypes.byref(blocks), function, 256, ctypes.c_size_t(100000))
    driver.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", *shape)
    assert blocks.value == 2
    driver.call("cuFuncSetAttribute", function, 8, 48 << 10)


def test_parameters_in_one_buffer(driver: Driver) -> None:
    x, y = driver.put(np.ones(4, np.float32)), driver.allocate(16)
    raw = np.array([x.address, y.address], np.uint64).tobytes()
    raw += np.float32(3).tobytes() + np.int32(4).tobytes()
    buffer, size = ctypes.create_string_buffer(raw, len(raw)), ctypes.c_size_t(len(raw))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    function = driver.function(cases.ptx("pointwise"), "scale")
    driver.call("cuLaunchKernel", function, 1, 1, 1, 4, 1, 1, 0, None, None, extra)
    assert driver.get(y, np.float32, 4).tolist() == [3] * 4


def test_contexts(driver: Driver) -> None:
    current, other, flags, active = (
        ctypes.c_void_p(),
        ctypes.c_void_p(),
        ctypes.c_uint(),
        ctypes.c_int(),
    )
    driver.call("cuCtxGetCurrent", ctypes.byref(current))
    driver.call("cuCtxPushCurrent", current)
    driver.call("cuCtxPopCurrent", ctypes.byref(other))
    assert other.value == current.value
    driver.call("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    assert active.value == 1
    driver.call("cuCtxSetCurrent", None)
    with pytest.raises(CudaError, match="INVALID_CONTEXT"):
        driver.allocate(4)
    driver.call("cuCtxSetCurrent", current)
    with pytest.raises(CudaError, match="INVALID_CONTEXT"):
        driver.call("cuCtxSetCurrent", ctypes.c_void_p(64))


def test_pointers_say_where_they_are(driver: Driver) -> None:
    x, kind = driver.allocate(64), ctypes.c_int()
    driver.call("cuPointerGetAttribute", ctypes.byref(kind), 2, ctypes.c_uint64(x.address + 8))
    assert kind.value == 2  # device memory
    for wrong in (x.address + 64, 4096):
        with pytest.raises(CudaError, match="INVALID_VALUE"):
            driver.call("cuPointerGetAttribute", ctypes.byref(kind), 2, ctypes.c_uint64(wrong))


SCRIPT = """
import ctypes, sys
sys.path.insert(0, {here!r})
driver = ctypes.CDLL("libcuda.so.1")
{body}
"""


def run(body: str, **environment: str) -> str:
    """Runs a separate program, which finds the stand-in as any program finds the driver."""
    path = {**os.environ, "LD_LIBRARY_PATH": str(client.build().parent), **environment}
    text = SCRIPT.format(here=str(Path(__file__).parent), body=body)
    done = subprocess.run(
        [sys.executable, "-c", text], env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_before_initialisation() -> None:
    body = """
n = ctypes.c_int()
print(driver.cuDeviceGetCount(ctypes.byref(n)), driver.cuCtxSynchronize())
driver.sim_set(b"devices", ctypes.c_long(0))
print(driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(n)))
driver.sim_set(b"devices", ctypes.c_long(2))
print(driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(n)), n.value)
f, found = ctypes.c_void_p(), ctypes.c_int()
driver.sim_set(b"driver", ctypes.c_long(12000))
for name, version in ((b"cuMemAlloc", 12000), (b"cuNothing", 12000), (b"cuMemAlloc", 12010)):
    print(driver.cuGetProcAddress_v2(name, ctypes.byref(f), version, ctypes.c_uint64(0),
                                     ctypes.byref(found)), found.value, bool(f.value))
"""
    assert run(body).splitlines() == [
        "3 3",
        "100 3",
        "0 0 2",
        "0 0 True",
        "500 1 False",
        "500 2 False",
    ]


def test_nvrtc_beside_it() -> None:
    """NVRTC opens libcuda.so.1 itself, and asks for tables that do not exist."""
    if nvrtc.library() is None:
        pytest.skip(f"{nvrtc.PACKAGE} is not installed")
    body = """
import nvrtc
print(driver.cuInit(0), ".entry k" in nvrtc.compile_to_ptx("extern \\"C\\" __global__ void k() {}"))
"""
    assert run(body).split() == ["0", "True"]


def test_a_cache_that_others_could_write(tmp_path: Path) -> None:
    """Files there are executed, so the folder is refused."""
    body = """
import client, cases
client.LIBRARY = "libcuda.so.1"
client.build = lambda: "libcuda.so.1"
d = client.Driver()
try:
    d.load(cases.ptx("pointwise"))
except client.CudaError as error:
    print(error.name, error.reports)
else:
    print("loaded")
"""
    tmp_path.chmod(0o777)
    assert "writable by nobody else" in run(body, CUTBACK_STAND_IN_CACHE=str(tmp_path))
    tmp_path.chmod(0o700)
    assert run(body, CUTBACK_STAND_IN_CACHE=str(tmp_path)).strip() == "loaded"
    assert len(list(tmp_path.iterdir())) == 1  # and no other file was left
