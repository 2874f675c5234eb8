"""The stand-in, opened once per test process and reset after each test."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

import nvrtc
from client import BUILD, Driver, build

LOADED = "CUTBACK_STAND_IN_LOADED"


def pytest_configure(config: pytest.Config) -> None:
    """Sets a name that workers inherit, so that their kernels are counted together."""
    if not hasattr(config, "workerinput"):
        BUILD.mkdir(parents=True, exist_ok=True)
        os.environ[LOADED] = str(BUILD / f"loaded.{os.getpid()}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Prints the number of distinct kernels, which determines the time of these tests."""
    if hasattr(session.config, "workerinput") or LOADED not in os.environ:
        return
    file = Path(os.environ.pop(LOADED))
    found = set(file.read_text().split()) if file.exists() else set()
    file.unlink(missing_ok=True)
    print(f"\nthe stand-in has loaded {len(found)} distinct kernels", file=sys.stderr)


@pytest.fixture
def driver() -> Iterator[Driver]:
    opened = Driver()
    yield opened
    opened.recover()
    opened.end_streams()
    # A test that makes each entry fail may have left this thread in another mode.
    opened.result("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(0)))
    opened.seed(0)
    opened.set(races=0, unwritten=1, approximate=0, fuel=1 << 36)
    opened.set(capability=90, driver=13000, memory=8 << 30, addresses=15 << 30)


@pytest.fixture
def gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Makes Cutback find the stand-in as its driver, with race detection."""
    compiler = os.environ.get("CUTBACK_TEST_NVRTC") or nvrtc.library()
    if compiler is None:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
    monkeypatch.setenv("CUTBACK_CUDA_DRIVER", str(build()))
    monkeypatch.setenv("CUTBACK_NVRTC", str(compiler))
    monkeypatch.setenv("CUTBACK_CUBLASLT", "none")
    monkeypatch.setenv("CUTBACK_CUDA_CODE", "ptx")
    kernels = os.environ.get("CUTBACK_TEST_KERNELS") or str(BUILD / "cutback_kernels")
    monkeypatch.setenv("CUTBACK_CACHE_DIR", kernels)
    driver.set(races=1)
    yield driver
    assert driver.reports() == ""
