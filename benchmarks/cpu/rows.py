"""Defines the rows: sizes, inputs and limits. Uses only NumPy, so that any contestant's process can
import it.

A row has parameters, which get gradients, and data, which do not; both are trees of arrays that
every process makes from the same seed. The computations are in `ours.py`, `in_torch.py` and
`in_jax.py`, under the same numbers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Sizes = tuple[int, ...]
Tree = Any
"""Arrays in lists, tuples and dicts."""

MEMORY_BOUND = range(1, 10)
ORDINARY = (10, 11, *range(14, 37))
MEANS = {  # rows whose ratios have a target together
    "geometric mean of rows 1-9": (MEMORY_BOUND, 2.2),
    "geometric mean of rows 10, 11 and 14-36": (ORDINARY, 1.5),
}
SMALLEST = 7  # a row that compiles fast
VOCABULARY = 96  # distinct characters in the demo's text


class Row(NamedTuple):
    """One measurement, and the target speedup over the best of PyTorch."""

    name: str
    limit: float | None
    make: Callable[[np.random.Generator, Sizes], tuple[Tree, Tree]]
    sizes: Sizes
    quick: Sizes
    """For the smoke test."""
    draws: bool = False
    """Whether there is dropout in it, so that gradients are not comparable."""
    options: dict[str, Any] = {}  # noqa: RUF012  what the loss is given by name
    products: Callable[[Sizes], list[tuple[Sizes, Sizes]]] | None = None
    """Shapes of the matrix products of its forward."""
    eager_only: bool = False
    """Whether PyTorch takes part in eager mode only."""

    def named(self, sizes: Sizes) -> str:
        """Returns the name with these sizes in place of its own."""
        title = re.sub(r"( \([\d,]+\)|, \d+ M( each)?)$", "", self.name)
        return f"{title} ({','.join(map(str, sizes))})"


def leaves(tree: Tree) -> list[Any]:
    """Returns the arrays of a tree, in an order that depends only on its keys."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def mapped(tree: Tree, f: Callable[[Any], Any]) -> Tree:
    """Returns the tree with `f` applied to each array."""
    if isinstance(tree, dict):
        return {key: mapped(value, f) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [mapped(value, f) for value in tree]
    return f(tree)


def inputs(number: int, quick: bool) -> tuple[Tree, Tree]:
    """Returns (parameters, data) of a row."""
    row = ROWS[number]
    return row.make(np.random.default_rng(number), row.quick if quick else row.sizes)


def least_bytes(params: Tree, data: Tree) -> int:
    """Returns the bytes of reading every input once and writing every gradient and the loss
    once."""
    read = sum(array.nbytes for array in leaves((params, data)))
    return read + sum(array.nbytes for array in leaves(params)) + 4


# ---- inputs -------------------------------------------------------------------------------------


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _near_one(rng: np.random.Generator, size: int) -> np.ndarray:
    """Returns scales of a norm that are not all equal, so that the mean of squares has a
    gradient."""
    return (1 + 0.3 * rng.standard_normal(size, np.float32)).astype(np.float32)


def _evonorm(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    c = sizes[1]
    return [_normal(rng, *sizes), _near_one(rng, c), _near_one(rng, c), _normal(rng, c)], []


def _four(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes) for _ in range(4)], []


def _residual_norm(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    x, residual = _normal(rng, *sizes), _normal(rng, *sizes)
    c = sizes[-1]
    return [x, residual, _normal(rng, c), _near_one(rng, c), _normal(rng, c)], []


def _scores(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes)], [_normal(rng, *sizes[1:])]


def _logits(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes)], [rng.integers(0, sizes[1], sizes[0], np.int64)]


def _one(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes)], []


def _channels(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    c = sizes[1]
    return [_normal(rng, *sizes), _near_one(rng, c), _normal(rng, c)], []


def _gated(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes), _normal(rng, *sizes), _near_one(rng, sizes[-1])], []


def _depthwise(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes), _normal(rng, sizes[1], 1, 3, 3) / np.float32(3)], []


def _scaled_channels(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes), _near_one(rng, sizes[1])], []


def _norm_rows(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes), _near_one(rng, sizes[1]), _normal(rng, sizes[1])], []


def _scaled_rows(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes), _near_one(rng, sizes[1])], []


