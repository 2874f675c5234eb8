"""Devices of the cost model: a built-in row by name, a custom row, or a measured row of this
machine's CPU.

>>> row = cutback.devices.measured()
>>> print(cutback.devices.text(row))
>>> plan = cutback.plan("problem.json", budget=0.5, device=row)

Built-in rows are constants, so plans made with them are the same on every machine. A measured row
is used only if asked for (``device="measured"``), and a plan made with it contains its numbers.
``cutback doctor`` prints the measured row.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import _native, dtypes, files

__all__ = ["MEASURED", "Device", "cache_file", "measure", "measured", "name", "resolve", "text"]

Device = str | Mapping[str, Any]
"""A device in any form that users may pass; :func:`resolve` lists the forms."""

MEASURED = "measured"
"""The name of the measured row of this machine's CPU."""

FUSED = "+fused"  # suffix of a name: pointwise chains run as one kernel
_PRODUCTS = {"f32": 512, "f64": 384, "f16": 256, "bf16": 256}  # sizes of square matrices
_STREAM = 1 << 23  # elements of f32: three arrays of 32 MiB, more than caches hold
_INTS = 1 << 16  # elements of i32 that stay in a core's cache
_POINTS = (128, 512)  # shape of an array that stays in the cores' caches
_CHAIN = ("tanh", "exp", "dropout", "gelu", "exp", "sqrt", "softmax", "sigmoid")
_TINY = 24  # number of operations on one element, which measure the cost of a launch
_ROUNDS = 7  # the fastest round counts
_POINT_ROUNDS = 30  # runs of each chain; a run takes a millisecond
_FORMAT = 3  # version of the cached row


def resolve(device: Device | None) -> str | None:
    """Converts a device to the core's form: the name of a built-in row, or a row as JSON.

    Args:
        device: one of

            - the name of a built-in row, ``"cpu"`` or ``"a100"``; with ``"+fused"`` appended it
              runs chains of pointwise operations as one kernel;
            - ``"measured"``, see :func:`measured`;
            - the path of a ``.json`` file that holds a row;
            - a row: a mapping with ``name``, ``flops_per_s`` (a mapping by class: ``f32`` and,
              where they differ, ``f64``, ``f16``, ``bf16``, ``int``), ``bytes_per_s``,
              ``launch_s`` (seconds) and optionally ``link_bytes_per_s`` (to the host), ``fused``
              and ``point_per_s`` (arithmetic of operations that fuse, by class, in operations per
              second, where an exponential counts as 10);
            - None, for the default.

    Returns:
        A name, JSON, or None. The core checks names and numbers.

    Raises:
        OSError: if the file cannot be read.
        TypeError, ValueError: if ``device`` has none of these forms.

    >>> cutback.devices.resolve("cpu")
    'cpu'
    """
    if device is None or isinstance(device, str):
        if device == MEASURED:
            return json.dumps(measured())
        if device == f"{MEASURED}{FUSED}":
            return json.dumps({**measured(), "fused": True})
        if device is not None and device.endswith(".json"):
            row = files.read_text(device)
            if not row.lstrip().startswith("{"):
                raise ValueError(f"{device}: expected a JSON object with a row of the cost model")
            return _checked(row, device)
        if device is not None and not device.isprintable():
            raise ValueError(f"device={device!r:.80}: there is no such device")
        return device
    if isinstance(device, Mapping):
        if "name" not in device:
            raise ValueError(f"device: a row needs a name; got {', '.join(map(str, device))!r}")
        return _checked(files.to_json(dict(device), "device"), "device")
    raise TypeError(f"device must be a name or a row, not {type(device).__name__}")


def _checked(row: str, where: str) -> str:
    """Returns a row as JSON.

    Raises:
        ValueError: if it is not a row of the cost model; the message begins with ``where``.
    """
    try:
        _native.check_device(row.lstrip())
    except ValueError as error:
        if where == "device":  # the message already begins with it
            raise
        raise ValueError(f"{where}: {error}") from None
    return row.lstrip()


