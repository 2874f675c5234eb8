"""Every keyword of the planning functions has an effect on every kind of input, or is refused."""

from __future__ import annotations

import copy
import gzip
import inspect
import json
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import cutback
import cutback.nn.functional as F
from cutback import budgets, cli, errors
from cutback.planner import problems
from cutback.policies import mu_two

DATA = Path(__file__).parents[2] / "data" / "graphs"
W = [np.full((32, 32), 0.1, np.float32) for _ in range(5)]
X = np.ones((64, 32), np.float32)


def loss(params, x):
    for w in params:
        x = cutback.tanh(cutback.exp(x @ w) * 0.01)
    return (x * x).mean()


PROBLEM = cutback.plan(loss, W, X).problem
KINDS = ("function", "dict", "json", "gzip", "path")
READ = ("json", "path")


def given_as(kind, tmp_path):
    """Returns the leading arguments of a call for the same step as a kind of input."""
    text = json.dumps(PROBLEM)
    if kind == "function":
        return loss, W, X
    if kind in ("dict", "json"):
        return (PROBLEM if kind == "dict" else text,)
    path = tmp_path / ("p.json.gz" if kind == "gzip" else "p.json")
    path.write_bytes(gzip.compress(text.encode()) if kind == "gzip" else text.encode())
    return (path if kind == "path" else str(path),)


