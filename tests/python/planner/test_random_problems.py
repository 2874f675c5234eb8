"""Checks each plan of random problems of every shape against the reference evaluator, and the
planner's promises from one budget to the next."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import cutback
from cutback import _native
from cutback.budgets import PRESETS

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

REFERENCE = Path(__file__).parents[2] / "reference"


def load_reference(name):
    spec = importlib.util.spec_from_file_location(name, REFERENCE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


costs = load_reference("costs")
evaluate = load_reference("evaluate")

SIZES = [0, 1, 63, 64, 65, 4096, 2**40]
KINDS = ["", "", "", "view", "fusible", "compute", "random_counter", "random_stateful"]
ODD_KINDS = ["mutates", "effect", "unknown", "collective"]
WISHES = ["must_save", "prefer_save", "must_recompute", "prefer_recompute"]


class Maker:
    """Draws a problem op by op, within the rules of docs/problem.md."""

    def __init__(self, draw, sizes=SIZES):
        self.draw, self.size = draw, st.sampled_from(sizes)
        self.ops, self.storages, self.storage_of = [], [], []
        self.tangent, self.written = set(), set()  # values; storages that are written into
        self.stale = set()  # values whose memory was written later
        self.mutated = set()  # storages

    def chance(self, percent):
        return self.draw(st.integers(0, 99)) < percent

    def storage(self, **more):
        self.storages.append({"bytes": self.draw(self.size), **more})
        return len(self.storages) - 1

    def add(self, reads, outs, flags, tangent=False):
        op = {"name": f"op_{len(self.ops)}", "in": reads, "flags": flags}
        op["out"] = [{"storage": s} for s in outs]
        if "placeholder" not in flags:
            op["bytes"] = self.draw(st.sampled_from([0, 1000, 10**9]))
            op["flops"] = self.draw(st.sampled_from([0.0, 1e6, 1e12]))
            if self.chance(15):
                op["workspace"] = self.draw(self.size)
            if self.chance(15):
                op["time_ps"] = self.draw(st.sampled_from([0, 1, 10**9]))
            if self.chance(20):
                op["group"] = self.draw(st.integers(0, 2))
        self.ops.append(op)
        first = len(self.storage_of)
        self.storage_of += outs
        if tangent:
            self.tangent.update(range(first, len(self.storage_of)))

    def placeholder(self, tangent=False):
        flags = ["placeholder", "backward"] if tangent else ["placeholder"]
        self.add([], [self.storage(flags=["static"])], flags, tangent)

    def op(self, backward):
        known = [
            v
            for v in range(len(self.storage_of))
            if v not in self.stale and (backward or v not in self.tangent)
        ]
        reads = self.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        kind = self.draw(st.sampled_from(ODD_KINDS if self.chance(10) else KINDS))
        tangent = bool(self.tangent & set(reads))
        flags = ([kind] if kind else []) + (["backward"] if tangent else [])
        if kind == "fusible" and self.chance(30):
            flags.append("reduction")
        if kind == "view":
            outs = [self.storage_of[reads[0]]]
        elif kind == "mutates":
            outs = [self.storage_of[reads[0]]]
            self.mutated.add(outs[0])
            self.stale.update(v for v, s in enumerate(self.storage_of) if s == outs[0])
        else:
            outs = [self.storage() for _ in range(self.draw(st.integers(1, 3)))]
        self.add(reads, outs, flags, tangent)

    def constrain(self):
        for op in self.ops:
            for out in op["out"]:
                if self.chance(8):
                    out["constraint"] = self.draw(st.sampled_from(WISHES))

    def updates(self, returned):
        """Gives some arguments an update; returns True if any has one. The gradient is any result
        that is not held by a flag, not returned and never written into."""
        makers = {}
        for op in self.ops:
            for out in op["out"]:
                makers.setdefault(out["storage"], []).append(op)
        kept = {self.storage_of[v] for v in returned} | self.mutated
        free = [
            s
            for s, storage in enumerate(self.storages)
            if "flags" not in storage and s in makers and s not in kept
        ]
        for s in range(len(self.storages)):
            if s not in makers or s in self.mutated or not self.chance(40) or not free:
                continue
            if "placeholder" in makers[s][0]["flags"]:
                gradient = self.draw(st.sampled_from(free))
                free.remove(gradient)
                self.storages[gradient]["updates"] = s
        return any("updates" in storage for storage in self.storages)

    def problem(self, constrained):
        for _ in range(self.draw(st.integers(1, 2))):
            self.placeholder()
        if self.chance(50):
            self.placeholder(tangent=True)
        for _ in range(self.draw(st.integers(1, 8))):
            self.op(backward=False)
        starts, n_forward = len(self.ops), len(self.storage_of)
        for _ in range(self.draw(st.integers(0, 8))):
            self.op(backward=True)
        live = [v for v in range(len(self.storage_of)) if v not in self.stale]
        early = [v for v in live if v < n_forward and v not in self.tangent]
        early = self.draw(st.lists(st.sampled_from(early), max_size=2)) if early else []
        for s, storage in enumerate(self.storages):
            makers = [i for i, op in enumerate(self.ops) if {"storage": s} in op["out"]]
            if "flags" not in storage and self.chance(5):
                flags = ["hold_end", "hold_forward"] if makers[0] < starts else ["hold_end"]
                storage["flags"] = [self.draw(st.sampled_from(flags))]
        updates = self.updates([*early, live[-1]])
        if constrained:
            self.constrain()
        return {
            "format": "cutback.problem",
            "version": 3 if updates else 1,
            "backward_starts": starts,
            "forward_outputs": early,
            "backward_outputs": [live[-1]],
            "storages": self.storages,
            "ops": self.ops,
        }


def checked(problem, **question):
    """Returns the plan, if there is one, compared with the reference evaluator and read back."""
    try:
        plan = cutback.plan(problem, **question)
    except cutback.BudgetError as error:
        assert error.reason in ("budget", "time", "constraints", "region", "pinned")
        return None
    evaluate.check_plan(problem, plan.document)
    assert plan.explain()
    return plan


def counted_time(problem, plan):
    """Returns picoseconds as searches count them: a rerun counts four times if saving is preferred,
    and a quarter if recomputing is."""
    ops, times = problem["ops"], {}
    wishes = {}  # by storage, including views
    for op in ops:
        for out in op["out"]:
            wishes.setdefault(out["storage"], []).append((out.get("constraint"), op))
    roots = {s: rows[0][1] for s, rows in wishes.items()}
    factor = {}
    for i, op in enumerate(ops[: problem["backward_starts"]]):
        own = {s for s, root in roots.items() if root is op}
        words = {word for s in own for word, _ in wishes[s]}
        once = evaluate.ONCE & set(op["flags"])
        if words & {"must_save", "must_recompute"}:
            continue
        if "prefer_save" in words:
            factor[i] = 4
        elif "prefer_recompute" in words and not once:
            factor[i] = 0.25
    total, seen = 0, set()
    device = plan.document["device"]
    for i in plan.document["steps"]:
        times.setdefault(i, costs.op_seconds(ops[i], device) * 1e12)
        total += times[i] * (factor.get(i, 1) if i in seen else 1)
        seen.add(i)
    return total


def check_all(problem, shares):
    for preset in PRESETS:
        plan = checked(problem, preset=preset)
    whole = plan.numbers["save_all_live_bytes"]
    for measure in ("live", "arena", "saved"):
        before = None
        for share in sorted(shares, reverse=True):
            plan = checked(problem, budget=max(1, int(share * whole)), measure=measure)
            if before and plan:  # a smaller budget: neither larger nor faster
                key = f"{measure}_bytes"
                assert plan.numbers[key] <= before.numbers[key]
                slack = 2 + len(plan.document["steps"])  # the core rounds each run
                if measure == "saved":
                    assert plan.numbers["time_ps"] >= before.numbers["time_ps"]
                else:
                    times = (counted_time(problem, p) for p in (plan, before))
                    assert next(times) + slack >= next(times)
            before = plan or before


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(st.data())
def test_random_problems(data):
    problem = Maker(data.draw).problem(constrained=False)
    check_all(problem, [1.0, data.draw(st.sampled_from([0.9, 0.8, 0.5, 0.2]))])


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
@hypothesis.given(st.data())
def test_random_problems_with_wishes(data):
    problem = Maker(data.draw).problem(constrained=True)
    try:
        check_all(problem, [1.0, 0.6])
    except ValueError as error:
        assert "contradict" in str(error)


@hypothesis.settings(max_examples=30, deadline=None, derandomize=True)
@hypothesis.given(st.data())
def test_huge_problems(data):
    """Up to 2^60 bytes a plan is exact; beyond that there is an error, never an overflow."""
    problem = Maker(data.draw, [1, 2**57, 2**58, 2**59, 2**60 - 1, 2**60]).problem(False)
    total = sum(s["bytes"] for s in problem["storages"])
    scratch = max(op.get("workspace", 0) for op in problem["ops"])
    if total + scratch > 2**60:
        with pytest.raises(ValueError, match=r"2\^60"):
            _native.Problem.read(json.dumps(problem)).to_json()
    else:
        check_all(problem, [1.0, 0.5])
