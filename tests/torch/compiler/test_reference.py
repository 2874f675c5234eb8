"""Without a budget, a step needs no more memory than under PyTorch's ``aot_eager`` or with the
model's own checkpoints, and shares are relative to that. The judge is the measured peak of the same
model under ``aot_eager``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from small_models import make
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils.checkpoint import checkpoint

import cutback
import cutback.torch as ct


class Gated(nn.Module):
    """Has layers that each save several values that one cheap op makes from others."""

    def __init__(self, layers: int = 2, own: bool = False, broken: bool = False) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(layers))
        self.own = own
        self.broken = broken

    def layer(self, k: int, x: Any) -> Any:
        y = self.norms[k](self.linears[k](x))
        return 0.5 * y * (1 + torch.tanh(0.8 * (y + 0.04 * y**3))) * torch.sigmoid(x)

    def part(self, first: int, x: Any) -> Any:
        for k in range(first, len(self.linears), 2):
            x = checkpoint(self.layer, k, x, use_reentrant=False) if self.own else self.layer(k, x)
        return x

    def forward(self, x: Any) -> Any:
        x = self.part(0, x)
        if self.broken:
            torch._dynamo.graph_break()
        return self.part(1, x).square().mean()


class Squeeze(nn.Module):
    """Scales intermediate convolutions by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.ModuleList(nn.Conv2d(8, 24, 1, bias=False) for _ in range(2))
        self.deep = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1, groups=24) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(24) for _ in range(2))
        self.gates = nn.ModuleList(nn.Conv2d(24, 24, 1) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Conv2d(24, 8, 1) for _ in range(2))

    def forward(self, x: Any) -> Any:
        for a, b, n, g, c in zip(
            self.widen, self.deep, self.norms, self.gates, self.narrow, strict=True
        ):
            y = F.silu(n(b(F.silu(a(x)))))
            x = x + c(y * torch.sigmoid(g(y.mean((2, 3), keepdim=True))))
        return x.square().mean()


