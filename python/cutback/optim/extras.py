"""Extra work that a step does in the same pass over memory: scaling and clipping of gradients,
averages, copies and zeroing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..scalars import flag, number
from .state import HALVES, kind_of


class Outcome(NamedTuple):
    """The result of a step.

    >>> outcome = optimizer.step(params, grads, max_norm=1.0)
    >>> outcome.grad_norm > 1.0, outcome.skipped
    (True, False)
    """

    grad_norm: float | None
    """The global norm of the gradients, unscaled and before clipping. NaN if a gradient is not
    finite, None if neither ``max_norm`` nor ``grad_scale`` was given."""
    skipped: bool
    """True if a gradient was not finite and the step was skipped."""


class Asked(NamedTuple):
    """The extras of a step as the core reads them; the core uses the names of these fields."""

    grad_factor: float
    """Factor of the gradients."""
    max_norm: float
    """Global norm that gradients are clipped to; 0: no clipping."""
    average_keep: float
    skips: bool
    """Skip the step if a gradient is not finite."""
    zeroes: bool
    """Set the gradients to zero after the step."""
    averages: tuple[Any, ...]
    """An array or None for each parameter; the same holds for ``copies``."""
    copies: tuple[Any, ...]


class Extras(NamedTuple):
    """The scalar arguments of a step's extras; see :meth:`Optimizer.step`."""

    grad_scale: float | None
    max_norm: float | None
    average_decay: float
    zero_grads: bool
    any: bool  # whether the step needs any extras

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
        """Checks the arguments; ``arrays`` is true if there are averages or copies.

        Raises:
            TypeError, ValueError: if a value is not a number or is outside its range.
        """
        if grad_scale is not None:
            grad_scale = number(owner, "grad_scale", grad_scale)
            if not 1e-30 < grad_scale < 1e30:
                raise ValueError(f"{owner}: grad_scale={grad_scale} must be between 1e-30 and 1e30")
        if max_norm is not None:
            max_norm = number(owner, "max_norm", max_norm)
            if not max_norm > 0:
                raise ValueError(
                    f"{owner}: max_norm={max_norm} must be above 0; float('inf') only "
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
        """Returns the extras for the core, for ``n`` parameters. Gradients are also divided by
        ``scale``."""
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
    """The extras of one call of a compiled step."""

    extras: Extras
    averages: Sequence[Any] | None  # in the order of the parameters
    copies: Sequence[Any] | None

    @classmethod
    def of(cls, owner: str, given: Any, leaves: Callable[[Any, str], list[Any]]) -> Beside | None:
        """Checks the ``extras`` of a call, a dict of arguments of :meth:`Optimizer.step`.
        ``leaves`` flattens a tree in the order of the parameters. Returns None if there is nothing
        to do.

        Raises:
            TypeError, ValueError: if an argument is unknown or outside its range.
        """
        if given is None:
            return None
        known = ("grad_scale", "max_norm", "averages", "average_decay", "copies")
        unknown = sorted(set(given) - set(known)) if isinstance(given, Mapping) else [given]
        if unknown:
            raise TypeError(
                f"{owner}: unknown extras={unknown[0]!r}; pass a dict of {', '.join(known)}"
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
        """Returns the extras for the core.

        Raises:
            TypeError, ValueError: if an array does not fit its parameter.
        """
        check_arrays(names, params, self.averages, self.copies, None)
        return self.extras.arguments(self.averages, self.copies, len(params))


def outcome(found: tuple[float, bool]) -> Outcome:
    """Converts the norm (-1: not measured) and the skip flag that the core returns."""
    norm, skipped = found
    return Outcome(None if norm == -1 else norm, skipped)


def check_arrays(
    names: Sequence[str],
    params: Sequence[Any],
    averages: Sequence[Any] | None,
    copies: Sequence[Any] | None,
    grads: Sequence[Any] | None,
) -> None:
    """Checks the extra arrays of each parameter, which the core does not check. ``grads`` is only
    given if gradients are to be zeroed.

    Raises:
        TypeError, ValueError: if an array does not fit its parameter or is read-only.
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
                    f"{name}: the {what} is {x.dtype}{list(x.shape)}, expected "
                    f"{kind}{list(p.shape)}"
                )
            if not x.flags.writeable:
                raise ValueError(f"{name}: the {what} is read-only, but the step writes to it")
