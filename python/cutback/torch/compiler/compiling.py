"""``cutback.torch.compile`` and the backend ``"cutback"`` of ``torch.compile``."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ... import BudgetError
from .. import hooks
from ..flags import check_flags, check_flags_or_none
from .backends import make_backend
from .compiled import Compiled, CompiledFunction, CompiledModule, Context, Runner, uncompiled
from .options import Measured
from .partition import Partitioner
from .saved_plans import Path, SavedPlans
from .several import ModelPartitioner
from .totals import account
from .wishes import Policy

if TYPE_CHECKING:
    from ..types import GraphFunction, GraphInput, GraphValue

__all__ = ["Compiled", "compile", "cutback", "uncompiled"]


_HOOKED = "backwards hooks"
"""In PyTorch's reason for a break of the graph."""


class _Session:
    """One ``torch.compile(..., backend="cutback")``: a partitioner for all its graphs.

    Nobody calls the model for it, so guards take up a plan that waits: that of the first graph
    makes the plan, and fails if PyTorch has to compile again for it; those of the others fail once
    the first was compiled again. PyTorch asks at once, before a graph has run, and takes a guard
    that fails then for a mistake: a graph that makes a plan wait by itself holds for one run."""

    def __init__(self, options: dict[str, Any]) -> None:
        options = dict(options)
        codegen = options.pop("codegen", "eager")
        plans = options.pop("plans", None)
        _check_plans(plans, options)
        given = None if plans is None else SavedPlans.read(plans)
        self.partitioner = ModelPartitioner(**options, given=given)
        self.backend = make_backend(self.partitioner, codegen, guards=True)
        self.first: int | None = None  # frame of the first graph
        self.round = 0
        self.runs = 0  # of graphs
        self.told = False  # of modules that PyTorch leaves to eager mode

    def compile(self, gm: fx.GraphModule, inputs: Sequence[GraphInput]) -> GraphFunction:
        """What a graph is compiled to, with its guard."""
        partitioner = self.partitioner
        frame = partitioner.frame()
        if partitioner.forget_if_gone():
            self.first = None  # it was the number of a frame
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
        """PyTorch leaves a module with hooks of its backward to eager mode, between two graphs.
        Nobody sees the call there whose memory could be measured."""
        reason = getattr(gm, "compile_subgraph_reason", None)
        hooked = reason is not None and _HOOKED in str(getattr(reason, "reason", "")).lower()
        if not hooked or self.told or self.partitioner.options.target.budget is None:
            return
        self.told = True
        warnings.warn(
            "the model has a module with register_full_backward_hook, which PyTorch leaves to "
            "eager mode: what that module holds is not planned and comes on top of the budget, "
            "which the graphs around it share. Use hooks of tensors (Tensor.register_hook) or "
            "register_forward_hook, which are compiled; cutback.torch.compile(model, budget=...) "
            "measures it and says the figure",
            stacklevel=2,
        )

    def _holds(self, frame: int | None, round: int, runs: int) -> bool:
        """
        Args:
            runs: of graphs, up to when it was compiled.
        """
        is_asked_by_call = frame == self.first and self.runs > runs
        if round == self.round and is_asked_by_call and self.partitioner.waits:
            try:
                self.round += self.partitioner.take_up_plan()
            except (BudgetError, Warning):
                return False  # raised again when the graph is compiled
        return round == self.round


_OPTIONS = (
    "budget", "codegen", "collective_again", "cse", "device", "exact", "measure",
    "network_bytes_per_s", "offload", "on_infeasible", "on_plan", "pinned", "plans", "policy",
    "pool", "profile", "random",
)  # fmt: skip
_OURS = ("optimizer", "fullgraph", "dynamic")


def _check_options(options: dict[str, Any]) -> None:
    for name in options:
        if name in _OURS:
            raise ValueError(
                f"backend 'cutback': {name} is an argument of cutback.torch.compile"
                + (", which sees the model that it counts" if name == "optimizer" else
                   " and torch.compile, not one of their options")
            )  # fmt: skip
        if name not in _OPTIONS:
            raise ValueError(
                f"backend 'cutback': unknown option {name!r}; it knows {', '.join(_OPTIONS)}"
            )


def _check_plans(plans: Path | None, wishes: dict[str, Any]) -> None:
    if plans is not None and (wishes.get("budget") is not None or wishes.get("policy") is not None):
        raise TypeError("give plans, or a budget and a policy: plans were made under their own")


