"""Optimizers for compiled steps. Their state is NumPy arrays, their hyper-parameters plain numbers:
changing ``lr`` between steps recompiles nothing."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Options = tuple[float, float, float, float, float]
"""(lr, beta1, beta2, eps, weight_decay)"""


class Moments(NamedTuple):
    """The state of an optimizer. It is exchanged as a whole, so that no interrupt comes between its
    parts; a step updates ``m``, ``v`` and ``counter`` in place, in one call of the core."""

    names: list[str]  # of the parameters; none before the first step
    group_of: list[int]
    m: list[np.ndarray[Any, Any]]
    v: list[np.ndarray[Any, Any]]
    counter: np.ndarray[Any, Any]  # i64: steps taken
    loaded: dict[str, dict[str, np.ndarray[Any, Any]]] | None = None  # before the first step


def _count(t: Any) -> np.ndarray[Any, Any]:
    """A number of steps as the counter of one.

    Raises:
        ValueError: not a whole number in 0 .. 2**63 - 1.
    """
    try:
        number = operator.index(t)
    except TypeError:
        raise ValueError(f"t={t!r} is not a number of steps") from None
    if not 0 <= number < 2**63:
        raise ValueError(f"t={number} is not in 0 .. 2**63 - 1")
    return np.array(number, np.int64)


def _arrays(state: Mapping[str, Any], key: str) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of the arrays that a state holds under a key."""
    if not isinstance(state[key], Mapping):
        raise ValueError(f"{key!r} of the state is {type(state[key]).__name__}, not arrays by name")
    arrays = {str(name): np.array(array) for name, array in state[key].items()}
    for name, array in arrays.items():
        if not np.can_cast(array.dtype, np.float64, "same_kind"):
            raise ValueError(f"{key} of {name} is {array.dtype}, not a floating type")
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
    return [
        np.ascontiguousarray(arrays[name].astype(p.dtype)).reshape(p.shape)
        for name, p in zip(names, like, strict=True)
    ]


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

    One optimizer belongs to one set of parameters, f32 or f64. ``lr`` and the entries of ``groups``
    may be changed between steps.

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

    @property
    def t(self) -> int:
        """Number of steps taken."""
        return int(self._state.counter)

    @property
    def names(self) -> list[str]:
        """Leaf names of the parameters; none before the first step."""
        return self._state.names

    @property
    def m(self) -> list[np.ndarray[Any, Any]]:
        """First moments, beside ``names``."""
        return self._state.m

    @property
    def v(self) -> list[np.ndarray[Any, Any]]:
        """Second moments, beside ``names``."""
        return self._state.v

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
            beta1, beta2 = o["betas"]
            for name, value in (("beta1", beta1), ("beta2", beta2)):
                if not 0 <= value < 1:
                    raise ValueError(f"AdamW: {name}={value} is not in [0, 1)")
            for name in ("lr", "eps", "weight_decay"):
                if not o[name] >= 0:
                    raise ValueError(f"AdamW: {name}={o[name]} is negative")
            rows.append(
                (
                    float(o["lr"]),
                    float(beta1),
                    float(beta2),
                    float(o["eps"]),
                    float(o["weight_decay"]),
                )
            )
        return rows

    def prepare(self, names: list[str], params: Sequence[np.ndarray[Any, Any]]) -> Moments:
        """The state for these parameters, made at the first call.

        Raises:
            ValueError: the optimizer holds the state of other parameters.
        """
        if not self._state.names:
            self._state = self._first(names, params)
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

    def _first(self, names: list[str], params: Sequence[np.ndarray[Any, Any]]) -> Moments:
        groups = [self._find_group(name) for name in names]
        loaded, counter = self._state.loaded, self._state.counter
        if loaded is not None:
            m, v = (_fitting(loaded[key], key, names, params) for key in ("m", "v"))
        else:
            m, v = ([np.zeros_like(p, subok=False) for p in params] for _ in range(2))
        return Moments(list(names), groups, m, v, counter)

    def _find_group(self, name: str) -> int:
        from fnmatch import fnmatchcase

        for i, group in enumerate(self.groups):
            patterns = [group["names"]] if isinstance(group["names"], str) else group["names"]
            # brackets are part of leaf names, not sets of characters
            if any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns):
                return i + 1
        return 0

    def state_dict(self) -> dict[str, Any]:
        """Copies of the state: ``{"t": int, "m": {leaf name: array}, "v": {...}}``."""
        names, _, m, v, counter, loaded = self._state
        held = loaded or {
            "m": dict(zip(names, m, strict=True)),
            "v": dict(zip(names, v, strict=True)),
        }
        return {
            "t": int(counter),
            "m": {name: a.copy() for name, a in held["m"].items()},
            "v": {name: a.copy() for name, a in held["v"].items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over (copies) what :meth:`state_dict` gave. After an error all is as before.

        Raises:
            ValueError: not such a state, or its names or shapes are those of other parameters.
        """
        missing = [key for key in ("t", "m", "v") if key not in state]
        if missing:
            raise ValueError(
                f"the state of an AdamW has 't', 'm' and 'v'; {missing[0]!r} is missing"
            )
        counter, loaded = _count(state["t"]), {key: _arrays(state, key) for key in ("m", "v")}
        names, groups, m = self._state.names, self._state.group_of, self._state.m
        if not names:
            self._state = Moments([], [], [], [], counter, loaded)
            return
        new_m, new_v = (_fitting(loaded[key], key, names, m) for key in ("m", "v"))
        self._state = Moments(names, groups, new_m, new_v, counter)

    def __repr__(self) -> str:
        return (
            f"AdamW(lr={self.lr}, betas={self.betas}, eps={self.eps}, "
            f"weight_decay={self.weight_decay}, t={self.t})"
        )
