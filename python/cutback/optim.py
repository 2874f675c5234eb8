"""Optimizers for compiled steps. Their state is NumPy arrays, their hyper-parameters plain numbers:
changing ``lr`` between steps recompiles nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from . import _native
from .integers import integer

Array = np.ndarray[Any, Any]
Row = tuple[float, ...]
"""The hyper-parameters of a group in the core's order."""
_STATES = {name: states for name, states, _ in _native.optimizer_table()}


class State(NamedTuple):
    """The state of an optimizer. It is exchanged as a whole, so that no interrupt comes between its
    parts; a step updates ``arrays`` and ``counter`` in place, in one call of the core."""

    names: list[str]  # of the parameters; none before a step was tried
    kinds: list[tuple[tuple[int, ...], np.dtype[Any]]]  # their shapes and types
    group_of: list[int]
    arrays: dict[str, list[Array | None]]  # by state; None: the parameter's group does not have it
    counter: Array  # i64: steps taken
    loaded: dict[str, dict[str, Array]] | None = None  # before the first step: state, name -> array
    patterns: tuple[tuple[str, ...], ...] = ()  # of the groups that group_of was found with
    first: int = -1  # the counter when this was made; while it is still that, no step was taken

    @property
    def bound(self) -> bool:
        """Whether a step was taken, or a state loaded after one. A first step that was refused
        leaves what was made for it, which belongs to no parameters yet."""
        return bool(self.names) and int(self.counter) != self.first


def _count(t: Any) -> Array:
    """A number of steps as the counter of one.

    Raises:
        TypeError, ValueError: no integer, or not in 0 .. 2**63 - 1.
    """
    return np.array(integer("t", t, 0, 2**63 - 1), np.int64)


def _number(owner: str, name: str, value: Any) -> float:
    """A hyper-parameter as a float.

    Raises:
        TypeError, ValueError: it is no number, or none that a float can hold.
    """
    try:
        if isinstance(value, str | bytes | bool | np.bool_):
            raise TypeError
        return float(value)
    except TypeError:
        raise TypeError(f"{owner}: {name}={value!r} is not a number") from None
    except OverflowError:
        raise ValueError(f"{owner}: {name} is an integer too large for a float") from None


