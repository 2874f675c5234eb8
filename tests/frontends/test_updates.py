"""Front ends with updates inside the backward. Their defaults run, with a separate step if they
need all gradients; other settings are refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from lightning_models import TanhRows, fit
from test_front_ends import Tokens, gpt2, same

from cutback.torch import frontends
from cutback.torch.updates import SeparateStepError
from cutback.torch.updates.consumed import ConsumedGradientError


def trained(folder: Path, callbacks: list[Any], **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, max_steps=3, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, seed=1, **options,
    )  # fmt: skip
    model = gpt2()
    Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=callbacks).train()
    return model


def test_a_trainer_clips_by_default(tmp_path: Path) -> None:
    callback = frontends.trainer_callback(updates="inside")
    models = [
        trained(tmp_path, [one]) for one in (callback, frontends.trainer_callback(budget=None))
    ]
    assert same(*models)
    assert "clips gradients to 1.0" in callback.compiled.updates_reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "logs the norm" if hasattr(transformers.Trainer, "_get_grad_norm") else ""),
        ({"gradient_accumulation_steps": 2}, "accumulates the gradients of 2 backwards"),
    ],
)
def test_a_trainer_that_does_not_clip(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    callback = frontends.trainer_callback(updates="inside")
    models = [
        trained(tmp_path, [one], max_grad_norm=0.0, optim="adamw_torch", **options)
        for one in (callback, frontends.trainer_callback(budget=None))
    ]
    assert same(*models)
    assert reason in callback.compiled.updates_reason
    assert callback.compiled.updates_inside == (not reason)


def test_another_trainer_has_another_optimizer(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    callback, model = frontends.trainer_callback(updates="inside"), gpt2()
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=1, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, max_grad_norm=0.0, optim="adamw_torch",
    )  # fmt: skip
    known = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    callback.on_train_begin(arguments, None, None, **known)
    callback.on_train_begin(arguments, None, None, **known)
    separate = hasattr(Trainer, "_get_grad_norm")
    assert callback.compiled.updates_inside == (not separate)
    other = torch.optim.AdamW(model.parameters())
    inside = callback.compiled.dynamo_ctx.wishes["updates"]
    inside.reason = ""
    callback.on_train_begin(arguments, None, None, model=model, optimizer=other)
    assert callback.compiled.updates_reason == "the model was compiled with another optimizer"


def test_accelerate() -> None:
    from accelerate import Accelerator

    with pytest.raises(ValueError, match="pass optimizer="):
        frontends.accelerate(Accelerator(cpu=True), updates="inside")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    optimizer = torch.optim.AdamW(model.parameters())
    accelerator = frontends.accelerate(Accelerator(cpu=True), updates="inside", optimizer=optimizer)
    model, wrapped = accelerator.prepare(model, optimizer)
    x = torch.randn(3, 4)
    for _ in range(2):
        accelerator.backward(model(x).square().mean())
        wrapped.step()
        wrapped.zero_grad()
    (compiled,) = accelerator.cutback_compiled
    assert compiled.updates_inside
    before = [p.detach().clone() for p in model.parameters()]
    accelerator.backward(model(x).square().mean())
    with pytest.raises(ConsumedGradientError, match="compile with max_norm="):
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(SeparateStepError, match="second backward"):
        accelerator.backward(model(x).square().mean())
    assert not same_values(before, model)


def same_values(before: list[Any], model: torch.nn.Module) -> bool:
    return all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(("options", "reason"), [({}, ""), ({"gradient_clip_val": 1.0}, "clips")])
def test_lightning(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    callback = frontends.lightning_callback(updates="inside")
    models = []
    for callbacks in ([callback], []):
        torch.manual_seed(0)
        models.append(TanhRows())
        fit(models[-1], tmp_path, callbacks=callbacks, **options)
    assert reason in callback.compiled.updates_reason
    assert callback.compiled.updates_inside == (not reason)
    assert same(*models)
