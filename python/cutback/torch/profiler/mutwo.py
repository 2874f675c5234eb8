"""The mu-TWO pipeline on a PyTorch step: profile, select, rewrite, run.

Source: S. Purandare, A. Wasay, S. Idreos, mu-TWO: 3x faster multi-model training with orchestration
and memory optimization, MLSys 2023. The rule ``"threshold"`` comes from course projects based on it
(Harvard CS265), which standardise the scores once and compare them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

from ... import _native, budgets
from ...frontend.planning import plan
from ...planner.plan import Plan
from ...problem import Constraint
from ..compiler.compiling import compile
from ..flags import check_flags
from ..graph.records import Value
from ..graph.statistics import check_same, signature
from ..graph.taking_over import separate
from .profiling import Profile, profile

RULES = ("greedy", "threshold")
_RECOMPUTE: Constraint = "prefer_recompute"
_MOVE: Constraint = "prefer_offload"
_SAVE: Constraint = "prefer_save"
_NAMES = {_RECOMPUTE: "recompute", _MOVE: "swap", _SAVE: "save"}


class Candidate(NamedTuple):
    """A forward op that may be recomputed and whose values the backward reads."""

    name: str
    kind: str  # "aten.gelu.default"
    location: str
    bytes: int  # bytes of its outputs that the backward reads
    recompute_seconds: float  # measured time of the op
    inactive_seconds: float  # the shortest inactive time of its values
    swap_seconds: float  # time to copy them out and in
    ratio: float  # bytes / recompute_seconds
    standard_ratio: float  # (ratio - mean) / deviation over all candidates
    standard_inactive: float
    decision: str  # "save", "recompute" or "swap"


class Selection:
    """The decisions of mu-TWO, made by :func:`select`: a policy for :func:`cutback.torch.compile`,
    :func:`cutback.plan` and :meth:`cutback.torch.TracedStep.plan`.

    >>> selection = cutback.torch.mutwo.select(cutback.torch.profile(model, x), saved=0.5)
    >>> print(selection)
    """

    def __init__(
        self,
        candidates: list[Candidate],
        choices: dict[str, Constraint],
        signature: str,
        graphs: list[str],
        link_bytes_per_s: float | None = None,
    ) -> None:
        self.candidates = candidates
        self.link_bytes_per_s = link_bytes_per_s
        """The bandwidth of the profile's link to the host, if the selection swaps values."""
        self._choices = choices  # maps the name of an op to its constraint (docs/problem.md)
        self._signature = signature
        self._graphs = graphs  # signature of each graph

    def chosen(self, decision: str) -> list[Candidate]:
        """Returns the candidates with the decision ``"recompute"``, ``"swap"`` or ``"save"``."""
        return [c for c in self.candidates if c.decision == decision]

    def constrain(self, problem: str, device: str | None = None) -> str:
        """Adds the decisions to a problem like :meth:`lay`, but takes and returns JSON.

        Raises:
            ValueError: if :meth:`lay` raises it, or if the text is not a problem.
        """
        return self.lay(_native.Problem.read(problem), device).to_json()

    def lay(self, problem: _native.Problem, device: str | None = None) -> _native.Problem:
        """Returns the problem with the decisions as preferences, and with the link if values are
        swapped. Keeps constraints and a link that the problem already has. The problem may be that
        of the whole step or of one of its graphs.

        Raises:
            ValueError: if the problem belongs to another step.
        """
        parts = problem.parts()
        own, suffix = signature(parts), ""
        if own != self._signature and own in self._graphs:
            suffix = f"@{self._graphs.index(own)}"  # equal graphs get the decisions of the first
        else:
            check_same(self._signature, parts, "the problem under this selection")
        for op in parts.ops:
            word = self._choices.get(op.name + suffix)
            for value in op.outputs:
                if word is not None and value.constraint == "free":
                    value.constraint = word
        if self.link_bytes_per_s is not None:
            parts = separate(parts)  # steps that move values take nothing over
            parts.link_bytes_per_s = parts.link_bytes_per_s or self.link_bytes_per_s
        return parts.check()

    def __str__(self) -> str:
        lines = [
            f"{'op':28} {'bytes':>11} {'run ms':>9} {'idle ms':>9} {'swap ms':>9} {'z ratio':>9} "
            f"{'z idle':>9}  decision"
        ]
        for c in self.candidates:
            lines.append(
                f"{c.name[:28]:28} {budgets.text(c.bytes):>11} {1e3 * c.recompute_seconds:9.3f} "
                f"{1e3 * c.inactive_seconds:9.3f} {1e3 * c.swap_seconds:9.3f} "
                f"{c.standard_ratio:9.2f} {c.standard_inactive:9.2f}  {c.decision}"
            )
        for decision in ("recompute", "swap", "save"):
            chosen = self.chosen(decision)
            size = budgets.text(sum(c.bytes for c in chosen))
            lines.append(f"{decision}: {len(chosen)} of {len(self.candidates)} ops, {size}")
        return "\n".join(lines)


