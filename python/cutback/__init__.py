"""Cutback: plans which values a training step saves and which it recomputes, and runs the step in
one planned block of memory.

>>> import numpy as np, cutback
>>> def loss(params, x, y):
...     h = cutback.tanh(x @ params["w1"])
...     return ((h @ params["w2"] - y) ** 2).mean()
>>> step = cutback.compile(loss, budget=0.5, optimizer=cutback.optim.AdamW(lr=1e-3))
>>> value = step(params, x, y)  # parameters are updated in place
>>> print(step.plan)

Functions of arrays are traced once for each combination of shapes and dtypes. Inside them, use
operators and the operations of this package: ``cutback.exp`` and others with NumPy's names, and
:mod:`cutback.nn.functional` with PyTorch's names.
"""

# Each folder imports only folders that come before it in this list: report, planner, run, frontend,
# nn, torch. All of them use the top-level modules, except cli, doctor and __main__, which are the
# command line. Start at frontend/training.py, which has the functions that users call.

from typing import TYPE_CHECKING

from ._native import (
    __version__,
    get_num_threads,
    set_num_threads,
)

if TYPE_CHECKING:
    from . import budgets as budgets
    from . import constraints as constraints
    from . import devices as devices
    from . import dtypes as dtypes
    from . import files as files
    from . import frontend as frontend
    from . import integers as integers
    from . import nn, optim, policies, tree
    from . import problem as problem
    from . import report as report
    from . import run as run
    from . import schedule as schedule
    from . import source as source
    from .device_arrays import DeviceArray
    from .errors import BudgetError
    from .frontend import linalg as linalg
    from .frontend import random as random
    from .frontend.elementwise import *  # noqa: F403
    from .frontend.estimating import estimate
    from .frontend.graph import Graph
    from .frontend.inverse import *  # noqa: F403
    from .frontend.namespace import (
        bfloat16,
        bool_,
        e,
        float16,
        float32,
        float64,
        inf,
        int32,
        int64,
        nan,
        newaxis,
        pi,
        uint8,
    )
    from .frontend.ops import *  # noqa: F403
    from .frontend.planning import frontier, plan
    from .frontend.products import *  # noqa: F403
    from .frontend.rearrange import *  # noqa: F403
    from .frontend.regions import checkpoint, checkpoint_name
    from .frontend.step import Step
    from .frontend.tracer import Array
    from .frontend.tracing import Traced
    from .frontend.training import compile as compile
    from .frontend.training import grad, trace, value_and_grad
    from .frontend.transforms import (
        custom_vjp,
        hessian,
        jacfwd,
        jacrev,
        jvp,
        stop_gradient,
        vjp,
        vmap,
    )
    from .planner.estimating import Estimate
    from .planner.packed import with_packed
    from .planner.plan import Plan
    from .planner.search import plans
    from .planner.sliced import with_slices
    from .planner.tradeoffs import Frontier
    from .policies import CheckpointPolicy
    from .run.measures import Stats
    from .run.memory import Memory, MemoryLimitError, memory, release_memory

# `from cutback import *` imports every public name except those that would hide a builtin (abs,
# all, any, compile, divmod, max, min, round, sum). The names are written out so that type checkers
# can read them.
__all__ = [
    "Array",
    "BudgetError",
    "CheckpointPolicy",
    "DeviceArray",
    "Estimate",
    "Frontier",
    "Graph",
    "Memory",
    "MemoryLimitError",
    "Plan",
    "Stats",
    "Step",
    "Traced",
    "__version__",
    "absolute",
    "add",
    "allclose",
    "amax",
    "amin",
    "arange",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "argsort",
    "array",
    "array_split",
    "asarray",
    "astype",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "average",
    "bfloat16",
    "bool_",
    "broadcast_to",
    "cbrt",
    "ceil",
    "checkpoint",
    "checkpoint_name",
    "clip",
    "column_stack",
    "concatenate",
    "constraints",
    "convolve",
    "copy",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cross",
    "cumprod",
    "cumsum",
    "custom_vjp",
    "devices",
    "diag",
    "diagonal",
    "diff",
    "divide",
    "dot",
    "dstack",
    "e",
    "einsum",
    "empty",
    "empty_like",
    "equal",
    "erf",
    "estimate",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "eye",
    "files",
    "fix",
    "flip",
    "fliplr",
    "flipud",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "fmod",
    "frontier",
    "full",
    "full_like",
    "get_num_threads",
    "grad",
    "greater",
    "greater_equal",
    "hessian",
    "hsplit",
    "hstack",
    "hypot",
    "identity",
    "inf",
    "inner",
    "int32",
    "int64",
    "interp",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "jacfwd",
    "jacrev",
    "jvp",
    "kron",
    "less",
    "less_equal",
    "linalg",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "matmul",
    "matvec",
    "maximum",
    "mean",
    "median",
    "memory",
    "meshgrid",
    "minimum",
    "mod",
    "moveaxis",
    "multiply",
    "nan",
    "nan_to_num",
    "nansum",
    "ndim",
    "negative",
    "newaxis",
    "nn",
    "not_equal",
    "ones",
    "ones_like",
    "optim",
    "outer",
    "pad",
    "percentile",
    "pi",
    "plan",
    "plans",
    "policies",
    "positive",
    "power",
    "prod",
    "ptp",
    "quantile",
    "random",
    "ravel",
    "reciprocal",
    "release_memory",
    "remainder",
    "repeat",
    "report",
    "reshape",
    "roll",
    "rot90",
    "rsqrt",
    "searchsorted",
    "segment_sum",
    "set_num_threads",
    "shape",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "size",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stop_gradient",
    "subtract",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "top_k",
    "trace",
    "transpose",
    "tree",
    "tri",
    "tril",
    "triu",
    "trunc",
    "uint8",
    "uniform",
    "unstack",
    "value_and_grad",
    "var",
    "vdot",
    "vecdot",
    "vjp",
    "vmap",
    "vsplit",
    "vstack",
    "where",
    "with_packed",
    "with_slices",
    "zeros",
    "zeros_like",
]  # fmt: skip

# Public names are imported on first use, so that `import cutback` is fast (an eighth of the time of
# a first step) and a program loads only what it uses: cutback.torch does not load operations or
# optimizers, and a step does not load file formats. For the same reason this module imports only
# _native: names.py, which maps names to modules, is loaded when the first public name is used, and
# `from __future__ import annotations` is missing because NumPy does not load that module anyway.

if not TYPE_CHECKING:  # with a module-level __getattr__, type checkers would accept any name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        from .names import MODULES, PUBLIC

        if name in ("linalg", "random"):
            value = import_module(f".frontend.{name}", __name__)
        elif name in PUBLIC:
            value = getattr(import_module(f".{PUBLIC[name]}", __name__), name)
        elif name in MODULES:
            value = import_module(f".{name}", __name__)
        else:
            from .removed import missing

            raise missing(__name__, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    from .names import OPERATIONS

    return sorted({*__all__, *OPERATIONS, "compile"})
