"""The parameters of one optimizer that are stepped already, until its next ``step()``."""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch

from .consumed import ConsumedGradient
from .formulas import options_of
from .reasons import SeparateStepError


class Stepped:
    """What updates inside backwards have done since the last ``optimizer.step()``.

    All models that are compiled with one optimizer share it. It keeps neither of them alive.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._parameters: dict[int, torch.Tensor] = {}
        self._options: list[dict[str, Any]] = []  # of each group, when the first was stepped
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def __contains__(self, p: torch.Tensor) -> bool:
        return id(p) in self._parameters

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes the options that a backward's updates use."""
        if not self._parameters:
            self._options = [options_of(optimizer, group) for group in optimizer.param_groups]

    def add(self, p: torch.Tensor) -> None:
        """Notes that a parameter is stepped."""
        self._parameters[id(p)] = p

    def _check_options(self, optimizer: torch.optim.Optimizer) -> None:
        """
        Raises:
            SeparateStepError: options of a group differ from those that its updates have used.
        """
        for g, (used, group) in enumerate(zip(self._options, optimizer.param_groups, strict=False)):
            for name, now in options_of(optimizer, group).items():
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
        """Leaves nothing for the step to do with the parameters that are stepped already, also if
        a closure runs the backward."""
        if self._parameters:
            self._check_options(optimizer)
        self._drop_consumed()
        own, *given = args
        closure = given[0] if given else kwargs.get("closure")
        if closure is None:
            return None

        @functools.wraps(closure)
        def closed() -> Any:
            result = closure()
            self._drop_consumed()
            return result

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
