"""Chains of rows in pieces: the same bits under every budget, close to eager mode, in little
memory."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

import cutback.torch as ct
from cutback.planner.sliced import begins
from cutback.torch.compiler.saved_plans import SavedPlans
from cutback.torch.graph.row_loss_ops import ROW_LOSS, ROW_LOSS_BACKWARD, ROW_LOSS_BACKWARD_OUT

BATCH, WIDTH, WORDS = 2, 8, 96
BUDGETS = (None, 0.3, "smallest")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Resets Dynamo, because sizes of one test must not make those of the next symbolic."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# ---- operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 150_000)], ids=str)
def test_row_losses_are_those_of_a_log_softmax(shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, words = shape
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, words, (rows,), generator=generator)
    labels[rows // 2 :] = -100
    x64 = x.double().clone().requires_grad_()
    logp = F.log_softmax(x64, 1)
    kept = labels != -100
    picked = logp.gather(1, labels.clamp(min=0)[:, None])[:, 0] * kept
    own, lse = ROW_LOSS(x, labels, -100)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert own.dtype == lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(own.double(), picked, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        lse.double(), x64.logsumexp(1), rtol=tolerance, atol=tolerance
    )  # fmt: skip
    weight = torch.rand(rows, generator=generator).to(lse.dtype) * kept
    uniform = torch.rand(rows, generator=generator).to(lse.dtype) * kept
    (expected,) = torch.autograd.grad(
        -(picked * weight).sum() + (logp.sum(1) * uniform).sum(), x64, retain_graph=True
    )
    made = ROW_LOSS_BACKWARD(weight, uniform, x, lse, labels, -100)
    assert made.dtype == dtype
    coarse = 1e-2 if dtype == torch.bfloat16 else 10 * tolerance
    torch.testing.assert_close(made.double(), expected, rtol=coarse, atol=coarse)
    over = x.clone()
    ROW_LOSS_BACKWARD_OUT(weight, uniform, over, lse, labels, -100, out=over)
    assert torch.equal(over, made)


def test_a_label_outside_of_the_vocabulary_is_refused() -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        ROW_LOSS(torch.zeros(2, 3), torch.tensor([0, 3]), -100)


@pytest.mark.parametrize("rows", [1, 255, 256, 511, 512, 513, 2047, 2048, 5000])
def test_pieces_begin_at_multiples_of_256_rows(rows: int) -> None:
    first = begins(rows)
    assert first[0] == 0 and first[-1] == rows and len(first) - 1 <= 8
    assert all(a < b and a % 256 == 0 for a, b in itertools.pairwise(first))


# ---- steps ---------------------------------------------------------------------------------------


class Form(nn.Module):
    """A function of weights and inputs."""

    def __init__(self, function: Callable[..., Any], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype) * 0.3)

        self.head, self.bias = parameter(WORDS, WIDTH), parameter(WORDS)
        self.up, self.down = parameter(WORDS, WIDTH), parameter(WIDTH, WORDS)
        self.function = function

    def forward(self, h: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.function(self, h, t)
        return loss

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        return F.linear(h, self.head)


def _inputs(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    h = torch.randn(BATCH, tokens, WIDTH, generator=generator, dtype=dtype).requires_grad_()
    t = torch.randint(0, WORDS, (BATCH, tokens), generator=generator)
    t[:, : tokens // 10] = 3
    return h, t


def _flat(m: Form, h: torch.Tensor, t: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.cross_entropy(m.logits(h).view(-1, WORDS), t.view(-1), **options)


def _z_loss(m: Form, h: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    x = m.logits(h).view(-1, WORDS)
    return F.cross_entropy(x, t.view(-1)) + 0.1 * x.logsumexp(-1).square().mean()


def _shifted(m: Form, h: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    x = m.logits(h).float()[:, :-1].contiguous()
    return F.cross_entropy(x.view(-1, WORDS), t[:, 1:].contiguous().view(-1), ignore_index=3)


def _padded(m: Form, h: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    labels = F.pad(t, (0, 1), value=-100)[:, 1:].contiguous().view(-1)
    return F.cross_entropy(m.logits(h).float().view(-1, WORDS), labels, ignore_index=-100)


def _gated(m: Form, h: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    wide = F.silu(F.linear(h, m.up, m.bias)) * F.linear(h, m.head)
    return (h + F.linear(wide, m.down)).square().mean()


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mean": _flat,
    "sum": lambda m, h, t: _flat(m, h, t, reduction="sum", ignore_index=3),
    "none": lambda m, h, t: _flat(m, h, t, reduction="none").square().mean(),
    "smoothed": lambda m, h, t: _flat(m, h, t, label_smoothing=0.1, ignore_index=3),
    "smoothed rows": lambda m, h, t: _flat(m, h, t, label_smoothing=0.1, reduction="none").sum(),
    "weights": lambda m, h, t: _flat(m, h, t, weight=torch.linspace(0, 1, WORDS, dtype=h.dtype)),
    "module": lambda m, h, t: nn.CrossEntropyLoss()(
        F.linear(h, m.head, m.bias).flatten(0, 1), t.flatten()
    ),
    "transposed": lambda m, h, t: F.cross_entropy(m.logits(h).transpose(1, 2), t),
    "fused": lambda m, h, t: F.linear_cross_entropy(h.view(-1, WIDTH), m.head, t.view(-1)),
    "probabilities": lambda m, h, t: F.cross_entropy(
        m.logits(h).view(-1, WORDS), F.one_hot(t.view(-1), WORDS).to(h.dtype)
    ),
    "capped": lambda m, h, t: F.cross_entropy(
        (3 * torch.tanh(m.logits(h) / 3)).view(-1, WORDS), t.view(-1)
    ),
    "z loss": _z_loss,
    "shifted": _shifted,
    "padded": _padded,
}
PERCEPTRONS: dict[str, Callable[..., torch.Tensor]] = {
    "perceptron": lambda m, h, t: (
        (h + F.linear(F.gelu(F.linear(h, m.up, m.bias)), m.down)).square().mean()
    ),
    "gated": _gated,
    "dropout": lambda m, h, t: (
        (h + F.linear(F.dropout(F.gelu(F.linear(h, m.up)), 0.1), m.down)).square().mean()
    ),
}
if not hasattr(F, "linear_cross_entropy"):
    del LOSSES["fused"]


def _grads(step: Any, model: nn.Module, h: torch.Tensor, t: torch.Tensor) -> list[torch.Tensor]:
    h = h.detach().requires_grad_()
    torch.manual_seed(7)
    loss = step(h, t)
    model.zero_grad()
    loss.backward()
    return [loss.detach(), h.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def _agree(function: Callable[..., Any], tokens: int, dtype: torch.dtype) -> list[Any]:
    """Compares sliced steps with eager mode. Returns them, by budget."""
    h, t = _inputs(tokens, dtype)
    eager = Form(function, dtype)
    expected, first, steps = _grads(eager, eager, h, t), None, []
    for budget in BUDGETS:
        model = copy.deepcopy(eager)
        step = ct.compile(model, budget, slices=True, dynamic=False)
        found = _grads(step, model, h, t)
        coarse = {torch.float32: 1e-4, torch.float64: 1e-12, torch.bfloat16: 0.05}[dtype]
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            assert (a - b).abs().max() <= coarse * b.abs().max() + coarse * 1e-2
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))
        steps.append(step)
    return steps


@pytest.mark.very_slow
@pytest.mark.parametrize("name", [*LOSSES, *PERCEPTRONS])
def test_bits_are_those_of_every_budget_and_close_to_eager_mode(name: str) -> None:
    function = {**LOSSES, **PERCEPTRONS}[name]
    (*_, smallest) = _agree(function, 300, torch.float32)
    assert [s.pieces for s in smallest.slices] == [2]
    (said,) = map(str, smallest.slices)
    assert "600 rows in 2 pieces" in said
    assert ("cross_entropy" in said) == (name in LOSSES and name != "probabilities")


@pytest.mark.very_slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["smoothed", "shifted", "gated", "dropout"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    if name == "shifted" and dtype == torch.float64:
        return  # it computes its loss in f32
    for step in _agree({**LOSSES, **PERCEPTRONS}[name], 300, dtype):
        assert [s.pieces for s in step.slices] == [2]


@pytest.mark.very_slow
@pytest.mark.parametrize("rows", [1, 255, 256, 257, 2047])
def test_odd_numbers_of_rows(rows: int) -> None:
    def loss(m: Form, h: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return _flat(m, h.view(-1, WIDTH)[:rows].clone(), t.view(-1)[:rows].clone())

    for step in _agree(loss, 1024, torch.float32):
        assert [s.pieces for s in step.slices] == ([] if rows < 512 else [len(begins(rows)) - 1])


@pytest.mark.very_slow
@pytest.mark.parametrize("random", ["torch", "counter"])
def test_dropout_draws_the_numbers_of_the_whole_operation(random: str) -> None:
    h, t = _inputs(300)
    function = PERCEPTRONS["dropout"]
    plain, sliced = Form(function), Form(function)
    whole = _grads(ct.compile(plain, random=random, dynamic=False), plain, h, t)
    step = ct.compile(sliced, "smallest", slices=True, random=random, dynamic=False)
    for a, b in zip(_grads(step, sliced, h, t), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert step.slices[0].pieces == 2


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["mean", "smoothed", "gated"])
def test_the_measured_peak_is_the_planned_one(name: str, train_step: Callable[..., Any]) -> None:
    h, t = _inputs(1024)
    model = Form({**LOSSES, **PERCEPTRONS}[name])
    step = ct.compile(model, "smallest", slices=True, dynamic=False)
    measured = train_step(step, h, t)
    planned = step.plans[0].numbers["live_bytes"]
    wide = BATCH * 1024 * WORDS * 4
    assert measured.peak_bytes == planned
    assert planned < 0.6 * wide


# ---- what stays whole ----------------------------------------------------------------------------


@pytest.mark.very_slow
def test_logits_that_are_returned_stay_whole() -> None:
    def both(m: Form, h: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = m.logits(h)
        return F.cross_entropy(x.view(-1, WORDS), t.view(-1)), x

    step = ct.compile(Form(both), slices=True, dynamic=False)
    step(*_inputs(300))[0].backward()
    (said,) = step.slices
    assert said.pieces == 1 and "the function returns its rows" in said.reason
    assert str(said).endswith("whole, because the function returns its rows")


def test_symbolic_rows_stay_whole_and_are_named() -> None:
    rows = torch.randn(600, WIDTH)
    torch._dynamo.mark_dynamic(rows, 0)
    step = ct.compile(lambda w, h: torch.tanh(h @ w).sum(), slices=True)
    step(torch.randn(WIDTH, WORDS, requires_grad=True), rows).backward()
    (said,) = step.slices
    assert said.pieces == 1 and said.rows == 600 and "dynamic=False" in said.reason
    assert step.compiler_notes == [said]


@pytest.mark.parametrize("codegen", ["native", "inductor"])
def test_other_code_generators_are_refused(codegen: str) -> None:
    with pytest.raises(NotImplementedError, match=f"slices=True with codegen='{codegen}'"):
        ct.compile(nn.Linear(2, 2), slices=True, codegen=codegen)


def test_profiles_are_refused() -> None:
    with pytest.raises(ValueError, match="slices=True with profile="):
        ct.Partitioner(0.5, slices=True, profile={"aten.mm.default": 1e-6})


@pytest.mark.very_slow
def test_saved_plans_name_slices(tmp_path: Path) -> None:
    (h, t), path = _inputs(300), tmp_path / "plans.json"
    model = Form(_flat)
    step = ct.compile(model, "smallest", slices=True, dynamic=False)
    expected = _grads(step, model, h, t)
    step.save_plans(path)
    assert SavedPlans.read(path).slices
    again = ct.compile(model, plans=path, slices=True, dynamic=False)
    found = _grads(again, model, h, t)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    with pytest.raises(ValueError, match="these were saved with slices=True"):
        ct.compile(Form(_flat), plans=path, dynamic=False)(h, t)


def test_traced_steps_have_no_whole_logits() -> None:
    traced = ct.trace(Form(_flat), *_inputs(300), dynamic=False, slices=True)
    assert [s.pieces for s in traced.slices] == [2]
    types = [value.type for op in traced.problem.ops for value in op.outputs]
    assert types.count(f"f32[256,{WORDS}]") == types.count(f"f32[344,{WORDS}]") >= 2
    assert not any(t.startswith("f32[600,") and t.endswith(f"{WORDS}]") for t in types)


@pytest.mark.very_slow
def test_traced_steps_take_less() -> None:
    model, given = Form(_flat), _inputs(1024)
    whole = ct.trace(model, *given, dynamic=False)
    sliced = ct.trace(model, *given, dynamic=False, slices=True)
    assert [s.pieces for s in sliced.slices] == [8] and whole.slices == []
    peaks = [s.plan("smallest").numbers["live_bytes"] for s in (whole, sliced)]
    assert peaks[1] < 0.5 * peaks[0]


@pytest.mark.very_slow
def test_a_small_gpt2_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=512, n_positions=256, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    eager = transformers.GPT2LMHeadModel(config)
    eager.loss_type = "ForCausalLM"  # otherwise a warning breaks the graph before the loss

    class Loss(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.model(ids, labels=ids, use_cache=False).loss
            return loss

    ids = torch.randint(0, 512, (4, 256))
    found = []
    for budget, slices in ((None, False), (None, True), ("smallest", True)):
        model = Loss(copy.deepcopy(eager))
        step = ct.compile(model, budget, slices=slices, dynamic=False)
        torch.manual_seed(3)
        loss = step(ids)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
        if slices:
            assert [s.kind for s in step.slices if s.pieces > 1] == [
                "addmm", "addmm", "cross_entropy"
            ]  # fmt: skip
    for a, b, c in zip(*found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)
        assert torch.equal(b, c)
