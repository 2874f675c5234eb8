"""Tests the source lines that errors and plans give for operations."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import cutback
from cutback.source import located, location, place


def test_the_innermost_line_outside_the_package():
    assert location() == "test_source.py:16"
    assert located("no") == "no [test_source.py:17]"


def test_an_error_is_placed_once():
    error = ValueError("wrong")
    for _ in range(2):
        place(error)
    assert str(error) == "wrong [test_source.py:23]"


def test_a_text_that_only_looks_as_if_it_named_a_line_is_placed():
    for text in ("no array at x:3", "input a at [test_source.py:1]"):
        error = ValueError(text)
        place(error)
        assert str(error).startswith(f"{text} [test_source.py:")


def test_the_line_of_the_operation_is_named_once():
    step = cutback.compile(lambda x, at: cutback.take(x, at, axis=0).sum(), argnums=None)
    with pytest.raises(ValueError, match=r" at test_source\.py:\d+$") as caught:
        step(np.ones(3, np.float32), np.array([7]))
    assert caught.value.has_location and "[" not in str(caught.value)


def test_cells_of_a_notebook(monkeypatch):
    path = "/tmp/ipykernel_7/123.py"
    compiler = SimpleNamespace(_filename_map={path: 3})
    shell = SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))

    namespace = {"cutback": cutback}
    exec(compile("def f(x):\n    return cutback.exp(x)\n", path, "exec"), namespace)
    assert '@"In[3]:2"' in cutback.trace(namespace["f"], np.ones(3)).text()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert '@"123.py:2"' in cutback.trace(namespace["f"], np.ones(3)).text()
