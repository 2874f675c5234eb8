"""Invariants on any GPU, at small sizes, so that the stand-in can run them too.

python checks.py --list checks     python checks.py --item NAME     python checks.py --each NAME ...

Results give the number of ``outputs``, how many of them have the CPU executor's bits (``equal``),
and whether a second run has the same bits (``repeats``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(ROOT / "benchmarks" / "cpu"), str(ROOT / "examples" / "demo")]

import items
import ours
import rows

import cutback as cb
from cutback import cuda, tree
from cutback.nn import functional as F

SEED = 7
WITHOUT_CONVOLUTIONS = [number for number in ours.LOSSES if number != 13]
SAME_BITS = (3, 4, 5, 6, 7, 9)  # rows of groups only; docs/cuda.md promises their bits
SECONDS = 60  # limit for a check


def largest_difference(a: Any, b: Any) -> float:
    """Returns the largest difference between two trees, relative to each array's largest
    element."""
    most = 0.0
    for x, y in zip(tree.flatten(a)[0], tree.flatten(b)[0], strict=True):
        here, there = (np.asarray(z, np.float64) for z in (x, y))
        if here.size:
            most = max(most, float(np.abs(here - there).max() / max(np.abs(here).max(), 1e-6)))
    return most


def bits(value: Any) -> list[bytes]:
    """Returns the bits of each array of a tree."""
    return [np.asarray(leaf).tobytes() for leaf in tree.flatten(value)[0]]


def equal_bits(a: Any, b: Any) -> dict[str, int]:
    """Returns the number of bitwise equal arrays in two trees."""
    pairs = list(zip(bits(a), bits(b), strict=True))
    return {"outputs": len(pairs), "equal": sum(x == y for x, y in pairs)}


def gradients(number: int, backend: str, dtype: Any = np.float32) -> Any:
    row = rows.ROWS[number]
    params, data = rows.inputs(number, True)
    cast = lambda x: x.astype(dtype) if x.dtype == np.float32 else x  # noqa: E731
    params, data = rows.mapped(params, cast), [cast(x) for x in data]
    loss = lambda p, *d: ours.LOSSES[number](p, *d, **row.options)  # noqa: E731
    return cb.value_and_grad(loss, seed=SEED, backend=backend)(params, *data)


def agrees_with_the_cpu(number: int, dtype: Any = np.float32) -> dict[str, Any]:
    """Compares loss and gradients of a row of benchmarks/cpu with the CPU. Rows that consist of
    groups have the CPU's bits, and others agree up to rounding. A second run always has the same
    bits."""
    limit = 1e-4 if dtype == np.float32 else 2e-2
    expected, got = gradients(number, "cpu", dtype), gradients(number, "cuda", dtype)
    seen = largest_difference(expected, got)
    result = {"difference": seen, **equal_bits(expected, got)}
    result["promised"] = result["outputs"] if number in SAME_BITS else 0
    items.show(result)
    assert seen < limit, f"{seen} where {limit} is the most"
    result["repeats"] = bits(gradients(number, "cuda", dtype)) == bits(got)
    items.show(result)
    assert result["repeats"], "a second run has other bits"
    assert result["equal"] >= result["promised"], (
        f"{result['equal']} of {result['outputs']} outputs have the CPU's bits, all should"
    )
    return result


def agrees_with_torch(number: int) -> dict[str, Any]:
    """Compares loss and gradients of a row with PyTorch's own on this GPU."""
    try:
        import in_torch
        import torch
    except Exception as error:
        return {"left out": items.no_torch(error)}
    if not torch.cuda.is_available():
        return {"left out": "PyTorch has no GPU"}
    torch.backends.cuda.matmul.allow_tf32 = False
    params, data = rows.inputs(number, True)
    theirs = rows.mapped(params, lambda x: torch.from_numpy(x).cuda().requires_grad_())
    loss = in_torch.LOSSES[number](
        theirs, *(torch.from_numpy(x).cuda() for x in data), **rows.ROWS[number].options
    )
    loss.backward()
    expected = [leaf.grad.cpu().numpy() for leaf in rows.leaves(theirs)]
    _, got = gradients(number, "cuda")
    seen = largest_difference(expected, rows.leaves(got))
    assert seen < 1e-3, seen
    return {"difference": seen}


def mlp(params: Any, x: Any, target: Any) -> Any:
    h = F.gelu(x @ params["w"] + params["b"])
    return ((F.layer_norm(h, params["scale"], params["b"]) @ params["out"] - target) ** 2).mean()


OPTIMIZERS = {
    "adamw": lambda: cb.optim.AdamW(lr=1e-2, weight_decay=0.1),
    "adam with amsgrad": lambda: cb.optim.Adam(lr=1e-2, amsgrad=True),
    "sgd": lambda: cb.optim.SGD(lr=1e-2, momentum=0.9),
    "rmsprop": lambda: cb.optim.RMSprop(lr=1e-3),
    "nadam": lambda: cb.optim.NAdam(lr=1e-3),
    "adopt": lambda: cb.optim.ADOPT(lr=1e-3),
    "radam": lambda: cb.optim.RAdam(lr=1e-3),
    "ademamix": lambda: cb.optim.AdEMAMix(lr=1e-3),
    "rprop": lambda: cb.optim.Rprop(lr=1e-3),
    "adamw 8-bit": lambda: cb.optim.AdamW8bit(lr=1e-2),
    "adafactor": lambda: cb.optim.Adafactor(lr=1e-2),
    "muon": lambda: cb.optim.Muon(lr=1e-2),
    "normuon": lambda: cb.optim.NorMuon(lr=1e-2),
}
OF_MATRICES = ("muon", "normuon")


