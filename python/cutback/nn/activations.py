"""Activations with the signatures of ``torch.nn.functional``, composed of other operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..frontend import ops
from ..frontend.elementwise import _float
from ..frontend.ops import _array
from ..frontend.random import gumbel
from ..frontend.tracer import Array, ArrayLike, _normalize_axis, common
from ..source import located
from .across import over_inner_axis
from .arguments import not_built, number, older_names

__all__ = [
    "celu", "elu", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid",
    "hardswish", "hardtanh", "leaky_relu", "log_softmax", "logsigmoid", "mish", "prelu",
    "relu", "relu6", "rrelu", "selu", "sigmoid", "silu", "softmax", "softmin", "softplus",
    "softshrink", "softsign", "tanh", "tanhshrink", "threshold",
]  # fmt: skip


def tanh(input: ArrayLike) -> Array:
    """Returns the hyperbolic tangent."""
    return ops.tanh(input)


def leaky_relu(input: ArrayLike, negative_slope: float = 0.01, inplace: bool = False) -> Array:
    """Returns x where x is positive, else ``negative_slope * x``."""
    not_built("leaky_relu", inplace=(inplace, False))
    x = _float(input)
    return ops.where(x > 0, x, x * number("leaky_relu", negative_slope=negative_slope))


def prelu(input: ArrayLike, weight: ArrayLike) -> Array:
    """Returns x where x is positive, else ``weight * x``. The weight is one number, or one for each
    channel (axis 1)."""
    x = _float(input)
    _, w = common(x.graph, "prelu", (x, weight))
    if w.size > 1:
        if x.ndim < 2 or w.shape != x.shape[1:2]:
            raise ValueError(
                located(
                    f"prelu: a weight of shape {w.shape} does not fit an input of shape {x.shape}"
                )
            )
        w = w.reshape((1, -1) + (1,) * (x.ndim - 2))
    else:
        w = w.reshape(())
    return ops.where(x > 0, x, x * w)


def rrelu(
    input: ArrayLike,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Array:
    """Returns x where x is positive, else a slope times x. The slope is the mean of ``lower`` and
    ``upper``, or, with ``training``, a random number between them."""
    not_built("rrelu", inplace=(inplace, False))
    x = _float(input)
    if not training:
        return ops.where(x > 0, x, x * ((lower + upper) / 2))
    slope = ops.uniform(x.shape, x.dtype) * (upper - lower) + lower
    return ops.where(x > 0, x, x * slope)


def _exp_below(x: Array) -> Array:
    """Returns e**x - 1 where x is not positive, and 0 elsewhere, without overflow in the
    gradient."""
    from ..frontend.elementwise import expm1

    return expm1(ops.minimum(x, 0.0))


def elu(input: ArrayLike, alpha: float = 1.0, inplace: bool = False) -> Array:
    """Returns x where x is positive, else ``alpha * (e**x - 1)`` (Clevert et al. 2016)."""
    not_built("elu", inplace=(inplace, False))
    x = _float(input)
    return ops.where(x > 0, x, _exp_below(x) * number("elu", alpha=alpha))


def celu(input: ArrayLike, alpha: float = 1.0, inplace: bool = False) -> Array:
    """Returns x where x is positive, else ``alpha * (e**(x / alpha) - 1)`` (Barron 2017)."""
    not_built("celu", inplace=(inplace, False))
    x, a = _float(input), number("celu", alpha=alpha)
    return ops.where(x > 0, x, _exp_below(x / a) * a)


def selu(input: ArrayLike, inplace: bool = False) -> Array:
    """Computes the scaled ELU with the constants of Klambauer et al. 2017."""
    not_built("selu", inplace=(inplace, False))
    return elu(input, 1.6732632423543772) * 1.0507009873554805


def softplus(input: ArrayLike, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """Returns ``log(1 + e**(beta x)) / beta``, without overflow. ``threshold``, above which PyTorch
    returns x, is not needed, because e**-threshold is below the precision."""
    x = _float(input)
    b = number("softplus", beta=beta)
    y = x if b == 1 else x * b
    result = ops.maximum(y, 0.0) + ops.log1p(ops.exp(-ops.absolute(y)))
    return result if b == 1 else result / b


def logsigmoid(input: ArrayLike) -> Array:
    """Returns log(sigmoid(x)), without overflow."""
    return -softplus(-_float(input))


def mish(input: ArrayLike, inplace: bool = False) -> Array:
    """Returns ``x * tanh(softplus(x))`` (Misra 2019)."""
    not_built("mish", inplace=(inplace, False))
    x = _float(input)
    return x * ops.tanh(softplus(x))


def hardtanh(
    input: ArrayLike, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Array:
    """Limits x to [min_val, max_val]."""
    not_built("hardtanh", inplace=(inplace, False))
    return _float(input).clip(min_val, max_val)


def relu6(input: ArrayLike, inplace: bool = False) -> Array:
    """Limits x to [0, 6]."""
    not_built("relu6", inplace=(inplace, False))
    return hardtanh(input, 0.0, 6.0)


def hardsigmoid(input: ArrayLike, inplace: bool = False) -> Array:
    """Returns ``x / 6 + 1/2`` limited to [0, 1]."""
    not_built("hardsigmoid", inplace=(inplace, False))
    return (_float(input) + 3.0).clip(0.0, 6.0) / 6.0


def hardswish(input: ArrayLike, inplace: bool = False) -> Array:
    """Returns ``x * hardsigmoid(x)`` (Howard et al. 2019)."""
    not_built("hardswish", inplace=(inplace, False))
    x = _float(input)
    return x * hardsigmoid(x)


def softshrink(input: ArrayLike, lambd: float = 0.5) -> Array:
    """Moves x towards 0 by ``lambd``; values closer to 0 than that become 0."""
    x, reach = _float(input), number("softshrink", lambd=lambd)
    return ops.where(x > reach, x - reach, ops.where(x < -reach, x + reach, x * 0.0))


def hardshrink(input: ArrayLike, lambd: float = 0.5) -> Array:
    """Returns 0 where \\|x\\| is at most ``lambd``, and x elsewhere."""
    x = _float(input)
    return ops.where(ops.absolute(x) <= number("hardshrink", lambd=lambd), 0.0, x)


def softsign(input: ArrayLike) -> Array:
    """Returns ``x / (1 + |x|)``."""
    x = _float(input)
    return x / (ops.absolute(x) + 1.0)


def tanhshrink(input: ArrayLike) -> Array:
    """Returns ``x - tanh(x)``."""
    x = _float(input)
    return x - ops.tanh(x)


def threshold(input: ArrayLike, threshold: float, value: float, inplace: bool = False) -> Array:
    """Returns x where it is above ``threshold``, else ``value``."""
    not_built("threshold", inplace=(inplace, False))
    x = _array(input)
    return ops.where(x > threshold, x, value)


def glu(input: ArrayLike, dim: int = -1) -> Array:
    """Returns the first half of ``dim`` times the sigmoid of the second (Dauphin et al. 2017)."""
    x = _float(input)
    a, b = ops.split(x, 2, dim)
    return a * ops.sigmoid(b)


def softmin(
    input: ArrayLike, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Array:
    """Returns the softmax of -x along ``dim`` (None: the last)."""
    return softmax(-_float(input), dim, dtype=dtype)


def gumbel_softmax(
    logits: ArrayLike, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Array:
    """Returns the softmax along ``dim`` of ``(logits + Gumbel noise) / tau`` (Jang et al. 2017).
    With ``hard``, the value is 1 at the largest element and 0 elsewhere, and the gradient is that
    of the softmax."""
    x = _float(logits)
    dtype = "f64" if x.dtype == "f64" else "f32"
    noisy = x + gumbel(x.shape, dtype).astype(x.dtype)
    soft = softmax(noisy / number("gumbel_softmax", tau=tau), dim)
    if not hard:
        return soft
    axis = _normalize_axis(dim, x.ndim, "gumbel_softmax")
    places = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - 1 - axis))
    largest = (soft.argmax(axis, keepdims=True) == places).astype(x.dtype)
    return largest - soft._apply("stop_gradient") + soft


@older_names(x="input")
def relu(input: ArrayLike, inplace: bool = False) -> Array:
    """Returns max(input, 0); NaN stays NaN."""
    not_built("relu", inplace=(inplace, False))
    return _array(input)._apply("relu")


@older_names(x="input")
def gelu(input: ArrayLike, approximate: str = "none") -> Array:
    """Returns x * Phi(x), computed with erf or, if ``approximate="tanh"``, with tanh (Hendrycks,
    Gimpel 2016).

    Raises:
        ValueError: if ``approximate`` is neither ``"none"`` nor ``"tanh"``.
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ValueError(located(f"gelu: approximate={approximate!r} is neither 'none' nor 'tanh'"))
    return _array(input)._floating("gelu" if approximate == "none" else "gelu_tanh")


