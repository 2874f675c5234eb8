"""Values that a traced function reads besides its arguments are constants in later calls. If one
has changed, there is one warning, with the line."""

from __future__ import annotations

import functools
import os
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutback as cb

X = np.ones((3, 4), np.float32)
GENERATOR = np.random.default_rng(5)
SCALE: Any = 2.0
TABLE = np.full(4, 3.0, np.float32)


def line_of(text: str) -> str:
    """Returns the location of a piece of this file's code."""
    with open(__file__) as file:
        return next(f"test_surroundings.py:{n}" for n, row in enumerate(file, 1) if text in row)


def quiet(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


def noise_of_numpy(x: Any) -> Any:
    return x + np.random.standard_normal(4).astype(np.float32)  # line of numpy


def noise_of_a_generator(x: Any) -> Any:
    return x + GENERATOR.standard_normal(4, np.float32)  # line of a generator


def helper(x: Any) -> Any:
    return noise_of_a_generator(x)


@pytest.mark.parametrize(
    ("function", "mark"),
    [
        (noise_of_numpy, "# line of numpy"),
        (noise_of_a_generator, "# line of a generator"),
        (helper, "# line of a generator"),
        (functools.partial(helper), "# line of a generator"),
        (cb.checkpoint(helper), "# line of a generator"),
    ],
)
def test_random_arrays(function: Any, mark: str) -> None:
    step = cb.compile(function, argnums=None)
    with pytest.warns(RuntimeWarning, match="every later call uses the same ones") as caught:
        first = step(X)
    assert len(caught) == 1
    assert f"[{line_of(mark)}]" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert (quiet(lambda: step(X)) == first).all()


def test_random_numbers_and_closures_with_generators() -> None:
    """A Python float leaves no constant; the change is noticed at the end of the trace."""
    own = random.Random(3)
    legacy = np.random.RandomState(3)
    for draw in (random.random, own.random, lambda: legacy.uniform()):
        step = cb.compile(lambda x, draw=draw: x * draw(), argnums=None)
        holder = cb.compile(lambda x: (own, legacy) and x * draw(), argnums=None)  # noqa: B023
        for one in (holder,) if draw is not random.random else (step, holder):
            with pytest.warns(RuntimeWarning, match="random numbers were drawn") as caught:
                one(X)
            assert len(caught) == 1


def test_drawing_outside_or_by_our_own_operations_is_quiet() -> None:
    rng = np.random.default_rng(0)

    def noisy(x: Any) -> Any:
        return x + cb.uniform(x.shape) * rng.bit_generator.state["has_uint32"]

    step = cb.compile(noisy, argnums=None, seed=1)
    quiet(lambda: step(X))
    rng.random()
    np.random.random()
    random.random()
    quiet(lambda: step(X))


def test_a_number_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    bias = 1.0

    def scaled(x: Any) -> Any:
        return x * SCALE + bias

    step = cb.compile(scaled, argnums=None)
    assert (quiet(lambda: step(X)) == 3).all()
    monkeypatch.setitem(globals(), "SCALE", 2)  # an equal value
    quiet(lambda: step(X))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    with pytest.warns(RuntimeWarning, match=r"SCALE was 2\.0 .* is 5\.0 now.*Pass SCALE") as caught:
        assert (step(X) == 3).all()
    assert len(caught) == 1 and caught[0].filename == __file__
    quiet(lambda: step(X))
    bias = 4.0
    with pytest.warns(RuntimeWarning, match=r"bias was 1\.0 .* is 4\.0 now"):
        step(X)
    quiet(lambda: step(X))
    assert (quiet(lambda: step(X[:2])) == 9).all()  # another shape is traced again


def test_an_array_that_is_replaced() -> None:
    table = TABLE.copy()
    step = cb.value_and_grad(lambda x: (x * table).sum())
    quiet(lambda: step(X))
    table = TABLE.copy()  # an equal array
    quiet(lambda: step(X))
    table = TABLE + 1
    with pytest.warns(RuntimeWarning, match=r"table was an array float32\[4\] .* is an array "):
        value, _ = step(X)
    assert float(value) == 36.0
    quiet(lambda: step(X))


def test_an_array_that_is_written_into() -> None:
    """Elements are compared in calls 1, 2, 4, 8, ... after the trace."""
    table = TABLE.copy()
    step = cb.compile(lambda x: x * table, argnums=None)  # line of the constant
    for _ in range(4):
        quiet(lambda: step(X))
    table += 1
    said = []
    for _ in range(20):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert (step(X) == 3).all()
        said += [str(one.message) for one in caught]
    assert len(said) == 1 and "has changed since" in said[0]
    assert line_of("# line of the constant") in said[0]


@pytest.mark.parametrize("shape", [(4,), (1,), (3, 4)])
def test_one_of_several_arrays_is_written_into(shape: tuple[int, ...]) -> None:
    """Comparing the recorded values must not compare arrays."""
    held = [np.ones(4, np.float32), np.ones(shape, np.float32), np.ones(4, np.float32)]
    step = cb.compile(lambda x: (x * held[0] + held[1]) * held[2], argnums=None)
    quiet(lambda: step(X))
    held[1][0] = 7
    with pytest.warns(RuntimeWarning, match="has changed since") as caught:
        assert (step(X) == 2).all()
    assert len(caught) == 1
    for _ in range(4):
        quiet(lambda: step(X))


@pytest.mark.parametrize("look", [lambda x, i: x[:, i], lambda x, i: cb.take(x, i, axis=1)])
def test_an_index_that_is_written_into(look: Callable[..., Any]) -> None:
    index = np.array([0, 1])
    step = cb.compile(lambda x: look(x, index), argnums=None)
    quiet(lambda: step(X))
    index[0] = 2
    with pytest.warns(RuntimeWarning, match="has changed since"):
        step(X)


def test_odd_objects_in_variables_do_no_harm() -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __repr__(self) -> str:
            raise RuntimeError("no text")

        def __call__(self) -> None: ...

    scale: Any = float("nan")
    odd = Odd()

    def scaled(x: Any) -> Any:
        return x * (2.0 if odd is None else scale)

    step = cb.compile(scaled, argnums=None)
    quiet(lambda: step(X))
    scale = float("nan")  # a different object
    quiet(lambda: step(X))
    scale = odd
    with pytest.warns(RuntimeWarning, match="scale was nan .* is an object Odd now"):
        step(X)


def test_what_the_trace_itself_changes_is_no_surprise() -> None:
    calls = np.zeros(4, np.float32)
    traced = 0

    def counting(x: Any) -> Any:
        nonlocal traced
        traced += 1
        y = x + calls
        calls[0] += 1
        return y

    step = cb.compile(counting, argnums=None)
    for _ in range(9):
        quiet(lambda: step(X))
    assert traced == 1


def test_names_that_are_not_read_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """`x.shape` reads no global named `shape`."""
    monkeypatch.setitem(globals(), "shape", 1)
    step = cb.compile(lambda x: x * x.shape[0], argnums=None)
    quiet(lambda: step(X))
    monkeypatch.setitem(globals(), "shape", 2)
    quiet(lambda: step(X))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x * time.time(), "time.time"),
        (lambda x: x * time.perf_counter(), "time.perf_counter"),
        (lambda x: x * os.urandom(1)[0], "posix.urandom"),
        (lambda x: x * np.random.default_rng().random(), "numpy.random.default_rng"),
    ],
)
def test_clocks_and_generators_that_the_function_makes(function: Any, name: str) -> None:
    step = cb.compile(function, argnums=None)
    with pytest.warns(RuntimeWarning, match=f"calls {name}") as caught:
        step(X)
    assert len(caught) == 1 and caught[0].filename == __file__
    quiet(lambda: step(X))


