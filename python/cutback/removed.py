"""Names that were removed or moved, and their replacements. This module is loaded only for an
error. A name is listed for one version."""

from __future__ import annotations

import sys

from .names import why_not

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
    """The text of the error for a removed name."""
    return f"{module}.{name} was removed: use {REPLACEMENTS[module][name]}"


def missing(module: str, name: str) -> AttributeError | ImportError:
    """The error for an attribute that a module does not have; a removed one names its replacement.

    A ``from`` import replaces the message of an AttributeError with its own, so it gets an
    ImportError. It looks names up in ``importlib._bootstrap._handle_fromlist``, which is two
    frames up.
    """
    if name not in REPLACEMENTS[module]:
        text = f"module {module!r} has no attribute {name!r}"
        return AttributeError(why_not(name) if module == "cutback" else text, name=name)
    asking = sys._getframe(2)
    if asking.f_code.co_name == "_handle_fromlist":
        return ImportError(message(module, name), name=module)
    return AttributeError(message(module, name))
