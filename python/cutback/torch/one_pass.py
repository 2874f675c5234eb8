"""Base of the optimizers of ``cutback.torch.optim``: takes a step in one pass over a table of
tensors, or lets PyTorch's own code take it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from .. import _native
from ..integers import integer
from ..optim.base import Half
from ..optim.extras import Outcome, outcome
from . import states as loading
from .beside import DECAY, Beside, Numbers
from .fallback import accepted_by_torch, whole_or_not
from .states import by_name, check_numbers, lacks_memory, laid_out_like, names_of, rows_of
from .types import Group, ParamState, Setting, StateDict

_PLAIN = (Tensor, torch.nn.Parameter)
_COUNT, _PARAM, _GRAD, _STATE = -1, 0, 1, 2  # columns of the core's answer
_RESTS = {"master": "master", "remainder": "remainder", "stochastic": None, None: None}
_HALVES = (torch.float16, torch.bfloat16)
_LARGE = 1 << 22  # size from which a state is worth large pages
# a single C call, whereas torch.set_grad_enabled is a class
_set_grad_enabled = torch._C._set_grad_enabled
_WAYS = {"foreach", "fused", "capturable", "differentiable"}  # PyTorch's own groups may lack them
# attributes through which a scaler communicates with an optimizer
_SCALER = ("grad_scale", "found_inf")
_NO_MEMORY = "has less memory than it has elements"  # CB_PY_NO_MEMORY of table.h
_FOUND = ("outcome", "why_torch")  # public attributes that a step sets
R = TypeVar("R")
Unfit = tuple[int, int, str]  # row, column, reason
_Kept = tuple[ParamState, ParamState]  # a state, and what a step writes into it


class NotOursError(Exception):
    """Says why PyTorch's own code has to take the step."""


class Known(NamedTuple):
    """The parameters of all groups, as last seen."""

    native: str | _native.Expression
    lists: list[list[Tensor]]  # one list per group
    params: tuple[Tensor, ...]
    values: list[ParamState]  # the values of the optimizer's state
    states: tuple[ParamState, ...]  # states per parameter; empty if there are none yet
    group_of: list[int]
    table: _native.OptimizerTable


def _keeping_grad_mode(function: Callable[[], R]) -> R:
    """Calls the function and restores the gradient mode afterwards, even if the function changes it
    and Ctrl-C comes between any two bytecodes: a second restore follows an interrupted one."""
    before = torch.is_grad_enabled()
    try:
        try:
            return function()
        finally:
            _set_grad_enabled(before)
    finally:
        _set_grad_enabled(before)