def _model() -> str:
    """Returns the CPU's name as reported by the system."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except (OSError, UnicodeDecodeError):
        pass
    return platform.processor() or platform.machine() or "cpu"


def _key() -> dict[str, Any]:
    """Returns the facts that a measurement depends on."""
    machine = _native.machine()
    parts = {name: machine[name] for name in ("isa", "threads", "blas")}
    return {"cpu": _model(), "cutback": _native.__version__, "format": _FORMAT, **parts}


def cache_file() -> Path:
    """Returns the file with this machine's row, in ``$XDG_CACHE_HOME/cutback`` or
    ``~/.cache/cutback``.

    Its name depends on the processor, the number of cores and the versions that were measured.

    >>> print(cutback.devices.cache_file().suffix)
    .json
    """
    digest = hashlib.sha256(json.dumps(_key(), sort_keys=True).encode()).hexdigest()
    return files.cache_folder() / f"device-{digest[:16]}.json"


def trusted(path: Path) -> bool:
    """Returns True for a regular file that belongs to this user and that others cannot write."""
    status = path.lstat()
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return stat.S_ISREG(status.st_mode) and own and not others


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if not trusted(path):
            return None
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("key") != _key():
        return None
    row = document.get("row")
    return row if _is_sound(row) else None


def _is_sound(row: Any) -> bool:
    """Returns True if the row has the form that :func:`measure` returns."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return False
    rates: list[Any] = [row.get("bytes_per_s"), row.get("launch_s")]
    for key in ("flops_per_s", "point_per_s"):
        values = row.get(key, {})
        rates += values.values() if isinstance(values, dict) else [None]
    known = {"name", "flops_per_s", "point_per_s", "bytes_per_s", "launch_s"}
    return (
        set(row) <= known
        and 0 < len(row["name"].encode()) <= 80
        and "f32" in row.get("flops_per_s", {})
        and all(type(rate) in (int, float) and 0 < rate < 1e30 for rate in rates)
    )


def _write(path: Path, row: dict[str, Any]) -> None:
    """Writes the row atomically. If that fails, keeps the row in memory, so that only other
    processes have to measure again."""
    _homeless.pop(str(path), None)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"key": _key(), "row": row}, indent=1)
        files.write_text(path, text, private=True)
    except OSError:
        _homeless[str(path)] = row


def is_kept() -> bool:
    """Returns True if this machine's row was read from a file or written to one."""
    return str(cache_file()) not in _homeless


_measuring = threading.Lock()  # concurrent measurements would disturb each other
_homeless: dict[str, dict[str, Any]] = {}  # rows of this process that could not be written


def measured(fresh: bool = False) -> dict[str, Any]:
    """Returns the measured row of this machine's CPU for the cost model.

    The CPU is measured on first use, which takes less than a second. Later calls read the row from
    :func:`cache_file`.

    Args:
        fresh: measure again even if a row is cached.

    Returns:
        A row, see :func:`resolve`.

    >>> row = cutback.devices.measured()
    >>> plan = cutback.plan(problem, budget=0.5, device=row)
    """
    with _measuring:
        path = cache_file()
        row = None if fresh else _read(path) or _homeless.get(str(path))
        if row is None:
            row = measure()
            _write(path, row)
        return row


def _point_rate(dtype: str) -> float:
    """Measures the arithmetic rate of fused operations. It times a chain of exponentials, random
    bits and roots that runs as one kernel on an array in the caches, and returns the rate with
    which the cost model predicts that time."""
    graph = _native.Graph()
    value = graph.input("x", _POINTS, dtype, 0)  # data
    for kind in _CHAIN:
        attributes = {"p": 0.1, "stream": 0} if kind == "dropout" else {}
        value = graph.op(kind, (value,), attributes, None, 0, None)[0][0]
    graph.output("y", value)
    rate = {"f32": 1e9}
    free = {"name": "free", "flops_per_s": rate, "bytes_per_s": 1e18, "launch_s": 0.0}
    step = graph.compile((), backend="cpu", device=json.dumps({**free, "point_per_s": rate}))
    flops = sum(k["modelled_ps"] for k in json.loads(step.text("kernels"))["groups"]) / 1e3
    x = np.ones(_POINTS, dtypes.to_numpy(dtype))
    rounds = [step.profile([x], [np.empty_like(x)], 0, 0) for _ in range(_POINT_ROUNDS)]
    return float(flops / max(min(sum(row[1] for row in rows) for rows in rounds), 1e-9))


