"""Checks times on a device that fuses: by hand, and on random problems against the reference
evaluator."""

from __future__ import annotations

import random

import pytest

import cutback

ROW = {  # 1 ns per byte, 1 us per launch, arithmetic is free
    "name": "slow memory",
    "flops_per_s": {"f32": 1e30},
    "bytes_per_s": 1e9,
    "launch_s": 1e-6,
}
FUSED = {**ROW, "fused": True}


def problem_of(ops, sizes, outputs, starts):
    return {
        "format": "cutback.problem",
        "version": 1,
        "backward_starts": starts,
        "forward_outputs": [],
        "backward_outputs": outputs,
        "storages": [{"bytes": size} for size in sizes],
        "ops": ops,
    }


def op(name, reads, storages, flags=(), moved=0, **more):
    out = [{"storage": s} for s in storages]
    return {"name": name, "in": reads, "out": out, "flags": list(flags), "bytes": moved, **more}


def chain(**more):
    """Returns x -> exp -> exp -> sum -> exp -> matmul; 1000 bytes each, except the sum's output."""
    problem = problem_of(
        [
            op("x", [], [0], ["placeholder"]),
            op("a", [0], [1], ["fusible"], 2000, **more),
            op("b", [1], [2], ["fusible"], 2000, **more),
            op("s", [2], [3], ["fusible", "reduction"], 1004, **more),
            op("c", [3], [4], ["fusible"], 1004),
            op("m", [4], [5], ["compute"], 2000),
            op("g", [5], [6], ["backward"], 2000),
        ],
        [1000, 1000, 1000, 4, 1000, 1000, 1000],
        [6],
        6,
    )
    problem["storages"][0]["flags"] = ["static"]
    return problem


def nanoseconds(problem, device, **question):
    return cutback.plan(problem, device=device, **question).numbers["once_ps"] / 1000


def test_a_chain_by_hand():
    assert nanoseconds(chain(), ROW) == 2000 + 2000 + 1004 + 1004 + 2000 + 2000 + 6 * 1000
    # a reads x, s writes 4 bytes; c reads them and writes; one launch for a, b and s
    assert nanoseconds(chain(), FUSED) == 1000 + 0 + 4 + 1004 + 2000 + 2000 + 4 * 1000
    assert nanoseconds(chain(group=7), FUSED) == nanoseconds(chain(), FUSED)
    kept = chain()
    kept["forward_outputs"] = [1]  # a is returned, so it is written and not fused
    assert nanoseconds(kept, FUSED) == 2000 + 1000 + 4 + 1004 + 2000 + 2000 + 5 * 1000
    read = chain()
    read["ops"][6]["in"] = [2, 5]  # the backward reads b
    assert nanoseconds(read, FUSED) == 1000 + 1000 + 1004 + 1004 + 2000 + 2000 + 5 * 1000
    measured = chain()
    measured["ops"][1]["time_ps"] = 5000
    assert nanoseconds(measured, FUSED) == nanoseconds(chain(), FUSED) - 1000 + 5


def test_what_is_not_written_costs_twice():
    """Inside a group, saving b writes and reads it: 2 x 1000 bytes, against 1500 for x."""
    problem = chain()
    problem["ops"][6]["in"] = [2, 5]
    problem["ops"][1]["flags"] = ["compute"]  # a is no longer fusible: 1000 or 1500 bytes
    for size, saved in ((1500, "a"), (2500, "b")):
        problem["storages"][1]["bytes"] = size
        problem["ops"][1]["group"] = 1
        problem["ops"][2]["group"] = problem["ops"][3]["group"] = 2
        plan = cutback.plan(problem, preset="conservative", device=FUSED)
        assert saved in [entry.name for entry in plan.saved]
        assert (saved == "a") == ("b" in [entry.name for entry in plan.recomputed])


def random_problem(seed):
    rng = random.Random(seed)
    ops, sizes, storage_of = [op("x", [], [0], ["placeholder"])], [64], [0]
    starts = rng.randint(3, 8)
    for i in range(1, starts + rng.randint(2, 8)):
        recent = range(max(0, len(storage_of) - 4), len(storage_of))
        reads = rng.sample(recent, min(len(recent), rng.randint(1, 2)))
        kind = rng.choice([["fusible"]] * 5 + [["fusible", "reduction"], ["compute"], ["view"]])
        outs = [storage_of[reads[0]]]
        if kind != ["view"]:
            outs = list(range(len(sizes), len(sizes) + rng.choice([1, 1, 1, 2])))
            sizes += [rng.choice([0, 4, 100, 1000]) for _ in outs]
        inside = {storage_of[v] for v in reads}
        moved = 0 if kind == ["view"] else sum(sizes[s] for s in inside | set(outs))
        more = {"group": rng.randint(0, 2)} if rng.random() < 0.2 else {}
        ops.append(op(f"op_{i}", reads, outs, kind, moved, **more))
        storage_of += outs
    problem = problem_of(ops, sizes, [len(storage_of) - 1], starts)
    problem["storages"][0]["flags"] = ["static"]
    return problem


def test_random_problems():
    """Every plan of a test is compared with the reference evaluator, which implements the
    definition."""
    fewer = 0
    for seed in range(300):
        problem = random_problem(seed)
        fused, plain = (cutback.plan(problem, device=row).numbers for row in (FUSED, ROW))
        assert fused["time_ps"] <= plain["time_ps"]
        fewer += fused["time_ps"] < plain["time_ps"]
    assert fewer > 150


def test_names():
    for name in ("a100", "cpu"):
        plan = cutback.plan(chain(), device=f"{name}+fused")
        assert plan.document["device"] == f"{name}+fused"
        assert plan.explain()
        assert plan.numbers["once_ps"] < cutback.plan(chain(), device=name).numbers["once_ps"]
    for name in ("abacus+fused", "+fused", "a100+fuse", "a100+fused+fused"):
        with pytest.raises(ValueError, match="no device is called"):
            cutback.plan(chain(), device=name)
    with pytest.raises(ValueError, match="other numbers"):
        cutback.plan(chain(), device={**ROW, "name": "a100+fused"})
    with pytest.raises(ValueError, match="fused"):
        cutback.plan(chain(), device={**ROW, "fused": 1})
