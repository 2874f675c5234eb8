"""Optimizers for compiled steps. Their state is NumPy arrays, their hyper-parameters plain numbers:
changing ``lr`` between steps recompiles nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .integers import integer

Options = tuple[float, float, float, float, float]
"""(lr, beta1, beta2, eps, weight_decay)"""
_ASSIGNED = "AdamW.{} is not assigned: write into its arrays, or use load_state_dict"


class Moments(NamedTuple):
    """The state of an optimizer. It is exchanged as a whole, so that no interrupt comes between its
    parts; a step updates ``m``, ``v`` and ``counter`` in place, in one call of the core."""

    names: list[str]  # of the parameters; none before a step was tried
    group_of: list[int]
    m: list[np.ndarray[Any, Any]]
    v: list[np.ndarray[Any, Any]]
    counter: np.ndarray[Any, Any]  # i64: steps taken
    loaded: dict[str, dict[str, np.ndarray[Any, Any]]] | None = None  # before the first step
    patterns: tuple[tuple[str, ...], ...] = ()  # of the groups that group_of was found with
    first: int = -1  # the counter when m and v were made; while it is still that, no step was taken

    @property
    def bound(self) -> bool:
        """Whether a step was taken, or a state loaded after one. A first step that was refused
        leaves what was made for it, which belongs to no parameters yet."""
        return bool(self.names) and int(self.counter) != self.first


def _count(t: Any) -> np.ndarray[Any, Any]:
    """A number of steps as the counter of one.

    Raises:
        TypeError, ValueError: no integer, or not in 0 .. 2**63 - 1.
    """
    return np.array(integer("t", t, 0, 2**63 - 1), np.int64)


def _number(name: str, value: Any) -> float:
    """A hyper-parameter as a float.

    Raises:
        TypeError, ValueError: it is no number, or none that a float can hold.
    """
    try:
        if isinstance(value, str | bytes | bool | np.bool_):
            raise TypeError
        return float(value)
    except TypeError:
        raise TypeError(f"AdamW: {name}={value!r} is not a number") from None
    except OverflowError:
        raise ValueError(f"AdamW: {name} is an integer too large for a float") from None


def _arrays(state: Mapping[str, Any], key: str) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of the arrays that a state holds under a key."""
    if not isinstance(state[key], Mapping):
        raise TypeError(f"{key!r} of the state is {type(state[key]).__name__}, not arrays by name")
    arrays = {str(name): np.array(array) for name, array in state[key].items()}
    for name, array in arrays.items():
        if array.dtype == bool or not np.can_cast(array.dtype, np.float64, "same_kind"):
            raise TypeError(f"{key} of {name} is {array.dtype}, not a floating type")
        if key == "v" and (array < 0).any():
            raise ValueError(f"v of {name}, a mean of squares, has an element {array.min()}")
    return arrays


def _fitting(
    arrays: Mapping[str, np.ndarray[Any, Any]],
    key: str,
    names: Sequence[str],
    like: Sequence[np.ndarray[Any, Any]],
) -> list[np.ndarray[Any, Any]]:
    """The arrays in the order of the names, in the types of ``like``."""
    if set(arrays) != set(names):
        differ = sorted(set(arrays) ^ set(names))
        raise ValueError(f"the state holds {key} of other parameters: {differ}")
    for name, p in zip(names, like, strict=True):
        if arrays[name].shape != p.shape:
            raise ValueError(f"{key} of {name} has shape {arrays[name].shape}, expected {p.shape}")
    fitting = []
    for name, p in zip(names, like, strict=True):
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(arrays[name].astype(p.dtype)).reshape(p.shape)
        if (np.isinf(array) & np.isfinite(arrays[name])).any():
            raise ValueError(f"{key} of {name} has elements too large for {p.dtype}")
        fitting.append(array)
    return fitting


def _find_group(name: str, patterns: Sequence[Sequence[str]]) -> int:
    """The first group with a pattern that matches the name, from 1 on; 0 where none does."""
    from fnmatch import fnmatchcase

    for i, row in enumerate(patterns):
        # brackets are part of leaf names, not sets of characters
        if any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in row):
            return i + 1
    return 0