def cutback(
    gm: fx.GraphModule,
    inputs: Sequence[GraphInput],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> GraphFunction:
    """``torch.compile(model, backend="cutback", options={"budget": 0.5})``, and the same for
    ``model.compile``.

    Options are those arguments of :func:`compile` that are not ``torch.compile``'s own, but
    ``optimizer``; and ``on_plan``, a function that gets each plan. All graphs of one such call
    share its budget."""
    if mode is not None:
        raise ValueError(
            f"backend 'cutback': mode={mode!r} is one of Inductor's sets of options, and this "
            "backend has none. Leave it out and say options={'budget': ...}; with "
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
) -> Any:
    """A module or function whose training steps keep to a memory budget.

    Args:
        model: what runs in the forward; tensors that it takes, and its parameters, get their
            gradients from ``backward()`` as always.
        budget, measure, policy, device: see :class:`Partitioner`. The budget holds for the step:
            what forward and backward make, tangents and gradients included; parameters and inputs
            are the caller's. Where the model falls into several graphs, the first step plans them
            one by one; before the second there is one plan for all, and from then on the budget
            holds for all together (:mod:`compiler.several`).
        codegen: ``"eager"``: the planned ops in the planned order, with PyTorch's own kernels:
            the planned peak is the measured one, and the bits do not depend on the budget.
            ``"inductor"``: Inductor compiles the two planned graphs; it may reorder and fuse. Plans
            are corrected by its estimate of the peak (:mod:`compiler.inductor`).
        offload: with ``codegen="eager"``, may values move to the host and back? ``"only"``: and
            nothing runs again. On CUDA the copies go to pinned memory, on streams of their own.
        pinned: most bytes that the host may hold for it at one time: an int or ``"8GiB"``.
        exact: search again at just this budget, for a faster plan than the search's targets, which
            are up to 2 % apart, give; see :func:`cutback.plan`.
        optimizer: with ``measure="total"``, whose states count, also those that its first step will
            allocate, as does what its step takes beside them.
        fullgraph, dynamic: as for ``torch.compile``.
        profile: measured times, see :class:`Partitioner`. They are of graphs as
            ``codegen="eager"`` has them, for inputs of one size: pass ``dynamic=False``.
        random: ``"torch"``: PyTorch's random numbers; their masks are kept for the backward.
            ``"counter"``: those of our counter-based generator, seeded by one draw of PyTorch's for
            each step: other numbers under the same seed, and nothing is kept, as the backward can
            draw them again. Inductor's own generator works like that already.
        cse: see :class:`Partitioner`.
        plans: instead of budget and policy, a file that ``save_plans`` of the result wrote, in this
            process or another: its plans are followed, nothing is planned.
        on_infeasible: where no plan meets the budget: ``"error"``; ``"min"`` (at most 40 % more
            time) or ``"smallest"`` (however slow): a ``UserWarning``, and the plan of that budget;
            ``"warn"``: a ``UserWarning``, and everything is saved. None: an error in the first
            step, ``"smallest"`` afterwards, as for a longer batch in mid-epoch.
        pool: place the memory of the step in one segment of PyTorch's caching allocator, from the
            third step on (:mod:`graph.segment`). For ``codegen="eager"``, steps of one graph, and
            budgets that bound its peak.
        collective_again, network_bytes_per_s: see :class:`Partitioner`.

    Returns:
        A module or function like ``model``, with the properties ``plans``, ``compiler_notes`` and
        ``allocator_stats`` and the method ``save_plans(path)``.

    Raises:
        BudgetError: at the first call, if no plan meets the budget.
        UnsupportedGraphError: at the first call, if the model cannot be planned.
        ValueError, TypeError: if an argument is wrong; at the first call, if ``plans`` are for
            another model or other shapes.

    >>> step = cutback.torch.compile(model, budget=0.5)
    >>> step(x).sum().backward()  # gradients are in .grad
    >>> print(step.plans[0])
    """
    if not callable(model):
        raise TypeError(f"model={model!r:.60} is neither a module nor a function")
    _check_plans(plans, {"budget": budget, "policy": policy})
    check_flags(fullgraph=fullgraph)
    check_flags_or_none(dynamic=dynamic)
    given = None if plans is None else SavedPlans.read(plans)
    wishes = {
        "budget": budget,
        "measure": measure,
        "policy": policy,
        "device": device,
        "offload": offload,
        "pinned": pinned,
        "exact": exact,
        "total": None if optimizer is None else account(model, optimizer),
        "profile": profile,
        "random": random,
        "cse": cse,
        "collective_again": collective_again,
        "network_bytes_per_s": network_bytes_per_s,
        "given": given,
        "on_infeasible": on_infeasible,
        "pool": pool,
    }
    options = {"fullgraph": fullgraph, "dynamic": dynamic}
    if isinstance(model, torch.nn.Module):
        return CompiledModule(uncompiled(model), Context(wishes, codegen, options))
    return CompiledFunction(model, Runner(model, wishes, codegen, options))
