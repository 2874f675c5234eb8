"""Arrays of other libraries at any offset from a 16-byte boundary: kernels with wide accesses must
check each address, and give the bits of aligned arrays. The stand-in reports a wide access at an
address that is not a multiple of its width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback.nn import functional as F
from foreign import Tensor


class Shifted(Tensor):
    """A tensor whose first element is ``shift`` bytes after a 16-byte boundary. No access in bounds
    touches the memory around it."""

    def __init__(self, driver: Driver, array: np.ndarray[Any, Any], shift: int) -> None:
        super().__init__(driver, np.zeros(array.nbytes + 16, np.uint8))
        whole = self.memory
        assert whole.address % 16 == 0
        bytes_of = np.full(array.nbytes + 16, 0xAB, np.uint8)
        bytes_of[shift : shift + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view("u1")
        self.bytes_of, self.start = driver.put(bytes_of), shift
        self.memory, self.shape, self.array_dtype = self.bytes_of + shift, array.shape, array.dtype

    def is_alone(self) -> bool:
        """True if the bytes around the array are unchanged."""
        bytes_of = self.driver.get(self.bytes_of, np.uint8, self.bytes_of.size)
        end = self.start + int(np.prod(self.shape)) * self.array_dtype.itemsize
        return bool((bytes_of[: self.start] == 0xAB).all() and (bytes_of[end:] == 0xAB).all())


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def gradients(x: Any, w: Any, b: Any, y: Any) -> Any:
    """Returns gradients; that of the norm sums rows and columns in one kernel."""
    return ((F.layer_norm(x, w, b) @ y) ** 2).sum()


HALF = np.float16
# a function, what to differentiate, and its arguments; each array is accessed in 16-byte units if
# all are aligned
PROGRAMS: dict[str, tuple[Callable[..., Any], Any, list[np.ndarray[Any, Any]]]] = {
    "elements": (lambda x, y: x * 2 + y, None, [numbers(260), numbers(260)]),
    "elements of halves": (lambda x, y: x * 2 + y, None, [numbers(264, dtype=HALF)] * 2),
    "choices": (
        lambda c, x, y: cb.where(c, x, y),
        None,
        [numbers(260) > 0, numbers(260), 2 * numbers(260)],
    ),
    "rows": (F.softmax, None, [numbers(5, 132)]),
    "rows of halves": (F.softmax, None, [numbers(5, 136, dtype=HALF)]),
    "turned": (lambda x: x.T * 2, None, [numbers(40, 36)]),
    "copies": (lambda x: x.T.reshape(-1), None, [numbers(40, 36)]),
    "copies of halves": (lambda x: x.T.reshape(-1), None, [numbers(40, 48, dtype=HALF)]),
    "gradients of norms": (
        gradients,
        (0, 1, 2),
        [numbers(530, 128), numbers(128), numbers(128), numbers(128, 4)],
    ),
    "products of halves": (
        lambda x, y: x @ y,
        None,
        [numbers(64, 32, dtype=HALF), numbers(32, 64, dtype=HALF)],
    ),
}


def bits(found: Any) -> list[bytes]:
    return [np.asarray(a).tobytes() for a in cb.tree.flatten(found)[0]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_arguments_at_any_offset(gpu: Driver, name: str) -> None:
    f, argnums, arrays = PROGRAMS[name]
    step = cb.compile(f, argnums=argnums, device="cuda")
    expected = bits(step(*(Shifted(gpu, a, 0) for a in arrays)))
    for shift in (4, 8, 12, 2, 6, 10, 14, 1):
        if shift % min(a.itemsize for a in arrays):
            continue
        # all arrays, and each one on its own
        for which in range(-1, len(arrays) if shift == 8 else 0):
            given = [
                Shifted(gpu, a, shift - shift % a.itemsize if which in (-1, k) else 0)
                for k, a in enumerate(arrays)
            ]
            assert bits(step(*given)) == expected, (shift, which)


@pytest.mark.parametrize("name", ["adamw", "amsgrad", "sgd"])
def test_parameters_and_gradients_at_any_offset(gpu: Driver, name: str) -> None:
    """Outputs of an optimizer and of a gradient may have any offset; the memory around them is not
    written."""
    optimizers = {
        "adamw": lambda: cb.optim.AdamW(lr=0.1),
        "amsgrad": lambda: cb.optim.Adam(lr=0.1, amsgrad=True),
        "sgd": lambda: cb.optim.SGD(lr=0.1, momentum=0.9),
    }
    w, x = numbers(4100), numbers(1, 4100)[0]  # two chunks, and an end that is not a multiple of 4
    trained = []
    for shift in (0, 4, 8, 12):
        given = Shifted(gpu, w, shift)
        step = cb.compile(
            lambda w, x: ((w * x) ** 2).sum(), optimizer=optimizers[name](), device="cuda"
        )
        for _ in range(2):
            step(given, Shifted(gpu, x, 0))
        trained.append(given.get().tobytes())
        assert given.is_alone()
    assert len(set(trained)) == 1


def test_results_at_any_offset(gpu: Driver) -> None:
    x = numbers(260)
    step = cb.value_and_grad(lambda x: (x * x).sum(), device="cuda")
    for shift in (0, 4, 8, 12):
        out = Shifted(gpu, np.zeros_like(x), shift)
        step(Shifted(gpu, x, 0), out=out)
        assert (out.get() == 2 * x).all() and out.is_alone()
