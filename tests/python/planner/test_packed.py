"""Tests problems in which masks and indices may be kept packed."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

import cutback
from cutback.planner.packed import MADE, PACK, UNPACK, index_bytes, traffic
from cutback.problem import Op, Problem, Storage, Value

GRAPHS = Path(__file__).parents[2] / "data" / "graphs"
N = 65536  # elements of a value


def chain(layers: int = 6, kind: str = "aten.native_dropout", type: str = "bool") -> Problem:
    """Returns layers x -> sin(x) -> x * mask. Masks are drawn, so they are saved; sines are run
    again."""
    size = {"bool": 1, "i64": 8}[type]
    ops = [Op("x", "placeholder", outputs=[Value(0)], flags=frozenset({"placeholder"}))]
    storages = [Storage(4 * N, frozenset({"static"}))]
    last, read = 0, []

    def add(name: str, inputs: list[int], bytes: int, op: Op) -> int:
        storages.append(Storage(bytes))
        op.name, op.inputs, op.bytes = name, inputs, bytes + 4 * N * len(inputs)
        op.outputs[0].storage = len(storages) - 1
        ops.append(op)
        return len(ops) - 1

    def fused(late: bool = False) -> Op:
        flags = {"fusible", "backward"} if late else {"fusible"}
        return Op(kind="aten.mul.Tensor", outputs=[Value(0, f"f32[{N}]")], flags=frozenset(flags))

    for k in range(layers):
        sine = add(f"sin{k}", [last], 4 * N, fused())
        drawn = Op(kind=kind, outputs=[Value(0, f"{type}[1,{N}]")])
        drawn.flags = frozenset({"random_stateful"})
        mask = add(f"mask{k}", [sine], size * N, drawn)
        read.append((last, mask))
        last = add(f"mul{k}", [sine, mask], 4 * N, fused())
    starts, gradient = len(ops), last
    storages[ops[last].outputs[0].storage].flags = frozenset({"hold_forward"})
    for k, (x, mask) in reversed(list(enumerate(read))):
        gradient = add(f"g{k}", [gradient, mask], 4 * N, fused(late=True))
        gradient = add(f"d{k}", [gradient, x], 4 * N, fused(late=True))
    storages[-1].flags = frozenset({"hold_end"})
    return Problem(ops, storages, [last], [gradient], starts)


def packs(plan: cutback.Plan) -> int:
    """Returns the number of values that a plan unpacks in the backward."""
    late = plan.core.steps[plan.core.backward_starts :]
    return sum(plan.parts.ops[step.op].kind == UNPACK for step in late)


def test_a_mask_has_three_more_operations() -> None:
    problem = chain(1)
    before = problem.to_json()
    packed = cutback.with_packed(problem)
    assert problem.to_json() == before
    kinds = [(op.name, op.kind, op.inputs) for op in packed.ops[2:7]]
    assert kinds == [
        ("mask0", "aten.native_dropout", [1]), ("mask0_packed", PACK, [2]),
        ("mask0_unpacked", UNPACK, [3]), ("mask0_made", MADE, [4]),
        ("mul0", "aten.mul.Tensor", [1, 4]),
    ]  # fmt: skip
    sizes = [packed.storages[op.outputs[0].storage].bytes for op in packed.ops[2:6]]
    assert sizes == [N, N // 8, N, 0]
    assert packed.ops[7].inputs == [6, 4]  # the backward
    assert packed.backward_starts == 7 and packed.forward_outputs == [6, 5]


def test_plans_pack_where_that_pays_and_cost_nothing_elsewhere() -> None:
    problem = chain(3)
    packed = cutback.with_packed(problem)
    plain = cutback.plan(problem)
    free = cutback.plan(packed)
    assert packs(free) == 0
    assert free.numbers["live_bytes"] == plain.numbers["live_bytes"]
    launches = 2 * 2e6 * 3  # of pack and unpack: picoseconds
    assert free.numbers["time_ps"] - plain.numbers["time_ps"] <= launches
    small, smaller = (cutback.plan(p, budget="smallest") for p in (problem, packed))
    assert packs(smaller) > 1
    assert smaller.numbers["live_bytes"] < 0.95 * small.numbers["live_bytes"]
    assert f"of {PACK}: the op whose result it packs runs once" in smaller.explain()
    assert "hidden random state" not in smaller.explain()


def test_the_time_of_a_packed_value_is_that_of_both_operations() -> None:
    packed = cutback.with_packed(chain(1))
    for value in packed.ops[3].outputs:
        value.constraint = "must_save"
    packed.ops[4].outputs[0].constraint = "must_recompute"
    plan, base = cutback.plan(packed, device="cpu"), cutback.plan(chain(1), device="cpu")
    extra = plan.numbers["time_ps"] - base.numbers["time_ps"]
    once = 1e12 * traffic(N, N // 8) / 20e9
    assert packs(plan) == 1 and once <= extra <= once + 3e6


def test_indices_of_pools() -> None:
    def count(kind: str) -> list[int]:
        problem = chain(1, kind, "i64")
        problem.ops[1].outputs[0].type = f"f32[3,2,{N // 2}]"
        packed = cutback.with_packed(problem)
        return [
            packed.storages[op.outputs[0].storage].bytes for op in packed.ops if op.kind == PACK
        ]

    assert count("aten.max_pool2d_with_indices.default") == [2 * N]
    assert count("aten.gather.default") == []
    counts = (1, 256, 257, 1 << 16, (1 << 16) + 1, 1 << 31, (1 << 31) + 1)
    assert [index_bytes(n) for n in counts] == [1, 1, 2, 2, 4, 4, 8]


@pytest.mark.parametrize("type", ["", "f32", "f32[]", "f32[64]", "f32[8,s0,8]"])
def test_poolings_of_unknown_sizes_stay_as_they_are(type: str) -> None:
    problem = chain(1, "aten.max_pool2d_with_indices.default", "i64")
    problem.ops[1].outputs[0].type = type
    assert len(cutback.with_packed(problem).ops) == len(problem.ops)
    problem.ops[1].outputs[0].type = "f32[s0,8,8]"
    assert len(cutback.with_packed(problem).ops) == len(problem.ops) + 3


def test_what_may_be_packed_is_packed_once() -> None:
    packed = cutback.with_packed(chain(2))
    assert cutback.with_packed(packed).to_json() == packed.to_json()


def test_what_stays_as_it_is() -> None:
    def is_same(problem: Problem) -> bool:
        return len(cutback.with_packed(problem).ops) == len(problem.ops)

    problem = chain(1)
    assert not is_same(problem)
    small = [replace(s, bytes=s.bytes // 32) for s in problem.storages]
    assert is_same(replace(problem, storages=small))
    assert is_same(replace(problem, forward_outputs=[*problem.forward_outputs, 2]))
    wished = chain(1)
    wished.ops[2].outputs[0].constraint = "must_save"
    assert is_same(wished)
    unread = chain(1)
    unread.ops[unread.backward_starts].inputs = [3]
    assert is_same(unread)


def test_views_and_storages_move_with_the_mask() -> None:
    problem = chain(1)
    view = Op("view", "aten.view.default", [2], [Value(problem.ops[2].outputs[0].storage)])
    view.flags = frozenset({"view"})
    problem.ops.append(view)  # of the backward, which reads the mask by its view
    problem.ops[-1], problem.ops[-2] = problem.ops[-2], view
    problem.ops[-2], problem.ops[-3] = problem.ops[-3], view
    order = [op.name for op in problem.ops]
    assert order == ["x", "sin0", "mask0", "mul0", "view", "g0", "d0"]
    problem.ops[5].inputs, problem.ops[6].inputs = [3, 4], [5, 0]
    problem.backward_outputs = [6]
    packed = cutback.with_packed(problem)
    names = {op.name: op for op in packed.ops}
    assert names["view"].outputs[0].storage == names["mask0_unpacked"].outputs[0].storage
    packed.check()


@pytest.mark.very_slow
def test_bert_takes_less() -> None:
    path = GRAPHS / "bert_base.json.gz"
    problem = Problem.read(gzip.decompress(path.read_bytes()).decode())
    packed = cutback.with_packed(problem)
    assert sum(op.kind == PACK for op in packed.ops) == 37
    whole = cutback.plan(problem, device="a100").numbers
    base = cutback.plan(packed, device="a100").numbers
    assert base["live_bytes"] == whole["live_bytes"]
    assert base["time_ps"] < 1.001 * whole["time_ps"]
    plan = cutback.plan(packed, budget="min", device="a100")
    assert plan.numbers["live_bytes"] < 0.23 * whole["live_bytes"]
