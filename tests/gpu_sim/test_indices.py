"""The limits of an index, for each operation that takes one: the last row is read, and an index
equal to the number of rows fails the run by name. Tables are separate tensors, so that a read past
their end is out of bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback.nn import functional as F
from foreign import Tensor


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


def taken(x: Any, i: Any) -> Any:
    return cb.take_along_axis(x, i, axis=1)


def total_of_taken(x: Any, i: Any) -> Any:
    return (taken(x, i) ** 2).sum()


def total_of_looked_up(x: Any, i: Any) -> Any:
    return (F.embedding(i, x) ** 2).sum()


def total_loss(x: Any, i: Any) -> Any:
    return F.cross_entropy(x, i, reduction="sum")


class Case(NamedTuple):
    """``f(x, index)`` or its gradient; ``n`` is the number of rows or classes that an index selects
    from."""

    f: Callable[[Any, Any], Any]
    gradient: bool
    x: np.ndarray[Any, Any]
    index: np.ndarray[Any, Any]
    n: int
    words: str = "rows"


ONE_A_ROW = np.array([[1], [0], [2]], np.int64)
SEVERAL = np.array([[1, 2], [0, 0], [2, 1]], np.int32)
CASES = {
    "embedding": Case(lambda x, i: F.embedding(i, x), False, numbers(5, 3), SEVERAL, 5),
    "embedding, gradient": Case(total_of_looked_up, True, numbers(5, 3), SEVERAL, 5),
    "gather in a group": Case(taken, False, numbers(3, 64), ONE_A_ROW, 64),
    "gather of several": Case(taken, False, numbers(3, 6), SEVERAL, 6),
    "gather of one": Case(
        taken, False, numbers(1, 6, dtype=np.float64), np.array([[1]], np.int64), 6
    ),
    "gather, gradient": Case(total_of_taken, True, numbers(3, 6), SEVERAL, 6),
    "labels": Case(total_loss, True, numbers(3, 128), ONE_A_ROW[:, 0], 128, "classes"),
    "labels in double": Case(
        total_loss, True, numbers(3, 7, dtype=np.float64), SEVERAL[:, 0], 7, "classes"
    ),
}


def results(case: Case, given: tuple[Any, Any], backend: str) -> list[bytes]:
    if case.gradient:
        found = cb.value_and_grad(case.f, backend=backend)(*given)
        return [np.asarray(a).tobytes() for a in found]
    return [np.asarray(cb.compile(case.f, argnums=None, backend=backend)(*given)).tobytes()]


@pytest.mark.parametrize("name", CASES)
def test_an_index_at_the_end(gpu: Driver, name: str) -> None:
    case = CASES[name]
    for value in (case.n - 1, case.n, -1):
        index = case.index.copy()
        index.flat[-1] = value  # it is read last
        given = Tensor(gpu, case.x), Tensor(gpu, index)
        if value == case.n - 1:
            here = results(case, (case.x, index), "cpu")
            for got, want in zip(results(case, given, "cuda"), here, strict=True):
                got_numbers, want_numbers = (np.frombuffer(b, case.x.dtype) for b in (got, want))
                np.testing.assert_allclose(got_numbers, want_numbers, rtol=1e-5)
        else:
            with pytest.raises(
                ValueError, match=rf"{value} out of range for {case.n} {case.words}"
            ):
                results(case, given, "cuda")
        assert (given[0].get() == case.x).all()
