"""Everything that can go wrong on a machine with a GPU, produced by the stand-in. Each fault gives
one exception that says what to do, leaves the host unchanged, and lets the next step work."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback import cuda
from cutback.cuda_libraries import LibraryError

X = np.linspace(-1, 1, 40 * 16, dtype=np.float32).reshape(40, 16)


def loss(params: dict[str, Any], x: Any) -> Any:
    return (cb.tanh(x @ params["w"] + params["b"]) ** 2).mean()


class Training:
    """A step after two calls, and all its state on the host."""

    def __init__(self, on_device: bool) -> None:
        self.params: dict[str, Any] = {
            "w": np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8),
            "b": np.zeros(8, np.float32),
        }
        self.x: Any = X
        if on_device:
            self.params, self.x = cuda.to_device((self.params, X))
        self.optimizer = cb.optim.AdamW(lr=1e-2)
        self.step = cb.compile(loss, optimizer=self.optimizer, device="cuda")
        for _ in range(2):
            self.step(self.params, self.x)

    def state(self) -> dict[str, bytes]:
        params = cuda.to_host(self.params)
        held = {**params, **self.optimizer.state_dict(), "draws": self.step.rng_step}
        return {key: np.asarray(value).tobytes() for key, value in held.items()}


def another(x: Any) -> Any:
    """Makes a program that is not compiled yet."""
    return cb.exp(x) * 1.5


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    before = os.environ[name]
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ[name] = before


def compile_another(t: Training) -> None:
    cb.compile(another, argnums=None, device="cuda")(t.x)


def step_again(t: Training) -> None:
    t.step(t.params, t.x)


@contextmanager
def failing(gpu: Driver, entry: str, code: int) -> Iterator[None]:
    gpu.fail(entry, 1, code)
    try:
        yield
    finally:
        gpu.fail(entry, 0)


@contextmanager
def setting(gpu: Driver, **settings: tuple[int, int]) -> Iterator[None]:
    """Sets the first value, and the second on exit."""
    gpu.set(**{name: values[0] for name, values in settings.items()})
    try:
        yield
    finally:
        gpu.set(**{name: values[1] for name, values in settings.items()})


def no_memory_left(gpu: Driver) -> Any:
    cuda.release_memory()
    return setting(gpu, memory=(gpu.library.sim_allocated() + 8, 8 << 30))


LOST = {"a context that is lost in the run"}
NOT_A_DRIVER = "/proc/self/status"
BAD: dict[str, tuple[Callable[[Driver], Any], Callable[[Training], None], type[Exception], str]] = {
    "no driver": (
        lambda gpu: variable("CUTBACK_CUDA_DRIVER", "/nowhere/libcuda.so.1"),
        compile_another,
        LibraryError,
        r"CUTBACK_CUDA_DRIVER: /nowhere",
    ),
    "another file": (
        lambda gpu: variable("CUTBACK_CUDA_DRIVER", NOT_A_DRIVER),
        compile_another,
        LibraryError,
        NOT_A_DRIVER,
    ),
    "an old driver": (
        lambda gpu: setting(gpu, driver=(11080, 13000)),
        compile_another,
        LibraryError,
        r"from CUDA 11\.8; CUDA 12\.0 or newer is needed: update the NVIDIA driver",
    ),
    "a stub": (
        lambda gpu: failing(gpu, "cuInit", 34),
        compile_another,
        LibraryError,
        r"is the stub that a CUDA toolkit provides for linking.*install the NVIDIA driver",
    ),
    "no device": (
        lambda gpu: failing(gpu, "cuInit", 100),
        compile_another,
        LibraryError,
        r"sees no device \(CUDA_VISIBLE_DEVICES",
    ),
    "no NVRTC": (
        lambda gpu: variable("CUTBACK_NVRTC", "/nowhere/libnvrtc.so"),
        compile_another,
        LibraryError,
        "NVRTC was not found",
    ),
    "memory for a program": (no_memory_left, compile_another, MemoryError, "OUT_OF_MEMORY"),
    "a context that was lost before": (
        lambda gpu: setting(gpu, failed=(700, 0)),
        step_again,
        RuntimeError,
        r"ILLEGAL_ADDRESS.*context is lost.*start the process again",
    ),
    "a context that is lost in the run": (
        lambda gpu: failing(gpu, "cuStreamSynchronize", 719),
        step_again,
        RuntimeError,
        r"LAUNCH_FAILED.*context is lost",
    ),
    "a launch that is refused": (
        lambda gpu: failing(gpu, "cuLaunchKernel", 701),
        step_again,
        RuntimeError,
        r"cuLaunchKernel.*LAUNCH_OUT_OF_RESOURCES",
    ),
}


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("what", BAD)
def test_what_goes_wrong_is_said_and_changes_nothing(
    gpu: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, on_device: bool
) -> None:
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(tmp_path))
    make, act, error, words = BAD[what]
    if on_device and what in LOST:
        pytest.skip("what lies on the device is lost with it")
    undisturbed, training = Training(on_device), Training(on_device)
    before = training.state()
    with make(gpu), pytest.raises(error, match=f"(?s){words}"):
        act(training)
    assert training.state() == before
    undisturbed.step(undisturbed.params, undisturbed.x)
    training.step(training.params, training.x)
    assert training.state() == undisturbed.state()


def test_a_device_that_is_too_old_names_the_way_out(gpu: Driver) -> None:
    """Runs NVRTC in a fresh process, because an open device keeps its properties."""
    import subprocess
    import sys

    code = """
