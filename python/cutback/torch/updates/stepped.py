"""Tracks which parameters of an optimizer have been stepped, until its next ``step()``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from .consumed import ConsumedGradient
from .drop_in import DropIn
from .formulas import options_of
from .reasons import SeparateStepError

if TYPE_CHECKING:
    from ..types import Group


_EXTRAS = ("grad_scale", "max_norm", "averages", "copies")
"""Arguments of a step of ``cutback.torch.optim`` that need all gradients at once, or every
parameter's update in one pass."""


def _noted(optimizer: torch.optim.Optimizer, group: Group) -> dict[str, Any]:
    """Returns a group's options by value, because a tensor or a list may be changed in place."""
    return {
        name: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1
        else tuple(value) if isinstance(value, list) else value
        for name, value in options_of(optimizer, group).items()
    }  # fmt: skip


class Stepped:
    """Records what updates inside backwards have done since the last ``optimizer.step()``.

    All models that are compiled with one optimizer share the record. It keeps neither the models
    nor the optimizer alive.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._parameters: dict[int, torch.Tensor] = {}
        # options of each group when the first parameter was stepped
        self._options: list[dict[str, Any]] = []
        self.drop_in = DropIn()
        self.needs = ""
        """Why a backward that ``optimizer.step()`` runs must not step parameters, or ""."""
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def __contains__(self, p: torch.Tensor) -> bool:
        return id(p) in self._parameters

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Records the options that a backward's updates use."""
        if not self._parameters:
            self._options = [_noted(optimizer, group) for group in optimizer.param_groups]

    def add(self, p: torch.Tensor) -> None:
        """Records that a parameter has been stepped."""
        self._parameters[id(p)] = p

    def _check_options(self, optimizer: torch.optim.Optimizer) -> None:
        """
        Raises:
            SeparateStepError: options of a group differ from those that its updates have used.
        """
        for g, (used, group) in enumerate(zip(self._options, optimizer.param_groups, strict=False)):
            for name, now in _noted(optimizer, group).items():
                if now is not used.get(name) and now != used.get(name):
                    raise SeparateStepError(
                        f"{name} of group {g} was set from {used.get(name)!r} to {now!r} between "
                        "backward and optimizer.step(), but the backward has already updated the "
                        "parameters (updates='inside'); set it before the backward, or compile "
                        "with updates='after'"
                    )

    def _drop_consumed(self) -> None:
        for p in self._parameters.values():
            if isinstance(p.grad, ConsumedGradient):
                p.grad = None

    def _before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Keeps the step from updating parameters that the backward has updated, even if a closure
        runs the backward."""
        asked = next((name for name in _EXTRAS if kwargs.get(name) is not None), None)
        if self._parameters:
            self._check_options(optimizer)
            if asked:
                raise SeparateStepError(
                    f"optimizer.step({asked}=...) comes too late: the backward has already updated "
                    "the parameters (updates='inside'); compile with updates='after'"
                )
        self._drop_consumed()
        own, *given = args
        closure = given[0] if given else kwargs.get("closure")
        if closure is None:
            return None

        @functools.wraps(closure)
        def closed() -> Any:
            self.needs = f"optimizer.step({asked}=...) is a separate step" if asked else ""
            try:
                return closure()
            finally:
                self.needs = ""
                self._drop_consumed()

        if given:
            return (own, closed, *given[1:]), kwargs
        return args, {**kwargs, "closure": closed}

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._parameters.clear()


_KNOWN: WeakKeyDictionary[torch.optim.Optimizer, Stepped] = WeakKeyDictionary()


def stepped_of(optimizer: torch.optim.Optimizer) -> Stepped:
    """Returns an optimizer's record. The first call registers its hooks."""
    found = _KNOWN.get(optimizer)
    if found is None:
        found = _KNOWN[optimizer] = Stepped(optimizer)
    return found
