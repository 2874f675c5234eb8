"""Keeps track of one optimizer that steps parameters inside the backward."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..graph.updated import Updating
from ..types import Group
from . import reasons
from .consumed import ConsumedGradient
from .formulas import FORMULAS, begin, by_torch
from .reasons import SeparateStepError

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from ..types import GraphInput

_LOOKS = 3
"""In how many backwards to look for a ``GradScaler``, which takes some milliseconds."""


class Inside:
    """Steps an optimizer's parameters inside the backward, as long as that is possible.

    ``reason`` says why the step is separate from then on; "" while it is not. A backward that may
    not update returns its gradients, which ``optimizer.step()`` then uses.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, reason: str = "") -> None:
        self.optimizer = optimizer
        self.reason = reason or reasons.of_surroundings() or reasons.of_optimizer(optimizer)
        self._groups: dict[int, Group] = {}
        self._stepped: dict[int, torch.Tensor] = {}  # since the last optimizer.step()
        self._consumed: dict[int, ConsumedGradient] = {}
        self._looks = _LOOKS
        self._updates = False  # in the backward under way
        self._pending: weakref.WeakKeyDictionary[Node, object] = weakref.WeakKeyDictionary()
        self._own_hooks: tuple[Any, ...] = ()
        if not self.reason:
            self._own_hooks = (
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, ()

    # ---- what can be updated --------------------------------------------------------------------

    def among(self, inputs: Iterable[GraphInput]) -> Updating | None:
        """Returns which inputs of a graph that is being compiled are stepped inside its
        backward."""
        if self.reason:
            return None
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        apart = reasons.apart([*held, *(t for t in inputs if isinstance(t, torch.nn.Parameter))])
        own = {id(p) for p in held} & apart
        found = {
            i
            for i, t in enumerate(inputs)
            if id(t) in own and not reasons.of_parameter(t) and not reasons.of_hooks(t)
        }
        return Updating(frozenset(found), self.update) if found else None

    def give_up(self, reason: str) -> None:
        """Makes the step separate from now on."""
        self.reason = self.reason or reason

    def ran(self, node: Node | None, graph: object) -> None:
        """Notes a run of a graph whose backward is still to come.

        Args:
            node: its node of autograd's graph.
        """
        if node is not None:
            self._pending[node] = graph

    # ---- a backward -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def backward(self, given: Sequence[Any], graph: object) -> Iterator[None]:
        """The context of one backward with updates.

        Args:
            given: the parameters that it may step.
            graph: the one given to :meth:`ran`.

        Raises:
            SeparateStepError: it would update some of them again before ``optimizer.step()``, or
                one has a gradient already. Nothing has changed.
        """
        own: Any = torch._C._current_autograd_node()
        self._pending.pop(own, None)
        if graph in self._pending.values():
            self.give_up(
                "another call of the model is pending, whose backward needs the parameters"
            )
        self._updates = self._may(given)
        try:
            yield
        finally:
            self._updates = False

    def _may(self, given: Sequence[Any]) -> bool:
        for p in given:
            if id(p) in self._stepped or isinstance(p.grad, ConsumedGradient):
                raise SeparateStepError(
                    "a second backward before optimizer.step(): the first one has already updated "
                    "the parameters (updates='inside'); call optimizer.step() after each backward, "
                    "or compile with updates='after' to accumulate gradients"
                )
            if p.grad is not None and not self.reason:
                raise SeparateStepError(
                    f"a parameter of shape {list(p.shape)} has a gradient already, which an update "
                    "inside the backward cannot add to; call optimizer.zero_grad() before the "
                    "backward, or compile with updates='after'"
                )
        self._groups = {
            id(p): group for group in self.optimizer.param_groups for p in group["params"]
        }
        reason = self.reason or self._reason_now(given)
        if reason:
            self.give_up(reason)
            return False
        own = {id(p) for p in given}
        for group in self.optimizer.param_groups:  # states in the order of a separate step
            for p in group["params"]:
                if id(p) in own:
                    begin(self.optimizer, p, group)
        return True

    def _reason_now(self, given: Sequence[Any]) -> str:
        for p in given:
            why = reasons.of_parameter(p) or reasons.of_hooks(p)
            if why:
                return f"a parameter of shape {list(p.shape)} {why}"
        if self._looks > 0:
            self._looks -= 1
            why = reasons.of_scaler()
            if why:
                return why
        return (
            reasons.of_optimizer(self.optimizer)
            or reasons.of_surroundings()
            or reasons.of_backward(given)
        )

    @torch.no_grad()
    def update(self, p: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor | None:
        """Steps a parameter. Returns its gradient if the step is separate."""
        group = self._groups.get(id(p))
        if not self._updates or group is None:
            return gradient
        self._stepped[id(p)] = p
        if group.get("fused"):
            by_torch(self.optimizer, p, gradient, group)
        else:
            FORMULAS[type(self.optimizer)](p, gradient, self.optimizer.state[p], group)
        if id(p) not in self._consumed:
            self._consumed[id(p)] = ConsumedGradient.of(p)
        p.grad = self._consumed[id(p)]
        return None

    # ---- optimizer.step() -----------------------------------------------------------------------

    def _drop_consumed(self) -> None:
        for p in self._stepped.values():
            if isinstance(p.grad, ConsumedGradient):
                p.grad = None

    def _before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Leaves nothing for the step to do with the parameters that are stepped already, also if
        a closure runs the backward."""
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
        self._stepped.clear()


def _copied() -> None:
    """A copy of a compiled model has no optimizer, so its step is separate."""
    warnings.warn(
        "a copy of a model that was compiled with updates='inside' has no optimizer, so its "
        "optimizer's step is separate; compile the copy with its own optimizer",
        stacklevel=2,
    )
