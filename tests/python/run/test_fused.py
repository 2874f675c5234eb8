"""Groups of several instructions are computed in one pass, and have the bits of one kernel per
instruction, which the debug backend runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import cutback
import cutback.nn.functional as F

SHAPES = (
    (64,),
    (1000,),
    (70000,),
    (3, 64),
    (5, 100),
    (300, 33),
    (40, 1024),
    (7, 1536),
    (130, 200),
    (2, 3, 65),
    (4, 8, 16, 16),
    (2, 20000),
    (3, 5, 7, 11),
    (2048, 32),
    (4, 16448),
    (2, 8, 50, 66),
)
UNARY = (
    cutback.negative,
    cutback.abs,
    cutback.sign,
    cutback.floor,
    cutback.exp,
    cutback.log,
    cutback.log1p,
    cutback.sqrt,
    cutback.rsqrt,
    cutback.reciprocal,
    cutback.square,
    cutback.sin,
    cutback.cos,
    cutback.tanh,
    cutback.sigmoid,
    cutback.erf,
    F.relu,
    F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
    F.silu,
)
BINARY = (
    cutback.add,
    cutback.subtract,
    cutback.multiply,
    cutback.divide,
    cutback.maximum,
    cutback.minimum,
)
COMPARE = (
    cutback.equal,
    cutback.not_equal,
    cutback.less,
    cutback.less_equal,
    cutback.greater,
    cutback.greater_equal,
)


NUMPY = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": pytest.importorskip("ml_dtypes").bfloat16,
}


def values(rng, shape, special, dtype="f32"):
    """Returns numbers around 1; if `special`, also special values."""
    x = rng.standard_normal(shape).astype(np.float32)
    if special:
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38, 1e7], np.float32)
        at = rng.random(shape) < 0.02
        x[at] = rng.choice(odd, size=int(at.sum()))
    return x.astype(NUMPY[dtype])


def a_part_of(rng, shape):
    """Returns a shape that broadcasts to `shape`."""
    part = [n if rng.random() < 0.5 else 1 for n in shape]
    return tuple(part[int(rng.integers(len(part))) if rng.random() < 0.3 else 0 :])


def one_op(rng, x, y, small):
    shape = x.shape
    pick = rng.integers(14)
    if pick < 3:
        return UNARY[rng.integers(len(UNARY))](x)
    if pick < 5:
        return BINARY[rng.integers(len(BINARY))](x, y)
    if pick == 5:
        return BINARY[rng.integers(3)](x, small[rng.integers(len(small))])
    if pick == 6:
        return x - x.mean(axis=-1, keepdims=True)
    if pick == 7:
        return x * cutback.rsqrt(cutback.square(x).mean(axis=-1, keepdims=True) + 1e-5)
    if pick == 8:
        return F.softmax(x) if rng.random() < 0.5 else F.log_softmax(x)
    if pick == 9 and len(shape) > 1:
        weight = cutback.full((shape[-1],), 1.5, dtype=x.dtype)
        return F.layer_norm(x, weight, weight) if rng.random() < 0.5 else F.rms_norm(x, weight)
    if pick == 10:
        bits = COMPARE[rng.integers(len(COMPARE))](x, y)
        other = cutback.logical_not(bits)
        return cutback.where(cutback.logical_or(bits, other), x, y * 0.5) + bits.astype(x.dtype)
    if pick == 11:
        return F.dropout(x, 0.25)
    if pick == 12:
        return x - cutback.amax(x, axis=-1, keepdims=True)
    return x + cutback.tril(y) if len(shape) > 1 else x + y * 2


def program(seed, shape, dtype="f32"):
    """Returns a loss of some operations, the same at each trace. Some of its 16-bit floats are
    computed in f32."""

    def loss(x, y, *small):
        rng = np.random.default_rng(seed)
        made = [x, y]
        for _ in range(int(rng.integers(2, 9))):
            a, b = (made[i] for i in rng.integers(len(made), size=2))
            if dtype in ("f16", "bf16") and rng.random() < 0.3:
                made.append(wide_op(rng, a, b, dtype))
            else:
                made.append(one_op(rng, a, b, small))
        total = made[-1].sum() + cutback.square(made[-1]).mean()
        return total + made[-2].sum(axis=tuple(range(len(shape) - 1)) or None).sum()

    return loss


def wide_op(rng, x, y, dtype):
    a, b = x.astype("f32"), y.astype("f32")
    pick = rng.integers(4)
    if pick == 0:
        return (a * b + a).astype(dtype)
    if pick == 1:
        return F.softmax(a).astype(dtype) * x
    if pick == 2:
        other = "f16" if dtype == "bf16" else "bf16"
        return (a.astype(other) - b.astype(other)).astype(dtype)
    return (a - a.mean(axis=-1, keepdims=True)).astype(dtype)


def bits(x):
    """Makes all NaNs the same."""
    x = np.ascontiguousarray(x)
    word = np.dtype(f"u{x.dtype.itemsize}").type
    return np.where(np.isnan(x), word(0), x.view(word).reshape(x.shape) + word(1))


def results(seed, backend, dtype="f32"):
    rng = np.random.default_rng(seed)
    shape = SHAPES[seed % len(SHAPES)]
    special = seed % 3 == 0
    arrays = [values(rng, shape, special, dtype) for _ in range(2)]
    arrays += [values(rng, a_part_of(rng, shape), special, dtype) for _ in range(3)]
    if len(shape) == 2:  # a transposed argument, read in any order
        arrays[1] = np.ascontiguousarray(arrays[1].T)
        inner = program(seed, shape, dtype)

        def loss(x, y, *small):
            return inner(x, y.T, *small)
    else:
        loss = program(seed, shape, dtype)
    step = cutback.value_and_grad(loss, argnums=tuple(range(5)), backend=backend)
    step.rng_step = 3
    value, gradients = step(*arrays)
    return step, [value, *gradients]


SEEDS = [*range(28), *(pytest.param(s, marks=pytest.mark.very_slow) for s in range(28, 400))]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore")
def test_a_group_has_the_bits_of_its_instructions(seed, dtype):
    step, fused = results(seed, "cpu", dtype)
    _, one_by_one = results(seed, "debug", dtype)
    for k, (a, b) in enumerate(zip(fused, one_by_one, strict=True)):
        np.testing.assert_array_equal(bits(a), bits(b), err_msg=f"result {k}")
    assert step.stats.peak_bytes == step.planned.arena_bytes


def piecewise(size, channels, backend):
    """Computes a norm over groups of channels with a weight per channel, whose gradients are sums
    over pieces of the norm's rows."""
    rng = np.random.default_rng(size + channels)
    x = rng.standard_normal((6, channels, size, size)).astype(np.float32)
    x[0, 0, 0] = -0.0
    weights = [rng.standard_normal(channels).astype(np.float32) for _ in range(3)]

    def loss(x, v, gamma, beta):
        y = F.evonorm_s0(x, v, gamma, beta, groups=4, eps=1e-5)
        return (y * y).mean() + cutback.square(y.mean(axis=(2, 3))).sum()

    step = cutback.value_and_grad(loss, argnums=tuple(range(4)), backend=backend)
    value, gradients = step(x, *weights)
    return step, [value, *gradients]


