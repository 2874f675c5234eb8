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
SECONDS = 60  # limit for a row


def gpus() -> int:
    """Returns the number of GPUs that the driver sees; 0 without a driver."""
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
    """Returns the variables that make a process use the stand-in driver as a GPU. Keeps a driver
    named in the environment, because tests put one in front of the stand-in."""
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
    """Returns the variables that make a process use the null driver as a GPU. Kernels are compiled
    and launched, but nothing runs, so host times at full size can be measured and all results are
    wrong."""
    _simulated()
    import nvrtc
    from null_driver import build

    return {
        "CUTBACK_CUDA_DRIVER": str(build()),
        "CUTBACK_NVRTC": os.environ.get("CUTBACK_NVRTC") or str(nvrtc.library()),
        "CUTBACK_CUBLASLT": "none",
    }
