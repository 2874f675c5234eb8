"""Plans: what a step saves and recomputes, why, and what it takes."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from . import _native, budgets, devices, files
from .constraints import constrain
from .frontend.tracing import Call, Traced
from .frontend.training import ArgNums, _argnums
from .policies import Policy, WholeGraph, resolve

if TYPE_CHECKING:
    from .differences import Difference
    from .run.executable import Executable

Problem = Mapping[str, Any] | str | os.PathLike[str]
Times = Mapping[Any, float]  # seconds by operation, its name or id


class Profile(Protocol):
    """What ``profile=`` takes besides plain times: a profile of a step, from either front door."""

    def times(self) -> dict[str, float]:
        """Seconds by operation."""
        ...


class Entry(NamedTuple):
    """One value that the backward needs, and what is done about it."""

    value: int  # id in problem and plan
    name: str  # of the operation that makes it: "matmul_12"
    kind: str  # "matmul"
    type: str  # "f32[8,32]"
    bytes: int  # of its storage
    location: str  # "model.py:12", "" when not known
    decision: str  # "save", "recompute" or "offload"
    reason: str  # "cut", "policy", "peak", ...


class Best(NamedTuple):
    """The best plan that a search has so far."""

    bytes: int  # under the budget's measure, before offsets
    extra: float  # time beside running everything once, as a share of that
    gap: float | None  # time above the lower bound, as a share of the bound; None: no bound so far


Progress = Callable[[float], object] | Callable[[float, Best | None], object]
"""Is told the seconds so far and, if it takes two arguments, the best plan so far; True ends the
search."""


class Plan:
    """A plan with the problem it answers.

    ``print(plan)`` summarises it, ``plan.explain()`` lists every decision with its reason, and in a
    notebook it shows as a picture.
    """

    def __init__(self, problem: str, plan: str, step: Executable | None = None) -> None:
        self._problem_text = problem
        self._text = plan
        self._step = step
        self._parsed: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._explanation: dict[str, Any] | None = None

    @classmethod
    def of_step(cls, step: Executable) -> Plan:
        """The plan of a compiled graph."""
        return cls(step.text("problem"), step.text("plan"), step)

    def _documents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._parsed is None:
            self._parsed = json.loads(self._problem_text), json.loads(self._text)
        return self._parsed

    @property
    def problem(self) -> dict[str, Any]:
        """The planner's input, as ``docs/problem.md`` describes it."""
        return self._documents()[0]

    @property
    def document(self) -> dict[str, Any]:
        """The plan, as ``docs/problem.md`` describes it."""
        return self._documents()[1]

    @property
    def numbers(self) -> dict[str, Any]:
        """Planned bytes and modelled picoseconds; ``save_all_*`` are those of saving everything."""
        return {**self.document["numbers"], "budget_bytes": self.document["budget_bytes"]}

    @property
    def entries(self) -> list[Entry]:
        """Every value that the backward needs, in the order of the program."""
        problem, plan = self._documents()
        makers = [(op, out) for op in problem["ops"] for out in op["out"]]
        rows = []
        for row in plan["decisions"]:
            op, out = makers[row["value"]]
            rows.append(
                Entry(
                    value=row["value"],
                    name=op.get("name", ""),
                    kind=op.get("kind", ""),
                    type=out.get("type", ""),
                    bytes=problem["storages"][out["storage"]]["bytes"],
                    location=op.get("at", ""),
                    decision=row["decision"],
                    reason=row["reason"],
                )
            )
        return rows

    @property
    def saved(self) -> list[Entry]:
        """Values that are kept from the forward to the backward."""
        return [e for e in self.entries if e.decision == "save"]

    @property
    def offloaded(self) -> list[Entry]:
        """Values that leave for the host and come back."""
        return [e for e in self.entries if e.decision == "offload"]

    @property
    def recomputed(self) -> list[Entry]:
        """Values that are computed again in the backward."""
        return [e for e in self.entries if e.decision == "recompute"]

    def explain(self, as_json: bool = False) -> str:
        """Totals, then one line for each value: shape, bytes, maker, source line, readers,
        decision, reason, and what the peak and the time would gain or lose if only this decision
        were the other one.

        ``as_json`` gives the same as JSON (``docs/problem.md``), with all values and readers.
        """
        if as_json:
            return _native.explain_json(self._problem_text, self._text)
        return _native.explain_text(files.for_people(self._problem_text), self._text)

    @property
    def explanation(self) -> dict[str, Any]:
        """What :meth:`explain` says, as a document."""
        if self._explanation is None:
            self._explanation = json.loads(self.explain(as_json=True))
        return self._explanation

    def diff(self, other: Plan) -> Difference:
        """What ``other`` does differently, value by value, and what that comes to.

        Raises:
            ValueError: the plans are for different problems.
        """
        from .differences import Difference

        return Difference(self, other)

    def to_json(self) -> str:
        """The plan as JSON; ``compile(plan=...)`` takes it."""
        return self._text

    def timeline(self) -> list[int]:
        """Bytes that are live during each step of the schedule."""
        from .report.model import Life, live_bytes

        lives = (Life(*row) for row in self.document["lives"])
        return live_bytes(lives, len(self.document["steps"]))

    def _measured(self) -> dict[str, Any]:
        measured: dict[str, Any] = {}
        if self._step is not None:
            measured["timeline"] = self._step.timeline
            stats = self._step.stats
            if stats is not None:
                measured.update(peak_bytes=stats.peak_bytes, ms=stats.seconds * 1e3)
        return measured

    def report(self, path: str | os.PathLike[str], title: str = "Cutback plan") -> None:
        """Writes a self-contained HTML page: graph, memory timeline, and what is saved and why.

        After ``step.profile(...)`` the timeline shows what was measured beside what was planned."""
        from .report import render_html

        page = render_html(self.problem, self.document, self._measured(), title, self.explanation)
        files.write_text(path, page)

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles leave the compiled step behind
        return Plan, (self._problem_text, self._text)

    @property
    def bound_ps(self) -> int | None:
        """No plan of the bound's class takes less, in picoseconds. None: no bound is known, or it
        is above this plan's own time, so that this plan is not of that class."""
        bound: int | None = self.numbers["lower_bound_ps"]
        return bound if bound is not None and bound <= self.numbers["time_ps"] else None

    def _bounded(self) -> str:
        """The budget, and what it bounds where that is not the arena before it."""
        n, measure = self.numbers, self.document["measure"]
        if n["budget_bytes"] is None:
            return "no budget"
        beside = "" if measure == "arena" else f", which is {budgets.text(n[f'{measure}_bytes'])}"
        return f"budget {budgets.text(n['budget_bytes'])} for {measure}{beside}"

    def __str__(self) -> str:
        n = self.numbers
        once = n["once_ps"]
        extra = 100 * (n["time_ps"] - once) / max(1, once)
        size = budgets.text
        bound, gap = self.bound_ps, n.get("gap")
        least = ""
        if bound is not None:
            shown = "n/a" if gap is None else f"{100 * gap:.2f} %"
            least = f" (at least {100 * (bound - once) / max(1, once):.1f} %; gap {shown})"
        return (
            f"arena {size(n['arena_bytes'])} (save everything: {size(n['save_all_arena_bytes'])}), "
            f"{self._bounded()}\n"
            f"saved {len(self.saved)} values, {size(n['saved_bytes'])} "
            f"(save everything: {size(n['save_all_saved_bytes'])})\n"
            f"recomputed {n['recomputed']} values, {extra:.1f} % more time{least}"
            + (f"\noffloaded {size(n['out_bytes'])}" if n.get("out_bytes") else "")
        )

    def __repr__(self) -> str:
        n = self.numbers
        return f"<cutback.Plan {budgets.text(n['arena_bytes'])}, {n['recomputed']} recomputed>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from .report import render_fragment

        html = render_fragment(self.problem, self.document, self.explanation)
        return {"text/plain": str(self), "text/html": html}


