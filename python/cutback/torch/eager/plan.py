"""Budgets and plans of eager regions.

The first run of a region is recorded (watch.py) and planned. An eager region can follow only two
kinds of decisions in a plan: which forward values are held, and how long results of reruns are
held. The forward runs as written, and autograd orders the backward. So a plan is converted to the
schedule that the region will actually run, and the bytes of that schedule are compared with the
budget.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import json
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from itertools import count
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ... import BudgetError, budgets
from ...planner.plan import Plan
from .. import amounts
from ..graph import rerunnable
from .arguments import Arguments, Budget, Document, Json, Keywords, Op, Result, Shapes
from .described import Described
from .log import Region
from .ops import OpInfo
from .rerun import chain, own_memory, rerun, unpack
from .schedule import Schedule
from .transforms import transform_around, warn_of_no_plan
from .values import Node, Value
from .watch import Slot, Watching, probed, shapes_of

Out = TypeVar("Out")
Entry = TypeVar("Entry")
GivenPlan: TypeAlias = Plan | Mapping[str, Json] | str | None
Wish: TypeAlias = tuple[str, Budget]
"""A budget, or a plan as JSON, in comparable form."""

# entries per cache; a program that cycles through more regions never reuses a plan
_MOST_PLANS = 1024
_MOST_WAYS = 8  # planned variants per region (data-dependent branches)
_MOST_WATCHED = 8  # consecutive runs recorded to plan a new variant of a region
_STEPS = 8  # smaller targets tried to find the smallest plan that a region can follow
_MOST_SLOWER = 32  # slower plans tried if a region cannot follow the fastest within the budget
_SMALLEST = ("min", "smallest")


class Script:
    """A schedule as node numbers and slot numbers of a run."""

    def __init__(self, schedule: Schedule) -> None:
        seen = schedule.seen
        self.schedule = schedule
        self.funcs = seen.funcs
        self.holds: dict[int, set[int]] = {}
        for (number, index), value in seen.keys.items():
            if value in schedule.held:
                self.holds.setdefault(number, set()).add(index)
        self.keys = seen.keys
        self.once = {n for (n, _), v in seen.keys.items() if schedule.makes_once(v)}
        self.size = len(seen.funcs), len(seen.slots)
        self.times: list[int] = [-1] * len(seen.slots)
        for now, slots in seen.slots_of.items():
            for slot in slots:
                self.times[slot] = now


class Run:
    """One run of a region: its script, and the values held between reruns."""

    __slots__ = ("here", "kept", "last", "left", "lock", "now", "script", "ties")

    def __init__(self, script: Script | None) -> None:
        self.script = script
        self.lock = threading.RLock()
        self.kept: list[tuple[int, int, Value]] = []
        self.ties = count()
        self.now = -1  # the backward op that is reading its slots
        self.left = 0  # number of slots that it has not read yet
        self.here: set[int] = set()  # the values that it reads
        self.last: dict[Value, int] = {}  # held value -> time of its last read

    def at(self, now: int) -> None:
        """Prepares for the read of a slot by backward op `now`."""
        if self.script is None:
            return  # the region continued without a plan
        if now != self.now:
            self.now = now
            self.left = len(self.script.schedule.seen.slots_of[now])
            self.here = self.script.schedule.read_by(now)
            self.expire(now)
        self.left -= 1

    def done(self) -> None:
        """Counts a slot as read. After the op's last one, drops values that are not needed
        later."""
        if self.left == 0:
            self.expire(self.now + 1)

    def expire(self, now: int) -> None:
        """Drops held values whose last read was before `now`."""
        while self.kept and self.kept[0][0] < now:
            last, _, value = heapq.heappop(self.kept)
            if self.last.get(value) == last:  # not held again since
                value.tensor = None
                del self.last[value]

    def keep(self, node: Node, value: Value, tensor: Tensor, now: int) -> None:
        """Holds the result of a rerun if the plan needs it again. Without a script (if a backward
        runs inside the region, without being planned) nothing is held."""
        if self.script is None:
            return
        label = self.script.keys.get((node.number, value.index))
        last = -1 if label is None else self.script.schedule.until(label, now)
        if last > now or (last == now and label in self.here):
            value.version = tensor._version
            value.tensor = tensor
            self.last[value] = last
            heapq.heappush(self.kept, (last, next(self.ties), value))

    def last_reads(self, nodes: list[Node], now: int) -> dict[Value, Tensor]:
        """Takes over the held values whose last readers are these ops; they are dropped after
        their last read in the rerun."""
        taken: dict[Value, Tensor] = {}
        script = self.script
        if script is None:
            return taken
        for node in nodes:
            for value in node.inputs:
                if value.tensor is None or self.last.get(value) != now or value.node is None:
                    continue
                if script.keys.get((value.node.number, value.index)) not in self.here:
                    taken[value] = value.tensor
                    value.tensor = None
                    del self.last[value]
        return taken


class Following(Region):
    """Runs a region by a script. If the region deviates from it, switches to the script of another
    variant, or continues without one."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        super().__init__()
        self.scripts = scripts
        self.script = scripts[0]
        self.run = Run(self.script)
        self.same = True
        self.slots = 0

    def _decide(
        self, info: OpInfo, node: Node, args: Arguments, kwargs: Keywords, out: Result
    ) -> str | Collection[int]:
        held = super()._decide(info, node, args, kwargs, out)
        if held or not self.same:
            return held
        at, now = node.number - 1, (info.func, shapes_of(out))
        if not _has(self.script, at, now) and not self._turn_to(at, lambda s: _has(s, at, now)):
            return held
        if node.number in self.script.once:
            return "once"
        return self.script.holds.get(node.number, "")

    def _turn_to(self, at: int, fits: Callable[[Script], bool]) -> bool:
        """Switches to a script that fits and is equal so far. Continues without a script if there
        is none, or a backward has begun."""
        for other in self.scripts:
            if self.run.now < 0 and fits(other) and other.funcs[:at] == self.script.funcs[:at]:
                self.script = self.run.script = other
                return True
        self.same = False
        self.run.script = None  # existing slots also lose it and recompute on demand
        return False

    def pack(self, t: Tensor) -> Slot:
        """The pack hook: returns a numbered slot."""
        value = super().pack(t)
        self.slots += 1
        if self.same and self.slots > len(self.script.times):
            self._turn_to(self.number, lambda s: self.slots <= len(s.times))
        return Slot(value, self.slots - 1, self.run)

    def complete(self) -> bool:
        """True if the region did everything that a script expects."""
        size = self.number, self.slots
        if self.same and size != self.script.size:
            self._turn_to(self.number, lambda s: s.size == size)
        return self.same


