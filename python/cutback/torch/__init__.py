"""Cutback for PyTorch: memory budgets for unchanged models (``docs/torch.md``).

>>> import torch, cutback.torch
>>> model = torch.nn.TransformerEncoderLayer(64, 4)
>>> step = cutback.torch.compile(model, budget=0.5)  # from 1, no limit, to 0, the smallest
>>> step(torch.randn(8, 2, 64)).sum().backward()
>>> print(step.plans[0])
"""

# graph turns a joint graph into a problem and a plan back into graphs; native runs groups of their
# nodes in our kernels; compiler and eager are the two ways to run a plan; profiler measures.
# native, compiler and eager import graph, compiler imports native, profiler imports graph and
# compiler, and all may import hooks, flags, memory and transfers. Start at compiler/compiling.py
# or eager/regions.py.

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "cutback.torch needs PyTorch: pip install 'cutback[torch]'", name="torch"
    ) from None

from . import hooks, optim, rerun
from .eager.contexts import checkpoint_contexts
from .eager.regions import checkpoint, checkpoint_plan, checkpoint_sequential
from .memory import MemoryTracker

if TYPE_CHECKING or not hooks.missing():
    from . import frontends, mutwo
    from .compiler.agreement import PlansDifferError
    from .compiler.compiling import Compiled
    from .compiler.compiling import compile as compile
    from .compiler.partition import Partitioner
    from .compiler.scratch import AllocatorStats
    from .graph.graphs import UnsupportedGraphError
    from .graph.statistics import load as load_profile
    from .profiler.batches import MaxBatch, max_batch
    from .profiler.estimating import estimate
    from .profiler.profiling import Profile, profile
    from .profiler.tracing import TracedStep, trace

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Raises an error that says why a name was removed, or what this PyTorch lacks to support
        it."""
        if name in (*__all__, "compile"):
            hooks.check()
        from ..removed import missing

        raise missing(__name__, name)


# Without `compile`, which would hide the builtin after a star import.
__all__ = [
    "AllocatorStats",
    "Compiled",
    "MaxBatch",
    "MemoryTracker",
    "Partitioner",
    "PlansDifferError",
    "Profile",
    "TracedStep",
    "UnsupportedGraphError",
    "checkpoint",
    "checkpoint_contexts",
    "checkpoint_plan",
    "checkpoint_sequential",
    "estimate",
    "frontends",
    "load_profile",
    "max_batch",
    "mutwo",
    "optim",
    "profile",
    "rerun",
    "trace",
]
