"""Arrays from and to other libraries, without copies; bf16."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import cutback
from cutback import _native, dtypes
from cutback.run import arrays


class Tensor:
    """What another library would hand over: DLPack and nothing else."""

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
    raw = cutback.RawArray(bits)
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
        x = cutback.RawArray(np.array([0x3F80, 0x4020], np.uint16))
        y = cutback.compile(lambda x: x * 2, argnums=None)(x)
        assert isinstance(y, cutback.RawArray)
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