def _has(script: Script, at: int, op: tuple[Op, Shapes]) -> bool:
    return at < len(script.funcs) and script.funcs[at] == op


def unpack_slot(slot: Slot) -> Tensor:
    """The unpack hook: returns the tensor of a slot, in a region with a plan."""
    answer = probed(slot)
    if answer is not None:
        return answer
    with slot.run.lock:  # a backward may run in several threads
        return _unpack_planned(slot.run, slot.value, slot.number)


def _unpack_planned(run: Run, value: Value, number: int) -> Tensor:
    script = run.script
    now = -1 if script is None else script.times[number]
    if now < 0:  # no plan, or a slot whose reader is unknown
        return unpack(value)
    run.at(now)
    tensor = own_memory(value)
    if tensor is not None:
        pass
    elif value.tensor is not None or value.seen is not None:
        tensor = unpack(value)
    else:
        nodes, wanted = chain(value)
        made = run.last_reads(nodes, now)
        tensor = rerun(value, nodes, wanted, lambda node, v, t: run.keep(node, v, t, now), made)
    run.done()
    return tensor


# Caches of regions, newest last. _candidates is keyed by what is known before a region runs,
# _planned by what the region did.
_lock = threading.Lock()
_candidates: OrderedDict[Hashable, tuple[Script, ...]] = OrderedDict()
_strayed: OrderedDict[Hashable, int] = OrderedDict()
"""Regions that deviated from their plans, and how many of their runs are still to be recorded."""
_planned: OrderedDict[Hashable, Planned] = OrderedDict()
_unplanned: OrderedDict[Hashable, None] = OrderedDict()
"""Regions that ran under a transform, with the transform; a set, so that each warns only once."""


def forget_plans() -> None:
    """Forgets all plans and warnings: each region is recorded and planned at its next run."""
    with _lock:
        for table in (_candidates, _strayed, _planned, _unplanned):
            table.clear()


def count_plans() -> int:
    """Returns the number of planned variants of regions."""
    return len(_planned)


