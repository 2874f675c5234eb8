"""Optimizers for compiled steps. Their state is NumPy arrays, their hyper-parameters plain numbers:
changing ``lr`` between steps recompiles nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Options = tuple[float, float, float, float, float]
"""(lr, beta1, beta2, eps, weight_decay)"""


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
        self.counter = np.zeros((), np.int64)  # steps taken; a step counts itself
        self.names: list[str] = []
        self.m: list[np.ndarray[Any, Any]] = []
        self.v: list[np.ndarray[Any, Any]] = []
        self._group_of: list[int] = []
        self._loaded: dict[str, Any] | None = None
        self.options()

    @property
    def t(self) -> int:
        """Number of steps taken."""
        return int(self.counter)

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

    def prepare(self, names: list[str], params: Sequence[np.ndarray[Any, Any]]) -> list[int]:
        """Makes the moments for these parameters at the first call; the group of each parameter.

        Raises:
            ValueError: the optimizer holds the state of other parameters.
        """
        if not self.names:
            self.m = [np.zeros_like(p, subok=False) for p in params]
            self.v = [np.zeros_like(p, subok=False) for p in params]
            self._group_of = [self._find_group(name) for name in names]
            self._take_loaded(names)
            self.names = list(names)
        if names != self.names:
            raise ValueError(
                "this optimizer holds the state of other parameters; make one for each model"
            )
        for name, p, m in zip(names, params, self.m, strict=True):
            if p.shape != m.shape or p.dtype != m.dtype:
                raise ValueError(
                    f"{name} is {p.dtype}{list(p.shape)}, "
                    f"the optimizer's state {m.dtype}{list(m.shape)}"
                )
        return self._group_of

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
        return {
            "t": self.t,
            "m": {name: a.copy() for name, a in zip(self.names, self.m, strict=True)},
            "v": {name: a.copy() for name, a in zip(self.names, self.v, strict=True)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over (copies) what :meth:`state_dict` gave.

        Raises:
            ValueError: not such a state, or its names or shapes are those of other parameters.
        """
        missing = [key for key in ("t", "m", "v") if key not in state]
        if missing:
            raise ValueError(
                f"the state of an AdamW has 't', 'm' and 'v'; {missing[0]!r} is missing"
            )
        if not self.names:
            self._loaded = state
            self.counter[...] = int(state["t"])
        else:
            self._fill(state, self.names)

    def _take_loaded(self, names: list[str]) -> None:
        if self._loaded is not None:
            self._fill(self._loaded, names)
            self._loaded = None

    def _fill(self, state: dict[str, Any], names: list[str]) -> None:
        for key, arrays in (("m", self.m), ("v", self.v)):
            if set(state[key]) != set(names):
                differ = sorted(set(state[key]) ^ set(names))
                raise ValueError(f"the state holds {key} of other parameters: {differ}")
            for name, array in zip(names, arrays, strict=True):
                given = state[key][name].shape
                if given != array.shape:
                    raise ValueError(f"{key} of {name} has shape {given}, expected {array.shape}")
        for key, arrays in (("m", self.m), ("v", self.v)):
            for name, array in zip(names, arrays, strict=True):
                array[...] = state[key][name]
        self.counter[...] = int(state["t"])

    def __repr__(self) -> str:
        return (
            f"AdamW(lr={self.lr}, betas={self.betas}, eps={self.eps}, "
            f"weight_decay={self.weight_decay}, t={self.t})"
        )