@pytest.mark.parametrize(
    ("size", "channels"), [(8, 8), (16, 16), (32, 8), (6, 16), (14, 12), (64, 8)]
)
def test_sums_of_pieces_of_rows(size, channels):
    step, fused = piecewise(size, channels, "cpu")
    _, one_by_one = piecewise(size, channels, "debug")
    for k, (a, b) in enumerate(zip(fused, one_by_one, strict=True)):
        np.testing.assert_array_equal(bits(a), bits(b), err_msg=f"result {k}")
    columns, found = 0, False
    for line in step.executable.text("program").splitlines():
        if line.startswith("group "):
            columns = int(match[1]) if (match := re.search(r"\[\d+x(\d+)\]", line)) else 0
        is_sum = re.search(rf":f32\[6,{channels}\] = (sum|mean)\(", line)
        found |= bool(is_sum) and columns > size * size
    assert found


def by_cross_entropy(x, bias, labels, weight):
    return F.cross_entropy(F.gelu(x) + bias, labels, ignore_index=3) * weight.sum()


def by_cross_entropy_of_each(x, bias, labels, weight):
    nll = F.cross_entropy(x * bias, labels, ignore_index=3, reduction="none")
    return (nll * weight).sum() + F.cross_entropy(x * bias, labels, reduction="sum")


