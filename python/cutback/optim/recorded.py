"""Optimizers that are defined by a formula."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from .. import _native
from ..scalars import number
from .base import MISSED, Optimizer
from .numbers import Row, least_zero
from .recording import RecordingError, record

Fixed = tuple[tuple[str, Any], ...]
Maker = Callable[[Any], type[Any]]
_known: dict[Maker, WeakValueDictionary[Any, type[Any]]] = {}  # maker -> source -> class


def made_of(maker: Maker, source: Any, made: type[Any]) -> None:
    """Registers the class that ``maker`` made from ``source``, so that unpickling finds it."""
    _known.setdefault(maker, WeakValueDictionary())[source] = made


def _again(maker: Maker, source: Any) -> Any:
    made = _known.get(maker, {}).get(source) or maker(source)
    return object.__new__(made)


def reduced(optimizer: Any, protocol: int, maker: Maker, sources: Sequence[Any]) -> Any:
    """Implements ``__reduce_ex__`` of an optimizer whose class was made from one of ``sources``. If
    the class's module has the source under the class's name (as with a decorator), pickles by the
    source. Otherwise pickles as usual."""
    kind = type(optimizer)
    try:
        found = attrgetter(kind.__qualname__)(sys.modules[kind.__module__])
    except (AttributeError, KeyError):
        found = kind
    if any(found is source for source in sources):
        return _again, (maker, found), optimizer.__getstate__()
    return object.__reduce_ex__(optimizer, protocol)


def copied(optimizer: Any, memo: dict[int, Any]) -> Any:
    """Returns a deep copy of the same class. Copying through ``__reduce_ex__`` would use the class
    that was last made from the formula, which may be a different one."""
    other = memo[id(optimizer)] = object.__new__(type(optimizer))
    other.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
    return other


class Recorded(Optimizer):
    """The base class of optimizers made by :func:`foreach`. They take their options as keywords,
    and ``groups`` like all optimizers."""

    definition: ClassVar[Callable[..., Any]]
    """The formula, callable on arrays of any library."""
    state_names: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]
    _numbers: ClassVar[tuple[str, ...]]  # options that may change between steps
    _counts: ClassVar[bool]  # whether the formula takes the step number t
    _below_one: ClassVar[tuple[str, ...]] = ()  # options in [0, 1)
    _not_negative: ClassVar[tuple[str, ...]] = ()  # options that are at least 0
    _made: ClassVar[dict[Fixed, _native.Expression]]

    options: dict[str, Any]
    """The current options by name. Each is also an attribute of the optimizer, unless optimizers
    already use the name (``step``, ``states``, ...)."""

    def __init__(self, /, *, groups: Sequence[dict[str, Any]] = (), **options: Any) -> None:
        name = type(self).__name__
        unknown = sorted(set(options) - set(self._options))
        missing = [key for key in self._options if key not in {**self._defaults, **options}]
        if unknown or missing:
            what = f"has no option {unknown[0]}" if unknown else f"needs {missing[0]}"
            raise TypeError(f"{name} {what}; its options are {', '.join(self._options)}")
        given = {**self._defaults, **options}
        self.options = {key: given[key] for key in self._options}
        self._fixed = tuple((key, self.options[key]) for key in self._fixed_options())
        self.native = self.expression(self._fixed)
        self.groups = groups
        self._begin(None, 0)

    def _given(self) -> dict[str, Any]:
        return {key: self.options[key] for key in self._options}

    def __getstate__(self) -> dict[str, Any]:
        return {key: x for key, x in super().__getstate__().items() if key != "native"}

    def __reduce_ex__(self, protocol: Any) -> Any:
        return reduced(self, int(protocol), foreach, (type(self).definition,))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copied(self, memo)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "options" not in state:  # pickled by an earlier version
            old = {key: state[key] for key in self._options}
            state = {key: x for key, x in state.items() if key not in old} | {"options": old}
        super().__setstate__(state)
        self.native = self.expression(self._fixed)

    @classmethod
    def _fixed_options(cls) -> list[str]:
        return [key for key in cls._options if key not in cls._numbers]

    @classmethod
    def expression(cls, fixed: Fixed) -> _native.Expression:
        """Returns the formula with these fixed options, which is recorded once and cached."""
        if fixed not in cls._made:
            cls._made[fixed] = record(
                cls.definition, cls.__name__, cls.state_names, cls._numbers, dict(fixed),
                cls._counts,
            )  # fmt: skip
        return cls._made[fixed]

    @classmethod
    def row(cls, options: Mapping[str, Any]) -> Row:
        """Converts the numeric options of a group to a row.

        Raises:
            TypeError, ValueError: if an option is not a finite number or is outside its range.
        """
        row = tuple([number(cls.__name__, key, options[key]) for key in cls._numbers])
        for key, x in zip(cls._numbers, row, strict=True):
            if not math.isfinite(x):
                raise ValueError(f"{cls.__name__}: {key}={x} is not finite")
            if key in cls._below_one and not 0 <= x < 1:
                raise ValueError(f"{cls.__name__}: {key}={x} is not in [0, 1)")
            if key in cls._not_negative:
                least_zero(cls.__name__, key, x)
        return row

    def _row(self, options: Mapping[str, Any]) -> Row:
        for key, value in self._fixed:
            if options[key] != value:
                raise ValueError(
                    f"{type(self).__name__}: {key} was {value!r} when the optimizer was made, but "
                    f"is now {options[key]!r}; options that are not numbers cannot change or "
                    "differ between groups"
                )
        return self.row(options)

    def _state_names(self) -> tuple[str, ...]:
        return self.state_names


def _option(name: str) -> property:
    def get(self: Recorded) -> Any:
        return self.options[name]

    def set_(self: Recorded, value: Any) -> None:
        self.options[name] = value

    return property(get, set_)


def _attributes(options: Sequence[str], made: Mapping[str, Any]) -> dict[str, property]:
    """Returns properties for the options whose names are not taken. ``half`` and ``seed`` count as
    free, because recorded optimizers do not have these arguments."""
    taken = {*dir(Recorded), *Recorded.__annotations__, *made, "native"} - {"half", "seed"}
    return {name: _option(name) for name in options if name not in taken and name[0] != "_"}


def foreach(formula: Callable[..., Any]) -> type[Recorded]:
    """Decorator that makes an optimizer class from the update formula of one tensor.

        @cutback.optim.foreach
        def lion(p, g, m, *, lr=1e-4, beta1=0.9, beta2=0.99, weight_decay=0.0):
            u = np.sign(beta1 * m + (1 - beta1) * g)
            return p - lr * (u + weight_decay * p), beta2 * m + (1 - beta2) * g

        optimizer = lion(lr=3e-4)
        optimizer.step(params, grads)

    The formula takes the parameter, its gradient and its states (zeros before the first step), and
    returns the new parameter and the new states, in this order. Arguments with a default and
    keyword-only arguments are options. An argument ``t`` receives the step number, from 1. Numeric
    options may be changed between steps (``optimizer.lr = 0.1``, or
    ``optimizer.options["step"] = 0.1`` for any name), be functions of the number of steps taken,
    and differ between groups. Other options (True, False, None, strings) are passed to the formula
    unchanged and are fixed when the optimizer is made.

    The formula is called once, with proxies (:class:`~cutback.optim.recording.Value`), and
    translated to the executor's instructions in well under a millisecond. Nothing is compiled, and
    any number of f32 tensors are stepped in one parallel region. Operations on arrays are in f32
    and round as NumPy does, so ``lion.definition`` on NumPy arrays gives the same result.
    Expressions of numbers only (``1 - beta1**t``) are computed in double. ``x.sum()``,
    ``x.mean()`` and ``x.norm()`` reduce over all elements of one tensor.

    Raises:
        RecordingError: if the formula cannot be recorded, for example because it branches on
            values, indexes an array or asks for a shape.
        TypeError: if its signature is not as described above.

    >>> def descent(p, g, *, lr=0.1):
    ...     return p - lr * g
    >>> optimizer = cutback.optim.foreach(descent)(lr=0.01)
    >>> optimizer.step(params, grads)
    """
    name = formula.__name__
    parameters = inspect.signature(formula).parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise TypeError(f"{name}: a formula must not have *args or **options")
    options = [p for p in parameters if p.kind is p.KEYWORD_ONLY or p.default is not p.empty]
    arrays = [p.name for p in parameters if p not in options and p.name != "t"]
    counts = any(p.name == "t" for p in parameters)
    options = [p for p in options if p.name != "t"]
    if len(arrays) < 2:
        raise TypeError(f"{name}: a formula must take the parameter, its gradient and its states")
    if "groups" in [p.name for p in options]:
        raise TypeError(f"{name}: every optimizer has an option 'groups'; rename the formula's")
    defaults = {p.name: p.default for p in options if p.default is not p.empty}
    numbers = tuple(
        p.name for p in options
        if p.default is p.empty or not isinstance(p.default, bool | str | None)
    )  # fmt: skip
    if MISSED in arrays[2:]:
        raise TypeError(f"{name}: a state cannot have the reserved name {MISSED}; rename the state")
    attributes = {
        "__doc__": formula.__doc__,
        "__module__": formula.__module__,
        "__qualname__": formula.__qualname__,
        "__wrapped__": staticmethod(formula),
        "definition": staticmethod(formula),
        "state_names": tuple(arrays[2:]),
        "_options": tuple(p.name for p in options),
        "_defaults": defaults,
        "_numbers": numbers,
        "_counts": counts,
        "_made": {},
    }
    properties = _attributes([p.name for p in options], attributes)
    made: type[Recorded] = type(name, (Recorded,), {**attributes, **properties})
    made.expression(tuple((key, defaults[key]) for key in made._fixed_options()))
    made_of(foreach, formula, made)
    return made


__all__ = ["Recorded", "RecordingError", "foreach"]
