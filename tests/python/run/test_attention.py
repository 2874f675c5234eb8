"""Compares the op `attention` with a referee in f64 and with its composition: masks, dropout,
grouped heads, odd sizes, all dtypes. The bits are the same for any plan, number of threads and
instruction set."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import cutback
from cutback.nn import functional as F

RNG = np.random.default_rng(11)
TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 6e-3, "bf16": 5e-2}


class Case(NamedTuple):
    """Sizes of q [b, h, l, e], k [b, few, s, e] and v [b, few, s, d]."""

    b: int
    h: int
    few: int
    l: int
    s: int
    e: int
    d: int
    causal: bool = False
    mask: str = ""


CASES = [
    Case(1, 2, 2, 3, 5, 1, 2),
    Case(2, 4, 2, 50, 70, 8, 5, causal=True),
    Case(1, 3, 3, 130, 97, 16, 32, causal=True),
    Case(1, 2, 1, 97, 200, 33, 17, causal=True),
    Case(1, 2, 1, 200, 97, 48, 64, mask="bool"),
    Case(2, 2, 1, 100, 193, 7, 256, mask="float"),
    Case(2, 1, 1, 65, 111, 256, 16, mask="keys"),
]


def operands(case: Case, dtype: str) -> tuple[list[Any], Any]:
    """Returns (q, k, v, and the weights of the result), mask."""
    b, h, few, l, s, e, d = case[:7]
    shapes = ((b, h, l, e), (b, few, s, e), (b, few, s, d), (b, h, l, d))
    kind = np.float64 if dtype == "f64" else np.float16 if dtype == "f16" else np.float32
    mask: Any = None
    if case.mask == "bool":
        mask = RNG.random((b, 1, l, s)) < 0.5
        mask[0, 0, 1] = False
    elif case.mask == "keys":
        mask = RNG.random((b, 1, 1, s)) < 0.7
    elif case.mask == "float":
        mask = RNG.standard_normal((1, h, l, s)).astype(kind)
        mask[0, 0, 0] = -np.inf
        mask[0, :, -1, 1:] = -np.inf
    return [RNG.standard_normal(shape).astype(kind) for shape in shapes], mask


def referee(case: Case, q: Any, k: Any, v: Any, w: Any, mask: Any) -> list[np.ndarray]:
    """Returns the result and its gradients of (y * w).sum(), in f64, from their definitions."""
    q, k, v, w = (np.asarray(x, np.float64) for x in (q, k, v, w))
    n = case.h // case.few
    k, v = np.repeat(k, n, 1), np.repeat(v, n, 1)
    factor = 1 / np.sqrt(case.e)
    scores = q @ k.swapaxes(-1, -2) * factor
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if case.causal:
        scores = np.where(np.tri(case.l, case.s, dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = p.sum(-1, keepdims=True)
    p = p / np.where(total == 0, 1, total)
    y = p @ v
    slope = p * (w @ v.swapaxes(-1, -2) - (w * y).sum(-1, keepdims=True)) * factor

    def shared(x: np.ndarray) -> np.ndarray:
        return x.reshape(case.b, case.few, n, *x.shape[2:]).sum(2)

    return [y, slope @ k, shared(slope.swapaxes(-1, -2) @ q), shared(p.swapaxes(-1, -2) @ w)]


def attend(case: Case, dtype: str, mask: Any, p: float = 0.0) -> Any:
    """Returns a function of (q, k, v, w) that computes the loss and the result."""

    def loss(q: Any, k: Any, v: Any, w: Any) -> Any:
        q, k, v = (x.astype(dtype) for x in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, mask, p, is_causal=case.causal, enable_gqa=case.h != case.few
        )
        return (y.astype("f64") * w.astype("f64")).sum(), y.astype("f64")

    return loss


def run(
    case: Case, dtype: str, arrays: list[Any], mask: Any, p: float = 0.0, **options: Any
) -> Any:
    """Returns the result and the gradients."""
    loss = attend(case, dtype, mask, p)
    step = cutback.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True, **options)
    (_, y), gradients = step(*arrays)
    return [y, *gradients]


def bits(results: list[Any]) -> list[bytes]:
    """Returns bits that are equal for equal results."""
    return [np.ascontiguousarray(x).tobytes() for x in results]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_attention_and_its_gradients_beside_a_referee(case: Case, dtype: str) -> None:
    arrays, mask = operands(case, dtype)
    if dtype == "bf16":
        arrays = [(x.view(np.uint32) & 0xFFFF0000).view(np.float32) for x in arrays]
    found = run(case, dtype, arrays, mask)
    for got, wanted in zip(found, referee(case, *arrays, mask), strict=True):
        assert got.shape == wanted.shape
        error = np.abs(np.asarray(got, np.float64) - wanted).max()
        assert error <= TOLERANCE[dtype] * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_bits_depend_neither_on_threads_nor_on_the_instruction_set(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads split a single head of k and v into two passes; one thread takes one pass."""
    threads = cutback.get_num_threads()
    for case in (CASES[3], CASES[2]._replace(h=1, few=1), CASES[5]._replace(d=20)):
        arrays, mask = operands(case, dtype)
        wanted = bits(run(case, dtype, arrays, mask, 0.2, seed=5))
        try:
            for n in (1, 3):
                cutback.set_num_threads(n)
                assert bits(run(case, dtype, arrays, mask, 0.2, seed=5)) == wanted
        finally:
            cutback.set_num_threads(threads)
        for isa in ("avx2", "baseline"):
            monkeypatch.setenv("CUTBACK_ISA", isa)
            assert bits(run(case, dtype, arrays, mask, 0.2, seed=5)) == wanted
        monkeypatch.delenv("CUTBACK_ISA")


