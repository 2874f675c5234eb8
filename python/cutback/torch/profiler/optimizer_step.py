"""Measures an optimizer's step op by op, on a copy of the optimizer."""

from __future__ import annotations

import copy
import statistics
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ..graph.importer import type_of
from ..graph.records import Row
from .stepping import Clock, make_clock

if TYPE_CHECKING:
    from torch import UntypedStorage
    from torch._ops import OpOverload
    from torch.fx.node import Argument


class OptimizerStep(NamedTuple):
    """Measurements of one step of an optimizer."""

    rows: list[Row]
    states: list[tuple[str, str, int]]  # (name such as "exp_avg", type, bytes)
    temporaries: list[tuple[int, int, str, int]]  # (first row, last row, type, bytes)


class _Follower(TorchDispatchMode):
    """Times each op and tracks the lifetime of the storages that it makes."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.kinds: list[str] = []
        self.live: list[int] = []
        self.lives: list[list[Any]] = []  # first row, last row, type, bytes
        self._known: set[int] = set()
        self._now = 0

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: dict[str, Argument] | None = None,
    ) -> Argument:
        kwargs = kwargs or {}
        given = {id(t.untyped_storage()) for t in tree_iter((args, kwargs)) if torch.is_tensor(t)}
        self.clock.start()
        result = func(*args, **kwargs)
        self.clock.stop()
        self.kinds.append(str(func))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in self._known and id(storage) not in given:
                    self._appear(storage, tensor)
        self.live.append(self._now)
        return result

    def _appear(self, storage: UntypedStorage, tensor: torch.Tensor) -> None:
        life = [len(self.kinds) - 1, -1, type_of(tensor), storage.nbytes()]
        self.lives.append(life)
        self._known.add(id(storage))
        self._now += life[3]
        weakref.finalize(storage, self._vanish, id(storage), life)

    def _vanish(self, key: int, life: list[Any]) -> None:
        self._known.discard(key)
        life[1] = len(self.kinds) - 1
        self._now -= life[3]


def _copied(
    optimizer: torch.optim.Optimizer,
) -> tuple[torch.optim.Optimizer, dict[int, torch.Tensor]]:
    memo: dict[int, Any] = {}
    try:
        twin = copy.deepcopy(optimizer, memo)
    except Exception as error:
        raise TypeError(
            f"profile: cannot copy the optimizer {type(optimizer).__name__} ({error}); leave "
            "optimizer= out"
        ) from error
    originals = [p for group in optimizer.param_groups for p in group["params"]]
    return twin, {id(p): memo[id(p)] for p in originals}


def _step(twin: torch.optim.Optimizer, name: str) -> None:
    try:
        twin.step()
    except TypeError as error:
        raise TypeError(
            f"profile: a step of {name} without arguments failed ({error}); optimizers that need "
            "a closure cannot be profiled"
        ) from error


def measure_optimizer(
    optimizer: torch.optim.Optimizer,
    gradients: list[tuple[torch.Tensor, torch.Tensor]],
    runs: int,
    warmup: int,
) -> OptimizerStep:
    """Measures steps of a copy of an optimizer on copies of its parameters, with these (parameter,
    gradient) pairs. An additional first step, which is not measured, makes missing states."""
    twin, twins = _copied(optimizer)
    name = type(optimizer).__name__
    found = 0
    for parameter, gradient in gradients:
        if id(parameter) in twins:
            twins[id(parameter)].grad = gradient.clone()
            found += 1
    if found == 0:
        raise ValueError(
            f"profile: {name} does not have any parameter that gets a gradient in the step"
        )
    device = gradients[0][1].device
    followers: list[_Follower] = []
    for i in range(1 + warmup + runs):
        if i <= warmup:
            _step(twin, name)
            continue
        with _Follower(make_clock(device)) as follower:
            _step(twin, name)
        followers.append(follower)
    return _summed_up(followers, twin, optimizer)


def _summed_up(
    followers: list[_Follower], twin: torch.optim.Optimizer, optimizer: torch.optim.Optimizer
) -> OptimizerStep:
    last = followers[-1]
    same = [f for f in followers if f.kinds == last.kinds]
    seconds = [
        statistics.median(column) for column in zip(*(f.clock.seconds() for f in same), strict=True)
    ]
    n = len(last.kinds)
    made = [0] * n
    for first, _, _, size in last.lives:
        made[first] += size
    rows = [
        Row(f"optimizer_{k}", kind, "optimizer", type(optimizer).__name__, seconds[k], made[k],
            last.live[k], False, False)
        for k, kind in enumerate(last.kinds)
    ]  # fmt: skip
    states = []
    seen: set[int] = set()
    for state in twin.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and id(value.untyped_storage()) not in seen:
                seen.add(id(value.untyped_storage()))
                states.append((str(key), type_of(value), value.untyped_storage().nbytes()))
    lives = [(a, n if b < 0 else b, type, size) for a, b, type, size in last.lives]
    return OptimizerStep(rows, states, lives)
