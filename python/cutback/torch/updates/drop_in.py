"""Takes one step of one parameter with an optimizer of :mod:`cutback.torch.optim`.

The step is the optimizer's own pass over a table whose only row is the parameter. A row depends on
nothing but its own tensors, numbers and position, so the bits are those of a step of all rows.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import chain
from typing import Any

import torch

from ..beside import Beside, Numbers
from ..one_pass import Known, NotOursError, OnePass
from ..optim import SOAP, Adafactor, Muon, NorMuon
from ..states import names_of
from ..types import Group

_HALVES = (torch.float16, torch.bfloat16)
_OF_ROWS = (Adafactor, Muon, NorMuon, SOAP)
"""Optimizers that read parameters as matrices stored row by row."""


def reason_of(optimizer: OnePass) -> str:
    """Returns why an optimizer cannot step its parameters one at a time, or ""."""
    name = type(optimizer).__name__
    step: Any = type(optimizer).step
    while getattr(step, "hooked", False):  # skip PyTorch's hooks
        step = step.__wrapped__
    if not step.__module__.startswith("cutback."):
        return f"{name} has a step() of its own"
    try:
        optimizer._check_ways()
        optimizer._native_name()
    except NotOursError as error:
        return f"{name}: {error}"
    if any(not group.get("train_mode", True) for group in optimizer.param_groups):
        return f"{name} is in eval mode, where parameters are averages"
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return f"torch {torch.__version__} lacks the functions of DLPack 1.3"
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    for p in trained:
        why = _reason_of_parameter(optimizer, p)
        if why:
            return f"PyTorch's own code steps {name}, because a parameter is {why}"
    return ""


def _reason_of_parameter(optimizer: OnePass, p: torch.Tensor) -> str:
    """Returns why a parameter, and so all parameters of the optimizer, cannot be stepped in one
    pass, or ""."""
    halves = {None: (), "master": _HALVES}.get(optimizer.half, _HALVES[1:])
    if p.device.type != "cpu" or p.layout is not torch.strided:
        return f"{p.layout} on {p.device}"
    if p.dtype not in (torch.float32, torch.float64, *halves):
        return f"{p.dtype}"
    if p.is_neg() or p.is_conj():
        return "negated or conjugated lazily"
    if isinstance(optimizer, _OF_ROWS) and not p.is_contiguous():
        return "not stored row by row"
    return ""


class DropIn:
    """Steps an optimizer's parameters one at a time."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}  # by the id of a parameter, which it keeps alive
        self._rows: list[torch.Tensor] = []
        self._names: tuple[str, ...] = ()
        self._at: dict[int, int] = {}  # row of each id
        self._nothing = Beside.of("", Numbers(None, None, 0.999, False), None, None)

    def _row(self, optimizer: OnePass, p: torch.Tensor) -> int:
        if self._at.get(id(p)) is None or self._rows[self._at[id(p)]] is not p:
            self._rows = list(chain.from_iterable(g["params"] for g in optimizer.param_groups))
            self._at = {id(q): i for i, q in enumerate(self._rows)}
            self._names, self._known = names_of(optimizer.param_groups), {}
        return self._at[id(p)]

    def step(
        self, optimizer: OnePass, p: torch.Tensor, gradient: torch.Tensor, group: Group
    ) -> None:
        """Steps a parameter, as ``optimizer.step()`` would.

        Raises:
            RuntimeError: its state or its gradient does not fit the pass. Nothing has changed.
        """
        row = self._row(optimizer, p)
        one = object.__new__(type(optimizer))
        one.__dict__.update(optimizer.__dict__)
        one.param_groups = [{**group, "params": [p], "param_names": [self._names[row]]}]
        held = optimizer.state.get(p)
        one.state = defaultdict(dict, {p: held} if held else {})
        one._known, one._told, one._first_row = self._known.get(id(p)), None, row
        p.grad = gradient
        try:
            optimizer._busy.hold(partial(one._step_here, self._nothing, 1.0))
        except NotOursError as why:
            raise RuntimeError(
                f"cutback.torch.optim.{type(optimizer).__name__}: {why}, so it cannot be stepped "
                "inside the backward; compile with updates='after'"
            ) from None
        finally:
            p.grad = None
        if one._known is not None:
            self._known[id(p)] = one._known
        if one.state.get(p):
            optimizer.state[p] = one.state[p]
