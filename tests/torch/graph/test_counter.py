"""Tests our generator in place of PyTorch's: the same masks under every budget, nothing saved, and
good random numbers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from shutil import which
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from small_models import make

import cutback.torch as ct
from cutback.torch.graph import draws

CPU = torch.device("cpu")


def keep(seed: int, stream: int, n: int, p: float) -> Any:
    return draws.KEEP_MASK(torch.tensor([seed]), stream, [n], p, CPU)


def drawn(law: Any, seed: int, stream: int, n: int, dtype: Any = torch.float32) -> Any:
    return law(torch.tensor([seed]), stream, [n], dtype, CPU)


# ---- the numbers ---------------------------------------------------------------------------


def test_known_answer() -> None:
    """The answer is from Random123, for philox4x32-7 with key and counter 0."""
    words = [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]
    assert drawn(draws.UNIFORM, 0, 0, 4).tolist() == [(w >> 8) / 2**24 for w in words]
    assert drawn(draws.UNIFORM, 0, 0, 1, torch.float64).item() == (
        (words[0] << 21 | words[1] >> 11) / 2**53
    )


@pytest.mark.parametrize("n", [0, 1, 7, 64, 1001])
def test_the_core_and_pytorchs_arithmetic_agree(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_PIECE", 16)
    for seed, stream in ((0, 0), (2**63 - 1, 2**31 - 1), (987654321987654321, 5)):
        for law, dtypes in (("keep", [torch.bool]), ("uniform", [torch.float32, torch.float64]),
                            ("normal", [torch.float32, torch.float64])):  # fmt: skip
            for dtype in dtypes:
                twin = torch.empty(n, dtype=dtype)
                draws.by_arithmetic(law, twin, seed, stream, 0.3)
                if law == "keep":
                    ours = keep(seed, stream, n, 0.3)
                else:
                    ours = drawn(getattr(draws, law.upper()), seed, stream, n, dtype)
                if law == "normal":  # PyTorch's logarithm and cosine may round differently
                    torch.testing.assert_close(ours, twin, rtol=1e-6, atol=1e-6)
                else:
                    assert torch.equal(ours, twin)


def test_pytorchs_arithmetic_goes_piece_by_piece() -> None:
    """The temporary memory of PyTorch's arithmetic is stated in docs/torch.md and does not depend
    on the size."""
    peaks = []
    for law, dtype in (("keep", torch.bool), ("uniform", torch.float64), ("normal", torch.float32)):
        out = torch.empty(1 << 21, dtype=dtype)
        with ct.MemoryTracker() as memory:
            draws.by_arithmetic(law, out, 1, 2, 0.3)
        peaks.append(memory.peak_bytes)
    assert max(peaks) == 44 << 20


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_statistics_of_masks(p: float) -> None:
    """Means, and correlations within a stream, between streams and between seeds, are all within
    five standard errors."""
    n = 1 << 18
    sigma = (p * (1 - p)) ** 0.5

    def centred(seed: int, stream: int) -> Any:
        return (keep(seed, stream, n, p).double() - (1 - p)) / sigma

    base = centred(1, 0)
    bound = 5 / n**0.5
    assert abs(base.mean()) < bound
    for shift in (1, 2, 3, 4, 32, 1024):
        assert abs((base * base.roll(shift)).mean()) < bound, shift
    for other in (centred(1, 1), centred(1, 2), centred(2, 0), centred(1 + 2**32, 0)):
        assert abs(other.mean()) < bound
        for shift in (0, 1, 4):
            assert abs((base * other.roll(shift)).mean()) < bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_of_floats(dtype: Any) -> None:
    n = 1 << 18
    u = drawn(draws.UNIFORM, 3, 1, n, dtype).double()
    assert u.min() >= 0 and u.max() < 1
    expected = n / 64
    chi2 = ((torch.histc(u, 64, 0, 1) - expected) ** 2 / expected).sum()
    assert 63 - 5 * 126**0.5 < chi2 < 63 + 5 * 126**0.5
    z = drawn(draws.NORMAL, 3, 1, n, dtype).double()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - moment) < 5 * (variance / n) ** 0.5


def test_operators_keep_their_promises() -> None:
    seed = torch.tensor([4])
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(draws.KEEP_MASK, (seed, 1, [3, 5], 0.5, CPU), test_utils=checks)
    for law in (draws.UNIFORM, draws.NORMAL):
        torch.library.opcheck(law, (seed, 1, [3, 5], torch.float32, CPU), test_utils=checks)
    with pytest.raises(ValueError, match="no distribution"):
        draws.UNIFORM(seed, 1, [3], torch.int64, CPU)


# ---- steps ---------------------------------------------------------------------------------


def backward_of(plan: Any) -> list[str]:
    steps, start = plan.document["steps"], plan.document["backward_starts"]
    return [plan.problem["ops"][i]["kind"] for i in steps[start:]]


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_bits_do_not_depend_on_the_budget(
    name: str, ran: Counter[str], train_step: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    model, inputs = make(name)
    if name == "gpt":
        del model.blocks[1:]
    steps = {}
    for budget in ("fastest", "0.7x", "min"):
        compiled = ct.compile(copy.deepcopy(model), budget=budget, random="counter")
        steps[budget] = train_step(compiled, *inputs)
        (plan,) = compiled.plans
        assert steps[budget].peak_bytes == plan.numbers["live_bytes"]
        again = [k for k in backward_of(plan) if k == "cutback.keep_mask.default"]
        if budget != "0.7x":
            assert bool(again) == (budget == "min" and name != "unet"), budget
        assert {"aten.native_dropout.default", "aten.bernoulli.p"}.isdisjoint(
            op["kind"] for op in plan.problem["ops"]
        )
    assert ran == {"forward": 3, "backward": 3}
    assert same_bits(steps["fastest"].loss, steps["min"].loss)
    assert same_bits(steps["fastest"].loss, steps["0.7x"].loss)
    assert same_bits(steps["fastest"].gradients, steps["min"].gradients)
    assert same_bits(steps["fastest"].gradients, steps["0.7x"].gradients)


def masked(x: Any) -> Any:
    for _ in range(12):
        x = F.dropout(x, 0.5)
    return x.sum()


def test_masks_are_not_kept(ran: Counter[str], train_step: Callable[..., Any]) -> None:
    x = torch.ones(1 << 16, requires_grad=True)
    peaks, gradients = {}, {}
    for random in ("torch", "counter"):
        compiled = ct.compile(masked, budget="min", random=random)
        x.grad = None
        torch.manual_seed(7)
        with ct.MemoryTracker() as memory:
            loss = compiled(x)
            loss.backward()
            peaks[random] = memory.peak_bytes
        assert compiled.plans[0].numbers["live_bytes"] == peaks[random]
        assert x.grad.sum() == loss  # the backward dropped the same elements as the forward
        gradients[random] = x.grad
    assert ran == {"forward": 2, "backward": 2}
    # twelve masks of a byte per element are held by "torch", none by "counter"
    assert peaks["counter"] < peaks["torch"] - 8 * x.numel()
    assert not torch.equal(gradients["torch"], gradients["counter"])


def test_the_seed_rules(ran: Counter[str]) -> None:
    x = torch.randn(4096, requires_grad=True)
    compiled = ct.compile(lambda x: F.dropout(x, 0.5), budget="min", random="counter")
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        found.append([compiled(x).detach() for _ in range(2)])
    torch.manual_seed(1)
    with torch.no_grad():
        found.append([compiled(x) for _ in range(2)])
    assert ran == {"forward": 6, "inference": 2}
    first, other, again, unrecorded = found
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert torch.equal(first[0], unrecorded[0]) and torch.equal(first[1], unrecorded[1])
    assert not torch.equal(first[0], first[1])  # each step has its own numbers
    assert not torch.equal(first[0], other[0])


def test_draws_of_one_step_differ(ran: Counter[str]) -> None:
    x = torch.ones(1 << 14, requires_grad=True)
    compiled = ct.compile(
        lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)), random="counter", budget="min"
    )
    a, b = compiled(x)
    both = ((a > 0) & (b > 0)).float().mean()
    assert abs(both - 0.25) < 5 * (0.25 * 0.75 / x.numel()) ** 0.5
    assert ran["forward"] == 1


def noisy(x: Any) -> dict[str, Any]:
    """Returns entries that are linear in x, so that each gradient is the entry's value at x = 1."""
    chances = torch.full_like(x, 0.25)
    attention = F.scaled_dot_product_attention(
        torch.zeros(2, 4, 8, 8), torch.zeros(2, 4, 8, 8), x.view(2, 4, 8, 8), dropout_p=0.5
    )
    return {
        "dropout": F.dropout(x, 0.3),
        "features": F.dropout2d(x.view(8, 4, 4, 4), 0.5),
        "rand": x * torch.rand(512),
        "rand_like": x * torch.rand_like(x),
        "randn": x * torch.randn(512),
        "randn_like": x * torch.randn_like(x.double()),
        "bernoulli": x * torch.bernoulli(chances),
        "bernoulli_p": x * torch.empty_like(x).bernoulli_(0.25),
        "attention": attention,
    }


