"""One-line budgets for scripts whose models are made and trained by a front end: Trainer,
Accelerate, Lightning.

>>> from cutback.torch import frontends
>>> Trainer(model=model, args=args, callbacks=[frontends.trainer_callback(budget="6GiB")])
>>> lightning.Trainer(callbacks=[frontends.lightning_callback(budget="6GiB")]).fit(module)
>>> accelerator = frontends.accelerate(Accelerator(), budget="6GiB")

Each compiles models in place, as ``model.compile`` does: class, names of the state, saved files and
code that inspects the model are not affected. All take the arguments of
:func:`cutback.torch.compile`. The packages are imported when a function is called.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from .compiler.compiled import CompiledModule
from .compiler.compiling import compile as compile_module

__all__ = ["accelerate", "compile_in_place", "lightning_callback", "trainer_callback"]


def compile_in_place(module: torch.nn.Module, **options: Any) -> CompiledModule:
    """Makes calls of a module run under a budget. The module stays the same object.

    >>> compiled = cutback.torch.frontends.compile_in_place(model, budget="6GiB")
    >>> model(x).sum().backward()
    >>> print(compiled.plans[0])

    Args:
        module: a module; an earlier in-place compilation is replaced.
        options: as for :func:`cutback.torch.compile`.

    Returns:
        The module as :func:`cutback.torch.compile` returns it, which has ``plans``, ``save_plans``,
        ``compiler_notes`` and ``allocator_stats``. It need not be called.

    Raises:
        TypeError: ``module`` is not a module. Others as :func:`cutback.torch.compile`.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module={module!r:.60} is not a torch.nn.Module")
    compiled: CompiledModule = compile_module(module, **options)
    inner = compiled._orig_mod

    def call(*args: Any, **kwargs: Any) -> Any:
        """PyTorch does not trace functions of its own files, such as those of nn.Sequential, unless
        a function from elsewhere calls them."""
        return inner._call_impl(*args, **kwargs)

    inner._compiled_call_impl = compiled.dynamo_ctx(call)
    return compiled


def _check(options: dict[str, Any]) -> None:
    """Checks options for :func:`cutback.torch.compile` here, so that a mistake is an error at this
    call and not when training begins."""
    if options.get("measure") == "total":  # the optimizer is not known yet
        options = {**options, "measure": "live", "optimizer": None}
    compile_module(torch.nn.Identity(), **options)


def trainer_callback(**options: Any) -> Any:
    """A callback for ``transformers.Trainer`` and its subclasses (TRL's trainers): trains the model
    under a budget.

    >>> Trainer(model=model, args=args, callbacks=[trainer_callback(budget="6GiB")])

    The model is compiled in place when training begins, after everything that the trainer's
    constructor does to it. Do not set ``torch_compile`` in ``TrainingArguments`` as well.

    Args:
        options: as for :func:`cutback.torch.compile`, except ``optimizer``: with
            ``measure="total"`` the trainer's own is used.

    Returns:
        A ``transformers.TrainerCallback``. From the beginning of training on its ``compiled`` is
        what :func:`compile_in_place` returned.

    Raises:
        ImportError: transformers is not installed. Others as :func:`cutback.torch.compile`.
    """
    TrainerCallback: Any = import_module("transformers").TrainerCallback  # noqa: N806

    _check(options)

    class CutbackCallback(TrainerCallback):
        """Compiles the model when training begins."""

        def __init__(self) -> None:
            self.compiled: CompiledModule | None = None

        def on_train_begin(self, *_: Any, model: Any = None, **known: Any) -> None:
            """The trainer has prepared model and optimizer."""
            if self.compiled is not None and self.compiled._orig_mod is model:
                return  # train() was called again
            self.compiled = compile_in_place(model, **_with_optimizer(options, known))

    return CutbackCallback()


def _with_optimizer(options: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The options, with the front end's optimizer if it counts."""
    if options.get("measure") != "total":
        return options
    return {**options, "optimizer": known.get("optimizer")}


def lightning_callback(**options: Any) -> Any:
    """A callback for Lightning's ``Trainer``: trains a ``LightningModule`` under a budget.

    >>> lightning.Trainer(callbacks=[lightning_callback(budget="6GiB")]).fit(module)

    ``training_step`` is compiled when fitting begins, and restored when it ends. Its calls of
    ``self.log`` and of other Lightning methods stay eager.

    Args:
        options: as for :func:`cutback.torch.compile`; with ``measure="total"`` the trainer's first
            optimizer is used.

    Returns:
        A ``Callback``. From the beginning of the fit on its ``compiled`` has the plans.

    Raises:
        ImportError: Lightning is not installed. Others as :func:`cutback.torch.compile`.
    """
    package = "lightning.pytorch" if find_spec("lightning") else "pytorch_lightning"
    Callback: Any = import_module(package).Callback  # noqa: N806

    _check(options)

    class CutbackCallback(Callback):
        """Compiles the training step while fitting."""

        def __init__(self) -> None:
            self.compiled: CompiledModule | None = None

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            """Modules and optimizers exist now."""
            known = {"optimizer": next(iter(trainer.optimizers), None)}
            self.compiled = compile_module(pl_module, **_with_optimizer(options, known))
            for name in ("log", "log_dict"):
                setattr(pl_module, name, torch._dynamo.disable(getattr(pl_module, name)))
            pl_module.training_step = self.compiled.dynamo_ctx(pl_module.training_step)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """The fit has ended, or failed."""
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
        accelerator: it is changed, and returned.
        options: as for :func:`cutback.torch.compile`.

    Returns:
        ``accelerator``. Its ``cutback_compiled`` lists what :func:`compile_in_place` returned, one
        for each model.

    Raises:
        TypeError: ``accelerator`` has no ``prepare_model``. Others as
            :func:`cutback.torch.compile`.
    """
    prepare: Callable[..., Any] | None = getattr(accelerator, "prepare_model", None)
    if prepare is None:
        raise TypeError(f"accelerator={accelerator!r:.60} has no prepare_model")
    _check(options)
    accelerator.cutback_compiled = []

    @functools.wraps(prepare)
    def prepare_model(model: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = prepare(model, *args, **kwargs)
        inner = accelerator.unwrap_model(prepared)
        accelerator.cutback_compiled.append(compile_in_place(inner, **options))
        return prepared

    accelerator.prepare_model = prepare_model
    return accelerator
