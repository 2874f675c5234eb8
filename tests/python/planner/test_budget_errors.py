"""Budget errors state facts that planning confirms, in one short sentence."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import re
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import cutback
from cutback import _native, budgets, errors

sys.path.insert(0, str(Path(__file__).parent))

from test_random_problems import Maker

MEASURES = ("arena", "live", "saved", "total")
SETTINGS = hypothesis.settings(max_examples=40, deadline=None, derandomize=True)


def refused(problem, **question):
    with pytest.raises(cutback.BudgetError) as told:
        cutback.plan(problem, **question)
    return told.value


def numbers_of(error):
    """Returns the numbers of a sentence with their units, except those in names."""
    text = str(error)
    for name in filter(None, (error.op, error.region)):
        text = re.sub(rf"(at|region) {re.escape(name)}( \([^)]*\))?", "", text)
    return re.findall(r"\d[\d.]*(?:%| [KMGT]?i?B\b)?", text)


def check_sentence(error):
    text, numbers = str(error), numbers_of(error)
    assert len(text) < 200 and "\n" not in text, text
    assert len(numbers) == len(set(numbers)), text
    assert 'budget="min"' in text, text


def two_layers(**more):
    """Returns two operations before the backward, 1000 bytes each."""
    ops = [
        ("x", ["placeholder"], [], 0), ("h", ["compute"], [0], 1), ("l", ["fusible"], [1], 2),
        ("g", ["compute", "backward"], [1, 2], 3),
    ]  # fmt: skip
    sizes = [1000, 1000, 1000, 500]
    return {
        "format": "cutback.problem", "version": 1, "backward_starts": 3,
        "forward_outputs": [2], "backward_outputs": [3],
        "storages": [{"bytes": n, "flags": ["static"] * (i == 0)} for i, n in enumerate(sizes)],
        "ops": [
            {"name": more.get(n, n), "flags": f, "in": i, "out": [{"storage": s}], "time_ps": 5,
             "at": f"model.py:{s}"}
            for n, f, i, s in ops
        ],
    }  # fmt: skip


# ---- what planning says of the facts -------------------------------------------------------------


@SETTINGS
@hypothesis.given(st.data(), st.floats(0.01, 0.9), st.sampled_from(MEASURES), st.booleans())
def test_the_facts_agree_with_planning(data, share, measure, by_share):
    problem = Maker(data.draw).problem(constrained=False)
    question = {"measure": measure, "device": "a100"}
    whole = cutback.plan(problem, budget="1.0x", **question).document["budget_bytes"]
    budget = f"{share!r}x" if by_share else f"{int(share * whole)}B"
    try:
        cutback.plan(problem, budget=budget, **question)
    except cutback.BudgetError as raised:
        error = raised
    else:
        return
    hypothesis.event("refused")
    check_sentence(error)
    assert (error.reason, error.measure) == ("budget", measure)
    assert error.budget_bytes == int(share * whole)
    assert error.share == (share if by_share else None)
    assert error.save_all_bytes == error.reference_bytes == whole
    least = error.smallest_bytes
    assert error.budget_bytes < least
    plan = cutback.plan(problem, budget=f"{least}B", **question)
    assert plan.numbers[f"{measure}_bytes"] <= least
    if error.smallest_share <= 1:
        cutback.plan(problem, budget=f"{error.smallest_share!r}x", **question)
    if error.floor_bytes is not None:
        assert error.floor_bytes <= least
        if error.floor_bytes > 0:
            refused(problem, budget=f"{error.floor_bytes - 1}B", **question)
    names = {op["name"] for op in problem["ops"]}
    assert {error.op, error.floor_op} <= {None, *names}
    # the figure in the sentence is a valid budget
    found = re.search(r"takes ([\d.]+ [KMG]?i?B|\d+ bytes)", str(error))
    if found and found[1].endswith("B"):
        cutback.plan(problem, budget=found[1], **question)


@pytest.mark.parametrize("groups", [True, False, None])
def test_a_compiled_step_offers_a_share_that_it_keeps(groups):
    def loss(w, x):
        for _ in range(2):
            x = cutback.tanh(x @ w)
        return (x * x).mean()

    w, x = np.full((8, 8), 0.1, np.float32), np.ones((64, 8), np.float32)
    for budget in ("0.01x", 100):
        with pytest.raises(cutback.BudgetError) as told:
            cutback.value_and_grad(loss, budget=budget, groups=groups)(w, x)
        error = told.value
        check_sentence(error)
        assert error.share == (0.01 if budget == "0.01x" else None)
        assert error.smallest_share <= 1 and error.floor_bytes is None
        for offered in (f"{error.smallest_share!r}x", error.smallest_bytes):
            cutback.value_and_grad(loss, budget=offered, groups=groups)(w, x)


def test_names_are_not_read_as_facts():
    """Operations may have any name, even one that looks like a part of the error."""
    name = "none is below 7 bytes"
    for spelt in (name, "needs 3 bytes", "0.2 of the 9 bytes that saving everything takes: "):
        error = refused(two_layers(h=spelt, g="g"), budget="0.5x", measure="live", device="cpu")
        plain = refused(two_layers(), budget="0.5x", measure="live", device="cpu")
        assert error.floor_bytes == plain.floor_bytes > 1000
        assert error.smallest_bytes == plain.smallest_bytes
        assert error.smallest_share == plain.smallest_share
        assert error.floor_share == plain.floor_share
    many = refused(two_layers(g=name), budget="0.5x", measure="live", device="cpu")
    assert many.op == name and many.floor_share == plain.floor_share > 0.5


def test_the_limit_of_a_region():
    problem = two_layers()
    problem["regions"] = [{"name": "block 7", "saved_limit": 60}]
    for op in problem["ops"][1:3]:
        op["region"] = 0
    problem["ops"][1]["out"][0]["constraint"] = "must_save"
    problem["forward_outputs"] = []
    problem["ops"][3]["in"] = [1, 2]
    with pytest.raises(cutback.BudgetError) as told:
        cutback.plan(problem, device="cpu")
    error = told.value
    check_sentence(error)
    assert (error.reason, error.region, error.budget_bytes) == ("region", "block 7", 60)
    assert error.smallest_bytes >= 1000 and str(error).startswith("region block 7 may save 60 B")


def test_searches_that_are_ended():
    error = refused(two_layers(), budget=10, time_limit=1e-9, device="cpu")
    check_sentence(error)
    assert (error.reason, error.budget_bytes, error.smallest_bytes) == ("stopped", 10, None)


# ---- the object ----------------------------------------------------------------------------------


def test_errors_are_pickled_and_copied():
    error = refused(two_layers(), budget="0.5x", device="cpu")
    error.add_note("seen")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is cutback.BudgetError and str(other) == str(error)
        assert other.__dict__ == error.__dict__ and other.floor_bytes == error.floor_bytes
    assert isinstance(error, ValueError)
    other = error.replace(budget_bytes=1, share=None)
    assert "one byte" in str(other) and other.smallest_bytes == error.smallest_bytes
    assert str(cutback.BudgetError("own words").replace(batch=3)) == "own words"
    with pytest.raises(TypeError, match="no attribute smallest"):
        cutback.BudgetError(smallest=3)


def test_several_budgets_give_the_same_errors():
    problem = two_layers()
    asked = ["0.5x", None, 10, "min"]
    for budget, answer in zip(asked, cutback.plans(problem, asked, device="cpu"), strict=True):
        if isinstance(answer, cutback.BudgetError):
            alone = refused(problem, budget=budget, measure="live", device="cpu")
            assert answer.__dict__ == alone.__dict__ and str(answer) == str(alone)


def test_budgets_are_answered_until_one_is_met():
    problem = _native.Problem.read(json.dumps(two_layers()))
    asked = [budgets.parse(budget, "live") for budget in (10, 20, "smallest", 10**6, 10)]
    for met in ([2], [3], [0, 3]):
        several = [asked[i] for i in (0, 1, *met, 4)] if met[0] else [asked[3], *asked]
        *refusals, last = problem.plans(several, device="cpu", until_met=True)
        assert len(refusals) == (2 if met[0] else 0)
        for budget, answer in zip(several, refusals, strict=False):
            (alone,) = problem.plans([budget], device="cpu")
            assert answer.__dict__ == alone.__dict__
        alone = problem.plan(budget=several[len(refusals)], device="cpu")
        assert last.to_json() == alone.to_json()
    both = problem.plans(asked[:2], device="cpu", until_met=True)
    assert [type(answer) for answer in both] == 2 * [cutback.BudgetError]
    assert problem.plans([], until_met=True) == []


def test_the_docstring_lists_every_attribute():
    listed = set(re.findall(r"^ {4}(\w+): ", inspect.getdoc(cutback.BudgetError), re.MULTILINE))
    shares = {"smallest_share", "floor_share"}
    assert listed == {*cutback.BudgetError.__annotations__, *shares}
    assert set(vars(refused(two_layers(), budget="1B", device="cpu"))) <= listed


# ---- the sentence --------------------------------------------------------------------------------

SIZES = st.none() | st.integers(1, 2**12) | st.integers(1, 2**45)
NAMES = st.none() | st.text("abcdefgh_", min_size=1, max_size=95)


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
@hypothesis.given(
    st.sampled_from(("budget", "time", "constraints", "region", "pinned", "stopped")),
    st.sampled_from(MEASURES),
    st.none() | st.floats(1e-9, 1.0),
    st.tuples(st.integers(0, 2**45), SIZES, SIZES, SIZES),
    st.tuples(NAMES, NAMES, NAMES),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.none() | st.integers(1, 2**20),
    st.none() | st.floats(0.0, 1.0),
)  # fmt: skip
def test_sentences_are_short_and_say_no_number_twice(
    reason, measure, share, sizes, names, flags, batch, position
):
    budget, over, floor, beside = sizes
    op, location, region = names
    smallest = None if over is None else budget + over
    error = cutback.BudgetError(
        reason=reason,
        measure=measure,
        share=share,
        budget_bytes=budget,
        smallest_bytes=smallest,
        floor_bytes=None if floor is None else min(floor, smallest or floor),
        save_all_bytes=int(budget / share) if share else None,
        op=op,
        location=location,
        region=region,
        unplanned_bytes=beside,
        pinned_bytes=over and budget,
        is_upper_bound=flags[0],
        must_save=flags[1],
        follows_autograd=flags[2],
        batch=batch if reason == "budget" else None,
        max_extra=share,
        position=position if reason == "budget" and share is None else None,
    )
    plain = numbers_of(error.replace(batch=None, position=None))
    hypothesis.assume(batch is None or str(batch) not in plain)
    hypothesis.assume(position is None or f"{position:g}" not in (*plain, str(batch)))
    hypothesis.assume(position is None or "e" not in f"{position:g}")
    check_sentence(error)


@hypothesis.given(st.integers(1, 2**62), st.integers(-3, 3))
def test_sizes_that_differ_look_different_and_round_to_the_safe_side(size, apart):
    other = max(1, size + apart)
    texts = errors._sizes((size, 1), (other, -1))
    assert (texts[0] == texts[1]) == (size == other) or size == other
    if texts[0].endswith("B"):
        assert budgets.parse_bytes(texts[0]) >= size
        assert budgets.parse_bytes(texts[1]) <= other


def test_results_that_exceed_the_budget_alone_are_named():
    rng = np.random.default_rng(0)
    params = [rng.standard_normal((64, 64), np.float32) for _ in range(3)]

    def loss(params, x):
        for w in params:
            x = cutback.tanh(x @ w)
        return x.sum()

    step = cutback.compile(loss, optimizer=cutback.optim.SGD(lr=0.1))
    step(params, rng.standard_normal((16, 64), np.float32))
    with pytest.raises(cutback.BudgetError) as told:  # the step itself would update inside
        cutback.plan(step.plan.problem, budget="0.1x", measure="arena")
    error = told.value
    assert error.held_bytes == 3 * 64 * 64 * 4 > error.budget_bytes
    share = errors.rounded_share(error.held_bytes, error.reference_bytes, up=False)
    assert f"; results and gradients alone take {100 * share:.6g}%. " in str(error)
    check_sentence(error)


def test_slices_are_offered_where_they_meet_the_budget():
    rng = np.random.default_rng(0)
    params = [rng.standard_normal(s, np.float32) for s in ((1, 64), (64, 12))]
    x = rng.standard_normal((512, 1), np.float32)

    def loss(params, x):
        y = cutback.tanh(x @ params[0]) @ params[1]
        return cutback.logsumexp(y, axis=1).mean()

    with pytest.raises(cutback.BudgetError) as told:
        cutback.value_and_grad(loss, budget="0.6x")(params, x)
    error = told.value
    assert error.sliced_bytes <= error.budget_bytes < error.smallest_bytes
    share = errors.rounded_share(error.sliced_bytes, error.reference_bytes)
    assert f". Pass slices=True, which takes {100 * share:.6g}%, or budget=" in str(error)
    check_sentence(error)
    step = cutback.value_and_grad(loss, budget=error.budget_bytes, slices=True)
    step(params, x)
    assert step.planned.arena_bytes == error.sliced_bytes
    with pytest.raises(cutback.BudgetError, match="Raise the budget"):  # no chain has 512 rows
        cutback.value_and_grad(loss, budget="0.1x")(params, x[:256])
