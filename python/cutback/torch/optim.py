"""Drop-ins for ``torch.optim`` whose step is one pass over one table of tensors.

>>> optimizer = cutback.torch.optim.AdamW(model.parameters(), lr=3e-4)

Each is a subclass of PyTorch's optimizer of the same name and differs in ``step`` alone:
parameter groups, ``state_dict`` and its loading, hooks, schedulers and ``zero_grad`` are PyTorch's
own, and a checkpoint of one goes on in the other. ``docs/optim.md`` says what is stepped so (single
and double precision, real and complex, on the CPU), and what PyTorch's own code steps instead.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .. import _native
from .. import optim as arrays
from ..optim.extras import Outcome, outcome
from ..optim.recorded import Recorded
from .beside import Beside

__all__ = ["ASGD", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam",
           "RMSprop", "Rprop", "foreach"]  # fmt: skip

_PLAIN = (Tensor, torch.nn.Parameter)
_COUNT, _PARAM, _GRAD, _STATE = -1, 0, 1, 2  # columns of the core's answer
_SCALER = ("grad_scale", "found_inf")  # attributes by which a scaler speaks with an optimizer
Unfit = tuple[int, int, str]  # row, column, why


class _NotOursError(Exception):
    """Why PyTorch's own code has to step."""


class _Known(NamedTuple):
    """The parameters of all groups as they were when they were last looked at."""

    native: str | _native.Expression
    lists: list[list[Tensor]]  # one a group
    params: tuple[Tensor, ...]
    values: list[Any]  # of the optimizer's state
    states: tuple[dict[str, Any], ...]  # beside the parameters; empty where there is none yet
    group_of: list[int]
    table: _native.OptimizerTable


def _same(xs: Any, ys: Sequence[Any]) -> bool:
    """Whether they are the same objects; tensors are not compared."""
    return len(xs) == len(ys) and all(map(operator.is_, xs, ys))


