"""Warns if a compiled module is trained without its compiled forward.

Front ends may replace the ``forward`` of a module that they are given, or call the module inside
it. Then nothing is planned, and none of our code runs that could warn. But the parameters of the
module get gradients, and an optimizer steps them. This module watches for both until the compiled
forward is called for training.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ..types import GraphInput

_in_graphs: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Leaves of compiled graphs. A module inside another compiled model is planned there."""


def note_inputs(inputs: Iterable[GraphInput]) -> None:
    """Records the inputs with which a graph is compiled, if gradients are on (training)."""
    for t in inputs if torch.is_grad_enabled() else ():
        if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf:
            _in_graphs[t] = None


_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


@functools.cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_see_step)


def _see_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        for watch in list(_watches):
            watch.see_step(optimizer)


class Watch:
    """Watches a compiled module until :meth:`end` or until it has warned."""

    def __init__(self, module: torch.nn.Module, inner: torch.nn.Module) -> None:
        self._module = weakref.ref(module)
        self._inner = weakref.ref(inner)
        self._active = True
        self._handles: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(self._see_gradient)
            for p in inner.parameters()
            if p.requires_grad and p.is_leaf
        ]
        _watches.add(self)
        _watch_optimizers()

    def end(self) -> None:
        """Stops watching. Must not be called while PyTorch iterates over the hooks of a
        parameter."""
        self._active = False
        _watches.discard(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _see_gradient(self, parameter: torch.Tensor) -> None:
        if self._active and not torch.compiler.is_compiling():
            torch.autograd.Variable._execution_engine.queue_callback(self.end)
            self._judge([parameter])

    def see_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Handles a step of an optimizer."""
        inner = self._inner()
        if not self._active or inner is None:
            return
        own = {id(p) for p in inner.parameters()}
        stepped = [p for group in optimizer.param_groups for p in group["params"] if id(p) in own]
        stepped = [p for p in stepped if p.grad is not None]
        if stepped:
            self._judge(stepped)
            self.end()

    def _judge(self, trained: list[torch.Tensor]) -> None:
        """Warns if parameters have gradients although the compiled forward has not been called."""
        self._active = False
        module = self._module()
        if module is None or any(p in _in_graphs for p in trained):
            return
        inner = type(module._orig_mod).__name__
        ours = getattr(module.forward, "_cutback_runs", False)
        why = (
            f"something calls the original {inner} instead of the result of "
            "cutback.torch.compile. Pass that result on"
            if ours
            else f"its forward was replaced by {_name(module.forward)}. Compile after that"
        )
        warnings.warn(
            f"the parameters of a compiled {inner} get gradients, but its compiled forward has not "
            f"been called, so nothing is planned and no budget is kept: {why}, or compile the "
            'model in place: model.compile(backend="cutback", options={"budget": ...}). '
            "cutback.torch.frontends does that for Trainer, Accelerate and Lightning",
            stacklevel=2,
        )


def _name(function: Any) -> str:
    """Returns ``"module.function"``, as far as it is known."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or '?'}.{name}"