def _least_zero(owner: str, name: str, value: Any) -> float:
    """A hyper-parameter that is finite and at least 0.

    Raises:
        TypeError, ValueError: it is not.
    """
    number = _number(owner, name, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{owner}: {name}={number} is not finite and at least 0")
    return number


def _flag(owner: str, name: str, value: Any) -> float:
    """True or False as a number.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}: {name}={value!r} is neither True nor False")
    return float(value)


def _betas(owner: str, betas: Any) -> tuple[float, float]:
    """Two numbers in [0, 1).

    Raises:
        TypeError, ValueError: they are not.
    """
    try:
        first, second = betas
    except (TypeError, ValueError):
        raise ValueError(f"{owner}: betas={betas!r} are not two numbers") from None
    numbers = _number(owner, "beta1", first), _number(owner, "beta2", second)
    for k, beta in enumerate(numbers, 1):
        if not 0 <= beta < 1:
            raise ValueError(f"{owner}: beta{k}={beta} is not in [0, 1)")
    return numbers


def _loaded(key: str, value: Any) -> Array:
    """A copy of an array of a state.

    Raises:
        TypeError: it holds no real numbers.
    """
    array = np.array(value)
    if array.dtype == bool or not np.can_cast(array.dtype, np.float64, "same_kind"):
        raise TypeError(f"{key} of the state is {array.dtype}, not a floating type")
    return array


def _fitting(array: Array, what: str, kind: tuple[tuple[int, ...], np.dtype[Any]]) -> Array:
    """The array in the shape and type of its parameter.

    Raises:
        ValueError: it has another shape, or elements that are too large.
    """
    shape, dtype = kind
    if array.shape != shape:
        raise ValueError(f"{what} has shape {array.shape}, expected {shape}")
    with np.errstate(over="ignore"):
        fitting = np.ascontiguousarray(array.astype(dtype)).reshape(shape)
    if (np.isinf(fitting) & np.isfinite(array)).any():
        raise ValueError(f"{what} has elements too large for {dtype}")
    return fitting


def _find_group(name: str, patterns: Sequence[Sequence[str]]) -> int:
    """The first group with a pattern that matches the name, from 1 on; 0 where none does."""
    from fnmatch import fnmatchcase

    for i, row in enumerate(patterns):
        # brackets are part of leaf names, not sets of characters
        if any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in row):
            return i + 1
    return 0


class Optimizer:
    """What the optimizers here have in common.

    One optimizer belongs to one set of parameters, f32 or f64, from its first step on. Its
    hyper-parameters and ``groups`` may be changed between steps.
    """

    native: ClassVar[str]  # what the core calls it
    _options: ClassVar[tuple[str, ...]]  # what a group may have besides names
    _squares: ClassVar[tuple[str, ...]] = ()  # states that are never negative

    groups: list[dict[str, Any]]

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        self.groups = [dict(group) for group in groups]
        for group in self.groups:
            unknown = set(group) - {"names", *self._options}
            if unknown or "names" not in group:
                raise ValueError(
                    f"a group has 'names' and any of {', '.join(self._options)}; "
                    f"got {sorted(group)}"
                )
        self._state = State([], [], [], {}, np.zeros((), np.int64))
        self.rows()
        self._patterns()

    def _row(self, options: Mapping[str, Any]) -> Row:
        """The options of a group as the core's row.

        Raises:
            TypeError, ValueError: one of them is none or outside its range.
        """
        raise NotImplementedError

    @property
    def t(self) -> int:
        """Number of steps taken."""
        return int(self._state.counter)

    @property
    def names(self) -> list[str]:
        """Leaf names of the parameters; none before the first step."""
        return self._state.names if self._state.bound else []

    @property
    def counter(self) -> Array:
        """``t`` as an array of one i64, which a step updates."""
        return self._state.counter

    @property
    def states(self) -> dict[str, tuple[Array | None, ...]]:
        """The arrays of each state, beside ``names``; None where a parameter's group does not have
        it. What is in them may be changed; they are exchanged by :meth:`load_state_dict`."""
        held = self._state.arrays if self._state.bound else {}
        return {state: tuple(held.get(state, ())) for state in _STATES[self.native]}

    def rows(self) -> list[Row]:
        """The hyper-parameters now: those of the optimizer, then those of each group.

        Raises:
            TypeError, ValueError: one of them is none or outside its range.
        """
        base = {name: getattr(self, name) for name in self._options}
        return [self._row({**base, **group}) for group in ({}, *self.groups)]

    def state_bytes(self, names: Sequence[str], params: Sequence[Array]) -> int:
        """Bytes of the states that these parameters have or will have."""
        used = [_native.optimizer_states(self.native, row) for row in self.rows()]
        patterns = self._patterns()
        return sum(
            p.nbytes * len(used[_find_group(name, patterns)])
            for name, p in zip(names, params, strict=True)
        )

    def prepare(self, names: list[str], params: Sequence[Array]) -> tuple[State, list[Row]]:
        """The state for these parameters, made anew until a step was taken with it, and the
        hyper-parameters.

        Raises:
            TypeError, ValueError: a hyper-parameter is wrong, or the optimizer holds the state of
                other parameters.
        """
        rows, patterns = self.rows(), self._patterns()
        used = [_native.optimizer_states(self.native, row) for row in rows]
        if not self._state.bound:
            self._state = self._first(names, params, patterns, used)
        elif self._state.patterns != patterns or self._state.loaded is not None:
            groups = [_find_group(name, patterns) for name in self._state.names]
            self._state = self._state._replace(group_of=groups, patterns=patterns, loaded=None)
        if names != self._state.names:
            raise ValueError(
                "this optimizer holds the state of other parameters; make one for each model"
            )
        for name, p, (shape, dtype) in zip(names, params, self._state.kinds, strict=True):
            if p.shape != shape or p.dtype != dtype:
                raise ValueError(
                    f"{name} is {p.dtype}{list(p.shape)}, "
                    f"the optimizer's state {dtype}{list(shape)}"
                )
        self._make_missing(used)
        return self._state, rows

    def _first(
        self,
        names: list[str],
        params: Sequence[Array],
        patterns: tuple[tuple[str, ...], ...],
        used: Sequence[Sequence[str]],
    ) -> State:
        held = self._state
        kinds = [(p.shape, p.dtype) for p in params]
        groups = [_find_group(name, patterns) for name in names]
        arrays: dict[str, list[Array | None]] = {
            state: [None] * len(names) for state in _STATES[self.native]
        }
        if held.loaded is not None:
            wanted = [used[group] for group in groups]
            arrays = self._fit(held.loaded, names, kinds, wanted)
        return State(
            list(names), kinds, groups, arrays, held.counter, held.loaded, patterns,
            int(held.counter),
        )  # fmt: skip

    def _make_missing(self, used: Sequence[Sequence[str]]) -> None:
        """Zeros for what the groups have by now and did not have before."""
        held = self._state
        missing = [
            (state, i)
            for i, group in enumerate(held.group_of)
            for state in used[group]
            if held.arrays[state][i] is None
        ]
        if not missing:
            return
        arrays = {state: list(row) for state, row in held.arrays.items()}
        for state, i in missing:
            arrays[state][i] = np.zeros(*held.kinds[i])
        self._state = held._replace(arrays=arrays)

    def _fit(
        self,
        loaded: Mapping[str, Mapping[str, Array]],
        names: Sequence[str],
        kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        wanted: Iterable[Sequence[str]],
    ) -> dict[str, list[Array | None]]:
        """Loaded arrays beside the names.

        Raises:
            ValueError: they are those of other parameters, or some are missing.
        """
        places = {name: i for i, name in enumerate(names)}
        arrays: dict[str, list[Array | None]] = {}
        for state, by_name in loaded.items():
            others = sorted(set(by_name) - set(names))
            if others:
                raise ValueError(f"the state holds {state} of other parameters: {others}")
            arrays[state] = [None] * len(names)
            for name, array in by_name.items():
                place = places[name]
                arrays[state][place] = _fitting(array, f"{state} of {name}", kinds[place])
        for i, (name, states) in enumerate(zip(names, wanted, strict=True)):
            for state in states:
                if arrays[state][i] is None:
                    raise ValueError(
                        f"the state is that of other parameters: it has no {state} of {name}"
                    )
        return arrays

    def _patterns(self) -> tuple[tuple[str, ...], ...]:
        """The name patterns of each group as they are now."""
        rows = []
        for group in self.groups:
            names = group["names"]
            row = (names,) if isinstance(names, str) else names
            if not isinstance(row, Sequence) or not all(isinstance(p, str) for p in row):
                raise TypeError(
                    f"{type(self).__name__}: names={names!r} of a group is no pattern or list of "
                    "them"
                )
            rows.append(tuple(row))
        return tuple(rows)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the state: ``t``, the number of steps, and for each parameter and state an
        array under ``"<leaf name>.<state>"``. It is flat, so that ``np.savez(file, **state)`` keeps
        it and ``load_state_dict(np.load(file))`` takes it up."""
        state = self._state
        if state.bound or state.loaded is None:
            rows = [(name, key, a) for key in self.states for name, a in
                    zip(self.names, self.states[key], strict=True) if a is not None]  # fmt: skip
        else:
            rows = [(name, key, a) for key in state.loaded for name, a in state.loaded[key].items()]
        return {"t": int(state.counter), **{f"{name}.{key}": a.copy() for name, key, a in rows}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over (copies) what :meth:`state_dict` gave. After an error all is as before.

        Raises:
            TypeError: an entry of another type: no integer, no mapping, arrays without numbers.
            ValueError: not such a state, or its names or shapes are those of other parameters.
        """
        owner, known = type(self).__name__, _STATES[self.native]
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of {owner} is a mapping, not {type(state).__name__}")
        if "t" not in state:
            raise ValueError(f"the state of {owner} has 't', the number of steps; it is missing")
        counter, loaded = _count(state["t"]), {key: dict[str, Array]() for key in known}
        for entry in state:
            name, dot, key = str(entry).rpartition(".")
            if entry == "t":
                continue
            if not dot or key not in known:
                raise ValueError(
                    f"the state of {owner} has no {entry!r}; besides 't' it has "
                    f"{' and '.join(f'<parameter>.{key}' for key in known)}"
                )
            loaded[key][name] = _loaded(entry, state[entry])
            if key in self._squares and (loaded[key][name] < 0).any():
                least = loaded[key][name].min()
                raise ValueError(f"{key} of {name}, a mean of squares, has an element {least}")
        held = self._state
        if not held.bound:
            is_new = int(counter) == 0 and not any(loaded.values())
            self._state = State([], [], [], {}, counter, None if is_new else loaded)
            return
        used = [_native.optimizer_states(self.native, row) for row in self.rows()]
        wanted = [used[group] for group in held.group_of]
        arrays = self._fit(loaded, held.names, held.kinds, wanted)
        self._state = held._replace(arrays=arrays, counter=counter, loaded=None, first=-1)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={getattr(self, name)}" for name in self._options)
        return f"{type(self).__name__}({options}, t={self.t})"


class AdamW(Optimizer):
    """AdamW (Loshchilov, Hutter 2019): Adam with weight decay that does not pass through the
    moments.

        p <- p * (1 - lr * weight_decay)
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        p <- p - lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)

    Args:
        lr: step size.
        betas: decay of the first and second moment, in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: decay of the parameters, for each step times lr.
        groups: parameters treated differently, as dicts with ``"names"`` (shell patterns such as
            ``"*bias*"``, matched against leaf names such as ``params['layers'][0]['bias']``) and
            the options that differ: ``{"names": ["*norm*", "*bias*"], "weight_decay": 0.0}``. The
            first match counts.

    One optimizer belongs to one set of parameters, f32 or f64, from its first step on. ``lr`` and
    ``groups`` may be changed between steps.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
    """

    native = "adamw"
    _options = ("lr", "betas", "eps", "weight_decay")
    _squares = ("v",)

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        groups: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.lr = lr
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        super().__init__(groups)

    def _row(self, options: Mapping[str, Any]) -> Row:
        betas = _betas("AdamW", options["betas"])
        lr, eps, decay = (
            _least_zero("AdamW", name, options[name]) for name in ("lr", "eps", "weight_decay")
        )
        return lr, *betas, eps, decay

    @property
    def m(self) -> tuple[Array | None, ...]:
        """First moments, beside ``names``."""
        return self.states["m"]

    @m.setter
    def m(self, arrays: Any) -> None:
        raise TypeError("AdamW.m is not assigned: write into its arrays, or use load_state_dict")

    @property
    def v(self) -> tuple[Array | None, ...]:
        """Second moments, likewise."""
        return self.states["v"]

    @v.setter
    def v(self, arrays: Any) -> None:
        raise TypeError("AdamW.v is not assigned: write into its arrays, or use load_state_dict")


class SGD(Optimizer):
    """Stochastic gradient descent, as PyTorch defines it.

        g <- -g                            with maximize
        g <- g + weight_decay * p
        b <- g at the first step, momentum * b + (1 - dampening) * g from then on
        g <- g + momentum * b              with nesterov, else b
        p <- p - lr * g

    Without momentum there is no b and no state. A group that gets a momentum later begins with
    b = 0, not with b = g.

    Args:
        lr: step size.
        momentum: decay of the sum of gradients, at least 0.
        dampening: how much less than whole gradients are added to it.
        weight_decay: added to the gradient, times the parameter.
        nesterov: look ahead by the momentum, which must not be 0 then, and dampening must.
        maximize: go up instead of down.
        groups: as for :class:`AdamW`.

    Raises:
        ValueError, TypeError: a hyper-parameter outside its range.
    """

    native = "sgd"
    _options = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")

    def __init__(
        self,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        groups: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.lr = lr
        self.momentum = momentum
        self.dampening = dampening
        self.weight_decay = weight_decay
        self.nesterov = nesterov
        self.maximize = maximize
        super().__init__(groups)

    def _row(self, options: Mapping[str, Any]) -> Row:
        lr, momentum, decay = (
            _least_zero("SGD", name, options[name]) for name in ("lr", "momentum", "weight_decay")
        )
        dampening = _number("SGD", "dampening", options["dampening"])
        if not math.isfinite(dampening):
            raise ValueError(f"SGD: dampening={dampening} is not finite")
        nesterov = _flag("SGD", "nesterov", options["nesterov"])
        maximize = _flag("SGD", "maximize", options["maximize"])
        if nesterov and (momentum == 0 or dampening != 0):
            raise ValueError(
                f"SGD: nesterov needs a momentum and no dampening, not momentum={momentum} and "
                f"dampening={dampening}"
            )
        return lr, momentum, dampening, decay, nesterov, maximize