def test_a_seeded_generator_is_quiet() -> None:
    step = cb.compile(lambda x: x * np.random.default_rng(3).random(), argnums=None)
    quiet(lambda: step(X))


class Settings:
    kind = 1.0

    def __init__(self) -> None:
        self.scale, self.flag, self.mode, self.table = 1.0, False, "a", TABLE.copy()
        self.unread = 0

    def apply(self, x: Any) -> Any:
        return x * self.scale


SETTINGS = Settings()


def uses_all(x: Any) -> Any:
    if SETTINGS.flag or SETTINGS.mode == "b":
        return x
    return x * SETTINGS.scale + SETTINGS.table + SETTINGS.kind


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", 2.0), ("flag", True), ("mode", "b"), ("table", TABLE + 1), ("kind", 3.0)],
)
def test_an_attribute_that_changes(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SETTINGS", Settings())
    step = cb.compile(uses_all, argnums=None)
    quiet(lambda: step(X))
    SETTINGS.unread = 5
    quiet(lambda: step(X))
    setattr(SETTINGS, name, value)
    with pytest.warns(RuntimeWarning, match=rf"SETTINGS\.{name} was .* Pass SETTINGS\.{name}"):
        step(X)
    for _ in range(5):
        quiet(lambda: step(X))


def test_an_attribute_of_a_methods_object() -> None:
    settings = Settings()
    step = cb.compile(settings.apply, argnums=None)
    quiet(lambda: step(X))
    settings.scale = 3.0
    with pytest.warns(RuntimeWarning, match=r"self\.scale was 1\.0 .* is 3\.0 now"):
        step(X)


def test_entries_that_change() -> None:
    row, table = [1.0, 2.0], {"scale": 1.0, "loss": 0.0}
    step = cb.compile(lambda x: x * table["scale"] * row[0], argnums=None)
    quiet(lambda: step(X))
    table["loss"] = 3.0  # not read by the function
    row.append(4.0)
    quiet(lambda: step(X))
    table["scale"], row[0] = 2.0, 5.0
    with pytest.warns(RuntimeWarning) as caught:
        step(X), step(X)
    said = sorted(str(one.message) for one in caught)
    assert len(said) == 2
    assert "row[0] was 1.0" in said[0] and "table['scale'] was 1.0" in said[1]


def test_entries_and_attributes_are_read_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from cutback.frontend.surroundings import Part

    reads = 0
    value = Part.value

    def counted(part: Any) -> Any:
        nonlocal reads
        reads += 1
        return value(part)

    monkeypatch.setattr(Part, "value", counted)
    settings = Settings()
    step = cb.compile(settings.apply, argnums=None)
    step(X)
    reads = 0
    for _ in range(64):
        step(X)
    assert reads == 7  # in calls 1, 2, 4, ..., 64
