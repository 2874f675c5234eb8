"""Tensors of other libraries on a GPU: stand-in memory allocated by separate driver calls, exported
by DLPack or ``__cuda_array_interface__``, without any code of cutback."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from client import Driver

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_handed_out: list[Any] = []  # importers may keep a tensor for longer than its object lives
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Tensor:
    """An array on the stand-in. ``asked`` lists the streams of requests; ``out`` counts exports
    that were not returned."""

    def __init__(
        self,
        driver: Driver,
        array: np.ndarray[Any, Any],
        *,
        device: int = 0,
        read_only: bool = False,
        strides: tuple[int, ...] | None = None,
        kind: tuple[int, int] | None = None,
    ) -> None:
        self.driver, self.shape, self.array_dtype = driver, array.shape, array.dtype
        self.memory = driver.put(array)
        self.device, self.read_only, self.strides, self.kind = device, read_only, strides, kind
        self.asked: list[Any] = []
        self.out = 0
        self.stream: ctypes.c_void_p | None = None  # the stream of its library

    def get(self) -> np.ndarray[Any, Any]:
        return self.driver.get(self.memory, self.array_dtype, self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def _order(self, stream: Any) -> None:
        """Orders work like a library: work already on its own stream precedes later work on the
        other."""
        self.asked.append(stream)
        if self.stream is not None:
            event = self.driver.event()
            self.driver.call("cuEventRecord", event, self.stream)
            self.driver.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)

    def _managed(self) -> _Managed:
        """Exports a struct, which is kept until it is returned."""
        n = len(self.shape)
        shape = (ctypes.c_int64 * n)(*self.shape)
        strides = None if self.strides is None else (ctypes.c_int64 * n)(*self.strides)

        def delete(_: int) -> None:
            self.out -= 1

        managed = _Managed(1, 0, None, _Deleter(delete), int(self.read_only))
        code, bits = self.kind or (_CODES[self.array_dtype.kind], 8 * self.array_dtype.itemsize)
        managed.tensor = _Tensor(
            self.memory.address, 2, self.device, n, code, bits, 1, shape, strides, 0
        )
        _handed_out.append((managed, shape, strides))
        self.out += 1
        return managed

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **kwargs: Any) -> Any:
        self._order(stream)
        managed, name = self._managed(), ctypes.create_string_buffer(b"dltensor_versioned")
        _handed_out.append(name)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
        return new(ctypes.addressof(managed), ctypes.addressof(name), None)


_From = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
_Stream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class _Exchange(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", _From),
        ("managed_to_object", ctypes.c_void_p),
        ("dltensor_from_object", ctypes.c_void_p),
        ("current_stream", _Stream),
    )


class Exchanged(Tensor):
    """A tensor whose type has a table of C functions. ``works_on`` is its library's stream;
    ``fails`` selects a failing function; ``taken`` counts tensors."""

    works_on: ctypes.c_void_p | None = None
    fails = ""
    taken = 0
    __dlpack_c_exchange_api__: Any = None

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise AssertionError("there is a faster way")


def _hand_out(tensor: Exchanged, out: Any) -> int:
    if Exchanged.fails == "tensor":
        return -1
    Exchanged.taken += 1
    out[0] = ctypes.addressof(tensor._managed())
    return 0


def _current_stream(kind: int, device: int, out: Any) -> int:
    if Exchanged.fails == "stream":
        return -1
    assert (kind, device) == (2, 0)
    out[0] = Exchanged.works_on.value if Exchanged.works_on else None
    return 0


_TABLE = _Exchange(1, 3, None, None, _From(_hand_out), None, None, _Stream(_current_stream))
_NEWER = _Exchange(2, 0, ctypes.addressof(_TABLE))  # a version that nobody knows yet
_NAME = ctypes.create_string_buffer(b"dlpack_exchange_api")


def offer(table: str) -> Any:
    """Returns the table of this version, one with a newer version next to it, or only a newer
    one."""
    alone = _Exchange(2, 0, None)
    _handed_out.append(alone)
    chosen = {"known": _TABLE, "also newer": _NEWER, "only newer": alone}[table]
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
    return new(ctypes.addressof(chosen), ctypes.addressof(_NAME), None)


class Interface:
    """An array that has only ``__cuda_array_interface__``."""

    def __init__(self, tensor: Tensor, **changes: Any) -> None:
        self.tensor, self.changes = tensor, changes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        t = self.tensor
        row = {
            "shape": t.shape,
            "typestr": t.array_dtype.str,
            "data": (t.memory.address, t.read_only),
            "version": 3,
            "stream": None if t.stream is None else t.stream.value,
        }
        return {**row, **self.changes}
