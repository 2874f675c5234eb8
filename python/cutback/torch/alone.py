"""Optimizers that PyTorch does not have, built on those of ``cutback.optim``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .. import _native
from ..optim.base import Half, Optimizer
from ..optim.codes import STATES, VERSION, check_scales, check_version, converted, is_version_1
from ..optim.state import has_form, kind_of
from ..scalars import number
from .beside import Beside
from .one_pass import Counting
from .states import number_of
from .types import Group, ParamState, Setting

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

_TYPES = {"codes": torch.uint8, "scales": torch.float32}
_READ = (torch.uint8, torch.float32, torch.float64)
_CODES = "codes"  # group key for the version of its states' 8-bit codes


class Alone(Counting):
    """An optimizer without PyTorch code to fall back to."""

    def _load(self, state_dict: dict[str, Any]) -> None:
        """Loads a state. Like PyTorch's classes, converts numbers to tensors; also converts the
        other numbers that the core reads, because no other code reads them."""
        super()._load(state_dict)
        for p in chain.from_iterable(group["params"] for group in self.param_groups):
            state = self.state.get(p, {})
            for key in {"step", *self._kept} & set(state):
                x = state[key]
                if not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.float64):
                    state[key] = torch.tensor(number_of(x), dtype=torch.float32)

    def _check_needed(self, place: str, p: Tensor, state: ParamState, group: Group) -> None:
        super()._check_needed(place, p, state, group)
        for key in self._needed(group, p) if state else ():
            if state[key] is None:
                raise ValueError(
                    f"{type(self).__name__}: {key} of {place} in the state to load is None, but "
                    "must be a tensor"
                )

    def _check_ways(self) -> None:
        """Does nothing: options with the names that PyTorch reserves belong to the formula."""

    def _step_there(self, reason: str) -> None:
        hint = ""
        if self.half is None and "precision" in reason:
            hint = "; pass half= to step 16-bit parameters (docs/optim.md)"
        raise RuntimeError(
            f"{type(self).__name__}: {reason}, and no other code steps this optimizer{hint}"
        )


class OfArrays(Alone):
    """Adapts an optimizer of ``cutback.optim`` to tensors, with its options as keywords and its
    states by name."""

    _kind: ClassVar[type[Optimizer]]
    _made: dict[tuple[Any, ...], Optimizer]  # keyed by the options that groups share
    _stepped: dict[Tensor, torch.dtype]  # the types of parameters when they were stepped

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None = None,
        *,
        half: Half | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self._made, self._stepped = {}, {}
        if lr is not None:
            options["lr"] = self._rate(lr)
        if "groups" in options:
            raise TypeError(f"{type(self).__name__}: pass groups as params, as in PyTorch")
        first = self._kind(**options)  # also checks the options
        names = (*first._options, *first._for_all)
        super().__init__(params, {key: getattr(first, key) for key in names}, half=half, seed=seed)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._made, self._stepped = {}, {}
        super().__setstate__(state)
        self._convert_codes()

    def _rate(self, lr: Setting) -> float:
        if isinstance(lr, Tensor) and lr.numel() == 1:
            lr = lr.item()
        return number(type(self).__name__, "lr", lr)

    def _native_name(self) -> str:
        return str(self._kind.native)

    @property
    def _keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self._forms())

    @classmethod
    def _forms(cls) -> dict[str, str]:
        name = cls._kind.native
        return next(
            dict(zip(states, forms, strict=True))
            for known, states, _, _, forms in _native.optimizer_table()
            if known == name
        )

    def _checker(self, group: Group) -> Optimizer:
        options: Mapping[str, Any] = group
        shared = tuple([options[key] for key in self._kind._for_all])
        if shared not in self._made:
            self._made[shared] = self._kind(**dict(zip(self._kind._for_all, shared, strict=True)))
        return self._made[shared]

    def _row(self, group: Group) -> tuple[float, ...]:
        given: Mapping[str, Any] = group
        options = {key: given[key] for key in self._kind._options}
        return self._checker(group)._row({**options, "lr": self._rate(group["lr"])})

    def _needed(self, group: Group, p: Tensor) -> tuple[str, ...]:
        used = _native.optimizer_states(self._native_name(), self._row(group))
        most, param = self._checker(group)._most_side, (tuple(p.shape), np.dtype(np.float32))
        forms = self._forms()
        return tuple([state for state in used if has_form(param, forms[state], most)])

    def _load(self, state_dict: dict[str, Any]) -> None:
        super()._load(state_dict)
        self._convert_codes()
        self._stepped = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group like PyTorch does, and records the version of its 8-bit codes, if it has
        any."""
        super().add_param_group(param_group)
        if self._has_codes():
            self.param_groups[-1][_CODES] = VERSION

    def _convert_codes(self) -> None:
        """Converts states of groups whose 8-bit codes have an older version.

        Raises:
            ValueError: a version is unknown.
        """
        for g, group in enumerate(self.param_groups if self._has_codes() else ()):
            version = 1
            if _CODES in group:
                what = f"{type(self).__name__}: group {g} of the state"
                version = check_version(what, group[_CODES])
            states = [self.state.get(p) or {} for p in group["params"]]
            if any(getattr(x.get("m"), "dtype", torch.uint8) != torch.uint8 for x in states):
                continue  # PyTorch calls __setstate__ before it can be told not to cast codes
            for i, (p, state) in enumerate(zip(group["params"], states, strict=True)):
                self._check_scales(f"parameter {i} of group {g}", state)
                held = {key: state[key] for key in STATES if isinstance(state.get(key), Tensor)}
                arrays = {key: x.detach().cpu().contiguous().numpy() for key, x in held.items()
                          if x.dtype in _READ}  # fmt: skip
                if version == 1 and is_version_1(arrays):
                    state.update((key, torch.from_numpy(array).to(p.device))
                                 for key, array in converted(arrays).items())  # fmt: skip
            group[_CODES] = VERSION

    def _check_scales(self, place: str, state: ParamState) -> None:
        for key, form in self._forms().items():
            x = state.get(key)
            if form == "scales" and isinstance(x, Tensor) and x.is_floating_point():
                what = f"{type(self).__name__}: {key} of {place} in the state to load"
                check_scales(what, key, x.detach().cpu().double().numpy())

    def _step_here(self, beside: Beside, scale: float) -> None:
        """Remembers the types of parameters until another state is loaded: the codes do not show
        which type they were made for."""
        if not self._has_types():
            super()._step_here(beside, scale)
            return
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p in params:
            if self._stepped.get(p, p.dtype) != p.dtype:
                raise RuntimeError(
                    f"{type(self).__name__}: {self._place_of(p)} is {p.dtype}, and its state was "
                    f"made for {self._stepped[p]}; load a state_dict() after changing its type"
                )
        super()._step_here(beside, scale)
        self._stepped.update((p, p.dtype) for p in params)

    def _place_of(self, p: Tensor) -> str:
        return next(
            f"parameter {i} of group {g}"
            for g, group in enumerate(self.param_groups)
            for i, q in enumerate(group["params"])
            if q is p
        )

    def _has_types(self) -> bool:
        return not _TYPES.keys().isdisjoint(self._forms().values())

    def _has_codes(self) -> bool:
        return "codes" in self._forms().values()

    def _type_of(self, p: Tensor, key: str) -> torch.dtype:
        return _TYPES.get(self._forms().get(key, ""), super()._type_of(p, key))

    def _shape_of(self, p: Tensor, key: str) -> tuple[int, ...]:
        form = self._forms().get(key, "alike")
        if form in ("alike", "whole"):
            return tuple(p.shape)
        return kind_of((tuple(p.shape), np.dtype(np.float32)), form)[0]
