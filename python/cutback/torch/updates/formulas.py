"""Takes one step of one parameter in the way PyTorch's loops over tensors do (``torch.optim.sgd``,
``torch.optim.adam``).

The operations and their order are PyTorch's, and so are the bits. Where PyTorch allocates a
temporary, these functions write into the gradient, which nothing reads afterwards, so a step
allocates nothing. :func:`agree` compares the two on small tensors, because another version of
PyTorch may compute differently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..one_pass import OnePass
from ..types import Group, ParamState

Formula = Callable[[torch.Tensor, torch.Tensor, ParamState, Group], None]
"""Steps a parameter whose state exists. Overwrites the gradient."""


EMPTY = "empty"
"""Name of a momentum buffer that :func:`begin` has allocated for the first step."""


def _decayed(p: torch.Tensor, g: torch.Tensor, group: Group) -> None:
    """Applies ``maximize``, and the weight decay that is added to the gradient."""
    if group["maximize"]:
        g.neg_()
    if group["weight_decay"] != 0 and not group.get("decoupled_weight_decay", False):
        g.add_(p, alpha=group["weight_decay"])


def sgd(p: torch.Tensor, g: torch.Tensor, state: ParamState, group: Group) -> None:
    """Steps a parameter like ``torch.optim.SGD``. ``state`` has ``momentum_buffer`` if the group
    has momentum; in the first step its key is :data:`EMPTY`."""
    _decayed(p, g, group)
    momentum, step = group["momentum"], g
    if momentum != 0:
        buffer = state.pop(EMPTY, None)
        if buffer is not None:
            state["momentum_buffer"] = buffer.copy_(g)
        else:
            buffer = state["momentum_buffer"]
            buffer.mul_(momentum).add_(g, alpha=1 - group["dampening"])
        step = g.add_(buffer, alpha=momentum) if group["nesterov"] else buffer
    p.add_(step, alpha=-group["lr"])


def adam(p: torch.Tensor, g: torch.Tensor, state: ParamState, group: Group) -> None:
    """Steps a parameter like ``torch.optim.Adam`` and ``AdamW``."""
    beta1, beta2 = group["betas"]
    lr = group["lr"]
    if group["maximize"]:
        g.neg_()
    state["step"] += 1
    if group["weight_decay"] != 0:
        if group["decoupled_weight_decay"]:
            p.mul_(1 - lr * group["weight_decay"])
        else:
            g.add_(p, alpha=group["weight_decay"])
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(g, 1 - beta1)
    square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    step = state["step"].item()
    size = lr / (1 - beta1**step)
    root = (1 - beta2**step) ** 0.5
    if group["amsgrad"]:
        torch.maximum(state["max_exp_avg_sq"], square, out=state["max_exp_avg_sq"])
        square = state["max_exp_avg_sq"]
    denominator = torch.sqrt(square, out=g).div_(root).add_(group["eps"])
    p.addcdiv_(mean, denominator, value=-size)


def begin(optimizer: torch.optim.Optimizer, p: torch.Tensor, group: Group) -> None:
    """Allocates the state of a parameter that has no state, as PyTorch's first step does. For
    optimizers of ``cutback.torch.optim``, only adds an entry, which their first step fills."""
    if isinstance(optimizer, OnePass):
        optimizer.state[p]
        return
    if isinstance(optimizer, torch.optim.SGD):
        state = optimizer.state[p] if group["momentum"] != 0 else {}
        first = group["momentum"] != 0 and state.get("momentum_buffer") is None
        if first and not group["fused"]:  # PyTorch's fused step allocates it
            state[EMPTY] = torch.empty_like(p, memory_format=torch.preserve_format)
        return
    state = optimizer.state[p]
    if state:
        return
    on = p.device if group["fused"] else torch.device("cpu")
    kind = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    state["step"] = torch.zeros((), dtype=torch.float32 if group["fused"] else kind, device=on)
    names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
    for name in names:
        state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)


FORMULAS: dict[type[torch.optim.Optimizer], Formula] = {
    torch.optim.SGD: sgd,
    torch.optim.Adam: adam,
    torch.optim.AdamW: adam,
}


def step(optimizer: torch.optim.Optimizer, p: torch.Tensor, g: torch.Tensor, group: Group) -> None:
    """Steps one parameter after :func:`begin`. Overwrites the gradient."""
    FORMULAS[type(optimizer)](p, g, optimizer.state.get(p, {}), group)


def by_torch(optimizer: Any, p: torch.Tensor, g: torch.Tensor, group: Group) -> None:
    """Steps one parameter with PyTorch's own code, without the optimizer's hooks."""
    groups = optimizer.param_groups
    p.grad = g
    try:
        optimizer.param_groups = [{**group, "params": [p]}]
        type(optimizer).step.__wrapped__(optimizer)
    finally:
        optimizer.param_groups = groups
        p.grad = None


def options_of(optimizer: torch.optim.Optimizer, group: Group) -> dict[str, Any]:
    """Returns those options of a group that the optimizer's class has."""
    return {name: value for name, value in group.items() if name in optimizer.defaults}


@torch.no_grad()
def agree(optimizer: torch.optim.Optimizer, group: Group) -> bool:
    """True if the formula gives the bits of PyTorch's steps with a group's options."""
    kind: Any = type(optimizer)
    numbers = torch.arange(1, 200, dtype=torch.float32)

    def make() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        p = torch.nn.Parameter((numbers * 0.37).sin())
        made = kind([p], lr=0.1)
        made.param_groups[0].update(options_of(optimizer, group))
        return p, made

    (mine, ours), (its, theirs) = make(), make()
    for k in range(3):
        gradient = (numbers * (0.11 + k)).cos()
        its.grad = gradient.clone()
        kind.step.__wrapped__(theirs)  # without hooks of all optimizers
        begin(ours, mine, ours.param_groups[0])
        step(ours, mine, gradient, ours.param_groups[0])
    first, second = ours.state.get(mine, {}), theirs.state.get(its, {})
    return torch.equal(mine, its) and all(
        torch.equal(first[key], value) for key, value in second.items() if value is not None
    )


@functools.cache
def _noted() -> dict[tuple[Any, ...], bool]:
    return {}


def _branch(value: Any) -> Any:
    """Returns what a formula may branch on: a flag, or whether numbers are 0."""
    return tuple(map(bool, value)) if isinstance(value, (list, tuple)) else bool(value)


def agrees(optimizer: torch.optim.Optimizer, group: Group) -> bool:
    """True if :func:`agree` is; computed once for an optimizer's class and options. Schedules
    change numbers at every step, so two numbers count as equal if both are 0 or both are not."""
    options = options_of(optimizer, group)
    key = (
        type(optimizer), FORMULAS[type(optimizer)], torch.get_default_dtype(),
        *((name, _branch(options[name])) for name in sorted(options)),
    )  # fmt: skip
    known = _noted()
    if key not in known:
        known[key] = agree(optimizer, group)
    return known[key]
