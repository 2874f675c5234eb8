"""``cutback.torch.compile`` and the backend ``"cutback"`` of ``torch.compile``."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ... import BudgetError, budgets
from ...run.compiling import UPDATES
from .. import hooks
from ..flags import check_flags, check_flags_or_none
from ..updates import Inside
from .backends import make_backend
from .compiled import Compiled, CompiledFunction, CompiledModule, Context, Runner, uncompiled
from .options import Measured, slices_unsupported
from .partition import Partitioner
from .saved_plans import Path, SavedPlans
from .several import ModelPartitioner
from .sharded import let_trace_sharded
from .totals import account, unwrapped
from .wishes import Policy

if TYPE_CHECKING:
    from ..types import GraphFunction, GraphInput, GraphValue

__all__ = ["Compiled", "compile", "cutback", "uncompiled"]


_HOOKED = "backwards hooks"
"""Part of PyTorch's reason for a graph break."""


class _Session:
    """One ``torch.compile(..., backend="cutback")``: a partitioner for all its graphs.

    No wrapper of ours calls the model, so guards take up a pending plan. The guard of the first
    graph makes the plan, and fails if PyTorch must recompile for it. The guards of the other graphs
    fail once the first graph was recompiled. PyTorch checks each guard right after compiling,
    before the graph has run, and treats a failure at that point as a bug. So a graph that makes a
    plan pending while it is compiled is valid for one run."""

    def __init__(self, options: dict[str, Any]) -> None:
        options = dict(options)
        codegen = options.pop("codegen", "eager")
        plans = options.pop("plans", None)
        _check_plans(plans, options)
        given = None if plans is None else SavedPlans.read(plans)
        self.partitioner = ModelPartitioner(**options, given=given)
        self.backend = make_backend(self.partitioner, codegen, guards=True)
        self.first: int | None = None  # frame number of the first graph
        self.round = 0
        self.runs = 0  # number of graph runs
        # True if a warning was given about modules that PyTorch leaves to eager mode
        self.told = False

    def compile(self, gm: fx.GraphModule, inputs: Sequence[GraphInput]) -> GraphFunction:
        """Compiles a graph and installs its guard."""
        partitioner = self.partitioner
        frame = partitioner.frame()
        if partitioner.forget_if_gone():
            self.first = None  # the number belonged to another frame
        if frame == self.first and partitioner.take_up_plan():
            self.round += 1
        self._tell_of_hooks(gm)
        compiled = self.backend(gm, inputs)
        if self.first is None and partitioner.at_hand.key is not None:
            self.first = frame
        hooks.add_guard(functools.partial(self._holds, frame, self.round, self.runs))

        @functools.wraps(compiled)
        def call(*args: GraphInput) -> Sequence[GraphValue]:
            self.runs += 1
            return compiled(*args)

        return call

    def _tell_of_hooks(self, gm: fx.GraphModule) -> None:
        """Warns about modules with backward hooks, which PyTorch leaves to eager mode between two
        graphs. None of our code wraps their call, so their memory cannot be measured."""
        reason = getattr(gm, "compile_subgraph_reason", None)
        hooked = reason is not None and _HOOKED in str(getattr(reason, "reason", "")).lower()
        if not hooked or self.told or self.partitioner.options.target.budget is None:
            return
        self.told = True
        warnings.warn(
            "the model has a module with register_full_backward_hook, which PyTorch leaves to "
            "eager mode: the memory of that module is not planned and comes on top of the budget, "
            "which the graphs around it share. Use hooks of tensors (Tensor.register_hook) or "
            "register_forward_hook, which are compiled; cutback.torch.compile(model, budget=...) "
            "measures and reports that memory",
            stacklevel=2,
        )

    def _holds(self, frame: int | None, round: int, runs: int) -> bool:
        """
        Args:
            runs: the number of graph runs when it was compiled.
        """
        is_asked_by_call = frame == self.first and self.runs > runs
        if round == self.round and is_asked_by_call and self.partitioner.waits:
            try:
                self.round += self.partitioner.take_up_plan()
            except (BudgetError, Warning):
                return False  # raised when the graph is recompiled
        return round == self.round


_OPTIONS = (
    "budget", "codegen", "collective_again", "cse", "device", "exact", "measure",
    "network_bytes_per_s", "offload", "on_infeasible", "on_plan", "packed", "pinned", "plans",
    "policy", "pool", "profile", "random", "slices",
)  # fmt: skip
_OURS = ("optimizer", "fullgraph", "dynamic")


