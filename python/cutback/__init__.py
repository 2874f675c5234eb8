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

from ._native import (
    BudgetError,
    __version__,
    get_num_threads,
    release_memory,
    set_num_threads,
)
from .names import OPERATIONS

if TYPE_CHECKING:
    from . import budgets as budgets
    from . import constraints as constraints
    from . import devices as devices
    from . import dtypes as dtypes
    from . import files as files
    from . import frontend as frontend
    from . import integers as integers
    from . import nn, optim, policies, tree
    from . import report as report
    from . import run as run
    from . import source as source
    from .device_arrays import DeviceArray
    from .frontend import ops
    from .frontend.graph import Graph
    from .frontend.ops import *  # noqa: F403
    from .frontend.planning import frontier, min_cut, plan
    from .frontend.regions import checkpoint, checkpoint_name
    from .frontend.tracer import Array
    from .frontend.tracing import Traced
    from .frontend.training import Step, compile, example, grad, trace, value_and_grad
    from .nn import functional
    from .planner.plan import Plan
    from .planner.search import plans
    from .planner.tradeoffs import Frontier
    from .policies import CheckpointPolicy
    from .run.arrays import RawArray
    from .run.executable import Executable, Planned, Stats

__all__ = [
    "Array", "BudgetError", "CheckpointPolicy", "DeviceArray", "Executable", "Frontier", "Graph",
    "Plan", "Planned", "RawArray", "Stats", "Step", "Traced", "tree", "__version__", "checkpoint",
    "checkpoint_name", "compile", "example", "frontier", "functional", "get_num_threads", "grad",
    "min_cut", "nn", "ops", "optim", "plan", "plans", "policies", "release_memory",
    "set_num_threads", "trace", "value_and_grad", *OPERATIONS,
]  # fmt: skip

# What is imported above for types alone is loaded when it is first asked for. That buys start-up
# time: `import cutback` takes an eighth of what a first step needs, and a program pays for what it
# uses (cutback.torch for no operations and no optimizer, a step for no files).
_HOMES = {
    "Array": "frontend.tracer", "CheckpointPolicy": "policies",
    "DeviceArray": "device_arrays", "Executable": "run.executable",
    "Frontier": "planner.tradeoffs", "Graph": "frontend.graph", "Plan": "planner.plan",
    "Planned": "run.executable", "RawArray": "run.arrays", "Stats": "run.executable",
    "Step": "frontend.training", "Traced": "frontend.tracing", "checkpoint": "frontend.regions",
    "checkpoint_name": "frontend.regions", "compile": "frontend.training",
    "example": "frontend.training", "frontier": "frontend.planning", "grad": "frontend.training",
    "min_cut": "frontend.planning", "plan": "frontend.planning", "plans": "planner.search",
    "trace": "frontend.training", "value_and_grad": "frontend.training",
    **dict.fromkeys(OPERATIONS, "frontend.ops"),
}  # fmt: skip
_MODULES = {"functional": "nn.functional", "ops": "frontend.ops"}  # others: their own names
_MODULES |= {
    name: name
    for name in (
        "budgets", "constraints", "devices", "dtypes", "files", "frontend", "integers", "nn",
        "optim", "policies", "report", "run", "source", "tree",
    )
}  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    value: Any
    if name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    elif name in _MODULES:
        value = import_module(f".{_MODULES[name]}", __name__)
    else:
        raise AttributeError(f"module 'cutback' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
