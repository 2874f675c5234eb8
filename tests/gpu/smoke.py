"""The basic operations of a step on a card, each in its own process.

python smoke.py --list smoke     python smoke.py --item kernel

Only the item ``torch`` needs PyTorch, whose import takes seconds: it repeats updates, streams and
DLPack with PyTorch tensors.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import Any

BEGIN = time.perf_counter()
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import facts
import items
import numpy as np

import cutback as cb
from cutback import cuda
from cutback.nn import functional as F

IMPORTED = time.perf_counter()


class Plain:
    """A device array that exposes only DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)


def kernel() -> dict[str, Any]:
    """Runs one elementwise kernel: checks that it has the CPU's bits, and measures the seconds to
    the first result and of a later call."""
    x = np.linspace(-3, 3, 100_003, dtype=np.float32)
    name = cuda.prepare()
    step = cb.compile(lambda x: cb.exp(x) * 2, argnums=None, device="cuda")
    begin = time.perf_counter()
    y = np.asarray(step(x))
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    step(x)
    following = time.perf_counter() - begin
    expected = np.asarray(cb.compile(lambda x: cb.exp(x) * 2, argnums=None)(x))
    result = {
        "gpu": name,
        "import s": round(IMPORTED - BEGIN, 3),
        "first s": round(first, 3),
        "next ms": round(1e3 * following, 3),
        "opened": facts.opened(),
    }
    items.show(result)
    equal = int((y.view(np.int32) == expected.view(np.int32)).sum())
    difference = float(np.abs(y / expected - 1).max())
    assert difference < 1e-5, f"exp(x) * 2 differs by {difference:.1e} of itself from the CPU's"
    return result | {"elements": x.size, "equal": equal}


def product() -> dict[str, Any]:
    """Compares a matrix product with one side transposed with NumPy in double."""
    a, b = (np.random.default_rng(k).standard_normal((300, 200), np.float32) for k in range(2))
    got = np.asarray(cb.compile(lambda a, b: a @ b.T, argnums=None, device="cuda")(a, b))
    expected = a.astype(np.float64) @ b.T.astype(np.float64)
    difference = float(np.abs(got - expected).max() / np.abs(expected).max())
    result = {"difference": difference, "opened": facts.opened()}
    items.show(result)
    assert difference < 1e-5, f"a product differs by {difference:.1e} from NumPy's"
    return result


def update() -> dict[str, Any]:
    """Checks that a step of SGD updates a device array in place."""
    step = cb.compile(lambda w: (w * w).sum(), optimizer=cb.optim.SGD(lr=0.25), device="cuda")
    w = cuda.to_device(np.ones(1000, np.float32))
    before = w.__cuda_array_interface__["data"][0]
    loss = float(step(w))
    after = w.__cuda_array_interface__["data"][0]
    assert after == before, "the parameter has moved"
    assert loss == 1000 and (w.numpy() == 0.5).all(), (loss, w.numpy()[:4])
    return {"loss": loss}


def stream() -> dict[str, Any]:
    """Runs a step on another stream, made by the caller."""
    step = cb.compile(lambda w: (w * w).sum(), optimizer=cb.optim.SGD(lr=0.25), device="cuda")
    w = cuda.to_device(np.ones(1000, np.float32))
    driver, context, made = facts.Driver(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuInit", 0)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    driver.call("cuCtxPushCurrent", context)
    driver.call("cuStreamCreate", ctypes.byref(made), 1)  # not blocking
    step(w, stream=made.value)
    step.wait()
    driver.call("cuStreamSynchronize", made)
    assert (w.numpy() == 0.5).all(), w.numpy()[:4]
    return {"stream": hex(made.value or 0)}


def dlpack() -> dict[str, Any]:
    """Checks DLPack both ways: others read results, and a step takes arrays of others."""
    step = cb.value_and_grad(lambda w: (w * w).sum(), device="cuda")
    host = np.linspace(-1, 1, 3000, dtype=np.float32)
    _, grad = step(Plain(cuda.to_device(host)))
    assert isinstance(grad, cuda.DeviceArray), type(grad)
    _, again = step(Plain(grad))
    assert (again.numpy() == 4 * host).all(), again.numpy()[:4]
    return {"elements": host.size}


def with_torch() -> dict[str, Any]:
    """Checks PyTorch's tensors: updated in place, on one of their streams, and through DLPack both
    ways."""
    try:
        import torch
    except Exception as error:
        return {"left out": items.no_torch(error)}
    if not torch.cuda.is_available():
        return {"left out": "PyTorch sees no GPU"}
    result: dict[str, Any] = {"torch": torch.__version__}
    step = cb.compile(lambda w: (w * w).sum(), optimizer=cb.optim.SGD(lr=0.25), device="cuda")
    t = torch.ones(1000, device="cuda")
    before = t.data_ptr()
    step(t)
    assert t.data_ptr() == before and bool((t == 0.5).all()), t[:4]
    items.show(result := result | {"in place": "ok"})
    t = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        step(t, stream=other)
        quadruple = t * 4
    other.synchronize()
    step.wait()
    assert bool((quadruple == 2).all()), quadruple[:4]
    items.show(result := result | {"another stream": "ok"})
    host = np.linspace(-1, 1, 3000, dtype=np.float32)
    _, theirs = cb.value_and_grad(lambda w: (w * w).sum(), device="cuda")(
        torch.from_numpy(host).cuda()
    )
    read = torch.from_dlpack(theirs)
    del theirs
    assert (read.cpu().numpy() == 2 * host).all(), read[:4]
    return result | {"DLPack": "ok", "opened": facts.opened()}


def index() -> dict[str, Any]:
    """Checks that the error for an index out of range contains the index, that nothing changes, and
    that the next call is right."""
    table = np.ones((5, 8), np.float32)
    step = cb.compile(
        lambda w, i: (F.embedding(i, w) ** 2).sum(), optimizer=cb.optim.SGD(lr=0.1), device="cuda"
    )
    try:
        step(table, np.array([0, 5], np.int64))
    except (ValueError, IndexError) as error:
        assert "5" in str(error), error
        said = str(error)
    else:
        raise AssertionError("an index of 5 into 5 rows was taken")
    assert (table == 1).all(), "a failed step has changed the table"
    step(table, np.array([0, 4], np.int64))
    assert (table != 1).any(axis=1).tolist() == [True, False, False, False, True]
    return {"said": said}


def _smoke() -> dict[str, items.Item]:
    found = (kernel, product, update, stream, dlpack, index)
    return {f.__name__: (25, f) for f in found} | {"torch": (28, with_torch)}


if __name__ == "__main__":
    sys.exit(items.main({"smoke": _smoke}))