def _check_options(options: dict[str, Any]) -> None:
    for name in options:
        if name in _OURS:
            raise ValueError(
                f"backend 'cutback': {name} is an argument of cutback.torch.compile"
                + ("; pass it there, with the model that it updates" if name == "optimizer" else
                   " and torch.compile, not one of their options")
            )  # fmt: skip
        if name not in _OPTIONS:
            raise ValueError(
                f"backend 'cutback': unknown option {name!r}; it knows {', '.join(_OPTIONS)}"
            )


def _check_plans(plans: Path | None, wishes: dict[str, Any]) -> None:
    if plans is not None and (wishes.get("budget") is not None or wishes.get("policy") is not None):
        raise TypeError("give plans, or a budget and a policy: plans already contain both")


def cutback(
    gm: fx.GraphModule,
    inputs: Sequence[GraphInput],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> GraphFunction:
    """The backend of ``torch.compile(model, backend="cutback", options={"budget": 0.5})``, and
    likewise of ``model.compile``.

    The options are the arguments of :func:`compile`, except ``optimizer`` and those that
    ``torch.compile`` has itself; and ``on_plan``, a function that is called with each plan. All
    graphs of one such call share its budget."""
    if mode is not None:
        raise ValueError(
            f"backend 'cutback': mode={mode!r} is one of Inductor's sets of options, and this "
            "backend has none. Leave it out and pass options={'budget': ...}; with "
            "options={'budget': ..., 'codegen': 'inductor'} Inductor compiles the planned graphs, "
            "as torch._inductor.config says"
        )
    options = dict(options or {})
    _check_options(options)
    owner = sys._getframe(1).f_locals.get("self")  # PyTorch's wrapper of a backend with options
    if getattr(owner, "compiler_fn", None) is not cutback:
        codegen = options.pop("codegen", "eager")
        return make_backend(Partitioner(**options), codegen)(gm, inputs)
    session = owner.__dict__.get("_cutback_session")
    if session is None:
        session = owner.__dict__["_cutback_session"] = _Session(options)
    return session.compile(gm, inputs)


def _check_slices(slices: bool, codegen: str) -> None:
    """Raises NotImplementedError if a code generator does not support slices."""
    if slices and codegen in ("native", "inductor"):
        raise slices_unsupported(codegen)


def _updates(
    updates: str, optimizer: Any, max_norm: float | None, codegen: str
) -> tuple[torch.optim.Optimizer, str] | None:
    """Returns the optimizer that is to step parameters inside the backward, and the reason if it
    must not.

    Raises:
        ValueError, TypeError: an argument is invalid.
    """
    budgets.choice("updates", updates, UPDATES)
    if max_norm is not None and not (max_norm > 0):
        raise ValueError(f"max_norm={max_norm!r}: it must be larger than 0")
    if updates == "after":
        return None
    optimizer = unwrapped(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            "updates='inside' needs an optimizer: compile(model, optimizer=..., updates='inside')"
        )
    why = ""
    if max_norm is not None:
        why = "clipping by max_norm needs the norm of all gradients"
    elif codegen != "eager":
        why = f"codegen={codegen!r} does not support updates in its backward; use codegen='eager'"
    return optimizer, why


def compile(
    model: torch.nn.Module | Callable[..., Any],
    budget: int | float | str | None = None,
    measure: str = "live",
    policy: Policy = None,
    codegen: str = "eager",
    device: str | None = None,
    *,
    offload: bool | str = False,
    pinned: int | str | None = None,
    exact: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    profile: Measured | None = None,
    random: str = "torch",
    cse: bool = True,
    plans: Path | None = None,
    on_infeasible: str | None = None,
    pool: bool = False,
    collective_again: bool = True,
    network_bytes_per_s: float | None = None,
    updates: str = "after",
    max_norm: float | None = None,
    packed: bool = False,
    slices: bool = False,
) -> Any:
    """Compiles a module or function so that its training steps keep to a memory budget.

    Args:
        model: module or function that computes the forward; its tensor arguments and parameters get
            their gradients from ``backward()`` as usual.
        budget, measure, policy, device: see :class:`Partitioner`. The budget covers the whole step:
            everything that forward and backward allocate, including tangents and gradients;
            parameters and inputs belong to the caller. If the model has several graphs, the first
            step plans them one by one; from the second step on one plan covers all of them, and the
            budget holds for all together (:mod:`compiler.several`).
        codegen: ``"eager"`` runs the planned ops in the planned order with PyTorch's own kernels.
            The measured peak equals the planned one, and the bits do not depend on the budget.
            ``"native"`` does the same on a CPU, and runs groups of fusable ops as single calls of
            our kernels (docs/torch.md). With ``"inductor"`` Inductor compiles the two planned
            graphs; it may reorder and fuse ops. Plans are corrected by its estimate of the peak
            (:mod:`compiler.inductor`).
        offload: with ``codegen="eager"``, allows values to move to the host and back. With
            ``"only"``, in addition, nothing runs again. On CUDA the copies use pinned memory and
            separate streams.
        pinned: maximum bytes that the host may hold for offload at one time: an int or ``"8GiB"``.
        exact: searches again at exactly this budget. The search's targets are up to 2 % apart, so
            this may find a faster plan; see :func:`cutback.plan`.
        optimizer: with ``measure="total"``, the optimizer whose states count (including those that
            its first step will allocate), as does the memory of its step. With
            ``updates="inside"``, the optimizer that steps the parameters.
        fullgraph, dynamic: as for ``torch.compile``.
        profile: measured times, see :class:`Partitioner`. They refer to the graphs of
            ``codegen="eager"`` for inputs of one size, so pass ``dynamic=False``.
        random: ``"torch"`` uses PyTorch's random numbers; their masks are kept for the backward.
            ``"counter"`` uses our counter-based generator, seeded by one PyTorch draw per step. The
            numbers differ from PyTorch's under the same seed, and no masks are kept, because the
            backward can draw them again. Inductor's own generator already works like that.
        cse: see :class:`Partitioner`.
        plans: instead of budget and policy, a file written by ``save_plans`` of an earlier result,
            in this process or another. Its plans are followed, and nothing is planned.
        on_infeasible: what to do if no plan meets the budget. ``"error"`` raises an error.
            ``"min"`` (at most 40 % more time) and ``"smallest"`` (however slow) give a
            ``UserWarning`` and use the plan of that budget. ``"warn"`` gives a ``UserWarning`` and
            saves everything. None means an error in the first step and ``"smallest"`` afterwards,
            for example for a longer batch in mid-epoch.
        pool: places the memory of the step in one segment of PyTorch's caching allocator, from the
            third step on (:mod:`graph.segment`). Supported for ``codegen="eager"``, steps of one
            graph, and budgets that bound its peak.
        collective_again, network_bytes_per_s, packed, slices: see :class:`Partitioner`.
        updates: when the optimizer steps a parameter: ``"after"`` the backward, in
            ``optimizer.step()``, or ``"inside"`` it, as soon as the gradient is complete and
            nothing in the plan reads the parameter any more. The gradient then ends there, so
            gradients never exist all at once, and the parameters have the same bits.
            ``optimizer.step()`` is still called, after each backward. Where updates inside are not
            possible the step stays separate, and ``updates_reason`` of the result says why
            (docs/torch.md).
        max_norm: the norm to which the training loop clips gradients. Clipping needs all gradients,
            so the step is separate.

    Returns:
        A module or function like ``model``, with the properties ``plans``, ``compiler_notes``,
        ``allocator_stats``, ``updates_inside``, ``updates_reason`` and ``slices``, and the method
        ``save_plans(path)``.

    Raises:
        BudgetError: at the first call, if no plan meets the budget.
        UnsupportedGraphError: at the first call, if the model cannot be planned.
        ValueError, TypeError: an argument is invalid; at the first call, if ``plans`` are for

    >>> step = cutback.torch.compile(model, budget=0.5)
    >>> step(x).sum().backward()  # gradients are in .grad
    >>> print(step.plans[0])
    """
    if not callable(model):
        raise TypeError(f"model={model!r:.60} is neither a module nor a function")
    _check_plans(plans, {"budget": budget, "policy": policy})
    check_flags(fullgraph=fullgraph, slices=slices)
    _check_slices(slices, codegen)
    check_flags_or_none(dynamic=dynamic)
    given = None if plans is None else SavedPlans.read(plans)
    asked = _updates(updates, optimizer, max_norm, codegen)
    only_steps = asked is not None and measure != "total"
    wishes = {
        "budget": budget,
        "measure": measure,
        "policy": policy,
        "device": device,
        "offload": offload,
        "pinned": pinned,
        "exact": exact,
        "total": None if optimizer is None or only_steps else account(model, optimizer),
        "updates": None if asked is None else Inside(*asked),
        "profile": profile,
        "random": random,
        "cse": cse,
        "collective_again": collective_again,
        "network_bytes_per_s": network_bytes_per_s,
        "given": given,
        "on_infeasible": on_infeasible,
        "pool": pool, "packed": packed, "slices": slices,
    }  # fmt: skip
    options = {"fullgraph": fullgraph, "dynamic": dynamic}
    if isinstance(model, torch.nn.Module):
        let_trace_sharded(model)
        return CompiledModule(uncompiled(model), Context(wishes, codegen, options))
    return CompiledFunction(model, Runner(model, wishes, codegen, options))
