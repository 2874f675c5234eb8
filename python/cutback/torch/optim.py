"""Drop-ins for ``torch.optim`` whose step is one pass over one table of tensors.

>>> optimizer = cutback.torch.optim.AdamW(model.parameters(), lr=3e-4)

Each is a subclass of PyTorch's optimizer of the same name and differs only in ``step``: parameter
groups, ``state_dict`` and its loading, hooks, schedulers and ``zero_grad`` are PyTorch's own, and
either can continue from a checkpoint of the other. In addition to PyTorch's arguments
(``params``, ``args``, ``kwargs``) each takes ``half`` (how f16 and bf16 parameters are stepped:
``"master"``, ``"remainder"``, ``"stochastic"``) and ``seed`` (for its rounding noise).
``docs/optim.md`` says which parameters are stepped this way (single and double precision, real and
complex, on the CPU), and which PyTorch's own code steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor

from .. import _native
from .. import optim as arrays
from ..optim.factored import adafactor_row
from ..optim.matrices import match_rms
from ..optim.recorded import Recorded, copied, made_of, reduced
from .alone import Alone, OfArrays
from .one_pass import Counting, Known, NotOursError, OnePass
from .types import Group, ParamState

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["ADOPT", "ASGD", "SGD", "SOAP", "AdEMAMix", "Adadelta", "Adafactor", "Adagrad", "Adam",
           "AdamW", "AdamW8bit", "Adamax", "Lion", "Muon", "NAdam", "NorMuon", "RAdam",
           "RMSprop", "Rprop", "ScheduleFreeAdamW", "foreach"]  # fmt: skip


class Adam(Counting, torch.optim.Adam):
    """``torch.optim.Adam`` in one pass. ``foreach`` and ``fused`` are accepted and change nothing.

    >>> optimizer = cutback.torch.optim.Adam(model.parameters(), lr=1e-3)
    >>> optimizer.step()
    """

    _torch = torch.optim.Adam
    _keys = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    _numbers = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")

    def _native_name(self) -> str:
        kinds = {bool(group["decoupled_weight_decay"]) for group in self.param_groups}
        if len(kinds) > 1:
            raise NotOursError("groups differ in decoupled_weight_decay")
        return "adamw" if kinds.pop() else "adam"

    def _needed(self, group: Group, p: Tensor) -> tuple[str, ...]:
        return self._keys if group["amsgrad"] else self._keys[:2]


class AdamW(Adam, torch.optim.AdamW):
    """``torch.optim.AdamW`` in one pass. ``foreach`` and ``fused`` are accepted and change nothing.

    >>> optimizer = cutback.torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    >>> optimizer.step()
    """

    _torch = torch.optim.AdamW


class RAdam(Counting, torch.optim.RAdam):
    """``torch.optim.RAdam`` in one pass.

    >>> optimizer = cutback.torch.optim.RAdam(model.parameters(), lr=1e-3)
    >>> optimizer.step()
    """

    _torch = torch.optim.RAdam
    _keys = ("exp_avg", "exp_avg_sq")
    _numbers = ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize")

    def _native_name(self) -> str:
        return "radam"


class NAdam(Counting, torch.optim.NAdam):
    """``torch.optim.NAdam`` in one pass.

    >>> optimizer = cutback.torch.optim.NAdam(model.parameters(), lr=2e-3)
    >>> optimizer.step()
    """

    _torch = torch.optim.NAdam
    _keys = ("exp_avg", "exp_avg_sq")
    _kept = ("mu_product",)
    _numbers = ("lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay",
                "maximize")  # fmt: skip

    def _native_name(self) -> str:
        return "nadam"

    def _first_numbers(self, group: Group) -> tuple[float, ...]:
        return (1.0,)


class ASGD(Counting, torch.optim.ASGD):
    """``torch.optim.ASGD`` in one pass.

    >>> optimizer = cutback.torch.optim.ASGD(model.parameters(), lr=0.01)
    >>> optimizer.step()
    """

    _torch = torch.optim.ASGD
    _keys = ("ax",)
    _kept = ("eta", "mu")
    _numbers = ("lr", "lambd", "alpha", "t0", "weight_decay", "maximize")

    def _native_name(self) -> str:
        return "asgd"

    def _first_numbers(self, group: Group) -> tuple[float, ...]:
        return float(group["lr"]), 1.0


class Rprop(Counting, torch.optim.Rprop):
    """``torch.optim.Rprop`` in one pass.

    >>> optimizer = cutback.torch.optim.Rprop(model.parameters(), lr=0.01)
    >>> optimizer.step()
    """

    _torch = torch.optim.Rprop
    _keys = ("prev", "step_size")
    _numbers = ("lr", "etas", "step_sizes", "maximize")

    def _native_name(self) -> str:
        return "rprop"


class Adamax(Counting, torch.optim.Adamax):
    """``torch.optim.Adamax`` in one pass.

    >>> optimizer = cutback.torch.optim.Adamax(model.parameters(), lr=2e-3)
    >>> optimizer.step()
    """

    _torch = torch.optim.Adamax
    _keys = ("exp_avg", "exp_inf")
    _numbers = ("lr", "betas", "eps", "weight_decay", "maximize")

    def _native_name(self) -> str:
        return "adamax"


class Adagrad(Counting, torch.optim.Adagrad):
    """``torch.optim.Adagrad`` in one pass.

    >>> optimizer = cutback.torch.optim.Adagrad(model.parameters(), lr=0.01)
    >>> optimizer.step()
    """

    _torch = torch.optim.Adagrad
    _keys = ("sum",)

    def _native_name(self) -> str:
        return "adagrad"

    def _row(self, group: Group) -> tuple[float, ...]:
        """PyTorch initializes the sum when it makes the optimizer."""
        lr, lr_decay, decay = (float(group[key]) for key in ("lr", "lr_decay", "weight_decay"))
        return lr, lr_decay, decay, 0.0, float(group["eps"]), float(group["maximize"])

    def _begin(self, p: Tensor, state: ParamState, group: Group) -> ParamState:
        if "sum" not in state or "step" not in state:
            raise NotOursError("a state has no sum")
        return {**state, **self._rest(p)}


class Adadelta(Counting, torch.optim.Adadelta):
    """``torch.optim.Adadelta`` in one pass.

    >>> optimizer = cutback.torch.optim.Adadelta(model.parameters(), lr=1.0)
    >>> optimizer.step()
    """

    _torch = torch.optim.Adadelta
    _keys = ("square_avg", "acc_delta")
    _numbers = ("lr", "rho", "eps", "weight_decay", "maximize")

    def _native_name(self) -> str:
        return "adadelta"


class RMSprop(Counting, torch.optim.RMSprop):
    """``torch.optim.RMSprop`` in one pass.

    >>> optimizer = cutback.torch.optim.RMSprop(model.parameters(), lr=0.01)
    >>> optimizer.step()
    """

    _torch = torch.optim.RMSprop
    _numbers = ("lr", "alpha", "eps", "weight_decay", "momentum", "maximize")

    @property
    def _keys(self) -> tuple[str, ...]:  # type: ignore[override]
        some = any(group.get("centered") for group in self.param_groups)
        return "square_avg", *(("grad_avg",) if some else ()), "momentum_buffer"

    def _native_name(self) -> str:
        kinds = {bool(group["centered"]) for group in self.param_groups}
        if len(kinds) > 1:
            raise NotOursError("groups differ in centered")
        return "rmsprop_centered" if kinds.pop() else "rmsprop"

    def _needed(self, group: Group, p: Tensor) -> tuple[str, ...]:
        buffer = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return "square_avg", *buffer, *(("grad_avg",) if group["centered"] else ())


class SGD(OnePass, torch.optim.SGD):
    """``torch.optim.SGD`` in one pass. ``foreach`` and ``fused`` are accepted and change nothing.

    >>> optimizer = cutback.torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> optimizer.step()
    """

    _torch = torch.optim.SGD
    _keys = ("momentum_buffer",)

    def _native_name(self) -> str:
        return "sgd"

    def _row(self, group: Group) -> tuple[float, ...]:
        options: Mapping[str, Any] = group
        keys = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        return tuple([float(options[key]) for key in keys])

    def _begin(self, p: Tensor, state: ParamState, group: Group) -> ParamState:
        """Adds a buffer, which the first step sets to the gradient. The step count shows whether
        that step has been taken."""
        begun = dict(state)
        if group["momentum"] != 0 and state.get("momentum_buffer") is None:
            buffer = self._empty(p, "momentum_buffer")
            begun |= {"momentum_buffer": buffer, "step": torch.zeros(())}
        if self.half == "stochastic":  # the noise differs for each step
            begun.setdefault("step", torch.ones(()))
        return self._rest(p) | begun

    def _lasting(self, state: ParamState) -> ParamState:
        keys = [*self._all_keys(), *(["step"] if self.half == "stochastic" else [])]
        return {key: state[key] for key in keys if key in state}


class Muon(OnePass, torch.optim.Muon):
    """``torch.optim.Muon`` that multiplies all matrices of one shape together, in the parameters'
    type, while PyTorch uses bf16.

    >>> optimizer = cutback.torch.optim.Muon([weight], lr=0.02)
    >>> optimizer.step()
    """

    _torch = torch.optim.Muon
    _keys = ("momentum_buffer",)

    def _native_name(self) -> str:
        return "muon"

    def _row(self, group: Group) -> tuple[float, ...]:
        before = [float(group[key]) for key in ("lr", "weight_decay", "momentum", "nesterov")]
        a, b, c = map(float, group["ns_coefficients"])
        after = match_rms("Muon", group["adjust_lr_fn"])
        return *before, a, b, c, float(group["eps"]), float(group["ns_steps"]), after

    def _begin(self, p: Tensor, state: ParamState, group: Group) -> ParamState:
        return {**state, "momentum_buffer": self._zeros(p, "momentum_buffer")}


class Adafactor(Counting, torch.optim.Adafactor):
    """``torch.optim.Adafactor`` in three passes over all tensors at once. ``eps[0]`` None means the
    machine epsilon of each parameter's type, while PyTorch uses the first parameter's for its
    group.

    >>> optimizer = cutback.torch.optim.Adafactor(model.parameters(), lr=1e-2)
    >>> optimizer.step()
    """

    _torch = torch.optim.Adafactor
    _keys = ("row_var", "col_var", "variance")

    def _native_name(self) -> str:
        return "adafactor"

    def _row(self, group: Group) -> tuple[float, ...]:
        flags = {key: bool(group[key]) for key in ("maximize",)}
        return adafactor_row("Adafactor", {**group, "lr": float(group["lr"]), **flags})

    def _needed(self, group: Group, p: Tensor) -> tuple[str, ...]:
        return self._keys[:2] if p.dim() > 1 else self._keys[2:]

    def _shape_of(self, p: Tensor, key: str) -> tuple[int, ...]:
        shape = list(p.shape)
        if key in ("row_var", "col_var") and shape:
            shape[-1 if key == "row_var" else -2] = 1
        return tuple(shape)


class AdamW8bit(OfArrays):
    """:class:`cutback.optim.AdamW8bit` for tensors. PyTorch has no such optimizer. The states are
    ``m`` and ``v``, bytes, and ``m_scale`` and ``v_scale``. Groups have ``codes``, the version of
    the bytes; states of version 1, whose groups lack it, are converted when they are loaded.

    >>> optimizer = cutback.torch.optim.AdamW8bit(model.parameters(), lr=1e-3)
    >>> optimizer.step()
    """

    _kind = arrays.AdamW8bit


class SOAP(OfArrays):
    """:class:`cutback.optim.SOAP` for tensors, whose groups may differ in ``max_precond_dim``.
    PyTorch has no such optimizer.

    >>> optimizer = cutback.torch.optim.SOAP(model.parameters(), lr=3e-3)
    >>> optimizer.step()
    """

    _kind = arrays.SOAP


class Lion(OfArrays):
    """:class:`cutback.optim.Lion` for tensors. PyTorch has no such optimizer.

    >>> optimizer = cutback.torch.optim.Lion(model.parameters(), lr=1e-4)
    >>> optimizer.step()
    """

    _kind = arrays.Lion


class ADOPT(OfArrays):
    """:class:`cutback.optim.ADOPT` for tensors. PyTorch has no such optimizer.

    >>> optimizer = cutback.torch.optim.ADOPT(model.parameters(), lr=1e-3)
    >>> optimizer.step()
    """

    _kind = arrays.ADOPT


class AdEMAMix(OfArrays):
    """:class:`cutback.optim.AdEMAMix` for tensors. PyTorch has no such optimizer.

    >>> optimizer = cutback.torch.optim.AdEMAMix(model.parameters(), lr=1e-3)
    >>> optimizer.step()
    """

    _kind = arrays.AdEMAMix


class ScheduleFreeAdamW(OfArrays):
    """:class:`cutback.optim.ScheduleFreeAdamW` for tensors. PyTorch has no such optimizer.

    :meth:`eval` changes the parameters to the averages, for validation or saving, and :meth:`train`
    changes them back; a step needs them as :meth:`train` leaves them. Each group has
    ``train_mode``, which is part of the state.

    >>> optimizer = cutback.torch.optim.ScheduleFreeAdamW(model.parameters(), lr=2.5e-3)
    >>> optimizer.step()
    >>> optimizer.eval()
    """

    _kind = arrays.ScheduleFreeAdamW
    _kept = ("weight_sum", "lr_max")

    def _first_numbers(self, group: Group) -> tuple[float, ...]:
        return 0.0, 0.0

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group like PyTorch does."""
        super().add_param_group(param_group)
        self.param_groups[-1].setdefault("train_mode", True)

    def eval(self) -> None:
        """Changes the parameters from y to the average x, in place."""
        self._move(False, lambda beta1: 1 - 1 / beta1)

    def train(self) -> None:
        """Changes the parameters from the average x back to y, in place."""
        self._move(True, lambda beta1: 1 - beta1)

    @torch.no_grad()
    def _move(self, trains: bool, share: Callable[[float], float]) -> None:
        for group in self.param_groups:
            if group["train_mode"] == trains:
                continue
            for p in group["params"]:
                z = self.state.get(p, {}).get("z")
                if z is not None:
                    p.add_((z - p) * share(group["betas"][0]))
            group["train_mode"] = trains

    def step(self, *args: Any, **options: Any) -> Any:
        """Takes a step like the other optimizers here. Returns the result of the closure, if any.

        Raises:
            RuntimeError: :meth:`eval` has made the parameters averages; call :meth:`train`.
        """
        if not all(group["train_mode"] for group in self.param_groups):
            raise RuntimeError("ScheduleFreeAdamW: call optimizer.train() before optimizer.step()")
        return super().step(*args, **options)


