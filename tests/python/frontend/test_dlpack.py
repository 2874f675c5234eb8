"""Tests the zero-copy exchange of arrays with other libraries, and bf16."""

from __future__ import annotations

import ctypes
import sys
from typing import ClassVar

import numpy as np
import pytest

import cutback
from cutback import _native, dtypes
from cutback.run import arrays
from cutback.run.arrays import RawArray


class Tensor:
    """Stands in for an object of another library: it has only the DLPack methods."""

    def __init__(self, array, versioned=True, device=(1, 0)):
        self.array = array
        self.versioned = versioned
        self.device = device

    def __dlpack__(self, **kwargs):
        if not self.versioned and kwargs:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize("code", ["?", "u1", "i4", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("versioned", [False, True])
def test_import_shares_memory(code, versioned):
    a = np.arange(12).reshape(3, 4).astype(code)
    got, dtype = _native.from_dlpack(Tensor(a, versioned), "a")
    assert dtypes.to_numpy(dtype) == a.dtype
    assert np.shares_memory(got, a)
    np.testing.assert_array_equal(got, a)


def test_import_keeps_strides_and_read_only():
    a = np.arange(12.0).reshape(3, 4).T
    got, _ = _native.from_dlpack(Tensor(a), "a")
    assert got.strides == a.strides
    a.flags.writeable = False
    got, _ = _native.from_dlpack(Tensor(a), "a")
    assert not got.flags.writeable


def test_import_keeps_the_exporter_alive_and_lets_it_go():
    a = np.arange(12.0)
    before = sys.getrefcount(a)
    got, _ = _native.from_dlpack(Tensor(a), "a")
    assert sys.getrefcount(a) > before
    del got
    assert sys.getrefcount(a) == before


def test_a_step_updates_the_exporters_memory():
    w = np.ones((3, 2), np.float32)
    step = cutback.compile(lambda p, x: (x @ p).sum(), optimizer=cutback.optim.AdamW(lr=0.1))
    loss = step(Tensor(w), Tensor(np.ones((4, 3), np.float32)))
    assert float(loss) == 24
    assert not np.any(w == 1)


def test_what_cannot_be_imported():
    with pytest.raises(TypeError, match=r"x: DLPack type \(code 0, 16 bits"):
        _native.from_dlpack(Tensor(np.zeros(3, np.int16)), "x")
    with pytest.raises(AttributeError):
        _native.from_dlpack(object(), "x")

    class Broken:
        def __dlpack__(self, **kwargs):
            raise BufferError("lives elsewhere")

    with pytest.raises(ValueError, match="x: lives elsewhere"):
        arrays.as_array(Broken(), "x")

    class Wrong:
        def __dlpack__(self, **kwargs):
            return 3

    with pytest.raises((TypeError, ValueError)):
        _native.from_dlpack(Wrong(), "x")


def test_export_round_trip():
    bits = np.array([[0x3F80, 0x4000]], np.uint16)  # 1.0, 2.0
    raw = RawArray(bits)
    assert raw.shape == (1, 2) and raw.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(raw.astype(np.float64), [[1, 2]])
    got, dtype = _native.from_dlpack(raw, "raw")
    assert dtype == "bf16"
    assert np.shares_memory(got, bits)
    before = sys.getrefcount(bits)
    capsule = raw.__dlpack__()
    assert sys.getrefcount(bits) == before + 1
    del capsule
    assert sys.getrefcount(bits) == before
    with pytest.raises(BufferError):
        _native.to_dlpack(np.zeros((4, 4), np.uint16).T, "bf16")
    with pytest.raises(BufferError):
        _native.to_dlpack(bits, "f32")


def test_bf16_with_ml_dtypes():
    ml = pytest.importorskip("ml_dtypes")
    x = np.array([1.0, 2.5, -3.0], ml.bfloat16)
    y = cutback.compile(lambda x: x * 2 + 1, argnums=None)(x)
    assert y.dtype == ml.bfloat16
    np.testing.assert_array_equal(y.astype(np.float32), [3, 6, -5])
    value, grad = cutback.value_and_grad(lambda x: (x.astype("f32") ** 2).sum())(x)
    assert grad.dtype == ml.bfloat16 and value.dtype == np.float32
    np.testing.assert_array_equal(grad.astype(np.float32), [2, 5, -6])


def test_bf16_without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes.bfloat16.cache_clear()
    try:
        x = RawArray(np.array([0x3F80, 0x4020], np.uint16))
        y = cutback.compile(lambda x: x * 2, argnums=None)(x)
        assert isinstance(y, RawArray)
        np.testing.assert_array_equal(y.astype(np.float32), [2, 5])
        np.testing.assert_array_equal(
            cutback.compile(lambda x: x.astype("f32"), argnums=None)(y), [2, 5]
        )
    finally:
        monkeypatch.undo()
        dtypes.bfloat16.cache_clear()


@pytest.mark.torch
def test_torch_tensors():
    torch = pytest.importorskip("torch")
    w = torch.ones(3, 2)
    step = cutback.compile(lambda p, x: (x @ p).sum(), optimizer=cutback.optim.AdamW(lr=0.1))
    step(w, torch.ones(4, 3))
    assert not bool((w == 1).any())


class Crafted:
    """A capsule with fields chosen by the test: (data, ndim, shape, strides). It must outlive the
    array made from it, which calls its deleter."""

    alive: ClassVar[list[Crafted]] = []

    class Managed(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint8 * 4),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("offset", ctypes.c_uint64),
            ("manager", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        )

    def __init__(self, shape, ndim=None, strides=None, memory=True):
        self.alive.append(self)
        self.array = np.arange(16, dtype=np.float32)
        self.managed = m = self.Managed()
        m.data = self.array.ctypes.data if memory else None
        m.device[0], m.dtype[0], m.dtype[1], m.dtype[2] = 1, 2, 32, 1
        m.ndim = len(shape) if ndim is None else ndim
        self.lists = [(ctypes.c_int64 * len(x))(*x) for x in (shape, strides or ())]
        m.shape = self.lists[0] if shape is not None and len(shape) else None
        m.strides = self.lists[1] if strides else None

    def __dlpack__(self, **kwargs):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.managed), b"dltensor", None)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (Crafted((4,), ndim=-1), "-1 dimensions"),
        (Crafted((4,), ndim=2**30), "1073741824 dimensions"),
        (Crafted((), ndim=2), "reports 2 dimensions, but no shape"),
        (Crafted((4, -1)), "dimension 1 has -1 elements"),
        (Crafted((4,), strides=(2**62 + 1,)), "dimension 0 has a stride of"),
        (Crafted((4,), memory=False), "has elements, but no memory"),
    ],
)
def test_fields_are_checked_before_they_are_used(tensor, words):
    """Fields are checked on both paths: as an array of the host, and one by one for a device."""
    with pytest.raises(ValueError, match=words):
        _native.from_dlpack(tensor, "x")
    with pytest.raises(ValueError, match=words):
        _native.dlpack_parts(tensor, "x", 1)


def test_fields_that_may_be_missing():
    assert _native.from_dlpack(Crafted(()), "x")[0].shape == ()
    assert _native.from_dlpack(Crafted((0, 3), memory=False), "x")[0].shape == (0, 3)


def test_read_only_arrays_are_never_handed_out_as_writable():
    a = np.arange(4, dtype=np.float32)
    a.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        _native.to_dlpack(a, "f32")
    raw = arrays.RawArray(np.zeros(3, np.uint16))
    assert "dltensor_versioned" not in repr(raw.__dlpack__())
    raw.bits.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        raw.__dlpack__()
    capsule = raw.__dlpack__(max_version=(1, 0))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    fields = (ctypes.c_uint64 * 4).from_address(pointer(capsule, b"dltensor_versioned"))
    assert fields[3] & 1  # DLPACK_FLAG_BITMASK_READ_ONLY
