"""The environments that items can run in, and a plain loop over the items of one script that
remembers them in a file, for `benchmarks/gpu/bench_gpu.py`. `run.py` runs all scripts."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import package
from processes import Child, ended
from store import write_text

ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "gpu"
SECONDS = 60  # that a row may take


def gpus() -> int:
    """How many the driver sees; 0 also without a driver."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL(os.environ.get("CUTBACK_CUDA_DRIVER") or "libcuda.so.1")
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return 0
    except (OSError, AttributeError):
        return 0
    return count.value


def _simulated() -> None:
    sys.path.insert(0, str(ROOT / "tests" / "gpu_sim"))
    import nvrtc

    if nvrtc.library() is None:
        raise SystemExit("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")


def stand_in() -> dict[str, str]:
    """What makes a process take the stand-in driver for a GPU. A driver that the environment names
    already is kept: tests put one in front of it."""
    _simulated()
    import nvrtc
    from client import build

    built = str(build())
    return {
        "CUTBACK_CUDA_DRIVER": os.environ.get("CUTBACK_CUDA_DRIVER") or built,
        "CUTBACK_NVRTC": os.environ.get("CUTBACK_NVRTC") or str(nvrtc.library()),
        "CUTBACK_CUBLASLT": "none",
        "CUTBACK_CUDA_CODE": "ptx",
        "CUTBACK_CACHE_DIR": str(ROOT / "build" / "gpu_sim" / "cutback_kernels"),
    }


def null() -> dict[str, str]:
    """What makes a process take the null driver for a GPU: kernels are compiled and launched, and
    nothing runs, so that host times at full sizes can be measured and all results are wrong."""
    _simulated()
    import nvrtc
    from null_driver import build

    return {
        "CUTBACK_CUDA_DRIVER": str(build()),
        "CUTBACK_NVRTC": os.environ.get("CUTBACK_NVRTC") or str(nvrtc.library()),
        "CUTBACK_CUBLASLT": "none",
    }


def environment(installed: bool, on_stand_in: bool) -> dict[str, str]:
    """Of the processes that run rows; builds the package unless the installed one is asked for."""
    found = dict(os.environ)
    if on_stand_in:
        found |= stand_in()
    if not installed:
        path = package.package()["package"]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [path, found.get("PYTHONPATH", "")]))
    return found


def run_row(command: Sequence[str], variables: dict[str, str], seconds: int) -> dict[str, Any]:
    """What a process prints last, as JSON; or how it ended."""
    child = Child(command, variables, seconds, BUILD / "logs" / "row")
    child.wait()
    text = child.text(child.err)
    if how := ended(child):
        last = how if child.late else (text.strip().splitlines() or [how])[-1]
        return {"failed": last, "text": text[-4000:]}
    row = json.loads(child.text(child.out).strip().splitlines()[-1])
    return {**row, "seconds": round(child.seconds, 1)}


def run_all(
    file: Path,
    names: Sequence[str],
    command: Sequence[str],
    variables: dict[str, str],
    *,
    again: bool = False,
    seconds: int = SECONDS,
) -> dict[str, Any]:
    """Every name's row, of this run or, if it did not fail, of an earlier one."""
    known = {} if again or not file.exists() else json.loads(file.read_text())
    file.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        if "failed" not in known.get(name, {"failed": "never ran"}):
            print(f"{name}: known", flush=True)
            continue
        known[name] = row = run_row([*command, name], variables, seconds)
        write_text(file, json.dumps(known, indent=1) + "\n")
        print(f"{name}: {row.get('failed') or {k: v for k, v in row.items() if k != 'text'}}")
    return {name: known[name] for name in names}
