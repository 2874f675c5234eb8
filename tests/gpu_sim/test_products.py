"""16-bit matrix products on tensor cores, as the backend emits them: all layouts, edges and
alignments, with race detection. Sums of integers are exact, so the bits are known."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback import cuda

# rows, inner, columns: one element; less than a tile; whole tiles; edges of one and of seven
SIZES = [(1, 1, 1), (5, 3, 7), (64, 32, 64), (70, 40, 72), (129, 65, 31), (16, 200, 8), (40, 0, 9)]
HALVES = [pytest.param("float16", marks=pytest.mark.very_slow), "bfloat16"]


def whole(*shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def rounded(x: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Rounds to the nearest number of the type, ties to even."""
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    bits = x.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def swapped(x: Any) -> Any:
    return x.swapaxes(-1, -2)


# Layouts of a matrix: the function that reads it from an array, and the array made from the matrix.
LAYOUTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "rows": (lambda x: x, lambda x: x),
    "columns": (swapped, swapped),
    "part": (lambda x: x[:, 1:-2], lambda x: np.pad(x, ((0, 0), (1, 2)))),
    "part of columns": (lambda x: swapped(x)[8:], lambda x: swapped(np.pad(x, ((8, 0), (0, 0))))),
}
PAIRS = [
    ("rows", "rows"),
    ("columns", "rows"),
    ("rows", "columns"),
    ("columns", "columns"),
    ("part", "part"),
    ("part of columns", "part"),
    ("part", "part of columns"),
]


@pytest.mark.parametrize("dtype", HALVES)
def test_all_sizes_and_layouts(gpu: Driver, dtype: str) -> None:
    """One program computes all of them, in four orders."""
    cases, arrays, expected = [], [], []
    for seed, (n, k, m) in enumerate(SIZES):
        x, y = whole(n, k, seed=seed), whole(k, m, seed=seed + 100)
        for of_x, of_y in PAIRS[seed % 2 :: 2] if seed not in (2, 3) else PAIRS[:4]:
            cases.append((LAYOUTS[of_x][0], LAYOUTS[of_y][0]))
            arrays += [LAYOUTS[of_x][1](x), LAYOUTS[of_y][1](y)]
            expected.append(rounded(x @ y, dtype))

    def f(*given: Any) -> Any:
        halves = [a.astype(dtype) for a in given]
        pairs = zip(halves[::2], halves[1::2], cases, strict=True)
        return [(one(x) @ other(y)).astype("float32") for x, y, (one, other) in pairs]

    step = cb.compile(f, argnums=None, device="cuda")
    arrays = [np.ascontiguousarray(a) for a in arrays]
    for seed in (0, 1, 2, 3):
        gpu.seed(seed)
        for got, want in zip(step(*arrays), expected, strict=True):
            assert got.tobytes() == (want + 0.0).tobytes(), (want.shape, seed)


def test_batches(gpu: Driver) -> None:
    """Batches have a different matrix per entry, or one shared by all, and large tiles."""
    x, y = whole(2, 3, 20, 24), whole(2, 3, 24, 40, seed=2)
    shared, many, other = whole(24, 40, seed=3), whole(128, 100, 16, seed=4), whole(128, 16, 97)

    def f(*given: Any) -> Any:
        x, y, shared, many, other = (a.astype("float16") for a in given)
        products = x @ y, x @ shared, swapped(y) @ swapped(x), many @ other
        return [p.astype("float32") for p in products]

    results = cb.compile(f, argnums=None, device="cuda")(x, y, shared, many, other)
    expected = x @ y, x @ shared, swapped(y) @ swapped(x), many @ other
    for got, want in zip(results, expected, strict=True):
        assert np.array_equal(got, rounded(want, "float16"))


def test_matrices_at_odd_distances(gpu: Driver) -> None:
    """Lines of each matrix are a multiple of 16 bytes apart, but the matrices are not."""
    rng = np.random.default_rng(9)
    x, y = (rng.integers(-4, 5, n).astype(np.float16) for n in ((3, 65), (8, 16)))
    step = cb.compile(lambda x, y: x[:, :64].reshape(3, 8, 8) @ y, argnums=None, device="cuda")
    assert np.array_equal(step(x, y), x[:, :64].reshape(3, 8, 8) @ y)


@pytest.mark.parametrize("dtype", [np.float16])
def test_arguments_that_are_not_aligned(gpu: Driver, dtype: Any) -> None:
    """The alignment found at run time changes no bit."""
    rng = np.random.default_rng(8)
    x, y = (rng.standard_normal((72, 72)).astype(dtype) for _ in range(2))
    step = cb.compile(lambda x, y: x @ y, argnums=None, device="cuda")
    expected = step(cuda.to_device(x), cuda.to_device(y)).numpy()
    ahead = np.concatenate([np.zeros(1, dtype), x.ravel()])
    part = cb.compile(lambda a, y: a[1:].reshape(72, 72) @ y, argnums=None, device="cuda")
    assert part(ahead, y).tobytes() == expected.tobytes()
    exact = x.astype(np.float64) @ y.astype(np.float64)
    assert np.abs(expected - exact).max() < 2**-10 * np.abs(exact).max()


KEPT = """
import ctypes, os, sys
driver = ctypes.CDLL(os.environ["CUTBACK_CUDA_DRIVER"])
driver.sim_set(b"capability", ctypes.c_long(int(sys.argv[2])))
import numpy as np, cutback as cb
x = np.ones((16, 16), sys.argv[1])
assert (cb.compile(lambda x: x @ x, argnums=None, device="cuda")(x) == 16).all()
"""


@pytest.mark.parametrize(
    ("dtype", "capability", "on_cores"),
    [("float16", 80, True), ("float16", 75, False), ("float32", 90, False)],
)
def test_where_tensor_cores_are_used(
    gpu: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    dtype: str, capability: int, on_cores: bool,
) -> None:  # fmt: skip
    """f32 products stay f32; devices before 8.0 lack these instructions."""
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", KEPT, dtype, str(capability)], check=True)
    (image,) = tmp_path.glob("[0-9a-f][0-9a-f]/*.bin")
    ptx = image.read_bytes().decode("latin1")
    for part in (r"mma\.sync\S+f16", r"ldmatrix\S+x4", r"cp\.async\.cg"):
        assert bool(re.search(part, ptx)) == on_cores, part
    assert not on_cores or "st.global.v4" in ptx
