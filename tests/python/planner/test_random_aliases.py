"""Plans random problems with many views of several inputs, ops that write into memory, and links to
a host. Plans never read freed memory or exceed their budget, and budgets are monotone."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest

import cutback
from cutback.budgets import PRESETS

GRAPHS = Path(__file__).parents[2] / "data/graphs"
SIZES = [64, 4096, 2**20, 3 * 2**20]
KINDS = ["view"] * 3 + ["mutates"] * 2 + ["compute", "fusible", ""]


class Dice:
    """Builds a problem op by op; memory that was written into is not read again."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.ops, self.storages, self.storage_of = [], [], []
        self.tangent, self.stale = set(), set()
        self.kinds = KINDS if seed % 3 else [k for k in KINDS if k != "mutates"]

    def storage(self, **more):
        self.storages.append({"bytes": self.r.choice(SIZES), **more})
        return len(self.storages) - 1

    def add(self, reads, outs, flags, **more):
        first = len(self.storage_of)
        if self.tangent & set(reads) or more.pop("tangent", False):
            flags = [*flags, "backward"]
            self.tangent.update(range(first, first + len(outs)))
        op = {"name": f"op_{len(self.ops)}", "in": reads, "flags": flags, **more}
        self.ops.append(op | {"out": [{"storage": s} for s in outs]})
        self.storage_of += outs

    def op(self, backward):
        known = [
            v
            for v in range(len(self.storage_of))
            if v not in self.stale and (backward or v not in self.tangent)
        ]
        recent = known[-5:] if self.r.random() < 0.7 else known
        reads = self.r.sample(recent, min(len(recent), self.r.randint(1, 3)))
        kind = self.r.choice(self.kinds)
        outs = [self.storage_of[reads[0]]] if kind in ("view", "mutates") else [self.storage()]
        if kind == "mutates":
            self.stale.update(v for v, s in enumerate(self.storage_of) if s == outs[0])
        if kind != "view" and self.r.random() < 0.3:
            outs.append(self.storage())
        time = self.r.choice([0, 10**6, 10**9])
        self.add(reads, outs, [kind] if kind else [], time_ps=time)

    def problem(self, wishes):
        for _ in range(2):
            self.add([], [self.storage(flags=["static"])], ["placeholder"])
        self.add([], [self.storage(flags=["static"])], ["placeholder"], tangent=True)
        for _ in range(self.r.randint(3, 12)):
            self.op(backward=False)
        starts, forward = len(self.ops), len(self.storage_of)
        for _ in range(self.r.randint(1, 12)):
            self.op(backward=True)
        live = [v for v in range(len(self.storage_of)) if v not in self.stale]
        early = [v for v in live if v < forward and v not in self.tangent]
        words = ["must_save", "prefer_save", "must_recompute", "prefer_recompute", "prefer_offload"]
        for op in self.ops[3:starts]:
            if wishes and self.r.random() < 0.1:
                op["out"][0]["constraint"] = self.r.choice(words)
        return {
            "format": "cutback.problem",
            "version": 1,
            "backward_starts": starts,
            "forward_outputs": early[-1:],
            "backward_outputs": [live[-1]],
            "storages": self.storages,
            "ops": self.ops,
            "link_bytes_per_s": self.r.choice([1.0, 1e3, 1e9, 1e10, 1e12]),
        }


def questions(saved):
    yield from ({"preset": preset} for preset in PRESETS)
    for measure in ("live", "arena", "total", *["saved"] * saved):
        for budget in ("0.9x", "0.6x", "0.3x", "min"):
            yield {"budget": budget, "measure": measure}
    for offload in (True, "only"):
        for budget in ("0.7x", "min"):
            yield {"budget": budget, "measure": "live", "offload": offload}


def ask_everything(seed):
    """Checks each plan with both evaluators: the core's checks its schedule, ours also its
    budget."""
    wishes = seed % 2 == 1
    problem = Dice(seed).problem(wishes)
    offloads = any(
        o.get("constraint") == "prefer_offload" for op in problem["ops"] for o in op["out"]
    )
    answers = 0
    for question in questions(saved=not offloads):
        try:
            cutback.plan(problem, device="a100", **question)
        except cutback.BudgetError:
            continue
        except ValueError as error:
            assert wishes and "contradict" in str(error), f"{seed} {question}: {error}"
            return 0
        answers += 1
    return answers


