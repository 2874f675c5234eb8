"""Finds the memory that a pipeline's schedule holds besides the graphs of a stage.

PyTorch's schedules keep a buffer per microbatch for what a stage receives, gradients of inputs
until they are sent, and the losses of a step with what their backwards need. All of that is
allocated by code between the calls of a stage, which no plan sees. A stage finds its schedule in
the frames of its callers.

A loss also takes memory while it and its backward run. That is measured for the first losses of a
schedule: until then, :class:`LossMeter` replaces the schedule's method that computes them.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_iter

from ..memory import StepTracker, storages_of
from .eager_parts import follow, nodes_of

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from ..types import GraphInput

_PACKAGE = "torch.distributed.pipelining"
_METHOD = "_compute_loss"
_METER = "_cutback_losses"
_PLANNED = "cutback.planned"

MOST_LOSSES = 2
"""How many losses of a schedule are measured."""

Sizes = dict[int, int]
"""Maps the address of a storage object to its bytes."""


class Place(NamedTuple):
    """The position of a stage's call in a schedule. It keeps no tensor alive."""

    stage: weakref.ref[Any]
    schedule: weakref.ref[Any] | None
    given: frozenset[int]
    """Storages of the targets, which belong to the caller."""
    sent: list[weakref.ref[torch.Tensor]]
    """Gradients of inputs, which the schedule sends to the stage before."""

    def note_gradients(self, args: Sequence[GraphInput]) -> None:
        """Follows the gradients of those inputs that are not parameters."""
        for t in args:
            if not isinstance(t, torch.Tensor) or isinstance(t, torch.nn.Parameter):
                continue
            if t.is_leaf and t.requires_grad:
                t.register_post_accumulate_grad_hook(self._see)

    def _see(self, leaf: torch.Tensor) -> None:
        if leaf.grad is not None:
            self.sent.append(weakref.ref(leaf.grad))

    def held(self) -> Sizes:
        """Returns the storages of the buffers and losses that are alive, with what losses save."""
        found: Sizes = {}
        stage, schedule = self.stage(), self.schedule and self.schedule()
        for name in ("args_recv_info", "grad_recv_info"):
            for infos in getattr(stage, name, {}).values():
                for info in infos:
                    add(found, getattr(info, "buffer", None))
        losses: Sizes = {}
        pending = getattr(schedule, "_internal_losses", ())
        for loss in pending:
            for tensor in (loss, *_saved(loss)):
                add(losses, tensor)
        # the gradient that a backward begins with
        losses[0] = max((loss.nbytes for loss in pending), default=0)
        return {**found, **{key: size for key, size in losses.items() if key not in self.given}}

    def meter(self, known: LossMeter | None) -> LossMeter | None:
        """Returns the meter of the schedule's losses (``known`` if it belongs to this schedule), or
        None if the stage is not the last one or there is no loss."""
        schedule = self.schedule and self.schedule()
        if known is not None and known.schedule() is schedule:
            return known
        computes = hasattr(schedule, _METHOD) and getattr(schedule, "_loss_fn", None) is not None
        if schedule is None or not computes or not getattr(self.stage(), "is_last", False):
            return known
        return meter_of(schedule)


class LossMeter:
    """Measures the memory of the first losses of a schedule, with what they keep. It measures while
    they run, because what a loss kept is gone when the backward of its stage begins."""

    def __init__(self, schedule: Any) -> None:
        self.schedule = weakref.ref(schedule)
        self._most = 0
        self._trackers: list[StepTracker] = []
        self._replace(schedule)

    @property
    def bytes(self) -> int:
        """The most bytes that a loss or its backward has taken so far."""
        return max(self._most, *(tracker.peak_bytes for tracker in self._trackers), 0)

    def _replace(self, schedule: Any) -> None:
        """Replaces the schedule's method. A method that the program has set on this schedule is
        called instead of its class's method, and is put back at the end."""
        own = vars(schedule).get(_METHOD)

        def call(output: Any, *args: Any, **kwargs: Any) -> Any:
            schedule = self.schedule()
            assert schedule is not None
            compute = getattr(type(schedule), _METHOD).__get__(schedule) if own is None else own
            if not torch.is_grad_enabled():
                return compute(output, *args, **kwargs)
            loss = self._measure(output, functools.partial(compute, output, *args, **kwargs))
            if len(self._trackers) == MOST_LOSSES and vars(schedule).get(_METHOD) is call:
                del schedule.__dict__[_METHOD]
                if own is not None:
                    schedule.__dict__[_METHOD] = own
            return loss

        schedule.__dict__[_METHOD] = call

    def _measure(self, output: Any, compute: Callable[[], Any]) -> Any:
        """Computes the loss of a stage's output."""
        tracker = StepTracker()
        with tracker:
            loss = compute()
        # ``follow`` starts the tracker's peak again
        self._most = max(self._most, tracker.peak_bytes)
        self._trackers.append(tracker)
        given = (t.grad_fn for t in tree_iter(output) if isinstance(t, torch.Tensor))
        losses = [t for t in tree_iter(loss) if isinstance(t, torch.Tensor)]
        nodes, _ = nodes_of(losses, [node for node in given if node is not None], True)
        follow(tracker, nodes, lambda peak: None)
        return loss


def meter_of(schedule: Any) -> LossMeter:
    """Returns the meter of a schedule's losses. All models of its last stage share it."""
    known = vars(schedule).get(_METER)
    # belongs to a schedule that this one is a copy of
    if not isinstance(known, LossMeter) or known.schedule() is not schedule:
        known = schedule.__dict__[_METER] = LossMeter(schedule)
    return known


def place() -> Place | None:
    """Returns the position of the caller in a pipeline's schedule, or None."""
    package = sys.modules.get(f"{_PACKAGE}.stage")
    if package is None:
        return None
    stage = schedule = None
    given: frozenset[int] = frozenset()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == f"{_PACKAGE}.stage":
            stage = stage or frame.f_locals.get("self")
        elif module == f"{_PACKAGE}.schedules" and stage is not None:
            schedule = schedule or frame.f_locals.get("self")
            if "target_mbs" in frame.f_locals:
                targets = tree_iter(frame.f_locals["target_mbs"])
                given |= {key for t in targets for key in add({}, t)}
        frame = frame.f_back
    if stage is None:
        return None
    return Place(weakref.ref(stage), schedule and weakref.ref(schedule), given, [])


def mark(node: Node) -> None:
    """Marks the autograd node of a planned graph: the plan counts what the node holds."""
    node.metadata[_PLANNED] = True


def add(found: Sizes, tensor: object) -> Sizes:
    """Adds the storages of a tensor, and returns ``found``. Other objects have none."""
    if isinstance(tensor, torch.Tensor):
        found.update({storage._cdata: storage.nbytes() for storage in storages_of(tensor)})
    return found


def _saved(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the tensors that the nodes between a loss and the planned stage hold for the backward.
    Leaves belong to the caller."""
    stack: list[Node | None] = [loss.grad_fn]
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen or _PLANNED in node.metadata:
            continue
        seen.add(node)
        for name in (n for n in dir(node) if n.startswith("_raw_saved_")):
            try:  # `data` is what is held; unpacking would run a checkpoint again
                held = [saved.data for saved in tree_iter(getattr(node, name))]
            except RuntimeError:  # its backward has run
                continue
            for t in tree_iter(held):
                if isinstance(t, torch.Tensor) and not (t.is_leaf and t.requires_grad):
                    yield t
        stack.extend(other for other, _ in node.next_functions)
