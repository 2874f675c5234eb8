"""Type aliases for the arguments and results of dispatched ops, and for budgets of regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.autograd.graph import Node as GraphNode

__all__ = [
    "Argument",
    "Arguments",
    "Budget",
    "Document",
    "Edge",
    "GraphNode",
    "Json",
    "Keywords",
    "Op",
    "Packet",
    "Place",
    "Plain",
    "Result",
    "Shapes",
]

Op: TypeAlias = OpOverload | HigherOrderOperator
"""The op type that a dispatch mode receives."""
Packet: TypeAlias = OpOverloadPacket

Plain: TypeAlias = (
    int
    | float
    | complex
    | str
    | torch.dtype
    | torch.device
    | torch.layout
    | torch.memory_format
    | torch.Generator
    | torch.UntypedStorage
    | torch.ScriptObject
    | None
)
"""An argument that is not a tensor."""
Argument: TypeAlias = (
    "Plain | Tensor | Sequence[Argument] | Mapping[str, Argument] | Callable[..., Result]"
)
"""An argument of an op; only higher-order operators take mappings and functions."""
Arguments: TypeAlias = tuple[Argument, ...]
Keywords: TypeAlias = dict[str, Argument]
Result: TypeAlias = "Tensor | int | float | complex | Sequence[Result] | None"
"""The result of an op."""

Edge: TypeAlias = tuple[GraphNode | None, int]
"""A node of autograd's graph and one of its inputs, as in ``next_functions``."""
Place: TypeAlias = tuple[int, torch.Size, tuple[int, ...], torch.dtype, bool, bool]
"""A tensor's place in its storage: offset, shape, strides, dtype, conjugate and negative bits."""
Shapes: TypeAlias = "tuple[tuple[int, ...], torch.dtype] | tuple[Shapes, ...] | None"
"""The shapes and dtypes of an op's results."""

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Document: TypeAlias = Mapping[str, Json]
"""A plan as JSON."""
Budget: TypeAlias = int | float | str | None
