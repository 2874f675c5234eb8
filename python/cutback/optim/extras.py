"""What a step does beside the update, in the same pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .numbers import flag, least_zero, number
from .state import HALVES, kind_of


class Outcome(NamedTuple):
    """What a step has found."""

    grad_norm: float | None
    """The norm of all gradients together, unscaled and before they were shortened; NaN where one is
    not finite, None where neither ``max_norm`` nor ``grad_scale`` asked for it."""
    skipped: bool
    """Whether a gradient was not finite, so that nothing was stepped."""


class Extras(NamedTuple):
    """The numbers of a step's extras; see :meth:`Optimizer.step`."""

    grad_scale: float | None
    max_norm: float | None
    average_decay: float
    zero_grads: bool
    any: bool  # something differs from a plain step

    @classmethod
    def checked(
        cls,
        owner: str,
        grad_scale: Any,
        max_norm: Any,
        average_decay: Any,
        zero_grads: Any,
        arrays: bool,
    ) -> Extras:
        """With ``arrays`` there are averages or copies.

        Raises:
            TypeError, ValueError: a number is none, or outside its range.
        """
        if grad_scale is not None:
            grad_scale = number(owner, "grad_scale", grad_scale)
            if not 0 < grad_scale < 1e30:
                raise ValueError(f"{owner}: grad_scale={grad_scale} is not positive and finite")
        if max_norm is not None:
            max_norm = least_zero(owner, "max_norm", max_norm)
            if max_norm == 0:
                raise ValueError(f"{owner}: max_norm=0.0 is not positive; None clips nothing")
        decay = number(owner, "average_decay", average_decay)
        if not 0 <= decay <= 1:
            raise ValueError(f"{owner}: average_decay={decay} is not in [0, 1]")
        zeroes = bool(flag(owner, "zero_grads", zero_grads))
        asked = arrays or zeroes or grad_scale is not None or max_norm is not None
        return cls(grad_scale, max_norm, decay, zeroes, asked)

    def ask(
        self,
        table: _native.OptimizerTable,
        averages: Sequence[Any] | None,
        copies: Sequence[Any] | None,
        n: int,
        scale: float = 1.0,
    ) -> None:
        """Tells the table. Gradients are divided by ``scale``, too."""
        none = (None,) * n
        table.ask(
            1 / (scale * (self.grad_scale or 1.0)),
            self.max_norm or 0.0,
            self.average_decay,
            self.grad_scale is not None,
            self.zero_grads,
            none if averages is None else tuple(averages),
            none if copies is None else tuple(copies),
        )


def outcome(table: _native.OptimizerTable) -> Outcome:
    """Of the table's last step."""
    norm, skipped = table.outcome()
    return Outcome(None if norm == -1 else norm, skipped)


def check_arrays(
    names: Sequence[str],
    params: Sequence[Any],
    averages: Sequence[Any] | None,
    copies: Sequence[Any] | None,
    grads: Sequence[Any] | None,
) -> None:
    """Arrays beside the parameters, which the core takes as they are; ``grads`` where zeros are
    written into them.

    Raises:
        TypeError, ValueError: one does not fit its parameter, or is read-only.
    """
    halves = any(dtype.name in HALVES for dtype in {p.dtype for p in params})
    for what, arrays in (("average", averages), ("copy", copies), ("gradient", grads)):
        for name, p, x in zip(names, params, arrays or (None,) * len(names), strict=True):
            if x is None:
                continue
            if not isinstance(x, np.ndarray):
                raise TypeError(f"{name}: the {what} is {type(x).__name__}, not a NumPy array")
            wanted = p.dtype
            if halves and what == "average":
                wanted = kind_of((p.shape, wanted), "alike")[1]
            fits = x.dtype.name in HALVES if what == "copy" else x.dtype == wanted
            if not fits or x.shape != p.shape:
                kind = "float16, bfloat16 or uint16" if what == "copy" else wanted
                raise ValueError(
                    f"{name}: the {what} is {x.dtype}{list(x.shape)}, and has to be "
                    f"{kind}{list(p.shape)}"
                )
            if not x.flags.writeable:
                raise ValueError(f"{name}: the {what} is read-only, but the step writes it")
