"""Where errors and plans say that an operation was asked for."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np

import cutback
from cutback.source import located, location, place


def test_the_innermost_line_outside_the_package():
    assert location() == "test_source.py:15"
    assert located("no") == "no [test_source.py:16]"


def test_an_error_is_placed_once():
    error = ValueError("wrong")
    for _ in range(2):
        place(error)
    assert str(error) == "wrong [test_source.py:22]"


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
