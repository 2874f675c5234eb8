"""Compares the floor in a budget error with every possible schedule."""

from __future__ import annotations

import heapq
import random
from pathlib import Path

import pytest
from over import list_over

import cutback

GRAPHS = Path(__file__).parents[2] / "data" / "graphs"


SIZES = [0, 1, 2, 3, 5, 8, 13, 21, 34]


def small_problem(seed, sizes=SIZES):
    """Returns a forward of a few ops of all kinds, a backward that reads it, and held and returned
    values."""
    rng = random.Random(seed)
    ops = [{"name": "x", "flags": ["placeholder"], "in": [], "out": [{"storage": 0}]}]
    storages, values = [{"bytes": 64, "flags": ["static"]}], [0]  # storage of each value

    def add(reads, flags):
        outs = []
        for _ in range(1 if "view" in flags else rng.choice([1, 1, 1, 2])):
            if "view" in flags:
                outs.append(values[reads[0]])
            else:
                storages.append({"bytes": rng.choice(sizes)})
                outs.append(len(storages) - 1)
        ops.append(
            {
                "name": f"op_{len(ops)}",
                "in": reads,
                "out": [{"storage": s} for s in outs],
                "flags": flags,
                "time_ps": 10**6,
                "workspace": rng.choice([0, 0, 0, 7]),
            }
        )
        values.extend(outs)
        return len(values) - len(outs)

    forward = []
    for i in range(rng.randint(3, 5)):
        near = forward[-1:] or [0]
        far = [rng.randrange(len(values))] if rng.random() < 0.4 else []
        kind = rng.choice([[], [], [], [], ["view"], ["random_stateful"]]) if i else []
        forward.append(add(sorted(set(near + far)), kind))
    starts, outputs = len(ops), [v for v in range(1, len(values)) if rng.random() < 0.15]
    for s in storages:
        if rng.random() < 0.05 and "flags" not in s:
            s["flags"] = [rng.choice(["hold_forward", "hold_end"])]
    gradient = forward[-1]
    for value in reversed(forward):
        gradient = add(sorted({gradient, value, rng.choice(forward)}), ["backward"])
    return {
        "format": "cutback.problem",
        "version": 1,
        "backward_starts": starts,
        "forward_outputs": outputs,
        "backward_outputs": [gradient],
        "storages": storages,
        "ops": ops,
    }


def least_peak(problem):
    """Returns the smallest peak of all schedules, by a shortest path over sets of live values. Ops
    that may not rerun keep the given order; the others run any number of times after their turn, or
    never. ``"reruns": "all"`` adds ops of the backward that make more than gradients."""
    ops, size = problem["ops"], [s["bytes"] for s in problem["storages"]]
    kinds = [set(s.get("flags", ())) for s in problem["storages"]]
    storage_of = [out["storage"] for op in ops for out in op["out"]]
    root = {out["storage"]: i for i, op in reversed([*enumerate(ops)]) for out in op["out"]}
    flags = [set(op.get("flags", ())) for op in ops]
    reads = [{storage_of[v] for v in op["in"]} - {0} for op in ops]
    makes = [{s for s, r in root.items() if r == i} - {0} for i in range(len(ops))]
    ends = {storage_of[v] for v in problem["backward_outputs"]}
    ends |= {s for s in root if "hold_end" in kinds[s]}
    starts = problem["backward_starts"]
    crossing = {storage_of[v] for v in problem["forward_outputs"]} - {0}
    crossing |= {s for s in root if kinds[s] & {"hold_forward", "hold_end"} and root[s] < starts}
    late = len(ops) if problem.get("reruns") == "all" else starts
    again = [
        (i < starts or (starts < i < late and not makes[i] <= ends))
        and not flags[i] & {"placeholder", "view", "random_stateful"}
        for i in range(len(ops))
    ]
    first = (1, 0, frozenset())  # next op; 0 forward, 1 just crossed, 2 backward; live values
    best, queue, count = {first: 0}, [(0, 0, first)], 0
    over = [[storage_of[op["in"][k]] for k in op.get("over", ())] for op in ops]

    def step(op, peak, at, phase, alive, gone=None):
        """Returns bytes and state after an op that reuses the memory of `gone`, or None."""
        if not reads[op] <= alive:
            return None
        during = alive | makes[op]
        bytes_ = sum(size[s] for s in during - {gone}) + ops[op].get("workspace", 0)
        return max(peak, bytes_), (at, min(2, phase * 2), during - {gone})

    while queue:
        peak, _, state = heapq.heappop(queue)
        if peak > best[state]:
            continue
        at, phase, alive = state
        if at == len(ops) and ends <= alive:
            return peak
        moves = []
        if at == starts and phase == 0:
            if crossing <= alive:
                moves.append((peak, (at, 1, alive)))
        elif at < len(ops):
            if again[at] or "view" in flags[at]:  # may run later, or not at all
                moves.append((peak, (at + 1, phase, alive)))
            if "view" not in flags[at]:
                moves += [step(at, peak, at + 1, phase, alive, s) for s in [None, *over[at]]]
        reruns = ((op, s) for op in range(1, at) if again[op] for s in [None, *over[op]])
        moves += [step(op, peak, at, phase, alive, s) for op, s in reruns]
        for s in alive:
            if not (phase == 1 and s in crossing):
                moves.append((peak, (at, phase, alive - {s})))
        for move in moves:
            if move and move[0] < best.get(move[1], 1 << 62):
                best[move[1]] = move[0]
                count += 1
                heapq.heappush(queue, (move[0], count, move[1]))
    raise AssertionError("no schedule at all")


