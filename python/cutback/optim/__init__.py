"""Optimizers, for compiled steps and for arrays. Their state is NumPy arrays, their
hyper-parameters plain numbers: changing ``lr`` between steps recompiles nothing.

    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=1e-3))  # inside a compiled step

    optimizer = cutback.optim.AdamW(lr=1e-3)  # on arrays, wherever their gradients come from
    optimizer.step(params, grads)

    @cutback.optim.foreach  # one of your own, from its formula
    def sgd(p, g, *, lr=0.1):
        return p - lr * g
"""

from __future__ import annotations

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
]
