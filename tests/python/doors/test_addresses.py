"""Names in the documents can be reached without imports of their own."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import cutback


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    ["constraints", "devices", "files", "nn", "optim", "policies", "report", "tree"],
)  # fmt: skip
def test_a_documented_module_is_there(name: str) -> None:
    assert printed(f"import cutback; print(cutback.{name}.__name__)").startswith("cutback.")


def test_what_was_never_there_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'cutback\.parsing'"):
        import_module("cutback.parsing")
    with pytest.raises(AttributeError, match="module 'cutback' has no attribute 'parsing'"):
        _ = cutback.parsing
