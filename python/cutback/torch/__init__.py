"""Cutback for PyTorch: budgets for models as they are (``docs/torch.md``).

>>> import torch, cutback.torch
>>> model = torch.nn.TransformerEncoderLayer(64, 4)
>>> step = cutback.torch.compile(model, budget=0.5)  # half of what saving everything takes
>>> step(torch.randn(8, 2, 64)).sum().backward()
>>> print(step.plans[0])
"""

from __future__ import annotations

from . import hooks

hooks.check()

from .batches import MaxBatch, max_batch
from .compiling import Compiled, compile
from .contexts import checkpoint_contexts
from .eager import checkpoint, checkpoint_plan
from .graphs import UnsupportedGraphError
from .memory import MemoryTracker
from .partition import Partitioner
from .tracing import TracedStep, trace

__all__ = [
    "Compiled",
    "MaxBatch",
    "MemoryTracker",
    "Partitioner",
    "TracedStep",
    "UnsupportedGraphError",
    "checkpoint",
    "checkpoint_contexts",
    "checkpoint_plan",
    "compile",
    "max_batch",
    "trace",
]
