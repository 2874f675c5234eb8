"""Training as in the front ends' documentation, with our line added: the same bits as without it,
and budgets checked by our own tracker."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_models import TanhRows, fit
from torch import nn

import cutback.torch as ct

BUDGET = "0.5x"


def gpt2(**options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=3, n_head=2, resid_pdrop=0.1,
        bos_token_id=0, eos_token_id=0, use_cache=False, **options,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> dict[str, Any]:
        row = torch.randint(64, (32,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": row, "labels": row, "unused": torch.zeros(2)}


def train(model: Any, directory: Path, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(directory), per_device_train_batch_size=4, max_steps=4, report_to=[],
        logging_steps=1, use_cpu=True, disable_tqdm=True, seed=1, **options,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
    trainer.train(resume_from_checkpoint=options.pop("resume", None))
    return trainer


def same(a: Any, b: Any) -> bool:
    pairs = list(zip(a.parameters(), b.parameters(), strict=True))
    return bool(pairs) and all(torch.equal(p, q) for p, q in pairs)


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}],
    ids=["plain", "accumulation", "bf16"],
)
def test_trainer(options: dict[str, Any], tmp_path: Path) -> None:
    plain = gpt2()
    train(plain, tmp_path / "plain", save_strategy="no", **options)
    model = gpt2()
    compiled = ct.compile(model, budget=BUDGET)
    train(compiled, tmp_path / "ours", save_strategy="no", **options)
    assert compiled.plans and compiled.plans[-1].numbers["recomputed"] > 0
    if "bf16" in options:
        for p, q in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-3)
    else:
        for p, q in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_trainer_saves_and_resumes(tmp_path: Path) -> None:
    """Tied weights are saved once, under the model's own names."""
    from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

    def trainer(model: Any, steps: int) -> Any:
        arguments = TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=steps, save_steps=2,
            report_to=[], use_cpu=True, disable_tqdm=True, seed=1, lr_scheduler_type="constant",
        )  # fmt: skip
        return Trainer(model=model, args=arguments, train_dataset=Tokens())

    options = {"budget": BUDGET}
    model = gpt2()
    model.compile(backend="cutback", options=options)  # in place, so that names stay the model's
    trainer(model, 4).train()
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-4")
    assert same(again, model)
    assert again.lm_head.weight is again.transformer.wte.weight
    torch._dynamo.reset()
    other = gpt2()
    other.compile(backend="cutback", options=options)
    trainer(other, 4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(other, model)


@pytest.mark.parametrize("line", ["in place", "compiled", "compiled, labels named"])
def test_trainer_evaluates(line: str, tmp_path: Path) -> None:
    """Evaluates between training steps, with a smaller last batch and accumulation. For a compiled
    module Trainer does not know which inputs are labels."""
    from transformers import Trainer, TrainingArguments

    def run(model: Any, **options: Any) -> list[float]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=6, num_train_epochs=2,
            gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=1, save_strategy="no",
            logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, seed=1, **options,
        )  # fmt: skip
        some = torch.utils.data.Subset(Tokens(), range(5))
        trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=some)
        trainer.train()
        return [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]

    wanted = run(gpt2())
    model = gpt2()
    if line == "in place":
        model.compile(backend="cutback", options={"budget": BUDGET})
        found = run(model)
    else:
        named = {"label_names": ["labels"]} if "named" in line else {}
        found = run(ct.compile(model, budget=BUDGET), **named)
    assert len(wanted) == 4
    if line == "compiled":
        assert not found
    else:
        assert found == pytest.approx(wanted, rel=1e-5)


def test_trainer_saves_a_compiled_module(tmp_path: Path) -> None:
    """The state has the names that ``torch.compile`` makes, and tied weights once.
    ``from_pretrained`` does not know these names."""
    from safetensors import safe_open
    from transformers import GPT2LMHeadModel

    model = gpt2()
    train(ct.compile(model, budget=BUDGET), tmp_path, save_steps=2)
    assert not same(GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-4"), model)
    with safe_open(tmp_path / "checkpoint-4" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert all(name.startswith("_orig_mod.") for name in names)
    assert len(names & {"_orig_mod.lm_head.weight", "_orig_mod.transformer.wte.weight"}) == 1


def test_our_checkpoint_in_transformers() -> None:
    """One line replaces PyTorch's checkpoint, which ``gradient_checkpointing_enable`` selects."""
    tokens = torch.randint(64, (4, 32))

    def step(model: Any) -> tuple[int, list[Any]]:
        torch.manual_seed(3)
        with ct.MemoryTracker() as memory:
            model(input_ids=tokens, labels=tokens).loss.backward()
            peak = memory.peak_bytes
        return peak, [p.grad for p in model.parameters()]

    plain, wanted = step(gpt2())
    model = gpt2()
    model._set_gradient_checkpointing(gradient_checkpointing_func=ct.checkpoint)
    peak, found = step(model)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)) and peak < plain
    model = gpt2()
    model._set_gradient_checkpointing(
        gradient_checkpointing_func=functools.partial(
            ct.checkpoint, use_reentrant=False, budget="0.8x"
        )
    )
    step(model)
    model.zero_grad()
    peak, found = step(model)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)) and peak < plain
    model = gpt2()
    ours = functools.partial(ct.checkpoint, policy_fn=[torch.ops.aten.addmm])
    model._set_gradient_checkpointing(gradient_checkpointing_func=ours)
    peak, found = step(model)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)) and peak < plain
    model.gradient_checkpointing_enable()
    assert all(block._gradient_checkpointing_func is not ours for block in model.transformer.h)


