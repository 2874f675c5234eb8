"""Names that were removed or moved, and their replacements. This module is loaded only to raise an
error. Each name stays listed for one version."""

from __future__ import annotations

import os
import sys

_F = "cutback.nn.functional"

REPLACEMENTS = {
    "cutback": {
        "Executable": "cutback.Graph.compile(...) or cutback.compile(...)",
        "Planned": "Step.planned or Plan.numbers",
        "RawArray": "ml_dtypes.bfloat16 arrays, or bf16 tensors through DLPack",
        "example": "numpy.broadcast_to(numpy.float32(0), shape)",
        "functional": _F,
        "min_cut": 'cutback.plan(f, *args, preset="conservative")',
        "ops": "the same names in cutback, such as cutback.exp",
        "planning": "cutback.plan, cutback.plans and cutback.Plan",
    },
    "cutback.torch": {
        **{
            name: f"cutback.torch.mutwo.{name}"
            for name in ("Pipeline", "Selection", "mu_two", "select")
        },
        **{name: f"cutback.torch.rerun.{name}" for name in ("declare", "why_once")},
    },
}
"""For each module, its removed names and their replacements."""


def message(module: str, name: str) -> str:
    """Returns the text of the error for a removed name."""
    return f"{module}.{name} was removed: use {REPLACEMENTS[module][name]}"


def missing(module: str, name: str) -> AttributeError | ImportError:
    """Returns the error for an attribute that a module does not have; for a removed name, it gives
    the replacement.

    A ``from`` import replaces the message of an AttributeError with its own, so it gets an
    ImportError. A ``from`` import is recognized by the frame two levels up, which is then that of
    ``importlib._bootstrap._handle_fromlist``.
    """
    asking = sys._getframe(2)
    is_from = asking.f_code.co_name == "_handle_fromlist"
    if name in REPLACEMENTS[module]:
        text = message(module, name)
        return ImportError(text, name=module) if is_from else AttributeError(text, name=name)
    if module != "cutback" or (is_from and _is_module(name)):
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    from . import foreign  # here, because only errors need it

    error = foreign.missing(module, name)
    return ImportError(str(error), name=module) if is_from and ": " in str(error) else error


def _is_module(name: str) -> bool:
    """Returns True for a module of the package, which a ``from`` import first looks up as an
    attribute."""
    path = os.path.join(os.path.dirname(__file__), name)
    return os.path.exists(f"{path}.py") or os.path.isdir(path)