def by_log_softmax(x, bias, labels, weight):
    taken = cutback.take_along_axis(F.log_softmax(x + bias), labels[:, None], 1)
    return -(taken[:, 0] * weight).mean() + cutback.square(x).sum()


def by_element(x, bias, labels, weight):
    y = cutback.tanh(x) + bias
    return (cutback.take_along_axis(y, labels[:, None], 1)[:, 0] * weight * y.sum(axis=1)).sum()


def by_half_logits(x, bias, labels, weight):
    logits = (x * bias).astype("bf16")
    taken = cutback.take_along_axis(F.log_softmax(logits.astype("f16")), labels[:, None], 1)
    nll = F.cross_entropy(logits, labels, reduction="none")
    return ((nll - taken[:, 0].astype("f32")) * weight).sum()


LOSSES = (by_cross_entropy, by_cross_entropy_of_each, by_log_softmax, by_element, by_half_logits)


def indexed(loss, shape, special, backend):
    rng = np.random.default_rng(len(shape) + shape[1])
    x = values(rng, shape, special)
    bias, weight = values(rng, shape[1], False), values(rng, shape[0], False)
    labels = rng.integers(0, shape[1], shape[0])
    labels[:3] = (0, 3, shape[1] - 1)
    step = cutback.value_and_grad(loss, argnums=(0, 1, 3), backend=backend)
    value, gradients = step(x, bias, labels, weight)
    return step, [value, *gradients]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(50, 40), (300, 64), (40, 1000), (33, 1536), (5, 20000)])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_an_element_of_each_row(loss, shape, special):
    step, fused = indexed(loss, shape, special, "cpu")
    other, one_by_one = indexed(loss, shape, special, "debug")
    for k, (a, b) in enumerate(zip(fused, one_by_one, strict=True)):
        np.testing.assert_array_equal(bits(a), bits(b), err_msg=f"result {k}")
    assert step.stats.peak_bytes == step.planned.arena_bytes
    assert other.stats.peak_bytes == other.planned.live_bytes
    ops = ("cross_entropy", "cross_entropy_bwd", "gather", "scatter_add")
    for line in step.executable.text("program").splitlines():
        assert not line.startswith("group") or not any(f" = {op}(" in line for op in ops)


def test_a_loss_and_its_gradient_read_logits_once():
    step = cutback.value_and_grad(F.cross_entropy)
    step(np.zeros((64, 512), np.float32), np.arange(64))
    groups = step.executable.text("program").split("\ngroup ")
    assert sum("in0:f32[64,512]" in group for group in groups) == 1


def along(dim, dtype):
    """Computes rows that are strided in memory, read in groups and by a single operation."""

    def loss(x, y):
        x, y = x.astype(dtype), y.astype(dtype)
        soft = F.softmax(x * y, dim=dim)
        bits = cutback.swapaxes(x, dim, -1) < 0.25
        turned = cutback.where(bits, cutback.swapaxes(y, dim, -1), cutback.swapaxes(soft, dim, -1))
        return (soft * y).astype("f32").sum() + (F.dropout(turned, 0.25).astype("f32") ** 2).mean()

    return loss


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((300, 40), 0), ((37, 64), 0), ((3, 70, 33), 1), ((2, 33, 5, 40), 1), ((400, 17, 2), 0)],
)
def test_rows_that_lie_across_memory(shape, dim, dtype):
    rng = np.random.default_rng(shape[0])
    args = [values(rng, shape, special) for special in (False, True)]
    made = {}
    for backend in ("cpu", "debug"):
        step = cutback.value_and_grad(along(dim, dtype), argnums=(0, 1), backend=backend)
        value, gradients = step(*args)
        made[backend] = [value, *gradients]
    for k, (a, b) in enumerate(zip(*made.values(), strict=True)):
        np.testing.assert_array_equal(bits(a), bits(b), err_msg=f"result {k}")


