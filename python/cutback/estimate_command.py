"""The command ``cutback estimate MODULE:FUNCTION``. It has its own module because it runs the
user's code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .planner.estimating import Estimate

_BATCH = 16  # the batch size that is traced first


def add_parser(commands: Any) -> None:
    """Adds the command."""
    estimate = commands.add_parser("estimate", help="say which batches fit into a budget")
    estimate.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="FUNCTION(batch) returns (loss, arguments) or (model, inputs), optionally with an "
        "optimizer as third item; MODULE is searched for in the current folder first",
    )
    estimate.add_argument(
        "--budget", help="bytes, or a size such as 80GiB (default: print only the table)"
    )
    estimate.add_argument("--device", help="row of the cost model, such as h100")
    estimate.add_argument(
        "--measure",
        choices=("total", "live", "arena"),
        default="total",
        help="total (with parameters and optimizer states; the default), live or arena (the step)",
    )
    estimate.add_argument("--batches", metavar="LIST", help="batch sizes to list, as in 8,16,32")
    estimate.add_argument("--json", action="store_true", help="print the table as JSON")


def _function(spec: str) -> Callable[[int], Any]:
    module, colon, name = spec.partition(":")
    if not module or not colon or not name:
        raise ValueError(f"{spec!r}: expected MODULE:FUNCTION, such as train:make_step")
    if module.endswith(".py"):
        module = ".".join(module.removesuffix(".py").split(os.sep))
        raise ValueError(f"{spec!r}: MODULE is the name of a module; write {module}:{name}")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"{spec!r}: {error}") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"{spec!r}: {module} has no function {name}")
    from .planner.estimating import check_make_step  # here, to print help fast

    check_make_step(found)
    function: Callable[[int], Any] = found
    return function


def _is_of_torch(make_step: Callable[[int], Any]) -> bool:
    """Returns True if ``make_step`` makes a PyTorch step. Calls it once, with fake tensors."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    from torch._subclasses import FakeTensorMode
    from torch.utils._pytree import tree_leaves

    with FakeTensorMode(allow_non_fake_inputs=True):
        made = make_step(_BATCH)
    leaves = tree_leaves(made[:2]) if isinstance(made, tuple) else [made]
    return any(isinstance(leaf, (torch.nn.Module, torch.Tensor)) for leaf in leaves)


def _batches(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"--batches {text!r}: expected integers, such as 8,16,32")
    return [int(part) for part in parts]


def estimate(options: argparse.Namespace, budget: int | str | None) -> Estimate:
    """Runs the command and returns the estimate that it prints.

    Raises:
        ValueError, TypeError: if an argument is invalid.
    """
    make_step = _function(options.function)
    door: Any
    if _is_of_torch(make_step):
        from .torch import estimate as door
    else:
        from .frontend.estimating import estimate as door
    result: Estimate = door(
        make_step,
        budget,
        device=options.device,
        measure=options.measure,
        batches=_batches(options.batches),
    )
    return result
