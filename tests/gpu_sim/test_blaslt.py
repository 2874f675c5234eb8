"""Products by cuBLASLt, on a library that checks its arguments strictly (blaslt/blaslt.c): they
agree with the backend's own kernels, nothing leaks, and a failed call is an error."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import BUILD, Driver
from cutback import cli, cuda, cuda_libraries

HEADER_NAMES = re.findall(
    r"BLASLT\((\w+)", (Path(__file__).parents[2] / "cuda" / "cu_entries.def").read_text()
)


class Fake:
    """The library's hooks for tests."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(BUILD / "libfake_blaslt.so"))
        self.library.fake_reason.restype = ctypes.c_char_p

    def fail(self, entry: str, nth: int, code: int = 13) -> None:
        self.library.fake_fail(entry.encode(), nth, code)

    @property
    def products(self) -> int:
        return int(self.library.fake_products())


@pytest.fixture
def fake(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    path = BUILD / "libfake_blaslt.so"
    monkeypatch.setenv("CUTBACK_CUBLASLT", str(path))
    fake = Fake()
    alive = fake.library.fake_alive()
    yield fake
    fake.fail("", 0)
    assert fake.library.fake_alive() == alive


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def products(x: Any, y: Any, z: Any, w: Any) -> list[Any]:
    """Computes all layouts of matrices, batches, and operands that the library does not take."""
    return [
        x @ y,
        y.T @ x.T,
        x[:, 8:40] @ y[8:40],
        x[:, 3:] @ y[3:],  # not aligned
        x[:1] @ y,  # one row
        x @ y[:, :1],
        x.T @ x,
        z @ w,
        z @ w[0, 0],  # one matrix that all share
        w.swapaxes(-1, -2) @ z.swapaxes(-1, -2),
        z.swapaxes(0, 1) @ w.swapaxes(0, 1),  # batches at several distances
    ]


TAKEN = 10
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 1e-5, "float64": 1e-13}


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(n, marks=pytest.mark.very_slow) if n == "float16" else n for n in TOLERANCE],
)
def test_they_agree_with_our_own(fake: Fake, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """The products agree with ours relative to the largest element, because sums are in another
    order. They run in several orders of work."""
    wide = "float64" if dtype == "float64" else "float32"

    def f(*arrays: Any) -> Any:
        return [p.astype(wide) for p in products(*(a.astype(dtype) for a in arrays))]

    shapes = (24, 48), (48, 16), (2, 3, 10, 16), (2, 3, 16, 12)
    arrays = [numbers(*shape, dtype=wide) for shape in shapes]
    before = fake.products
    by_library = cb.compile(f, argnums=None, device="cuda")
    results = by_library(*arrays)
    assert fake.products == before + TAKEN
    again = by_library(*arrays)
    monkeypatch.setenv("CUTBACK_CUBLASLT", "none")
    own = cb.compile(f, argnums=None, device="cuda")(*arrays)
    assert fake.products == before + 2 * TAKEN
    for got, same, want in zip(results, again, own, strict=True):
        assert got.tobytes() == same.tobytes()
        assert np.abs(got - want).max() <= TOLERANCE[dtype] * np.abs(want).max()


def test_the_bits_do_not_depend_on_the_plan(fake: Fake, gpu: Driver) -> None:
    def loss(params: Any, x: Any) -> Any:
        h = x
        for w in params:
            h = cb.tanh(h @ w)
        return (h * h).mean()

    found = []
    for seed, preset in enumerate(("autograd", "recompute_all")):
        gpu.seed(seed)
        params = [numbers(16, 16, seed=k) for k in range(3)]
        step = cb.compile(loss, optimizer=cb.optim.SGD(lr=0.1), device="cuda", preset=preset)
        losses = [float(step(params, numbers(20, 16, seed=9))) for _ in range(2)]
        found.append((losses, [w.tobytes() for w in params]))
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_its_memory_is_the_plans(fake: Fake, gpu: Driver, dtype: Any) -> None:
    """A long inner axis may be summed in four parts, in planned memory. Later runs allocate
    nothing."""
    x, y = numbers(20, 1100, dtype=dtype), numbers(1100, 30, dtype=dtype)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    x, y = cuda.to_device(x), cuda.to_device(y)
    step = cb.compile(lambda x, y: x @ y, argnums=None, device="cuda")
    assert np.allclose(step(x, y), exact, atol=1e-3)
    stats = step.stats
    assert stats and stats.peak_bytes >= 4 * exact.size * np.dtype(dtype).itemsize
    held, stream = step(x, y), gpu.stream()
    del held
    for entry in ("cuMemAlloc_v2", "cuMemAllocAsync", "cuCtxSynchronize", "cuStreamSynchronize"):
        gpu.fail(entry, 1, 999)
    step(x, y, stream=stream.value)
    for entry in ("cuMemAlloc_v2", "cuMemAllocAsync", "cuCtxSynchronize", "cuStreamSynchronize"):
        gpu.fail(entry, 0)
    step.wait()


def test_arguments_that_are_not_aligned(fake: Fake, gpu: Driver) -> None:
    """The algorithm is chosen at run time, so the library is never promised more alignment than
    there is."""
    from foreign import Tensor

    x = Tensor(gpu, np.concatenate([np.zeros(1, np.float32), numbers(12 * 12)]))
    x.memory, x.shape = x.memory + 4, (12, 12)
    y = cuda.to_device(numbers(12, 12, seed=2))
    step = cb.compile(lambda x, y: x @ y, argnums=None, device="cuda")
    before = fake.products
    got = step(x, y).numpy()
    assert fake.products == before + 1
    assert np.allclose(got, numbers(12 * 12).reshape(12, 12) @ y.numpy(), atol=1e-5)


def test_what_it_does_not_have_is_a_kernel(fake: Fake) -> None:
    x = numbers(8, 8)
    before = fake.products
    fake.fail("heuristic", 1)
    assert np.allclose(
        cb.compile(lambda x: x @ x, argnums=None, device="cuda")(x), x @ x, atol=1e-5
    )
    fake.fail("heuristic", 2)
    assert np.allclose(
        cb.compile(lambda x: x @ x, argnums=None, device="cuda")(x), x @ x, atol=1e-5
    )
    assert fake.products == before


def test_each_call_that_fails_once_is_one_clean_error(fake: Fake) -> None:
    x = numbers(2, 8, 8)
    f = lambda x: x @ x.swapaxes(-1, -2)  # noqa: E731
    good = cb.compile(f, argnums=None, device="cuda")(x).tobytes()
    failed = []
    for entry in HEADER_NAMES:
        if "Destroy" in entry:
            continue
        for nth in range(1, 50):
            fake.fail(entry, nth, 3 if "Create" in entry else 13)
            try:
                assert cb.compile(f, argnums=None, device="cuda")(x).tobytes() == good
            except (RuntimeError, MemoryError) as error:
                assert entry in str(error) and "CUBLAS_STATUS_" in str(error)
                assert isinstance(error, MemoryError) == ("Create" in entry)
                failed.append(entry)
            if not fake.library.fake_is_due():
                continue
            break
        fake.fail("", 0)
    assert set(failed) == {name for name in HEADER_NAMES if "Destroy" not in name}


@pytest.mark.very_slow
def test_where_it_is_named(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor names the library; a file that does not exist, or of another kind, is reported."""
    assert cli.main(["doctor"]) == 0
    assert "130100 in" in capsys.readouterr().out
    monkeypatch.setenv("CUTBACK_CUBLASLT", "none")
    cli.main(["doctor"])
    assert "not used: CUTBACK_CUBLASLT=none" in capsys.readouterr().out
    x = numbers(3, 3)
    monkeypatch.setenv("CUTBACK_CUBLASLT", "/nowhere/libcublasLt.so.13")
    with pytest.raises(cuda_libraries.LibraryError, match="the file /nowhere"):
        cb.compile(lambda x: x @ x, argnums=None, device="cuda")(x)
    monkeypatch.setenv("CUTBACK_CUBLASLT", str(BUILD / "libcuda.so.1"))
    with pytest.raises(
        NotImplementedError,
        match="has no function cublasLtGetVersion; CUTBACK_CUBLASLT=none leaves",
    ):
        cb.compile(lambda x: x @ x, argnums=None, device="cuda")(x)
    cb.compile(lambda x: x + 1, argnums=None, device="cuda")(x)  # this needs no library


def test_declarations_are_those_of_the_library() -> None:
    """The real library, if installed, accepts our attributes and sizes, without a GPU."""
    import importlib.metadata

    try:
        files = importlib.metadata.files("nvidia-cublas") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-cublas is not installed")
    (path,) = (f.locate() for f in files if re.fullmatch(r"libcublasLt\.so\.\d+", f.name))
    real, p = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL), ctypes.c_void_p()

    def takes(entry: str, attribute: int, value: Any) -> bool:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        return getattr(real, entry)(p, attribute, ctypes.byref(value), size) == 0

    assert real.cublasLtMatmulDescCreate(ctypes.byref(p), 68, 0) == 0
    assert all(takes("cublasLtMatmulDescSetAttribute", a, ctypes.c_int32(1)) for a in (3, 4))
    sizes = ctypes.c_uint64(8), ctypes.c_uint64(8), ctypes.c_int64(8)
    assert real.cublasLtMatrixLayoutCreate(ctypes.byref(p), 14, *sizes) == 0
    assert takes("cublasLtMatrixLayoutSetAttribute", 5, ctypes.c_int32(2))
    assert takes("cublasLtMatrixLayoutSetAttribute", 6, ctypes.c_int64(64))
    assert real.cublasLtMatmulPreferenceCreate(ctypes.byref(p)) == 0
    assert takes("cublasLtMatmulPreferenceSetAttribute", 1, ctypes.c_uint64(1 << 20))
    for attribute in (3, 5, 6, 7, 8):
        assert takes("cublasLtMatmulPreferenceSetAttribute", attribute, ctypes.c_uint32(2))