def _remember(table: OrderedDict[Hashable, Entry], key: Hashable, script: Entry) -> None:
    with _lock:
        table[key] = script
        table.move_to_end(key)
        while len(table) > _MOST_PLANS:
            table.popitem(last=False)


_numbers = WeakIdKeyDictionary()
_next_number = count()


def _number(thing: Any) -> Hashable:
    """Returns a number that identifies an object. Unlike an ``id``, it is never used again."""
    try:
        number: int = _numbers.setdefault(thing, next(_next_number))
        return number
    except TypeError:  # not weakly referenceable
        return "id", id(thing)


def _identity(fn: Callable[..., Any]) -> Hashable:
    """Returns a key that identifies a function across steps. Layers of a model have different keys,
    and a lambda over a layer has the same key in each step."""
    if isinstance(fn, torch.nn.Module):
        return _number(fn), fn.training
    if isinstance(fn, functools.partial):
        parts = [fn.func, *fn.args, *fn.keywords.values()]
        return functools.partial, *(_identity(a) for a in parts if callable(a))
    owner = getattr(fn, "__self__", None)
    cells = getattr(fn, "__closure__", None) or ()
    inner = []
    for cell in cells:
        with contextlib.suppress(ValueError):  # an empty cell
            if isinstance(cell.cell_contents, torch.nn.Module):
                inner.append(_identity(cell.cell_contents))
    return getattr(fn, "__code__", None) or type(fn), _number(owner), *inner


def _key(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], wish: Wish
) -> Hashable:
    leaves = (
        (shapes_of(a), a.requires_grad) if isinstance(a, Tensor) else type(a)
        for a in tree_leaves((args, kwargs))
    )
    return _identity(fn), tuple(leaves), wish, rerunnable.version()


def search(seen: Described, budget: Budget) -> tuple[Plan, Schedule]:
    """Finds a plan whose schedule, as the region will run it, fits the budget.

    A share is relative to the bytes of saving everything. A position is between those and the
    smallest bytes that the region can follow at little extra time.

    Raises:
        cutback.BudgetError: if no plan fits the budget; its attributes give the smallest found.
    """
    wanted = budgets.parse(budget, "live")
    if wanted is None or not (budgets.is_share(wanted) or budgets.is_position(wanted)):
        return _search(seen, wanted, budget in _SMALLEST)
    plan, schedule = _everything(seen)
    whole = max(schedule.live_bytes(plan.core.device), plan.numbers["live_bytes"])
    share = wanted[2]
    if budgets.is_position(wanted):
        least, least_schedule = _smallest(seen)
        smallest = min(whole, least_schedule.live_bytes(least.core.device))
        limit = budgets.limit(share, smallest, whole)
        plan, schedule = _search(seen, budgets.in_bytes(wanted, limit), False)
        return _under(plan, limit, budgets.Position(share, smallest, whole)), schedule
    limit = int(share * whole)
    if limit == whole:
        return _under(plan, limit), schedule
    try:
        return _search(seen, budgets.in_bytes(wanted, limit), False)
    except BudgetError as error:
        raise error.replace(
            share=share, reference_bytes=whole, reference="the region takes when it saves all"
        ) from None


def _everything(seen: Described) -> tuple[Plan, Schedule]:
    """Returns the plan that saves everything."""
    plan = _plan_for(seen, None)
    return plan, Schedule(seen, plan.core)


def _search(
    seen: Described, wanted: budgets.NativeBudget | None, smallest: bool
) -> tuple[Plan, Schedule]:
    """Like :func:`search`, for a budget in bytes or for the smallest peak."""
    try:
        first = _plan_for(seen, wanted)
    except BudgetError as error:
        if error.reason != "budget" or error.budget_bytes is None:
            raise
        return _at_last(seen, error.budget_bytes)
    device = first.core.device
    schedule = Schedule(seen, first.core)
    limit = first.core.budget_bytes
    if limit is None or schedule.live_bytes(device) <= limit:
        return first, schedule
    if smallest:
        return _least(seen, first, schedule)
    plan = first
    for _ in range(_MOST_SLOWER):  # the next slower plan each time, so larger budgets are faster
        try:
            plan = _plan_for(seen, budgets.of_bytes(plan.numbers["live_bytes"] - 1, "live"))
        except BudgetError:
            break
        schedule = Schedule(seen, plan.core)
        if schedule.live_bytes(device) <= limit:
            return _under(plan, limit), schedule
    return _at_last(seen, limit)


