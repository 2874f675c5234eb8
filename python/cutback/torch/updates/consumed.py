"""Replaces ``.grad`` between an update inside the backward and ``optimizer.step()``.

The gradient is gone by then. None would be read as "no gradient": ``clip_grad_norm_`` would return
0, and ``GradScaler`` would find nothing to unscale. So ``.grad`` is a tensor without memory that
raises an error when something computes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.fx.node import Argument

_aten = torch.ops.aten
_HARMLESS = (_aten.zero_.default, _aten._foreach_zero_.default, _aten.detach.default)
"""The ops that ``zero_grad`` calls."""


class ConsumedGradientError(RuntimeError):
    """Raised if something reads a gradient that an update inside the backward has consumed."""


class ConsumedGradient(torch.Tensor):
    """A gradient that an update inside the backward has consumed.

    >>> from cutback.torch.updates.consumed import ConsumedGradient
    >>> ConsumedGradient.of(torch.ones(2, 3))
    ConsumedGradient([2, 3])
    """

    @staticmethod
    def of(parameter: torch.Tensor) -> ConsumedGradient:
        """Makes a consumed gradient of a parameter's shape."""
        made = torch.Tensor._make_wrapper_subclass(
            ConsumedGradient,
            parameter.size(),
            strides=parameter.stride(),
            dtype=parameter.dtype,
            device=parameter.device,
        )
        assert isinstance(made, ConsumedGradient)
        return made

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"ConsumedGradient({list(self.shape)})"

    @classmethod
    def __torch_dispatch__(
        cls,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: dict[str, Argument] | None = None,
    ) -> Argument:
        if func in _HARMLESS:
            return args[0] if func is not _aten._foreach_zero_.default else None
        raise ConsumedGradientError(
            f"{func.name()} reads a gradient that the optimizer has already consumed inside the "
            "backward (updates='inside'): to clip or scale gradients, or to read them, compile "
            "with max_norm=, or with updates='after'"
        )
