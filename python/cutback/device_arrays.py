"""Arrays that lie in a GPU's memory: what compiled steps take and give out without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _native, dtypes

_CUDA, _MANAGED = 2, 13  # kinds of devices, as DLPack counts them
_LEGACY = 1  # the stream that waits for the others, and they for it


def is_elsewhere(value: Any) -> bool:
    """Whether a tensor of any library lies in a GPU's memory."""
    if isinstance(value, DeviceArray):
        return True
    if hasattr(value, "__dlpack_device__"):
        try:
            return int(value.__dlpack_device__()[0]) in (_CUDA, _MANAGED)
        except Exception:  # a device that DLPack does not know: who takes the tensor says so
            return False
    return hasattr(value, "__cuda_array_interface__")


def handle(stream: Any) -> int | None:
    """The driver's handle of a stream: an integer, or an object of PyTorch (``cuda_stream``), CuPy
    (``ptr``) or the ``__cuda_stream__`` protocol. None stays None.

    Raises:
        TypeError: it is none of these.
    """
    if stream is None:
        return None
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    if not isinstance(stream, int) or isinstance(stream, bool) or stream < 0:
        raise TypeError(f"stream={stream!r} is no stream of CUDA: pass its handle, or its object")
    return stream or _LEGACY  # 0 is the same, and in the core the device's own


class DeviceArray(_native.DeviceMemory):
    """A contiguous array in a GPU's memory.

    Steps with ``device="cuda"`` take it, and give it out where they are given one.
    ``torch.from_dlpack(x)``, ``cupy.from_dlpack(x)`` read it without a copy; ``x.numpy()`` and
    ``np.asarray(x)`` copy it to the host, ``float(x)`` one number. Made by
    :func:`cutback.cuda.to_device`.
    """

    __slots__ = ()

    @property
    def dtype(self) -> Any:
        """As NumPy has it, or ``cutback``'s bf16."""
        if self.core_dtype == "bf16":
            return dtypes.bfloat16() or dtypes.DTYPES["bf16"]
        return dtypes.to_numpy(self.core_dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host; of bf16 without ``ml_dtypes``, its bits."""
        array = np.empty(self.shape, dtypes.to_numpy(self.core_dtype))
        self.read(array)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the array lies on a GPU: to have it on the host is a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def item(self) -> Any:
        """The only element, as a Python number."""
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
        """A capsule over the array, without a copy, for ``torch.from_dlpack`` and the like.

        ``stream`` is the handle of the stream that the other library will use it on (None, 1: the
        legacy stream; -1: it does not say). What is put there finds the array written. The memory
        lives until the other library has released it, and is used again after what it had put on
        this stream by then; so the stream must exist until the release, and work on further streams
        has to come before it, as with every allocator that follows streams. With -1 the whole
        device is waited for before the memory is used again.

        Raises:
            BufferError: a copy or another device was asked for.
            ValueError: ``stream`` is 0, which CUDA does not define here.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"the array is handed out as it is, on device {self.device}")
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
            raise AttributeError("__cuda_array_interface__ has no bf16; DLPack does")
        self.order(_LEGACY)
        self.lend(None)  # nothing says where it will be used
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
    """Row-major without gaps; strides in elements."""
    if strides is None or 0 in shape:
        return True
    reached = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != reached:
            return False
        reached *= n
    return True


def of(value: Any, name: str, stream: int | None) -> DeviceArray:
    """The array over a tensor that lies on a GPU. What its library has put on streams of its own
    comes before what is put on ``stream`` (None: before what a step does that waits).

    Raises:
        TypeError: a dtype that is not supported.
        ValueError: it is not contiguous, or its library does not hand it out.
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
    """``__cuda_array_interface__``: it says nothing of the device, which the driver knows."""
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
    """A copy of an array of NumPy's, or of bf16, on the GPU that steps run on."""
    bits = getattr(array, "bits", None)  # of RawArray
    host = np.ascontiguousarray(array if bits is None else bits).reshape(np.shape(array))
    dtype = "bf16" if bits is not None else dtypes.from_numpy(host.dtype)
    if dtype is None:
        raise TypeError(f"to_device: elements of type {host.dtype} are not supported")
    made = DeviceArray.empty(host.shape, dtype, _native.device_ordinal(), None)
    made.write(host)
    return made


def copied(array: Any) -> Any:
    """A copy on the host."""
    return array.numpy() if isinstance(array, DeviceArray) else array.copy()


def beside(array: np.ndarray[Any, Any] | DeviceArray, other: Any) -> Any:
    """The array where the other lies: itself, or a copy."""
    if isinstance(other, DeviceArray) == isinstance(array, DeviceArray):
        return array
    return to_device(array) if isinstance(other, DeviceArray) else array.numpy()  # type: ignore[union-attr]