def _plan_for(seen: Described, budget: budgets.NativeBudget | None) -> Plan:
    return Plan.of(seen.checked.plan(budget=budget))


def _at_last(seen: Described, limit: int) -> tuple[Plan, Schedule]:
    """Returns the first of these plans that fits: the plan for ``"min"``, the smallest regardless
    of time, and the plan that saves everything. So the smallest bytes that an error reports are
    always a valid budget.

    Raises:
        cutback.BudgetError: if none fits; its ``smallest_bytes`` can be followed by the region.
    """
    found = []
    for find in (_smallest, functools.partial(_smallest, max_extra=100.0), _everything):
        plan, schedule = find(seen)
        found.append(schedule.live_bytes(plan.core.device))
        if found[-1] <= limit:
            return _under(plan, limit), schedule
    raise BudgetError(
        reason="budget",
        measure="live",
        budget_bytes=limit,
        smallest_bytes=min(found),
        follows_autograd=True,
    )


def _smallest(seen: Described, max_extra: float | None = None) -> tuple[Plan, Schedule]:
    """Returns the smallest plan that the region can follow."""
    plan = _plan_for(seen, budgets.parse("min", "live", max_extra))
    schedule = Schedule(seen, plan.core)
    if schedule.live_bytes(plan.core.device) <= plan.numbers["live_bytes"]:
        return plan, schedule
    return _least(seen, plan, schedule)


def _least(seen: Described, plan: Plan, schedule: Schedule) -> tuple[Plan, Schedule]:
    """Returns the smallest plan that the region can follow, given a smallest plan that it cannot.
    The result's budget is the number of bytes that the region will use."""
    device = plan.core.device
    best = schedule.live_bytes(device), plan, schedule
    least, target = plan.numbers["live_bytes"], best[0]
    for _ in range(_STEPS):
        target = int(target * 0.93)
        if target <= least:
            break
        try:
            other = _plan_for(seen, budgets.of_bytes(target, "live"))
        except BudgetError:
            break  # a search for a budget may miss plans that the search for the smallest finds
        schedule = Schedule(seen, other.core)
        best = min(best, (schedule.live_bytes(device), other, schedule), key=lambda row: row[0])
    live, plan, schedule = best
    return _under(plan, live), schedule


def _under(plan: Plan, limit: int, position: budgets.Position | None = None) -> Plan:
    """Replaces the target that a plan was found for by the requested, larger budget."""
    asked = plan.core.asked(budgets.MEASURES.index("live"), limit)
    return Plan.of(asked, position=position)


class Planned(NamedTuple):
    """The scripts of a region."""

    script: Script
    first: Script | None
    """The script for the backward of the first run."""
    over: str
    """A warning if the first run may exceed the budget, else ""."""


def _with_first(
    script: Script, limit: int | None, position: budgets.Position | None, says: bool
) -> Planned:
    """Adds the script for the backward of the first run. Its forward held nothing that can be
    recomputed, so the script follows a plan that saves no such values: one within the limit if
    possible, and otherwise the smallest."""
    if limit is None:
        return Planned(script, None, "")
    seen = script.schedule.seen
    again, gone = seen.all_again()
    checked = again.check()
    try:
        plan = checked.plan(budget=budgets.of_bytes(limit, "live"))
    except BudgetError:
        plan = checked.plan(budget=budgets.parse("min", "live"))
    schedule = Schedule(seen, plan, gone)
    live = schedule.live_bytes(plan.device)
    over = (
        "the first run of a region under a budget is recorded, and recomputes everything it can: "
        f"it may take {budgets.text(live)} ({live} bytes), over the budget of "
        f"{amounts.name_of(limit, position)} ({limit} bytes). The plan holds from the next run on"
    )
    return Planned(script, Script(schedule), over if live > limit and says else "")


def watched(
    fn: Callable[..., Out], args: tuple[Any, ...], kwargs: dict[str, Any], run: Run
) -> tuple[Out, Described]:
    """Runs and records a region; returns its result and its description."""
    region = Watching(run)
    with torch.autograd.graph.saved_tensors_hooks(region.pack, unpack_slot), region:
        out = fn(*args, **kwargs)
        region.outputs([t for t in tree_leaves(out) if isinstance(t, Tensor)])
    return out, region.problem()


