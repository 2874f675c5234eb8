"""The backend "cuda" from Python on the stand-in: NumPy arrays in and out, training compared with
the cpu, the same bits under every plan, and errors for missing pieces."""

from __future__ import annotations

import os
import stat
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
from client import Driver
from cutback import cli, cuda, cuda_libraries
from cutback.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "demo"))

import gpt


def mlp_loss(params: dict[str, Any], x: Any, target: Any) -> Any:
    h = F.gelu(x @ params["w1"] + params["b1"])
    h = F.dropout(F.layer_norm(h, params["scale"], params["shift"]), 0.25)
    return ((h @ params["w2"] - target) ** 2).mean()


def mlp_params() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    return {
        "w1": rng.standard_normal((16, 64), np.float32) / 4,
        "b1": np.zeros(64, np.float32),
        "scale": np.ones(64, np.float32),
        "shift": np.zeros(64, np.float32),
        "w2": rng.standard_normal((64, 3), np.float32) / 8,
    }


OPTIMIZERS = {
    "adamw": lambda: cb.optim.AdamW(lr=1e-2),
    "adam": lambda: cb.optim.Adam(lr=1e-2, weight_decay=0.1, amsgrad=True),
    "sgd": lambda: cb.optim.SGD(lr=1e-2, momentum=0.9, nesterov=True),
    "lion": lambda: cb.optim.Lion(lr=1e-3),
    "rmsprop": lambda: cb.optim.RMSprop(lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_follows_the_cpu(gpu: Driver, name: str) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((40, 16), np.float32), rng.standard_normal((40, 3), np.float32)
    trained = {}
    for backend in ("cpu", "cuda"):
        params = mlp_params()
        step = cb.compile(mlp_loss, optimizer=OPTIMIZERS[name](), seed=3, backend=backend)
        losses = [float(step(params, x, y)) for _ in range(3)]
        trained[backend] = (params, losses)
    (here, losses), (there, others) = trained["cpu"], trained["cuda"]
    assert np.allclose(losses, others, rtol=1e-4)
    for key, value in here.items():
        # Lion steps by the sign of a number that may round either way.
        assert np.allclose(value, there[key], rtol=1e-3, atol=5e-3 if name == "lion" else 2e-5), key


EVERY = {
    **OPTIMIZERS,
    "sgd, decaying": lambda: cb.optim.SGD(lr=1e-2, weight_decay=0.1, dampening=0.5, momentum=0.5),
    "adagrad": lambda: cb.optim.Adagrad(lr=1e-2),
    "adadelta": lambda: cb.optim.Adadelta(lr=1.0),
    "adamax": lambda: cb.optim.Adamax(lr=1e-2),
    "ademamix": lambda: cb.optim.AdEMAMix(lr=1e-2, alpha_warmup=5, beta3_warmup=5),
    "adopt": lambda: cb.optim.ADOPT(lr=1e-2),
    "asgd": lambda: cb.optim.ASGD(lr=1e-2, t0=1),
    "adamw, groups": lambda: cb.optim.AdamW(lr=1e-2, groups=[{"names": "*b*", "lr": 3e-2}]),
    "nadam": lambda: cb.optim.NAdam(lr=1e-2),
    "radam": lambda: cb.optim.RAdam(lr=1e-2),
    "rmsprop, centered": lambda: cb.optim.RMSprop(lr=1e-3, centered=True, momentum=0.5),
    "rprop": lambda: cb.optim.Rprop(lr=1e-3),
    "schedule-free": lambda: cb.optim.ScheduleFreeAdamW(lr=1e-2),
}


@pytest.mark.parametrize("name", EVERY)
def test_an_update_has_the_bits_of_the_cpu_s(gpu: Driver, name: str) -> None:
    """Gradients are inputs instead of results; some are infinite or NaN."""

    def loss(params: Any, g: Any) -> Any:
        return (params["w"] * g["w"]).sum() + (params["b"] * g["b"]).sum()

    rng = np.random.default_rng(1)
    grads = [{"w": rng.standard_normal((5, 9), np.float32), "b": rng.standard_normal(67)}
             for _ in range(4)]  # fmt: skip
    for values in grads[1].values():
        values.flat[:3] = np.inf, -np.inf, np.nan
    trained = []
    for backend in ("cpu", "cuda"):
        params = {"w": np.ones((5, 9), np.float32), "b": np.ones(67)}
        optimizer = EVERY[name]()
        step = cb.compile(loss, optimizer=optimizer, backend=backend)
        with np.errstate(all="ignore"):
            for g in grads:
                step(params, g)
        trained.append((params, optimizer.state_dict()))
    (here, state), (there, other) = trained
    for key, value in here.items():
        np.testing.assert_array_equal(value, there[key])
    assert set(state) == set(other)
    for key, value in state.items():
        np.testing.assert_array_equal(value, other[key], err_msg=key)


def test_gradients_and_results_are_arrays_of_numpy(gpu: Driver) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((8, 16), np.float32), rng.standard_normal((8, 3), np.float32)
    results = [
        cb.value_and_grad(mlp_loss, backend=backend)(mlp_params(), x, y)
        for backend in ("cpu", "cuda")
    ]
    (loss, grads), (other, others) = results
    assert isinstance(others["w1"], np.ndarray)
    assert abs(float(loss) - float(other)) < 1e-5
    for key in grads:
        assert np.allclose(grads[key], others[key], atol=1e-5), key


def test_a_batch_of_another_size_is_not_compiled_again(
    gpu: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(tmp_path))
    rng = np.random.default_rng(4)
    compiled = None
    for rows in (40, 100, 36):
        x, y = rng.standard_normal((rows, 16), np.float32), rng.standard_normal((rows, 3), "f")
        results = [
            cb.value_and_grad(mlp_loss, backend=backend)(mlp_params(), x, y)
            for backend in ("cpu", "cuda")
        ]
        (loss, grads), (other, others) = results
        assert abs(float(loss) - float(other)) < 1e-5
        for key in grads:
            assert np.allclose(grads[key], others[key], atol=1e-5), key
        files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
        assert files, "nothing was kept"
        assert compiled is None or files == compiled, f"{rows} rows were compiled again"
        compiled = files


def gpt_params(options: dict[str, Any]) -> tuple[Any, float]:
    config = gpt.GPTConfig(vocab=33, context=32, layers=2, heads=2, width=32)
    params = gpt.init(config, np.random.default_rng(1))
    rng = np.random.default_rng(9)
    tokens, labels = (rng.integers(0, 33, (2, 32)) for _ in range(2))

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        return gpt.loss(params, tokens, labels, config)

    step = cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3), seed=7, **options)
    for _ in range(2):
        last = float(step(params, tokens, labels))
    return params, last