def _names(groups: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(
        name
        for g, group in enumerate(groups)
        for name in group.get("param_names")
        or [f"parameter {i} of group {g}" for i in range(len(group["params"]))]
    )


def _laid_out_like(p: Tensor, x: Any) -> Tensor | None:
    """A copy of ``x`` whose elements lie as those of ``p`` do; None: it has others."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.device != p.device:
        return None
    if x.shape != p.shape or x.dtype != p.dtype:
        return None
    return torch.empty_like(p, memory_format=torch.preserve_format).copy_(x)


class _OnePass(torch.optim.Optimizer):
    """A step in one pass. What it is of, subclasses say."""

    _torch: ClassVar[type[torch.optim.Optimizer]]  # whose code steps what is not ours
    _keys: ClassVar[tuple[str, ...]]  # under which a parameter's states stand, in the core's order
    _kept: ClassVar[tuple[str, ...]] = ()  # and the numbers that it keeps beside its steps
    _known: _Known | None = None
    why_torch: str | None = None
    """Why PyTorch's own code took the last step; None: it was taken here."""

    outcome: Outcome = Outcome(None, False)
    """What the last step has found."""
    _told: _native.OptimizerTable | None = None  # a table whose steps do something beside

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A scaler looks for infinities, and leaves unscaling to the step.
        self._step_supports_amp_scaling = True

    def _native_name(self) -> str | _native.Expression:
        """The optimizer in the core.

        Raises:
            _NotOursError: there is none for these groups.
        """
        raise NotImplementedError

    def _row(self, group: dict[str, Any]) -> tuple[float, ...]:
        """The group's numbers as the core takes them."""
        raise NotImplementedError

    def _begin(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        """A state that is not there yet: what to step with."""
        raise NotImplementedError

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grad_scale: float | Tensor | None = None,
        max_norm: float | None = None,
        averages: Iterable[Tensor | None] | None = None,
        average_decay: float = 0.999,
        copies: Iterable[Tensor | None] | None = None,
        zero_grads: bool = False,
    ) -> Any:
        """One step, as ``torch.optim.Optimizer.step``. It is whole or, after an error, not begun.

        Args:
            closure: computes the loss anew.
            grad_scale: what the loss was multiplied by: gradients are divided by it, and where one
                is not finite nothing is stepped (``outcome.skipped``). ``torch.amp.GradScaler``
                needs no argument.
            max_norm: gradients count as shortened to this norm of all together; they are not
                written.
            averages: moving averages of the parameters of all groups, in their order, None for
                those without: ``a <- average_decay * a + (1 - average_decay) * p``.
            average_decay: in [0, 1].
            copies: tensors in half precision that get the new parameters.
            zero_grads: gradients are zeros after the step.

        Raises:
            ValueError: a number is outside its range, or two tensors that are written share memory;
                the text says which.
            RuntimeError: PyTorch's own code would have to take a step that does more than its own.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        beside = Beside.of(
            type(self).__name__, grad_scale, max_norm, averages, average_decay, copies, zero_grads
        )
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and float(found_inf):
            self.outcome = Outcome(None, True)
            return loss
        try:
            with torch.no_grad():
                self._step_here(beside, 1.0 if scale is None else float(scale))
            self.why_torch = None
        except _NotOursError as reason:
            if beside.extras.any:
                raise RuntimeError(
                    f"cutback.torch.optim.{type(self).__name__}: {reason}, so that PyTorch's own "
                    "code would step, without the other arguments"
                ) from None
            if scale is not None:
                torch._foreach_div_(self._gradients(), float(scale))
            given = {key: self.__dict__.pop(key) for key in _SCALER if key in self.__dict__}
            try:  # what is done by now
                self._step_there(str(reason))
            finally:
                self.__dict__.update(given)
            self.outcome = Outcome(None, False)
        return loss

    def _gradients(self) -> list[Tensor]:
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        return [p.grad for p in params if p.grad is not None]

    def _tell(self, known: _Known, beside: Beside, scale: float) -> None:
        """Tells the table what its step does beside the update."""
        extras = beside.extras
        if extras.any or scale != 1:
            names = _names(self.param_groups)
            beside.tell(known.table, known.params, names, scale)
            self._told = known.table
        elif self._told is known.table:
            known.table.ask()
            self._told = None

    def _step_here(self, beside: Beside, scale: float) -> None:
        exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
        if exchange is None:
            raise _NotOursError(f"torch {torch.__version__} lacks the functions of DLPack 1.3")
        for group in self.param_groups:
            if group.get("differentiable") or group.get("capturable"):
                raise _NotOursError("a group asks for differentiable=True or capturable=True")
        known = self._look()
        self._tell(known, beside, scale)
        numbers = [self._row(group) for group in self.param_groups]
        begun: dict[int, dict[str, Any]] = {}
        grads: dict[int, Tensor] = {}
        states = known.states
        for _ in range(2):
            unfit, waiting = known.table.step_tensors(
                exchange, _PLAIN, known.params, states, self._keys, "step", self._kept,
                grads or None, known.group_of, numbers,
            )  # fmt: skip
            if not unfit:
                break
            states = self._mend(known, unfit, begun, grads)
        else:
            if unfit:
                raise _NotOursError(self._why(unfit[0]))
        self.outcome = outcome(known.table)
        if beside.extras.zero_grads:
            for row in grads:  # a copy was stepped
                grad = known.params[row].grad
                if grad is not None:
                    grad.zero_()
        if self.outcome.skipped:
            return
        for row, state in begun.items():
            self._keep(known.params[row], state)
        self._count_versions(known.params, waiting)
        torch.autograd.graph.increment_version(beside.written())

    def _count_versions(self, params: Sequence[Tensor], waiting: int) -> None:
        """Autograd finds out by a tensor's version that what it saved was overwritten."""
        if waiting:
            params = [p for p in params if p.grad is not None]
        torch.autograd.graph.increment_version(params)

    def _look(self) -> _Known:
        """The parameters, looked at anew where groups or states are not those of the last step."""
        known, native = self._known, self._native_name()
        lists = [group["params"] for group in self.param_groups]
        if (
            known is not None
            and known.native == native
            and _same(self.state.values(), known.values)
            and len(lists) == len(known.lists)
            and all(map(_same, lists, known.lists))
        ):
            return known
        params = tuple(chain.from_iterable(lists))
        if any(map(Tensor.is_neg, params)) or any(map(Tensor.is_conj, params)):
            raise _NotOursError("a parameter is negated or conjugated lazily")
        group_of = [g for g, row in enumerate(lists) for _ in row]
        states = tuple([self.state.get(p) or {} for p in params])
        table = _native.OptimizerTable(native, _names(self.param_groups))
        values, copies = list(self.state.values()), [list(row) for row in lists]
        self._known = _Known(native, copies, params, values, states, group_of, table)
        return self._known

    def _mend(
        self,
        known: _Known,
        unfit: Sequence[Unfit],
        begun: dict[int, dict[str, Any]],
        grads: dict[int, Tensor],
    ) -> tuple[dict[str, Any], ...]:
        """Begins states that are missing, and lays out like the parameter what lies otherwise:
        gradients for this step, states for good. The states to step with.

        Raises:
            _NotOursError: something else is wrong.
        """
        states = list(known.states)
        for row, column, why in unfit:
            p, key = known.params[row], self._keys[max(column - _STATE, 0)]
            if (column >= _STATE or column < _COUNT) and why == "is missing":
                if row not in begun:
                    group = self.param_groups[known.group_of[row]]
                    begun[row] = states[row] = self._begin(p, states[row], group)
                continue
            old = p.grad if column == _GRAD else states[row].get(key) if column >= _STATE else None
            if column == _GRAD and old is not None:
                old = old.resolve_conj().resolve_neg()
            new = _laid_out_like(p, old)
            if new is None:
                raise _NotOursError(self._why((row, column, why)))
            if column == _GRAD:
                grads[row] = new
            else:
                states[row][key] = new
        return tuple(states)

    def _keep(self, p: Tensor, state: dict[str, Any]) -> None:
        """Makes a state that was begun part of the optimizer's."""
        self.state[p] = state

    def _why(self, unfit: Unfit) -> str:
        row, column, why = unfit
        what = {_COUNT: "the count of steps of ", _PARAM: "", _GRAD: "the gradient of "}
        what |= {_COUNT - 1 - k: f"the {key} of " for k, key in enumerate(self._kept)}
        name = _names(self.param_groups)[row]
        return f"{what.get(column, 'a state of ')}{name} {why}"

    def _step_there(self, reason: str) -> None:
        """PyTorch's own code takes the step, which is said when it begins to."""
        if self.why_torch is None:
            warnings.warn(
                f"cutback.torch.optim.{type(self).__name__}: {reason}; PyTorch's own code steps "
                "this optimizer",
                RuntimeWarning,
                stacklevel=4,
            )
        self.why_torch = reason
        step: Any = self._torch.step
        while getattr(step, "hooked", False):  # the hooks run around our step already
            step = step.__wrapped__
        step(self)


class _Counting(_OnePass):
    """Optimizers whose states begin with zeros, with a count of steps beside them."""

    _numbers: ClassVar[tuple[str, ...]]  # options in the core's order

    def _row(self, group: dict[str, Any]) -> tuple[float, ...]:
        row: list[float] = []
        for name in self._numbers:
            value = group[name]
            row += map(float, value) if isinstance(value, tuple | list) else [float(value)]
        return tuple(row)

    def _first_numbers(self, group: dict[str, Any]) -> tuple[float, ...]:
        """What the numbers that are kept begin with."""
        return ()

    def _needed(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The states that a parameter of the group has, in PyTorch's order."""
        return self._keys

    def _begin(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        """As PyTorch does."""
        if state:
            raise _NotOursError(f"a state has {' and '.join(state)} alone")
        dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        numbers = {"step": 0.0, **dict(zip(self._kept, self._first_numbers(group), strict=True))}
        state = {key: torch.tensor(x, dtype=dtype, device="cpu") for key, x in numbers.items()}
        for key in self._needed(group):
            state[key] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


class Adam(_Counting, torch.optim.Adam):
    """``torch.optim.Adam`` in one pass. ``foreach`` and ``fused`` are taken and change nothing."""

    _torch = torch.optim.Adam
    _keys = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    _numbers = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")

    def _native_name(self) -> str:
        kinds = {bool(group["decoupled_weight_decay"]) for group in self.param_groups}
        if len(kinds) > 1:
            raise _NotOursError("groups differ in decoupled_weight_decay")
        return "adamw" if kinds.pop() else "adam"

    def _needed(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self._keys if group["amsgrad"] else self._keys[:2]


class AdamW(Adam, torch.optim.AdamW):
    """``torch.optim.AdamW`` in one pass. ``foreach`` and ``fused`` are taken and change nothing."""

    _torch = torch.optim.AdamW


class RAdam(_Counting, torch.optim.RAdam):
    """``torch.optim.RAdam`` in one pass."""

    _torch = torch.optim.RAdam
    _keys = ("exp_avg", "exp_avg_sq")
    _numbers = ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize")

    def _native_name(self) -> str:
        return "radam"


class NAdam(_Counting, torch.optim.NAdam):
    """``torch.optim.NAdam`` in one pass."""

    _torch = torch.optim.NAdam
    _keys = ("exp_avg", "exp_avg_sq")
    _kept = ("mu_product",)
    _numbers = ("lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay",
                "maximize")  # fmt: skip

    def _native_name(self) -> str:
        return "nadam"

    def _first_numbers(self, group: dict[str, Any]) -> tuple[float, ...]:
        return (1.0,)


class ASGD(_Counting, torch.optim.ASGD):
    """``torch.optim.ASGD`` in one pass."""

    _torch = torch.optim.ASGD
    _keys = ("ax",)
    _kept = ("eta", "mu")
    _numbers = ("lr", "lambd", "alpha", "t0", "weight_decay", "maximize")

    def _native_name(self) -> str:
        return "asgd"

    def _first_numbers(self, group: dict[str, Any]) -> tuple[float, ...]:
        return float(group["lr"]), 1.0


class Rprop(_Counting, torch.optim.Rprop):
    """``torch.optim.Rprop`` in one pass."""

    _torch = torch.optim.Rprop
    _keys = ("prev", "step_size")
    _numbers = ("lr", "etas", "step_sizes", "maximize")

    def _native_name(self) -> str:
        return "rprop"


class Adamax(_Counting, torch.optim.Adamax):
    """``torch.optim.Adamax`` in one pass."""

    _torch = torch.optim.Adamax
    _keys = ("exp_avg", "exp_inf")
    _numbers = ("lr", "betas", "eps", "weight_decay", "maximize")

    def _native_name(self) -> str:
        return "adamax"


class Adagrad(_Counting, torch.optim.Adagrad):
    """``torch.optim.Adagrad`` in one pass."""

    _torch = torch.optim.Adagrad
    _keys = ("sum",)

    def _native_name(self) -> str:
        return "adagrad"

    def _row(self, group: dict[str, Any]) -> tuple[float, ...]:
        """PyTorch puts what the sum begins with into it when it makes the optimizer."""
        lr, lr_decay, decay = (float(group[key]) for key in ("lr", "lr_decay", "weight_decay"))
        return lr, lr_decay, decay, 0.0, float(group["eps"]), float(group["maximize"])

    def _begin(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        raise _NotOursError("a state has no sum")


class Adadelta(_Counting, torch.optim.Adadelta):
    """``torch.optim.Adadelta`` in one pass."""

    _torch = torch.optim.Adadelta
    _keys = ("square_avg", "acc_delta")
    _numbers = ("lr", "rho", "eps", "weight_decay", "maximize")

    def _native_name(self) -> str:
        return "adadelta"


class RMSprop(_Counting, torch.optim.RMSprop):
    """``torch.optim.RMSprop`` in one pass."""

    _torch = torch.optim.RMSprop
    _numbers = ("lr", "alpha", "eps", "weight_decay", "momentum", "maximize")

    def _centered(self) -> bool:
        kinds = {bool(group["centered"]) for group in self.param_groups}
        if len(kinds) > 1:
            raise _NotOursError("groups differ in centered")
        return kinds.pop()

    @property
    def _keys(self) -> tuple[str, ...]:  # type: ignore[override]
        average = ("grad_avg",) if self._centered() else ()
        return "square_avg", *average, "momentum_buffer"

    def _native_name(self) -> str:
        return "rmsprop_centered" if self._centered() else "rmsprop"

    def _needed(self, group: dict[str, Any]) -> tuple[str, ...]:
        buffer = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return "square_avg", *buffer, *(("grad_avg",) if group["centered"] else ())


class SGD(_OnePass, torch.optim.SGD):
    """``torch.optim.SGD`` in one pass. ``foreach`` and ``fused`` are taken and change nothing."""

    _torch = torch.optim.SGD
    _keys = ("momentum_buffer",)

    def _native_name(self) -> str:
        return "sgd"

    def _row(self, group: dict[str, Any]) -> tuple[float, ...]:
        keys = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        return tuple([float(group[key]) for key in keys])

    def _begin(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        """A buffer begins with the gradient of its first step, which the count is there to say."""
        buffer = torch.empty_like(p, memory_format=torch.preserve_format)
        return {**state, "momentum_buffer": buffer, "step": torch.zeros(())}

    def _keep(self, p: Tensor, state: dict[str, Any]) -> None:
        self.state[p]["momentum_buffer"] = state["momentum_buffer"]


def foreach(formula: Callable[..., Any] | type[Recorded]) -> type[torch.optim.Optimizer]:
    """An optimizer of tensors from its formula, or from what ``cutback.optim.foreach`` made of it.

        @cutback.torch.optim.foreach
        def lion(p, g, m, *, lr=1e-4, beta1=0.9, beta2=0.99):
            return p - lr * torch.sign(beta1 * m + (1 - beta1) * g), beta2 * m + (1 - beta2) * g

        optimizer = lion(model.parameters(), lr=3e-4)

    Groups, states, checkpoints, hooks and schedulers are those of ``torch.optim.Optimizer``, and
    ``step`` takes what those here take. There is no code of PyTorch to fall back to: parameters are
    dense f32 on the CPU.

    Raises:
        RecordingError, TypeError: as ``cutback.optim.foreach``.
    """
    is_made = isinstance(formula, type) and issubclass(formula, Recorded)
    kind: Any = formula if is_made else arrays.foreach(formula)

    class Made(_Counting):
        _keys = kind.state_names

        def __init__(self, params: Any, **options: Any) -> None:
            first = kind(**options)  # which checks them
            super().__init__(params, {key: getattr(first, key) for key in kind._options})

        def _native_name(self) -> _native.Expression:
            fixed = [[(key, group[key]) for key in kind._fixed_options()]
                     for group in self.param_groups]  # fmt: skip
            for first, other in zip(fixed[0], zip(*fixed, strict=True), strict=False):
                if any(pair != first for pair in other):
                    raise ValueError(
                        f"{kind.__name__}: groups differ in {first[0]}; options that are no "
                        "numbers are the same for all"
                    )
            made: _native.Expression = kind.expression(tuple(fixed[0]))
            return made

        def _row(self, group: dict[str, Any]) -> tuple[float, ...]:
            numbers: tuple[float, ...] = kind.row(group)
            return numbers

        def _look(self) -> _Known:
            known = super()._look()
            if any(map(Tensor.is_complex, known.params)):
                raise _NotOursError("a parameter is complex")
            return known

        def _step_there(self, reason: str) -> None:
            raise RuntimeError(f"{kind.__name__}: {reason}, and no other code steps this optimizer")

    Made.__name__, Made.__qualname__ = kind.__name__, kind.__qualname__
    Made.__doc__, Made.__module__ = kind.__doc__, kind.__module__
    return Made