import ctypes, os
driver = ctypes.CDLL(os.environ["CUTBACK_CUDA_DRIVER"])
driver.sim_set(b"capability", ctypes.c_long(70))
import numpy as np, cutback as cb
try:
    cb.compile(lambda x: x * 2, argnums=None, device="cuda")(np.ones(3, np.float32))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "NotImplementedError" in done.stdout, done.stdout + done.stderr
    assert "this device has 7.0: install NVRTC of CUDA 12" in done.stdout


def test_a_capture_in_progress(gpu: Driver) -> None:
    """Compiling during a capture is not captured; a step is refused; the capture stays intact."""
    t = Training(True)
    before = t.state()
    stream, graph, status = gpu.stream(), ctypes.c_void_p(), ctypes.c_int()
    new = cb.compile(another, argnums=None, device="cuda")
    fill = (ctypes.c_uint64(t.params["b"].address), 7, ctypes.c_size_t(8), stream)
    gpu.call("cuStreamBeginCapture", stream, 0)
    gpu.call("cuMemsetD32Async", *fill)
    new.prepare(t.x)
    for step, arguments in ((new, (t.x,)), (t.step, (t.params, t.x))):
        with pytest.raises(NotImplementedError, match=r"being captured.*end the capture"):
            step(*arguments, stream=stream.value)
    cuda.to_device(X)
    gpu.call("cuStreamIsCapturing", stream, ctypes.byref(status))
    assert status.value == 1
    gpu.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    assert graph.value
    gpu.call("cuGraphDestroy", graph)
    assert t.state() == before
    new(t.x, stream=stream.value)
    new.wait()


def scenario(gpu: Driver, step: cb.Step, stream: ctypes.c_void_p) -> bytes:
    x = cuda.to_device(X)
    y = step(step(x), stream=stream.value)
    result = y.numpy().tobytes()
    step.wait()
    return result


def test_each_entry_that_fails_once_is_one_clean_error(gpu: Driver) -> None:
    """Checks arrays on the device; tests/c/gpu covers those on the host."""
    step, stream = cb.compile(another, argnums=None, device="cuda"), gpu.stream()
    good = scenario(gpu, step, stream)
    failed = 0
    for i in range(200):
        entry = gpu.library.sim_entry(i)
        if not entry:
            break
        name = entry.decode()
        if any(part in name for part in ("GetError", "Destroy", "Free", "Release", "Pop")):
            continue  # entries that describe errors or free things cannot report an error
        for nth in range(1, 100):
            gpu.fail(name, nth, 2 if "Alloc" in name else 999)
            try:
                assert scenario(gpu, step, stream) == good
            except (RuntimeError, MemoryError) as error:
                assert "cu" in str(error) and "CUDA_ERROR" in str(error), error
                failed += 1
            was_due = gpu.is_due(name)
            gpu.fail(name, 0)
            if was_due:
                break
    assert failed > 15
    assert scenario(gpu, step, stream) == good
