"""Drop-ins of ``cutback.torch.optim`` in front ends' own loops, with overflows, accumulation,
clipping, a schedule and a resumed run: they skip the same steps as PyTorch's unfused classes, with
the same learning rates and parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cutback.torch.optim as ours

NAMES = [name for name in ours.__all__ if hasattr(torch.optim, name)]
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
STEPS, OVERFLOWS = 8, (0, 3, 4)  # optimizer steps, and those whose gradients overflow
MOST = 8  # ulps of the largest number
Rows = list[tuple[Any, ...]]


def units(x: torch.Tensor, y: torch.Tensor) -> float:
    largest = y.abs().max()
    unit = torch.nextafter(largest, largest.new_tensor(float("inf"))) - largest
    return float((x - y).abs().max() / unit)


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))


def optimizer_of(kind: str, name: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "torch":
        return getattr(torch.optim, name)(model.parameters(), lr=0.05)
    options = {"fused": True} if kind == "fused" else {}
    return getattr(ours, name)(model.parameters(), lr=0.05, **options)


def batch(i: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(i))


class Overflow:
    """Makes one gradient infinite at the front end's steps that should overflow."""

    def __init__(self, model: nn.Module, micro_steps: int) -> None:
        self.count, self.micro_steps = 0, micro_steps
        next(model.parameters()).register_hook(self)

    def __call__(self, grad: torch.Tensor) -> torch.Tensor:
        step, self.count = self.count // self.micro_steps, self.count + 1
        return grad * float("inf") if step in OVERFLOWS else grad


def scaler_of() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)


def with_accelerate(kind: str, name: str, folder: Path) -> tuple[Rows, nn.Module]:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.scaler, accelerator.native_amp = scaler_of(), True  # float16 would require a GPU
    accelerator.state._mixed_precision = "fp16"
    model = model_of()
    overflow = Overflow(model, 2)
    optimizer = optimizer_of(kind, name, model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
    prepared, o, s = accelerator.prepare(model, optimizer, schedule)
    rows: Rows = []
    for i in range(2 * STEPS):
        if i == STEPS:  # a resumed run
            accelerator.save_state(str(folder))
            optimizer.state.clear()
            for p in model.parameters():
                p.data.zero_()
            accelerator.load_state(str(folder))
        with accelerator.accumulate(prepared):
            accelerator.backward((prepared(batch(i)) ** 2).mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
            o.step()
            s.step()
            if accelerator.sync_gradients:
                lr = optimizer.param_groups[0]["lr"]
                rows.append((o.step_was_skipped, lr, accelerator.scaler.get_scale()))
            o.zero_grad()
    assert overflow.count == 2 * STEPS
    return rows, model


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 4 * STEPS * 2

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": batch(i)[0]}


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = model_of()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.inner(x) ** 2).mean()}


def with_trainer(kind: str, name: str, folder: Path) -> tuple[Rows, nn.Module]:
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from transformers import Trainer, TrainerCallback, TrainingArguments

    rows: Rows = []

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
            inner = getattr(optimizer, "optimizer", optimizer)
            rows.append((optimizer.step_was_skipped, inner.param_groups[0]["lr"],
                         optimizer.scaler.get_scale()))  # fmt: skip

    def run(steps: int, resume: str | None) -> nn.Module:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        model = WithLoss()
        overflow = Overflow(model, 2)
        overflow.count = 0 if resume is None else STEPS
        optimizer = optimizer_of(kind, name, model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
        arguments = TrainingArguments(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=2, use_cpu=True,
            gradient_accumulation_steps=2, max_grad_norm=0.5, report_to=[], disable_tqdm=True,
            save_strategy="steps", save_steps=STEPS // 2, seed=1, remove_unused_columns=False,
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=Data(),
                          optimizers=(optimizer, schedule), callbacks=[Watch()])  # fmt: skip
        trainer.accelerator.scaler, trainer.accelerator.native_amp = scaler_of(), True
        trainer.accelerator.state._mixed_precision = "fp16"
        trainer.train(resume_from_checkpoint=resume)
        return model

    run(STEPS // 2, None)
    return rows, run(STEPS, str(folder / f"checkpoint-{STEPS // 2}"))


def with_lightning(kind: str, name: str, folder: Path) -> tuple[Rows, nn.Module]:
    import lightning
    from lightning.pytorch.plugins import MixedPrecision

    rows: Rows = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model_of()

        def training_step(self, x: torch.Tensor, _: int) -> torch.Tensor:
            return (self.inner(x) ** 2).mean()

        def configure_optimizers(self) -> Any:
            optimizer = optimizer_of(kind, name, self)
            self.calls: list[int] = []
            optimizer.register_step_post_hook(lambda *_: self.calls.append(1))
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
            return {"optimizer": optimizer,
                    "lr_scheduler": {"scheduler": schedule, "interval": "step"}}  # fmt: skip

        def on_train_batch_end(self, *_: Any) -> None:
            group = self.trainer.optimizers[0].param_groups[0]
            rows.append((len(self.calls), group["lr"], self.scaler.get_scale()))

    def run(steps: int, resume: str | None) -> nn.Module:
        module = Module()
        module.scaler = scaler_of()
        overflow = Overflow(module, 2)
        overflow.count = 0 if resume is None else STEPS
        plugin = MixedPrecision("16-mixed", "cpu", scaler=module.scaler)
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", plugins=[plugin], accumulate_grad_batches=2,
            gradient_clip_val=0.5, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        data = torch.utils.data.DataLoader([batch(i) for i in range(2 * STEPS)], batch_size=None)
        trainer.fit(module, data, ckpt_path=resume, weights_only=False)
        trainer.save_checkpoint(folder / "last.ckpt")
        return module

    run(STEPS // 2, None)
    return rows, run(STEPS, str(folder / "last.ckpt"))


LOOPS: dict[str, Callable[[str, str, Path], tuple[Rows, nn.Module]]] = {
    "accelerate": with_accelerate, "trainer": with_trainer, "lightning": with_lightning,
}  # fmt: skip


@functools.cache
def expected(loop: str, name: str, folder: Path) -> tuple[Rows, nn.Module]:
    return LOOPS[loop]("torch", name, folder / "torch")


@pytest.mark.parametrize("loop", list(LOOPS))
@pytest.mark.parametrize(
    ("name", "kind"), [(n, "ours") for n in NAMES] + [(n, "fused") for n in FUSED]
)
def test_a_drop_in_is_pytorch_s_unfused_class(
    loop: str, name: str, kind: str, tmp_path: Path
) -> None:
    rows, model = LOOPS[loop](kind, name, tmp_path / "ours")
    wanted, other = expected(loop, name, tmp_path)
    assert rows == wanted and len({row[1] for row in rows}) > 2
    worst = max(map(units, model.state_dict().values(), other.state_dict().values()))
    assert name == "Muon" or worst <= MOST  # PyTorch's Muon uses bf16