def matrices(params: Any, x: Any, target: Any) -> Any:
    return ((F.gelu(x @ params["w"]) @ params["out"] - target) ** 2).mean()


def trains(name: str) -> dict[str, Any]:
    """Compares four steps with the CPU, with a changing learning rate."""
    rng = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {"w": (16, 64), "out": (64, 3)}
    loss = matrices if name in OF_MATRICES else mlp
    if loss is mlp:
        shapes = {"w": (16, 64), "b": (64,), "scale": (64,), "out": (64, 3)}
    x, y = rng.standard_normal((40, 16), np.float32), rng.standard_normal((40, 3), np.float32)
    start = {key: rng.standard_normal(shape, np.float32) / 8 for key, shape in shapes.items()}
    trained = {}
    for backend in ("cpu", "cuda"):
        params = {key: value.copy() for key, value in start.items()}
        step = cb.compile(loss, optimizer=OPTIMIZERS[name](), backend=backend)
        for i in range(4):
            step(params, x, y)
            if i == 1:
                step.optimizer.lr = 5e-3
        trained[backend] = params
    seen = largest_difference(trained["cpu"], trained["cuda"])
    result = {"difference": seen, **equal_bits(trained["cpu"], trained["cuda"])}
    items.show(result)
    assert seen < 2e-3, seen
    return result


def plans_give_the_same_bits() -> dict[str, Any]:
    """Runs three plans of the demo's GPT, and one of them twice."""
    import gpt

    config = gpt.GPTConfig(vocab=33, context=32, layers=1, heads=2, width=32)
    rng = np.random.default_rng(9)
    tokens, labels = (rng.integers(0, 33, (2, 32)) for _ in range(2))

    def trained(**options: Any) -> list[bytes]:
        params = gpt.init(config, np.random.default_rng(1))
        loss = lambda p, t, s: gpt.loss(p, t, s, config)  # noqa: E731
        step = cb.compile(
            loss, optimizer=cb.optim.AdamW(lr=1e-3), seed=SEED, device="cuda", **options
        )
        for _ in range(2):
            step(params, tokens, labels)
        return [np.asarray(leaf).tobytes() for leaf in tree.flatten(params)[0]]

    first = trained(preset="autograd")
    assert trained(preset="autograd") == first, "a second run has other bits"
    assert trained(preset="recompute_all") == first, "recompute_all has other bits"
    assert trained(budget="0.6x") == first, "budget 0.6 has other bits"
    return {"arrays": len(first), "repeats": True}


def arrays_stay_on_the_device() -> dict[str, Any]:
    """Checks our arrays, and PyTorch's if it is installed."""
    host = np.linspace(-1, 1, 3000, dtype=np.float32)
    step = cb.value_and_grad(lambda x: (cb.exp(x) * x).sum(), backend="cuda")
    value, grad = step(cuda.to_device(host))
    assert isinstance(grad, cuda.DeviceArray), type(grad)
    expected = np.exp(host) * (1 + host)
    assert np.allclose(grad.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert abs(float(value) - float((np.exp(host) * host).sum())) < 1e-2
    try:
        import torch
    except Exception as error:
        return {"PyTorch": items.no_torch(error)}
    if not torch.cuda.is_available():
        return {"PyTorch": "has no GPU"}
    _, theirs = step(torch.from_numpy(host).cuda())
    assert np.allclose(torch.from_dlpack(theirs).cpu().numpy(), expected, rtol=1e-5, atol=1e-6)
    return {"PyTorch": torch.__version__}


def an_index_out_of_range_changes_nothing() -> dict[str, Any]:
    """Checks that the error contains the index, and that the next call is right."""
    table = np.ones((5, 8), np.float32)
    kept = table.copy()
    step = cb.compile(
        lambda w, i: (F.embedding(i, w) ** 2).sum(), optimizer=cb.optim.SGD(lr=0.1), device="cuda"
    )
    try:
        step(table, np.array([0, 5], np.int64))
    except (ValueError, IndexError) as error:
        assert "5" in str(error), error
    else:
        raise AssertionError("an index of 5 into 5 rows was taken")
    assert (table == kept).all()
    step(table, np.array([0, 4], np.int64))
    assert (table != kept).any(axis=1).tolist() == [True, False, False, False, True]
    return {}


def named() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yields all checks."""
    for number in WITHOUT_CONVOLUTIONS:
        yield f"row {number}", lambda number=number: agrees_with_the_cpu(number)
    for number in (4, 7, 9):
        yield (
            f"row {number} in f16",
            lambda number=number: agrees_with_the_cpu(number, np.float16),
        )
    for number in (1, 2, 3, 4, 6, 7, 8, 9, 11):
        yield f"torch row {number}", lambda number=number: agrees_with_torch(number)
    for name in OPTIMIZERS:
        yield f"optimizer {name}", lambda name=name: trains(name)
    yield "plans", plans_give_the_same_bits
    yield "arrays", arrays_stay_on_the_device
    yield "index", an_index_out_of_range_changes_nothing


def _each(names: list[str]) -> int:
    """Runs several checks in one process, for tools that attach to a process."""
    checks = dict(named())
    for name in names:
        items.show({"check": name, **checks[name]()})
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--each"]:
        sys.exit(_each(sys.argv[2:]))
    listing = {name: (SECONDS, check) for name, check in named()}
    sys.exit(items.main({"checks": lambda: listing}))
