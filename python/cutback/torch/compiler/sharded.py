"""Lets Dynamo compile sharded modules of PyTorch's own classes.

FSDP2's hooks break the graph around each module that ``fully_shard`` was called for, and Dynamo
then compiles the module's ``forward``. It skips the functions of ``torch.nn``, so a sharded
``nn.Sequential``, or a ``nn.Linear``, would run in eager mode.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch


def let_trace_sharded(model: torch.nn.Module) -> None:
    """Gives the classes that FSDP2 made for PyTorch's own modules a ``forward`` that Dynamo
    compiles. FSDP2 makes these classes in each process, so PyTorch's classes stay as they are."""
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if fsdp is None:
        return
    for kind in {type(module) for module in model.modules()}:
        if issubclass(kind, fsdp) and kind.forward.__module__.startswith("torch.nn."):
            kind.forward = _traced(kind.forward)


def _traced(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, called in a frame of this file, which Dynamo does not skip."""

    @functools.wraps(forward)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    call.__module__ = __name__
    return call
