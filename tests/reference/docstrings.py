"""Examples in docstrings, as programs for tests."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import doctest
import enum
import importlib
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cutback.names import OPERATIONS

PACKAGE = Path(__file__).parents[2] / "python" / "cutback"


class Example(NamedTuple):
    """The lines of one docstring."""

    place: str
    """Module and qualified name, without the package: ``"planner.plan.Plan.headline"``."""
    lines: list[doctest.Example]


def examples(*, torch: bool) -> list[Example]:
    """The examples of the package: those of ``cutback.torch``, or the others."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if (parts[0] == "torch") == torch:
            name = ".".join(part for part in parts if part != "__init__")
            found += list(_within(ast.parse(path.read_text(encoding="utf-8")), name))
    return found


def _within(node: Any, place: str) -> Iterator[Example]:
    lines = doctest.DocTestParser().get_examples(ast.get_docstring(node) or "")
    lines = [line for line in lines if not line.options.get(doctest.SKIP)]
    if lines:
        yield Example(place, lines)
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield from _within(child, f"{place}.{child.name}".lstrip("."))


def run(example: Example, names: dict[str, Any]) -> None:
    """Runs the lines with ``names``. A line followed by output must print it."""
    for line in example.lines:
        mode = "single" if line.want else "exec"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(line.source, example.place, mode), names)
        if line.want:
            found, flags = printed.getvalue(), doctest.ELLIPSIS
            assert doctest.OutputChecker().check_output(line.want, found, flags), (
                f"{example.place}: {line.source.strip()} gives {found}, not {line.want}"
            )


MODULES = (
    "cutback", "cutback.constraints", "cutback.devices", "cutback.files", "cutback.optim",
    "cutback.policies", "cutback.report",
)  # fmt: skip
TORCH_MODULES = ("cutback.torch", "cutback.torch.frontends", "cutback.torch.mutwo",
                 "cutback.torch.optim", "cutback.torch.rerun")  # fmt: skip


MADE = {"Array", "Estimate", "Frontier", "MaxBatch", "Profile", "Selection", "Step", "Traced",
        "TracedStep", "WholeGraph"}  # fmt: skip
"""Public classes whose objects functions return, or that only describe an interface."""


def _public(*, torch: bool) -> Iterator[tuple[str, Any]]:
    """Public classes and functions with their names, except operations on arrays."""
    for home in TORCH_MODULES if torch else MODULES:
        module = importlib.import_module(home)
        hidden = {"compile"} & set(dir(module))  # not in __all__, because it would hide a builtin
        for name in sorted({*module.__all__, *hidden}.difference(OPERATIONS)):
            value = getattr(module, name)
            if callable(value) and getattr(value, "__module__", "").startswith("cutback"):
                yield f"{home}.{name}", value


def without_example(*, torch: bool) -> list[str]:
    """Public classes and functions whose docstring has no example, except operations on arrays."""
    return [
        name for name, value in _public(torch=torch) if ">>>" not in (inspect.getdoc(value) or "")
    ]


def undescribed(*, torch: bool) -> list[str]:
    """Parameters of public functions, and of classes that users make, that no docstring names. A
    class may leave some to the docstring of a base class or of its module."""
    found = []
    for name, value in _public(torch=torch):
        text, parameters = inspect.getdoc(value) or "", _parameters(value)
        if inspect.isclass(value):
            bases = [base for base in value.__mro__ if base.__module__.startswith("cutback")]
            texts = [t for base in bases for t in (base.__doc__, base.__init__.__doc__)]
            texts.append(inspect.getmodule(value).__doc__)
            text = "\n".join(filter(None, texts))
        if name.rpartition(".")[2] in MADE or parameters == ["ctx", "op", "args", "kwargs"]:
            continue
        missing = [p for p in parameters if not re.search(rf"(?<![\w.]){p}(?!\w)", text)]
        found += [f"{name}: {p}" for p in missing]
    return found


def _parameters(value: Any) -> list[str]:
    """The names of the parameters: none for errors, records and enums, whose fields have texts."""
    if inspect.isclass(value):
        plain = (BaseException, tuple, enum.Enum)
        if issubclass(value, plain) or dataclasses.is_dataclass(value):
            return []
    try:
        return [name for name in inspect.signature(value).parameters if name[0] != "_"]
    except ValueError:  # of a function in C without a text signature
        return []
