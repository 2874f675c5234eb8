"""Optimizers, for compiled steps and for arrays. Their state is NumPy arrays, their
hyper-parameters plain numbers: changing ``lr`` between steps recompiles nothing.

    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=1e-3))  # inside a compiled step

    optimizer = cutback.optim.AdamW(lr=1e-3)  # on arrays, wherever their gradients come from
    optimizer.step(params, grads)
"""

from __future__ import annotations

from .algorithms import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lion,
    RAdam,
    RMSprop,
)
from .base import Optimizer

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "Optimizer",
    "RAdam",
    "RMSprop",
]
