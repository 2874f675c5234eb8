"""Values that are recomputed, or remade by another formula, have the bits of the first run: for
every dtype and entry point, the gradients are those of PyTorch's own split of the same graph."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import cutback.torch as ct
from cutback.torch import hooks
from cutback.torch.graph import dropout

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
CHANCES = [0.05, 0.1, 0.123456, 0.25, 1 / 3, 0.5, 0.7, 0.9]


def interpreted(gm: Any, example_inputs: Any) -> Any:
    return make_boxed_func(gm.forward)


def bits(t: Any) -> Any:
    return t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


# ---- the formula ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_dropouts_result_is_remade_to_the_bit(dtype: Any) -> None:
    """The result equals the kernel's on numbers that did not select the scale."""
    rng = random.Random(str(dtype))
    for p in [0, 0.0, *CHANCES, 0.99, *(rng.random() * 0.98 for _ in range(20))]:
        torch.manual_seed(rng.randrange(2**40))
        x = (torch.randn(33, 65, dtype=torch.float64) * 10 ** rng.uniform(-6, 4)).to(dtype)
        before = torch.get_rng_state()
        scale = dropout.remaking_scale(p, x)
        assert torch.equal(before, torch.get_rng_state())
        assert scale is not None
        for given in (x, x.t(), x[::2], x[0, 0], x[:0]):
            result, mask = torch.ops.aten.native_dropout.default(given, p, True)
            remade = dropout.REMAKE(given, mask, scale)
            assert torch.equal(bits(remade), bits(result)), p
            assert remade.stride() == result.stride()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_formula_that_differs_is_not_used(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unrounded scale alone gives different bits in half precision, so the result is saved."""
    dropout.scale_of.cache_clear()
    monkeypatch.setattr(dropout, "_scales", lambda p, dtype: iter([1.0 / (1.0 - p)]))
    try:
        x = torch.empty(1, dtype=dtype)
        assert dropout.remaking_scale(0.1, x) is None
        assert dropout.remaking_scale(0.5, x) == 2.0
        assert dropout.remaking_scale(0.1, x.float()) == 1.0 / 0.9
    finally:
        dropout.scale_of.cache_clear()


def test_what_is_no_dropout_with_a_known_scale() -> None:
    x = torch.empty(1)
    for p in (1, 1.0, -0.5, float("nan"), "0.1", None, True, 1 - 2.0**-40):
        assert dropout.remaking_scale(p, x) is None
    assert dropout.remaking_scale(0.1, torch.empty(1, dtype=torch.int64)) is None
    assert dropout.remaking_scale(0.1, torch.empty(1, device="meta")) is None


# ---- whole steps ---------------------------------------------------------------------------


class Layers(nn.Module):
    """Linear layers, each followed by a function."""

    def __init__(self, function: Callable[..., Any], layers: int = 3) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.function(layer(x).tanh())
        return x.double().square().sum()


def noisy_attention(x: Any, p: float) -> Any:
    q = x.reshape(1, 2, -1, 8)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=p).reshape(x.shape)


NOISE: dict[str, Callable[[Any, float], Any]] = {
    "dropout": lambda x, p: F.dropout(x, p),
    "dropout in place": lambda x, p: F.dropout(x.sin(), p, inplace=True),
    "native_dropout": lambda x, p: torch.native_dropout(x, p, True)[0],
    "native_dropout, mask": lambda x, p: x * torch.native_dropout(x, p, True)[1],
    "dropout twice of one": lambda x, p: F.dropout(x, p) + F.dropout(x, p),
    "dropout1d": lambda x, p: F.dropout1d(x, p),
    "alpha_dropout": lambda x, p: F.alpha_dropout(x, p, training=True),
    "feature_alpha_dropout": lambda x, p: F.feature_alpha_dropout(x, p, training=True),
    "feature_dropout": lambda x, p: torch.feature_dropout(x, p, True),
    "rrelu": lambda x, p: F.rrelu(x, p / 3, p, training=True),
    "bernoulli of p": lambda x, p: x * torch.bernoulli(torch.full_like(x, 1 - p)) / (1 - p),
    "bernoulli_": lambda x, p: x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p),
    "rand": lambda x, p: torch.where(torch.rand_like(x) < p, x.sin(), x),
    "randn": lambda x, p: x + p * torch.randn_like(x) * x,
    "uniform_": lambda x, p: x * torch.empty_like(x).uniform_(p, 1),
    "exponential_": lambda x, p: x * torch.empty_like(x).exponential_(1 + p).clamp(max=2),
    "gumbel": lambda x, p: F.gumbel_softmax(x, 1 - p),
    "attention": noisy_attention,
}


def mixed(x: Any, p: float) -> Any:
    """Calls several functions, so that one compilation tests them all."""
    x = NOISE["dropout"](x, p) + NOISE["alpha_dropout"](x, p)
    # the CPU has no half-precision kernel
    leaky = NOISE["rrelu"](x, p) if x.dtype != torch.float16 else x
    x = x.sin() + leaky * NOISE["bernoulli of p"](x, p)
    return NOISE["attention"](NOISE["feature_dropout"](x.cos(), p), p)


def gradients(model: nn.Module, call: Any, dtype: Any) -> list[Any]:
    torch.manual_seed(3)
    x = torch.randn(32, 16).to(dtype)
    call(x).backward()
    found = [p.grad for p in model.parameters()] + [torch.rand(4)]  # shows the generator's position
    for p in model.parameters():
        p.grad = None
    return found


def check(
    function: Callable[[Any, float], Any], dtype: Any, p: float, same_bits: Callable[..., bool],
    budgets: tuple[Any, ...] = (None, "0.7x", "min"), **options: Any,
) -> list[Any]:  # fmt: skip
    """Compares budgets with PyTorch's partitioner that recomputes nothing. Returns the plans."""
    torch.manual_seed(0)
    model = Layers(lambda x: function(x, p), 2).to(dtype)
    if options:
        expected = gradients(model, ct.compile(model, **options), dtype)
    else:
        backend = "aot_eager_default_partitioner"
        expected = gradients(model, torch.compile(model, backend=backend), dtype)
    assert any(bool(g.isfinite().all()) and g.count_nonzero() for g in expected)
    plans = []
    for budget in budgets:
        torch._dynamo.reset()
        compiled = ct.compile(model, budget=budget, **options)
        assert same_bits(gradients(model, compiled, dtype), expected), (budget, dtype, p)
        plans += compiled.plans
    return plans


@pytest.mark.very_slow
@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.very_slow)],
    ids=str,
)
def test_noise_in_half_precision(dtype: Any, same_bits: Callable[..., bool]) -> None:
    *_, plan = check(mixed, dtype, 0.1, same_bits, ("min",))
    assert plan.numbers["recomputed"] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_dropout_in_half_precision_is_planned(dtype: Any, same_bits: Callable[..., bool]) -> None:
    """The result of the dropout is recomputed and not always saved."""
    *_, plan = check(NOISE["dropout"], dtype, 0.1, same_bits, ("min",))
    ops, start = plan.problem["ops"], plan.document["backward_starts"]
    assert "aten.native_dropout.result" in [ops[i]["kind"] for i in plan.document["steps"][start:]]


