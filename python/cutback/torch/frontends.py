"""One-line budgets for scripts whose models are made and trained by a front end: Trainer,
Accelerate, Lightning.

>>> from cutback.torch import frontends
>>> Trainer(model=model, args=args, callbacks=[frontends.trainer_callback(budget="6GiB")])
>>> lightning.Trainer(callbacks=[frontends.lightning_callback(budget="6GiB")]).fit(module)
>>> accelerator = frontends.accelerate(Accelerator(), budget="6GiB")

Each function compiles models in place, as ``model.compile`` does: the model's class, the names in
its state, saved files and code that inspects the model are not affected. Each takes the arguments
of :func:`cutback.torch.compile`. The front end's package is imported when its function is called.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from .. import budgets
from ..run.compiling import UPDATES
from .compiler.compiled import CompiledModule
from .compiler.compiling import compile as compile_module
from .compiler.totals import unwrapped

__all__ = ["accelerate", "compile_in_place", "lightning_callback", "trainer_callback"]


def compile_in_place(module: torch.nn.Module, **options: Any) -> CompiledModule:
    """Compiles a module in place: calls of it run under a budget, and it stays the same object.

    >>> compiled = cutback.torch.frontends.compile_in_place(model, budget="6GiB")
    >>> model(x).sum().backward()
    >>> print(compiled.plans[0])

    Args:
        module: a module; an earlier in-place compilation is replaced.
        options: as for :func:`cutback.torch.compile`.

    Returns:
        The compiled module, as :func:`cutback.torch.compile` returns it, which has ``plans``,
        ``save_plans``, ``compiler_notes`` and ``allocator_stats``. You need not call it.

    Raises:
        TypeError: ``module`` is not a module. Other errors as for :func:`cutback.torch.compile`.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module={module!r:.60} is not a torch.nn.Module")
    compiled: CompiledModule = compile_module(module, **options)
    inner = compiled._orig_mod

    def call(*args: Any, **kwargs: Any) -> Any:
        """Calls the module. PyTorch does not trace functions of its own files, such as those of
        nn.Sequential, unless a function from elsewhere calls them."""
        return inner._call_impl(*args, **kwargs)

    inner._compiled_call_impl = compiled.dynamo_ctx(call)
    return compiled


def _check(options: dict[str, Any]) -> None:
    """Checks options for :func:`cutback.torch.compile`, so that a mistake is an error now and not
    when training begins."""
    if _counts_optimizer(options):  # the optimizer is not known yet
        budgets.choice("updates", options.get("updates", "after"), UPDATES)
        known = {"measure": "live", "optimizer": None, "updates": "after"}
        options = {**options, **known}
    compile_module(torch.nn.Identity(), **options)


def _counts_optimizer(options: dict[str, Any]) -> bool:
    """True if the options need an optimizer."""
    return options.get("measure") == "total" or "updates" in options


def trainer_callback(**options: Any) -> Any:
    """Returns a callback for ``transformers.Trainer`` and its subclasses (TRL's trainers) that
    trains the model under a budget.

    >>> Trainer(model=model, args=args, callbacks=[trainer_callback(budget="6GiB")])

    The model is compiled in place when training begins, after everything that the trainer's
    constructor does to it. Do not set ``torch_compile`` in ``TrainingArguments`` as well.

    Args:
        options: as for :func:`cutback.torch.compile`, except ``optimizer``: with
            ``measure="total"`` or ``updates="inside"`` the trainer's own is used. If the trainer
            clips gradients, as it does by default (``max_grad_norm``), accumulates or scales them,
            or logs their norm (transformers 5 always does), its step stays separate, and
            ``compiled.updates_reason`` says so.

    Returns:
        A ``transformers.TrainerCallback``. Once training has begun, its ``compiled`` is the result
        of :func:`compile_in_place`.

    Raises:
        ImportError: transformers is not installed. Others as for :func:`cutback.torch.compile`.
    """
    package = import_module("transformers")
    TrainerCallback: Any = package.TrainerCallback  # noqa: N806
    logs = hasattr(package.Trainer, "_get_grad_norm") if "updates" in options else False

    _check(options)

    class CutbackCallback(TrainerCallback):
        """Compiles the model when training begins."""

        def __init__(self) -> None:
            self.compiled: CompiledModule | None = None

        def on_train_begin(self, args: Any, *_: Any, model: Any = None, **known: Any) -> None:
            """Compiles the model, which the trainer has prepared by now."""
            if self.compiled is None or self.compiled._orig_mod is not model:
                self.compiled = compile_in_place(model, **_with_optimizer(options, known))
            else:  # train() was called again
                _check_optimizer(self.compiled, known.get("optimizer"))
            steps = args.gradient_accumulation_steps
            _as_trained(self.compiled, args.max_grad_norm, steps, bool(args.fp16), logs)

    return CutbackCallback()


