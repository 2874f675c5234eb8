"""Random numbers inside traced functions depend only on seed, stream, step and element, are the
same under every plan, and have the right distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import cutback as cb
from cutback import random
from cutback.nn import functional as F

N = 20000


def philox(seed: int, stream: int, step: int, n: int) -> np.ndarray[Any, Any]:
    """Returns 16 bits for each element: Philox4x32-7 (Salmon et al. 2011)."""
    low = np.uint64(0xFFFFFFFF)
    blocks = np.arange(-(-n // 8), dtype=np.uint64)
    c = [
        blocks & low,
        blocks >> np.uint64(32),
        np.full_like(blocks, stream),
        np.full_like(blocks, step),
    ]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(7):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (q >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), q & low,
            (p >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), p & low,
        ]  # fmt: skip
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    words = np.stack(c, 1).astype(np.uint32)
    return np.stack([words & 0xFFFF, words >> 16], 2).reshape(-1)[:n]


def drawn(f: Any, seed: int = 0, rng_step: int = 0) -> Any:
    return cb.compile(f, argnums=None, seed=seed)(rng_step=rng_step)


@pytest.mark.parametrize(("seed", "step"), [(0, 0), (7, 3), (2**63 + 5, 2**32 - 1)])
def test_numbers_are_those_of_the_generator(seed, step):
    first, second = drawn(lambda: (cb.uniform((3, 37)), cb.uniform(100, "f64")), seed, step)
    assert (first == philox(seed, 0, step, 111).reshape(3, 37) / 65536).all()
    assert (second == philox(seed, 1, step, 100) / 65536).all()


def test_streams_are_numbered_in_the_order_of_the_program():
    def f():
        a = cb.uniform(16)
        cb.exp(a)  # other operations do not count
        return a, F.dropout(cb.ones(16), 0.5), cb.uniform(16)

    a, mask, b = drawn(f, seed=4)
    assert (a == philox(4, 0, 0, 16) / 65536).all()
    assert ((mask > 0) == (philox(4, 1, 0, 16) >= 32768)).all()
    assert (b == philox(4, 2, 0, 16) / 65536).all()


def test_calls_are_counted_unless_told():
    step = cb.compile(lambda: cb.uniform(8), argnums=None, seed=1)
    rows = [step() for _ in range(3)]
    assert all((row == philox(1, 0, i, 8) / 65536).all() for i, row in enumerate(rows))
    assert (step(rng_step=1) == rows[1]).all()
    step.rng_step = 0
    assert (step() == rows[0]).all()


def everything(shape: Any = (40,)) -> list[Any]:
    return [
        random.uniform(shape), random.uniform(shape, -1, 1, "f64"), random.normal(shape),
        random.exponential(shape), random.gumbel(shape), random.truncated_normal(shape),
        random.bernoulli(0.3, shape), random.randint(5, shape=shape), random.permutation(24),
        random.categorical(cb.zeros((40, 5), "f32")), random.choice(7, shape),
        random.permutation(cb.arange(24.0)),
    ]  # fmt: skip


def noisy(p: Any, x: Any) -> Any:
    h = x
    for i in range(2):
        noise = sum(y.astype("f32").mean() for y in everything()) * (i + 1)
        h = F.dropout(cb.tanh(h @ p), 0.2) + noise * random.normal((64, 32))
    return (h**2).mean()


def test_the_same_under_every_plan():
    rng = np.random.default_rng(0)
    p = rng.standard_normal((32, 32)).astype(np.float32) / 6
    x = rng.standard_normal((64, 32)).astype(np.float32)
    found, recomputed = set(), 0
    before = cb.get_num_threads()
    for options in ({}, {"preset": "recompute_all"}, {"preset": "recompute_all", "groups": False}):
        step = cb.value_and_grad(noisy, seed=11, **options)
        for threads in (1, 2):
            cb.set_num_threads(threads)
            value, gradient = step(p, x, rng_step=5)
            found.add(value.tobytes() + gradient.tobytes())
        recomputed += step.planned.n_recomputed
    cb.set_num_threads(before)
    assert len(found) == 1 and recomputed > 0


def close_to(x: Any, mean: float, std: float) -> None:
    assert abs(x.mean() - mean) < 5 * std / math.sqrt(x.size)
    assert abs(x.std() / std - 1) < 0.05


def distance(x: Any, cdf: Any) -> float:
    """Returns the Kolmogorov distance times sqrt(n): above 2 once in 1,500 draws."""
    x = np.sort(np.asarray(x, np.float64).ravel())
    steps = np.arange(x.size + 1) / x.size
    at = cdf(x)
    return math.sqrt(x.size) * max((steps[1:] - at).max(), (at - steps[:-1]).max())


def normal_cdf(x: Any) -> Any:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


def inside(x: Any) -> Any:
    return (normal_cdf(x) - normal_cdf([-2.0])) / (normal_cdf([2.0]) - normal_cdf([-2.0]))


@pytest.mark.parametrize(
    ("draw", "cdf"),
    [
        (lambda: random.uniform((N,)), lambda x: x),
        (lambda: random.uniform((N,), -2.0, 3.0, "f64"), lambda x: (x + 2) / 5),
        (lambda: random.normal((N,)), normal_cdf),
        (lambda: random.normal((N,), 3.0, 0.5, "f64"), lambda x: normal_cdf((x - 3) * 2)),
        (lambda: random.randn(100, N // 100), normal_cdf),
        (lambda: random.rand(100, N // 100), lambda x: x),
        (lambda: random.exponential((N,), 2.0), lambda x: 1 - np.exp(-x / 2)),
        (lambda: random.gumbel((N,)), lambda x: np.exp(-np.exp(-x))),
        (lambda: random.truncated_normal((N,)), inside),
    ],
)
def test_continuous_distributions(draw, cdf):
    x = drawn(draw, seed=3)
    assert np.isfinite(x).all() and distance(x, cdf) < 2
    assert distance(drawn(lambda: draw(), seed=4), lambda y: cdf(y) * 0.95) > 2


def test_discrete_distributions():
    def f():
        logits = cb.log(cb.asarray(np.array([0.1, 0.2, 0.7])))
        return (
            random.bernoulli(0.3, (N,)), random.randint(-2, 3, (N,)), random.choice(4, (N,)),
            random.categorical(cb.broadcast_to(logits, (N, 3))), random.permutation(1000),
            random.permutation(cb.arange(12.0).reshape(3, 4), axis=1),
        )  # fmt: skip

    coin, die, chosen, classes, order, columns = drawn(f, seed=5)
    assert coin.dtype == bool and abs(coin.mean() - 0.3) < 5 * math.sqrt(0.21 / N)
    for x, values, shares in (
        (die, range(-2, 3), [0.2] * 5), (chosen, range(4), [0.25] * 4),
        (classes, range(3), [0.1, 0.2, 0.7]),
    ):  # fmt: skip
        assert set(x.tolist()) == set(values)
        for value, share in zip(values, shares, strict=True):
            assert abs((x == value).mean() - share) < 5 * math.sqrt(share / N)
    assert sorted(order.tolist()) == list(range(1000)) and (order != np.arange(1000)).mean() > 0.98
    assert sorted(columns[0].tolist()) == [0, 1, 2, 3] and (columns[1] == columns[0] + 4).all()


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16"])
def test_uniform_numbers_never_reach_the_end(dtype):
    def f():
        return cb.uniform((200000,), dtype), random.uniform((200000,), dtype=dtype)

    for x in drawn(f):
        assert x.min() >= 0 and x.max() < 1 and x.max() > 0.99
        assert x.dtype == np.dtype({"f64": "f8", "f32": "f4", "f16": "f2"}[dtype])
        close_to(x.astype(np.float64), 0.5, math.sqrt(1 / 12))


@pytest.mark.parametrize(
    ("f", "error", "text"),
    [
        (
            lambda: random.randint(3, 3),
            ValueError,
            "randint: the range from 3 up to 3 has 0 numbers",
        ),
        (lambda: random.randint(0.5), TypeError, "randint: high"),
        (lambda: random.categorical(cb.ones(())), ValueError, "expected logits"),
        (lambda: random.permutation(cb.ones(3), axis=1), ValueError, "axis 1"),
    ],
)
def test_mistakes(f, error, text):
    with pytest.raises(error, match=text) as caught:
        drawn(f)
    assert "[test_random.py:" in str(caught.value)


@pytest.mark.parametrize(("dtype", "digits"), [("f16", 11), ("bf16", 8)])
def test_uniform_numbers_of_16_bits_keep_the_leading_bits(dtype: str, digits: int) -> None:
    found = drawn(lambda: cb.uniform(N, dtype).astype("f32"), 3, 2)
    bits = philox(3, 0, 2, N).astype(np.int64) >> (16 - digits)
    np.testing.assert_array_equal(found, bits / 2.0**digits)
