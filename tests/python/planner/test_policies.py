"""Tests checkpoint regions and policies: which values the plan saves, and that no bit changes."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
from cutback import CheckpointPolicy, policies

RNG = np.random.default_rng(0)
X = RNG.standard_normal((16, 8))
W = {f"w{i}": RNG.standard_normal((8, 8)) / 3 for i in range(3)}


def block(x, w):
    return cutback.tanh(cutback.exp(cutback.sin(x @ w)))


def loss_with(wrap):
    def loss(params, x):
        for w in params.values():
            x = wrap(block)(x, w)
        return (x * x).mean()

    return loss


def kinds(plan, decision):
    return sorted(e.kind for e in plan.entries if e.decision == decision)


def gradients(loss, **options):
    vg = cutback.value_and_grad(loss, **options)
    value, grads = vg(W, X)
    return vg.plan, [value, *grads.values()]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


PLAIN, REFERENCE = gradients(loss_with(lambda f: f))


def test_a_region_recomputes_what_it_makes_but_not_what_it_returns():
    plan, values = gradients(loss_with(cutback.checkpoint))
    assert_same(values, REFERENCE)
    assert kinds(PLAIN, "recompute") == []
    assert set(kinds(plan, "save")) == {"tanh"}
    assert {"matmul", "sin", "exp"} <= set(kinds(plan, "recompute"))
    assert plan.numbers["saved_bytes"] < PLAIN.numbers["saved_bytes"]


def test_a_list_of_operations_to_save():
    plan, values = gradients(loss_with(lambda f: cutback.checkpoint(f, policy=["matmul"])))
    assert_same(values, REFERENCE)
    assert kinds(plan, "save").count("matmul") == 3
    assert {"sin", "exp"} <= set(kinds(plan, "recompute"))


def test_a_function_sees_operation_arguments_and_place():
    seen = []

    def policy(ctx, op, *args, **kwargs):
        seen.append((str(op), ctx.region, ctx.location, [a.shape for a in args], kwargs))
        return CheckpointPolicy.MUST_SAVE if op == "exp" else CheckpointPolicy.MUST_RECOMPUTE

    plan, values = gradients(loss_with(lambda f: cutback.checkpoint(f, policy=policy)))
    assert_same(values, REFERENCE)
    assert kinds(plan, "save").count("exp") == 3
    assert "matmul" in kinds(plan, "recompute")
    name, region, location, shapes, _ = seen[0]
    assert (name, region, shapes) == ("matmul", "block", [(16, 8), (8, 8)])
    assert location.startswith("test_policies.py:")


def test_names():
    def named(x, w):
        h = cutback.checkpoint_name(cutback.sin(x @ w), "sine")
        return cutback.tanh(cutback.exp(h))

    def loss(params, x):
        for w in params.values():
            x = cutback.checkpoint(named, policy=policies.save_only_these_names("sine"))(x, w)
        return (x * x).mean()

    plan, values = gradients(loss)
    assert_same(values, REFERENCE)
    assert kinds(plan, "save").count("sin") == 3
    assert {"matmul", "exp"} <= set(kinds(plan, "recompute"))


@pytest.mark.parametrize(
    ("policy", "saved"),
    [
        (policies.dots_saveable, {"matmul"}),
        (policies.nothing_saveable, set()),
        (["matmul", "tanh"], {"matmul", "tanh"}),
    ],
)
def test_a_policy_for_the_whole_function(policy, saved):
    plan, values = gradients(loss_with(lambda f: f), policy=policy)
    assert_same(values, REFERENCE)
    assert set(kinds(plan, "save")) <= saved


def test_the_inner_region_decides_first():
    @cutback.checkpoint(policy=["sin"])
    def inner(x, w):
        return cutback.exp(cutback.sin(x @ w))

    def outer(x, w):
        return cutback.tanh(inner(x, w))

    plan, values = gradients(loss_with(lambda f: cutback.checkpoint(outer)))
    assert_same(values, REFERENCE)
    assert kinds(plan, "save").count("sin") == 3


@pytest.mark.parametrize("size", [0, 16 * 8 * 8])
def test_a_budget_for_a_region(size):
    plan, values = gradients(loss_with(lambda f: cutback.checkpoint(f, budget=size)))
    assert_same(values, REFERENCE)
    problem = plan.problem
    for region in range(3):
        inside = [
            e
            for e in plan.saved
            if problem["ops"][_op_of(problem, e.value)].get("region") == region
        ]
        # tanh is the region's result
        assert sum(e.bytes for e in inside if e.kind != "tanh") <= size


def _op_of(problem, value):
    for i, op in enumerate(problem["ops"]):
        value -= len(op["out"])
        if value < 0:
            return i
    raise AssertionError


@pytest.mark.parametrize("budget", ["0.8x", "min"])
def test_policies_and_budgets_together(budget):
    _, values = gradients(loss_with(cutback.checkpoint), budget=budget)
    assert_same(values, REFERENCE)


def test_dropout_in_a_region_has_one_mask():
    drop = cutback.nn.functional.dropout

    def loss(params, x):
        for w in params.values():
            x = wrap(lambda x, w: drop(cutback.tanh(x @ w), 0.5))(x, w)
        return (x * x).mean()

    wrap = lambda f: f  # noqa: E731
    _, plain = gradients(loss, seed=3)
    wrap = cutback.checkpoint
    _, recomputed = gradients(loss, seed=3)
    assert_same(plain, recomputed)


@pytest.mark.parametrize(
    ("policy", "error", "text"),
    [
        ("matmul", TypeError, "neither a CheckpointPolicy"),
        (3, TypeError, "neither a CheckpointPolicy"),
        (["matmull"], ValueError, "'matmull', which does not exist"),
    ],
)
def test_mistakes(policy, error, text):
    with pytest.raises(error, match=text):
        cutback.checkpoint(block, policy=policy)


def test_a_policy_must_return_a_policy():
    with pytest.raises(TypeError, match=r"returned 'save' for matmul.*\[test_policies.py:"):
        gradients(
            loss_with(lambda f: cutback.checkpoint(f, policy=lambda ctx, op, *a, **k: "save"))
        )


def test_contradictions_name_both_sides():
    def loss(params, x):
        h = x @ params["w0"]
        return (cutback.nn.functional.dropout(h, 0.5) ** 2).mean()

    always = CheckpointPolicy.MUST_RECOMPUTE
    _, values = gradients(loss, policy=always)
    _, plain = gradients(loss)
    assert_same(values, plain)


def named(x, w):
    a = cutback.checkpoint_name(cutback.sin(x @ w), "sine")
    return cutback.tanh(cutback.checkpoint_name(cutback.exp(a), "growth"))


@pytest.mark.parametrize(
    ("policy", "saved", "recomputed"),
    [
        (policies.save_any_names_but_these("growth"), {"sin"}, {"exp"}),
        (policies.save_anything_except_these_names("growth"), {"matmul"}, {"exp"}),
        (
            policies.save_and_offload_only_these_names(
                names_which_can_be_saved=["sine"], names_which_can_be_offloaded=[]
            ),
            {"sin"},
            {"exp"},
        ),
        (
            policies.save_from_both_policies(policies.save_only_these_names("sine"), ["matmul"]),
            {"sin", "matmul"},
            {"exp"},
        ),
        (policies.dots_with_no_batch_dims_saveable, {"matmul"}, {"sin", "exp"}),
        (policies.checkpoint_dots, {"matmul"}, {"sin", "exp"}),
    ],
)
def test_names_of_jax(policy, saved, recomputed):
    plan, values = gradients(named_loss(policy))
    assert_same(values, REFERENCE)
    for kind in saved:
        assert kinds(plan, "save").count(kind) == 3, kind
    for kind in recomputed:
        assert kind in kinds(plan, "recompute"), kind


def named_loss(policy):
    def loss(params, x):
        for w in params.values():
            x = cutback.checkpoint(named, policy=policy)(x, w)
        return (x * x).mean()

    return loss


def test_products_with_batch_dimensions_are_told_apart():
    seen = {}

    def policy(ctx, op, *args, **kwargs):
        if op == "matmul":
            decision = policies.dots_with_no_batch_dims_saveable(ctx, op, *args, **kwargs)
            seen[tuple(len(arg.shape) for arg in args)] = decision
            assert policies.offload_dot_with_no_batch_dims(ctx, op, *args, **kwargs) == (
                CheckpointPolicy.MUST_OFFLOAD
                if decision == CheckpointPolicy.MUST_SAVE
                else CheckpointPolicy.PREFER_RECOMPUTE
            )
        return None

    def loss(w, x):
        h = x @ w
        return (h @ h).mean()

    cutback.plan(loss, np.ones((4, 4)), np.ones((2, 4, 4)), policy=policy)
    assert seen == {
        (3, 2): CheckpointPolicy.MUST_SAVE,
        (3, 3): CheckpointPolicy.PREFER_RECOMPUTE,
    }


def test_names_of_jax_that_contradict_themselves():
    with pytest.raises(ValueError, match="cannot both save and offload the names a"):
        policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["a"], names_which_can_be_offloaded=["a", "b"]
        )


@pytest.mark.parametrize("scalar", [bool, np.bool_])
def test_bools_save_and_recompute(scalar):
    """Bools work as in PyTorch and JAX; a mark to recompute does not discard what the policy saved
    of the operation."""

    def marked(x, w):
        y = cutback.checkpoint_name(x @ w, "product")
        return cutback.tanh(cutback.exp(cutback.sin(y)))

    def loss(policy):
        def sum_of_squares(params, x):
            for w in params.values():
                x = cutback.checkpoint(marked, policy=policy)(x, w)
            return (x * x).mean()

        return sum_of_squares

    plan, values = gradients(loss(lambda ctx, op, *_, **__: scalar(op == "matmul")))
    assert_same(values, REFERENCE)
    assert plan.numbers == gradients(loss(["matmul"]))[0].numbers
    both = policies.save_from_both_policies(
        lambda ctx, op, *_, **__: scalar(op == "sin"), policies.dots_saveable
    )
    assert {"matmul", "sin"} <= set(kinds(gradients(loss(both))[0], "save"))


@pytest.mark.parametrize("answer", [1, "save", np.ones(2), policies.save_only_these_names])
def test_other_answers_are_refused(answer):
    with pytest.raises(TypeError, match=r"the policy returned .* for matmul, not a .* or a bool"):
        gradients(loss_with(lambda f: cutback.checkpoint(f, policy=lambda *_, **__: answer)))


def test_a_policy_of_jax_is_refused():
    """A policy of JAX, called with a context instead of a primitive, would save nothing."""
    with pytest.raises(TypeError, match=r"takes \(prim, .*cutback.policies has the same names"):
        cutback.checkpoint(block, policy=lambda prim, *_, **__: prim == "dot_general")


@pytest.mark.parametrize(
    "name",
    [
        *("dots_saveable", "everything_saveable", "nothing_saveable"),
        *("dots_with_no_batch_dims_saveable", "checkpoint_dots"),
    ],
)
def test_ready_policies_are_not_called(name):
    """A ready policy, called with JAX's arguments, used to return a policy that recomputes
    everything."""
    policy = getattr(policies, name)
    for arguments in [(), ("device", "pinned_host")]:
        with pytest.raises(TypeError, match=r"is a policy: pass .*, without calling it"):
            policy(*arguments)


def test_offload_policies_take_the_places_of_jax():
    plain = policies.offload_dot_with_no_batch_dims
    arguments = policies.PolicyContext(None, None), policies.Op("matmul"), X, W["w0"]
    for policy in (
        plain,
        plain("device", "pinned_host"),
        plain(offload_src="device", offload_dst="pinned_host"),
    ):
        assert policy(*arguments) is CheckpointPolicy.MUST_OFFLOAD
    with pytest.raises(ValueError, match="values can only move from 'device' to 'pinned_host'"):
        plain("device", "unpinned_host")
    with pytest.raises(TypeError):
        plain("device")
    names = {"names_which_can_be_saved": [], "names_which_can_be_offloaded": ["a"]}
    policies.save_and_offload_only_these_names(
        **names, offload_src="device", offload_dst="pinned_host"
    )
    with pytest.raises(ValueError, match="offload_dst='disk'"):
        policies.save_and_offload_only_these_names(**names, offload_dst="disk")


def test_checkpoint_takes_the_arguments_of_jax():
    def power(x, w, exponent, training):
        return block(x, w) if training else x**exponent

    for form in (
        cutback.checkpoint(power, static_argnums=(2, 3), prevent_cse=False),
        cutback.checkpoint(static_argnums=-1)(power),
    ):
        plan, values = gradients(loss_with(lambda f, form=form: lambda x, w: form(x, w, 2, True)))
        assert_same(values, REFERENCE)
        assert set(kinds(plan, "save")) == {"tanh"}
    with pytest.raises(TypeError, match="expected positions of arguments, as integers"):
        cutback.checkpoint(power, static_argnums="exponent")
    with pytest.raises(ValueError, match=r"static_argnums has 4, but power was called with 4 "):
        gradients(loss_with(lambda f: lambda x, w: cutback.checkpoint(
            power, static_argnums=4)(x, w, 2, True)))  # fmt: skip
    with pytest.raises(TypeError, match="that argument of power is a traced array"):
        gradients(loss_with(lambda f: lambda x, w: cutback.checkpoint(
            power, static_argnums=1)(x, w, 2, True)))  # fmt: skip


def test_the_innermost_policy_decides():
    def nested(inner, outer):
        def wrap(f):
            inside = cutback.checkpoint(f, policy=inner)
            return cutback.checkpoint(lambda x, w: cutback.sin(inside(x, w)), policy=outer)

        return gradients(loss_with(wrap))[0]

    saving = nested(policies.everything_saveable, policies.nothing_saveable)
    assert {"exp", "matmul"} <= set(kinds(saving, "save"))
    rerunning = nested(policies.nothing_saveable, policies.everything_saveable)
    assert {"exp", "matmul"} <= set(kinds(rerunning, "recompute"))


@pytest.mark.parametrize("budget", [1, 0.5, 1.0, np.float32(0.5)])
def test_a_region_takes_bytes_and_not_a_position(budget):
    with pytest.raises(
        ValueError, match="is a position, but a region's budget is a number of bytes"
    ):
        cutback.checkpoint(lambda x: x, budget=budget)


def test_a_region_may_save_nothing_or_one_byte():
    plan, _ = gradients(loss_with(lambda f: cutback.checkpoint(f, budget=0)))
    for budget in (0.0, "0B"):
        other, _ = gradients(loss_with(lambda f, b=budget: cutback.checkpoint(f, budget=b)))
        assert other.to_json() == plan.to_json()
    cutback.checkpoint(lambda x: x, budget="1B")
    for wrong, error in (("0.4x", ValueError), (True, TypeError), ("min", ValueError)):
        with pytest.raises(error, match="size"):
            cutback.checkpoint(lambda x: x, budget=wrong)