def read_graph(problem: Problem) -> str:
    """The text of a problem or a traced graph: a document, JSON text, or the path of a file,
    gzipped or not.

    Raises:
        OSError: the file cannot be read. ValueError: it is no text. TypeError: none of these.
    """
    if isinstance(problem, Mapping):
        return files.to_json(dict(problem), "problem")
    if isinstance(problem, str):
        text = problem.removeprefix("\ufeff")  # some editors' mark of UTF-8
        if text.lstrip().startswith("{"):
            return text
    if isinstance(problem, (str, os.PathLike)):
        return files.read_text(problem)
    raise TypeError(
        "a problem is a document (dict), its JSON or the path of a file, not "
        f"{type(problem).__name__}; for a cutback.Graph there is "
        'graph.compile(wrt=..., backend="null").plan'
    )


def read_problem(problem: Problem) -> str:
    """The same as a problem's text: a traced graph becomes a problem.

    Raises:
        OSError: the file cannot be read. ValueError: it holds neither.
    """
    return _native.problem_json(read_graph(problem))


def _times(profile: Profile | Times | str | os.PathLike[str]) -> Times:
    """Seconds by operation."""
    if isinstance(profile, (str, os.PathLike)):
        return files.read_times(profile)
    if isinstance(profile, Mapping):
        return profile
    if not callable(getattr(profile, "times", None)):
        raise TypeError(
            "profile is seconds by operation, the path of a file with them, or what step.profile "
            f"returned, not {type(profile).__name__}"
        )
    return profile.times()


