"""`import cutback` loads next to nothing, and everything is there all the same."""

from __future__ import annotations

import ast
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

FACE = Path(cutback.__file__)


def told(code: str) -> Any:
    """What a fresh interpreter prints, as JSON."""
    code = f"import json, sys\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def loaded_by(code: str) -> set[str]:
    """Modules that are not there once NumPy is."""
    return set(
        told(
            f"import numpy\nbefore = set(sys.modules)\n{code}\n"
            "print(json.dumps(sorted(set(sys.modules) - before)))"
        )
    )


def promised() -> dict[str, str]:
    """What type checkers and editors see: name -> the module that the face imports it from; a
    module is its own home."""
    tree = ast.parse(FACE.read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    homes = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for name in node.names:
            if name.name == "*":
                homes |= dict.fromkeys(ops.__all__, node.module or "")
                continue
            inner = f"{node.module}.{name.name}" if node.module else name.name
            is_module = any(
                (FACE.parent / f"{inner.replace('.', '/')}{end}").exists() for end in (".py", "")
            )
            homes[name.asname or name.name] = inner if is_module else node.module or ""
    return homes


def test_the_import_loads_the_extension_and_nothing_that_a_program_may_not_need() -> None:
    loaded = loaded_by("import cutback")
    assert {name for name in loaded if name.startswith("cutback")} == {
        "cutback", "cutback._native", "cutback.names",
    }  # fmt: skip
    assert loaded <= {"__future__", "cutback", "cutback._native", "cutback.names"}


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
    assert promised() == {**cutback._HOMES, **cutback._MODULES}
    assert promised().keys() | {
        "BudgetError", "__version__", "get_num_threads", "release_memory", "set_num_threads",
    } >= set(cutback.__all__)  # fmt: skip


def test_the_operations_are_those_of_their_module() -> None:
    defined = {
        name
        for name, value in vars(ops).items()
        if getattr(value, "__module__", None) == ops.__name__ and not name.startswith("_")
    }
    assert len(names.OPERATIONS) == len(set(names.OPERATIONS))
    assert set(ops.__all__) == defined


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
    assert (
        told(f"{code}\nprint(json.dumps(sorted(space)))") == sorted(cutback.__all__) == dir(cutback)
    )


def test_help_shows_what_is_loaded_late() -> None:
    text = told("import cutback, pydoc; print(json.dumps(pydoc.plaintext.document(cutback)))")
    assert re.search(r"value_and_grad\(\s*f: ", text)  # Python 3.13 has a line for each argument
    assert "    tanh(x: " in text
    assert "class Step(" in text
