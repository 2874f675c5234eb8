"""The mu-TWO pipeline on a PyTorch step: profile, select, rewrite, run.

Source: S. Purandare, A. Wasay, S. Idreos, mu-TWO: 3x faster multi-model training with orchestration
and memory optimization, MLSys 2023. The rule ``"threshold"`` is that of course projects built on it
(Harvard CS265), which standardise once and compare.
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
from .profiling import Profile, profile

RULES = ("greedy", "threshold")
_RECOMPUTE: Constraint = "prefer_recompute"
_MOVE: Constraint = "prefer_offload"
_SAVE: Constraint = "prefer_save"
_NAMES = {_RECOMPUTE: "recompute", _MOVE: "swap", _SAVE: "save"}


class Candidate(NamedTuple):
    """An op of the forward whose values the backward reads and that may run again."""

    name: str
    kind: str  # "aten.gelu.default"
    location: str
    bytes: int  # of what it makes and the backward reads
    recompute_seconds: float  # of the op itself
    inactive_seconds: float  # the shortest of its values
    swap_seconds: float  # out and in
    ratio: float  # bytes / recompute_seconds
    standard_ratio: float  # (ratio - mean) / deviation over all candidates
    standard_inactive: float
    decision: str  # "save", "recompute" or "swap"


class Selection:
    """What mu-TWO chose: a policy for :func:`cutback.torch.compile`, :func:`cutback.plan` and
    :meth:`TracedStep.plan`, made by :func:`select`."""

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
        """Of a selection that swaps: the profile's link, over which plans under it move values."""
        self._choices = choices  # op -> constraint of docs/problem.md
        self._signature = signature
        self._graphs = graphs  # signature of each

    def chosen(self, decision: str) -> list[Candidate]:
        """The candidates that are to be ``"recompute"``, ``"swap"`` or ``"save"``."""
        return [c for c in self.candidates if c.decision == decision]

    def constrain(self, problem: str, device: str | None = None) -> str:
        """:meth:`lay` on the JSON of a problem.

        Raises:
            ValueError: as there, or the text is no problem.
        """
        return self.lay(_native.Problem.read(problem), device).to_json()

    def lay(self, problem: _native.Problem, device: str | None = None) -> _native.Problem:
        """The problem with the choices as preferences, and the link of one that swaps; what
        it has of both stays. The problem is the whole step's, or that of one of its graphs.

        Raises:
            ValueError: the problem is of another step.
        """
        parts = problem.parts()
        own, suffix = signature(parts), ""
        if own != self._signature and own in self._graphs:
            suffix = f"@{self._graphs.index(own)}"  # of equal graphs, as the first
        else:
            check_same(self._signature, parts, "the problem under this selection")
        for op in parts.ops:
            word = self._choices.get(op.name + suffix)
            for value in op.outputs:
                if word is not None and value.constraint == "free":
                    value.constraint = word
        if self.link_bytes_per_s is not None:
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
    """What the core's mu-TWO says of each op, under a bound on saved bytes."""
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
        raise ValueError(f"saved={saved!r}: name a number of bytes, '2GiB' or a share such as 0.5")
    return spec


def select(
    measured: Profile, saved: int | float | str = 0.5, rule: str = "greedy", swap: bool = False
) -> Selection:
    """Which activations to recompute, or to move to the host, by measured figures.

    Args:
        measured: what :func:`cutback.torch.profile` returned.
        saved: for ``"greedy"``, how much is to be saved between forward and backward: bytes,
            ``"2GiB"``, or a share of what saving everything saves (``0.5``).
        rule: ``"greedy"``: values go one by one, by the larger of two standardised scores: bytes x
            inactive time / time to make it again from what is still saved, and, with ``swap``,
            inactive time (``docs/planner.md``). ``"threshold"``: recompute whatever has a
            standardised inactive time above its standardised bytes / op time; ``saved`` does not
            count.
        swap: for ``"greedy"``, may values move to the host over the profile's link?

    Raises:
        ValueError: no such rule, not a number of bytes, or swap with ``"threshold"``.
    """
    if rule not in RULES:
        raise ValueError(f"rule={rule!r} is not one of {', '.join(RULES)}")
    check_flags(swap=swap)
    if swap and rule == "threshold":
        raise ValueError("rule='threshold' chooses between saving and recomputing: no swap")
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
    """Every stage of :func:`mu_two`."""

    profile: Profile  # statistics with swapping
    selection: Selection
    plan: Plan
    forward: fx.GraphModule  # the rewritten graphs; those of the first, where there are breaks
    backward: fx.GraphModule
    step: Any  # runs like the module or function that came in


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
    """The whole pipeline on one step: profiles it, selects what to recompute or, with ``swap``, to
    move to the host, rewrites the graph, and compiles the step to run so. Gradients are those of
    the step as it was, bit for bit.

    Arguments and errors are those of :func:`cutback.torch.profile` and
    :func:`cutback.torch.mutwo.select`. A selection takes no account of the peak;
    ``compile(..., budget=..., profile=...)`` does.
    """
    measured = profile(step, *inputs, runs=runs, warmup=warmup, link=link, **kwargs)
    selection = select(measured, saved, rule, swap)
    made = plan(measured.measured_problem(swap), policy=selection, device=measured.device)
    forward, backward = measured.rewrite(made)
    run = compile(step, policy=selection, profile=measured, dynamic=False)
    return Pipeline(measured, selection, made, forward, backward, run)