def test_accelerate(tmp_path: Path) -> None:
    from accelerate import Accelerator

    def run(ours: bool) -> Any:
        torch.manual_seed(0)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = gpt2()
        compiled = ct.compile(model, budget=BUDGET) if ours else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        loader = torch.utils.data.DataLoader(Tokens(), batch_size=4)
        compiled, optimizer, loader = accelerator.prepare(compiled, optimizer, loader)
        for batch in loader:
            with accelerator.accumulate(compiled):
                torch.manual_seed(5)
                out = compiled(input_ids=batch["input_ids"], labels=batch["labels"])
                accelerator.backward(out.loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(compiled.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        if ours:
            assert compiled.plans[-1].numbers["recomputed"] > 0
            assert accelerator.unwrap_model(compiled, keep_torch_compile=False) is model
            assert isinstance(accelerator.unwrap_model(compiled), type(compiled))
            accelerator.save_state(str(tmp_path))
            kept = copy.deepcopy(model)
            for p in model.parameters():
                p.data.zero_()
            accelerator.load_state(str(tmp_path))
            assert same(model, kept)
        return model

    for p, q in zip(run(False).parameters(), run(True).parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["whole", "part"])
def test_lightning(form: str, tmp_path: Path) -> None:
    logs = form == "part"  # torch.compile cannot trace Lightning's log
    plain, model = TanhRows(logs), TanhRows(logs)
    fit(plain, tmp_path)
    if form == "whole":
        compiled = ct.compile(model, budget=BUDGET)
        fit(compiled, tmp_path)
    else:
        compiled = model.net = ct.compile(model.net, budget=BUDGET)
        fit(model, tmp_path)
    assert compiled.plans and same(plain, model)
    assert compiled.plans[-1].numbers["recomputed"] > 0


@pytest.mark.parametrize(
    "name",
    ["resnet18", "convnext_atto", "efficientnet_b0", "swin_tiny_patch4_window7_224"],
)
def test_timm(name: str) -> None:
    import timm

    options = {"img_size": 64} if "swin" in name else {}
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, drop_path_rate=0.1, **options).train()
    x = torch.randn(8, 3, 64, 64)

    def step(run: Any) -> tuple[int, list[Any]]:
        model.zero_grad()
        torch.manual_seed(3)
        with ct.MemoryTracker() as memory:
            run(x).square().mean().backward()
            peak = memory.peak_bytes
        return peak, [p.grad.clone() for p in model.parameters()]

    start = copy.deepcopy(model.state_dict())
    plain, wanted = step(model)
    model.load_state_dict(start)
    compiled = ct.compile(model, budget="0.95x")
    peak, found = step(compiled)
    assert compiled.plans and peak < plain
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_peft_lora() -> None:
    from peft import LoraConfig, get_peft_model

    tokens = torch.randint(64, (4, 32))

    def step(run: Any, model: Any) -> dict[str, Any]:
        torch.manual_seed(3)
        run(input_ids=tokens, labels=tokens).loss.backward()
        return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}

    def make() -> Any:
        torch.manual_seed(4)
        return get_peft_model(gpt2(), LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, model = make(), make()
    wanted = step(plain, plain)
    compiled = ct.compile(model, budget=BUDGET)
    found = step(compiled, model)
    assert compiled.plans and list(found) == list(wanted)
    for name, grad in found.items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=1e-6)


def test_optimizers_in_the_backward() -> None:
    """Each parameter is updated as soon as its gradient is ready, as in PyTorch's tutorial."""

    def make() -> tuple[nn.Module, Callable[[Any], Any]]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))
        steps = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

        def hook(p: Any) -> None:
            steps[p].step()
            steps[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(hook)
        return model, hook

    (plain, _), (model, _) = make(), make()
    compiled = ct.compile(model, budget="0.7x")
    for k in range(4):
        x = torch.randn(256, 16, generator=torch.Generator().manual_seed(k))
        plain(x).square().sum().backward()
        compiled(x).square().sum().backward()
    assert same(plain, model) and compiled.plans


def test_lengths_that_vary_over_sixty_steps() -> None:
    """There is one plan for all sizes up to the largest; the peak is below eager mode's every
    time."""
    model = gpt2().eval()  # no dropout, so that one pass gives the bits
    compiled = ct.compile(model, budget="0.8x")
    lengths = torch.randint(8, 32, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    for k, n in enumerate([31, *lengths]):
        tokens = torch.randint(64, (4, n))
        with ct.MemoryTracker() as memory:
            compiled(input_ids=tokens, labels=tokens).loss.backward()
            peak = memory.peak_bytes
        if k:  # the graph breaks: the first step plans its graphs one by one
            assert peak <= max(p.numbers["budget_bytes"] for p in compiled.plans), n
    assert len(compiled.plans) <= 3
