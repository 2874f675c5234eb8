"""Makes the step of a batch from fake tensors, which take no memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from ...planner.estimating import check_make_step

if TYPE_CHECKING:
    from torch._ops import OpOverload

_aten = torch.ops.aten
_SERIES = (_aten.linspace.default, *(getattr(_aten.arange, o) for o in _aten.arange.overloads()))
_LONGEST = 4096  # elements of a series whose values are known


class _Values(TorchDispatchMode):
    """Answers what models ask about the values of fake tensors while they are made.

    The values of short series, and of what is computed from them alone, are known: models take the
    rates of their layers from them. ``any`` is false otherwise. That ends loops that draw weights
    again until all are within bounds, as in ``torch.nn.init.trunc_normal_``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values = WeakIdKeyDictionary()  # fake tensor -> real tensor
        self._any = WeakIdKeyDictionary()  # its keys are results of any

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        are_known = bool(given) and all(t in self._values for t in given)
        if func is _aten._local_scalar_dense.default:
            if are_known:
                return self._computed(func, args, kwargs)
            if args[0] in self._any:
                return False
        result = func(*args, **kwargs)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if func in _SERIES:
            are_known = result.device.type == "cpu" and result.numel() <= _LONGEST
        if are_known and not is_random:
            values = tree_leaves(self._computed(func, args, kwargs))
            pairs = zip(tree_leaves(result), values, strict=True)
            self._values.update((t, v) for t, v in pairs if isinstance(t, torch.Tensor))
        elif func._schema.is_mutable:
            for tensor in given:
                self._values.pop(tensor, None)
        if func is _aten.any.default:
            self._any[result] = True
        return result

    def _computed(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Runs an operation on the known values of its arguments."""
        of = tree_map_only(torch.Tensor, self._values.__getitem__, (args, kwargs))
        with unset_fake_temporarily():
            return func(*of[0], **of[1])


class MadeStep(NamedTuple):
    """What ``make_step`` returned for a batch."""

    step: Any
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    optimizer: Any
    """None without one."""


def made_step(make_step: Callable[[int], Any], batch: int) -> MadeStep:
    """Returns what ``make_step`` returns for a batch under fake tensors.

    Raises:
        TypeError: if it returned something else, or is not a function of the batch size.
        ValueError: if it needs the value of a fake tensor.
    """
    check_make_step(make_step)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _Values():
            made = make_step(batch)
    except DataDependentOutputException as error:
        raise ValueError(
            f"make_step({batch}) reads the value of a tensor ({error.func}), but the tensors made "
            "in it are fake and have no values; make what reads it outside of make_step"
        ) from error
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise TypeError(
            "make_step(batch) must return a module or function, a tuple or dict of its inputs, and "
            f"for measure='total' the optimizer; it returned {type(made).__name__}"
        )
    step, given, *rest = made
    optimizer = next(iter(rest), None)
    if isinstance(given, Mapping):
        return MadeStep(step, (), dict(given), optimizer)
    inputs = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return MadeStep(step, inputs, {}, optimizer)