# By default the products with all keywords leave out kinds that only differ in how they are read.
@pytest.fixture(
    params=[pytest.param(k, marks=pytest.mark.very_slow if k in READ else ()) for k in KINDS]
)
def given(request, tmp_path):
    return given_as(request.param, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_same_plan(kind, tmp_path):
    options = {"budget": "0.5x", "measure": "arena"}
    numbers = cutback.plan(*given_as(kind, tmp_path), **options).numbers
    assert numbers == cutback.plan(PROBLEM, **options).numbers


MATMUL = next(op["name"] for op in PROBLEM["ops"] if op.get("kind") == "matmul")
LINK = {**cutback.devices.measured(), "name": "linked", "link_bytes_per_s": 1e12}
HALF = {"budget": "0.5x", "measure": "arena"}


EFFECTS = {  # maps a keyword to (options with it, options without it)
    "budget": ({"budget": "0.5x"}, {}),
    "measure": ({"budget": "0.5x", "measure": "saved"}, HALF),
    "preset": ({"preset": "conservative"}, {}),
    "policy": ({"policy": mu_two(2000)}, {}),
    "device": ({**HALF, "device": "a100"}, HALF),
    "max_extra": (
        {"budget": "min", "measure": "arena", "max_extra": 1e-4},
        {"budget": "min", "measure": "arena"},
    ),
    "offload": ({**HALF, "offload": "only", "device": LINK}, {**HALF, "device": LINK}),
    "pinned": (
        {**HALF, "offload": True, "device": LINK, "pinned": 1},
        {**HALF, "offload": True, "device": LINK},
    ),
    "exact": ({**HALF, "exact": True}, HALF),
    "profile": ({"profile": {MATMUL: 1.0}}, {}),
    "argnums": ({"argnums": 1}, {}),
    "time_limit": ({**HALF, "time_limit": 1e-9}, HALF),
    "progress": ({**HALF, "progress": lambda seconds, best: True}, HALF),
}
ENDS = {"time_limit", "progress"}  # the search ends before it finds a plan


def kind_of(given):
    return "function" if callable(given[0]) else "a problem"


def answer(given, options):
    options = {"measure": "arena", **options}
    return cutback.plan(*given, **options).document


def test_the_table_has_every_keyword():
    keywords = [
        p.name
        for p in inspect.signature(cutback.plan).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    ]
    assert sorted(keywords) == sorted(EFFECTS)


@pytest.mark.parametrize("keyword", sorted(EFFECTS))
def test_plan(given, keyword):
    options, plain = EFFECTS[keyword]
    refused = ("function",) if keyword == "profile" else ()
    refused = ("a problem",) if keyword == "argnums" else refused
    if kind_of(given) in refused:
        with pytest.raises(TypeError, match=keyword):
            answer(given, options)
        return
    if keyword in ENDS:
        with pytest.raises(cutback.BudgetError, match="stopped") as told:
            answer(given, options)
        assert told.value.reason == "stopped"
        return
    found = answer(given, options)
    if keyword != "exact":  # with exact=True the plan may be the same
        assert found != answer(given, plain), f"{keyword} has no effect"
    if keyword != "argnums":
        assert found == answer((PROBLEM,), options)


def test_min_takes_no_more_time_than_it_may(given):
    plan = cutback.plan(*given, budget="min", measure="arena", max_extra=1e-4)
    n = plan.numbers
    assert n["time_ps"] <= n["once_ps"] * (1 + 1e-4)


def test_progress_is_told_and_ends_the_search(given):
    told = []
    cutback.plan(*given, **HALF, progress=lambda seconds, best: told.append((seconds, best)))
    assert told and told[0][0] >= 0
    with pytest.raises(RuntimeError, match="mine"):
        cutback.plan(*given, **HALF, progress=raising)


def raising(seconds):
    raise RuntimeError("mine")


def test_a_function_has_the_plan_of_its_compiled_step():
    for budget in (None, "0.5x", "min"):
        step = cutback.compile(loss, budget=budget).prepare(W, X)
        assert cutback.plan(loss, W, X, budget=budget).to_json() == step.plan.to_json()


def test_a_problem_takes_no_arguments(given):
    if kind_of(given) != "function":
        with pytest.raises(TypeError, match="arguments"):
            cutback.plan(*given, W, X)
        with pytest.raises(TypeError, match="arguments"):
            cutback.frontier(*given, W)
        with pytest.raises(TypeError, match="argnums"):
            cutback.frontier(*given, argnums=1)
        with pytest.raises(TypeError, match="argnums"):
            cutback.plan(*given, argnums=1)


FRONTIER = {
    "preset": {"preset": "conservative"},
    "policy": {"policy": mu_two(2000)},
    "device": {"device": "a100"},
}


@pytest.mark.parametrize("keyword", sorted(FRONTIER))
def test_frontier(given, keyword):
    found = cutback.frontier(*given, **FRONTIER[keyword]).to_json()
    assert found == cutback.frontier(PROBLEM, **FRONTIER[keyword]).to_json()
    assert found != cutback.frontier(*given).to_json()


def test_mu_two_weighs_by_the_device_that_was_asked_for():
    for device in ("cpu", "a100"):
        options = {"policy": mu_two(2000), "device": device}
        of_function = cutback.frontier(loss, W, X, **options).to_json()
        assert of_function == cutback.frontier(PROBLEM, **options).to_json()


def test_a_minimum_cut(given):
    for more in ({}, {"preset": "aggressive"}, {"policy": mu_two(2000)}):
        options = {"preset": "conservative", "measure": "live", **more}
        found = cutback.plan(*given, **options).numbers
        assert found == cutback.plan(PROBLEM, **options).numbers


PLANS = {
    "measure": {"measure": "arena"},
    "preset": {"preset": "conservative"},
    "policy": {"policy": "nothing_saveable"},
    "device": {"device": "a100"},
}


@pytest.mark.parametrize("keyword", sorted(PLANS))
def test_plans(given, keyword):
    several = [None, 0.7] if keyword != "measure" else ["0.9x"]
    if kind_of(given) == "function":
        with pytest.raises(TypeError, match=r"plans needs a problem.*cutback.plan"):
            cutback.plans(loss, several, **PLANS[keyword])
        return
    found = [one.numbers for one in cutback.plans(*given, several, **PLANS[keyword])]
    about_budgets = {key: value for key, value in PLANS[keyword].items() if key != "preset"}
    for b, numbers in zip(several, found, strict=True):
        options = about_budgets if b is not None else PLANS[keyword]
        assert numbers == cutback.plan(PROBLEM, budget=b, **options).numbers
    assert found != [one.numbers for one in cutback.plans(*given, several)]


@pytest.mark.parametrize("several", ["0.5x", b"0.5x", 3, None])
def test_several_budgets_are_a_list(several):
    with pytest.raises(TypeError, match="several must be a list of budgets"):
        cutback.plans(PROBLEM, several)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"time_limit": -1.0}, ValueError),
        ({"time_limit": float("nan")}, ValueError),
        ({"time_limit": "soon"}, TypeError),
        ({"progress": 7}, TypeError),
        ({"exact": True, "budget": None}, ValueError),
        ({"max_extra": 0.1}, ValueError),
        ({"max_extra": 0.1, "budget": "0.5x"}, ValueError),
        ({"offload": True, "budget": None}, ValueError),
        ({"preset": "aggressive", "budget": "0.5x"}, ValueError),
        ({"preset": "aggressive", "budget": "min", "measure": "arena"}, ValueError),
    ],
    ids=str,
)
def test_what_cannot_act_is_refused(given, options, error):
    with pytest.raises(error, match=next(iter(options))):
        cutback.plan(*given, **options)


