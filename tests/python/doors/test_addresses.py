"""What the documents name is reached without an import of its own, and modules that moved are found
where they were, as the same modules: pickles name those addresses."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import import_module

import pytest

import cutback
from cutback._moved import NOW


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    ["constraints", "devices", "files", "functional", "nn", "ops", "optim", "policies", "report",
     "tree"],
)  # fmt: skip
def test_a_documented_module_is_there(name: str) -> None:
    assert printed(f"import cutback; print(cutback.{name}.__name__)").startswith("cutback.")


def test_a_former_address_gives_the_module() -> None:
    assert len(NOW) > 10
    rows = "; ".join(f"print({old} is sys.modules[{new!r}])" for old, new in NOW.items())
    expected = "True\n" * len(NOW)
    assert printed(f"import sys, {', '.join(NOW)}; {rows}") == expected
    assert printed(f"import sys, cutback; {rows}") == expected


def test_what_was_never_there_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'cutback\.parsing'"):
        import_module("cutback.parsing")
    with pytest.raises(AttributeError, match="module 'cutback' has no attribute 'parsing'"):
        _ = cutback.parsing


@pytest.mark.parametrize(
    ("module", "name"),
    [("arrays", "RawArray"), ("executable", "Stats"), ("executable", "Planned"),
     ("planning", "Plan"), ("tradeoffs", "Frontier")],
)  # fmt: skip
def test_a_pickle_with_a_former_address_is_read(module: str, name: str) -> None:
    pickled = f"ccutback.{module}\n{name}\n.".encode()  # protocol 0: a class by its address
    assert pickle.loads(pickled) is getattr(cutback, name)


def test_what_a_run_measured_is_read_from_a_former_pickle() -> None:
    stats = cutback.Stats(peak_bytes=64, n_alloc=0, seconds=0.5)
    now = pickle.dumps(stats, protocol=0)
    former = now.replace(b"cutback.run.executable", b"cutback.executable")
    assert former != now
    assert pickle.loads(former) == stats
