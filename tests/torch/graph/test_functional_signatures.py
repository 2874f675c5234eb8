"""``cutback.nn.functional`` has the signatures and values of ``torch.nn.functional``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as T
from coverage_rows import TORCH

import cutback
from cutback.nn import functional as F

OURS = sorted(name for name in F.__all__ if hasattr(T, name))
RNG = np.random.default_rng(0)
X, W, B = (RNG.standard_normal(s).astype(np.float32) for s in ((2, 3, 6), (6,), (6,)))
W2, B2 = (RNG.standard_normal((3, 6)).astype(np.float32) for _ in range(2))
IMAGES = RNG.standard_normal((2, 4, 8, 8)).astype(np.float32)
FILTERS = RNG.standard_normal((4, 2, 3, 3)).astype(np.float32)
C = RNG.standard_normal(4).astype(np.float32)
LABELS = np.array([0, 5, -100, 2])
SCORES = RNG.standard_normal((4, 6)).astype(np.float32)
Q, K, V = (RNG.standard_normal((2, 5, 6)).astype(np.float32) for _ in range(3))


def theirs(name: str) -> list[tuple[str, Any]]:
    """Returns (parameter, default) of PyTorch's function; for a builtin, from the first line of its
    docstring."""
    # dispatches on whether indices are returned
    dispatches = re.match("(adaptive_)?max_pool", name)
    function = getattr(T, f"_{name}" if dispatches else name)
    try:
        rows = inspect.signature(function).parameters.values()
        return [(p.name, p.default) for p in rows]
    except ValueError:
        line = re.search(rf"{name}\((.*?)\) -> \w*Tensor", function.__doc__, re.DOTALL)
        assert line is not None, name
        rows = []
        for part in re.split(r",\s*(?![^()]*\))", line[1]):
            key, _, default = (word.strip() for word in part.partition("="))
            if key != "*":
                rows.append((key, eval(default) if default else inspect.Parameter.empty))
        return rows


@pytest.mark.parametrize("name", OURS)
def test_parameters(name: str) -> None:
    ours = [(p.name, p.default) for p in inspect.signature(getattr(F, name)).parameters.values()]
    expected = theirs(name)
    assert [key for key, _ in ours] == [key for key, _ in expected]
    for (key, default), (_, wanted) in zip(ours, expected, strict=True):
        if wanted is not inspect.Parameter.empty and (name, key) != ("one_hot", "num_classes"):
            assert default == wanted or (name, key, default) == ("rms_norm", "eps", None), key


def value(function: Callable[..., Any], *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
    at = [i for i, a in enumerate(args) if isinstance(a, np.ndarray)]

    def inside(*arrays: Any) -> Any:
        given = list(args)
        for i, array in zip(at, arrays, strict=True):
            given[i] = array
        return function(*given, **kwargs)

    return np.asarray(cutback.compile(inside, argnums=None)(*(args[i] for i in at)))


CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("relu", (X,), {}), ("relu", (X, False), {}), ("gelu", (X,), {"approximate": "tanh"}),
    ("silu", (X, False), {}), ("sigmoid", (X,), {}),
    ("softmax", (X, -1), {}), ("softmax", (X,), {"dim": 0}), ("softmax", (X, 1, 3), {}),
    ("log_softmax", (X,), {"dim": -1}), ("log_softmax", (X, 1), {}),
    ("linear", (X, RNG.standard_normal((5, 6)).astype(np.float32)), {}),
    ("embedding", (np.array([[0, 3], [1, 1]]), SCORES), {}),
    ("embedding", (np.array([0, 3]), SCORES, None, None, 2.0, False, False), {}),
    ("embedding", (np.array([0, 3]), SCORES, 1), {}),
    ("embedding", (np.array([0, 3]), SCORES), {"padding_idx": -1}),
    ("one_hot", (np.array([0, 3]), 5), {}),
    ("layer_norm", (X, (6,)), {}), ("layer_norm", (X, (6,), W, B), {}),
    ("layer_norm", (X, [6], W, B, 1e-3), {}), ("layer_norm", (X, (3, 6), W2, B2), {}),
    ("layer_norm", (X, (2, 3, 6)), {}),
    ("rms_norm", (X, (6,)), {}), ("rms_norm", (X, (6,), W, 1e-3), {}),
    ("rms_norm", (X, (3, 6), W2), {}),
    ("batch_norm", (IMAGES, None, None, C, C, True, 0.2, 1e-3), {}),
    ("batch_norm", (IMAGES, C, abs(C), C, C), {}),
    ("conv2d", (IMAGES, FILTERS, C, 2, 1, 1, 2), {}),
    ("conv2d", (IMAGES, FILTERS, None, 1, "same", 2, 2), {}),
    ("conv2d", (IMAGES, FILTERS, None, (2, 1), "valid", 1, 2), {}),
    ("max_pool2d", (IMAGES, 3, 2, 1, 1, False, False), {}), ("max_pool2d", (IMAGES, (2, 3)), {}),
    ("avg_pool2d", (IMAGES, 3, 2, 1, False, True, None), {}),
    ("dropout", (X, 0.5, False, False), {}), ("dropout", (X, 0.0), {}),
    ("dropout1d", (X, 0.5, False), {}), ("dropout2d", (IMAGES, 0.5, False), {}),
    ("alpha_dropout", (X, 0.5, False), {}), ("upsample", (IMAGES, 16), {}),
    ("scaled_dot_product_attention", (Q, K, V, None, 0.0, True), {}),
    ("scaled_dot_product_attention", (Q, K, V), {"scale": 0.3}),
    ("cross_entropy", (SCORES, LABELS), {}),
    ("cross_entropy", (SCORES, abs(LABELS) % 6, None, None, 5, None, "sum", 0.0), {}),
    ("cross_entropy", (SCORES, abs(LABELS) % 6), {"ignore_index": 0, "reduction": "none"}),
    ("cross_entropy", (SCORES, LABELS, abs(W)), {}),
    ("cross_entropy", (SCORES, LABELS), {"label_smoothing": 0.1}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*upsample. is deprecated:UserWarning")
@pytest.mark.parametrize(
    ("name", "args", "kwargs"), CASES, ids=lambda x: x if isinstance(x, str) else ""
)
def test_the_same_call_gives_the_same_values(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    tensors = [torch.from_numpy(a.copy()) if isinstance(a, np.ndarray) else a for a in args]
    expected = getattr(T, name)(*tensors, **kwargs).numpy()
    found = value(getattr(F, name), *args, **kwargs)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_every_function_is_called() -> None:
    called = {name for name, _, _ in CASES} | {row.name for row in TORCH} | {"gumbel_softmax"}
    assert called >= set(OURS)


def test_a_gumbel_softmax_is_a_distribution() -> None:
    drawn = value(F.gumbel_softmax, SCORES)
    np.testing.assert_allclose(drawn.sum(-1), 1, rtol=1e-5)
    assert (drawn > 0).all() and not np.allclose(drawn, value(F.softmax, SCORES, -1))


@pytest.mark.parametrize("dim", [-1, 0])
def test_a_hard_gumbel_softmax_has_the_soft_gradient(dim: int) -> None:
    def loss(x: Any, hard: bool) -> Any:
        return (
            F.gumbel_softmax(x, hard=hard, dim=dim)
            * np.arange(24.0, dtype=np.float32).reshape(4, 6)
        ).sum()

    hard = value(F.gumbel_softmax, SCORES, hard=True, dim=dim)
    soft = value(F.gumbel_softmax, SCORES, dim=dim)
    np.testing.assert_allclose(hard, soft == soft.max(dim, keepdims=True), atol=1e-6)
    found, expected = (cutback.grad(partial(loss, hard=h))(SCORES) for h in (True, False))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("layer_norm", ((X, W, B), {}), ((X, (6,), W, B), {})),
        ("layer_norm", ((X, W, B, 1e-3), {}), ((X, (6,), W, B, 1e-3), {})),
        ("layer_norm", ((X, W), {"bias": B}), ((X, (6,), W, B), {})),
        ("layer_norm", ((X, None, None, 1e-3), {}), ((X, (6,), None, None, 1e-3), {})),
        ("layer_norm", ((X,), {"weight": W, "bias": B}), ((X, (6,), W, B), {})),
        ("layer_norm", ((), {"x": X, "eps": 1e-3}), ((X, (6,)), {"eps": 1e-3})),
        ("rms_norm", ((X, W), {}), ((X, (6,), W, 1e-6), {})),
        ("rms_norm", ((X, W, 1e-3), {}), ((X, (6,), W, 1e-3), {})),
        ("rms_norm", ((X,), {}), ((X, (6,), None, 1e-6), {})),
        ("softmax", ((X,), {"axis": 1}), ((X, 1), {})),
        ("softmax", ((X,), {}), ((X, -1), {})),
        ("log_softmax", ((X,), {"axis": 0}), ((X, 0), {})),
        ("cross_entropy", ((SCORES, abs(LABELS) % 6, 5), {}),
         ((SCORES, abs(LABELS) % 6), {"ignore_index": 5})),
        ("cross_entropy", ((SCORES, abs(LABELS) % 6, 5, "sum"), {}),
         ((SCORES, abs(LABELS) % 6), {"ignore_index": 5, "reduction": "sum"})),
    ],
)  # fmt: skip
def test_calls_as_they_were(name: str, old: Any, new: Any) -> None:
    function = getattr(F, name)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lifted = {k: v for k, v in kwargs.items() if isinstance(v, np.ndarray)}
        rest = {k: v for k, v in kwargs.items() if k not in lifted}
        call = cutback.compile(
            lambda a, k: function(*(c if v is None else v for v, c in zip(a, plain, strict=True)),
                                  **k, **rest), argnums=None,
        )  # fmt: skip
        arrays = [v if isinstance(v, np.ndarray) else None for v in args]
        plain = [None if isinstance(v, np.ndarray) else v for v in args]
        return call(arrays, lifted)

    np.testing.assert_array_equal(run(*old), run(*new))


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "error"),
    [
        ("relu", (X, True), {}, NotImplementedError),
        ("dropout", (X, 0.5, True, True), {}, NotImplementedError),
        ("embedding", (np.array([0]), SCORES, None, 1.0), {}, NotImplementedError),
        ("max_pool2d", (IMAGES, 2), {"ceil_mode": True}, NotImplementedError),
        ("avg_pool2d", (IMAGES, 2), {"count_include_pad": False}, NotImplementedError),
        ("embedding_bag", (np.array([[0]]), SCORES), {"padding_idx": 0}, NotImplementedError),
        ("layer_norm", (X, (5,)), {}, ValueError),
        ("layer_norm", (X, (3,), W), {}, ValueError),
        ("layer_norm", (X, "wide"), {}, TypeError),
        ("conv2d", (IMAGES, FILTERS, None, 2, "same"), {"groups": 2}, ValueError),
        ("one_hot", (np.array([0]),), {}, ValueError),
        ("softmax", (X,), {"dim": 0, "axis": 0}, TypeError),
    ],
)
def test_what_is_not_built_or_wrong_is_refused(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        value(getattr(F, name), *args, **kwargs)
