"""Budgets that are positions from 0 to 1: never refused; peaks rise and times fall with the
position; and the plan equals that for the bytes of the position."""

from __future__ import annotations

import copy
import json
import math
import pickle
import sys
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback import _native, budgets, cli
from cutback.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))

from test_random_aliases import Dice, chain

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

DATA = Path(__file__).parents[2] / "data"
GRAPHS = sorted(p.name.removesuffix(".json.gz") for p in (DATA / "graphs").glob("*.json.gz"))
MOBILENET = "mobilenet_v2"
NETS = sorted(p.name.removesuffix(".json.gz") for p in (DATA / "nets").glob("*.json.gz"))
NETS.remove(MOBILENET)  # the referee takes seconds for each of its plans
MEASURES = ("live", "arena", "saved", "total")
FEW = (0, 0.25, 0.5, 0.75, 1)
HUNDRED = [i / 100 for i in range(101)]


def bytes_of(plan, measure):
    return plan.numbers[f"{measure}_bytes"]


def whole_of(plan, measure, problem):
    """Returns the bytes of saving everything."""
    if measure == "total":
        return plan.numbers["save_all_live_bytes"] + problem.get("static_bytes", 0)
    return plan.numbers[f"save_all_{measure}_bytes"]


def same(a, b):
    """True if two plans are the same, bit for bit."""
    return a.to_json() == b.to_json()


