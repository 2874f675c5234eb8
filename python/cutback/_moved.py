"""Former addresses of modules: pickles and programs that name one find the module that stands in
its room now. ``import cutback.arrays`` gives the very module ``cutback.run.arrays``.

``cutback.planning``, whose contents went into several modules, is a file of its own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOMS = {
    "frontend": ("graph", "indexing", "regions", "tracer", "tracing", "training"),
    "planner": ("differences", "plan_files", "tradeoffs"),
    "run": ("arrays", "executable", "profiling"),
}
"""Room -> modules that once stood beside the rooms."""

NOW = {f"cutback.{name}": f"cutback.{room}.{name}" for room, row in ROOMS.items() for name in row}


class _Finder:
    """Finds a module by its former address; loads it as what it is now."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, _Finder()) if name in NOW else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(NOW[module.__name__])


sys.meta_path.append(_Finder())  # after all others: asked for what nobody else has
