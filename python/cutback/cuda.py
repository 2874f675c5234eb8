"""Steps on a GPU: ``backend="cuda"``, or ``device="cuda"``. Finds NVIDIA's libraries when a step
first asks for them, and keeps compiled kernels in a folder (``kernel_cache``).

``CUTBACK_CUDA_CODE=ptx`` lets the driver compile PTX in place of loading machine code;
``CUTBACK_CUDA_KEEP_SOURCES=1`` writes the CUDA C of each program to ``sources`` in that folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _native, cuda_libraries, device_arrays, tree
from .device_arrays import DeviceArray as DeviceArray
from .kernel_cache import Cache as Cache
from .kernel_cache import cache_clear as cache_clear
from .kernel_cache import cache_folder as cache_folder
from .kernel_cache import cache_info as cache_info

if TYPE_CHECKING:
    from .devices import Device

_ROWS = ("h100", "h200", "b200", "a100", "rtx4090")  # of the cost model, by what GPUs are called


def prepare(ordinal: int = 0) -> str:
    """Names the libraries to the core, which opens them when a step is compiled. The GPU's name.

    Raises:
        LibraryError: no driver or no NVRTC that can be used; the text lists every place.
        ValueError: there is no such device.
    """
    around = cuda_libraries.surroundings()
    driver = cuda_libraries.driver(around)
    version, devices = driver.value
    if not 0 <= ordinal < len(devices):
        raise ValueError(f'device="cuda:{ordinal}": there are {len(devices)}')
    compiler = cuda_libraries.nvrtc(around, version // 1000)
    as_ptx = os.environ.get("CUTBACK_CUDA_CODE") == "ptx"
    keeps = bool(os.environ.get("CUTBACK_CUDA_KEEP_SOURCES"))
    products = cuda_libraries.products(around, version // 1000)
    files = driver.path, compiler.path, products, str(cache_folder())
    _native.set_cuda(*files, ordinal, as_ptx, keeps)
    return devices[ordinal][0]


def to_device(arrays: Any) -> Any:
    """Copies of arrays, nested as they are, in the memory of the GPU that steps run on: parameters
    and data for steps with ``device="cuda"``, which then copy nothing.

    Raises:
        LibraryError: no driver, or none that can be used.
        TypeError: a dtype that is not supported.
    """
    if not _native.has_cuda():
        prepare()
    leaves, structure = tree.flatten(arrays)
    return tree.unflatten(structure, [device_arrays.to_device(leaf) for leaf in leaves])


def to_host(arrays: Any) -> Any:
    """NumPy copies of arrays of a device, nested as they are; others stay themselves."""
    leaves, structure = tree.flatten(arrays)
    return tree.unflatten(
        structure, [leaf.numpy() if isinstance(leaf, DeviceArray) else leaf for leaf in leaves]
    )


def release_memory() -> int:
    """Gives the GPU the memory that is kept for results to come; how many bytes.

    Results that were let go leave their memory to those of later steps, so that a steady step asks
    the driver for none. It is given back when the GPU has no more; a program that shares the GPU
    with others may call this when it makes fewer or smaller arrays. Waits for the GPU.

    Example:
        >>> released = cuda.release_memory()
    """
    return _native.device_release()


@dataclass(frozen=True)
class Memory:
    """Bytes of the GPU's memory in arrays of :mod:`cutback`: results, gradients, states of
    optimizers and copies by :func:`to_device`. Compiled steps have memory beside these."""

    in_use: int
    """in arrays that exist"""
    kept: int
    """of arrays that were let go, for the next ones"""
    peak: int
    """most ``in_use`` at once"""


def memory(reset_peak: bool = False) -> Memory:
    """How much of the GPU's memory arrays take now, and took at most since the last
    ``reset_peak``. All 0 before a GPU was used."""
    stats = _native.device_stats(reset_peak)
    return Memory(stats["in_use"], stats["kept"], stats["peak"])


def _row_of(name: str) -> str:
    """The row of the cost model that comes nearest."""
    plain = name.lower().replace(" ", "")
    return next((row for row in _ROWS if row in plain), _ROWS[0])


def resolve(backend: str, device: Device | None) -> tuple[str, Device | None]:
    """Backend and row of the cost model: ``device="cuda"`` or ``"cuda:1"`` means both."""
    if isinstance(device, str) and (device == "cuda" or device.startswith("cuda:")):
        if backend not in ("cpu", "cuda"):
            raise ValueError(f'device={device!r} runs on the backend "cuda", not on {backend!r}')
        digits = device.partition(":")[2] or "0"
        if not digits.isdecimal():
            raise ValueError(f'device={device!r}: "cuda", or "cuda:" and a number')
        return "cuda", _row_of(prepare(int(digits)))
    if backend == "cuda":
        prepare()
    return backend, device
