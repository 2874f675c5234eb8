"""Cutback for PyTorch: budgets for models as they are (``docs/torch.md``).

>>> import torch, cutback.torch
>>> model = torch.nn.TransformerEncoderLayer(64, 4)
>>> step = cutback.torch.compile(model, budget=0.5)  # half of what it takes without
>>> step(torch.randn(8, 2, 64)).sum().backward()
>>> print(step.plans[0])
"""

# graph turns a joint graph into a problem and a plan back into graphs; compiler and eager are the
# two ways to run a plan; profiler measures. compiler and eager import graph, profiler imports graph
# and compiler, and all may import hooks, flags, memory and transfers. Start at
# compiler/compiling.py or eager/regions.py.

from __future__ import annotations

from typing import Any

from . import hooks, optim
from .eager.contexts import checkpoint_contexts
from .eager.regions import checkpoint, checkpoint_plan, checkpoint_sequential
from .graph.rerunnable import declare, why_once
from .memory import MemoryTracker

if not hooks.missing():
    from .compiler.compiling import Compiled, compile
    from .compiler.partition import Partitioner
    from .compiler.scratch import AllocatorStats
    from .graph.graphs import UnsupportedGraphError
    from .graph.statistics import load as load_profile
    from .profiler.batches import MaxBatch, max_batch
    from .profiler.mutwo import Pipeline, Selection, mu_two, select
    from .profiler.profiling import Profile, profile
    from .profiler.tracing import TracedStep, trace
else:

    def __getattr__(name: str) -> Any:
        """What a PyTorch of another version cannot do says so when it is asked for."""
        if name in __all__:
            hooks.check()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AllocatorStats",
    "Compiled",
    "MaxBatch",
    "MemoryTracker",
    "Partitioner",
    "Pipeline",
    "Profile",
    "Selection",
    "TracedStep",
    "UnsupportedGraphError",
    "checkpoint",
    "checkpoint_contexts",
    "checkpoint_plan",
    "checkpoint_sequential",
    "compile",
    "declare",
    "load_profile",
    "max_batch",
    "mu_two",
    "optim",
    "profile",
    "select",
    "trace",
    "why_once",
]
