"""Compares small programs with the CPU. Groups give its bits; single operations (in double, and
others that no group takes) agree up to the order of their sums."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback.nn import functional as F

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def doubles(*shape: int) -> np.ndarray[Any, Any]:
    return numbers(*shape, dtype=np.float64)


def norm_of_wide_rows(w: Any, b: Any, x: Any, y: Any, z: Any) -> Any:
    """Normalizes rows of 16 KiB of three arrays, more than shared memory can hold."""
    return (F.layer_norm(x * y + z, (x.shape[-1],), w, b) ** 2).sum()


def results(f: Callable[..., Any], given: tuple[Any, ...], backend: str) -> list[Any]:
    step = cb.compile(f, argnums=None, backend=backend)
    return [np.asarray(a) for a in cb.tree.flatten(step(*given))[0]]


GROUPS: dict[str, Case] = {
    "every second column": (lambda x: x[:, ::2] * 2 + 1, (numbers(6, 64),)),
    "rows that are an odd distance apart": (lambda x: x[:, :128] * 2 + 1, (numbers(6, 129),)),
    "a number for each short row": (lambda x, y: x * y + 1, (numbers(8, 3), numbers(8, 1))),
    "rows, and a total that no vector fits": (
        lambda x: (F.softmax(x) ** 2).sum(),
        (numbers(40, 33),),
    ),
    "rows that lie across": (lambda x, y: F.softmax(x.T) + y, (numbers(64, 40), numbers(40, 64))),
    "an odd number of rows that meet at barriers": (F.softmax, (numbers(3, 3000),)),
    "rows of which two are a leaf of a total": (
        lambda x: (F.softmax(x) ** 2).sum(),
        (numbers(1057, 512),),
    ),
    "rows that two phases read": (
        lambda x, y: F.rms_norm(F.silu(x) * y, (4096,)) * y,
        (numbers(3, 4096), numbers(3, 4096)),
    ),
    "rows of two leaves": (F.softmax, (numbers(6, 1500),)),
    "rows that are one longer than the lanes": (F.softmax, (numbers(5, 129),)),
    "rows too long for shared memory": (
        lambda x: F.softmax(F.layer_norm(cb.exp(x), (7000,))),
        (numbers(2, 7000),),
    ),
    "the first number of a row is all that a later kernel reads": (
        lambda x: (x - x.max(axis=-1, keepdims=True)).sum(axis=0),
        (numbers(4, 128),),
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_bits_of_groups(gpu: Driver, name: str) -> None:
    f, given = GROUPS[name]
    found, expected = (results(f, given, backend) for backend in ("cuda", "cpu"))
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def test_gradients_of_a_norm_of_wide_rows(gpu: Driver) -> None:
    given = [numbers(4096), numbers(4096), *(numbers(64, 4096) for _ in range(3))]
    found, expected = (
        cb.grad(norm_of_wide_rows, argnums=(0, 1, 2), backend=backend)(*given)
        for backend in ("cuda", "cpu")
    )
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


@pytest.mark.parametrize("columns", [3072, 8192, 33 * 1024])
def test_bits_of_rows_of_whole_leaves(gpu: Driver, columns: int) -> None:
    given = (numbers(2, columns),)

    def f(x: Any) -> Any:
        return F.softmax(F.layer_norm(x, (columns,)))

    found, expected = (results(f, given, backend) for backend in ("cuda", "cpu"))
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def norms(x: Any) -> Any:
    """Normalizes numbers far from zero, so that a wrong mean or variance is noticed."""
    return F.layer_norm(x, (x.shape[-1],)), F.rms_norm(x, (x.shape[-1],))


def norm_of_batch(x: Any) -> Any:
    return F.batch_norm(x, None, None, training=True)


def whole_numbers(x: Any) -> Any:
    return x.astype("i64"), x.astype("i32"), x.astype("u8")


def ends_of_ranges(dtype: Any) -> np.ndarray[Any, Any]:
    """Returns the limits of integers, neighbouring floats, and numbers outside every integer
    type."""
    ends = np.array([0, 255, 256, 2.0**31 - 1, 2.0**31, -(2.0**31), 2.0**63, -(2.0**63)], dtype)
    beside = [np.nextafter(ends, dtype(way * np.inf)) for way in (1, -1)]
    return np.concatenate([ends, *beside, np.array([np.inf, -np.inf, np.nan, 1.5, -1.5], dtype)])


def extremes(x: Any) -> Any:
    return x.max(axis=0), x.min(axis=0), x.max(), x.min(), cb.argmax(x, axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_signs_of_zeros_that_are_extremes(gpu: Driver, dtype: Any) -> None:
    """The sign is right with one thread or one block per result, and with the zeros in all
    orders."""
    short = np.array(list(itertools.product([0.0, -0.0], repeat=3)), dtype)
    long = np.where(np.arange(300) % 7 < 3, 0.0, -0.0).astype(dtype).reshape(2, 150)

    def both(x: Any, axis: Any) -> Any:
        return x.max(axis=axis), x.min(axis=axis)

    for x, axis in ((short, 1), (short.T, 0), (long, 1), (long, 0), (long, None)):
        found, expected = (
            results(functools.partial(both, axis=axis), (np.ascontiguousarray(x),), backend)
            for backend in ("cuda", "cpu")
        )
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


ONE_BY_ONE: dict[str, Case] = {
    "dropout": (lambda x: F.dropout(x, 0.25), (doubles(5, 7),)),
    "triangles": (cb.tril, (doubles(2, 5, 7),)),
    "norms": (norms, (doubles(5, 300) * 3 + 2,)),
    "norm of a batch": (norm_of_batch, (doubles(6, 3, 5) * 3 + 2,)),
    "norm of a batch in pieces": (norm_of_batch, (doubles(24, 8, 20, 20) * 3 + 2,)),
    "integers of doubles": (whole_numbers, (ends_of_ranges(np.float64),)),
    "integers of floats": (whole_numbers, (ends_of_ranges(np.float32),)),
    "extremes": (extremes, (doubles(4, 200),)),
    "sums": (lambda x: (x.sum(), x.sum(axis=0)), (doubles(4, 200),)),
    "three behind one another": (
        lambda x, y, z: cb.concatenate([x, y, z], axis=1),
        (doubles(3, 2), doubles(3, 1), doubles(3, 4)),
    ),
}


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_operations_one_by_one(gpu: Driver, name: str) -> None:
    """Runs in several orders of threads."""
    f, given = ONE_BY_ONE[name]
    step, expected = cb.compile(f, argnums=None, backend="cuda"), results(f, given, "cpu")
    for seed in range(4):
        gpu.seed(seed)
        step.rng_step = 0
        found = [np.asarray(a) for a in cb.tree.flatten(step(*given))[0]]
        for got, want in zip(found, expected, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