def flat(tree: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(tree, dict):
        return [array for key in sorted(tree) for array in flat(tree[key])]
    if isinstance(tree, list):
        return [array for item in tree for array in flat(item)]
    return [tree]


@pytest.mark.very_slow
@pytest.mark.parametrize(
    "options", [{"preset": "recompute_all"}, {"budget": "0.6x"}], ids=["recompute_all", "budget"]
)
def test_plans_of_the_demos_gpt_give_the_same_bits(gpu: Driver, options: dict[str, str]) -> None:
    everything, loss = gpt_params({"device": "cuda", "preset": "autograd"})
    gpu.seed(2)
    params, other = gpt_params({"device": "cuda", **options})
    assert other == loss
    for a, b in zip(flat(everything), flat(params), strict=True):
        assert a.tobytes() == b.tobytes()
    _, other = gpt_params({"preset": "autograd"})
    assert abs(loss - other) < 1e-4


def test_no_driver_lists_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTBACK_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    with pytest.raises(cuda_libraries.LibraryError, match=r"CUTBACK_CUDA_DRIVER: /nowhere"):
        cb.value_and_grad(mlp_loss, device="cuda")(
            mlp_params(), np.zeros((2, 16), np.float32), np.zeros((2, 3), np.float32)
        )


def test_a_stub_is_recognised(gpu: Driver) -> None:
    gpu.fail("cuInit", 1, 34)
    with pytest.raises(cuda_libraries.LibraryError, match="is the stub that a CUDA toolkit"):
        cuda.prepare()


def test_no_nvrtc(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTBACK_NVRTC", "/nowhere/libnvrtc.so")
    with pytest.raises(cuda_libraries.LibraryError, match=r"NVRTC was not found"):
        cuda.prepare()


def test_devices_that_are_not_there(gpu: Driver) -> None:
    with pytest.raises(ValueError, match=r"cuda:7.*this machine has"):
        cuda.resolve("cpu", "cuda:7")
    with pytest.raises(ValueError, match="and a number"):
        cuda.resolve("cpu", "cuda:x")
    with pytest.raises(ValueError, match='runs on the backend "cuda"'):
        cuda.resolve("ref", "cuda")
    assert cuda.resolve("ref", "h100") == ("ref", "h100")


def test_an_op_without_a_kernel_is_named(gpu: Driver) -> None:
    def loss(w: Any, x: Any) -> Any:
        return (F.conv2d(x, w) ** 2).mean()

    x, w = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    with pytest.raises(NotImplementedError, match="conv2d: the cuda backend has no kernel"):
        cb.value_and_grad(loss, device="cuda")(w, x)


@cb.optim.foreach
def plain(p: Any, g: Any, *, lr: float = 0.1) -> Any:
    return p - lr * g


OTHERS: dict[str, Any] = {
    "soap": lambda: cb.optim.SOAP(precondition_frequency=1),
    "adamw8bit": cb.optim.AdamW8bit,
    "foreach": plain,
}
ON_HOST = ("soap", "foreach")


def of_elements(params: Any, x: Any) -> Any:
    """A loss whose gradients have the same bits on the device as on a CPU."""
    return sum(((p * p) * x).sum() for p in params.values())


@pytest.mark.parametrize("name", OTHERS)
def test_an_optimizer_with_other_states(gpu: Driver, name: str) -> None:
    """Parameters and states have the bits of the CPU where the step is the CPU's; arrays may be on
    either side. What steps in the host's memory cannot be captured."""
    rng, found = np.random.default_rng(2), []
    first = {"a": rng.standard_normal((40, 9), np.float32), "b": np.ones((9, 7), np.float32)}
    for backend, there in (("cpu", False), ("cuda", False), ("cuda", True)):
        params, optimizer = {k: v.copy() for k, v in first.items()}, OTHERS[name]()
        step = cb.compile(of_elements, optimizer=optimizer, backend=backend)
        params = cuda.to_device(params) if there else params
        for x in (1.0, 0.5, -2.0):
            step(params, np.float32(x))
        held = optimizer.state_dict()
        found.append([np.asarray(a).tobytes() for a in (*params.values(), *held.values())])
    assert found[0] == found[1] == found[2]
    if name in ON_HOST:
        with pytest.raises(NotImplementedError, match="in the host's memory, which cannot be part"):
            step.capture(params)(np.float32(1))
    assert optimizer.t == 3


@pytest.mark.very_slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_of_factored_moments(gpu: Driver, dtype: Any) -> None:
    """Arrays without matrices, matrices and stacks of them are stepped as on a CPU, but for the
    order of sums in double; replays have the bits of calls."""
    rng, found = np.random.default_rng(6), []
    shapes = ((5000,), (70, 9), (9, 70), (70, 9), (4, 3, 3, 3), ())
    first = {f"w{i}": np.array(rng.standard_normal(s), dtype) for i, s in enumerate(shapes)}
    for where in ("cpu", "cuda", "captured"):
        params = {k: v.copy() for k, v in first.items()}
        optimizer = cb.optim.Adafactor(lr=0.2, weight_decay=0.1, d=1.5)
        backend = "cpu" if where == "cpu" else "cuda"
        step: Any = cb.compile(of_elements, optimizer=optimizer, backend=backend)
        params = params if where == "cpu" else cuda.to_device(params)
        step = step.capture(params) if where == "captured" else partial(step, params)
        for x in (1.0, 0.5, -2.0):
            step(dtype(x))
            optimizer.lr *= 0.5
        held = optimizer.state_dict()
        found.append([np.asarray(a) for a in (*params.values(), *held.values())])
    for own, other, again in zip(*found, strict=True):
        least = 2e-6 if dtype is np.float32 else 1e-14
        np.testing.assert_allclose(other, own, rtol=least, atol=1e-15)
        assert other.tobytes() == again.tobytes()


@pytest.mark.very_slow
def test_blocks_of_8_bit_moments(gpu: Driver) -> None:
    """Blocks that are short, without a gradient, or with a square that overflows; captured too."""
    rng, found = np.random.default_rng(5), []
    first = {"a": rng.standard_normal(5000, np.float32), "b": rng.standard_normal(3, np.float32)}
    first["a"][:300] = 0
    first["a"][700] = 3e25
    for kind in ("cpu", "cuda", "captured"):
        params, optimizer = {k: v.copy() for k, v in first.items()}, cb.optim.AdamW8bit(lr=0.1)
        backend = "cpu" if kind == "cpu" else "cuda"
        step: Any = cb.compile(of_elements, optimizer=optimizer, backend=backend)
        params = params if kind == "cpu" else cuda.to_device(params)
        step = step.capture(params) if kind == "captured" else partial(step, params)
        for x in (1.0, 1e-3, -2.0):
            step(np.float32(x))
        held = optimizer.state_dict()
        found.append([np.asarray(a).tobytes() for a in (*params.values(), *held.values())])
    assert found[0] == found[1] == found[2]


@pytest.mark.very_slow
@pytest.mark.parametrize("kind", [cb.optim.Muon, cb.optim.NorMuon])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_of_matrices(gpu: Driver, kind: Any, dtype: Any) -> None:
    """Batches of equal, tall and wide matrices are stepped as on a CPU, but for the order of
    sums; replays have the bits of calls."""
    rng, found = np.random.default_rng(6), []
    shapes = ((66, 2), (2, 5), (66, 2))
    first = {f"w{i}": rng.standard_normal(s).astype(dtype) for i, s in enumerate(shapes)}
    for where in ("cpu", "cuda", "captured"):
        groups = [{"names": "*w2*", "lr": 0.3}]
        params, optimizer = (
            {k: v.copy() for k, v in first.items()},
            kind(lr=0.2, groups=groups, ns_steps=2),
        )
        backend = "cpu" if where == "cpu" else "cuda"
        step: Any = cb.compile(of_elements, optimizer=optimizer, backend=backend)
        params = params if where == "cpu" else cuda.to_device(params)
        step = step.capture(params) if where == "captured" else partial(step, params)
        for x in (1.0, -2.0):
            step(dtype(x))
            optimizer.lr *= 0.5
        held = optimizer.state_dict()
        found.append([np.asarray(a) for a in (*params.values(), *held.values())])
    for own, other, again in zip(*found, strict=True):
        np.testing.assert_allclose(other, own, rtol=0, atol=2e-6 if dtype is np.float32 else 1e-13)
        assert other.tobytes() == again.tobytes()
    optimizer.ns_steps = 3
    with pytest.raises(ValueError, match="ns_steps is 3, but the captured graph makes 2"):
        step(dtype(1))


def test_the_cache_is_told_and_cleared(
    gpu: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = tmp_path / "kernels"
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(folder))
    assert cuda.cache_info() == cuda.Cache(folder, 0, 0)
    step = cb.compile(lambda x: (x * 3.5).sum(), argnums=None, backend="cuda")
    assert float(step(np.ones(5, np.float32))) == 17.5
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kept = cuda.cache_info()
    assert kept.files == 1 and kept.bytes > 1000 and not kept.problem
    (folder / "mine.txt").write_text("not a kernel")
    assert cli.main(["cache", "info"]) == 0
    assert str(folder) in capsys.readouterr().out
    folder.chmod(0o777)
    assert "others may write it" in cuda.cache_info().problem
    folder.chmod(0o700)
    assert cli.main(["cache", "clear"]) == 0
    assert "deleted 1 files" in capsys.readouterr().out
    assert os.listdir(folder) == ["mine.txt"]


def test_where_the_cache_is() -> None:
    assert cuda.cache_folder({"CUTBACK_CACHE_DIR": "/a"}) == Path("/a")
    assert cuda.cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/cutback/kernels")
    assert cuda.cache_folder({}) == Path.home() / ".cache" / "cutback" / "kernels"
