"""What is said for words of other libraries: arguments, optimizers and modules."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NoReturn

from ..budgets import short
from ..names import HOMES
from ..source import place_at_origin

_ARGUMENTS = {
    "dim": "axis=", "dims": "axis=", "keepdim": "keepdims=", "axes": "axis=",
    "requires_grad": "argnums= of cutback.compile or cutback.grad, which names the arguments to "
    "differentiate by", "device": "device= of cutback.compile, for the whole step",
    "descending": "cutback.flip of the result", "input": "the array as the first argument",
    "other": "the array as the second argument", "out": "the result: nothing is written in place",
    "where": "cutback.where on the argument or the result", "dtype": ".astype(dtype) of the result",
}  # fmt: skip
_UNKNOWN = re.compile(r"(Array\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def explain(error: TypeError) -> None:
    """Adds our word to the error for an argument that an operation does not have, and the line."""
    found = _UNKNOWN.match(str(error))
    if found is None:
        return
    ours = found[1] or found[2] in HOMES
    if ours and found[3] in _ARGUMENTS:
        text = (
            f"{found[1] or 'cutback.'}{found[2]} has no {found[3]}=; write {_ARGUMENTS[found[3]]}"
        )
        error.args = (text,)
        place_at_origin(error)


def refuse_module(function: Any) -> None:
    """Raises TypeError for a module of PyTorch."""
    if hasattr(function, "named_parameters") and hasattr(function, "forward"):
        raise TypeError(
            f"{type(function).__name__} is a torch.nn.Module, and cutback.compile takes a function "
            "of arrays: write cutback.torch.compile(module, budget=...)"
        )


def refuse_optimizer(optimizer: Any) -> NoReturn:
    """Raises TypeError for an argument that is not an optimizer of this package. The message names
    the one that was probably meant."""
    ours = {name.lower(): name for name in import_module("cutback.optim").__all__}
    module = type(optimizer).__module__.partition(".")[0]
    if isinstance(optimizer, str):
        given, name = repr(optimizer), optimizer
    else:
        name = type(optimizer).__name__
        given = f"a {module}.{name}" if module in ("torch", "optax") else short(optimizer)
    meant = ours.get(re.sub(r"[^a-z0-9]", "", name.lower()), "AdamW")
    raise TypeError(
        f"optimizer={given}: expected an optimizer of cutback.optim, such as "
        f"cutback.optim.{meant}(lr=1e-3)"
    )