@pytest.mark.parametrize("name", list(noisy(torch.ones(512))))
def test_every_op_that_is_replaced(name: str, ran: Counter[str]) -> None:
    compiled = ct.compile(lambda x: torch.sin(noisy(x)[name]), budget="min", random="counter")
    saved = ct.compile(lambda x: torch.sin(noisy(x)[name]), random="counter")
    results = []
    for call in (compiled, saved):
        x = torch.ones(512, requires_grad=True)
        torch.manual_seed(3)
        y = call(x)
        y.sum().backward()
        results.append((y.detach(), x.grad))
    (y, gradient), (y_saved, gradient_saved) = results
    assert torch.equal(y, y_saved) and torch.equal(gradient, gradient_saved)
    kinds = {op["kind"] for op in compiled.plans[0].problem["ops"]}
    assert any(k.startswith("cutback.") for k in kinds)
    random = {k for op in compiled.plans[0].problem["ops"] for k in [op["kind"]]
              if "random_stateful" in op.get("flags", ())}  # fmt: skip
    assert random == {"aten.randint.low"}
    value = torch.asin(y.double().clamp(-1, 1)).flatten()
    if name not in ("randn", "randn_like", "dropout", "features", "attention"):
        # sin(x n)' = n cos(x n), for x = 1
        torch.testing.assert_close(
            gradient.double(), value * torch.cos(value), rtol=1e-4, atol=1e-4
        )
    assert gradient.count_nonzero() > 50
    assert ran["backward"] == 2


