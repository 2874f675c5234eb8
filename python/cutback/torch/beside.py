"""Passes the extras of an optimizer step, such as averages and copies, to the core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import _native
from ..optim.extras import Extras
from .states import lacks_memory

if TYPE_CHECKING:
    from .types import Array

DECAY = 0.999  # default decay of averages


def _flat(p: Tensor, x: Tensor | None, what: str, name: str) -> Array | None:
    """Returns the memory of a tensor that belongs to a parameter.

    Raises:
        TypeError, ValueError: ``x`` is not a tensor, or its layout differs from the parameter's.
    """
    if x is None:
        return None
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: the {what} is {type(x).__name__}, not a tensor")
    if lacks_memory(x) or x._is_zerotensor():
        raise ValueError(f"{name}: the {what} has less memory than it has elements")
    halves = (torch.float16, torch.bfloat16)
    whole = torch.float32 if p.dtype in halves else p.dtype
    types = halves if what == "copy" else (whole,)
    if x.dtype not in types or x.shape != p.shape or x.stride() != p.stride() or p.is_complex():
        kind = "float16 or bfloat16" if what == "copy" else whole
        raise ValueError(
            f"{name}: the {what} is {x.dtype}{list(x.shape)} with strides {x.stride()}, but must "
            f"be {kind}{list(p.shape)} with {p.stride()}, and the parameter must be real"
        )
    if x.is_neg() or x.is_conj():
        raise ValueError(
            f"{name}: the {what} is negated or conjugated lazily; pass x.resolve_neg()"
        )
    flat = x.detach().as_strided((x.numel(),), (1,))
    array: Array
    if x.dtype is torch.bfloat16:
        array = flat.view(torch.int16).numpy().view(np.uint16)
    else:
        array = flat.numpy()
    return array


class Numbers(NamedTuple):
    """The numbers among the arguments of a step, as given."""

    grad_scale: float | Tensor | None
    max_norm: float | None
    average_decay: float
    zero_grads: bool


class Beside(NamedTuple):
    """Arguments of an optimizer step."""

    extras: Extras
    averages: list[Tensor | None] | None  # one for each parameter of all groups
    copies: list[Tensor | None] | None

    @classmethod
    def of(
        cls,
        owner: str,
        numbers: Numbers,
        averages: Iterable[Tensor | None] | None,
        copies: Iterable[Tensor | None] | None,
    ) -> Beside:
        """Returns the arguments of ``step``, checked as far as they are known without parameters.

        Raises:
            TypeError, ValueError: an argument is not a number, or is outside its range.
        """
        grad_scale, max_norm, average_decay, zero_grads = numbers
        usual = grad_scale is None and max_norm is None and averages is None and copies is None
        if usual and average_decay == DECAY and zero_grads is False:
            return _NOTHING  # the checks below take as long as the rest of a small step
        rows = [None if row is None else list(row) for row in (averages, copies)]
        some = any(row is not None for row in rows)
        if isinstance(grad_scale, Tensor):
            grad_scale = float(grad_scale)
        extras = Extras.checked(owner, grad_scale, max_norm, average_decay, zero_grads, some)
        return cls(extras, *rows)

    def tell(
        self,
        table: _native.OptimizerTable,
        params: Sequence[Tensor],
        names: Sequence[str],
        scale: float,
    ) -> None:
        """Gives the table the extras of its next step. ``scale`` is the factor of a gradient
        scaler, which has already checked the gradients for infinities.

        Raises:
            TypeError, ValueError: a tensor does not fit its parameter.
        """
        arrays = []
        for what, rows in (("average", self.averages), ("copy", self.copies)):
            if rows is not None and len(rows) != len(params):
                raise ValueError(
                    f"got {len(rows)} tensors, expected one {what} for each of {len(params)} "
                    "parameters (None if it has none)"
                )
            beside = rows or [None] * len(params)
            arrays.append([_flat(p, x, what, name)
                           for p, x, name in zip(params, beside, names, strict=True)])  # fmt: skip
        averages, copies = arrays
        table.ask(self.extras.arguments(averages, copies, len(params), scale))

    def written(self) -> list[Tensor]:
        """Returns the tensors that are written: averages and copies."""
        return [x for x in (*(self.averages or ()), *(self.copies or ())) if x is not None]


_NOTHING = Beside(Extras.checked("a step", None, None, DECAY, False, False), None, None)