def _seconds(time_limit: float) -> float:
    """A limit of time as the core takes it; 0: none.

    Raises:
        TypeError, ValueError: no number of seconds.
    """
    if isinstance(time_limit, bool) or not isinstance(time_limit, (int, float, np.number)):
        raise TypeError(f"time_limit is a number of seconds, not {time_limit!r}")
    if not time_limit >= 0:
        raise ValueError(
            f"time_limit={budgets.short(time_limit)} is no number of seconds; 0 is no limit"
        )
    return float(min(time_limit, 1e9))  # the core's own "no limit" begins below that


def _teller(
    progress: Progress | None,
) -> Callable[[float, tuple[int, float, float] | None], object] | None:
    """``progress`` as the core calls it."""
    if progress is None:
        return None
    if not callable(progress):
        raise TypeError(f"progress is a function of seconds (and the best plan), not {progress!r}")
    tell: Any = progress
    try:
        inspect.signature(tell).bind(0.0, None)
    except TypeError:
        return lambda seconds, best: tell(seconds)
    except ValueError:  # a builtin without a signature
        pass

    def with_best(seconds: float, best: tuple[int, float, float] | None) -> object:
        if best is None:
            return tell(seconds, None)
        size, extra, gap = best
        return tell(seconds, Best(size, extra, gap if gap >= 0 else None))

    return with_best


def under_policy(
    problem: str, policy: Policy | WholeGraph | str | None, device: devices.Device | None
) -> str:
    """A problem with a policy laid over it.

    Raises:
        TypeError: the policy is one for functions.
    """
    if isinstance(policy, WholeGraph):
        return policy.constrain(problem, devices.resolve(device))
    if isinstance(policy, str):
        return constrain(problem, policy, devices.resolve(device))
    if policy is not None:
        raise TypeError(
            f"policy={policy!r}: a problem takes a policy by name; see cutback.constraints"
        )
    return problem


def problem_of(
    what: Callable[..., Any] | Problem,
    args: tuple[Any, ...],
    *,
    policy: Policy | WholeGraph | str | None = None,
    argnums: ArgNums = 0,
    device: devices.Device | None = None,
    profile: Profile | Times | str | os.PathLike[str] | None = None,
) -> str:
    """The problem (JSON) of a function on arguments like these, or of what :func:`read_graph`
    takes, with times and policy laid over it: all that follows is the same for both.

    Raises:
        ValueError, TypeError: a mistake in it, or an argument that this kind does not take.
    """
    if not callable(what):
        if args or _argnums(argnums) != (0,):
            raise TypeError("arguments and argnums go with a function; a problem has neither")
        text = read_problem(what)
        if profile is not None:
            text = files.with_times(text, _times(profile))
        return under_policy(text, policy, device)
    if profile is not None:
        raise TypeError(
            "a profile needs a problem: cutback.plan(step.plan.problem, profile=step.profile(...))"
        )
    from .run.executable import Executable

    whole = policy if isinstance(policy, WholeGraph) else None
    asked = None if policy is None or whole is not None else resolve(policy)
    numbers = _argnums(argnums)
    traced = Traced(Call(what, args, {}), numbers, asked)
    traced.finish(with_loss=bool(numbers))
    step = Executable(traced.graph, traced.wrt_positions, backend="null", device=device)
    return under_policy(step.text("problem"), whole, device)


