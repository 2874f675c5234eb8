"""Steps on a GPU: ``backend="cuda"``, or ``device="cuda"``. Finds NVIDIA's libraries on first use,
and caches compiled kernels in a folder (``kernel_cache``).

``CUTBACK_CUDA_CODE=ptx`` makes the driver compile PTX instead of loading machine code;
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

_ROWS = ("h100", "h200", "b200", "a100", "rtx4090")  # cost model rows, matched with GPU names


def prepare(ordinal: int = 0) -> str:
    """Finds the libraries and passes their paths to the core, which opens them when a step is
    compiled. Returns the GPU's name.

    Raises:
        cutback.cuda_libraries.LibraryError: if no usable driver or NVRTC was found; the message
            lists every place that was searched.
        ValueError: if the device does not exist.
    """
    around = cuda_libraries.surroundings()
    driver = cuda_libraries.driver(around)
    version, devices = driver.value
    if not 0 <= ordinal < len(devices):
        number = f"{len(devices)} CUDA device{'' if len(devices) == 1 else 's'}"
        raise ValueError(f'device="cuda:{ordinal}": this machine has {number}')
    compiler = cuda_libraries.nvrtc(around, version // 1000)
    as_ptx = os.environ.get("CUTBACK_CUDA_CODE") == "ptx"
    keeps = bool(os.environ.get("CUTBACK_CUDA_KEEP_SOURCES"))
    products = cuda_libraries.products(around, version // 1000)
    files = driver.path, compiler.path, products, str(cache_folder())
    _native.set_cuda(*files, ordinal, as_ptx, keeps)
    return devices[ordinal][0]


def to_device(arrays: Any) -> Any:
    """Copies nested arrays to the GPU that steps run on. Steps with ``device="cuda"`` use such
    parameters and data without copies.

    Raises:
        cutback.cuda_libraries.LibraryError: if no usable driver was found.
        TypeError: if a dtype is not supported.
    """
    if not _native.has_cuda():
        prepare()
    leaves, structure = tree.flatten(arrays)
    return tree.unflatten(structure, [device_arrays.to_device(leaf) for leaf in leaves])


def to_host(arrays: Any) -> Any:
    """Copies nested device arrays to NumPy arrays; other leaves are returned unchanged."""
    leaves, structure = tree.flatten(arrays)
    return tree.unflatten(
        structure, [leaf.numpy() if isinstance(leaf, DeviceArray) else leaf for leaf in leaves]
    )


def release_memory() -> int:
    """Returns the cached memory of freed results to the GPU. Waits for the GPU.

    The memory of freed results is reused by later steps, so that a steady step does not allocate.
    It is also released when the GPU runs out of memory. A program that shares the GPU may call this
    when it needs fewer or smaller arrays than before.

    Returns:
        The number of bytes that were released.

    Example:
        >>> released = cuda.release_memory()
    """
    return _native.device_release()


@dataclass(frozen=True)
class Memory:
    """Bytes of the GPU's memory in arrays of :mod:`cutback`: results, gradients, states of
    optimizers and copies by :func:`to_device`. The memory of compiled steps is not included."""

    in_use: int
    """Bytes of live arrays."""
    kept: int
    """Bytes of freed arrays, cached for reuse."""
    peak: int
    """Peak of ``in_use``."""


def memory(reset_peak: bool = False) -> Memory:
    """Returns the GPU memory of arrays now, and its peak since the last ``reset_peak``. All numbers
    are 0 if no GPU was used yet."""
    stats = _native.device_stats(reset_peak)
    return Memory(stats["in_use"], stats["kept"], stats["peak"])


def _row_of(name: str) -> str:
    """Returns the row of the cost model for a GPU's name, or the first row if none matches."""
    plain = name.lower().replace(" ", "")
    return next((row for row in _ROWS if row in plain), _ROWS[0])


def resolve(backend: str, device: Device | None) -> tuple[str, Device | None]:
    """Returns the backend and the row of the cost model. ``device="cuda"`` or ``"cuda:1"`` sets
    both.

    Raises:
        ValueError: if the device does not exist, has no number after ``"cuda:"``, or contradicts
            the backend.
        cutback.cuda_libraries.LibraryError: as for :func:`prepare`.
    """
    if isinstance(device, str) and (device == "cuda" or device.startswith("cuda:")):
        if backend not in ("cpu", "cuda"):
            raise ValueError(f'device={device!r} runs on the backend "cuda", not on {backend!r}')
        digits = device.partition(":")[2] or "0"
        if not digits.isdecimal():
            raise ValueError(f'device={device!r} must be "cuda", or "cuda:" and a number')
        return "cuda", _row_of(prepare(int(digits)))
    if backend == "cuda":
        prepare()
    return backend, device
