"""Keeps joint graphs, so that another plan can take effect without recompilation.

PyTorch traces and compiles a model once. AOTAutograd then calls our forward and our backward, and
saves in between the values that the forward returns after its results. Its generated code fixes how
many of these are sizes, objects and unchecked tensors, but not how many are other tensors. So a
forward and a backward for another plan can replace the first ones (:meth:`JointGraph.follow`), and
the next forward runs under the new plan.

Calls whose backward is still to come keep their plan. A forward of a later plan returns, before all
tensors that it saves, an empty tensor whose shape says which plan it followed (a shape survives
hooks for saved tensors, which may pack the tensor). The first plan's forward returns no such
tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import hooks
from ..graph.emitter import RETURNED_VIEWS, Crossing, emit_instead, emit_replaceable
from ..graph.importer import Imported
from ..graph.moving import Schedule

if TYPE_CHECKING:
    from torch import fx

    from ..graph.codegen import Boxed
    from ..types import GraphInput, GraphValue

_MARK = 1 << 40
"""A size that no tensor of a model reaches."""

Compile = Callable[["fx.GraphModule", str], "Boxed"]
"""Compiles a planned graph (``"forward"`` or ``"backward"``) to a function."""


class _Version(NamedTuple):
    """The code of one plan. AOTAutograd has compiled the backward of the first plan."""

    schedule: Schedule
    crossing: Crossing
    views: tuple[int, ...]
    forward: Boxed
    backward: Callable[[], Boxed] | None
    mark: torch.Tensor | None
    padding: list[torch.Tensor]


def _empty(size: int) -> torch.Tensor:
    """Makes a tensor without memory."""
    with _disable_current_modes():  # a tracker would count it
        return torch.empty((0, size), dtype=torch.uint8)


class JointGraph:
    """A joint graph that PyTorch compiles, with the code for its plans.

    Args:
        gm: the joint graph, as ``graph`` was imported from it.
        schedule: the schedule of the first plan.
    """

    def __init__(self, gm: fx.GraphModule, graph: Imported, schedule: Schedule) -> None:
        self.gm = gm
        self.graph = graph
        self._first = emit_replaceable(gm, graph, schedule)
        self._nodes = len(self._first.forward.graph.nodes)
        self._schedule = schedule
        self._versions: list[_Version] = []
        self._current = 0
        self._compiler: Callable[[], Compile] | None = None

    @property
    def modules(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Returns the forward and backward graphs of the first plan."""
        return self._first.forward, self._first.backward

    @property
    def is_replaceable(self) -> bool:
        """True if another plan may replace the first one."""
        return self._compiler is not None

    @property
    def schedule(self) -> Schedule:
        """The plan that the next forward follows."""
        return self._versions[self._current].schedule if self._versions else self._schedule

    @property
    def returned_views(self) -> tuple[int, ...]:
        """Results of the forward that are views of what the backward reads."""
        if not self._versions:
            return tuple(self._first.forward.meta[RETURNED_VIEWS])
        return self._versions[self._current].views

    # ---- what AOTAutograd compiles --------------------------------------------------------------

    def forward(
        self, gm: fx.GraphModule, run: Boxed, metadata: Iterable[object],
        compiler: Callable[[], Compile],
    ) -> Boxed:  # fmt: skip
        """Returns the forward that is given to AOTAutograd.

        Args:
            gm: the graph that AOTAutograd compiles.
            run: the function compiled from it.
            metadata: AOTAutograd's metadata of the graph.
            compiler: called for each other plan; returns the function that compiles its graphs.
        """
        first, seen = self._first, list(metadata)
        if not self._is_as_emitted(gm) or not all(map(_is_plain, seen)):
            return run  # AOTAutograd has rewritten the graph, so it cannot be replaced
        self._compiler = compiler
        for meta in seen:
            # AOTAutograd marks saved tensors by number, only for compiled autograd
            getattr(meta, "dynamic_saved_tensors_idxs", {}).clear()
        self._versions = [
            _Version(self._schedule, first.crossing, self.returned_views, run, None, None, [])
        ]

        def call(args: list[GraphInput]) -> Sequence[GraphValue]:
            version = self._versions[0 if hooks.compiles_backwards() else self._current]
            results = version.forward(args)
            if version.mark is None:
                return results
            begins = self.graph.num_fwd_outputs
            ends = begins + version.crossing.tensors
            return (
                *results[:begins], version.mark, *results[begins:ends], *version.padding,
                *results[ends:],
            )  # fmt: skip

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backward(self, run: Boxed) -> Boxed:
        """Returns the backward that is given to AOTAutograd; ``run`` is the backward of the first
        plan."""
        if not self._versions:
            return run
        at = len(self._first.crossing.numbers)

        def call(args: list[GraphInput]) -> Sequence[GraphValue]:
            version = self._version_of(args[at] if at < len(args) else None)
            if version is None:
                return run(args)
            begins = at + 1 + version.crossing.tensors
            del args[begins : begins + len(version.padding)]
            del args[at]
            assert version.backward is not None
            return version.backward()(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _version_of(self, first_saved: GraphInput) -> _Version | None:
        """Returns the plan that a forward followed, found by the first tensor that it saved, or
        None for the first plan."""
        if not isinstance(first_saved, torch.Tensor) or first_saved.dim() != 2:
            return None
        size = int(first_saved.shape[1])
        return self._versions[size - _MARK] if size > _MARK else None

    def _is_as_emitted(self, gm: fx.GraphModule) -> bool:
        """True if AOTAutograd compiles the forward graph as it was emitted."""
        return gm is self._first.forward and len(gm.graph.nodes) == self._nodes

    # ---- another plan ---------------------------------------------------------------------------

    def follow(self, schedule: Schedule, fresh: bool = False) -> bool:
        """Follows another plan from the next forward on.

        Args:
            schedule: the plan's schedule, in op ids of ``graph.problem``.
            fresh: True makes new code, whose first runs are measured, even if code for this
                schedule exists.

        Returns:
            False, and nothing has changed, if PyTorch has to compile again for this plan.
        """
        known = [version.schedule for version in self._versions]
        if schedule in known and not (fresh and self.is_replaceable):
            self._current = known.index(schedule)
            return True
        if self._compiler is None:
            return schedule == self._schedule
        emitted = emit_instead(self.gm, self.graph, schedule, self._first.crossing)
        if emitted is None:
            return False
        number = len(self._versions)
        padding = self._first.crossing.unchecked - emitted.crossing.unchecked
        compile = self._compiler()
        backward = functools.cache(functools.partial(compile, emitted.backward, "backward"))
        self._versions.append(
            _Version(
                schedule, emitted.crossing, tuple(emitted.forward.meta[RETURNED_VIEWS]),
                compile(emitted.forward, "forward"), backward, _empty(_MARK + number),
                [_empty(0) for _ in range(padding)],
            )
        )  # fmt: skip
        self._current = number
        return True


def _is_plain(metadata: object) -> bool:
    """True if AOTAutograd passes the arguments of the two graphs through unchanged."""
    if getattr(metadata, "tokens", None) or getattr(metadata, "num_backward_tokens", 0):
        return False
    return not getattr(metadata, "num_graphsafe_rng_states", 0)