def plan(
    what: Callable[..., Any] | Problem,
    *args: Any,
    budget: int | float | str | None = None,
    measure: str | None = None,
    preset: str | None = None,
    policy: Policy | WholeGraph | str | None = None,
    argnums: ArgNums = 0,
    device: devices.Device | None = None,
    profile: Profile | Times | str | os.PathLike[str] | None = None,
    max_extra: float | None = None,
    offload: bool | str = False,
    pinned: int | str | None = None,
    exact: bool = False,
    time_limit: float = 0.0,
    progress: Progress | None = None,
) -> Plan:
    """Plans the step of a function on arguments like these, or a problem from elsewhere, without
    running anything.

    Args:
        what: a loss function, whose arguments follow; or a problem: a document (dict), its JSON, or
            the path of a file with it (``docs/problem.md``).
        budget, preset, policy, device: as for :func:`cutback.compile`. A problem takes a
            policy as text (:mod:`cutback.constraints`); both take :func:`policies.mu_two`.
        argnums: for a function, as for :func:`cutback.compile`.
        measure: ``"arena"`` for a function, ``"live"`` for a problem, unless given.
        profile: for a problem, measured times that go before the cost model: what ``step.profile``
            returned, seconds by operation, or the path of a file with them; see
            :func:`cutback.files.with_times`.
        exact: search again at just this budget. The plan may be faster, but a larger
            budget without it, or with it, may then give a slower one.
        max_extra: for the budget ``"min"``, the share of time that it may cost; 0.4 unless given
            (and where constraints alone take more than that, whatever it is).
        offload: with a budget; may values move to the host and back, over the link of
            the device? ``"only"``: and nothing runs again. :func:`cutback.torch.compile`
            runs such plans, :func:`cutback.compile` does not.
        pinned: with ``offload`` or a policy that offloads: most bytes that the host may hold for
            it at one time; ``"8GiB"``.
        time_limit, progress: seconds after which the search ends with the best plan
            found (0: it ends when it is done), and a function that is told the seconds so far and,
            if it takes two arguments, the best plan so far (:class:`Best` or None), and may answer
            True to end it. Plans of a search ended early need not repeat.

    Raises:
        BudgetError: no plan meets the budget; the text states the smallest peak found.
        ValueError, TypeError: a mistake in the problem or the function.
    """
    if measure is None:
        measure = "arena" if callable(what) else "live"
    spec = budgets.with_options(budgets.parse(budget, measure, max_extra), offload, pinned, exact)
    number = budgets.parse_preset(preset)
    text = problem_of(what, args, policy=policy, argnums=argnums, device=device, profile=profile)
    if pinned is not None and not offload and '_OFFLOAD"' not in text:
        raise budgets.pinned_alone(pinned)
    try:
        answer = _native.plan_json(
            text,
            preset=number,
            budget=spec,
            device=devices.resolve(device),
            time_limit=_seconds(time_limit),
            progress=_teller(progress),
        )
    except _native.BudgetError as error:
        raise _native.BudgetError(budgets.answered(str(error), budget)) from None
    return Plan(text, answer)


def plans(
    problem: Problem,
    several: Sequence[int | float | str | None],
    *,
    measure: str = "live",
    preset: str | None = None,
    policy: str | None = None,
    device: devices.Device | None = None,
    time_limit: float = 0.0,
    progress: Progress | None = None,
) -> list[Plan | _native.BudgetError]:
    """A plan for each of ``several`` budgets, in one search: each is what :func:`plan` gives for
    that budget alone, bit for bit, in a fraction of the time.

    The other arguments are as for :func:`plan`; ``time_limit`` and ``progress`` are about all of
    it together. A budget that is out of reach has the error in its place.

    Raises:
        ValueError, TypeError: a mistake in the problem or a budget.
    """
    if callable(problem):
        raise TypeError("plans takes a problem: for a function, cutback.plan(f, *args).problem")
    if isinstance(several, (str, bytes)) or not isinstance(several, Iterable):
        raise TypeError(f"several is a list of budgets, not {several!r}")
    several = list(several)
    specs = [budgets.parse(budget, measure) for budget in several]
    number = budgets.parse_preset(preset)
    text = problem_of(problem, (), policy=policy, device=device)
    answers = _native.plans_json(
        text,
        specs,
        preset=number,
        device=devices.resolve(device),
        time_limit=_seconds(time_limit),
        progress=_teller(progress),
    )
    return [
        Plan(text, answer) if ok else _native.BudgetError(budgets.answered(answer, asked))
        for (ok, answer), asked in zip(answers, several, strict=True)
    ]


def min_cut(
    f: Callable[..., Any],
    *args: Any,
    preset: str = "conservative",
    policy: Policy | None = None,
    argnums: ArgNums = 0,
) -> Plan:
    """The plan that a minimum cut gives without a budget: least memory traffic, given what may be
    recomputed.

    ``preset``: ``"conservative"`` (recompute what fuses), ``"aggressive"`` (anything but
    compute-intensive and random operations), ``"shape-aware"`` (the same by amounts of work),
    ``"recompute_all"`` or ``"autograd"``.
    """
    return plan(f, *args, preset=preset, policy=policy, argnums=argnums)
