"""Decides for one compiled model whether its optimizer steps parameters inside the backward."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..graph.updated import Updating
from ..one_pass import OnePass
from ..types import Group
from . import reasons
from .consumed import ConsumedGradient
from .formulas import EMPTY, begin, by_torch, step
from .reasons import SeparateStepError
from .stepped import Stepped, stepped_of

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from ..types import GraphInput

_LOOKS = 3
"""In how many backwards to look for a ``GradScaler``; a search takes some milliseconds."""


class Inside:
    """Steps an optimizer's parameters inside the backward, as long as that is possible.

    ``reason`` says why the step is separate from then on; it is "" until then. A backward that may
    not update returns its gradients, which ``optimizer.step()`` then uses. PyTorch's caches keep
    compiled graphs, and with them this object, so it does not keep the optimizer alive.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, reason: str = "") -> None:
        self._optimizer = weakref.ref(optimizer)
        self.reason = reason or reasons.of_surroundings() or reasons.of_optimizer(optimizer)
        self._groups: dict[int, Group] = {}
        self._found = False  # True if there is something to step
        self._looks = _LOOKS
        self._updates = False  # True if the running backward updates
        self._pending: weakref.WeakKeyDictionary[Node, object] = weakref.WeakKeyDictionary()
        self._stepped: Stepped | None = None if self.reason else stepped_of(optimizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, ()

    # ---- what can be updated --------------------------------------------------------------------

    def among(self, inputs: Iterable[GraphInput]) -> Updating | None:
        """Returns which inputs of a graph that is being compiled are stepped inside its
        backward."""
        optimizer = self._optimizer()
        if self.reason or optimizer is None:
            return None
        held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        plain = (t for t in inputs if type(t) in (torch.Tensor, torch.nn.Parameter))
        apart = reasons.apart([*held.values(), *plain])
        found, why = set(), ""
        for i, t in enumerate(inputs):
            if not isinstance(t, torch.Tensor) or id(t) not in held or not t.requires_grad:
                continue
            refused = reasons.of_parameter(t) or reasons.of_hooks(t)
            if not refused and id(t) not in apart:
                refused = "shares memory with another tensor"
            if refused:
                why = f"a parameter of shape {list(t.shape)} {refused}"
            else:
                found.add(i)
        if found:
            self._found = True
            return Updating(frozenset(found), self.update)
        if not self._found:
            self.give_up(why)
        return None

    def steps_with(self, optimizer: object) -> bool:
        """True if this is the optimizer that steps parameters."""
        return optimizer is not None and self._optimizer() is optimizer

    def give_up(self, reason: str) -> None:
        """Makes the step separate from now on."""
        self.reason = self.reason or reason

    def ran(self, node: Node | None, graph: object) -> None:
        """Records a run of a graph whose backward is still to come.

        Args:
            node: its node of autograd's graph.
        """
        if node is not None:
            self._pending[node] = graph

    # ---- a backward -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def backward(self, given: Sequence[Any], graph: object) -> Iterator[None]:
        """Runs one backward with updates in this context.

        Args:
            given: the parameters that it may step.
            graph: the graph that was given to :meth:`ran`.

        Raises:
            SeparateStepError: the backward would update some of them again before
                ``optimizer.step()``, or one already has a gradient. Nothing has changed.
        """
        own: Any = torch._C._current_autograd_node()
        self._pending.pop(own, None)
        if any(other is graph for other in self._pending.values()):
            self.give_up(reasons.PENDING)
        optimizer = self._optimizer()
        try:
            self._updates = self._may(given, optimizer)
            yield
        finally:
            self._updates = False
            self._groups = {}
            states = {} if optimizer is None else optimizer.state
            for p in given:  # after an error, or if the optimizer keeps nothing
                state = states.get(p)
                if state is not None:
                    state.pop(EMPTY, None)
                    if not state:
                        del states[p]

    def _may(self, given: Sequence[Any], optimizer: torch.optim.Optimizer | None) -> bool:
        for p in given:
            if isinstance(p.grad, ConsumedGradient) or (self._stepped and p in self._stepped):
                raise SeparateStepError(
                    "a second backward before optimizer.step(): the first one has already updated "
                    "the parameters (updates='inside'); call optimizer.step() after each backward, "
                    "or compile with updates='after' to accumulate gradients"
                )
            if p.grad is not None and not self.reason:
                raise SeparateStepError(
                    f"a parameter of shape {list(p.shape)} has a gradient already, which an update "
                    "inside the backward cannot add to; call optimizer.zero_grad() (with "
                    "set_to_none=True, the default) before the backward, or compile with "
                    "updates='after'"
                )
        reason = self.reason or self._reason_now(given, optimizer)
        if reason or optimizer is None or self._stepped is None:
            self.give_up(reason)
            return False
        self._groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        self._stepped.begin(optimizer)
        own = {id(p) for p in given}
        for group in optimizer.param_groups:  # make states in the order of a separate step
            for p in group["params"]:
                if id(p) in own:
                    begin(optimizer, p, group)
        return True

    def _reason_now(self, given: Sequence[Any], optimizer: torch.optim.Optimizer | None) -> str:
        if optimizer is None:
            return "the optimizer no longer exists"
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
            reasons.of_optimizer(optimizer)
            or ("" if self._stepped is None else self._stepped.needs)
            or reasons.of_surroundings()
            or reasons.of_backward(given, list(self._pending))
        )

    @torch.no_grad()
    def update(self, p: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor | None:
        """Steps a parameter. Returns its gradient if the step is separate."""
        group, optimizer = self._groups.get(id(p)), self._optimizer()
        if not self._updates or group is None or optimizer is None or self._stepped is None:
            return gradient
        self._stepped.add(p)
        if isinstance(optimizer, OnePass):
            self._stepped.drop_in.step(optimizer, p, gradient, group)
        elif group.get("fused"):
            by_torch(optimizer, p, gradient, group)
        else:
            step(optimizer, p, gradient, group)
        p.grad = ConsumedGradient.of(p)
        return None


def _copied() -> None:
    """Warns that a copy of a compiled model has no optimizer, so that its step is separate."""
    warnings.warn(
        "a copy of a model that was compiled with updates='inside' has no optimizer, so its "
        "optimizer's step is separate; compile the copy with its own optimizer",
        stacklevel=2,
    )