# Seeds of past defects: budgets exceeded, reads after a write, copies cut short, a crash.
KNOWN = [36, 42, 45, 140, 162, 421, 422, 493, 544, 559, 826, 1313]


def test_random_aliases():
    assert sum(ask_everything(seed) for seed in [*KNOWN, *range(3)]) > 100


@pytest.mark.very_slow
def test_many_random_aliases():
    assert sum(ask_everything(seed) for seed in range(3000)) > 30_000


def promises(problem, measure, offload, budgets):
    """Checks each budget against the next smaller one: the peak is no larger, the time no less, and
    a budget below one without a plan has no plan either."""
    before, missed = None, None
    for budget in budgets:
        try:
            plan = cutback.plan(
                problem, budget=budget, measure=measure, offload=offload, device="a100"
            )
        except cutback.BudgetError as error:
            missed = error
            continue
        assert missed is None, f"{budget} has a plan: {missed}"
        now = plan.numbers[f"{measure}_bytes"], plan.numbers["time_ps"]
        assert before is None or (now[0] <= before[0] and now[1] >= before[1]), budget
        before = now
    return missed


@pytest.mark.skipif(not GRAPHS.exists(), reason="no traced graphs")
def test_smaller_budgets_with_offload():
    text = gzip.decompress((GRAPHS / "unet.json.gz").read_bytes()).decode()
    assert promises(text, "live", True, [0.95, 0.89]) is None


def chain(seed):
    """Returns a forward with skips, and a backward that reads it last to first, with its own link
    rate."""
    r = random.Random(seed)
    ops, storages = [], []

    def add(reads, flag, **more):
        op = {"name": f"o{len(ops)}", "in": list(dict.fromkeys(reads)), "flags": [flag], **more}
        ops.append(op | {"out": [{"storage": len(storages)}]})
        storages.append({"bytes": 4096 * r.randint(1, 300)})
        return len(storages) - 1

    values = [add([], "placeholder")]
    storages[0]["flags"] = ["static"]
    for _ in range(r.randint(8, 22)):
        skip = [r.choice(values)] if r.random() < 0.4 else []
        time = r.randint(0, 2000) * 10**5
        values.append(add([values[-1], *skip], "compute", time_ps=time))
    starts, gradient = len(ops), add(values[-1:], "backward", time_ps=10**8)
    for v in values[:0:-1]:
        skip = [r.choice(values)] if r.random() < 0.3 else []
        time = r.randint(0, 2000) * 10**5
        gradient = add([gradient, v, *skip], "backward", time_ps=time)
    return {
        "format": "cutback.problem",
        "version": 1,
        "backward_starts": starts,
        "forward_outputs": values[-1:],
        "backward_outputs": [gradient],
        "storages": storages,
        "ops": ops,
        "link_bytes_per_s": r.choice([1e3, 2e9, 1e10, 5e10]),
    }


def check_promises(seed, shares):
    problem = chain(seed)
    for measure in ("live", "arena", "total"):
        for offload in (True, "only"):
            missed = promises(problem, measure, offload, [*shares, 1000])
            assert missed.reason == "budget", missed
            needs = missed.smallest_bytes
            assert promises(problem, measure, offload, [needs]) is None, seed
            for less in ("1B", needs - 1):  # the smallest plan is named, whatever was requested
                again = promises(problem, measure, offload, [less])
                assert again.smallest_bytes == needs, (seed, less)


@pytest.mark.very_slow
def test_promises_with_offload():
    check_promises(3, ["1.0x", "0.6x"])


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", range(12))
def test_promises_with_offload_one_by_one(seed):
    check_promises(seed, [f"{1 - i / 60!r}x" for i in range(50)])


def smallest_told(problem, **options):
    """Returns the smallest plan named by the refusal of a one-byte budget."""
    with pytest.raises(cutback.BudgetError) as error:
        cutback.plan(problem, budget="1B", **options)
    return error.value.smallest_bytes if error.value.reason == "budget" else None