def test_layout_and_sizes(ran: Counter[str]) -> None:
    """Masks have layouts other than row-major, and changing sizes."""
    x = torch.randn(4, 3, 5, 7).to(memory_format=torch.channels_last).requires_grad_()
    torch.manual_seed(0)
    compiled = ct.compile(lambda x: F.dropout(x.sin(), 0.5).cos(), budget="min", random="counter")
    y = compiled(x)
    y.sum().backward()
    assert y.is_contiguous(memory_format=torch.channels_last)
    dropped = y == 1
    assert 0.3 < dropped.float().mean() < 0.7 and not x.grad[dropped].any()
    sized = ct.compile(
        lambda x: F.dropout(x.sin() ** 2, 0.5), budget="min", random="counter", dynamic=True
    )
    for n in (6, 9, 17):
        x = torch.randn(n, 33, requires_grad=True)
        y = sized(x)
        y.sum().backward()
        assert y.shape == x.shape and torch.equal(y == 0, x.grad == 0)
    assert len(sized.plans) == 1
    assert ran == {"forward": 4, "backward": 4}


def test_what_stays_pytorchs(ran: Counter[str]) -> None:
    """Other distributions and types are drawn once, by PyTorch."""

    def f(x: Any) -> Any:
        x = x.sin() * torch.randint(5, (64,)) * torch.rand(64, dtype=torch.bfloat16)
        return x * torch.empty(64).normal_() * torch.multinomial(torch.ones(8), 64, True)

    x = torch.ones(64, requires_grad=True)
    torch.manual_seed(2)
    expected = f(x)
    compiled = ct.compile(f, budget="min", random="counter")
    torch.manual_seed(2)
    assert torch.equal(compiled(x), expected)
    assert not any(
        k.startswith("cutback.") for k in (op["kind"] for op in compiled.plans[0].problem["ops"])
    )
    assert ran["forward"] == 1


def test_other_doors() -> None:
    plans: list[Any] = []
    x = torch.ones(256, requires_grad=True)
    options = {"budget": "min", "random": "counter", "on_plan": plans.append}
    torch.compile(masked, backend="cutback", options=options)(x).backward()
    assert "cutback.keep_mask.default" in backward_of(plans[0])
    traced = ct.trace(masked, x, random="counter").plan(budget="min")
    assert "cutback.keep_mask.default" in backward_of(traced)
    one, other = ct.Partitioner(random="counter"), ct.Partitioner()
    assert one.uuid() != other.uuid()
    for door in (ct.Partitioner, lambda random: ct.compile(masked, random=random)):
        with pytest.raises(ValueError, match="'dice' is not one of torch, counter"):
            door(random="dice")


@pytest.mark.very_slow
@pytest.mark.skipif(which("g++") is None, reason="Inductor needs a C++ compiler on the CPU")
def test_inductor_keeps_its_own() -> None:
    """Inductor's graphs do not call PyTorch's generator: seeds are saved, and the numbers are drawn
    from them again."""
    x = torch.randn(1 << 12, requires_grad=True)
    compiled = ct.compile(
        lambda x: F.dropout(x.sin() ** 2, 0.5) ** 2, budget="min", random="counter",
        codegen="inductor",
    )  # fmt: skip
    y = compiled(x)
    y.sum().backward()
    assert torch.equal(y == 0, x.grad == 0) and 0.4 < (y == 0).float().mean() < 0.6
    kinds = {op["kind"] for op in compiled.plans[0].problem["ops"]}
    assert "prims.inductor_seeds.default" in kinds
    assert not any(k.startswith("cutback.") for k in kinds)