def test_a_transposed_operand_alone():
    """The operand is larger than a task, with rows of an odd length."""
    x = np.arange(1021 * 517, dtype=np.float32).reshape(1021, 517)
    add = cutback.compile(lambda x, y: x + y.T, argnums=None)
    np.testing.assert_array_equal(add(x, x.T.copy() * 2), 3 * x)
    choose = cutback.compile(lambda x, b: cutback.where(b.T, x, 0), argnums=None)
    turned = np.ascontiguousarray(x.T % 3 == 0)
    np.testing.assert_array_equal(choose(x, turned), np.where(x % 3 == 0, x, 0))


@pytest.mark.parametrize("columns", [1024, 1056])
def test_large_results_are_stored_like_small_ones(columns):
    """Results of 8 MiB and more are written past the caches; a few of their rows equal the same
    rows computed alone."""
    rng = np.random.default_rng(1)
    rows = 4100
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    y = rng.integers(0, columns, rows)
    shift = rng.standard_normal(columns).astype(np.float32)

    def loss(x, y, scale):
        return F.cross_entropy(x, y, reduction="sum") * scale

    def curve(x, shift, scale):
        return (F.gelu(x + shift) * scale).sum()

    scale = np.float32(0.5)
    for f, args in ((loss, (x, y)), (curve, (x, shift))):
        _, whole = cutback.value_and_grad(f)(*args, scale)
        few = [a[:7] if len(a) == rows else a for a in args]
        _, part = cutback.value_and_grad(f)(*few, scale)
        np.testing.assert_array_equal(whole[:7], part)
        _, last = cutback.value_and_grad(f)(*[a[-5:] if len(a) == rows else a for a in args], scale)
        np.testing.assert_array_equal(whole[-5:], last)


@pytest.mark.parametrize("columns", [16384, 16448, 20000, 20032, 50304, 65472, 66560])
@pytest.mark.parametrize("shape", [(5, -1), (3, 1), (-1,)])
def test_sums_of_everything_lose_nothing(columns, shape):
    """Rows are longer than a task, in pieces, with a repeating operand."""
    x = np.ones((5, columns), np.float32)
    d = np.ones([columns if n < 0 else 5 if n == 3 else n for n in shape], np.float32)

    def total(x, d):
        return (x * d).sum()

    (value, (dx, dd)) = cutback.value_and_grad(total, argnums=(0, 1))(x, d)
    assert value == 5 * columns
    assert (np.asarray(dx) == 1).all()
    assert (np.asarray(dd) == 5 * columns / d.size).all()


