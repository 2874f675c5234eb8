"""Captured steps: the bits of uncaptured ones, one launch per call, new numbers without a new
capture, and errors in plain words."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback import cuda
from cutback.nn import functional as F


def loss(params: dict[str, Any], x: Any, target: Any) -> Any:
    h = F.dropout(F.gelu(x @ params["w1"] + params["b1"]), 0.25)
    return ((h @ params["w2"] - target) ** 2).mean()


def arrays(rows: int = 8) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    rng = np.random.default_rng(3)
    params = {
        "w1": rng.standard_normal((4, 8), np.float32) / 2,
        "b1": np.zeros(8, np.float32),
        "w2": rng.standard_normal((8, 3), np.float32) / 3,
    }
    batches = [
        (rng.standard_normal((rows, 4), np.float32), rng.standard_normal((rows, 3), np.float32))
        for _ in range(5)
    ]
    return params, batches


def compiled(optimizer: Any) -> Any:
    return cb.compile(loss, optimizer=optimizer, seed=7, device="cuda")


def bits(params: Any) -> dict[str, bytes]:
    return {key: np.asarray(value).tobytes() for key, value in params.items()}


def test_replays_have_the_bits_of_steps(gpu: Driver) -> None:
    """Learning rates and random steps change between replays; batches come from the host, from the
    device and on a stream, each at another address."""
    params, batches = arrays()
    stream = gpu.stream()
    found = []
    for captures in (False, True):
        optimizer = cb.optim.NAdam(lr=1e-2)
        step, there = compiled(optimizer), cuda.to_device(params)
        run = step.capture(there) if captures else partial(step, there)
        losses = [float(run(*batches[0])), float(run(*cuda.to_device(batches[1])))]
        optimizer.lr = 3e-2
        losses.append(float(run(*cuda.to_device(batches[2]), stream=stream.value)))
        step.rng_step = 20
        losses += [float(run(*batches[3])), float(run(*batches[4], rng_step=2))]
        assert step.rng_step == 3 and optimizer.t == 5
        found.append((losses, bits(there), optimizer.state_dict()))
        assert not captures or run.n_captured == 1
    (losses, here, state), (others, replayed, other) = found
    assert losses == others and here == replayed
    assert bits(state) == bits(other)


def test_other_work_between_replays(gpu: Driver) -> None:
    """Replays go on after uncaptured steps on these and on other parameters, a second graph for
    another shape, and a checkpoint loaded into the optimizer."""
    params, batches = arrays()
    _, short = arrays(rows=6)
    found = []
    for captures in (False, True):
        optimizer = cb.optim.AdamW(lr=1e-2)
        step, there = compiled(optimizer), cuda.to_device(params)
        run = step.capture(there) if captures else partial(step, there)
        run(*batches[0])
        kept = step.state_dict(there)
        step(there, *batches[1])
        run(*short[0])
        run(*batches[2])
        step.load_state_dict(kept, there)
        run(*batches[3])
        assert not captures or run.n_captured == 3
        assert optimizer.t == 2
        found.append(bits(there))
    assert found[0] == found[1]


def test_gradients_and_running_statistics(gpu: Driver) -> None:
    def with_statistics(w: Any, running: Any, x: Any) -> Any:
        h = F.batch_norm(x * w, running["mean"], running["var"], training=True)
        return (h * x).mean()

    rng = np.random.default_rng(1)
    w, x = rng.standard_normal(8, np.float32), rng.standard_normal((4, 8), np.float32)
    step = cb.value_and_grad(with_statistics, device="cuda")
    found = []
    for captures in (False, True):
        there = cuda.to_device(w)
        running = cuda.to_device({"mean": np.zeros(8, np.float32), "var": np.ones(8, np.float32)})
        run = step.capture(there, running) if captures else partial(step, there, running)
        results = [run(x), run(2 * x)]
        found.append([np.asarray(a).tobytes() for value, grad in results for a in (value, grad)])
        found[-1] += bits(running).values()
    assert found[0] == found[1]
    with pytest.raises(ValueError, match=r"running\['mean'\] is updated by the step.*to capture"):
        step.capture(there)(running, x)


def word(driver: Driver, address: int, value: Any) -> None:
    """Writes a number in the device's memory."""
    size = ctypes.c_size_t(ctypes.sizeof(value))
    driver.wait()
    driver.call("cuMemcpyHtoD", ctypes.c_uint64(address), ctypes.byref(value), size)


