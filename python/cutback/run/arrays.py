"""Converts arguments and results: NumPy arrays, DLPack tensors, and bf16 without ``ml_dtypes``."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from .. import _native, device_arrays, dtypes

_BITS16 = np.dtype(np.uint16)


def of_traced(name: str) -> TypeError:
    """Returns the error for a traced array that is passed where element values are needed."""
    return TypeError(
        f"{name} is a traced array without values: a compiled function cannot be called inside a "
        "traced one. Call the function that it was compiled from"
    )


def _check_memory(value: Any, name: str) -> None:
    """Checks that a PyTorch tensor's storage is large enough. It may have been freed, as FSDP does
    with parameters, and DLPack does not report its size.

    Raises:
        ValueError: if the storage is smaller than the tensor needs.
    """
    try:
        storage = value.untyped_storage()
    except (AttributeError, NotImplementedError):  # not PyTorch's, or a tensor without a storage
        return
    if not value.numel():
        return
    last = value.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    needed, there = (last + 1) * value.element_size(), storage.nbytes()
    if there < needed:
        raise ValueError(
            f"{name}: the tensor needs {needed} bytes, but its storage has {there}: its memory was "
            "freed (as FSDP does between uses) or shrunk"
        )


def _name_libraries(value: Any) -> None:
    """Loads the CUDA driver. It is needed even if no step was compiled for the GPU yet, because
    reading the array may have to wait for another library's stream."""
    if _native.has_cuda():
        return
    from .. import cuda, cuda_libraries  # imported late: they search for libraries

    place = getattr(value, "__dlpack_device__", None)
    # If they are missing, code that needs them raises the error.
    with contextlib.suppress(cuda_libraries.LibraryError):
        cuda.prepare(int(place()[1]) if place else 0)


class RawArray:
    """A bf16 array, used if ``ml_dtypes`` is not installed. It has ``bits`` (uint16), a shape, and
    supports DLPack.

    ``torch.from_dlpack(x)`` reads it without a copy; ``x.astype(np.float32)`` converts it.
    """

    def __init__(self, bits: np.ndarray[Any, Any]) -> None:
        if not isinstance(bits, np.ndarray) or bits.dtype != _BITS16:
            found = getattr(bits, "dtype", type(bits).__name__)
            raise TypeError(f"the bits of bf16 must be an array of uint16, not {found}")
        self.bits = bits
        self.dtype = dtypes.DTYPES["bf16"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.bits.shape)

    def astype(self, dtype: Any) -> np.ndarray[Any, Any]:
        """Returns a copy as a NumPy array of another dtype."""
        wide = self.bits.astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).astype(dtype)

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None, **kwargs: Any
    ) -> Any:
        versioned = max_version is not None and max_version[0] >= 1
        return _native.to_dlpack(self.bits, "bf16", versioned)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __repr__(self) -> str:
        return f"RawArray(bf16, shape={self.shape})"


def instead_of(value: Any) -> str:
    """Returns the end of an error message about an operand: what to write for a list."""
    return "; write np.array([...]) for numbers" if isinstance(value, (list, tuple)) else ""


def as_array(value: Any, name: str, stream: int | None = None) -> tuple[Any, str]:
    """Converts a NumPy array, NumPy scalar, RawArray or tensor of another library. Returns an array
    over the same memory and the name of its dtype. The array is an ndarray or, for GPU memory, a
    :class:`cutback.DeviceArray` for use on ``stream``.

    Raises:
        TypeError: if ``value`` is something else, has an unsupported dtype, or is in GPU memory
            and no driver is installed.
        ValueError: if a tensor is on another kind of device, has no memory, or cannot be exported
            by its library.
    """
    if isinstance(value, RawArray):
        return value.bits, "bf16"
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        if hasattr(value, "mask"):
            raise TypeError(f"{name}: masked arrays are not supported; pass x.filled(...)")
        dtype = dtypes.from_numpy(value.dtype)
        if dtype is None:
            raise TypeError(
                f"{name}: dtype {value.dtype} is not supported; convert it with .astype(...) to "
                f"one of {', '.join(dtypes.NAMES)}"
            )
        return value, dtype
    if getattr(value, "is_traced", False):
        raise of_traced(name)
    _check_memory(value, name)
    if device_arrays.is_elsewhere(value):
        _name_libraries(value)
        if not _native.has_cuda():
            raise TypeError(
                f"{name}: the array is in a GPU's memory, but no NVIDIA driver was found "
                "(`cutback doctor --verbose` lists where it was searched for); pass a copy on the "
                "host"
            )
        array = device_arrays.of(value, name, stream)
        return array, array.core_dtype
    if hasattr(value, "__dlpack__"):
        try:
            return _native.from_dlpack(value, name)
        except (BufferError, RuntimeError) as error:
            raise ValueError(f"{name}: {error}") from error
    raise TypeError(
        f"{name}: expected a NumPy array or a DLPack tensor, got {type(value).__name__}"
        + instead_of(value)
    )


def empty(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Returns an uninitialised array (for bf16 without ``ml_dtypes``, an array of uint16). When it
    is freed, its memory is kept for the next array of this size, because getting fresh pages from
    the system takes longer than writing to them."""
    return _native.empty(shape, dtypes.to_numpy(dtype))


def wrap(array: np.ndarray[Any, Any], dtype: str) -> Any:
    """Converts an array to the form that users get: bf16 bits become a :class:`RawArray`."""
    if dtype == "bf16" and array.dtype == _BITS16:
        return RawArray(array)
    return array