def _core_choice(
    problem: _native.Problem, spec: budgets.NativeBudget, device: str
) -> dict[str, Constraint]:
    """Returns the decisions of the core's mu-TWO for each op, under a bound on saved bytes."""
    found: dict[str, Constraint] = {}
    for op in problem.mutwo(spec, device).parts().ops:
        words = {value.constraint for value in op.outputs} - {"free"}
        if words and "backward" not in op.flags:
            found[op.name] = min(words)
    return found


def _standardised(numbers: list[float]) -> list[float]:
    if not numbers:
        return []
    mean, deviation = statistics.fmean(numbers), statistics.pstdev(numbers)
    return [(x - mean) / deviation if deviation > 0 else 0.0 for x in numbers]


def _candidates(measured: Profile, names: list[str]) -> list[Candidate]:
    by_name: dict[str, list[Value]] = {}
    for value in measured.activations():
        by_name.setdefault(value.name, []).append(value)
    first = {row.name: row for row in reversed(measured.rows)}
    names = [name for name in names if name in by_name]
    ratios = [
        sum(v.bytes for v in by_name[name]) / max(first[name].seconds, 1e-9) for name in names
    ]
    idle = [min(v.inactive_seconds for v in by_name[name]) for name in names]
    rows = zip(names, ratios, idle, _standardised(ratios), _standardised(idle), strict=True)
    return [
        Candidate(
            name, first[name].kind, first[name].location, sum(v.bytes for v in by_name[name]),
            first[name].seconds, inactive,
            sum(v.swap_out_seconds + v.swap_in_seconds for v in by_name[name]),
            ratio, standard_ratio, standard_inactive, "save",
        )
        for name, ratio, inactive, standard_ratio, standard_inactive in rows
    ]  # fmt: skip


def _saved(saved: int | float | str) -> budgets.NativeBudget:
    spec = budgets.parse(budgets.as_share(saved), "saved")
    if spec is None or spec[0] not in budgets.BOUNDS:
        raise ValueError(f"saved={saved!r}: give a number of bytes, '2GiB' or a share such as 0.5")
    return spec


