"""What a traced function reads beside its arguments: random numbers, and variables around it.

A function is traced once for each set of shapes, so what it read then is a constant of every later
call. That is rarely meant where the value would be another one today, so it is said once, with the
line. Seen are NumPy's and Python's own generators, and generators, numbers and NumPy arrays in
variables of the function and of functions of the same file that it names; attributes of objects
are not followed."""

from __future__ import annotations

import dis
import pickle
import random
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from ..source import warn

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_NUMBERS = (bool, int, float, complex, np.generic)


class Variable(NamedTuple):
    """A variable outside the function: a cell of its closure, or a name among its globals."""

    name: str
    place: CellType | dict[str, Any]

    def value(self) -> Any:
        """What it holds; None where it is gone."""
        if isinstance(self.place, dict):
            return self.place.get(self.name)
        try:
            return self.place.cell_contents
        except ValueError:  # an empty cell
            return None


def _global_names(code: CodeType) -> Iterator[str]:
    """Names that the code, and what is defined in it, reads as globals."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _plain(function: Any) -> FunctionType | None:
    """The function under partials, methods and wrappers."""
    for _ in range(20):
        try:
            found = (getattr(function, name, None) for name in ("__wrapped__", "func", "__func__"))
            inner = next((one for one in found if one is not None), None)
        except Exception:  # an object of the user's that raises
            break
        if inner is None:
            break
        function = inner
    return function if isinstance(function, FunctionType) else None


def variables(function: Callable[..., Any]) -> list[Variable]:
    """Variables that the function reads, and functions of the same file that it names."""
    found: dict[tuple[str, int], Variable] = {}
    start = _plain(function)
    waiting, seen = [start] if start else [], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
        outside = [Variable(name, cell) for name, cell in cells]
        outside += [Variable(name, one.__globals__) for name in _global_names(one.__code__)]
        for variable in outside:
            found.setdefault((variable.name, id(variable.place)), variable)
            value = variable.value()
            inner = _plain(value) if callable(value) else None
            if inner is not None and inner.__globals__ is one.__globals__:
                waiting.append(inner)
    return list(found.values())


class RandomNumbers:
    """Notices when a generator moves while a function is traced."""

    def __init__(self, around: list[Variable]) -> None:
        held = (variable.value() for variable in around)
        self._own = [value for value in held if isinstance(value, _GENERATORS)]
        self._before = self._states()
        self._said = False

    def _states(self) -> bytes:
        own = [
            one.getstate() if isinstance(one, random.Random)
            else one.get_state(legacy=False) if isinstance(one, np.random.RandomState)
            else one.bit_generator.state
            for one in self._own
        ]  # fmt: skip
        return pickle.dumps((np.random.get_state(legacy=False), random.getstate(), own))

    def look(self) -> None:
        """Warns, once, if numbers were drawn since the last look."""
        if self._said or self._states() == self._before:
            return
        self._said = True
        warn(
            "random numbers were drawn while a function was traced (by it or by another thread): "
            "every later call uses the same ones. Draw with cutback.uniform or "
            "cutback.nn.functional.dropout, or pass them as an argument",
            RuntimeWarning,
        )


def _is_equal(before: Any, value: Any) -> bool:
    """Whether tracing with the one would give the graph of the other; NaN equals NaN."""
    if isinstance(before, np.ndarray) or isinstance(value, np.ndarray):
        return (
            isinstance(before, np.ndarray)
            and isinstance(value, np.ndarray)
            and (before.dtype, before.shape) == (value.dtype, value.shape)
            and before.tobytes() == value.tobytes()
        )
    if not isinstance(value, _NUMBERS):
        return False
    return bool(before == value) or bool(before != before and value != value)


def _named(value: Any) -> str:
    """A number as it is written; anything else by its kind, as its text may be long, or raise."""
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    return repr(value) if isinstance(value, _NUMBERS) else f"an object {type(value).__name__}"


class Captured(NamedTuple):
    """A NumPy array that became a constant: the object, its bytes then, and the line."""

    array: np.ndarray[Any, Any]
    bits: bytes
    where: str | None


class Surroundings:
    """What a traced function has read beside its arguments, looked at again by later calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._around = variables(function)
        self.random = RandomNumbers(self._around)
        self._held: list[tuple[Variable, Any]] = []
        self._captured: list[Captured] = []
        self._calls = 0

    def end_of_trace(self, captured: list[Captured]) -> None:
        """Remembers what later calls are compared with: what the trace itself changed is left
        out."""
        self.random.look()
        watched = (*_NUMBERS, np.ndarray)
        held = ((variable, variable.value()) for variable in self._around)
        self._held = [(v, value) for v, value in held if isinstance(value, watched)]
        self._captured = [one for one in captured if one.array.tobytes() == one.bits]

    def look(self) -> None:
        """Warns, once for each, of variables and arrays that have changed since the trace. Elements
        are compared in calls 1, 2, 4, 8, ..., so that many calls cost nothing."""
        for pair in self._held:
            value = pair[0].value()
            if value is not pair[1]:
                self._compare(pair, value)
        self._calls += 1
        if self._captured and self._calls & (self._calls - 1) == 0:
            self._compare_elements()

    def _compare(self, pair: tuple[Variable, Any], value: Any) -> None:
        variable, before = pair
        self._held = [one for one in self._held if one is not pair]
        if _is_equal(before, value):  # elements are not compared again in every call
            self._held.append((variable, value if isinstance(value, np.ndarray) else before))
            return
        warn(
            f"{variable.name} was {_named(before)} when the function was traced and is "
            f"{_named(value)} now: calls go on with the former. Pass {variable.name} as an "
            "argument",
            RuntimeWarning,
        )

    def _compare_elements(self) -> None:
        changed: list[Captured] = []
        kept: list[Captured] = []
        for one in self._captured:
            (kept if one.array.tobytes() == one.bits else changed).append(one)
        self._captured = kept
        for where in dict.fromkeys(one.where for one in changed):
            at = f" at {where}" if where else ""
            warn(
                f"an array that the traced function has used as a constant{at} was changed since: "
                "calls go on with the former elements. Pass it as an argument",
                RuntimeWarning,
            )