def test_numbers_on_the_device(gpu: Driver) -> None:
    """A loss scaler skips an update; a scheduler's kernel changes the rate."""
    params, batches = arrays()
    optimizer = cb.optim.SGD(lr=0.0)
    step, there = compiled(optimizer), cuda.to_device(params)
    captured = step.capture(there)
    captured(*batches[0])
    at = captured.on_device()
    word(gpu, at.found_inf, ctypes.c_uint32(1))
    word(gpu, at.hyper, ctypes.c_double(0.5))
    captured(*batches[0])
    assert bits(there) == bits(params)
    captured.wait()
    assert optimizer.t == 1
    word(gpu, at.found_inf, ctypes.c_uint32(0))
    captured(*batches[0])
    assert bits(there) != bits(params) and optimizer.t == 2
    with pytest.raises(ValueError, match="no group 4"):
        captured.on_device(4)


def test_a_wrong_index_changes_nothing(gpu: Driver) -> None:
    def of_rows(table: Any, rows: Any) -> Any:
        return (F.embedding(rows, table) ** 2).sum()

    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    optimizer = cb.optim.AdamW(lr=0.1)
    step = cb.compile(of_rows, optimizer=optimizer, device="cuda")
    there, other = cuda.to_device(table), table.copy()
    captured = step.capture(there)
    right, wrong = np.array([1, 2]), np.array([1, 9])
    captured(right)
    before = np.asarray(there).tobytes()
    with pytest.raises(ValueError, match="9 out of range for 4"):
        captured(wrong)
    assert optimizer.t == 1 and np.asarray(there).tobytes() == before
    captured(right)
    again = cb.compile(of_rows, optimizer=cb.optim.AdamW(lr=0.1), device="cuda")
    for _ in range(2):
        again(other, right)
    assert np.asarray(there).tobytes() == other.tobytes()


