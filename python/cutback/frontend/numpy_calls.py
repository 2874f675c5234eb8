"""Calls of NumPy functions such as ``np.mean(x)`` on traced arrays. They become the operation of
the same name if it has the same arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from .. import names
from ..source import located

_UFUNCS = {
    "bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor",
    "conj": "positive", "conjugate": "positive", "fabs": "absolute", "invert": "logical_not",
    "rint": "round", "true_divide": "divide", "float_power": "power",
}  # fmt: skip
_REDUCE = {
    "add": "sum", "logaddexp": "logsumexp", "logical_and": "all", "logical_or": "any",
    "maximum": "max", "minimum": "min", "multiply": "prod",
}  # fmt: skip
_ALONG_AN_AXIS = {
    "reduce": _REDUCE, "accumulate": {"add": "cumsum", "multiply": "cumprod"},
}  # fmt: skip
_RENAMED = {
    "clip": {"a_min": "min", "a_max": "max"},
    "std": {"correction": "ddof"},
    "var": {"correction": "ddof"},
}
# These options change how NumPy computes a result, but not the result.
_SILENT = {"copy", "device", "kind", "optimize", "stable", "subok"}


def _refused(name: str, option: str) -> NoReturn:
    hints = {
        "out": "; traced arrays cannot be written to, use the result",
        "where": "; use cutback.where on the result",
        "dtype": "; use .astype(dtype) of the argument or the result",
        "initial": "; combine the result with it",
        "order": "; order='F' is x.T.reshape(shape[::-1]).T",
        "prepend": "; use cutback.concatenate on the argument",
        "append": "; use cutback.concatenate on the argument",
    }
    raise TypeError(
        located(f"np.{name}: {option}= is not supported for traced arrays{hints.get(option, '')}")
    )


def _missing(shown: str, name: str) -> NoReturn:
    from ..foreign import advice  # here, because only errors need it

    reason = advice(name)
    more = f": {reason}" if reason else f"; cutback has no {name}"
    raise TypeError(located(f"np.{shown} cannot work on a traced array{more}"))


def ufunc_call(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs ``ufunc(*inputs)``, ``ufunc.reduce(x, axis, keepdims=...)``, ``ufunc.accumulate(x,
    axis)`` or ``ufunc.outer(x, y)`` as an operation and returns its result.

    Raises:
        TypeError: if there is no such operation, or an option such as ``out=`` is given.
    """
    name = ufunc.__name__
    ours = _ALONG_AN_AXIS.get(method, {}).get(name)
    if ours is not None:
        options = {key: value for key, value in kwargs.items() if value is not None}
        options.setdefault("axis", kwargs.get("axis", 0))
        for option in options.keys() - {"axis", "keepdims"}:
            _refused(f"{name}.{method}", option)
        return names.operation(ours)(*inputs, **options)
    if method == "outer":
        inputs = _for_all_pairs(*inputs)
    elif method != "__call__":
        _missing(f"{name}.{method}", f"{name}.{method}")
    for option in kwargs:
        _refused(name, option)
    ours = _UFUNCS.get(name, name)
    if ours not in names.HOMES:
        _missing(name, name)
    return names.operation(ours)(*inputs)


def _for_all_pairs(x: Any, y: Any) -> tuple[Any, Any]:
    """Returns ``x`` with an axis of size 1 for each axis of ``y``, and ``y``."""
    asarray = names.operation("asarray")
    x, y = asarray(x), asarray(y)
    return x.reshape(x.shape + (1,) * y.ndim), y


def _operation(func: Any) -> Callable[..., Any]:
    """Returns the operation for a NumPy function."""
    name = func.__name__
    if func.__module__ == "numpy.linalg" or name == "trace":
        found = getattr(names.operation("linalg"), name, None)
        if found is None:
            _missing(f"linalg.{name}", f"linalg.{name}")
        return found  # type: ignore[no-any-return]
    if name not in names.HOMES or func.__module__ != "numpy":
        _missing(f"{func.__module__}.{name}".removeprefix("numpy."), name)
    return names.operation(name)  # type: ignore[no-any-return]


def function_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs ``func(*args, **kwargs)`` as an operation and returns its result.

    Raises:
        TypeError: if there is no such operation, or it does not have one of the options.
    """
    ours = _operation(func)
    name = func.__name__
    positional, named = list(args), dict(kwargs)
    try:
        signature = inspect.signature(func)
    except ValueError:  # functions in C have no signature; their parameters are named like ours
        pass
    else:
        positional, named = _by_name(signature, args, kwargs, _RENAMED.get(name, {}))
    taken = inspect.signature(ours).parameters
    for option in [key for key in named if key not in taken]:
        if option not in _SILENT and named[option] is not None:
            _refused(name, option)
        del named[option]
    return ours(*positional, **named)


def _by_name(
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    renamed: dict[str, str],
) -> tuple[list[Any], dict[str, Any]]:
    """Splits arguments: required ones by position, and those that differ from their default by
    name."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for key, value in signature.bind(*args, **kwargs).arguments.items():
        parameter = signature.parameters[key]
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= value
        elif parameter.default is parameter.empty:
            positional.append(value)
        elif value is not parameter.default:
            named[renamed.get(key, key)] = value
    return positional, named
