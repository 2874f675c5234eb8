"""Error messages for names of other libraries: arguments, optimizers and modules."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from ..budgets import short
from ..foreign import advice, known
from ..names import HOMES
from ..source import has_line, place_at_origin, reword

_ARGUMENTS = {
    "dim": "axis=", "dims": "axis=", "keepdim": "keepdims=", "axes": "axis=",
    "requires_grad": "argnums= of cutback.compile or cutback.grad, which names the arguments to "
    "differentiate by", "device": "device= of cutback.compile, for the whole step",
    "descending": "cutback.flip of the result", "input": "the array as the first argument",
    "other": "the array as the second argument", "out": "the result: nothing is written in place",
    "where": "cutback.where on the argument or the result", "dtype": ".astype(dtype) of the result",
    "size": "shape=", "axis": "dim=", "a_min": "min=", "a_max": "max=", "minimum": "min=",
    "maximum": "max=", "value": "fill_value=", "correction": "ddof=",
    "indices_or_sections": "sections=", "N": "n=", "M": "m=",
    "order": "x.T.reshape(shape[::-1]).T for x.reshape(shape, order='F')",
}  # fmt: skip
_UNKNOWN = re.compile(r"(Array\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def explain(error: TypeError) -> None:
    """Adds the name that this package uses to the error for an unknown argument, and the user's
    line."""
    text = _reworded(error)
    if text is not None:
        error.args = (text,)
        place_at_origin(error)
        return
    found = _UNKNOWN.match(str(error))
    if found is None:
        return
    ours = found[1] or found[2] in HOMES or known(found[2])
    if ours and found[3] in _ARGUMENTS:
        name = f"Array.{found[2]}" if found[1] else known(found[2])
        error.args = (f"{name} has no {found[3]}=; write {_ARGUMENTS[found[3]]}",)
        place_at_origin(error)


_SHAPE = re.compile(r"\(\d+(?:, ?\d+)*,?\)")
_MOST_ALIKE = 2  # if more arguments have a shape, their names would not help


def name_arguments(error: ValueError, arguments: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """Adds the names of the arguments whose shapes an error message of this package contains."""
    if not has_line(error):
        return
    message, said = str(error), []
    for text in dict.fromkeys(_SHAPE.findall(message)):
        shape = tuple(int(n) for n in re.findall(r"\d+", text))
        alike = [name for name, known in arguments if tuple(known) == shape]
        if len(alike) <= _MOST_ALIKE:
            said += [f"{name} is {text}" for name in alike]
    body, bracket, line = message.rpartition(" [")
    if said and bracket:
        reword(error, f"{body}; {', '.join(said)}{bracket}{line}")


_TENSOR = re.compile(r"(\w+)\(\): argument .* must be Tensor, not Array")
_REWORDED = {
    "'int' object is not callable": (
        ".size(", "x.size is the number of elements, as in NumPy; write x.shape, or x.shape[0] for "
        "x.size(0)"
    ),
    "Array.ravel() takes 1 positional argument": (
        ".flatten(", "x.flatten() makes one axis, as in NumPy; write x.reshape(x.shape[0], -1) for "
        "x.flatten(1)"
    ),
    "where() missing 2 required positional arguments": (
        "", "the number of positions depends on the values of elements; write "
        "cutback.where(condition, x, y)"
    ),
}  # fmt: skip


def _reworded(error: TypeError) -> str | None:
    """Returns the message for a call that only PyTorch allows, or None."""
    if found := _TENSOR.match(str(error)):
        ours = advice(found[1])
        return f"torch.{found[1]} takes no traced arrays" + (f"; {ours}" if ours else "")
    for start, (call, text) in _REWORDED.items():
        if str(error).startswith(start) and call in _line_of(error):
            return f"{error}: {text}"
    return None


def _line_of(error: TypeError) -> str:
    """Returns the source line in which the error was raised."""
    return traceback.extract_tb(error.__traceback__)[-1].line or ""


def refuse_module(function: Any) -> None:
    """Raises TypeError for a module of PyTorch."""
    if hasattr(function, "named_parameters") and hasattr(function, "forward"):
        raise TypeError(
            f"{type(function).__name__} is a torch.nn.Module, but cutback.compile takes a function "
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
