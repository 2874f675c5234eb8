"""Computes the bytes that the measure ``total`` counts in addition to the step: parameters, buffers
and optimizer states.

States are counted whether or not they have been allocated. For this, the optimizer's step is
rehearsed twice on fake tensors. The first rehearsal shows the states, the second the additional
memory of a step. That memory is added to the problem as an op after the backward that reads all
gradients, so the plan's peak is that of the whole step. Gradients are values of the step and become
``.grad`` unchanged, so they are not counted again.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...problem import Op, Problem
from ..memory import MemoryTracker, parts_of, storages_of
from ..one_pass import OnePass

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.fx.node import Argument

    from ..types import Group, StateValue

_ITEM = torch.ops.aten._local_scalar_dense.default


class Total(NamedTuple):
    """Bytes that a model and its optimizer hold."""

    model_bytes: int
    """Parameters, including those of the optimizer, and buffers."""
    state_bytes: int
    """Optimizer states, including those that are not allocated yet."""
    step_bytes: int
    """Peak of the optimizer's step in addition to parameters, gradients and states."""

    @property
    def static_bytes(self) -> int:
        """Bytes that exist in every step."""
        return self.model_bytes + self.state_bytes


def _bytes(tensors: Iterable[Argument]) -> int:
    """Returns the bytes of the tensors' storages, each counted once."""
    storages = [s for t in tensors if isinstance(t, torch.Tensor) for s in storages_of(t)]
    return sum({s._cdata: s.nbytes() for s in storages}.values())


def unwrapped(optimizer: Any) -> Any:
    """Returns the optimizer inside a front end's wrapper. A copy of such a wrapper would step, and
    change, the optimizer itself."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def account(
    model: Any, optimizer: torch.optim.Optimizer, known: dict[str, tuple[int, int]] | None = None
) -> Total:
    """Returns what a model and its optimizer hold. For a function, whose buffers are unknown, only
    the optimizer's parameters count.

    Args:
        known: results of earlier rehearsals, keyed by what they depend on; a new one is added.

    Raises:
        TypeError: ``optimizer`` is not an optimizer.
        ValueError: the optimizer belongs to another model, or its step cannot be rehearsed.
    """
    optimizer = unwrapped(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={optimizer!r} is not a torch.optim.Optimizer")
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if isinstance(model, torch.nn.Module):
        own = {id(p) for p in model.parameters()}
        if own and own.isdisjoint(map(id, held)):
            raise ValueError(
                f"measure='total': none of the {len(held)} parameters of the optimizer is one of "
                f"the model's {len(own)}; make the optimizer from model.parameters()"
            )
        held += [*model.parameters(), *model.buffers()]
    described = None if known is None else _described(optimizer)
    if known is None or described is None:
        return Total(_bytes(held), *_rehearse(optimizer))
    if described not in known:
        known[described] = _rehearse(optimizer)
    return Total(_bytes(held), *known[described])


def _is_plain(value: Any) -> bool:
    """True for numbers, strings and collections of them, which their text describes completely."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(x) for key, x in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _described(optimizer: torch.optim.Optimizer) -> str | None:
    """Returns everything that a rehearsal depends on, as text, or None if the optimizer has states,
    or attributes that no text describes."""
    rows = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in ("param_groups", "state") and not name.endswith("_hooks")
    }
    rows["groups"] = [
        {
            **group,
            "params": [
                (type(p).__qualname__, str(p.device), str(p.dtype), str(p.layout), p.requires_grad,
                 *p.shape, *p.stride())
                for p in group["params"]
            ],
        }
        for group in optimizer.param_groups
    ]  # fmt: skip
    if optimizer.state or not _is_plain(rows):
        return None
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__} {rows}"


def _runs_foreach(group: Group) -> bool:
    """True if the optimizer will use its foreach implementation, which takes more memory."""
    try:
        from torch.optim.optimizer import _default_to_fused_or_foreach
    except ImportError:
        return False
    different = bool(group.get("differentiable", False))
    return bool(_default_to_fused_or_foreach(group["params"], different, use_fused=False)[1])


