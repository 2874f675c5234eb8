"""Warns if a traced function reads something besides its arguments that changes later: random
numbers, or variables outside the function.

A function is traced once for each set of shapes, so the values that it reads while being traced are
constants of all later calls. If such a value changes afterwards, this is rarely intended, so a
warning is issued once, with the line. The following are watched, for the function and for functions
of the same file that it names:

* NumPy's and Python's own generators, and generators in variables (closures and globals);
* calls in the code of clocks, ``os.urandom`` and ``np.random.default_rng()`` without a seed;
* numbers, strings and NumPy arrays in variables, compared in every call;
* numbers, strings and arrays in lists and dicts in variables (in dicts, only under strings that the
  code contains), and in attributes that the code reads from an object in a variable or from
  ``self``. They are compared in calls 1, 2, 4, 8, ..., like elements of arrays.

Not watched: anything nested more deeply (``a.b.c``, lists in lists), properties and slots, names
that are imported inside the function, and functions of other files."""

from __future__ import annotations

import dis
import os
import pickle
import random
import time
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..source import warn

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_SIMPLE = (bool, int, float, complex, np.generic, str)
_WATCHED = (*_SIMPLE, np.ndarray)
_CLOCKS = (
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic,
    time.monotonic_ns, time.process_time, time.process_time_ns, os.urandom,
)  # fmt: skip
_MOST_ENTRIES = 100  # limit on the entries of one list or dict


class Variable(NamedTuple):
    """A variable outside the function: a cell of its closure, or a global name."""

    name: str
    place: CellType | dict[str, Any]

    def value(self) -> Any:
        """Returns the value of the variable, or None if it no longer exists."""
        if isinstance(self.place, dict):
            return self.place.get(self.name)
        try:
            return self.place.cell_contents
        except ValueError:  # an empty cell
            return None


class Part(NamedTuple):
    """An entry of a list or dict in a variable, or an attribute of an object in one."""

    name: str
    place: Variable
    key: Any
    is_entry: bool

    def value(self) -> Any:
        """Returns the value of the variable, or None if it no longer exists. Runs no user code."""
        owner = self.place.value()
        if self.is_entry:
            if type(owner) is dict:
                return owner.get(self.key)
            return owner[self.key] if type(owner) is list and self.key < len(owner) else None
        try:
            own = object.__getattribute__(owner, "__dict__")
        except AttributeError:
            own = {}
        if self.key in own:
            return own[self.key]
        kinds = type(owner).__mro__
        return next((vars(one)[self.key] for one in kinds if self.key in vars(one)), None)


class _Code(NamedTuple):
    """The names that a function's code reads."""

    attributes: list[tuple[Variable, str]]
    impure: list[str]
    """Names of clocks and other impure functions that it calls."""
    strings: set[str]


def _is_unseeded(rest: list[dis.Instruction]) -> bool:
    """Returns True if a function that was just loaded is called without arguments."""
    passed = ("CACHE", "PRECALL", "PUSH_NULL")
    call = next((one for one in rest if one.opname not in passed), None)
    return call is not None and call.opname == "CALL" and call.arg == 0


def _read_by(function: FunctionType, owner: Any) -> _Code:
    """Finds the names that a function's code reads, and one attribute after each name. ``owner`` is
    the object of a method."""
    code, found = function.__code__, _Code([], [], set())
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    first = code.co_varnames[:1] if owner is not None and code.co_argcount else ()
    found.strings.update(c for c in code.co_consts if isinstance(c, str))
    rows = list(dis.get_instructions(code))
    variable: Variable | None = None
    value: Any = None
    for at, row in enumerate(rows):
        kind = row.opname
        if kind.startswith("LOAD_FAST"):  # if it loads two names, the last one
            name = row.argval[-1] if isinstance(row.argval, tuple) else row.argval
            variable = Variable(name, {name: owner}) if name in first else None
            value = owner if variable else None
        elif kind in ("LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME"):
            variable = Variable(row.argval, cells.get(row.argval, function.__globals__))
            value = variable.value()
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            if variable is not None:
                found.attributes.append((variable, row.argval))
            value = vars(value).get(row.argval) if isinstance(value, ModuleType) else None
            variable = None
        elif kind not in ("CACHE", "PUSH_NULL"):
            variable = value = None
        if callable(value) and any(value is one for one in _CLOCKS):
            found.impure.append(f"{value.__module__}.{value.__name__}")
        elif value is np.random.default_rng and _is_unseeded(rows[at + 1 :]):
            found.impure.append("numpy.random.default_rng() without a seed")
    return found