def test_a_preset_says_nothing_beside_a_budget():
    beside = {"preset": "aggressive", "budget": "0.5x"}
    for call in (
        lambda: cutback.compile(loss, **beside),
        lambda: cutback.value_and_grad(loss, **beside),
        lambda: cutback.plans(PROBLEM, [0.5], preset="aggressive"),
    ):
        with pytest.raises(ValueError, match=r"preset='aggressive' .* omit preset or the budget"):
            call()
    cutback.plan(PROBLEM, budget="0.5x", measure="saved", preset="conservative")
    cutback.plans(PROBLEM, [None, 0.9], preset="aggressive")


def test_numbers_that_no_machine_has_are_refused_in_few_words():
    """Errors are short, even for integers of more than 4300 digits, which Python refuses to
    write."""
    huge = 10**5000
    for options in (
        {"budget": huge},
        {"budget": -huge},
        {"budget": "0.5x", "time_limit": -huge},
        {"budget": "0.5x", "offload": True, "device": "a100", "pinned": huge},
        {"budget": "min", "max_extra": huge},
    ):
        with pytest.raises(ValueError, match=r"an int of 1661\d bits"):
            cutback.plan(PROBLEM, **options)
    assert cutback.plan(PROBLEM, budget="0.9x", time_limit=huge).numbers


def test_text_with_a_mark_of_utf8_is_a_problem_too():
    assert cutback.plan("\ufeff" + json.dumps(PROBLEM)).numbers == cutback.plan(PROBLEM).numbers


def test_an_output_without_a_storage_is_named():
    odd = copy.deepcopy(PROBLEM)
    odd["ops"][1]["out"] = [{}]
    with pytest.raises(ValueError, match="storage"):
        cutback.plan(odd)


def test_a_graph_of_nodes_is_named_as_what_it_is():
    for call in (cutback.plan, cutback.frontier):
        with pytest.raises(TypeError, match=r"not Graph; .*graph.compile"):
            call(cutback.Graph())
    with pytest.raises(TypeError, match=r"not Graph"):
        cutback.plans(cutback.Graph(), [None])


@pytest.mark.skipif(not DATA.exists(), reason="no traced graphs")
def test_a_joint_graph_takes_them_too():
    """Uses a graph traced with PyTorch, given as a path and as its problem."""
    path = DATA / "transformer_encoder.json.gz"
    problem = problems.read_problem(path)
    for options in (
        {"preset": "aggressive", "policy": "save:aten.mm"},
        {"preset": "conservative", "device": "a100"},
    ):
        assert cutback.plan(path, **options).numbers == cutback.plan(problem, **options).numbers


