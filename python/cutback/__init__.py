"""Cutback: decide what a training step saves and what it recomputes, and run it in one planned
block of memory.

>>> import numpy as np, cutback
>>> def loss(params, x, y):
...     h = cutback.tanh(x @ params["w1"])
...     return ((h @ params["w2"] - y) ** 2).mean()
>>> step = cutback.compile(loss, budget=0.5, optimizer=cutback.optim.AdamW(lr=1e-3))
>>> value = step(params, x, y)  # parameters are updated in place
>>> print(step.plan)

Functions of arrays are traced once for each combination of shapes and dtypes; inside them use
operators and the operations of this package (NumPy's names, :mod:`cutback.ops`; PyTorch's
functional names, :mod:`cutback.nn.functional`).
"""

# Folders, each importing only those before it: report, planner, run, frontend, nn, and torch last.
# The modules beside them are words that all share, but for cli, doctor and __main__, the command
# line. Start at frontend/training.py, which has what users call.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import nn, optim, policies, tree
from ._native import (
    BudgetError,
    __version__,
    get_num_threads,
    release_memory,
    set_num_threads,
)
from .frontend import ops
from .frontend.graph import Graph
from .frontend.ops import *  # noqa: F403
from .frontend.ops import __all__ as _operations
from .frontend.regions import checkpoint, checkpoint_name
from .frontend.tracer import Array
from .frontend.tracing import Traced
from .frontend.training import Step, compile, example, grad, trace, value_and_grad
from .nn import functional
from .policies import CheckpointPolicy
from .run.arrays import RawArray
from .run.executable import Executable, Planned, Stats

if TYPE_CHECKING:
    from . import constraints as constraints
    from . import devices as devices
    from . import files as files
    from . import report as report
    from .frontend.planning import frontier, min_cut, plan
    from .planner.plan import Plan
    from .planner.search import plans
    from .planner.tradeoffs import Frontier

__all__ = [
    "Array", "BudgetError", "CheckpointPolicy", "Executable", "Frontier", "Graph", "Plan",
    "Planned", "RawArray", "Stats", "Step", "Traced", "tree", "__version__", "checkpoint",
    "checkpoint_name", "compile", "example", "frontier", "functional", "get_num_threads", "grad",
    "min_cut", "nn", "ops", "optim", "plan", "plans", "policies", "release_memory",
    "set_num_threads", "trace", "value_and_grad", *_operations,
]  # fmt: skip

_LAZY = {  # they read JSON, which not every program needs
    "Plan": "planner.plan", "plans": "planner.search", "Frontier": "planner.tradeoffs",
    "frontier": "frontend.planning", "min_cut": "frontend.planning", "plan": "frontend.planning",
}  # fmt: skip
_MODULES = ("constraints", "devices", "files", "report")  # they do, too


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LAZY:
        module = import_module(f".{_LAZY[name]}", __name__)
        value = globals()[name] = getattr(module, name)
        return value
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'cutback' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
