"""The one-line additions of ``cutback.torch.frontends``: the same bits as without them, plans, and
saved states with the model's own names."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_models import TanhRows, fit
from test_front_ends import Tokens, gpt2, same
from torch import nn

from cutback.torch import frontends

BUDGET = "0.6x"


@pytest.mark.parametrize("measure", ["live", "total"])
def test_trainer_callback(measure: str, tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

    def run(folder: Path, callbacks: list[Any]) -> Any:
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=4, max_steps=4, report_to=[],
            save_steps=4, use_cpu=True, disable_tqdm=True, seed=1, eval_strategy="steps",
            eval_steps=2,
        )  # fmt: skip
        model = gpt2()
        trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(),
                          eval_dataset=Tokens(), callbacks=callbacks)  # fmt: skip
        trainer.train()
        return model

    budget = BUDGET if measure == "live" else "0.9x"
    callback = frontends.trainer_callback(budget=budget, measure=measure)
    plain, model = run(tmp_path / "plain", []), run(tmp_path / "ours", [callback])
    assert callback.compiled.plans[-1].numbers["recomputed"] > 0
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    assert same(GPT2LMHeadModel.from_pretrained(tmp_path / "ours" / "checkpoint-4"), model)


def test_a_trainer_that_replaces_forward(tmp_path: Path) -> None:
    """TRL's ``SFTTrainer`` replaces forward in its constructor. The callback compiles
    afterwards."""
    import types

    from transformers import Trainer, TrainingArguments

    class Replacing(Trainer):
        def __init__(self, model: Any, **options: Any) -> None:
            def forward(self: Any, input_ids: Any, labels: Any, **_: Any) -> Any:
                hidden = self.transformer(input_ids).last_hidden_state
                parts = zip(hidden.chunk(2), labels.chunk(2), strict=True)
                losses = [
                    nn.functional.cross_entropy(self.lm_head(h).flatten(0, 1), y.flatten())
                    for h, y in parts
                ]
                return {"loss": torch.stack(losses).mean()}

            model.forward = types.MethodType(forward, model)
            super().__init__(model, **options)

    def run(callbacks: list[Any]) -> Any:
        arguments = TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=3, report_to=[],
            save_strategy="no", use_cpu=True, disable_tqdm=True, seed=1,
            remove_unused_columns=False,
        )  # fmt: skip
        model = gpt2()
        Replacing(model, args=arguments, train_dataset=Tokens(), callbacks=callbacks).train()
        return model

    callback = frontends.trainer_callback(budget=BUDGET)
    plain, model = run([]), run([callback])
    assert callback.compiled.plans
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_mistakes_show_where_they_are_written() -> None:
    with pytest.raises(ValueError, match="budget"):
        frontends.trainer_callback(budget="nonsense")
    with pytest.raises(TypeError, match="fullgraph"):
        frontends.lightning_callback(budget=BUDGET, fullgraph="no")


def test_accelerate() -> None:
    from accelerate import Accelerator

    def run(ours: bool) -> tuple[Any, Any]:
        torch.manual_seed(0)
        accelerator = Accelerator(cpu=True)
        if ours:
            accelerator = frontends.accelerate(accelerator, budget=BUDGET)
        model = gpt2()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        loader = torch.utils.data.DataLoader(Tokens(), batch_size=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            torch.manual_seed(5)
            out = model(input_ids=batch["input_ids"], labels=batch["labels"])
            accelerator.backward(out.loss)
            optimizer.step()
            optimizer.zero_grad()
        return accelerator, model

    (_, plain), (accelerator, model) = run(False), run(True)
    (compiled,) = accelerator.cutback_compiled
    assert compiled.plans[-1].numbers["recomputed"] > 0
    assert list(model.state_dict()) == list(plain.state_dict())
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("logs", [False, True])
def test_lightning_callback(logs: bool, tmp_path: Path) -> None:
    plain, model = TanhRows(logs), TanhRows(logs)
    fit(plain, tmp_path)
    callback = frontends.lightning_callback(budget=BUDGET)
    fit(model, tmp_path, [callback])
    assert callback.compiled.plans and same(plain, model)
    assert callback.compiled.plans[-1].numbers["recomputed"] > 0
    assert "training_step" not in vars(model) and "log" not in vars(model)
    assert same(copy.deepcopy(model), model)
