"""Decisions between our kernels and PyTorch's, kept on disk for each machine.

A decision is made once for an operation with its shapes, strides, dtypes and numbers, and holds
from then on for every budget, plan and number of threads. A rerun therefore has the first run's
bits, and results have the same bits from run to run. The decisions of a machine are in a file next
to its device row (:func:`cutback.devices.cache_file`); those that a step used are also in its plan
file.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from ... import devices, files
from ..graph.draws import KEEP_MASK
from ..graph.sizes import hint
from .arrays import NAMES
from .layouts import meta_of

if TYPE_CHECKING:
    from typing import TypeGuard

_FORMAT = 2  # version of the file


def _type_of(val: Any) -> str:
    """Describes a value: ``"f32[8,16]"``, with strides if it is not contiguous."""
    if isinstance(val, torch.Tensor):
        meta = meta_of(val, hint)
        text = f"{NAMES.get(meta.dtype, meta.dtype)}{list(meta.shape)}"
        return text if meta.is_contiguous else f"{text}/{list(meta.stride)}"
    if isinstance(val, (tuple, list)):
        return f"({', '.join(map(_type_of, val))})"
    return str(hint(val)) if isinstance(val, (int, torch.SymInt)) else str(val)


def key_of(node: fx.Node) -> str:
    """Describes an operation with the types of its tensors and its other arguments."""

    class Shown(str):
        __slots__ = ()
        __repr__ = str.__str__

    args, kwargs = fx.map_arg(
        (node.args, node.kwargs), lambda n: Shown(_type_of(n.meta.get("val")))
    )
    if node.target is KEEP_MASK:  # the number of its stream changes nothing
        args = (args[0], 0, *args[2:])
    given = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
    return f"{node.target}({', '.join(given)})".replace(" ", "")


def cache_file() -> Path:
    """Returns the path of the file with this machine's decisions."""
    row = devices.cache_file()
    return row.with_name(row.name.replace("device-", "kernels-"))


class _Machine:
    """The decisions of this machine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._known: dict[str, bool] = {}

    def get(self, key: str) -> bool | None:
        """True if an operation runs in our kernels; None if it is undecided."""
        with self._lock:
            self._follow()
            return self._known.get(key)

    def add(self, made: Mapping[str, bool]) -> dict[str, bool]:
        """Stores decisions. Keeps decisions that another process made first.

        Returns:
            The decisions in force for these operations.
        """
        with self._lock:
            path = self._follow()
            with files.locked(path):
                self._known = {**made, **self._known, **_read(path)}
                _write(path, self._known)
            return {key: self._known[key] for key in made}

    def _follow(self) -> Path:
        """Reads the file if its path has changed, and returns the path."""
        path = cache_file()
        if self._path != path:
            self._path, self._known = path, _read(path)
        return path


def _key() -> dict[str, Any]:
    return {"format": _FORMAT, "torch": torch.__version__}


def _read(path: Path) -> dict[str, bool]:
    """Returns the decisions in a file; empty if it is missing, damaged or of another version."""
    try:
        if not devices.trusted(path):
            return {}
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or document.get("key") != _key():
        return {}
    known: object = document.get("ours")
    return known if are_decisions(known) else {}


def _write(path: Path, known: Mapping[str, bool]) -> None:
    """Writes a file atomically. If that fails, the decisions hold only in this process."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"key": _key(), "ours": known}, indent=1)
        files.write_text(path, text, private=True)
    except OSError:
        pass


def are_decisions(value: object) -> TypeGuard[dict[str, bool]]:
    """True for a mapping from operations to booleans."""
    return isinstance(value, dict) and all(
        isinstance(k, str) and isinstance(v, bool) for k, v in value.items()
    )


machine = _Machine()


class Decisions:
    """The decisions of one model."""

    def __init__(self) -> None:
        self.used: dict[str, bool] = {}
        """True for operations that run in our kernels. What a plan file says takes precedence over
        what the machine says."""
        self.arguments: set[StorageWeakRef] = set()
        """The memory of the arguments of the model's graphs."""

    def __getstate__(self) -> dict[str, object]:  # PyTorch pickles it for its cache key
        return {**self.__dict__, "arguments": set()}

    def get(self, node: fx.Node) -> bool | None:
        """True if a node runs in our kernels; None if it is undecided."""
        key = key_of(node)
        known = self.used.get(key)
        if known is None:
            known = machine.get(key)
            if known is not None:
                self.used[key] = known
        return known

    def keep(self, made: Mapping[str, bool]) -> None:
        """Stores new decisions, for this model and the machine."""
        self.used.update(machine.add(made))