def test_few_graphs_are_kept(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs used last are kept; a graph that is dropped releases its arrays."""
    monkeypatch.setattr("cutback.frontend.captured._MOST_GRAPHS", 2)
    step = cb.value_and_grad(lambda w, x: (w * x).sum(), device="cuda")
    captured = step.capture(cuda.to_device(np.ones((), np.float32)))
    a, b, c = (np.ones(n, np.float32) for n in (1, 2, 3))
    for x, captures in ((a, 1), (b, 2), (a, 2), (c, 3), (a, 3), (b, 4)):
        value, _ = captured(x)
        assert float(value) == x.size and captured.n_captured == captures
    del value, _
    used = cuda.memory().in_use
    captured.clear()
    assert cuda.memory().in_use < used
    with pytest.raises(ValueError, match="has not been captured yet"):
        captured.wait()
    value, _ = captured(b)
    assert float(value) == 2 and captured.n_captured == 5


def test_errors(gpu: Driver) -> None:
    params, batches = arrays()
    here = cb.compile(loss, optimizer=cb.optim.AdamW())
    with pytest.raises(ValueError, match=r"runs on 'cpu', which cannot capture graphs"):
        here.capture(params)
    step = compiled(cb.optim.AdamW())
    with pytest.raises(ValueError, match=r"params\['b1'\] is a NumPy array.*to_device"):
        step.capture(params)
    with pytest.raises(ValueError, match="at least the first argument"):
        step.capture()
    captured = step.capture(cuda.to_device(params))
    with pytest.raises(ValueError, match="has not been captured yet"):
        captured.wait()
    x, y = batches[0]
    with pytest.raises(ValueError, match=r"x.*not contiguous"):
        captured(x.T.copy().T, y)


@pytest.mark.very_slow
def test_the_demo_trains_a_captured_gpt(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make demo DEVICE=cuda` with a smaller model gives the bits of steps that are not
    captured."""
    folder = Path(__file__).parents[2] / "examples" / "demo"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("demo_run", folder / "run.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo_run", demo)
    spec.loader.exec_module(demo)
    config = demo.gpt.GPTConfig(vocab=17, context=8, layers=1, heads=2, width=16)
    rng = np.random.default_rng(9)
    batches = [(rng.integers(0, 17, (2, 8)), rng.integers(0, 17, (2, 8))) for _ in range(3)]
    task = demo.Task(
        name="GPT",
        start=lambda: (demo.gpt.init(config, np.random.default_rng(1)), ()),
        loss=lambda params, tokens, labels: demo.gpt.loss(params, tokens, labels, config),
        batches=lambda: iter(batches),
        score=lambda params, extra, recent: f"{recent}",
        optimizer=lambda: cb.optim.AdamW(lr=1e-3),
        steps=3,
    )
    result = demo.train(task, "budget", budget=0.5, device="cuda")
    params = cuda.to_device(task.start()[0])
    step = cb.compile(task.loss, optimizer=task.optimizer(), seed=7, budget=0.5, device="cuda")
    losses = [float(step(params, *batch)) for batch in batches]
    assert demo.same_bits(result.params, cuda.to_host(params))
    assert result.score == f"{float(np.mean(losses))}"
    assert result.step.stats.peak_bytes == result.step.planned.arena_bytes


CALLED = [
    "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
    "cuGraphLaunch", "cuMemcpyDtoDAsync_v2", "cuStreamIsCapturing",
]  # fmt: skip


@pytest.mark.very_slow
@pytest.mark.parametrize("entry", CALLED)
def test_an_entry_that_fails_changes_nothing(gpu: Driver, entry: str) -> None:
    """Later calls have the bits of calls without a failure."""
    params, batches = arrays()
    found = []
    for fails in (False, True):
        optimizer = cb.optim.AdamW(lr=1e-2)
        step, there = compiled(optimizer), cuda.to_device(params)
        captured = step.capture(there)
        x, y = cuda.to_device(batches[0])
        if fails:
            gpu.fail(entry)
            with pytest.raises(RuntimeError, match=entry.removesuffix("_v2")):
                captured(x, y)
            assert bits(there) == bits(params) and optimizer.t == 0
        for _ in range(2):
            captured(x, y)
        found.append(bits(there))
    assert found[0] == found[1]


def test_a_result_that_cannot_be_copied(gpu: Driver) -> None:
    """The update has been made by then, so it counts."""
    params, batches = arrays()
    found = []
    for fails in (False, True):
        optimizer = cb.optim.AdamW(lr=1e-2)
        step, there = compiled(optimizer), cuda.to_device(params)
        captured = step.capture(there)
        x, y = cuda.to_device(batches[0])
        captured(x, y)
        if fails:
            gpu.fail("cuMemcpyDtoDAsync_v2", 3)
            with pytest.raises(RuntimeError, match="cuMemcpyDtoDAsync"):
                captured(x, y)
        else:
            captured(x, y)
        assert optimizer.t == 2 and step.rng_step == 2
        captured(x, y)
        found.append(bits(there))
    assert found[0] == found[1]


COUNTED = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import cutback as cb
from cutback import cuda
from null_driver import NullDriver

def loss(params, x):
    return sum((p * x).sum() for p in params)

n = int(sys.argv[2])
driver = NullDriver()
params = cuda.to_device([np.ones(4, np.float32) for _ in range(n)])
x = cuda.to_device(np.ones(4, np.float32))
step = cb.compile(loss, optimizer=cb.optim.AdamW(), device="cuda")
captured = step.capture(params)
for _ in range(3): captured(x, stream=2)
driver.clear()
for _ in range(20): captured(x, stream=2)
counts = driver.counts()
print(counts.get("cuLaunchKernel", 0), counts["cuGraphLaunch"],
      counts.get("cuMemcpyHtoDAsync_v2", 0), counts["cuMemcpyDtoDAsync_v2"], sum(counts.values()))
"""


def counted(n: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the launches of kernels and of graphs, the copies from the host and on the device,
    and all calls of the driver, in 20 replays."""
    from null_driver import build

    monkeypatch.setenv("CUTBACK_CUDA_DRIVER", str(build()))
    folder = str(Path(__file__).parent)
    out = subprocess.run(
        [sys.executable, "-c", COUNTED, folder, str(n)], capture_output=True, text=True, check=True
    ).stdout
    return [int(word) for word in out.split()]


def test_a_replay_is_one_launch(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input and the result are copied on the device; nothing comes from the host. The number of
    tensors changes nothing."""
    few = counted(3, monkeypatch)
    assert few[:4] == [0, 20, 0, 40]
    assert counted(50, monkeypatch) == few