class NorMuon(OfArrays):
    """:class:`cutback.optim.NorMuon` for tensors. PyTorch has no such optimizer.

    >>> optimizer = cutback.torch.optim.NorMuon([weight], lr=0.02)
    >>> optimizer.step()
    """

    _kind = arrays.NorMuon


def foreach(formula: Callable[..., Any] | type[Recorded]) -> type[torch.optim.Optimizer]:
    """Makes an optimizer class for tensors from its formula, or from an optimizer made by
    ``cutback.optim.foreach``.

        @cutback.torch.optim.foreach
        def lion(p, g, m, *, lr=1e-4, beta1=0.9, beta2=0.99):
            return p - lr * torch.sign(beta1 * m + (1 - beta1) * g), beta2 * m + (1 - beta2) * g

        optimizer = lion(model.parameters(), lr=3e-4)

    Groups, states, checkpoints, hooks and schedulers are those of ``torch.optim.Optimizer``, and
    ``step`` has the arguments of the others here. There is no PyTorch code to fall back to, so
    parameters must be dense f32 on the CPU.

    Raises:
        RecordingError, TypeError: as for ``cutback.optim.foreach``.

    >>> def descent(p, g, *, lr=0.1):
    ...     return p - lr * g
    >>> optimizer = cutback.torch.optim.foreach(descent)(model.parameters(), lr=0.01)
    >>> optimizer.step()
    """
    is_made = isinstance(formula, type) and issubclass(formula, Recorded)
    kind: Any = formula if is_made else arrays.foreach(formula)
    taken = {"params", "param_names"} & {*kind._options} or {"step"} & {*kind.state_names}
    if taken:
        raise TypeError(
            f"{kind.__name__}: PyTorch uses the name {taken.pop()!r} for something else in "
            "groups or in states of parameters; rename it in the formula"
        )

    class Made(Alone):
        _keys = kind.state_names

        def __init__(self, /, params: ParamsT, **options: Any) -> None:
            first = kind(**options)  # also checks the options
            super().__init__(params, first._given())

        def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
            return reduced(self, int(protocol), foreach, (kind, kind.definition))

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return copied(self, memo)

        def _native_name(self) -> _native.Expression:
            fixed = [[(key, group[key]) for key in kind._fixed_options()]
                     for group in self.param_groups]  # fmt: skip
            for first, other in zip(fixed[0], zip(*fixed, strict=True), strict=False):
                if any(pair != first for pair in other):
                    raise ValueError(
                        f"{kind.__name__}: groups differ in {first[0]}; options that are not "
                        "numbers must be the same in all"
                    )
            made: _native.Expression = kind.expression(tuple(fixed[0]))
            return made

        def _row(self, group: Group) -> tuple[float, ...]:
            numbers: tuple[float, ...] = kind.row(group)
            return numbers

        def _look(self) -> Known:
            known = super()._look()
            if any(map(Tensor.is_complex, known.params)):
                raise NotOursError("a parameter is complex")
            return known

    Made.__name__, Made.__qualname__ = kind.__name__, kind.__qualname__
    Made.__doc__, Made.__module__ = kind.__doc__, kind.__module__
    made_of(foreach, formula, Made)
    return Made
