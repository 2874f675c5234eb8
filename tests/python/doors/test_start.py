"""`import cutback` loads almost nothing, but all names are available."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cutback
from cutback import names
from cutback.frontend import ops
from cutback.removed import REPLACEMENTS

FACE = Path(cutback.__file__)
DOCUMENT = Path(__file__).parents[3] / "docs" / "modules.md"


def told(code: str) -> Any:
    """Returns the JSON printed by a fresh interpreter."""
    code = f"import json, sys\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def loaded_by(code: str) -> set[str]:
    """Returns the modules that an import adds once NumPy is loaded."""
    return set(
        told(
            f"import numpy\nbefore = set(sys.modules)\n{code}\n"
            "print(json.dumps(sorted(set(sys.modules) - before)))"
        )
    )


def promised() -> dict[str, str]:
    """Returns the names seen by type checkers and editors, with the module each is imported from. A
    module maps to itself."""
    tree = ast.parse(FACE.read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    homes = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for name in node.names:
            if name.name == "*":
                home = importlib.import_module(f"cutback.{node.module}")
                homes |= dict.fromkeys(home.__all__, node.module or "")
                continue
            inner = f"{node.module}.{name.name}" if node.module else name.name
            is_module = any(
                (FACE.parent / f"{inner.replace('.', '/')}{end}").exists() for end in (".py", "")
            )
            homes[name.asname or name.name] = inner if is_module else node.module or ""
    return homes


def test_the_import_loads_the_extension_and_nothing_that_a_program_may_not_need() -> None:
    loaded = loaded_by("import cutback")
    assert loaded == {"cutback", "cutback._native"}


@pytest.mark.parametrize(
    ("wanted", "others"),
    [
        ("CheckpointPolicy", {"cutback.frontend", "cutback.run", "cutback.nn"}),
        ("optim", {"cutback.frontend", "cutback.run", "cutback.nn"}),
        ("plans", {"cutback.frontend", "cutback.run", "cutback.nn"}),
        ("compile, tanh, optim", {"cutback.nn", "cutback.planner", "cutback.report", "json"}),
    ],
)
def test_a_name_loads_its_own_part_alone(wanted: str, others: set[str]) -> None:
    assert not loaded_by(f"from cutback import {wanted}") & others


def test_what_is_loaded_late_is_what_type_checkers_see() -> None:
    assert promised() == {**names.PUBLIC, **{name: name for name in names.MODULES}}
    assert promised().keys() | {
        "__version__", "get_num_threads", "set_num_threads",
    } >= set(cutback.__all__)  # fmt: skip


def test_the_operations_are_those_of_their_module() -> None:
    defined = {
        name
        for name, value in vars(ops).items()
        if getattr(value, "__module__", None) == ops.__name__ and not name.startswith("_")
    }
    assert len(ops.__all__) == len(set(ops.__all__))
    assert set(ops.__all__) == defined
    for module in sorted(set(names.HOMES.values())):
        home = importlib.import_module(f"cutback.{module}")
        assert set(home.__all__) == {n for n, its in names.HOMES.items() if its == module}


@pytest.mark.parametrize("home", sorted(set(promised().values())))
def test_each_name_is_found_by_who_asks_for_nothing_else(home: str) -> None:
    mine = [name for name, its in promised().items() if its == home]
    code = (
        f"import cutback\nvalue = [getattr(cutback, name) for name in {mine}]\n"
        f"import importlib\nhome = importlib.import_module('cutback.{home}')\n"
        f"print(json.dumps([v is getattr(home, n, home) for n, v in zip({mine}, value)]))"
    )
    assert told(code) == [True] * len(mine)


def test_a_star_brings_all_public_names() -> None:
    code = "space = {}\nexec('from cutback import *', space)\ndel space['__builtins__']"
    assert told(f"{code}\nprint(json.dumps(sorted(space)))") == sorted(cutback.__all__)
    shadowing = {"abs", "all", "any", "compile", "divmod", "max", "min", "round", "sum"}
    assert {*cutback.__all__} | shadowing == {*dir(cutback)}
    assert {*cutback.__all__} >= {*ops.__all__} - shadowing


def public_modules() -> list[str]:
    """Returns the package and the modules that users import by name."""
    inside = "constraints devices files nn nn.functional optim policies report torch torch.mutwo"
    return [
        "cutback",
        *(f"cutback.{name}" for name in (*inside.split(), "torch.frontends", "torch.rerun")),
    ]


@pytest.mark.parametrize("module", public_modules())
def test_a_star_hides_no_builtin(module: str) -> None:
    if module.startswith("cutback.torch"):
        pytest.importorskip("torch")
    public = importlib.import_module(module).__all__
    assert len(public) == len(set(public))
    assert not set(public) & set(dir(builtins))


@pytest.mark.parametrize("name", ["constraints", "devices", "files", "report"])
def test_public_functions_of_modules_say_what_they_take(name: str) -> None:
    module = importlib.import_module(f"cutback.{name}")
    assert module.__doc__ and f"## `cutback.{name}`" in DOCUMENT.read_text()
    for public in module.__all__:
        thing = getattr(module, public)
        if not callable(thing) or not inspect.isfunction(thing):
            continue
        taken = inspect.signature(thing).parameters
        assert all(p in (thing.__doc__ or "") for p in taken), f"{name}.{public}"


def test_the_bridge_without_pytorch_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['torch'] = None; import cutback.torch"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert said.endswith("cutback.torch needs PyTorch: pip install 'cutback[torch]'\n")


REMOVED = [
    (module, name, use) for module, table in REPLACEMENTS.items() for name, use in table.items()
]


@pytest.mark.parametrize(("module", "name", "use"), REMOVED)
def test_a_removed_name_says_what_to_use(module: str, name: str, use: str) -> None:
    if module == "cutback.torch":
        pytest.importorskip("torch")
    text = re.escape(f"{module}.{name} was removed: use {use}")
    face = importlib.import_module(module)
    with pytest.raises(AttributeError, match=text):
        getattr(face, name)
    assert not hasattr(face, name) and name not in dir(face)
    with pytest.raises(ImportError, match=text):
        exec(f"from {module} import {name}")
    if name in ("functional", "ops", "planning"):
        with pytest.raises(ImportError, match=text):
            importlib.import_module(f"{module}.{name}")


def test_other_missing_names_are_ordinary_errors() -> None:
    with pytest.raises(ImportError, match="cannot import name 'dance'"):
        from cutback import dance  # noqa: F401


def test_help_shows_what_is_loaded_late() -> None:
    text = told("import cutback, pydoc; print(json.dumps(pydoc.plaintext.document(cutback)))")
    # Python 3.13 puts each argument on its own line
    assert re.search(r"value_and_grad\(\s*f: ", text)
    assert "    tanh(x: " in text
    assert "class Step(" in text