class OnePass(torch.optim.Optimizer):
    """A step in one pass. Subclasses define the optimizer."""

    # PyTorch's class, for steps that are not taken here
    _torch: ClassVar[type[torch.optim.Optimizer]]
    _keys: ClassVar[tuple[str, ...]]  # keys of a parameter's states, in the core's order
    # keys of the numbers that a state has besides its step count
    _kept: ClassVar[tuple[str, ...]] = ()
    _known: Known | None = None
    why_torch: str | None = None
    """Why PyTorch's own code took the last step; None if it was taken here."""

    outcome: Outcome = Outcome(None, False)
    """What the last step found out about the gradients."""
    _told: _native.OptimizerTable | None = None  # a table whose steps have extras

    half: Half | None = None
    """How parameters in half precision are kept, as for ``cutback.optim.Optimizer``; None leaves
    them to PyTorch's own code."""
    seed: int = 0
    _first_row = 0  # position of its first parameter; rounding noise depends on it

    def __init__(self, *args: Any, half: Half | None = None, seed: int = 0, **kwargs: Any) -> None:
        if half not in _RESTS:
            raise ValueError(
                f"{type(self).__name__}: half={half!r} is not one of 'master', 'remainder' and "
                "'stochastic'"
            )
        self.half, self.seed = half, integer("seed", seed, 0, 2**64 - 1)
        self._busy = _native.BusyWord()
        super().__init__(*args, **kwargs)
        # PyTorch sets this for fused=True: a scaler then also calls the step if a gradient
        # overflows, and a front end that counts calls advances its schedule without a step.
        self.__dict__.pop("_step_supports_amp_scaling", None)

    def _native_name(self) -> str | _native.Expression:
        """Returns the name or the expression of the optimizer in the core.

        Raises:
            NotOursError: the core has no optimizer for these groups.
        """
        raise NotImplementedError

    def _row(self, group: Group) -> tuple[float, ...]:
        """Returns the group's numbers in the core's order."""
        raise NotImplementedError

    def _begin(self, p: Tensor, state: ParamState, group: Group) -> ParamState:
        """Makes a missing state; returns the state to step with."""
        raise NotImplementedError

    def _has_types(self) -> bool:
        """True if states have types other than their parameters'."""
        return False

    def _all_keys(self) -> tuple[str, ...]:
        rest = _RESTS[self.half]
        return (*self._keys, rest) if rest else self._keys

    def _type_of(self, p: Tensor, key: str) -> torch.dtype:
        """Returns the type of a state."""
        if self.half is None or p.dtype not in _HALVES:
            return p.dtype
        return torch.int16 if key == "remainder" else torch.float32

    def _shape_of(self, p: Tensor, key: str) -> tuple[int, ...]:
        """Returns the shape of a state."""
        return tuple(p.shape)

    def _empty(self, p: Tensor, key: str) -> Tensor:
        dtype, shape = self._type_of(p, key), self._shape_of(p, key)
        if shape != p.shape:
            return torch.empty(shape, dtype=dtype, device=p.device)
        new = torch.empty_like(p, dtype=dtype, memory_format=torch.preserve_format)
        if new.nbytes >= _LARGE and new.device.type == "cpu":
            _native.ask_for_large_pages(new.data_ptr(), new.nbytes)
        return new

    def _zeros(self, p: Tensor, key: str) -> Tensor:
        return self._empty(p, key).zero_()

    def _check_state(self, place: str, p: Tensor, state: ParamState) -> None:
        """Checks that an existing state fits this optimizer and parameter.

        Raises:
            ValueError: it does not.
        """
        for key in self._all_keys():
            x = state.get(key)
            if x is None:
                continue
            wanted = self._shape_of(p, key)
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            if found != wanted:
                raise ValueError(
                    f"{type(self).__name__}: {key} of {place} is {found}, but must be {wanted} "
                    f"for its parameter, {tuple(p.shape)}"
                )

    def _check_loaded(self) -> None:
        """Checks that groups and states fit this optimizer.

        Raises:
            ValueError: they do not.
        """
        name = type(self).__name__
        for g, group in enumerate(self.param_groups):
            missing = [key for key in self.defaults if key not in group and key not in _WAYS]
            if missing:
                raise ValueError(
                    f"{name}: group {g} of the state has no {missing[0]!r}; the state was "
                    f"saved by another optimizer, with {', '.join(sorted(set(group) - {'params'}))}"
                )
            for i, p in enumerate(group["params"]):
                self._check_one(g, i, p, self.state.get(p) or {}, group)

    def _check_one(self, g: int, i: int, p: Tensor, state: ParamState, group: Group) -> None:
        name, keys = type(self).__name__, {"step", *self._all_keys(), *self._kept}
        place = f"parameter {i} of group {g}"
        if state and keys.isdisjoint(state):
            raise ValueError(
                f"{name}: the state of {place} has {', '.join(map(str, state))} and none "
                f"of {', '.join(sorted(keys))}; it belongs to another optimizer"
            )
        self._check_needed(place, p, state, group)
        self._check_state(place, p, state)

    def _check_needed(self, place: str, p: Tensor, state: ParamState, group: Group) -> None:
        """Checks that a state which has begun is complete.

        Raises:
            ValueError: something is missing.
        """

    def _rest(self, p: Tensor) -> dict[str, Tensor]:
        """Returns the initial values of the extra states of a half-precision parameter."""
        rest = _RESTS[self.half] if p.dtype in _HALVES else None
        return {rest: self._zeros(p, rest)} if rest else {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group like PyTorch does; a duplicate name is a ValueError."""
        super().add_param_group(param_group)
        loading.check_names(type(self).__name__, self.param_groups)

    def __getstate__(self) -> dict[str, Any]:
        found = {key: self.__dict__[key] for key in _FOUND if key in self.__dict__}
        return {**super().__getstate__(), "half": self.half, "seed": self.seed, **found}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._busy = _native.BusyWord()
        super().__setstate__(state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state like PyTorch does, which casts states to their parameters' types. States of
        half-precision parameters, and those with a separate type, keep the type in which they were
        saved. After an error nothing has changed.

        Raises:
            ValueError: it is the state of another optimizer, or of other parameters.
        """
        it: Any = self
        before = it.state, it.param_groups
        try:
            self._load(state_dict)
            self._check_loaded()
        # PyTorch's own code looks up keys that its optimizer would have saved
        except KeyError as error:
            it.state, it.param_groups = before
            raise self._lacks(state_dict, error) from None
        except BaseException:
            it.state, it.param_groups = before
            raise

    def _lacks(self, given: dict[str, Any], error: KeyError) -> ValueError:
        """Returns the error for a state in which PyTorch did not find an expected key."""
        try:
            for g, group in enumerate(given["param_groups"]):
                for i, number in enumerate(group["params"]):
                    state = given["state"].get(number) or {}
                    self._check_one(g, i, self.param_groups[g]["params"][i], state, group)
        except ValueError as found:
            return found
        except (KeyError, TypeError, IndexError, AttributeError):
            pass  # not a state_dict: PyTorch's own error is the best available
        return ValueError(f"{type(self).__name__}: the state to load has no {error}")

    def _load(self, state_dict: dict[str, Any]) -> None:
        seen: list[StateDict] = []

        def look(_: torch.optim.Optimizer, given: StateDict) -> StateDict:
            name = type(self).__name__
            given = by_name(name, given, self.param_groups)
            check_numbers(name, given, ("step", *self._kept))
            seen.append(loading.with_tensors(name, given))
            return seen[-1]

        handle = self.register_load_state_dict_pre_hook(look)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        saved = chain.from_iterable(group["params"] for group in seen[-1]["param_groups"])
        params = [(f"parameter {i} of group {g}", p) for g, group in enumerate(self.param_groups)
                  for i, p in enumerate(group["params"])]  # fmt: skip
        for number, (place, p) in zip(saved, params, strict=True):
            held = seen[-1]["state"].get(number, {})
            types = {key: self._type_of(p, key) for key in self._all_keys()}
            loading.check_kinds(type(self).__name__, place, held, types)
            if not self._has_types() and (self.half is None or p.dtype not in _HALVES):
                continue
            for key in (*self._all_keys(), *self._kept):
                x = held.get(key)
                if isinstance(x, Tensor):
                    dtype = x.dtype if x.dtype is torch.float64 else self._type_of(p, key)
                    self.state[p][key] = x.to(p.device, dtype, copy=True)

    def step(
        self,
        closure: Callable[[], R] | None = None,
        *,
        grad_scale: float | Tensor | None = None,
        max_norm: float | None = None,
        averages: Iterable[Tensor | None] | None = None,
        average_decay: float = DECAY,
        copies: Iterable[Tensor | None] | None = None,
        zero_grads: bool = False,
    ) -> R | None:
        """Takes one step and returns the result of the closure, if any. An error changes nothing.

        Args:
            closure: recomputes the loss.
            grad_scale: the factor that the loss was multiplied by. Gradients are divided by it; if
                one is not finite, nothing is updated (``outcome.skipped``).
                ``torch.amp.GradScaler`` needs no argument.
            max_norm: the update uses gradients clipped to this total norm; the gradients
                themselves are not written. If one is not finite, nothing is updated
                (``outcome.skipped``).
            averages: moving averages of the parameters of all groups, in order, None for parameters
                without one: ``a <- average_decay * a + (1 - average_decay) * p``.
            average_decay: in [0, 1].
            copies: tensors in half precision that receive the new parameters.
            zero_grads: True fills gradients with zeros after the step.

        Raises:
            ValueError: a number is outside its range, or two tensors that are written share memory;
                the text says which.
            RuntimeError: PyTorch's own code would have to take a step with extras;
                or this optimizer, or another one with some of its parameters or states, is stepping
                in another thread. Nothing is written.
        """
        loss = None
        if closure is not None:
            loss = _keeping_grad_mode(torch.enable_grad()(closure))
        numbers = Numbers(grad_scale, max_norm, average_decay, zero_grads)
        beside = Beside.of(type(self).__name__, numbers, averages, copies)
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and float(found_inf):
            self.outcome = Outcome(None, True)
            return loss
        self._busy.hold(self._step_by_somebody, beside, scale)
        return loss

    def _step_by_somebody(self, beside: Beside, scale: Setting | None) -> None:
        """Takes the step here or with PyTorch's own code. ``scale`` is set by a scaler."""
        try:
            self._step_here(beside, 1.0 if scale is None else float(scale))
            self.why_torch = None
        except NotOursError as reason:
            if beside.extras.any or self.half is not None:
                without = "the other arguments" if self.half is None else f"half={self.half!r}"
                raise RuntimeError(
                    f"cutback.torch.optim.{type(self).__name__}: {reason}, so PyTorch's own code "
                    f"would have to step, but it does not support {without}"
                ) from None
            self._give_to_torch(str(reason), scale)
        except ValueError:
            is_plain = hasattr(self, "_torch") and not beside.extras.any and self.half is None
            if not is_plain or (why := accepted_by_torch(self.param_groups, self.defaults)) is None:
                raise
            self._give_to_torch(why, scale)

    def _give_to_torch(self, reason: str, scale: Setting | None) -> None:
        self._check_states()
        if scale is not None:
            torch._foreach_div_(self._gradients(), float(scale))
        there = partial(self._step_there, reason)
        _keeping_grad_mode(
            partial(whole_or_not, there, self.param_groups, self.state, self.defaults)
        )
        self.outcome = Outcome(None, False)

    def _check_states(self) -> None:
        """Checks states before code runs that would fail in the middle of a step."""
        for g, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                if p.grad is None:
                    continue
                place, state = f"parameter {i} of group {g}", self.state.get(p) or {}
                self._check_state(place, p, state)
                for what, x in (("", p), ("the gradient of ", p.grad), *state.items()):
                    if lacks_memory(x):
                        what = what if x is p or x is p.grad else f"the {what} of "
                        raise self._no_memory(f"{what}{place} {_NO_MEMORY}")

    def _no_memory(self, what: str) -> ValueError:
        return ValueError(
            f"cutback.torch.optim.{type(self).__name__}: {what}; its storage was resized or freed, "
            "so restore it before the step"
        )

    def _gradients(self) -> list[Tensor]:
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        return [p.grad for p in params if p.grad is not None]

    def _tell(self, known: Known, beside: Beside, scale: float) -> None:
        """Gives the table the extras of its step."""
        extras = beside.extras
        if extras.any or scale != 1:
            names = names_of(self.param_groups)
            beside.tell(known.table, known.params, names, scale)
            self._told = known.table
        elif self._told is known.table:
            known.table.ask(None)
            self._told = None

    def _step_here(self, beside: Beside, scale: float) -> None:
        exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
        if exchange is None:
            raise NotOursError(f"torch {torch.__version__} lacks the functions of DLPack 1.3")
        self._check_ways()
        known = self._look()
        self._tell(known, beside, scale)
        numbers = rows_of(type(self).__name__, self.param_groups, self.defaults, self._row)
        begun: dict[int, ParamState] = {}
        grads: dict[int, Tensor] = {}
        states, kept = known.states, list[_Kept]()
        try:
            for _ in range(2):
                unfit, waiting = known.table.step_tensors(
                    exchange=exchange, kinds=_PLAIN, params=known.params, states=states,
                    keys=self._all_keys(), count_key="step", number_keys=self._kept,
                    grads=grads or None, group_of=known.group_of, groups=numbers, kept=kept,
                )  # fmt: skip
                if not unfit:
                    break
                states = self._mend(known, unfit, begun, grads)
                kept = [
                    (self.state[known.params[row]], self._lasting(x)) for row, x in begun.items()
                ]
            else:
                if unfit:
                    raise NotOursError(self._why(unfit[0]))
        finally:
            self._forget_empty(known, begun)
        self.outcome = outcome(known.table.outcome())
        if beside.extras.zero_grads:
            for row in grads:  # the step was taken on a copy
                grad = known.params[row].grad
                if grad is not None and not grad._is_zerotensor():
                    grad.detach().zero_()
        if self.outcome.skipped:
            return
        self._count_versions(known.params, waiting)
        if beside.extras.any:
            torch.autograd.graph.increment_version(beside.written())

    def _check_ways(self) -> None:
        """Raises NotOursError if a group needs something that only PyTorch's code does."""
        for group in self.param_groups:
            if group.get("differentiable") or group.get("capturable"):
                raise NotOursError("a group asks for differentiable=True or capturable=True")

    def _count_versions(self, params: Sequence[Tensor], waiting: int) -> None:
        """Increments tensor versions, by which autograd detects that a saved tensor was
        overwritten."""
        if waiting:
            params = [p for p in params if p.grad is not None]
        torch.autograd.graph.increment_version(params)

    def _look(self) -> Known:
        """Returns the parameters. Collects them again if groups or states have changed."""
        known, native = self._known, self._native_name()
        lists = [group["params"] for group in self.param_groups]
        if (
            known is not None
            and known.native == native
            and _native.same_objects(self.state, known.values)
            and len(lists) == len(known.lists)
            and all(map(_native.same_objects, lists, known.lists))
        ):
            return known
        params = tuple(chain.from_iterable(lists))
        if any(map(Tensor.is_neg, params)) or any(map(Tensor.is_conj, params)):
            raise NotOursError("a parameter is negated or conjugated lazily")
        group_of = [g for g, row in enumerate(lists) for _ in row]
        states = tuple([self.state.get(p) or {} for p in params])
        numbers = self.half, self.seed, self._first_row
        table = _native.OptimizerTable(native, names_of(self.param_groups), *numbers)
        values, copies = list(self.state.values()), [list(row) for row in lists]
        self._known = Known(native, copies, params, values, states, group_of, table)
        return self._known

    def _mend(
        self,
        known: Known,
        unfit: Sequence[Unfit],
        begun: dict[int, ParamState],
        grads: dict[int, Tensor],
    ) -> tuple[ParamState, ...]:
        """Makes missing states, and converts other layouts to the parameter's: gradients for this
        step, states permanently. Returns the states to step with.

        Raises:
            NotOursError: something else does not fit.
        """
        states, keys = list(known.states), self._all_keys()
        for row, column, why in unfit:
            p, key = known.params[row], keys[max(column - _STATE, 0)] if keys else ""
            if column == _GRAD and p.grad is not None and p.grad._is_zerotensor():
                grads[row] = torch.zeros_like(p)
                continue
            if why == _NO_MEMORY:  # PyTorch's code would read past its end
                raise self._no_memory(self._why((row, column, why)))
            if column not in (_PARAM, _GRAD) and why == "is missing":
                if row not in begun:
                    group = self.param_groups[known.group_of[row]]
                    begun[row] = states[row] = self._begin(p, states[row], group)
                continue
            old = p.grad if column == _GRAD else states[row].get(key) if column >= _STATE else None
            if column == _GRAD and old is not None:
                old = old.resolve_conj().resolve_neg()
            new = laid_out_like(p, old, self._type_of(p, key) if column >= _STATE else p.dtype)
            if new is None:
                raise NotOursError(self._why((row, column, why)))
            if column == _GRAD:
                grads[row] = new
            else:
                states[row][key] = new
        return tuple(states)

    def _lasting(self, state: ParamState) -> ParamState:
        """Returns the part of a newly made state that becomes part of the optimizer's state."""
        return state

    def _forget_empty(self, known: Known, begun: Iterable[int]) -> None:
        """Drops states that were made but not stepped."""
        for row in begun:
            p = known.params[row]
            if p in self.state and not self.state[p]:
                del self.state[p]

    def _why(self, unfit: Unfit) -> str:
        row, column, why = unfit
        what = {_COUNT: "the count of steps of ", _PARAM: "", _GRAD: "the gradient of "}
        what |= {_COUNT - 1 - k: f"the {key} of " for k, key in enumerate(self._kept)}
        name = names_of(self.param_groups)[row]
        return f"{what.get(column, 'a state of ')}{name} {why}"

    def _step_there(self, reason: str) -> None:
        """Records that PyTorch's own code takes the step. Warns the first time, with the reason."""
        if self.why_torch is None:
            warnings.warn(
                f"cutback.torch.optim.{type(self).__name__}: {reason}; PyTorch's own code steps "
                "this optimizer",
                RuntimeWarning,
                stacklevel=6,
            )
        self.why_torch = reason
        step: Any = self._torch.step
        while getattr(step, "hooked", False):  # the hooks already run around our step
            step = step.__wrapped__
        step(self._for_torch())

    def _for_torch(self) -> OnePass:
        """Returns a view of this optimizer for PyTorch's code. It has the same parameters and
        states, but no settings of a scaler, since gradients are unscaled by now, and no ``fused``
        on a CPU: that kernel treats each tensor as contiguous and writes into the gaps of others. A
        view leaves nothing to restore after Ctrl-C."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        for key in _SCALER:
            view.__dict__.pop(key, None)
        view.param_groups = [
            {**group, "fused": False}
            if group.get("fused") and any(p.device.type == "cpu" for p in group["params"])
            else group
            for group in self.param_groups
        ]
        return view


class Counting(OnePass):
    """Optimizers that have a step count and whose states begin with zeros."""

    _numbers: ClassVar[tuple[str, ...]]  # options in the core's order

    def _row(self, group: Group) -> tuple[float, ...]:
        options = cast(Mapping[str, Any], group)
        found = [options[name] for name in self._numbers]
        rows = [x if isinstance(x, tuple | list) else (x,) for x in found]
        return tuple(map(float, chain.from_iterable(rows)))

    def _first_numbers(self, group: Group) -> tuple[float, ...]:
        """Returns the initial values of the numbers in ``_kept``."""
        return ()

    def _needed(self, group: Group, p: Tensor) -> tuple[str, ...]:
        """Returns the states of this parameter of the group, in PyTorch's order."""
        return self._keys

    def _check_needed(self, place: str, p: Tensor, state: ParamState, group: Group) -> None:
        missing = [key for key in ("step", *self._kept, *self._needed(group, p))
                   if state and key not in state]  # fmt: skip
        if missing:
            raise ValueError(
                f"{type(self).__name__}: the state of {place} has no {missing[0]}; it has "
                f"{', '.join(map(str, state))}"
            )

    def _begin(self, p: Tensor, state: ParamState, group: Group) -> ParamState:
        """Makes the state of a parameter like PyTorch, or adds the keys that a loaded state
        lacks."""
        if self.half is not None and {"step", *self._kept, *self._needed(group, p)} <= set(state):
            return {**state, **self._rest(p)}
        if state:
            raise NotOursError(f"a state has only {' and '.join(state)}")
        dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        numbers = {"step": 0.0, **dict(zip(self._kept, self._first_numbers(group), strict=True))}
        state = {key: torch.tensor(x, dtype=dtype, device="cpu") for key, x in numbers.items()}
        return state | {key: self._zeros(p, key) for key in self._needed(group, p)} | self._rest(p)