def test_bits_do_not_depend_on_the_plan() -> None:
    case = CASES[2]
    arrays, _ = operands(case, "f32")

    def loss(q: Any, k: Any, v: Any, w: Any) -> Any:
        y = q
        for _ in range(3):
            y = F.gelu(F.scaled_dot_product_attention(y, k, v @ v.swapaxes(-1, -2) @ k, None, 0.1))
        return (y * y).mean() * w.mean()

    steps = [
        cutback.value_and_grad(loss, argnums=(0, 1, 2), seed=3, budget=budget)
        for budget in (1.0, 0.5, "min")
    ]
    found = [step(*arrays) for step in steps]
    assert steps[2].executable.text("program").count(" attention(") > 3  # some are recomputed
    assert all(bits([x[0], *x[1]]) == bits([found[0][0], *found[0][1]]) for x in found)


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[5]._replace(d=4)])
def test_the_op_beside_what_it_is_composed_of(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The op agrees with its composition under dropout, which uses the masks that `dropout` gives
    for the full scores."""
    from cutback.nn import attention

    arrays, mask = operands(case, "f64")
    op = run(case, "f64", arrays, mask, 0.3, seed=7)
    monkeypatch.setattr(attention, "_LARGEST_HEAD", 0)
    composed = run(case, "f64", arrays, mask, 0.3, seed=7)
    for a, b in zip(op, composed, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_scores_are_never_written() -> None:
    q, k, v = (RNG.standard_normal((1, 2, 512, 16)).astype(np.float32) for _ in range(3))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (F.scaled_dot_product_attention(q, k, v, is_causal=True) ** 2).mean()

    step = cutback.value_and_grad(loss, argnums=(0, 1, 2))
    step(q, k, v)
    program = step.executable.text("program")
    assert "attention_bwd" in program and "softmax" not in program and "matmul" not in program
    assert step.stats.peak_bytes < 512 * 512 * 4 * 2


def test_a_mask_may_have_a_gradient() -> None:
    """A learned bias is computed through the primitives."""
    case = CASES[0]
    arrays, _ = operands(case, "f64")
    bias = RNG.standard_normal((1, 2, 3, 5))

    def loss(bias: Any, *arrays: Any) -> Any:
        return attend(case, "f64", bias)(*arrays)[0]

    step = cutback.value_and_grad(loss)
    slope = step(bias, *arrays)[1]
    for at in ((0, 0, 0, 0), (0, 1, 2, 4)):
        by = np.zeros_like(bias)
        by[at] = 1e-6
        ends = [float(step(bias + sign * by, *arrays)[0]) for sign in (1, -1)]
        assert abs((ends[0] - ends[1]) / 2e-6 - slope[at]) < 1e-7


def test_shapes_that_the_op_does_not_take() -> None:
    """Heads of more than 256 elements use products and softmax."""
    q = RNG.standard_normal((2, 3, 300)).astype(np.float32)
    step = cutback.compile(lambda q: F.scaled_dot_product_attention(q, q, q), argnums=None)
    assert step(q).shape == q.shape and "softmax" in step.executable.text("program")
    wrong = np.zeros((1, 3, 5, 4), np.float32)
    with pytest.raises(ValueError, match=r"enable_gqa: query .* must be a multiple"):
        cutback.trace(
            lambda q: F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], enable_gqa=True), wrong
        )
