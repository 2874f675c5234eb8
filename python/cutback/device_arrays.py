"""Arrays in a GPU's memory, which compiled steps take and return without copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _native, dtypes

_CUDA, _MANAGED = 2, 13  # device types of DLPack
_LEGACY = 1  # the legacy default stream, which synchronizes with all blocking streams


def is_elsewhere(value: Any) -> bool:
    """Returns True if ``value`` is a tensor, of any library, in a GPU's memory."""
    if isinstance(value, DeviceArray):
        return True
    if hasattr(value, "__dlpack_device__"):
        try:
            return int(value.__dlpack_device__()[0]) in (_CUDA, _MANAGED)
        except Exception:  # a device that DLPack does not know; using the tensor raises an error
            return False
    return hasattr(value, "__cuda_array_interface__")


def handle(stream: Any) -> int | None:
    """Returns the driver's handle of ``stream``: an integer, or a stream object of PyTorch
    (``cuda_stream``), CuPy (``ptr``) or the ``__cuda_stream__`` protocol. None stays None.

    Raises:
        TypeError: if ``stream`` is none of these.
    """
    if stream is None:
        return None
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    if not isinstance(stream, int) or isinstance(stream, bool) or stream < 0:
        raise TypeError(f"stream={stream!r} is not a CUDA stream: pass its handle or its object")
    return stream or _LEGACY  # CUDA's 0 is the legacy stream; the core's 0 is its own stream