def select(
    measured: Profile, saved: int | float | str = 0.5, rule: str = "greedy", swap: bool = False
) -> Selection:
    """Chooses activations to recompute or to move to the host, based on measurements.

    Args:
        measured: the result of :func:`cutback.torch.profile`.
        saved: for ``"greedy"``, how much to save between forward and backward: bytes, ``"2GiB"``,
            or a share of the bytes that saving everything saves (``0.5``).
        rule: ``"greedy"`` evicts values one by one, by the larger of two standardised scores:
            bytes x inactive time / time to recompute the value from those still saved, and, with
            ``swap``, inactive time (``docs/planner.md``). ``"threshold"`` recomputes each value
            whose standardised inactive time exceeds its standardised bytes / op time, and ignores
            ``saved``.
        swap: True lets ``"greedy"`` move values to the host over the profile's link.

    Returns:
        The decisions, as a policy for :func:`cutback.torch.compile` and :func:`cutback.plan`.

    Raises:
        ValueError: if the rule is unknown, ``saved`` is invalid, or ``swap`` is used with
            ``"threshold"``.

    >>> selection = cutback.torch.mutwo.select(cutback.torch.profile(model, x), saved=0.5)
    >>> print(selection)
    """
    if rule not in RULES:
        raise ValueError(f"rule={rule!r} is not one of {', '.join(RULES)}")
    check_flags(swap=swap)
    if swap and rule == "threshold":
        raise ValueError(
            "rule='threshold' only chooses between saving and recomputing: use swap=False or "
            "rule='greedy'"
        )
    spec = _saved(saved)
    problem = measured.measured_problem(swap).check()
    nothing = _core_choice(problem, _saved(1.0), measured.device)
    greedy = rule == "greedy"
    choices = _core_choice(problem, spec, measured.device) if greedy else dict(nothing)
    least = budgets.of_bytes(1, "saved")
    most = _core_choice(measured.measured_problem().check(), least, measured.device)
    open = [n for n, word in nothing.items() if word == _SAVE and most.get(n) == _RECOMPUTE]
    candidates = _candidates(measured, open)
    if rule == "threshold":
        for c in candidates:
            if c.standard_inactive > c.standard_ratio:
                choices[c.name] = _RECOMPUTE
    candidates = [c._replace(decision=_NAMES[choices[c.name]]) for c in candidates]
    link = measured.link_bytes_per_s if swap else None
    return Selection(candidates, choices, measured.signature, measured.graphs, link)


class Pipeline(NamedTuple):
    """The results of all stages of :func:`mu_two`.

    >>> pipeline = cutback.torch.mutwo.mu_two(model, x, saved=0.5, runs=1)
    >>> print(pipeline.selection)
    """

    profile: Profile
    """The measurements, with swap times."""
    selection: Selection
    """The decisions."""
    plan: Plan
    """The plan that follows them."""
    forward: fx.GraphModule
    """The rewritten forward; with graph breaks, that of the first graph."""
    backward: fx.GraphModule
    """The rewritten backward; with graph breaks, that of the first graph."""
    step: Any
    """The compiled step, which is called like the original."""


def mu_two(
    step: torch.nn.Module | Callable[..., Any],
    *inputs: Any,
    saved: int | float | str = 0.5,
    rule: str = "greedy",
    swap: bool = False,
    runs: int = 5,
    warmup: int = 1,
    link: float | str | None = None,
    **kwargs: Any,
) -> Pipeline:
    """Runs the whole pipeline on one step: profiles it, selects values to recompute or, with
    ``swap``, to move to the host, rewrites the graph, and compiles the step accordingly. Gradients
    are bitwise equal to those of the original step.

    ``inputs``, ``runs``, ``warmup``, ``link`` and ``kwargs`` are as in
    :func:`cutback.torch.profile`; ``saved`` and ``rule`` are as in
    :func:`cutback.torch.mutwo.select`. The errors are those of these functions. A selection does
    not consider the peak; ``compile(..., budget=..., profile=...)`` does.

    Returns:
        The results of all stages; ``step`` is the compiled step.

    >>> pipeline = cutback.torch.mutwo.mu_two(model, x, saved=0.5, runs=1)
    >>> pipeline.step(x).sum().backward()
    """
    measured = profile(step, *inputs, runs=runs, warmup=warmup, link=link, **kwargs)
    selection = select(measured, saved, rule, swap)
    problem = separate(measured.measured_problem(swap))
    made = plan(problem, policy=selection, device=measured.device)
    forward, backward = measured.rewrite(made)
    run = compile(step, policy=selection, profile=measured, dynamic=False)
    return Pipeline(measured, selection, made, forward, backward, run)
