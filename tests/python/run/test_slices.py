"""Tests ``slices=True``: pieces of losses and perceptrons, their bits under every budget, and
peaks."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

import cutback as cb
from cutback import _native, tree
from cutback.nn import functional as F

pytestmark = pytest.mark.skipif(
    "CUTBACK_TEST_BACKEND" in os.environ, reason="compares bits of CPU backends"
)
ROWS, WIDTH, VOCABULARY = 768, 32, 90
BUDGETS = [None, 0.5, "min", "smallest"]


def parameters(dtype=np.float32):
    random = np.random.default_rng(0)
    shapes = {
        "token": (VOCABULARY, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH),
        "bias": (4 * WIDTH,),
    }  # fmt: skip
    return {k: (0.3 * random.standard_normal(s)).astype(dtype) for k, s in shapes.items()}


def batch(rows=ROWS, heads=3):
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (2, heads, rows // heads))
    tokens[1, 0, :5] = -100
    return tokens[0] % VOCABULARY, tokens[1]


def head(p, x, labels):
    return F.cross_entropy(cb.tanh(x) @ p["token"].T, labels)


def perceptron(p, x):
    return F.gelu(x @ p["up"] + p["bias"]) @ p["down"]


def model(p, tokens, labels):
    x = F.embedding(tokens, p["token"])
    x = x + perceptron(p, F.layer_norm(x, (WIDTH,)))
    return head(p, x, labels)


def gradients(loss, args, **options):
    step = cb.value_and_grad(loss, **options)
    value, grads = step(*args)
    return step, [np.asarray(value), *map(np.asarray, tree.flatten(grads)[0])]


def bits(arrays):
    return [array.tobytes() for array in arrays]


def close(ones, others, rtol=5e-4, atol=2e-5):
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def check_bits(loss, args, ways):
    whole = gradients(loss, args)[1]
    first = gradients(loss, args, slices=True)[1]
    for options in ways:
        step, cut = gradients(loss, args, slices=True, **options)
        assert bits(cut) == bits(first)
        planned = step.planned
        peak = planned.live_bytes if "backend" in options else planned.arena_bytes
        assert step.stats.peak_bytes == peak
    close(whole, first)


def tokens_and_labels(rows=ROWS):
    _, labels = batch(rows, heads=1)
    x = np.random.default_rng(3).standard_normal((rows, WIDTH)).astype(np.float32)
    return x, labels[0]


def test_bits_are_the_same_under_every_budget():
    args = parameters(), *tokens_and_labels(512)
    check_bits(head, args, [{"budget": "smallest"}, {"backend": "debug"}])


@pytest.mark.very_slow
def test_bits_of_a_model_are_the_same_under_every_budget():
    ways = [{"budget": b, "groups": g} for b in BUDGETS for g in (None, True)]
    ways.append({"budget": "min", "backend": "debug"})
    check_bits(model, (parameters(), *batch()), ways)


def check_reference(loss, args):
    twin = gradients(loss, args, backend="ref")[1]
    for options in ({}, {"backend": "ref"}):
        close(twin, gradients(loss, args, slices=True, **options)[1], rtol=1e-9, atol=1e-12)


def test_it_agrees_with_the_reference_backend():
    x, labels = tokens_and_labels(512)
    check_reference(head, ({"token": np.ones((9, 4))}, x[:, :4].astype(float), labels % 9))


@pytest.mark.very_slow
def test_a_model_agrees_with_the_reference_backend():
    check_reference(model, (parameters(np.float64), *batch()))


def without_bias(p, x, labels):
    return head(p, F.gelu(x @ p["up"]) @ p["down"], labels)


@pytest.mark.skipif(_native.machine()["isa"] == "baseline", reason="products may go to a BLAS")
def test_sums_of_pieces_have_the_bits_of_whole_products():
    random = np.random.default_rng(2)
    x = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    labels = random.integers(0, VOCABULARY, ROWS)
    args = parameters(), x, labels
    step, cut = gradients(without_bias, args, slices=True)
    assert len(step.slices) == 2
    assert bits(cut) == bits(gradients(without_bias, args)[1])


def test_the_logits_never_exist_whole():
    rows, labels = 2048, np.zeros(2048, np.int64)
    x = np.random.default_rng(3).standard_normal((rows, WIDTH)).astype(np.float32)
    logits = rows * VOCABULARY * 4
    peaks = {}
    for slices in (False, True):
        step, _ = gradients(head, (parameters(), x, labels), slices=slices)
        peaks[slices] = step.planned.live_bytes
    ends = 4 * rows * (3 * WIDTH + 4) + 4 * VOCABULARY * WIDTH
    assert peaks[False] > 2 * logits
    assert peaks[True] < 2 * logits // 8 + ends
    assert step.slices == (
        f"test_slices.py:{head.__code__.co_firstlineno + 1} cross_entropy: 2048 rows in 8 pieces, "
        "each followed by its gradients",
    )


def test_gradients_that_depend_on_the_loss_come_in_the_backward():
    def squared(p, x, labels):
        return head(p, x, labels) ** 2

    args = parameters(), np.ones((ROWS, WIDTH), np.float32), batch(heads=1)[1][0]
    step, cut = gradients(squared, args, slices=True, budget="smallest")
    assert step.slices[0].endswith(f"{ROWS} rows in 3 pieces")
    close(gradients(squared, args)[1], cut)


def test_logits_of_a_sum_and_of_two_losses():
    def two(p, x, labels):
        smooth = F.cross_entropy(x @ p["token"].T, labels, label_smoothing=0.1, reduction="sum")
        return smooth + head(p, x, labels)

    args = parameters(), np.full((ROWS, WIDTH), 0.1, np.float32), batch(heads=1)[1][0]
    step, cut = gradients(two, args, slices=True)
    assert sum("pieces" in line for line in step.slices) == 1  # the other logits are read twice
    close(gradients(two, args)[1], cut)


def test_gated_perceptrons_and_norms():
    def gated(p, x):
        y = F.silu(x @ p["up"]) * (x @ p["down"].T)
        return ((F.softmax(F.rms_norm(y, (4 * WIDTH,))) @ p["down"]) ** 2).sum()

    args = parameters(), np.random.default_rng(4).standard_normal((ROWS, WIDTH)).astype(np.float32)
    step, cut = gradients(gated, args, slices=True)
    assert "matmul: 768 rows in 3 pieces" in step.slices[0]
    assert step.planned.live_bytes < gradients(gated, args)[0].planned.live_bytes
    close(gradients(gated, args)[1], cut)


def test_a_chain_that_reads_the_result_of_another():
    def both(p, x, labels):
        return F.cross_entropy(F.gelu(x @ p["up"]) @ p["down"] @ p["token"].T, labels)

    args = parameters(), *tokens_and_labels(512)
    step, cut = gradients(both, args, slices=True)
    assert sum("512 rows in 2 pieces" in line for line in step.slices) == 2
    close(gradients(both, args)[1], cut)


def test_chains_with_other_rows_that_read_one_value():
    def both(p, x, y):
        scale = cb.broadcast_to(p["scale"], (512, 4, 32))
        by_4 = ((x @ p["a"]).reshape(512, 4, 32) * scale).reshape(2048, 32) @ p["b"]
        by_1 = ((y @ p["c"]).reshape(512, 4, 32) * scale).reshape(512, 128) @ p["d"]
        return by_4.sum() + (by_1**2).sum()

    random = np.random.default_rng(5)
    shapes = {"a": (8, 32), "b": (32, 4), "c": (16, 128), "d": (128, 8), "scale": (512, 4, 1)}
    p = {k: random.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    x, y = (random.standard_normal(s).astype(np.float32) for s in ((2048, 8), (512, 16)))
    step, cut = gradients(both, (p, x, y), slices=True)
    assert [line.split(": ")[1] for line in step.slices] == [
        "2048 rows in 8 pieces", "512 rows in 2 pieces",
    ]  # fmt: skip
    close(gradients(both, (p, x, y))[1], cut, rtol=2e-3, atol=2e-3)


def test_what_stays_whole_says_why():
    def reasons(loss, *args):
        return cb.value_and_grad(loss, slices=True).prepare(*args).slices

    def dropped(p, x):
        return (F.dropout(F.relu(x @ p["up"]), 0.5) @ p["down"]).sum()

    def returned(p, x):
        logits = x @ p["token"].T
        return F.cross_entropy(logits, np.zeros(len(x), np.int64)), logits

    def in_halves(p, x):
        logits = x.astype(np.float16) @ p["token"].T.astype(np.float16)
        return F.cross_entropy(logits.astype(np.float32), np.zeros(len(x), np.int64))

    x = np.ones((ROWS, WIDTH), np.float32)
    p = parameters()
    (few,) = reasons(head, p, x[:300], np.zeros(300, np.int64))
    assert few.endswith("cross_entropy: whole, as there are fewer than 512 rows")
    (random,) = reasons(dropped, p, x)
    assert "no matrix product by rows leads here" in random
    (halves,) = reasons(head, parameters(np.float16), x.astype(np.float16), np.zeros(ROWS, int))
    assert "in 16 bits" in halves
    (mixed,) = reasons(in_halves, p, x)
    assert "in 16 bits" in mixed
    step = cb.value_and_grad(returned, has_aux=True, slices=True).prepare(p, x)
    assert "read elsewhere" in step.slices[0]
    assert cb.value_and_grad(head).prepare(p, x, np.zeros(ROWS, int)).slices == ()


def check_steps(loss, data, updates, budgets):
    runs = []
    for budget in budgets:
        params = parameters()
        step = cb.compile(
            loss, optimizer=cb.optim.AdamW(), updates=updates, budget=budget, slices=True
        )
        losses = [step(params, *data).tobytes() for _ in range(2)]
        assert step.updates_reason == ""
        assert step.updates_inside is (updates == "inside")
        runs.append((losses, bits(params.values())))
    assert all(run == runs[0] for run in runs)
    return runs[0]


def test_steps_of_an_optimizer():
    data = tokens_and_labels(512)
    assert check_steps(head, data, "after", [None]) == check_steps(head, data, "inside", [None])


@pytest.mark.very_slow
def test_steps_of_a_model():
    runs = [check_steps(model, batch(), way, [None, "smallest"]) for way in ("after", "inside")]
    assert runs[0] == runs[1]


def test_pieces_without_gradients():
    args = parameters(), *batch()
    cut = cb.compile(model, argnums=None, slices=True)(*args)
    whole = cb.compile(model, argnums=None)(*args)
    np.testing.assert_allclose(cut, whole, rtol=1e-5)


def test_other_values_are_refused():
    for value in (8, "auto", None):
        with pytest.raises(TypeError, match=re.escape(f"slices={value!r} is neither True nor")):
            cb.compile(model, slices=value)


def test_products_are_added_to_their_base_on_a_gpu():
    args = parameters(), *tokens_and_labels(512)
    code = cb.value_and_grad(head, slices=True).prepare(*args).code("cuda")
    assert code.count("base_at +") > code.count("I base_at = 0;") > 0