def _given(plan: GivenPlan) -> Document:
    text = plan.to_json() if isinstance(plan, Plan) else plan
    document = text
    if isinstance(text, str):
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ValueError(f"plan={text!r:.60} is not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != "cutback.plan":
        raise TypeError(f"plan={plan!r:.60} is neither a cutback.Plan nor its JSON")
    return document


def _planned_for(seen: Described, budget: Budget, plan: GivenPlan) -> Planned:
    if plan is None:
        found, schedule = search(seen, budget)
        limit, says = found.core.budget_bytes, budget not in _SMALLEST
        return _with_first(Script(schedule), limit, found.position, says)
    document = _given(plan)
    ours = seen.checked.fingerprint
    if document.get("fingerprint") != ours:
        raise ValueError(
            f"plan: it was made for region {document.get('fingerprint')}, but this is {ours}; "
            "make a new plan with cutback.torch.checkpoint_plan on arguments like these. (If the "
            "first run fills caches or makes parameters, run the function once before.)"
        )
    try:  # checks that its steps are a schedule of this region
        given = seen.checked.read_plan(json.dumps(document))
    except ValueError as error:
        raise ValueError(f"plan: {error}") from None
    return _with_first(Script(Schedule(seen, given)), given.budget_bytes, None, says=True)


def check_wish(budget: Budget, plan: GivenPlan) -> Wish:
    """Checks a budget or plan before anything runs, and returns it in comparable form."""
    if plan is None:
        budgets.parse(budget, "live")
        return "budget", budget
    return "plan", json.dumps(_given(plan), sort_keys=True)


def is_unplanned(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    budget: Budget,
    plan: GivenPlan,
) -> bool:
    """True if a transform or forward AD prevents planning. Warns once per region."""
    around = transform_around()
    if around is None:
        return False
    key = around, _key(fn, args, kwargs, check_wish(budget, plan))
    if key not in _unplanned:
        _remember(_unplanned, key, None)
        warn_of_no_plan(around, stacklevel=4)
    return True


def run_planned(
    fn: Callable[..., Out],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    budget: Budget,
    plan: GivenPlan,
) -> Out:
    """Runs `checkpoint` with a budget or a plan."""
    wish = check_wish(budget, plan)
    key = _key(fn, args, kwargs, wish)
    scripts = _candidates.get(key, ())
    if scripts and key not in _strayed:
        region = Following(scripts)
        with torch.autograd.graph.saved_tensors_hooks(region.pack, unpack_slot), region:
            out = fn(*args, **kwargs)
        if not region.complete():
            _remember(_strayed, key, _MOST_WATCHED)
            warnings.warn(
                "a region deviated from its planned runs and continued without a plan: this run "
                "may exceed the budget. The next runs are recorded and planned",
                stacklevel=4,
            )
        return out
    run = Run(None)
    out, seen = watched(fn, args, kwargs, run)
    if not seen.slots:
        return out
    known = wish, seen.identity()
    planned = _planned.get(known)
    is_new = planned is None
    if planned is None:
        planned = _planned_for(seen, budget, plan)
        _remember(_planned, known, planned)
    others = [s for s in scripts if s is not planned.script]
    _remember(_candidates, key, (planned.script, *others[: _MOST_WAYS - 1]))
    _watch_on(key, found=len(others) == len(scripts))
    run.script = planned.first
    if is_new and planned.over:
        warnings.warn(planned.over, stacklevel=4)
    return out


def _watch_on(key: Hashable, found: bool) -> None:
    """Counts the recorded runs of a region that deviated, until its new variant is planned."""
    with _lock:
        left = _strayed.pop(key, 0) - 1
        if left > 0 and not found:
            _strayed[key] = left


def plan_region(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], budget: Budget
) -> Plan:
    """Implements `checkpoint_plan`."""
    budgets.parse(budget, "live")  # reports mistakes before anything runs
    # as at the start of a step, in which autocast casts weights again
    torch.clear_autocast_cache()
    seen = watched(fn, args, kwargs, Run(None))[1]
    torch.clear_autocast_cache()
    if seen.keeps():
        seen = watched(fn, args, kwargs, Run(None))[1]
        torch.clear_autocast_cache()
    return search(seen, budget)[0]