def _global_names(code: CodeType) -> Iterator[str]:
    """Yields the names that the code, and functions defined in it, read as globals."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _plain(function: Any) -> FunctionType | None:
    """Returns the plain function inside partials, methods and wrappers."""
    for _ in range(20):
        try:
            found = (getattr(function, name, None) for name in ("__wrapped__", "func", "__func__"))
            inner = next((one for one in found if one is not None), None)
        except Exception:  # attributes of the user's objects may raise
            break
        if inner is None:
            break
        function = inner
    return function if isinstance(function, FunctionType) else None


def _owner(function: Any) -> Any:
    """Returns the object of a method, which may be inside partials and wrappers; None for other
    functions."""
    for _ in range(20):
        try:
            if isinstance(function, FunctionType):
                return None
            owner = getattr(function, "__self__", None)
            if owner is not None and hasattr(function, "__func__"):
                return owner
            function = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        except Exception:  # attributes of the user's objects may raise
            return None
    return None


def surrounding(function: Callable[..., Any]) -> tuple[list[Variable], list[_Code]]:
    """Returns the variables that the function, and functions of the same file that it names, read;
    and the names that the code of each of these functions reads."""
    codes: list[_Code] = []
    found: dict[tuple[str, int], Variable] = {}
    start = _plain(function)
    waiting, seen = [start] if start else [], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        codes.append(_read_by(one, _owner(function) if one is start else None))
        cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
        outside = [Variable(name, cell) for name, cell in cells]
        outside += [Variable(name, one.__globals__) for name in _global_names(one.__code__)]
        for variable in outside:
            found.setdefault((variable.name, id(variable.place)), variable)
            value = variable.value()
            inner = _plain(value) if callable(value) else None
            if inner is not None and inner.__globals__ is one.__globals__:
                waiting.append(inner)
    return list(found.values()), codes


def _parts(around: list[Variable], codes: list[_Code]) -> Iterator[Part]:
    """Yields the entries and attributes of objects in variables that the code may read."""
    strings = set().union(*(code.strings for code in codes))
    for variable in around:
        value = variable.value()
        if type(value) is list:
            keys: list[Any] = list(range(len(value)))
        else:
            names = value if type(value) is dict else ()
            keys = [key for key in names if not isinstance(key, str) or key in strings]
        for key in keys[:_MOST_ENTRIES]:
            if type(key) in (int, str):
                yield Part(f"{variable.name}[{key!r}]", variable, key, True)
    read = [one for code in codes for one in code.attributes]
    known = {(variable.name, id(variable.place), key): (variable, key) for variable, key in read}
    for variable, key in known.values():
        yield Part(f"{variable.name}.{key}", variable, key, False)


class RandomNumbers:
    """Detects random numbers that are drawn while a function is traced."""

    def __init__(self, around: list[Variable]) -> None:
        held = (variable.value() for variable in around)
        self._own = [value for value in held if isinstance(value, _GENERATORS)]
        self._before = self._states()
        self._said = False

    def _states(self) -> bytes:
        # pickled, because states contain arrays, which == compares element by element
        own = [
            one.getstate() if isinstance(one, random.Random)
            else one.get_state(legacy=False) if isinstance(one, np.random.RandomState)
            else one.bit_generator.state
            for one in self._own
        ]  # fmt: skip
        return pickle.dumps((np.random.get_state(legacy=False), random.getstate(), own))

    def look(self) -> None:
        """Warns once if numbers have been drawn since tracing began."""
        if self._said or self._states() == self._before:
            return
        self._said = True
        warn(
            "random numbers were drawn while a function was traced (by it or by another thread): "
            "every later call uses the same ones. Draw with cutback.uniform or "
            "cutback.nn.functional.dropout, or pass the numbers as an argument",
            RuntimeWarning,
        )


def _is_equal(before: Any, value: Any) -> bool:
    """Returns True if tracing with either value gives the same graph; NaN equals NaN."""
    if isinstance(before, np.ndarray) or isinstance(value, np.ndarray):
        return (
            isinstance(before, np.ndarray)
            and isinstance(value, np.ndarray)
            and (before.dtype, before.shape) == (value.dtype, value.shape)
            and before.tobytes() == value.tobytes()
        )
    if not isinstance(value, _SIMPLE):
        return False
    return bool(before == value) or bool(before != before and value != value)


def _named(value: Any) -> str:
    """Formats a value for a message. Only simple values are printed; others are described by their
    type, because their ``repr`` may be long or raise."""
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    simple = isinstance(value, _SIMPLE)
    return f"{value!r:.60}" if simple else f"an object {type(value).__name__}"


class Captured(NamedTuple):
    """A NumPy array that became a constant: the object, its bytes at that time, and the line."""

    array: np.ndarray[Any, Any]
    bits: bytes
    where: str | None


class Surroundings:
    """The values that a traced function has read besides its arguments. Later calls compare them
    with the current values."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._around, self._codes = surrounding(function)
        self.random = RandomNumbers(self._around)
        self._held: list[tuple[Variable | Part, Any]] = []
        self._parts: list[tuple[Variable | Part, Any]] = []
        self._captured: list[Captured] = []
        self._calls = 0

    def end_of_trace(self, captured: list[Captured]) -> None:
        """Records the values that later calls are compared with. Values are read after the trace,
        so changes by the trace itself do not count."""
        self.random.look()
        self._warn_of_calls()
        held = ((variable, variable.value()) for variable in self._around)
        self._held = [(v, value) for v, value in held if isinstance(value, _WATCHED)]
        parts = ((part, part.value()) for part in _parts(self._around, self._codes))
        self._parts = [(part, value) for part, value in parts if isinstance(value, _WATCHED)]
        self._captured = [one for one in captured if one.array.tobytes() == one.bits]

    def _warn_of_calls(self) -> None:
        for name in dict.fromkeys(name for code in self._codes for name in code.impure):
            warn(
                f"a traced function calls {name}: every later call reuses the result of this "
                "call. Pass the result as an argument",
                RuntimeWarning,
            )

    def look(self) -> None:
        """Warns once for each variable or array that has changed since the trace. Elements of
        arrays, entries and attributes are only compared in calls 1, 2, 4, 8, ..., to save time."""
        self._compare_all(self._held)
        self._calls += 1
        if self._calls & (self._calls - 1) == 0:
            self._compare_all(self._parts)
            self._compare_elements()

    def _compare_all(self, pairs: list[tuple[Variable | Part, Any]]) -> None:
        """Warns of values that have changed, and stops watching them."""
        for pair in [pair for pair in pairs if pair[0].value() is not pair[1]]:
            pairs[:] = [one for one in pairs if one is not pair]  # first: the warning may raise
            pairs += self._compare(pair, pair[0].value())

    @staticmethod
    def _compare(
        pair: tuple[Variable | Part, Any], value: Any
    ) -> list[tuple[Variable | Part, Any]]:
        variable, before = pair
        if _is_equal(before, value):  # keep the new object, so that it is not compared every call
            return [(variable, value if isinstance(value, np.ndarray) else before)]
        warn(
            f"{variable.name} was {_named(before)} when the function was traced and is "
            f"{_named(value)} now: calls keep using the old value. Pass {variable.name} as an "
            "argument",
            RuntimeWarning,
        )
        return []

    def _compare_elements(self) -> None:
        changed: list[Captured] = []
        kept: list[Captured] = []
        for one in self._captured:
            (kept if one.array.tobytes() == one.bits else changed).append(one)
        self._captured = kept
        for where in dict.fromkeys(one.where for one in changed):
            at = f" at {where}" if where else ""
            warn(
                f"an array that the traced function used as a constant{at} has changed since: "
                "calls keep using the old elements. Pass it as an argument",
                RuntimeWarning,
            )