def measure() -> dict[str, Any]:
    """Measures this machine's CPU now, with the core's own kernels, and stores nothing.

    It times matrix products, the sum of two long arrays, integer products in the cache, operations
    on one element (the cost of a launch), and chains of operations that fuse.

    Returns:
        A row, see :func:`resolve`: rates per second, times in seconds.

    >>> row = cutback.devices.measure()
    >>> print(row["name"])
    """
    graph = _native.Graph()
    arrays: list[np.ndarray[Any, Any]] = []

    def argument(name: str, shape: tuple[int, ...], dtype: str) -> int:
        arrays.append(np.ones(shape, dtypes.to_numpy(dtype)))  # zeros would share one physical page
        return graph.input(name, shape, dtype, 0)  # data

    def result(kind: str, *values: int) -> int:
        number = graph.op(kind, values, {}, None, 0, None)[0][0]
        graph.output(f"{kind}_{number}", number)
        return number

    for dtype, n in _PRODUCTS.items():
        result("matmul", *(argument(f"{side}_{dtype}", (n, n), dtype) for side in "ab"))
    result("add", *(argument(name, (_STREAM,), "f32") for name in "xy"))
    whole = argument("whole", (_INTS,), "i32")
    result("mul", whole, whole)
    value = argument("one", (1,), "i32")  # floats would fuse into one kernel
    for _ in range(_TINY):
        value = result("neg", value)
    step = graph.compile((), backend="cpu")
    outputs = [np.empty(row[2], dtypes.to_numpy(row[1])) for row in step.outputs]
    rounds = [[row[1] for row in step.profile(arrays, outputs, 0, 0)] for _ in range(_ROUNDS)]
    seconds = [max(min(times), 1e-9) for times in zip(*rounds, strict=True)]
    assert len(seconds) == len(_PRODUCTS) + 2 + _TINY, "expected one kernel per operation"
    n = len(_PRODUCTS)
    flops = {d: 2.0 * m**3 / t for (d, m), t in zip(_PRODUCTS.items(), seconds, strict=False)}
    ops = step.plan().problem.parts().ops
    flops["int"] = next(op.flops for op in ops if op.kind == "mul") / seconds[n + 1]
    points = {"f32": _point_rate("f32"), "f64": _point_rate("f64"), "int": flops["int"]}
    return {
        "name": f"measured {_model()}".encode()[:80].decode(errors="ignore"),
        "flops_per_s": {name: float(f"{rate:.4g}") for name, rate in flops.items()},
        "point_per_s": {name: float(f"{rate:.4g}") for name, rate in points.items()},
        "bytes_per_s": float(f"{12.0 * _STREAM / seconds[n]:.4g}"),
        "launch_s": float(f"{sorted(seconds[n + 2 :])[_TINY // 2]:.4g}"),
    }


def name(device: Device) -> str:
    """Returns the name of a device or a row.

    >>> cutback.devices.name("cpu")
    'cpu'
    """
    return device if isinstance(device, str) else str(device["name"])


def text(row: Mapping[str, Any]) -> str:
    """Returns a line that describes a row: rates, bandwidth, and the cost of a launch.

    >>> print(cutback.devices.text(cutback.devices.measured()))
    """
    rates = ", ".join(f"{key} {rate / 1e9:.4g}" for key, rate in row["flops_per_s"].items())
    stream, launch = row["bytes_per_s"] / 1e9, row["launch_s"] * 1e6
    points = row.get("point_per_s", {}).get("f32")
    fuses = f"fused ops {points / 1e9:.4g} G/s, " if points else ""
    return f"{rates} Gflop/s, {fuses}{stream:.4g} GB/s, launch {launch:.2g} us"