def floor_and_smallest(problem):
    """Returns the figures in the error for an impossible budget, or None if there is no floor."""
    with pytest.raises(cutback.BudgetError) as error:
        cutback.plan(problem, budget="1B", device="cpu")
    return error.value.floor_bytes, error.value.smallest_bytes


def test_floor_against_all_schedules():
    tight = 0
    for seed in range(60):
        problem = small_problem(seed)
        least = least_peak(problem)
        if least <= 1:
            continue
        floor, smallest = floor_and_smallest(problem)
        assert floor is not None and floor <= least <= smallest, (seed, floor, least, smallest)
        tight += floor == least
    assert tight >= 15


def with_gradients(problem, rng):
    """Returns the problem with several gradients, whose ops of the backward may be late."""
    storages = [dict(storage) for storage in problem["storages"]]
    for op in problem["ops"][problem["backward_starts"] + 1 :]:
        if rng.random() < 0.5:
            continue
        storages[op["out"][0]["storage"]]["flags"] = ["hold_end"]
    return {**problem, "storages": storages, "version": 3, "reruns": "all"}


def test_floor_of_late_ops_against_all_schedules():
    tight = held = 0
    for seed in range(12):
        problem = with_gradients(small_problem(seed, [5, 7]), random.Random(seed))
        least = least_peak(problem)
        if least <= 1:
            continue
        floor, smallest = floor_and_smallest(problem)
        assert floor is not None and floor <= least <= smallest, (seed, floor, least, smallest)
        tight += floor == least
        held += len([s for s in problem["storages"] if "hold_end" in s.get("flags", ())]) > 1
    assert tight >= 5 and held >= 5, (tight, held)


def test_floor_where_memory_is_taken_over():
    tight = taken = 0
    for seed in range(16):
        problem = list_over(small_problem(seed, [5, 8]), random.Random(seed))
        least = least_peak(problem)
        plain = {**problem, "ops": [{**op, "over": []} for op in problem["ops"]]}
        if least <= 1:
            continue
        floor, smallest = floor_and_smallest(problem)
        assert smallest <= floor_and_smallest(plain)[1]
        assert floor is not None and floor <= least <= smallest, (seed, floor, least, smallest)
        tight += floor == least
        taken += least < least_peak(plain)
    assert tight >= 4 and taken >= 4, (tight, taken)


@pytest.mark.skipif(not GRAPHS.exists(), reason="no traced graphs")
@pytest.mark.parametrize("name", ["evonorm_s0", pytest.param("unet", marks=pytest.mark.very_slow)])
def test_floor_against_plans_of_graphs(name):
    graph = GRAPHS / f"{name}.json.gz"
    floor, smallest = floor_and_smallest(graph)
    plan = cutback.plan(graph, budget="min", max_extra=1.0)
    assert 0 < floor <= min(smallest, plan.numbers["live_bytes"])


def test_only_ops_of_the_problem_are_named():
    """The search inserts helper ops into a small problem, and the floor may be at one of them."""
    ops = [
        ("x0", ["placeholder"], [], 0, 0),
        ("x1", ["placeholder"], [], 1, 0),
        ("f0", ["fusible"], [0], 2, 64),
        ("f1", ["fusible"], [1], 3, 1024),
        ("f2", ["view"], [2], 2, 0),
        ("b0", ["backward", "view"], [0, 1, 3], 1, 0),
        ("b1", ["backward", "random_stateful"], [0, 5], 4, 0),
    ]
    sizes = [4096, 0, 1, 128, 0]
    problem = {
        "format": "cutback.problem",
        "version": 1,
        "backward_starts": 5,
        "forward_outputs": [],
        "backward_outputs": [6],
        "storages": [{"bytes": n, "flags": ["static"] * (i < 2)} for i, n in enumerate(sizes)],
        "ops": [
            {"name": n, "flags": f, "in": i, "out": [{"storage": s}], "time_ps": 5, "workspace": w}
            for n, f, i, s, w in ops
        ],
    }
    with pytest.raises(cutback.BudgetError) as error:
        cutback.plan(problem, budget="0B", device="a100")
    assert error.value.op == error.value.floor_op == "f1"
    assert error.value.floor_bytes == 128 + 1024  # its output and its scratch