class DeviceArray(_native.DeviceMemory):
    """A contiguous array in a GPU's memory, made by :func:`cutback.cuda.to_device`.

    Steps with ``device="cuda"`` accept device arrays, and then return device arrays.
    ``torch.from_dlpack(x)`` and ``cupy.from_dlpack(x)`` share its memory; ``x.numpy()`` and
    ``np.asarray(x)`` copy it to the host, ``float(x)`` copies one number.

    >>> x = cuda.to_device(np.ones((2, 3), np.float32))  # doctest: +SKIP
    >>> x.shape, x.numpy().sum()  # doctest: +SKIP
    ((2, 3), 6.0)
    """

    __slots__ = ()

    @property
    def dtype(self) -> Any:
        """NumPy's dtype; for bf16 without ``ml_dtypes``, a :class:`cutback.dtypes.DType`."""
        if self.core_dtype == "bf16":
            return dtypes.bfloat16() or dtypes.DTYPES["bf16"]
        return dtypes.to_numpy(self.core_dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns a copy on the host; for bf16 without ``ml_dtypes``, the bits as uint16."""
        array = np.empty(self.shape, dtypes.to_numpy(self.core_dtype))
        self.read(array)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the array is on a GPU, so it must be copied: pass copy=True or None")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def item(self) -> Any:
        """Returns the only element as a Python number."""
        return self.numpy().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return int(self.shape[0])

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Exports the array without a copy, for ``torch.from_dlpack`` and similar functions.

        ``stream`` is the handle of the stream on which the other library will use the array (None
        or 1: the legacy stream; -1: unknown). Later work on that stream waits until the array is
        written. The memory lives until the other library has released it. It is reused after the
        work that was submitted to the stream before the release. So the stream must exist until the
        release, and work on other streams must be ordered before it, as with every stream-ordered
        allocator. With -1 the whole device is synchronized before the memory is reused.

        Raises:
            BufferError: if a copy or another device is requested.
            ValueError: if ``stream`` is 0, which DLPack does not define for CUDA.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(
                f"the array can only be exported without a copy, on device {self.device}"
            )
        if stream == 0:
            raise ValueError("stream=0 is not defined for CUDA; 1 is the legacy stream")
        if stream == -1:
            self.lend(None)
        else:
            place = _LEGACY if stream is None else stream
            self.order(place)
            self.lend(place)
        return self.to_dlpack(max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.core_dtype == "bf16":
            raise AttributeError("__cuda_array_interface__ does not support bf16; use DLPack")
        self.order(_LEGACY)
        self.lend(None)  # the consumer's stream is unknown
        return {
            "shape": self.shape,
            "typestr": dtypes.to_numpy(self.core_dtype).str,
            "data": (self.address, not self.writable),
            "strides": None,
            "stream": _LEGACY,
            "version": 3,
        }

    def __repr__(self) -> str:
        return f"DeviceArray({self.core_dtype}, shape={self.shape}, cuda:{self.device})"


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Returns True if the strides (in elements) are row-major without gaps."""
    if strides is None or 0 in shape:
        return True
    reached = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != reached:
            return False
        reached *= n
    return True


def of(value: Any, name: str, stream: int | None) -> DeviceArray:
    """Wraps a tensor on a GPU in a DeviceArray, without a copy. Later work on ``stream`` (None: the
    legacy stream) waits for the work on the tensor that its library has already submitted.
    ``name`` is used in errors.

    Raises:
        TypeError: if the dtype is not supported.
        ValueError: if the tensor is not contiguous, or its library cannot export it.
    """
    if isinstance(value, DeviceArray):
        return value
    place = _LEGACY if stream is None else stream
    if hasattr(value, "__dlpack__"):
        try:
            dtype, shape, strides, address, _, device, writable, owner, theirs = (
                _native.dlpack_parts(value, name, place)
            )
            if theirs is not None and theirs != place:
                _native.device_order(theirs, place)
        except (BufferError, RuntimeError) as error:
            raise ValueError(f"{name}: {error}") from error
    else:
        dtype, shape, strides, address, device, writable, owner = _of_interface(value, name, place)
    if not _contiguous(shape, strides):
        raise ValueError(
            f"{name}: a tensor of shape {shape} with strides {strides} (elements) is not "
            "contiguous; pass x.contiguous()"
        )
    return DeviceArray.over(shape, dtype, device, address, writable, owner)


def _of_interface(value: Any, name: str, stream: int) -> tuple[Any, ...]:
    """Reads ``__cuda_array_interface__``. The interface does not say which device holds the array,
    so the device that steps run on is assumed."""
    row = value.__cuda_array_interface__
    known = dtypes.from_numpy(np.dtype(row["typestr"]))
    if known is None:
        raise TypeError(f"{name}: elements of type {row['typestr']} are not supported")
    if row.get("mask") is not None:
        raise TypeError(f"{name}: masked arrays are not supported")
    size, strides = dtypes.SIZES[known], row.get("strides")
    elements = None if strides is None else tuple(n // size for n in strides)
    address, read_only = row["data"]
    if row.get("stream") is not None:
        _native.device_order(row["stream"], stream)
    device = _native.device_ordinal()
    return known, tuple(row["shape"]), elements, address, device, not read_only, value


def to_device(array: Any) -> DeviceArray:
    """Copies a NumPy array or a RawArray to the GPU that steps run on."""
    bits = getattr(array, "bits", None)  # a RawArray of bf16
    host = np.ascontiguousarray(array if bits is None else bits).reshape(np.shape(array))
    dtype = "bf16" if bits is not None else dtypes.from_numpy(host.dtype)
    if dtype is None:
        raise TypeError(f"to_device: elements of type {host.dtype} are not supported")
    made = DeviceArray.empty(host.shape, dtype, _native.device_ordinal(), None)
    made.write(host)
    return made


def copied(array: Any) -> Any:
    """Returns a copy of the array on the host."""
    return array.numpy() if isinstance(array, DeviceArray) else array.copy()


def beside(array: np.ndarray[Any, Any] | DeviceArray, other: Any) -> Any:
    """Returns the array in the memory (host or GPU) that ``other`` is in: itself, or a copy."""
    if isinstance(other, DeviceArray) == isinstance(array, DeviceArray):
        return array
    return to_device(array) if isinstance(other, DeviceArray) else array.numpy()  # type: ignore[union-attr]