def _case(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    if name == "squeeze":
        return Squeeze(), (torch.randn(2, 8, 12, 12),)
    if name in ("gated", "own", "broken"):
        return Gated(own=name == "own", broken=name == "broken"), (torch.randn(64, 32),)
    return make(name)


def _interpreted(gm: Any, example_inputs: Any) -> Any:
    return make_boxed_func(gm.forward)


def _door(model: Any, door: str, **options: Any) -> Any:
    if door == "own":
        return ct.compile(model, **options)
    if door == "name":
        return torch.compile(model, backend="cutback", options=options)
    partitioner = ct.Partitioner(**options)
    backend = aot_autograd(fw_compiler=_interpreted, partition_fn=partitioner)
    return torch.compile(model, backend=backend)


def _under_aot_eager(model: Any, inputs: Any, train_step: Any) -> Any:
    step = train_step(torch.compile(model, backend="aot_eager"), *inputs)
    torch._dynamo.reset()
    return step


def _second(run: Any, inputs: Any, train_step: Any) -> Any:
    train_step(run, *inputs)
    return train_step(run, *inputs)


@pytest.mark.parametrize(
    "name",
    ["gated", "own", *(pytest.param(n, marks=pytest.mark.very_slow) for n in
                       ("squeeze", "broken", "unet", "gpt", "resnet"))],
)  # fmt: skip
def test_no_budget_takes_no_more_than_aot_eager(
    name: str, train_step: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    model, inputs = _case(name)
    plain = train_step(model, *inputs)
    judge = _under_aot_eager(model, inputs, train_step)
    for door in ("own", "name") if name == "gated" else ("own",):
        found = _second(_door(model, door), inputs, train_step)
        assert found.peak_bytes <= judge.peak_bytes
        assert same_bits(list(found.gradients.values()), list(plain.gradients.values()))
        torch._dynamo.reset()
    fastest = ct.compile(model, budget="fastest")
    most = _second(fastest, inputs, train_step).peak_bytes
    if name in ("gated", "squeeze", "broken"):  # saving everything takes more here
        assert most > judge.peak_bytes
    if name != "own":
        assert all(plan.numbers["recomputed"] == 0 for plan in fastest.plans)


def test_in_a_partitioner_and_traced(train_step: Callable[..., Any]) -> None:
    model, inputs = _case("gated")
    judge = _under_aot_eager(model, inputs, train_step).peak_bytes
    assert train_step(_door(model, "partitioner"), *inputs).peak_bytes <= judge + 4
    traced = ct.trace(model, *inputs)
    assert traced.plan().numbers["live_bytes"] == judge
    assert traced.plan("1x").numbers["live_bytes"] <= judge
    assert traced.plan("0.8x").numbers["budget_bytes"] == int(0.8 * judge)
    whole = traced.plan("fastest").numbers
    assert whole["live_bytes"] == whole["save_all_live_bytes"] > judge
    assert traced.plan(preset="autograd").numbers["live_bytes"] == whole["live_bytes"]


def test_what_is_saved_while_a_loss_outside_runs() -> None:
    """The loss has ops of its own, which run while the graph's saved values are live."""
    model, (x,) = _case("gated")

    def peak(run: Any) -> int:
        for _ in range(2):
            model.zero_grad()
            with ct.MemoryTracker() as memory:
                loss = run(x)
                wide = (loss * torch.ones(64, 2048)).exp().log().sum()
                wide.backward()
                found = memory.peak_bytes
        return int(found)

    judge = peak(torch.compile(model, backend="aot_eager"))
    torch._dynamo.reset()
    assert peak(ct.compile(model)) <= judge
    torch._dynamo.reset()
    assert peak(ct.compile(model, budget="fastest")) > judge


@pytest.mark.parametrize("name", [pytest.param("gated", marks=pytest.mark.very_slow), "own"])
def test_a_share_counts_from_there(
    name: str, train_step: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    """A share counts from the same bytes for a model with its own checkpoints, too."""
    model, inputs = _case(name)
    plain = train_step(model, *inputs)
    judge = _under_aot_eager(model, inputs, train_step).peak_bytes
    for share in (1.0, 0.9, 0.8):
        compiled = ct.compile(model, budget=f"{share}x")
        found = train_step(compiled, *inputs)
        assert found.peak_bytes <= share * min(judge, plain.peak_bytes if name == "own" else judge)
        assert compiled.plans[0].numbers["budget_bytes"] == int(share * judge)
        assert same_bits(list(found.gradients.values()), list(plain.gradients.values()))
        torch._dynamo.reset()


@pytest.mark.very_slow
def test_a_share_of_several_graphs_and_of_several_calls(train_step: Callable[..., Any]) -> None:
    broken, inputs = _case("broken")
    handed = 64 * 32 * 4  # the gradient between the graphs counts in both
    judge = _under_aot_eager(broken, inputs, train_step).peak_bytes
    compiled = ct.compile(broken, budget="0.8x")
    assert _second(compiled, inputs, train_step).peak_bytes <= 0.8 * (judge + handed)
    torch._dynamo.reset()

    model, (x,) = _case("gated")

    def twice(run: Any) -> int:
        model.zero_grad()
        with ct.MemoryTracker() as memory:
            (run(x) + run(2 * x)).backward()
            return int(memory.peak_bytes)

    judge = [twice(torch.compile(model, backend="aot_eager")) for _ in range(2)][1]
    torch._dynamo.reset()
    compiled = ct.compile(model, budget="0.8x")
    twice(compiled)
    outside = x.nbytes + 64  # 2 * x, and the losses
    assert twice(compiled) <= 0.8 * judge + outside


@pytest.mark.very_slow
def test_a_policy_decides_without_a_budget_and_moves_no_share() -> None:
    model, inputs = _case("own")

    def numbers(**options: Any) -> Any:
        compiled = ct.compile(model, **options)
        compiled(*inputs).backward()
        torch._dynamo.reset()
        return compiled.plans[0].numbers

    wanted = numbers(budget="0.9x")["budget_bytes"]
    for policy in (
        "nothing_saveable",
        "everything_saveable",
        ["aten.addmm"],
        cutback.policies.mu_two("0.5x"),
    ):
        assert numbers(budget="0.9x", policy=policy)["budget_bytes"] == wanted
        assert (
            ct.trace(model, *inputs, policy=policy).plan("0.9x").numbers["budget_bytes"] == wanted
        )
    assert numbers(policy="everything_saveable")["recomputed"] == 0
    least = numbers(policy="nothing_saveable")
    assert least["saved_bytes"] < numbers()["saved_bytes"]


@pytest.mark.very_slow
def test_a_share_is_answered_in_shares() -> None:
    model, inputs = _case("gated")
    text = r"^no plan fits 10% of the \S+ KiB that the step takes without a budget \(live\): the "
    for ask in (
        lambda share: ct.compile(model, budget=f"{share}x")(*inputs).backward(),
        lambda share: ct.trace(model, *inputs).plan(f"{share}x"),
    ):
        with pytest.raises(cutback.BudgetError, match=text) as caught:
            ask(0.1)
        assert caught.value.share == 0.1
        ask(caught.value.smallest_share)
        torch._dynamo.reset()


@pytest.mark.very_slow
@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.very_slow)])
def test_shares_in_one_message_are_of_one_whole(broken: bool) -> None:
    """The whole is the bytes of the step without a budget, which are fewer than those of saving
    everything; a share named in the text can be requested."""

    def ask(budget: Any) -> Any:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, x = Gated(broken=broken), torch.randn(256, 32)
        compiled = ct.compile(model, budget=budget)
        for _ in range(1 + broken):
            compiled(x).backward()
        return compiled.plans[0].numbers

    whole = ask("1x")["budget_bytes"]
    assert whole < ask("fastest" if not broken else 1 << 30)["save_all_live_bytes"]
    for budget in ("0.1x", int(0.1 * whole)):
        with pytest.raises(cutback.BudgetError) as caught:
            ask(budget)
        error = caught.value
        assert error.reference_bytes == whole and "saving everything takes" not in str(error)
        share = error.smallest_share
        if budget == "0.1x":
            assert f"takes {100 * share:g}%" in str(error).replace("at most ", "")
        assert ask(f"{share}x")["live_bytes"] <= int(share * whole)


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_language_models(name: str, train_step: Callable[..., Any]) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "gpt2":
        net = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=4, n_embd=64, n_head=4, vocab_size=512, n_positions=128, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        ))  # fmt: skip
    else:
        net = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            num_hidden_layers=4, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=160, vocab_size=512, use_cache=False,
        ))  # fmt: skip

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, words: Any) -> Any:
            logits = self.net(input_ids=words).logits
            return F.cross_entropy(logits.flatten(0, 1), words.flatten())

    model, inputs = Step(), (torch.randint(512, (4, 64)),)
    judge = _under_aot_eager(model, inputs, train_step).peak_bytes
    assert train_step(ct.compile(model), *inputs).peak_bytes <= judge
    torch._dynamo.reset()
    assert train_step(ct.compile(model, budget="0.7x"), *inputs).peak_bytes <= 0.7 * judge
    torch._dynamo.reset()
    assert train_step(ct.compile(model, budget="fastest"), *inputs).peak_bytes > judge
