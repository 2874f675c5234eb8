"""Arrays on the way in and out: NumPy's, DLPack tensors, and bf16 where NumPy has no such dtype."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from .. import _native, device_arrays, dtypes

_BITS16 = np.dtype(np.uint16)


def of_traced(name: str) -> TypeError:
    """What is said of a traced array where elements are needed."""
    return TypeError(
        f"{name} is a traced array, whose elements are not known yet: a compiled function cannot "
        "be called inside a traced one. Call the function that it was compiled from"
    )


def _check_memory(value: Any, name: str) -> None:
    """PyTorch's tensors may outlive their memory, as FSDP's parameters do, and DLPack says nothing
    of a storage's size.

    Raises:
        ValueError: the storage ends before the tensor does.
    """
    try:
        storage = value.untyped_storage()
    except (AttributeError, NotImplementedError):  # another library's, or one without a storage
        return
    if not value.numel():
        return
    last = value.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    needed, there = (last + 1) * value.element_size(), storage.nbytes()
    if there < needed:
        raise ValueError(
            f"{name}: the tensor needs {needed} bytes and its storage has {there}: its memory was "
            "freed (as FSDP frees it between uses) or made smaller"
        )


def _name_libraries(value: Any) -> None:
    """Streams of others may have to be waited for before a step is compiled for the GPU."""
    if _native.has_cuda():
        return
    from .. import cuda, cuda_libraries  # look for libraries, which nobody else needs

    place = getattr(value, "__dlpack_device__", None)
    # Where nothing can be found, what needs the libraries says so.
    with contextlib.suppress(cuda_libraries.LibraryError):
        cuda.prepare(int(place()[1]) if place else 0)


class RawArray:
    """A bf16 array where ``ml_dtypes`` is not installed: its bits, its shape, and DLPack.

    ``torch.from_dlpack(x)`` reads it without a copy; ``x.astype(np.float32)`` converts it.
    """

    def __init__(self, bits: np.ndarray[Any, Any]) -> None:
        if not isinstance(bits, np.ndarray) or bits.dtype != _BITS16:
            found = getattr(bits, "dtype", type(bits).__name__)
            raise TypeError(f"the bits of bf16 are an array of uint16, not {found}")
        self.bits = bits
        self.dtype = dtypes.DTYPES["bf16"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.bits.shape)

    def astype(self, dtype: Any) -> np.ndarray[Any, Any]:
        """A copy as a NumPy array of another dtype."""
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


def as_array(value: Any, name: str, stream: int | None = None) -> tuple[Any, str]:
    """A NumPy array, NumPy scalar, RawArray or tensor of another library as (array over the same
    memory, dtype name): an ndarray, or a :class:`cutback.DeviceArray` of what lies on a GPU, to be
    used on ``stream``.

    Raises:
        TypeError: something else, or a dtype that is not supported; memory of a GPU where there is
            no driver.
        ValueError: a tensor on a device of another kind, without memory, or one that its library
            does not hand out.
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
                f"{name}: the array is in a GPU's memory, and no NVIDIA driver was found here "
                "(`cutback doctor --verbose` lists where it looked); pass a copy on the host"
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
    )


def empty(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """An uninitialised array to be written; of bf16 without ``ml_dtypes``, its bits. Its memory is
    kept for the next one of its size when it dies: pages that the system hands out cost more than
    writing them."""
    return _native.empty(shape, dtypes.to_numpy(dtype))


def wrap(array: np.ndarray[Any, Any], dtype: str) -> Any:
    """An array as users get it."""
    if dtype == "bf16" and array.dtype == _BITS16:
        return RawArray(array)
    return array