# ---- the command line ------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("plan FILE --budgets 0.9x --max-extra 0", "--max-extra"),
        ("plan FILE --budgets 0.9x --budget 0.5x", "--budget"),
        ("plan FILE --budgets 0.9x --explain", "--explain"),
        ("plan FILE --budgets 0.9x --exact", "--exact"),
        ("plan FILE --budgets 0.9x --offload", "--offload"),
        ("plan FILE --budgets 0.9x --pinned 0", "--pinned"),
        ("plan FILE --budgets 0.9x --profile x", "--profile"),
        ("plan FILE --budgets ,", "--budgets"),
        ("plan FILE --max-extra 0.5", "max_extra"),
        ("plan FILE --exact", "exact"),
        ("plan FILE --offload", "offload"),
        ("frontier FILE --peaks", "--peaks"),
        ("plan FILE --budget 0.9x --pinned 3", "--offload"),
        ("plan FILE --pinned 8GiB", "--offload"),
        ("plan FILE --measure live", "--measure"),
        ("plan FILE --budget 0.9x --preset aggressive", "--preset"),
        ("plan FILE --budgets 0.9x --preset aggressive --measure live", "--preset"),
    ],
)
def test_what_cannot_act_is_refused_on_the_command_line(file, arguments, named, capsys):
    assert cli.main([file if word == "FILE" else word for word in arguments.split()]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (option, text)
        for option, texts in {
            "--budget": (
                "٣",
                "１０",
                "1_000",
                "٠.٤x",
                "0.4_0x",
                "nanx",
                "infx",
                "1e400x",
                "3" * 30,
            ),
            "--budgets": ("٣", "1_0", "0.9x,٣"),
            "--pinned": ("٣", "1_000", "nan", "٣GiB"),
            "--max-extra": ("٤", "0_1", "nan", "inf"),
            "--time-limit": ("٤", "1_0", "nan", "inf"),
            "--policy": ("mu-two:٣", "mu-two:1_000"),
        }.items()
        for text in texts
    ],
)
def test_numbers_are_written_in_plain_digits(file, option, text, capsys):
    """Digits of other scripts and underscores are refused, although Python's int and float accept
    them."""
    beside = {"--pinned": ["--budget", "0.9x", "--offload", "--device", "a100"]}
    beside["--max-extra"] = ["--budget", "min"]
    arguments = ["plan", file, f"{option}={text}", *beside.get(option, ())]
    try:
        assert cli.main(arguments) == 2
    except SystemExit as end:  # from argparse
        assert end.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert text.split(",")[-1][:20] in said


@pytest.mark.parametrize("text", ["٣", "1_0", "9" * 5000])
def test_a_profile_names_operations_in_plain_digits(text):
    with pytest.raises(ValueError, match="the graph has no operation"):
        cutback.plan(PROBLEM, profile={text: 1.0})


def test_a_share_may_be_written_with_an_exponent():
    assert budgets.parse("4e-1x") == budgets.parse(" 0.4 X ") == budgets.parse("40 %")


# ---- what the answers say --------------------------------------------------------------------


@pytest.mark.very_slow
def test_a_share_that_is_asked_is_answered_as_a_share(given):
    for call in (
        lambda b: cutback.plan(*given, budget=b, measure="arena"),
        lambda b: cutback.compile(loss, budget=b, backend="null").prepare(W, X),
    ):
        for asked in ("0.05x", "5%") if kind_of(given) == "function" else ("0.05x",):
            with pytest.raises(cutback.BudgetError, match=r" 5% of .* saving everything") as told:
                call(asked)
            error = told.value
            assert error.share == 0.05 < error.smallest_share <= 1
            assert error.floor_share is None or 0.05 < error.floor_share <= error.smallest_share
            assert f"{100 * error.smallest_share:g}%" in str(error)
            call(f"{error.smallest_share!r}x")  # the offered share works
        with pytest.raises(cutback.BudgetError, match=r"one byte.*the number 1"):
            call("1B")
        with pytest.raises(cutback.BudgetError) as told:
            call(100)
        assert told.value.share is None and told.value.budget_bytes == 100
        assert "%" not in str(told.value) and "one byte" not in str(told.value)
        assert not told.value.must_save
    if kind_of(given) != "function":
        (error,) = cutback.plans(*given, ["0.05x"])
        assert isinstance(error, cutback.BudgetError) and error.share == 0.05