def check(problem, measure, positions, **options):
    """Checks plans at rising positions. conftest.py compares each with the referee."""
    problem = (
        json.loads(_native.Problem.read(problem).to_json()) if isinstance(problem, str) else problem
    )
    options = {"measure": measure, "device": "a100", **options}
    plans = [cutback.plan(problem, budget=k, **options) for k in positions]
    for k, plan in zip(positions, plans, strict=True):
        position = plan.position
        assert position.position == k
        assert position.everything == whole_of(plan, measure, problem)
        assert bytes_of(plan, measure) <= position.limit == plan.numbers["budget_bytes"]
        assert position[1:] == plans[0].position[1:]
        exact = position.smallest + math.ceil(
            Fraction(float(k)) * max(0, position.everything - position.smallest)
        )
        assert position.limit == exact
    for lower, higher in pairwise(plans):
        assert bytes_of(lower, measure) <= bytes_of(higher, measure)
        assert lower.numbers["time_ps"] >= higher.numbers["time_ps"]
    some = plans[:: max(1, len(plans) // 5)]
    for plan in some:
        in_bytes = cutback.plan(problem, budget=f"{plan.position.limit}B", **options)
        assert same(plan, in_bytes) and in_bytes.position is None
    return plans


def check_ends(problem, measure, plans, **options):
    """Checks that smallest <= min <= the plan at 0, and that only the problem's own options change
    the ends."""
    options = {"measure": measure, "device": "a100", **options}
    peaks = [
        bytes_of(cutback.plan(problem, budget=budget, **options), measure)
        for budget in ("smallest", "min")
    ]
    ends = plans[0].position
    assert peaks[0] <= peaks[1]
    if measure != "saved":
        assert peaks[1] <= ends.smallest
    assert bytes_of(plans[0], measure) <= ends.smallest


@pytest.mark.parametrize("measure", MEASURES)
def test_small_problems(measure):
    for seed in (0, 2, 54):
        problem = small(seed)
        check_ends(problem, measure, check(problem, measure, FEW))


@pytest.mark.very_slow
@pytest.mark.parametrize("measure", MEASURES)
def test_chains(measure):
    for seed in (1, 2, 5, 8):
        problem = chain(seed)
        check_ends(problem, measure, check(problem, measure, FEW))


@pytest.mark.parametrize(
    ("name", "positions"), [("evonorm_s0", FEW), ("unet", (0.2, 0.6)), ("gpt2_small_plain", (0.1,))]
)
def test_a_graph(name, positions):
    graph = cutback.files.read_text(DATA / "graphs" / f"{name}.json.gz")
    check(graph, "live", positions)


def check_near_min(problem, device):
    """Checks that position 0 takes at most 2 % (of saving everything) more than ``"min"``."""
    least = cutback.plan(problem, budget="min", device=device).numbers["live_bytes"]
    ends = cutback.plan(problem, budget=0, device=device).position
    assert least <= ends.smallest <= least + 0.02 * ends.everything


def mobilenet():
    return cutback.files.read_text(DATA / "nets" / f"{MOBILENET}.json.gz")


def test_plans_that_cost_little_lead_to_smaller_ones():
    """Prices alone reach 0.506 of saving everything, and no plan is below 0.417."""
    smallest, everything = _native.Problem.read(mobilenet()).ends(budgets.MEASURES.index("live"))
    assert 0.417 < smallest / everything < 0.437


@pytest.mark.very_slow
def test_a_net_whose_smallest_plan_costs_little():
    check_near_min(mobilenet(), "cpu")
    check(mobilenet(), "live", FEW, device="cpu")


@pytest.mark.very_slow
@pytest.mark.parametrize("device", ["a100", "cpu"])
@pytest.mark.parametrize("name", GRAPHS)
def test_position_zero_of_graphs_is_near_min(name, device):
    check_near_min(cutback.files.read_text(DATA / "graphs" / f"{name}.json.gz"), device)


@pytest.mark.very_slow
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_at_a_hundred_positions(name):
    graph = cutback.files.read_text(DATA / "graphs" / f"{name}.json.gz")
    check_ends(graph, "live", check(graph, "live", HUNDRED))


@pytest.mark.very_slow
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("name", NETS)
def test_nets_at_a_hundred_positions(name, measure):
    net = cutback.files.read_text(DATA / "nets" / f"{name}.json.gz")
    check_ends(net, measure, check(net, measure, HUNDRED))


def small(seed):
    """Returns a random problem that is quick to plan."""
    return Dice(seed).problem(wishes=False)


def random_problem(seed):
    """Returns a random problem; some have constraints, region limits and parameters. Returns None
    if the constraints contradict each other."""
    wishes = seed % 2 == 1
    problem = Dice(seed).problem(wishes)
    if seed % 3 == 0:
        problem["static_bytes"] = 1000 * seed
    if seed % 5 == 0:
        for op in problem["ops"][3:]:
            op["region"] = 0
        problem["regions"] = [{"name": "all", "saved_limit": 1 << 22}]
    return problem


def check_random(seed):
    """Returns the number of positions answered, or 0 if a limit or constraint cannot be met."""
    problem, measure = random_problem(seed), MEASURES[seed % 4]
    offloads = any(
        o.get("constraint") == "prefer_offload" for op in problem["ops"] for o in op["out"]
    )
    if offloads and measure == "saved":
        return 0
    try:
        plans = check(problem, measure, HUNDRED[:: 1 if seed % 10 == 0 else 20])
    except cutback.BudgetError as error:
        assert error.reason in ("constraints", "region"), (seed, error)
        return 0
    except ValueError as error:
        assert "contradict" in str(error), (seed, error)
        return 0
    if measure != "saved" and not offloads:
        check_ends(problem, measure, plans)
        for plan, k in zip(plans[::3], HUNDRED[::60], strict=False):
            moved = cutback.plan(problem, budget=plan.position.position, measure=measure,
                                 offload=True, device="a100")  # fmt: skip
            assert moved.numbers["time_ps"] <= plan.numbers["time_ps"], (seed, k)
            assert moved.position == plan.position
    return len(plans)


def test_random_problems():
    assert sum(check_random(seed) for seed in range(12)) > 40


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_problems(part):
    assert sum(check_random(seed) for seed in range(50 * part, 50 * part + 50)) > 200


def test_ends_do_not_depend_on_how_a_plan_is_asked():
    problem = small(2)
    want = cutback.plan(problem, budget=0.5, device="a100").position
    for options in (
        {"offload": True}, {"exact": True}, {"time_limit": 1e-9},
        {"progress": lambda seconds: True},
    ):  # fmt: skip
        plan = cutback.plan(problem, budget=0.5, device="a100", **options)
        assert plan.position == want, options
        assert plan.numbers["live_bytes"] <= want.limit
    before = cutback.get_num_threads()
    try:
        cutback.set_num_threads(2)
        assert cutback.plan(problem, budget=0.5, device="a100").position == want
    finally:
        cutback.set_num_threads(before)
    core = _native.Problem.read(json.dumps(problem))
    assert core.ends(budgets.MEASURES.index("live"), device="a100") == want[1:]


@pytest.mark.parametrize("measure", ["live", "arena"])
def test_no_budget_is_met_below_the_smallest_plan(measure):
    """The smallest plan is far below two rungs for which the search finds none."""
    problem = cutback.files.read_text(DATA / "mixture_of_experts.json.gz")
    plans = [cutback.plan(problem, budget=b, measure=measure) for b in ("smallest", "min", 0.0)]
    assert {bytes_of(plan, measure) for plan in plans} == {328_192}
    with pytest.raises(cutback.BudgetError) as refused:
        cutback.plan(problem, budget=320_000, measure=measure)
    assert refused.value.smallest_bytes == 328_192


def test_several_positions_get_the_plans_that_they_get_alone():
    problem = small(54)
    asked = [0.3, "0.9x", 0, None, 1, "smallest", "min", 10_000_000]
    for budget, answer in zip(asked, cutback.plans(problem, asked, device="a100"), strict=True):
        alone = cutback.plan(problem, budget=budget, device="a100")
        assert same(answer, alone) and answer.position == alone.position


def test_where_constraints_are_larger_than_saving_everything_all_positions_are_one():
    """``small`` must be recomputed from ``big`` while ``other`` is live."""
    rows = [
        ("x", "placeholder", [], 64, None),
        ("big", "compute", [0], 2**20, None),
        ("small", "compute", [1], 64, "must_recompute"),
        ("other", "compute", [2], 2**20, "must_save"),
        ("loss", "compute", [3], 64, None),
        ("first", "backward", [4], 64, None),
        ("second", "backward", [5, 3, 2], 64, None),
    ]
    problem = {
        "format": "cutback.problem",
        "version": 1,
        "backward_starts": 5,
        "forward_outputs": [4],
        "backward_outputs": [6],
        "storages": [{"bytes": size} for _, _, _, size, _ in rows],
        "ops": [
            {"name": name, "flags": [flag], "in": reads, "time_ps": 1000,
             "out": [{"storage": i, **({"constraint": wish} if wish else {})}]}
            for i, (name, flag, reads, _, wish) in enumerate(rows)
        ],
    }  # fmt: skip
    problem["storages"][0]["flags"] = ["static"]
    plans = [cutback.plan(problem, budget=k, device="a100") for k in FEW]
    assert plans[0].position.smallest >= plans[0].position.everything
    assert len({plan.to_json() for plan in plans}) == 1


def test_the_range_of_total_is_that_of_live_and_the_static_bytes():
    problem = small(0)
    live = cutback.plan(problem, budget=0.3, device="a100").position
    total = cutback.plan(
        {**problem, "static_bytes": 12345}, budget=0.3, measure="total", device="a100"
    ).position
    assert (total.smallest, total.everything) == (live.smallest + 12345, live.everything + 12345)


def test_the_range_of_saved_bytes_is_the_frontiers():
    problem = small(2)
    frontier = cutback.frontier(problem, device="a100")
    plans = [cutback.plan(problem, budget=k, measure="saved", device="a100") for k in (0, 1)]
    assert plans[0].position.smallest == frontier.saved_bytes[0]
    assert plans[0].position.everything == plans[1].numbers["save_all_saved_bytes"]


def test_saved_bytes_between_two_points_of_the_frontier():
    """The plan of the frontier saves 16928 bytes and takes 6 % longer."""

    def layers_of_several_kinds(params, x):
        kinds = F.relu, F.relu, lambda t: F.layer_norm(t, (8,)), F.gelu
        for w, f in zip(params, kinds, strict=True):
            x = f(x @ w)
        return (x * x).mean()

    params = [np.full(shape, 0.1, np.float32) for shape in pairwise([48, 56, 8, 8, 40])]
    arguments = layers_of_several_kinds, params, np.ones((64, 48), np.float32)
    plan = cutback.plan(*arguments, budget=0.5, measure="saved")
    frontier = cutback.frontier(*arguments)
    point = frontier.at(plan.position.limit)
    assert plan.numbers["saved_bytes"] <= plan.position.limit
    assert plan.numbers["time_ps"] < 0.95 * frontier.time_ps[point]


@hypothesis.given(st.floats(0, 1), st.integers(0, 2**62), st.integers(0, 2**62))
def test_the_limit_is_exact(k, low, more):
    assert budgets.limit(k, low, low + more) == low + math.ceil(Fraction(k) * more)
    assert budgets.limit(k, low + more + 1, low) == low + more + 1


# ---- compiled steps ------------------------------------------------------------------------------


def layers(params, x):
    for w in params:
        x = F.gelu(x @ w)
    return (x * x).mean()


def layers_arguments():
    return [np.full((16, 16), 0.1, np.float32) for _ in range(5)], np.ones((64, 16), np.float32)


def step_at(budget, **options):
    step = cutback.value_and_grad(layers, budget=budget, **options)
    value, gradients = step(*layers_arguments())
    return step, float(value), [g.tobytes() for g in gradients]


@pytest.mark.parametrize("groups", [None, True])
@pytest.mark.parametrize("measure", MEASURES)
def test_a_step_at_any_position(measure, groups):
    options = {"measure": measure, "groups": groups}
    free, value, gradients = step_at(None, **options)
    before = None
    for k in (0, 0.2, 0.5, 0.8, 1):
        step, *found = step_at(k, **options)
        assert found == [value, gradients]
        position, taken = step.plan.position, getattr(step.planned, f"{measure}_bytes")
        assert step.plan.numbers["budget_bytes"] == step.planned.budget_bytes == position.limit
        assert taken <= position.limit <= position.everything
        if measure in ("arena", "live"):
            assert position.everything == getattr(free.planned, f"{measure}_bytes")
        assert before is None or step.planned.time_ps <= before
        before = step.planned.time_ps
        in_bytes, *_ = step_at(f"{position.limit}B", **options)
        assert in_bytes.plan.to_json() == step.plan.to_json()
        assert str(step.plan).startswith(position.describe(taken) + "\n")


def layers_with_norms(params, x):
    for w in params:
        x = F.gelu(F.layer_norm(x @ w, (16,)))
    return (x * x).mean()


@pytest.mark.parametrize(("f", "n"), [(layers, 8), (layers_with_norms, 2)])
def test_position_zero_of_groups_costs_little(f, n):
    """Position 0 stands for the bytes of a plan in groups, not of single ops."""
    params, x = [np.full((16, 16), 0.1, np.float32) for _ in range(n)], layers_arguments()[1]
    step = cutback.value_and_grad(f, budget=0, groups=True)
    step(params, x)
    assert step.planned.time_ps <= 1.4 * step.planned.once_ps
    assert step.planned.arena_bytes == step.plan.position.smallest


def test_positions_at_the_ends_and_what_is_said_of_them():
    least, _, _ = step_at("min")
    zero, _, _ = step_at(0)
    assert zero.planned.arena_bytes <= zero.plan.position.smallest == least.planned.arena_bytes
    all_saved, _, _ = step_at(1)
    assert all_saved.planned.n_recomputed == 0
    assert zero.plan.explain().startswith("0: ")
    assert "smallest" in str(all_saved.plan).splitlines()[0]


@pytest.mark.parametrize("wish", ["min", "smallest", "warn"])
def test_a_step_that_no_plan_fits_falls_back(wish):
    with pytest.raises(cutback.BudgetError, match='budget="min"'):
        step_at(100)
    with pytest.warns(UserWarning, match=f"on_infeasible='{wish}'"):
        step, value, gradients = step_at(100, on_infeasible=wish)
    other, *want = step_at(None if wish == "warn" else wish)
    assert [value, gradients] == want
    assert step.planned.arena_bytes == other.planned.arena_bytes


def test_a_step_tells_its_search_and_may_be_ended():
    told = []
    with pytest.raises(ZeroDivisionError):
        step_at("0.7x", progress=lambda seconds: 1 / 0)
    step_at("0.7x", progress=lambda seconds, best: told.append(seconds))
    step, _, _ = step_at(0.3, time_limit=1e-9)
    assert told and step.plan.position == step_at(0.3)[0].plan.position
    for wrong in ({"time_limit": -1}, {"progress": 3}, {"on_infeasible": "no"}):
        with pytest.raises((ValueError, TypeError)):
            cutback.compile(layers, **wrong)


# ---- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0", "1", "0.4", ".5", "1.0", "4e-1"])
def test_numbers_at_the_command_line_are_positions(tmp_path, capsys, text):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(small(2)))
    assert cli.main(["plan", str(path), "--budget", text, "--device", "a100"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"{float(text):g}: ") and "smallest" in first
    assert cli.main(["plan", str(path), "--budget", text, "--device", "a100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    want = cutback.plan(small(2), budget=float(text), device="a100")
    assert document["budget_bytes"] == want.position.limit
    assert "position" not in document


def test_bytes_at_the_command_line(tmp_path, capsys):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(small(2)))
    for text, said in (("2", "no plan fits 2 B"), ("1.5", "position"), ("40%", "")):
        code = cli.main(["plan", str(path), "--budget", text, "--device", "a100"])
        out = capsys.readouterr()
        assert (code == 0) == (said == "") or said in out.err


def test_copies_and_pickles_know_the_position():
    plan = cutback.plan(chain(6), budget=0.5)
    for again in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert again.position == plan.position is not None
        assert str(again) == str(plan)


def test_no_plan_is_smaller_than_the_smallest():
    at_zero = budgets.Position(0.0, 2000, 5000).describe(1900)
    assert at_zero == "0: 1.86 KiB, 38 % of 4.88 KiB; smallest 1.86 KiB"


@pytest.mark.parametrize("number", [Fraction(1, 2), Decimal("0.5"), np.longdouble(0.5), [0.5]])
def test_other_numbers_are_refused_with_the_way_out(number):
    with pytest.raises(TypeError, match="write a position from 0 to 1 as a float"):
        budgets.parse(number)


@pytest.mark.parametrize(
    ("number", "said"), [(-5, "budget=-5: -5 is negative"), (2**63, "more bytes than any memory")]
)
def test_ints_that_are_no_bytes(number, said):
    with pytest.raises(ValueError, match=said):
        budgets.parse(number)


def test_numpy_numbers_are_what_they_say():
    for number, plain in ((np.int64(1), 1), (np.float32(0.5), 0.5), (np.int32(30000), 30000)):
        assert budgets.parse(number) == budgets.parse(plain)
    with pytest.raises(TypeError, match="budget=True is neither"):
        budgets.parse(np.bool_(True))


def test_minus_zero_is_zero():
    assert budgets.parse(-0.0) == budgets.parse(0.0)
    assert math.copysign(1, budgets.parse(-0.0)[2]) == 1


def test_a_step_that_saves_everything_knows_its_budget():
    """The plan of single ops has no budget, because only its program may keep to it."""
    for budget, limit in ((1 << 20, 1 << 20), ("1MiB", 1 << 20), ("1x", None), (None, None)):
        step, _, _ = step_at(budget)
        found = step.plan.numbers["budget_bytes"]
        assert found == step.planned.budget_bytes and step.planned.n_recomputed == 0
        assert found == limit if budget != "1x" else found == step.planned.save_all_arena_bytes
        assert ("no budget" in str(step.plan)) == (budget is None)


def test_a_position_that_moving_alone_cannot_meet():
    """The budget in bytes was not written by the caller, so the text names the position and the
    ways out."""
    error = refused_at(0.5, offload="only", pinned=1000)
    assert error.position == 0.5 and error.share is None
    assert "(position 0.5, arena)" in str(error)
    assert str(error).endswith('Raise the position or pinned, or pass offload=True or budget="min"')
    assert refused_at("0.5x", offload="only", pinned=1000).position is None
    for way_out in ({"offload": True, "pinned": 1000}, {"offload": "only"}):
        cutback.plan(layers, *layers_arguments(), budget=0.5, **way_out)
    cutback.plan(layers, *layers_arguments(), budget="min", offload="only", pinned=1000)


def refused_at(budget, **options):
    with pytest.raises(cutback.BudgetError) as told:
        cutback.plan(layers, *layers_arguments(), budget=budget, **options)
    return told.value