class AdamW:
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
        self.groups = [dict(group) for group in groups]
        for group in self.groups:
            unknown = set(group) - {"names", "lr", "betas", "eps", "weight_decay"}
            if unknown or "names" not in group:
                raise ValueError(
                    "a group has 'names' and any of lr, betas, eps, weight_decay; "
                    f"got {sorted(group)}"
                )
        self._state = Moments([], [], [], [], np.zeros((), np.int64))
        self.options()
        self._patterns()

    @property
    def t(self) -> int:
        """Number of steps taken."""
        return int(self._state.counter)

    @property
    def names(self) -> list[str]:
        """Leaf names of the parameters; none before the first step."""
        return self._state.names if self._state.bound else []

    @property
    def m(self) -> tuple[np.ndarray[Any, Any], ...]:
        """First moments, beside ``names``. What is in the arrays may be changed; the arrays are
        exchanged by :meth:`load_state_dict`."""
        return tuple(self._state.m) if self._state.bound else ()

    @m.setter
    def m(self, arrays: Any) -> None:
        raise TypeError(_ASSIGNED.format("m"))

    @property
    def v(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Second moments, likewise."""
        return tuple(self._state.v) if self._state.bound else ()

    @v.setter
    def v(self, arrays: Any) -> None:
        raise TypeError(_ASSIGNED.format("v"))

    @property
    def counter(self) -> np.ndarray[Any, Any]:
        """``t`` as an array of one i64, which a step updates."""
        return self._state.counter

    def options(self) -> list[Options]:
        """The hyper-parameters now: those of the optimizer, then those of each group.

        Raises:
            ValueError: one of them is outside its range.
        """
        base = {
            "lr": self.lr,
            "betas": self.betas,
            "eps": self.eps,
            "weight_decay": self.weight_decay,
        }
        rows = []
        for group in ({}, *self.groups):
            o = {**base, **group}
            try:
                beta1, beta2 = o["betas"]
            except (TypeError, ValueError):
                raise ValueError(f"AdamW: betas={o['betas']!r} are not two numbers") from None
            betas = [_number(f"beta{k}", beta) for k, beta in ((1, beta1), (2, beta2))]
            for k, beta in enumerate(betas, 1):
                if not 0 <= beta < 1:
                    raise ValueError(f"AdamW: beta{k}={beta} is not in [0, 1)")
            lr, eps, decay = (_number(name, o[name]) for name in ("lr", "eps", "weight_decay"))
            for name, value in (("lr", lr), ("eps", eps), ("weight_decay", decay)):
                if not 0 <= value < math.inf:
                    raise ValueError(f"AdamW: {name}={value} is not finite and at least 0")
            rows.append((lr, betas[0], betas[1], eps, decay))
        return rows

    def prepare(self, names: list[str], params: Sequence[np.ndarray[Any, Any]]) -> Moments:
        """The state for these parameters, made anew until a step was taken with it.

        Raises:
            ValueError: the optimizer holds the state of other parameters.
        """
        patterns = self._patterns()
        if not self._state.bound:
            self._state = self._first(names, params, patterns)
        elif self._state.patterns != patterns or self._state.loaded is not None:
            groups = [_find_group(name, patterns) for name in self._state.names]
            self._state = self._state._replace(group_of=groups, patterns=patterns, loaded=None)
        state = self._state
        if names != state.names:
            raise ValueError(
                "this optimizer holds the state of other parameters; make one for each model"
            )
        for name, p, m in zip(names, params, state.m, strict=True):
            if p.shape != m.shape or p.dtype != m.dtype:
                raise ValueError(
                    f"{name} is {p.dtype}{list(p.shape)}, "
                    f"the optimizer's state {m.dtype}{list(m.shape)}"
                )
        return state

    def _first(
        self,
        names: list[str],
        params: Sequence[np.ndarray[Any, Any]],
        patterns: tuple[tuple[str, ...], ...],
    ) -> Moments:
        groups = [_find_group(name, patterns) for name in names]
        loaded, counter = self._state.loaded, self._state.counter
        if loaded is not None:
            m, v = (_fitting(loaded[key], key, names, params) for key in ("m", "v"))
        else:
            m, v = ([np.zeros_like(p, subok=False) for p in params] for _ in range(2))
        return Moments(list(names), groups, m, v, counter, loaded, patterns, int(counter))

    def _patterns(self) -> tuple[tuple[str, ...], ...]:
        """The name patterns of each group as they are now."""
        rows = []
        for group in self.groups:
            names = group["names"]
            row = (names,) if isinstance(names, str) else names
            if not isinstance(row, Sequence) or not all(isinstance(p, str) for p in row):
                raise TypeError(f"AdamW: names={names!r} of a group is no pattern or list of them")
            rows.append(tuple(row))
        return tuple(rows)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the state: ``{"t": int, "m": {leaf name: array}, "v": {...}}``."""
        state = self._state
        if state.bound or state.loaded is None:
            held = {
                "m": dict(zip(self.names, self.m, strict=True)),
                "v": dict(zip(self.names, self.v, strict=True)),
            }
        else:
            held = state.loaded
        return {
            "t": int(state.counter),
            "m": {name: a.copy() for name, a in held["m"].items()},
            "v": {name: a.copy() for name, a in held["v"].items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over (copies) what :meth:`state_dict` gave. After an error all is as before.

        Raises:
            TypeError: an entry of another type: no integer, no mapping, arrays without numbers.
            ValueError: not such a state, or its names or shapes are those of other parameters.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of an AdamW is a mapping, not {type(state).__name__}")
        missing = [key for key in ("t", "m", "v") if key not in state]
        if missing:
            raise ValueError(
                f"the state of an AdamW has 't', 'm' and 'v'; {missing[0]!r} is missing"
            )
        counter, loaded = _count(state["t"]), {key: _arrays(state, key) for key in ("m", "v")}
        held = self._state
        if not held.bound:
            self._state = Moments([], [], [], [], counter, loaded)
            return
        m, v = (_fitting(loaded[key], key, held.names, held.m) for key in ("m", "v"))
        self._state = held._replace(m=m, v=v, counter=counter, loaded=None, first=-1)

    def __repr__(self) -> str:
        return (
            f"AdamW(lr={self.lr}, betas={self.betas}, eps={self.eps}, "
            f"weight_decay={self.weight_decay}, t={self.t})"
        )