@pytest.mark.parametrize("measure", ["arena", "live", "saved", "total"])
def test_the_share_that_is_offered_is_the_smallest(measure):
    """The offered share has three digits, however small the request."""
    policy = "save:exp" if measure == "saved" else None
    problem = cutback.plan(PROBLEM, policy=policy).problem
    whole = cutback.plan(problem, budget="1.0x", measure=measure).document["budget_bytes"]
    for asked in (1e-9, 0.004):
        with pytest.raises(cutback.BudgetError) as told:
            cutback.plan(problem, budget=f"{asked!r}x", measure=measure)
        assert told.value.share == asked and told.value.save_all_bytes == whole
        offered, needs = told.value.smallest_share, told.value.smallest_bytes
        assert f"takes {100 * offered:g}% (" in str(told.value)
        assert needs <= int(offered * whole) <= needs * 1.01 + 1
    answer = cutback.plan(problem, budget=f"{offered!r}x", measure=measure)
    assert needs <= answer.numbers[f"{measure}_bytes"] <= offered * whole


def test_what_a_compiled_step_offers_counts_its_kernels():
    """Kernels of several ops need less than single ops: the offered share is of the kernels."""

    def loss(p, x, y):
        for i, (w, gain, shift) in enumerate(p["layers"]):
            x = F.conv2d(x, w, padding=1)
            x = F.relu(F.batch_norm(x, None, None, gain, shift, training=True))
            x = F.max_pool2d(x, 2) if i == 1 else x
        return F.cross_entropy(x.mean(axis=(2, 3)) @ p["head"], y)

    def filled(*shape):
        return np.random.default_rng(0).standard_normal(shape).astype("f4")

    sizes = ((3, 11), (11, 17), (17, 19))
    layers = [(filled(b, a, 3, 3), filled(b), filled(b)) for a, b in sizes]
    arguments = {"head": filled(19, 7), "layers": layers}, filled(9, 3, 21, 23), np.arange(9) % 7
    with pytest.raises(cutback.BudgetError) as told:
        cutback.value_and_grad(loss, budget="0.01x", measure="live")(*arguments)
    offered, saved = told.value.smallest_share, told.value.save_all_bytes
    in_groups = told.value.smallest_bytes
    assert in_groups <= offered * saved <= in_groups * 1.01 + saved / 1000
    cutback.value_and_grad(loss, budget=f"{offered!r}x", measure="live")(*arguments)


@hypothesis.given(st.integers(1, 2**50), st.integers(0, 2**50))
def test_shares_in_messages_hold_what_they_name(whole, size):
    size %= whole + 1
    offered, floor = (errors.rounded_share(size, whole, up=up) for up in (True, False))
    assert int(float(f"{offered:g}") * whole) >= size >= float(f"{floor:g}") * whole * (1 - 1e-15)
    assert size * 0.99 <= floor * whole and offered * whole <= size * 1.01 + 1


def test_advice_about_constraints_where_there_are_some():
    save = cutback.CheckpointPolicy.MUST_SAVE
    with pytest.raises(cutback.BudgetError, match="relax MUST_SAVE") as told:
        cutback.plan(loss, W, X, budget="0.5x", policy=save)
    assert told.value.must_save


def test_a_printed_plan_says_what_its_budget_bounds():
    for measure in ("arena", "live", "saved", "total"):
        plan = cutback.plan(PROBLEM, budget="0.8x", measure=measure)
        first = str(plan).split("\n")[0]
        assert f" for {measure}" in first
        size = cutback.budgets.text(plan.numbers[f"{measure}_bytes"])
        assert (f"which is {size}" in first) == (measure != "arena")
    assert str(cutback.plan(PROBLEM)).split("\n")[0].endswith("no budget")