def _table(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    return [_normal(rng, *sizes)], [rng.integers(0, sizes[0], (16, 2 * sizes[1]), np.int64)]


def _basic_block(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    """Returns x[n, c, h, w] and two convolutions with their norms."""
    c = sizes[1]
    layers = [
        {
            "conv": (_normal(rng, c, c, 3, 3) / np.sqrt(9 * c)).astype(np.float32),
            "weight": _near_one(rng, c),
            "bias": _normal(rng, c),
        }
        for _ in range(2)
    ]
    return {"x": _normal(rng, *sizes), "layers": layers}, []


def _block(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    """Returns x[batch, time, width] and the parameters of attention, MLP and two norms."""
    width = sizes[-1]

    def dense(n: int, m: int) -> Tree:
        return {"weight": _normal(rng, n, m) * np.float32(0.03), "bias": _normal(rng, m) * 0.1}

    def norm() -> Tree:
        return {"weight": _near_one(rng, width), "bias": _normal(rng, width) * 0.1}

    params = {
        "x": _normal(rng, *sizes),
        "qkv": dense(width, 3 * width),
        "proj": dense(width, width),
        "norm1": norm(),
        "up": dense(width, 4 * width),
        "down": dense(4 * width, width),
        "norm2": norm(),
    }
    return mapped(params, lambda array: array.astype(np.float32)), []


def _layers(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    """Returns x[batch, width] and `layers` weights with biases."""
    batch, width, layers = sizes
    scale = np.float32((2 / width) ** 0.5)
    weights = [_normal(rng, width, width) * scale for _ in range(layers)]
    biases = [_normal(rng, width) * np.float32(0.1) for _ in range(layers)]
    return {"x": _normal(rng, batch, width), "weights": weights, "biases": biases}, []


def _steps(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    """Returns x[time, batch, width] and the parameters of an LSTM in PyTorch's order of gates."""
    width = sizes[-1]
    scale = np.float32(width**-0.5)
    params = {
        "x": _normal(rng, *sizes),
        "w_in": _normal(rng, 4 * width, width) * scale,
        "w_hidden": _normal(rng, 4 * width, width) * scale,
        "b_in": _normal(rng, 4 * width) * scale,
        "b_hidden": _normal(rng, 4 * width) * scale,
    }
    return params, []


def _heads(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    """Returns queries, keys and values [batch, heads, time, head size]."""
    return [_normal(rng, *sizes) * np.float32(0.5) for _ in range(3)], []


def block_products(sizes: Sizes, heads: int) -> list[tuple[Sizes, Sizes]]:
    """Returns the products of a block's forward; each has two of the same size in the backward."""
    batch, time, width = sizes
    rows, one = batch * time, width // heads
    dense = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    scores = ((batch * heads, time, one), (batch * heads, one, time))
    mixed = ((batch * heads, time, time), (batch * heads, time, one))
    return [((rows, n), (n, m)) for n, m in dense] + [scores, mixed]


# ---- the models of `make demo` ------------------------------------------------------------------


def _demo() -> None:
    folder = str(Path(__file__).parents[2] / "examples" / "demo")
    if folder not in sys.path:
        sys.path.insert(0, folder)


def gpt_config(layers: int) -> Any:
    """Returns the demo's GPT with this many layers."""
    _demo()
    import gpt

    return gpt.GPTConfig(vocab=VOCABULARY, layers=layers)


def conv_config() -> Any:
    """Returns the demo's convolutional net."""
    _demo()
    import convnet

    return convnet.ConvConfig()


def _gpt(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    layers, batch = sizes
    config = gpt_config(layers)
    import gpt

    tokens = rng.integers(0, VOCABULARY, (2, batch, config.context), np.int64)
    return gpt.init(config, rng), [np.ascontiguousarray(tokens[0]), np.ascontiguousarray(tokens[1])]


def _convnet(rng: np.random.Generator, sizes: Sizes) -> tuple[Tree, Tree]:
    config = conv_config()
    import convnet

    params, states = convnet.init(config, rng)
    images = rng.random((*sizes, 1, 8, 8), np.float32)
    return params, [states, images, rng.integers(0, config.classes, sizes, np.int64)]


def chosen(text: str | None) -> list[int]:
    """Returns the row numbers in "3,4" or "1-9", or all for None.

    Raises:
        ValueError: if there is no such row.
    """

    def some() -> Iterator[int]:
        for part in text.split(",") if text else [f"1-{len(ROWS)}"]:
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)

    numbers = list(some())
    for number in numbers:
        if number not in ROWS:
            raise ValueError(f"there is no row {number}, only 1 to {len(ROWS)}")
    return numbers


ROWS = {
    1: Row("EvoNorm-S0 (16,32,128,128)", 2.8, _evonorm, (16, 32, 128, 128), (2, 32, 4, 4)),
    2: Row("EvoNorm-S0 (16,2048,8,8)", 1.5, _evonorm, (16, 2048, 8, 8), (2, 64, 2, 2)),
    3: Row("cos(cos(a+b+c+d)), 4 M each", 1.6, _four, (1 << 22,), (1 << 10,)),
    4: Row("bias + GELU + residual + LayerNorm", 2.0, _residual_norm, (8192, 1024), (16, 64)),
    5: Row("softmax(x/8 + mask), dropout", 1.8, _scores, (64, 512, 512), (2, 16, 16), draws=True),
    6: Row("cross-entropy (4096,8192)", 1.5, _logits, (4096, 8192), (16, 64)),
    7: Row("GELU by tanh, 16 M", 1.5, _one, (1 << 24,), (1 << 10,)),
    8: Row("BatchNorm + ReLU (32,64,56,56)", 1.5, _channels, (32, 64, 56, 56), (2, 4, 4, 4)),
    9: Row("RMSNorm(SwiGLU) (4096,2048)", 2.5, _gated, (4096, 2048), (16, 64)),
    10: Row(
        "encoder layer (8,256,512), dropout", 2.0, _block, (8, 256, 512), (2, 8, 32), draws=True,
        options={"heads": 8}, products=lambda sizes: block_products(sizes, 8),
    ),
    11: Row(
        "GPT-2-small block (4,512,768)", 1.4, _block, (4, 512, 768), (2, 8, 48),
        options={"heads": 12}, products=lambda sizes: block_products(sizes, 12),
    ),
    12: Row("GPT of make demo", None, _gpt, (6, 16), (1, 2), draws=True),
    13: Row("ConvNet of make demo", None, _convnet, (128,), (4,), draws=True),
    14: Row("softmax over axis 1 (64,256,128)", 3.0, _one, (64, 256, 128), (2, 8, 64)),
    15: Row("RMS norm over axis 1 (32,192,784)", 1.5, _scaled_channels, (32, 192, 784), (2, 8, 64)),
    16: Row("mean of GELU over axis 1 (64,256,128)", 1.5, _one, (64, 256, 128), (2, 8, 64)),
    17: Row("depthwise 3x3 (16,128,28,28)", 2.5, _depthwise, (16, 128, 28, 28), (2, 4, 6, 6)),
    18: Row("basic block (16,256,14,14)", 0.95, _basic_block, (16, 256, 14, 14), (2, 8, 4, 4)),
    19: Row("basic block (16,64,56,56)", 1.05, _basic_block, (16, 64, 56, 56), (2, 4, 6, 6)),
    20: Row("basic block (64,32,32,32)", 1.1, _basic_block, (64, 32, 32, 32), (2, 4, 6, 6)),
    21: Row("causal attention (1,8,2048,64)", 1.35, _heads, (1, 8, 2048, 64), (1, 2, 40, 8)),
    22: Row("causal attention (4,8,512,64)", 1.9, _heads, (4, 8, 512, 64), (2, 2, 24, 8)),
    23: Row("causal attention (2,1,4096,128)", 1.0, _heads, (2, 1, 4096, 128), (2, 1, 48, 16)),
    24: Row("causal attention (1,8,8192,64)", 1.0, _heads, (1, 8, 8192, 64), (1, 2, 56, 8)),
    25: Row("LayerNorm (65536,16)", 0.95, _norm_rows, (65536, 16), (40, 16)),
    26: Row("RMSNorm (32768,49)", 0.95, _scaled_rows, (32768, 49), (20, 49)),
    27: Row("softmax (32768,196)", 0.95, _one, (32768, 196), (20, 196)),
    28: Row("sum over axis 1 (131072,8)", 0.95, _one, (131072, 8), (200, 8)),
    29: Row("GroupNorm(8) + SiLU (16,64,33,33)", 0.95, _channels, (16, 64, 33, 33), (2, 8, 5, 5)),
    30: Row("InstanceNorm + ReLU (64,256,7,7)", 0.95, _channels, (64, 256, 7, 7), (3, 8, 7, 7)),
    31: Row("embedding of 8192 (5000,256)", 0.95, _table, (5000, 256), (40, 16)),
    32: Row("LayerNorm (20480,48)", 0.95, _norm_rows, (20480, 48), (20, 48)),
    33: Row("GroupNorm(8) + SiLU (64,256,7,7)", 0.95, _channels, (64, 256, 7, 7), (2, 8, 7, 7)),
    34: Row("embedding of 4096 (50000,128)", 0.95, _table, (50000, 128), (40, 16)),
    35: Row("log-softmax (8192,100)", 0.95, _one, (8192, 100), (20, 100)),
    36: Row("MLP of 6 layers (256,256)", 1.2, _layers, (256, 256, 6), (8, 16, 6)),
    37: Row(
        "LSTM beside cells (64,32,256)", 2.0, _steps, (64, 32, 256), (4, 2, 16), eager_only=True
    ),
    38: Row(
        "LSTM beside nn.LSTM (64,32,256)", 1.0, _steps, (64, 32, 256), (4, 2, 16), eager_only=True
    ),
}  # fmt: skip
