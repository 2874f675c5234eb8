"""What a step does beside the update, in the same pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..scalars import flag, number
from .state import HALVES, kind_of


class Outcome(NamedTuple):
    """What a step has found."""

    grad_norm: float | None
    """The norm of all gradients together, unscaled and before they were shortened; NaN where one is
    not finite, None where neither ``max_norm`` nor ``grad_scale`` asked for it."""
    skipped: bool
    """Whether a gradient was not finite, so that nothing was stepped."""


class Asked(NamedTuple):
    """What a step does beside its update, as the core reads it, by the names of these fields."""

    grad_factor: float
    """Gradients are multiplied by it."""
    max_norm: float
    """The norm that gradients are shortened to; 0: they are not."""
    average_keep: float
    skips: bool
    """Step nothing if a gradient is not finite."""
    zeroes: bool
    """Gradients are zeros afterwards."""
    averages: tuple[Any, ...]
    """An array for each parameter, or None; so are ``copies``."""
    copies: tuple[Any, ...]


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
            TypeError, ValueError: a value is not a number or outside its range.
        """
        if grad_scale is not None:
            grad_scale = number(owner, "grad_scale", grad_scale)
            if not 1e-30 < grad_scale < 1e30:
                raise ValueError(
                    f"{owner}: grad_scale={grad_scale} is not a number between 1e-30 and 1e30"
                )
        if max_norm is not None:
            max_norm = number(owner, "max_norm", max_norm)
            if not max_norm > 0:
                raise ValueError(
                    f"{owner}: max_norm={max_norm} is not a number above 0; float('inf') only "
                    "measures the norm"
                )
        decay = number(owner, "average_decay", average_decay)
        if not 0 <= decay <= 1:
            raise ValueError(f"{owner}: average_decay={decay} is not in [0, 1]")
        zeroes = flag(owner, "zero_grads", zero_grads)
        asked = arrays or zeroes or grad_scale is not None or max_norm is not None
        return cls(grad_scale, max_norm, decay, zeroes, asked)

    def arguments(
        self,
        averages: Sequence[Any] | None,
        copies: Sequence[Any] | None,
        n: int,
        scale: float = 1.0,
    ) -> Asked:
        """As the core takes them, for so many parameters. Gradients are divided by ``scale``,
        too."""
        none = (None,) * n
        return Asked(
            1 / (scale * (self.grad_scale or 1.0)),
            self.max_norm or 0.0,
            self.average_decay,
            self.grad_scale is not None,
            self.zero_grads,
            none if averages is None else tuple(averages),
            none if copies is None else tuple(copies),
        )


class Beside(NamedTuple):
    """What one call of a compiled step does beside its update, and what it found."""

    extras: Extras
    averages: Sequence[Any] | None  # beside the parameters
    copies: Sequence[Any] | None

    @classmethod
    def of(cls, owner: str, given: Any, leaves: Callable[[Any, str], list[Any]]) -> Beside | None:
        """Of the ``extras`` of a call, arguments of :meth:`Optimizer.step` by name; ``leaves``
        finds arrays beside parameters.

        Raises:
            TypeError, ValueError: one is not known, or outside its range.
        """
        if given is None:
            return None
        known = ("grad_scale", "max_norm", "averages", "average_decay", "copies")
        unknown = sorted(set(given) - set(known)) if isinstance(given, Mapping) else [given]
        if unknown:
            raise TypeError(
                f"{owner}: extras={unknown[0]!r} of a step; they are a dict of {', '.join(known)}"
            )
        numbers = {"grad_scale": None, "max_norm": None, "average_decay": 0.999, **given}
        rows = [None if given.get(name) is None else leaves(given[name], name)
                for name in ("averages", "copies")]  # fmt: skip
        extras = Extras.checked(
            owner, numbers["grad_scale"], numbers["max_norm"], numbers["average_decay"], False,
            any(row is not None for row in rows),
        )  # fmt: skip
        return cls(extras, *rows) if extras.any else None

    def arguments(self, names: Sequence[str], params: Sequence[Any]) -> Asked:
        """As the core takes them.

        Raises:
            TypeError, ValueError: an array does not fit its parameter.
        """
        check_arrays(names, params, self.averages, self.copies, None)
        return self.extras.arguments(self.averages, self.copies, len(params))


def outcome(found: tuple[float, bool]) -> Outcome:
    """Of the norm and whether the step was skipped, as the core says them."""
    norm, skipped = found
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
