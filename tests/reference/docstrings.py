"""Finds the examples in docstrings, as programs for tests, and checks that docstrings are
complete."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import doctest
import enum
import functools
import importlib
import inspect
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cutback.names import OPERATIONS

PACKAGE = Path(__file__).parents[2] / "python" / "cutback"


class Example(NamedTuple):
    """The example lines of one docstring."""

    place: str
    """Module and qualified name, without the package: ``"planner.plan.Plan.headline"``."""
    lines: list[doctest.Example]


def examples(*, torch: bool) -> list[Example]:
    """Returns the examples of the package: those of ``cutback.torch``, or the others."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if (parts[0] == "torch") == torch:
            name = ".".join(part for part in parts if part != "__init__")
            found += list(_within(_code(path), name))
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
    """Yields public classes and functions with their names, except operations on arrays."""
    for home in TORCH_MODULES if torch else MODULES:
        module = importlib.import_module(home)
        hidden = {"compile"} & set(dir(module))  # not in __all__, because it would hide a builtin
        for name in sorted({*module.__all__, *hidden}.difference(OPERATIONS)):
            value = getattr(module, name)
            if callable(value) and getattr(value, "__module__", "").startswith("cutback"):
                yield f"{home}.{name}", value


def without_example(*, torch: bool) -> list[str]:
    """Returns the public classes and functions whose docstring has no example, except operations on
    arrays."""
    return [
        name for name, value in _public(torch=torch) if ">>>" not in (inspect.getdoc(value) or "")
    ]


def undescribed(*, torch: bool) -> list[str]:
    """Returns parameters of public functions, and of classes that users make, that no docstring
    names. A class may leave some to the docstring of a base class or of its module."""
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
    """Returns the names of the parameters. Errors, records and enums have none, because their
    fields are described instead."""
    if inspect.isclass(value):
        plain = (BaseException, tuple, enum.Enum)
        if issubclass(value, plain) or dataclasses.is_dataclass(value):
            return []
    try:
        return [name for name in inspect.signature(value).parameters if name[0] != "_"]
    except ValueError:  # a function in C without a text signature
        return []


class Documented(NamedTuple):
    """A public function, class or method."""

    name: str
    text: str
    """Its docstring."""
    node: ast.FunctionDef | None
    """Its code. For a class, the code of ``__init__``, if it has one."""


WITHOUT_ENTRIES = "cutback.nn.functional"
"""The description of this module says for all of its functions what they return and raise."""


@functools.cache
def documented(*, torch: bool) -> tuple[Documented, ...]:
    """Returns the functions, classes and public methods that the pages of ``docs/api`` show."""
    return tuple(_documented_in(torch))


def _documented_in(torch: bool) -> Iterator[Documented]:
    pages = (PACKAGE.parents[1] / "docs" / "api").glob("*.rst")
    homes = {home for page in pages for home in re.findall(r"public:: (\S+)", page.read_text())}
    seen = set()
    for home in sorted(homes - {WITHOUT_ENTRIES}):
        if home.startswith("cutback.torch") != torch:
            continue
        module = importlib.import_module(home)
        names = getattr(module, "__all__", [n for n in vars(module) if n[0] != "_"])
        origin = "cutback" if hasattr(module, "__all__") else home  # imported names stay out
        for name in sorted({*names, *({"compile"} & set(dir(module)))}):
            value = getattr(module, name)
            if not getattr(value, "__module__", "").startswith(origin) or id(value) in seen:
                continue
            seen.add(id(value))
            if inspect.isfunction(value):
                yield _documented(f"{home}.{name}", value, value)
            elif inspect.isclass(value) and not issubclass(value, BaseException):
                yield from _members(f"{home}.{name}", value)


def _members(name: str, kind: type) -> Iterator[Documented]:
    yield _documented(name, kind, vars(kind).get("__init__"))
    for member, value in vars(kind).items():
        function = getattr(value, "__func__", value)  # the function of a classmethod
        if inspect.isfunction(function) and (member[0] != "_" or member == "__call__"):
            yield _documented(f"{name}.{member}", function, function)


def _documented(name: str, value: Any, function: Any) -> Documented:
    node: Any = None
    if (getattr(function, "__module__", None) or "").startswith("cutback"):
        path = PACKAGE.parent / function.__module__.replace(".", "/")
        node = _code(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
        for part in function.__qualname__.split("."):
            node = next(
                (n for n in reversed(getattr(node, "body", [])) if getattr(n, "name", "") == part),
                None,
            )  # the last of several: those before it are overloads
    return Documented(name, inspect.getdoc(value) or "", node)


@functools.cache
def _code(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def unnamed_errors(of: Iterable[Documented]) -> list[str]:
    """Returns the exceptions that a function's own body raises and its docstring does not name."""
    found = []
    for name, text, node in of:
        raised = set() if node is None else {*_raised(node)} - {"AssertionError"}
        found += [f"{name}: {e}" for e in sorted(raised) if not re.search(rf"\b{e}\b", text)]
    return found


def _raised(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise):
            error = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            if isinstance(error, ast.Name) and error.id[0].isupper():
                yield error.id
        elif not isinstance(child, (ast.FunctionDef, ast.Lambda)):
            yield from _raised(child)


EVIDENT = {"Converts", "Copies", "Formats", "Limits", "Loads", "Parses", "Reads"}
"""Verbs whose object is what the function returns."""
NOUNS = {"Arrays", "Bytes", "Cosines", "Lines", "Values"}


def unnamed_results(of: Iterable[Documented]) -> list[str]:
    """Returns functions with a result whose docstring begins with a verb, such as ``Runs the
    step``, and does not say what they return. Operations on arrays return arrays."""
    found = []
    for name, text, node in of:
        if node is None or node.returns is None or node.name == "__init__":
            continue
        result = ast.unparse(node.returns).strip("'\"")
        if result in ("None", "NoReturn", "Iterator[None]", "Array", "list[Array]"):
            continue
        verb = re.match(r"[A-Z][a-z]+s\b", text)
        if verb and verb[0] not in EVIDENT | NOUNS and not re.search(r"\b[Rr]eturns?\b", text):
            found.append(f"{name}: {result}")
    return found