class _Numbers(TorchDispatchMode):
    """Returns 1 when the value of a fake tensor is requested."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: dict[str, Argument] | None = None,
    ) -> Argument:
        if func is _ITEM and isinstance(args[0], FakeTensor):
            return torch.ones((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))


class _Twin:
    """A copy of an optimizer with fake parameters and gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.fakes: dict[torch.Tensor, torch.Tensor] = {}
        self.optimizer = twin = object.__new__(type(optimizer))
        twin.__dict__.update(optimizer.__dict__)
        twin.__dict__.pop("step", None)  # schedulers wrap the step
        for name, value in optimizer.__dict__.items():
            if name.endswith("_hooks") and isinstance(value, dict):
                twin.__dict__[name] = OrderedDict()
        self.fused = True
        twin.param_groups = [self._group(group) for group in optimizer.param_groups]
        twin.state = defaultdict(dict)
        for parameter, state in optimizer.state.items():
            twin.state[self.fakes[parameter]] = {k: self._state(v) for k, v in state.items()}

    def _like(self, t: torch.Tensor) -> torch.Tensor:
        """Returns a fake tensor like a tensor, or like the local shard of a sharded tensor."""
        parts = parts_of(t)
        if len(parts) != 1:
            raise TypeError(f"a parameter or state is a {type(t).__name__} of {len(parts)} tensors")
        (t,) = parts
        with self.mode:
            return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device)

    def _state(self, value: StateValue) -> StateValue:
        if not isinstance(value, torch.Tensor):
            return value
        return self._like(value) if value.dim() else value.clone()  # step counts are read

    def _group(self, group: Group) -> Group:
        fake: Group = {**group, "params": [self._parameter(p) for p in group["params"]]}
        self.fused &= bool(group.get("fused"))
        if "fused" in group:
            fake["fused"] = False
        if "foreach" in group and group["foreach"] is None:
            fake["foreach"] = not group.get("fused") and _runs_foreach(group)
        return fake

    def _parameter(self, p: torch.Tensor) -> torch.Tensor:
        fake = torch.nn.Parameter(self._like(p), requires_grad=p.requires_grad)
        if p.requires_grad:
            fake.grad = self._like(p)
        self.fakes[p] = fake
        return fake

    def step(self) -> None:
        """Takes a step. A step with ``half=`` runs in one pass over real memory and allocates
        nothing, so here it only makes its states."""
        optimizer = self.optimizer
        if not isinstance(optimizer, OnePass) or optimizer.half is None:
            optimizer.step()
            return
        with self.mode:
            for group in optimizer.param_groups:
                for p in (p for p in group["params"] if p.grad is not None):
                    if not optimizer.state[p]:
                        begun = optimizer._begin(p, {}, group)
                        optimizer.state[p] = optimizer._lasting(begun)


def _rehearse(optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Returns the bytes of all states, and the additional bytes of a step."""
    try:
        twin = _Twin(optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own code steps fake tensors
            with _Numbers():
                twin.step()
            with MemoryTracker() as memory, _Numbers():
                twin.step()
    except Exception as error:
        raise ValueError(
            f"measure='total': a step of {type(optimizer).__name__} cannot be rehearsed on fake "
            f"tensors, so its memory is unknown ({type(error).__name__}: {error}); use "
            "measure='live' with a budget that leaves memory for it"
        ) from error
    states = tree_leaves([list(s.values()) for s in twin.optimizer.state.values()])
    return _bytes(states), 0 if twin.fused else memory.peak_bytes


def with_total(problem: Problem, total: Total) -> Problem:
    """Returns the problem with its ``static_bytes``, and the optimizer's step as its last op."""
    # backward() holds gradients of losses until it returns, which is before this op
    made = (op for op in problem.ops if op.kind == "tangent" and "view" not in op.flags)
    held = {value.storage for op in made for value in op.outputs}
    returned = sum(problem.storages[s].bytes for s in held if problem.storages[s].flags)
    step = Op(
        "optimizer_step",
        "optimizer",
        problem.backward_outputs,
        flags=frozenset({"backward", "effect"}),
        time_ps=0,
        workspace=max(0, total.step_bytes - returned) if problem.backward_outputs else 0,
    )
    return replace(problem, static_bytes=total.static_bytes, ops=[*problem.ops, step])