@older_names(x="input")
def silu(input: ArrayLike, inplace: bool = False) -> Array:
    """Returns x * sigmoid(x)."""
    not_built("silu", inplace=(inplace, False))
    return _array(input)._floating("silu")


@older_names(x="input")
def sigmoid(input: ArrayLike) -> Array:
    """Returns 1 / (1 + e**-x)."""
    return _array(input)._floating("sigmoid")


def _over_axis(name: str, x: ArrayLike, axis: int | None, dtype: Any) -> Array:
    x = _array(x)
    x = x.astype(dtypes.floating(x.dtype) if dtype is None else dtype)
    number = _normalize_axis(-1 if axis is None else axis, x.ndim, name)
    if number == x.ndim - 1:
        return x._apply(name)
    return over_inner_axis(name, x, number)


@older_names(x="input", axis="dim")
def softmax(
    input: ArrayLike, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Array:
    """Returns e**x divided by its sum along ``dim`` (None: the last), computed relative to the
    largest element. If ``dtype`` is given, x is first converted to it."""
    return _over_axis("softmax", input, dim, dtype)


@older_names(x="input", axis="dim")
def log_softmax(
    input: ArrayLike, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Array:
    """Returns the logarithm of :func:`softmax`."""
    return _over_axis("log_softmax", input, dim, dtype)
