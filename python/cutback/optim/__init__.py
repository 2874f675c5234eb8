"""Optimizers for compiled steps and for arrays. States are NumPy arrays and hyper-parameters are
plain numbers, so changing ``lr`` between steps does not recompile anything.

    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=1e-3))  # inside a compiled step

    optimizer = cutback.optim.AdamW(lr=1e-3)  # on arrays, with gradients from any source
    optimizer.step(params, grads)

    @cutback.optim.foreach  # a custom optimizer, from its formula
    def sgd(p, g, *, lr=0.1):
        return p - lr * g
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from . import schedules
from .algorithms import (
    ADOPT,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    AdEMAMix,
    Lion,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)
from .averaged import ASGD, ScheduleFreeAdamW
from .base import Optimizer
from .extras import Outcome
from .factored import Adafactor
from .layerwise import LAMB
from .matrices import Muon, NorMuon
from .numbers import Schedule
from .quantized import AdamW8bit
from .recorded import RecordingError, foreach
from .spectral import SOAP

__all__ = [
    "ADOPT",
    "ASGD",
    "LAMB",
    "SGD",
    "SOAP",
    "AdEMAMix",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "AdamW8bit",
    "Adamax",
    "Lion",
    "Muon",
    "NAdam",
    "NorMuon",
    "Optimizer",
    "Outcome",
    "RAdam",
    "RMSprop",
    "RecordingError",
    "Rprop",
    "Schedule",
    "ScheduleFreeAdamW",
    "foreach",
    "schedules",
]

if not TYPE_CHECKING:  # type checkers must report unknown names

    def __getattr__(name: str) -> NoReturn:
        from ..foreign import missing  # here, because only errors need it

        raise missing("cutback.optim", name)
