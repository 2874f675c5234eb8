"""Names for types of values that come from PyTorch: parts of graphs, states and groups of
optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeAlias, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[np.generic]

GraphInput: TypeAlias = Tensor | torch.SymInt | torch.SymFloat | torch.ScriptObject | int | float
"""An input of a traced graph."""

GraphValue: TypeAlias = GraphInput | None
"""An output of a traced graph."""

GraphFunction: TypeAlias = Callable[..., Sequence[GraphValue]]
"""A compiled graph that takes its inputs as arguments."""

Modules: TypeAlias = tuple[torch.fx.GraphModule, torch.fx.GraphModule]
"""A forward and a backward graph."""

Raised: TypeAlias = type[BaseException] | BaseException | TracebackType | None
"""An argument of ``__exit__``."""

StateValue: TypeAlias = Tensor | Array | float | None
"""A value in a parameter's state, as it comes from a checkpoint."""

ParamState: TypeAlias = dict[str, Tensor]
"""A parameter's state in an optimizer."""

Setting: TypeAlias = float | Tensor


class Group(TypedDict, total=False):
    """A parameter group with the options of the optimizers known here."""

    params: list[Tensor]
    param_names: list[str]
    lr: Setting
    betas: tuple[Setting, ...]
    eps: float  # a pair in Adafactor
    weight_decay: float
    decoupled_weight_decay: bool
    amsgrad: bool
    maximize: bool
    momentum: float
    momentum_decay: float
    dampening: float
    nesterov: bool
    centered: bool
    alpha: float
    rho: float
    lr_decay: float
    beta2_decay: float
    ns_coefficients: tuple[float, float, float]
    ns_steps: int
    adjust_lr_fn: str | None
    codes: int
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


class StateDict(TypedDict):
    """The result of an optimizer's ``state_dict()``; ``params`` of its groups are numbers."""

    state: dict[int, dict[str, StateValue]]
    param_groups: list[Group]