@pytest.mark.very_slow
def test_numbers_of_a_counter(same_bits: Callable[..., bool]) -> None:
    check(mixed, torch.bfloat16, 0.1, same_bits, ("min",), random="counter")


@pytest.mark.very_slow
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", NOISE)
def test_every_noise(name: str, dtype: Any, same_bits: Callable[..., bool]) -> None:
    if name == "rrelu" and dtype == torch.float16:
        pytest.skip("the CPU has no rrelu for it")
    rng = random.Random(name)
    for p in (0.1, 0.9, rng.choice(CHANCES), rng.random()):
        torch._dynamo.reset()
        check(NOISE[name], dtype, p, same_bits)


# ---- other doors ---------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["name", "partition_fn", "tags"])
def test_half_precision_through_other_doors(
    door: str, same_bits: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Layers(lambda x: F.dropout(x, 0.1)).bfloat16()
    plain = torch.compile(model, backend="aot_eager_default_partitioner")
    expected = gradients(model, plain, torch.bfloat16)
    torch._dynamo.reset()
    if door == "name":
        compiled = torch.compile(model, backend="cutback", options={"budget": "min"})
        got = gradients(model, compiled, torch.bfloat16)
    elif door == "partition_fn":
        backend = aot_autograd(fw_compiler=interpreted, partition_fn=ct.Partitioner(budget="min"))
        got = gradients(model, torch.compile(model, backend=backend), torch.bfloat16)
    else:
        monkeypatch.setattr(hooks, "EMITTING", (("torch.fx", "no_such_part", "graphs"),))
        with pytest.warns(UserWarning, match="as tags"):
            tagged = ct.compile(model, budget="min")
        got = gradients(model, tagged, torch.bfloat16)
    assert same_bits(got, expected)


@pytest.mark.very_slow
def test_autocast(same_bits: Callable[..., bool]) -> None:
    """Inside autocast the dropped tensor and the parameters have different dtypes."""

    def f(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return F.dropout(torch.mm(x, x.t()).relu() @ x, 0.1).float()

    torch.manual_seed(0)
    model = Layers(f)
    found = []
    for budget in (None, "0.7x", "min"):
        torch._dynamo.reset()
        found.append(gradients(model, ct.compile(model, budget=budget), torch.float32))
    assert same_bits(found[1], found[0]) and same_bits(found[2], found[0])


# ---- batch norms ---------------------------------------------------------------------------


class Norms(nn.Module):
    def __init__(self, dtype: Any, statistics: Any) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4)).to(dtype)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4)).to(statistics)

    def forward(self, x: Any) -> Any:
        x = x.reshape(2, 4, 8, 8)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return (x * 0.5).sin().sum()


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, *(pytest.param(t, marks=pytest.mark.very_slow) for t in TYPES)],
    ids=str,
)
def test_batch_norms_run_again_in_every_type(dtype: Any, same_bits: Callable[..., bool]) -> None:
    """The weight replaces the running statistics, whatever they contain."""
    for statistics in dict.fromkeys([torch.float32 if dtype.itemsize == 2 else dtype, dtype]):
        found, again = [], False
        for policy in (None, "nothing_saveable"):
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = Norms(dtype, statistics)
            with torch.no_grad():
                model.norms[1].weight.copy_(torch.tensor([-1e4, 0.0, 1.0, 3e-5]))
            compiled = ct.compile(copy.deepcopy(model), policy=policy)
            found.append(gradients(compiled, compiled, dtype)[:-1] + list(compiled.buffers()))
            (plan,) = compiled.plans
            later = plan.document["steps"][plan.document["backward_starts"] :]
            again |= any("batch_norm_legit" in plan.problem["ops"][i]["kind"] for i in later)
        for other in found[1:]:
            assert all(torch.equal(bits(a), bits(b)) for a, b in zip(other, found[0], strict=True))
        assert again == (statistics.itemsize >= 4)  # saved if everything is in half precision