def check_smallest(problem, offload, n_budget):
    """Checks that a budget in bytes never gives a plan that is smaller than that of ``min`` and
    within its time limit."""
    options = {"measure": "live", "offload": offload, "device": "a100"}
    least = smallest_told(problem, **options)
    if least is None:
        return
    plan = cutback.plan(problem, budget="min", **options).numbers
    allowed, size = 1.4 * plan["once_ps"], plan["live_bytes"]
    assert plan["time_ps"] <= allowed
    step = max(1, (size - least) // n_budget)
    for budget in {*range(least, size, step), size - 1}:
        try:
            other = cutback.plan(problem, budget=budget, **options).numbers
        except cutback.BudgetError:
            continue
        assert other["time_ps"] > allowed, (offload, size, budget)


@pytest.mark.parametrize("seed", [20020, 20029, 20032, 20066, 20093])
@pytest.mark.parametrize("offload", [True, "only"])
def test_no_budget_finds_less_than_min(seed, offload):
    check_smallest(Dice(seed).problem(wishes=seed % 2 == 1), offload, 6)


def test_no_budget_finds_less_than_min_where_the_link_is_fast():
    for seed in (1, 2, 3, 5):
        check_smallest(chain(seed), "only", 6)


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(10))
def test_no_budget_finds_less_than_min_in_many(part):
    for seed in range(20000 + 30 * part, 20030 + 30 * part):
        for offload in (True, "only"):
            check_smallest(Dice(seed).problem(wishes=False), offload, 12)


MUSTS = ["must_save", "must_recompute", "must_offload", "prefer_recompute", "must_recompute"]


def with_demands(seed, limited):
    """Adds constraints to a fifth of the values. If ``limited``, all ops are in a region with a
    limit."""
    problem, r = Dice(seed).problem(wishes=False), random.Random(seed)
    for op in problem["ops"][3 : problem["backward_starts"]]:
        if r.random() < 0.2:
            op["out"][0]["constraint"] = r.choice(MUSTS)
        if limited:
            op["region"] = 0
    if limited:
        limit = r.choice([0, 64, 4096, 2**20, 2**22, 2**24])
        problem["regions"] = [{"name": "all", "saved_limit": limit}]
    return problem


def check_refusals(seed, limited, **options):
    """Checks that an error which no budget can cure does not blame the budget, and that a suggested
    budget works. Returns the number of refusals."""
    problem = with_demands(seed, limited)

    def ask(budget, **more):
        try:
            cutback.plan(problem, budget=budget, device="a100", **{**options, **more})
        except cutback.BudgetError as error:
            return error
        return None

    any_price = ask(2**50)
    if any_price and any_price.reason == "pinned" and "pinned" in options:
        needed = any_price.smallest_bytes
        assert limited or ask(2**50, pinned=needed) is None
        assert needed > any_price.pinned_bytes == options["pinned"]
    else:  # region limits alone rule out all plans
        assert any_price is None or (limited and any_price.reason in ("region", "constraints"))
    fast = ask("min", max_extra=0.4)
    assert fast is None or fast.reason != "budget"
    if fast and not any_price:
        assert (fast.reason, fast.max_extra) == ("time", 0.4)
        again = ask("min", max_extra=100)
        assert again is None or (again.reason, again.max_extra) == ("time", 100)
    return (any_price is not None) + (fast is not None)


@pytest.mark.parametrize(
    "seeds",
    [
        [30016, 30031, 30051, 30063, 30134, 30204, 30225],
        pytest.param(range(30200, 30500), marks=pytest.mark.very_slow),
    ],
)
def test_refusals_that_no_budget_helps(seeds):
    refused = 0
    for seed in seeds:
        for limited in (False, True):
            for options in (
                {"measure": "live"},
                {"measure": "live", "offload": True},
                {"measure": "live", "offload": "only"},
                {"measure": "total", "offload": "only", "pinned": 64},
            ):
                try:
                    refused += check_refusals(seed, limited, **options)
                except ValueError as error:
                    assert re.search("contradict|cannot be offloaded", str(error)), error
    assert refused >= len(seeds)