@pytest.mark.parametrize(
    ("seed", "measure"),
    [
        pytest.param(seed, measure, marks=[pytest.mark.very_slow] * ((i + k) % 2))
        for i, seed in enumerate((1, 2, 4, 7, 11, 13, 20, 23))
        for k, measure in enumerate(("arena", "live"))
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_budgets_know_what_groups_take(seed, measure):
    """A step keeps to the bytes that it takes without a budget, without recomputing; so it does
    with those of the smallest plan's program."""
    shape = SHAPES[seed % len(SHAPES)]
    arrays = [np.ones(shape, np.float32) for _ in range(2)]

    def planned(budget):
        step = cutback.value_and_grad(program(seed, shape), (0, 1), budget=budget, measure=measure)
        step(*arrays, *(np.float32(1) for _ in range(3)))
        return step.planned

    def taken(numbers):
        return getattr(numbers, f"{measure}_bytes")

    free, smallest = planned(None), planned("min")
    assert taken(smallest) <= taken(free)
    again = planned(max(1, taken(free)))
    assert (taken(again), again.n_recomputed) == (taken(free), 0)
    assert taken(planned(max(1, taken(smallest)))) <= taken(smallest)


def test_a_refusal_says_what_the_smallest_takes_in_groups():
    def loss(x):
        return F.layer_norm(F.gelu(x) + x).sum()

    step = cutback.value_and_grad(loss)
    step(x := np.ones((256, 256), np.float32))
    least = step.planned.arena_bytes
    with pytest.raises(cutback.BudgetError) as told:
        cutback.value_and_grad(loss, budget=least - 64, groups=False)(x)
    assert told.value.smallest_bytes == least and told.value.floor_bytes is None
    in_groups = cutback.value_and_grad(loss, budget=least - 64)  # another way to meet it
    in_groups(x)
    assert in_groups.plan.in_groups and in_groups.planned.arena_bytes <= least - 64


REPEATING = (  # the added operand repeats after a short stretch, a longer one, an odd one
    ((64, 24, 4, 4), (24, 1, 1)),
    ((33, 64, 8, 8), (64, 1, 1)),
    ((100, 6, 5, 5), (6, 1, 1)),
    ((9, 300, 7, 7), (300, 1, 1)),
    ((512, 48), (48,)),
    ((4096, 3), (3,)),
    ((8, 16, 40), (16, 40)),
    ((1, 24, 4, 4), (24, 1, 1)),
    ((20, 256, 64), (256, 1)),
    ((20, 512, 64), (512, 1)),
)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape, small", REPEATING)
def test_operands_that_repeat(shape, small, dtype):
    rng = np.random.default_rng(len(shape))
    arrays = [values(rng, s, False, dtype) for s in (shape, small, small, shape[-1:])]
    functions = (
        lambda x, a, b, c: F.relu(x * a + b) - x,
        lambda x, a, b, c: F.dropout(x * a + b, 0.3) + c,
        lambda x, a, b, c: (F.silu((x - a) * b) * a).sum(),
    )
    for function in functions:
        results = []
        for options in ({"backend": "debug"}, {}, {"num_threads": 3}):
            before = cutback.get_num_threads()
            try:
                cutback.set_num_threads(options.pop("num_threads", before))
                compiled = cutback.compile(function, argnums=None, **options)
                results.append(np.asarray(compiled(*arrays, rng_step=3)).tobytes())
            finally:
                cutback.set_num_threads(before)
        assert results[1] == results[0] and results[2] == results[0]


def digest():
    """Returns the bits of some programs, to compare processes."""
    import hashlib

    whole = hashlib.sha256()
    for seed in range(14):
        for dtype in ("f32", "bf16", "f16", "f64"):
            for x in results(seed, "cpu", dtype)[1]:
                whole.update(np.ascontiguousarray(bits(x)).tobytes())
    made = [piecewise(8, 8, "cpu"), *(indexed(f, (40, 1000), False, "cpu") for f in LOSSES)]
    for x in (x for _, found in made for x in found):
        whole.update(np.ascontiguousarray(bits(x)).tobytes())
    return whole.hexdigest()


def test_instruction_sets_agree():
    answers = set()
    for isa, threads in (("baseline", "3"), ("avx2", "1"), ("avx512", "1"), ("avx512", "3")):
        answers.add(
            subprocess.run(
                [sys.executable, __file__, threads],
                env={**os.environ, "CUTBACK_ISA": isa},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert len(answers) == 1 and len(answers.pop().strip()) == 64


if __name__ == "__main__":
    cutback.set_num_threads(int(sys.argv[1]))
    print(digest())


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("columns", [4, 7, 8, 15, 16, 17, 31, 33, 49, 57, 63, 65, 71])
def test_numbers_of_adjacent_rows(columns, dtype):
    """The results are one number per row, computed once and read for all elements of the row."""
    x = np.random.default_rng(columns).standard_normal((203, columns)).astype(NUMPY[dtype])
    x[5] = -0.0

    def results_of(x):
        mean = x.mean(1, keepdims=True)
        outputs = []
        for f in UNARY[:12]:
            number = f(mean)
            outputs += [x * number, (number - mean) / 3 + x]
        return outputs

    fused = cutback.compile(results_of, argnums=None)(x)
    one_by_one = cutback.compile(results_of, argnums=None, backend="debug")(x)
    for a, b in zip(fused, one_by_one, strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
        kept = ~np.isnan(np.asarray(a))
        assert (np.signbit(np.asarray(a)) == np.signbit(np.asarray(b)))[kept].all()