def _with_optimizer(options: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Returns the options, with the front end's optimizer if they need one."""
    if options.get("measure") != "total" and options.get("updates") != "inside":
        return options
    return {**options, "optimizer": known.get("optimizer")}


def _check_optimizer(compiled: CompiledModule, optimizer: Any) -> None:
    """Keeps the optimizer's step out of the backward if the optimizer has been replaced."""
    inside = compiled.dynamo_ctx.wishes["updates"]
    if inside is not None and not inside.steps_with(unwrapped(optimizer)):
        inside.give_up("the model was compiled with another optimizer")


def _as_trained(
    compiled: CompiledModule, clips: float | None, steps: int, scales: bool, logs: bool = False
) -> None:
    """Keeps the optimizer's step out of the backward if the front end needs all gradients at once.

    Args:
        clips: the norm or value to which the front end clips gradients; None or 0 if it does not.
        steps: backward passes per step of the optimizer.
        scales: True if the front end scales the loss for half precision.
        logs: True if the front end computes the norm of all gradients before each step.
    """
    inside = compiled.dynamo_ctx.wishes["updates"]
    if inside is None:
        return
    if clips:
        inside.give_up(f"the front end clips gradients to {clips}, which needs all of them")
    if steps > 1:
        inside.give_up(f"the front end accumulates the gradients of {steps} backwards")
    if scales:
        inside.give_up("the front end scales the loss, and checks all gradients for infinities")
    if logs:
        inside.give_up("the front end logs the norm of all gradients before each step")


def lightning_callback(**options: Any) -> Any:
    """Returns a callback for Lightning's ``Trainer`` that trains a ``LightningModule`` under a
    budget.

    >>> lightning.Trainer(callbacks=[lightning_callback(budget="6GiB")]).fit(module)

    ``training_step`` is compiled when fitting begins, and restored when it ends. Its calls of
    ``self.log`` and of other Lightning methods stay eager.

    Args:
        options: as for :func:`cutback.torch.compile`; with ``measure="total"`` or
            ``updates="inside"`` the trainer's first optimizer is used. If the trainer clips,
            accumulates or scales gradients, its step stays separate.

    Returns:
        A ``Callback``. Once the fit has begun, its ``compiled`` has the plans.

    Raises:
        ImportError: Lightning is not installed. Others as for :func:`cutback.torch.compile`.
    """
    package = "lightning.pytorch" if find_spec("lightning") else "pytorch_lightning"
    Callback: Any = import_module(package).Callback  # noqa: N806

    _check(options)

    class CutbackCallback(Callback):
        """Compiles the training step while fitting."""

        def __init__(self) -> None:
            self.compiled: CompiledModule | None = None

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            """Compiles the training step, now that modules and optimizers exist."""
            known = {"optimizer": next(iter(trainer.optimizers), None)}
            self.compiled = compile_module(pl_module, **_with_optimizer(options, known))
            scales = getattr(trainer.precision_plugin, "scaler", None) is not None
            clips, steps = trainer.gradient_clip_val, trainer.accumulate_grad_batches
            _as_trained(self.compiled, clips, steps, scales)
            for name in ("log", "log_dict"):
                setattr(pl_module, name, torch._dynamo.disable(getattr(pl_module, name)))
            pl_module.training_step = self.compiled.dynamo_ctx(pl_module.training_step)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Restores the module after the fit, even if it failed."""
            for name in ("training_step", "log", "log_dict"):
                with contextlib.suppress(AttributeError):
                    delattr(pl_module, name)

    return CutbackCallback()


def accelerate(accelerator: Any, **options: Any) -> Any:
    """Makes an ``accelerate.Accelerator`` train each model that it prepares under a budget.

    >>> accelerator = accelerate(Accelerator(), budget="6GiB")
    >>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    Each model given to ``prepare`` is compiled in place after it has been prepared. Models that are
    trained together do not share a budget.

    Args:
        accelerator: changed in place, and returned.
        options: as for :func:`cutback.torch.compile`.

    Returns:
        ``accelerator``. Its ``cutback_compiled`` lists the result of :func:`compile_in_place` for
        each model.

    Raises:
        TypeError: ``accelerator`` has no ``prepare_model``.
        ValueError: ``updates="inside"`` without ``optimizer``. Other errors as for
            :func:`cutback.torch.compile`.
    """
    prepare: Callable[..., Any] | None = getattr(accelerator, "prepare_model", None)
    if prepare is None:
        raise TypeError(f"accelerator={accelerator!r:.60} has no prepare_model")
    if options.get("updates") == "inside" and options.get("optimizer") is None:
        raise ValueError(
            "accelerate(updates='inside'): models are prepared before their optimizers are known; "
            "pass optimizer=, the one that is given to prepare"
        )
    _check(options)
    accelerator.cutback_compiled = []

    @functools.wraps(prepare)
    def prepare_model(model: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = prepare(model, *args, **kwargs)
        inner = accelerator.unwrap_model(prepared)
        compiled = compile_in_place(inner, **options)
        steps, scales = accelerator.gradient_accumulation_steps, accelerator.scaler is not None
        _as_trained(compiled, None, steps, scales)
        accelerator.cutback_compiled.append(compiled)
        return prepared

    accelerator.prepare_model = prepare_model
    return accelerator
