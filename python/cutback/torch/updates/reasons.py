"""Finds the cases in which the optimizer's step stays separate, and says why."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.optim.optimizer import _global_optimizer_pre_hooks

from ..one_pass import OnePass
from ..types import Group
from .drop_in import reason_of
from .formulas import FORMULAS, agrees

if TYPE_CHECKING:
    from torch.autograd.graph import Node

PENDING = "another call of the model is pending, whose backward needs the parameters"
_DEPTH = 60  # frames between a backward's code and the call that runs autograd's engine
_ENGINE = "_engine_run_backward"
_PRODUCT = "MulBackward0"
_OUTPUTS = "t_outputs"  # its first argument: the tensors whose backward runs
_MORE = "args"  # its others: gradients, retain_graph, create_graph, inputs


class SeparateStepError(RuntimeError):
    """Raised if the optimizer's step has to be separate, but the backward would update
    parameters."""


def _foreign(hooks: Mapping[int, object] | None) -> bool:
    """True if some hooks are not ours. Our hooks only watch, and there is nothing to watch in a
    consumed gradient."""
    package = __name__.partition(".")[0]
    modules = [str(getattr(hook, "__module__", "")) for hook in (hooks or {}).values()]
    return any(module.partition(".")[0] != package for module in modules)


def of_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Returns why an optimizer cannot step parameters inside the backward, or ""."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, OnePass) and type(optimizer) not in FORMULAS:
        return f"{name} is neither in cutback.torch.optim nor PyTorch's SGD, Adam or AdamW"
    if _foreign(optimizer._optimizer_step_pre_hooks) or _foreign(_global_optimizer_pre_hooks):
        return f"{name} has a step pre-hook, which may read or change gradients"
    if isinstance(optimizer, OnePass):
        return reason_of(optimizer)
    for g, group in enumerate(optimizer.param_groups):
        why = _of_group(optimizer, group)
        if why:
            return f"group {g} of {name} {why}"
    return ""


def _of_group(optimizer: torch.optim.Optimizer, group: Group) -> str:
    for option in ("capturable", "differentiable"):
        if group.get(option):
            return f"has {option}=True"
    numbers = [group["lr"], group["weight_decay"], *group.get("betas", ())]
    if any(isinstance(x, torch.Tensor) for x in numbers):
        return "has a tensor as a number"
    if not group.get("fused") and not agrees(optimizer, group):
        return f"is stepped differently by torch {torch.__version__}"
    return ""


def of_surroundings() -> str:
    """Returns why no optimizer may step parameters inside the backward now, or ""."""
    if distributed.is_available() and distributed.is_initialized():
        return "torch.distributed is initialized, and gradients may be reduced after the backward"
    return ""


def of_parameter(p: Any) -> str:
    """Returns why a parameter cannot be stepped inside the backward, or ""."""
    if type(p) is not torch.nn.Parameter or not p.is_leaf or not p.requires_grad:
        return "is not a plain trainable parameter"
    if p.device.type != "cpu":
        return f"is on {p.device}, and its backward runs in another thread"
    if p.layout is not torch.strided or not p.is_floating_point():
        return f"is {p.layout}, {p.dtype}"
    return ""


def of_hooks(p: torch.Tensor) -> str:
    """Returns which hook of a parameter expects its gradient, or ""."""
    if p._backward_hooks:
        return "has a hook (register_hook), which reads its gradient"
    if _foreign(getattr(p, "_post_accumulate_grad_hooks", None)):
        return "has a post-accumulate-grad hook, which reads its gradient"
    return ""


def apart(parameters: Iterable[torch.Tensor]) -> set[int]:
    """Returns the ids of the parameters that do not share memory with another one."""
    found = list({id(p): p for p in parameters}.values())
    held = Counter(p.untyped_storage().data_ptr() for p in found if p.layout is torch.strided)
    return {
        id(p) for p in found
        if p.layout is torch.strided and held[p.untyped_storage().data_ptr()] == 1
    }  # fmt: skip


# ---- the backward under way ---------------------------------------------------------------------


def _call() -> tuple[Sequence[Any], bool] | None:
    """Returns the tensors whose backward is running in this thread and whether the graph is
    retained, or None."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return None
        if frame.f_code.co_name == _ENGINE:
            roots, more = (frame.f_locals.get(name, ()) for name in (_OUTPUTS, _MORE))
            return (roots, bool(more[1])) if roots and len(more) > 1 else None
        frame = frame.f_back
    return None


def _walk(roots: Iterable[Any]) -> Iterator[Node]:
    stack = []
    for root in roots:
        node = getattr(root, "grad_fn", None) or getattr(root, "node", None)
        if node is not None:
            stack.append(node)
    seen = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(n for n, _ in node.next_functions if n is not None)


def of_scaler() -> str:
    """Returns why a backward may not step parameters because its loss is scaled, or "". Call it
    from the code of a backward. If the loss is a product, it looks for a ``GradScaler`` that has
    scaled something; PyTorch has freed the factor by then."""
    call = _call()
    roots = [getattr(root, "grad_fn", None) for root in (call[0] if call else ())]
    if not any(type(node).__name__ == _PRODUCT for node in roots):
        return ""
    kinds = [torch.amp.GradScaler]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for found in gc.get_referrers(*kinds):
        if isinstance(found, torch.amp.GradScaler) and found._scale is not None:
            return "a GradScaler scales the loss, and its unscale_ needs all gradients"
    return ""


def of_backward(parameters: Sequence[torch.Tensor], pending: Iterable[Node]) -> str:
    """Returns why the running backward may not step parameters, or "". Call it from the code of a
    backward: its node of autograd's graph must be the only one that gives them gradients.

    Args:
        pending: the nodes of other graphs that have run and whose backward has not begun.
    """
    own, call = torch._C._current_autograd_node(), _call()
    if own is None or call is None or torch.is_grad_enabled():
        return "the backward does not run in the thread that called it"
    roots, retained = call
    if retained:
        return "retain_graph=True keeps the graph for another backward, which needs the parameters"
    mine = {id(p) for p in parameters}
    ends = {}
    unreached = set(pending)
    for node in _walk(roots):
        unreached.discard(node)
        for end, _ in node.next_functions:
            leaf = getattr(end, "variable", None)
            if leaf is None or id(leaf) not in mine:
                continue
            if node is not own:
                return f"a parameter gets another gradient ({node.name()}) in the same backward"
            ends[id(leaf)] = end
    if unreached:
        return PENDING
    if len(ends) < len(mine):
        return "the backward does not reach every parameter of the graph"
    try:
        accumulates = all(map(torch._C._will_engine_execute_node, ends.values()))
    except RuntimeError:  # torch.autograd.grad
        accumulates = False
    if not accumulates:
        return "the call asks for only some gradients (torch.autograd.grad, or inputs=)"
    return ""
