"""Named things that are run one by one, each in a process of its own with a limit of time, and
remembered as they end, so that an interrupted run goes on where it was."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu"
SECONDS = 60  # that a row may take


def _run(command: Sequence[str]) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, check=True)


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


def built_package() -> Path:
    """A folder with the package, built by CMake for this Python. Nothing is installed."""
    tree, package = BUILD / "tree", BUILD / "package"
    _run(
        ["cmake", "-S", str(ROOT), "-B", str(tree), "-DCMAKE_BUILD_TYPE=Release", "-DCB_PYTHON=ON",
         "-DCB_TESTS=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    )  # fmt: skip
    _run(["cmake", "--build", str(tree), "--target", "_native", "-j", str(os.cpu_count() or 1)])
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "cutback", package / "cutback")
    (module,) = tree.rglob("_native.*so")
    shutil.copy(module, package / "cutback")
    return package


def stand_in() -> dict[str, str]:
    """What makes a process find the stand-in driver for a GPU."""
    sys.path.insert(0, str(ROOT / "tests" / "gpu_sim"))
    import nvrtc
    from client import build

    compiler = nvrtc.library()
    if compiler is None:
        raise SystemExit("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
    return {
        "CUTBACK_CUDA_DRIVER": str(build()),
        "CUTBACK_NVRTC": str(compiler),
        "CUTBACK_CUBLASLT": "none",
        "CUTBACK_CUDA_CODE": "ptx",
        "CUTBACK_CACHE_DIR": str(ROOT / "build" / "gpu_sim" / "cutback_kernels"),
    }


def environment(installed: bool, on_stand_in: bool) -> dict[str, str]:
    """Of the processes that run rows."""
    found = dict(os.environ)
    if on_stand_in:
        found |= stand_in()
    if not installed:
        found["PYTHONPATH"] = os.pathsep.join([str(built_package()), found.get("PYTHONPATH", "")])
    return found


def run_row(command: Sequence[str], variables: dict[str, str], seconds: int) -> dict[str, Any]:
    """What a process says of itself in its last line; or how it ended."""
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no end within {seconds} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return {"failed": last, "text": done.stderr[-4000:]}
    row = json.loads(done.stdout.strip().splitlines()[-1])
    return {**row, "seconds": round(time.monotonic() - begin, 1)}


def run_all(
    file: Path,
    names: Sequence[str],
    command: Sequence[str],
    variables: dict[str, str],
    *,
    again: bool = False,
    seconds: int = SECONDS,
) -> dict[str, Any]:
    """Every name's row, of this run or, where it did not fail, of one before."""
    known = {} if again or not file.exists() else json.loads(file.read_text())
    file.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        if "failed" not in known.get(name, {"failed": "never ran"}):
            print(f"{name}: known", flush=True)
            continue
        known[name] = row = run_row([*command, name], variables, seconds)
        aside = file.with_suffix(".writing")
        aside.write_text(json.dumps(known, indent=1) + "\n")
        aside.replace(file)
        print(f"{name}: {row.get('failed') or {k: v for k, v in row.items() if k != 'text'}}")
    return {name: known[name] for name in names}
