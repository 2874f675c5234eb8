"""The environments of the stand-in and of the null driver, for items that run without a GPU."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


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
