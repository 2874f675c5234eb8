"""Problems made from formulas: GPT-like joint graphs of any size, and re-creations of the instances
that papers on rematerialization publish results for.

    python benchmarks/planner/models.py NAME [-o FILE]       NAME: gpt:10000, vgg16, resnet50, ...

Nothing here is copied from a data set: layers follow the architectures, bytes and flops follow from
shapes. Figures can be compared between the planners of one table, but not with published ones.

*Checkmate's graphs* (Jain et al., MLSys 2020) have a node for each Keras layer, one for the loss,
and one for each layer's gradient, which reads the gradients of the layer's readers, the layer's
inputs and its output, is as large as the output and takes twice as long. The re-creations have as
many nodes as the originals: VGG16 45, U-Net 71, FCN8 73, MobileNet 185, ResNet50 353.

*Random layered graphs* (as MOCCASIN, Bartan et al., ICML 2023, plans them) have no backward: every
node may run again before a later reader. Nodes and edges are as many as in RL1 to RL4; which nodes
an edge joins, sizes and durations are drawn here.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

Problem = dict[str, Any]


@dataclass
class Op:
    """One op with one output in its own storage."""

    kind: str
    ins: list[int]
    bytes: int
    flops: int = 0
    flags: tuple[str, ...] = ()
    reads: tuple[int, ...] = ()  # what its gradient reads: positions in `ins`, -1 for its output
    time_ps: int = -1


@dataclass
class Graph:
    """Ops in order. An op's number is also that of its value and of its storage."""

    source: str
    ops: list[Op] = field(default_factory=list)

    def add(self, kind: str, ins: list[int], size: int, **more: Any) -> int:
        self.ops.append(Op(kind, ins, size, **more))
        return len(self.ops) - 1

    def input(self, size: int, parameter: bool = False) -> int:
        flags = ("placeholder", "parameter") if parameter else ("placeholder",)
        return self.add("input", [], size, flags=flags)

    def problem(self, starts: int, forward: list[int], backward: list[int]) -> Problem:
        """Returns the document; values of ``forward`` and ``backward`` are the graph's outputs."""
        held = set(forward) | set(backward)
        ops, storages = [], []
        for i, op in enumerate(self.ops):
            given = "placeholder" in op.flags
            flags = ["static"] if given else ["hold_end"] if i in held else []
            storages.append({"bytes": op.bytes, "flags": flags})
            moved = op.bytes + sum(self.ops[a].bytes for a in set(op.ins))
            row: dict[str, Any] = {"name": f"{op.kind}_{i}", "kind": op.kind, "in": op.ins}
            row |= {"flags": list(op.flags), "out": [{"storage": i}]}
            if not given:
                row |= {"flops": op.flops, "bytes": moved, "time_ps": op.time_ps}
            ops.append(row)
        return {
            "format": "cutback.problem",
            "version": 1,
            "source": self.source,
            "backward_starts": starts,
            "forward_outputs": forward,
            "backward_outputs": backward,
            "storages": storages,
            "ops": ops,
        }


# ---- GPT -----------------------------------------------------------------------------------------


class Tape(Graph):
    """A forward whose backward has a gradient op for each differentiable input, and additions for
    values with several readers."""

    def fused(self, kind: str, ins: list[int], size: int, reads: tuple[int, ...] = ()) -> int:
        return self.add(kind, ins, size, flops=size // 4, flags=("fusible",), reads=reads)

    def matmul(self, a: int, b: int, size: int, flops: int) -> int:
        return self.add("matmul", [a, b], size, flops=flops, flags=("compute",), reads=(0, 1))

    def dropout(self, x: int) -> int:
        size = self.ops[x].bytes
        mask = self.add("rand", [], size // 4, flags=("random_stateful",))
        return self.fused("mul", [x, mask], size, reads=(1,))

    def differentiate(self, loss: int) -> Problem:
        """Returns the joint graph; its outputs are the gradients of parameters."""
        starts, parameters = len(self.ops), []
        arrived: dict[int, int] = {}
        dead = {"rand", "stats"}  # no gradient flows into these
        for i in range(loss, -1, -1):
            op = self.ops[i]
            gradient = arrived.get(i)
            if "parameter" in op.flags and gradient is not None:
                parameters.append(gradient)
            if i == loss:
                gradient = self.add("full", [], op.bytes, flags=("fusible", "backward"))
            if gradient is None or op.kind in dead or "placeholder" in op.flags:
                continue
            read = [i if place < 0 else op.ins[place] for place in op.reads]
            for a in op.ins:
                into = self.ops[a]
                data = "placeholder" in into.flags and "parameter" not in into.flags
                if into.kind in dead or data:
                    continue
                others = [v for v in read if v != a] if op.kind == "matmul" else read
                made = self.add(
                    f"{op.kind}_backward",
                    list(dict.fromkeys([gradient, *others])),
                    into.bytes,
                    flops=op.flops,
                    flags=(*op.flags, "backward"),
                )
                if a in arrived:
                    made = self.add(
                        "add",
                        [arrived[a], made],
                        into.bytes,
                        flops=into.bytes // 4,
                        flags=("fusible", "backward"),
                    )
                arrived[a] = made
        return self.problem(starts, [loss], parameters)


WIDTH, HEADS, CONTEXT, BATCH, VOCABULARY = 768, 12, 512, 4, 50257
TOKENS = BATCH * CONTEXT


def _norm(g: Tape, x: int) -> int:
    size = g.ops[x].bytes
    scale, shift = g.input(4 * WIDTH, True), g.input(4 * WIDTH, True)
    flags = ("fusible", "reduction")
    stats = g.add("stats", [x], size // WIDTH * 2, flops=size, flags=flags)
    hat = g.fused("normalize", [x, stats], size, reads=(-1, 1))
    return g.fused("affine", [hat, scale, shift], size, reads=(0, 1))


def _linear(g: Tape, x: int, n_in: int, n_out: int) -> int:
    w, b = g.input(4 * n_in * n_out, True), g.input(4 * n_out, True)
    product = g.matmul(x, w, 4 * TOKENS * n_out, 2 * TOKENS * n_in * n_out)
    return g.fused("add", [product, b], 4 * TOKENS * n_out)


def _block(g: Tape, x: int) -> int:
    size, scores = 4 * TOKENS * WIDTH, 4 * BATCH * HEADS * CONTEXT * CONTEXT
    qkv = _linear(g, _norm(g, x), WIDTH, 3 * WIDTH)
    q, k, v = (g.fused("copy", [qkv], size) for _ in range(3))
    flops = 2 * TOKENS * CONTEXT * WIDTH
    weights = g.fused("scale", [g.matmul(q, k, scores, flops)], scores)
    weights = g.dropout(g.fused("softmax", [weights], scores, reads=(-1,)))
    mixed = g.fused("copy", [g.matmul(weights, v, size, flops)], size)
    x = g.fused("add", [x, g.dropout(_linear(g, mixed, WIDTH, WIDTH))], size)
    wide = _linear(g, _norm(g, x), WIDTH, 4 * WIDTH)
    wide = g.fused("gelu", [wide], 4 * size, reads=(0,))
    return g.fused("add", [x, g.dropout(_linear(g, wide, 4 * WIDTH, WIDTH))], size)


def gpt(n_op: int) -> Problem:
    """Returns a GPT with enough blocks for about ``n_op`` ops, eager attention, dropout, f32."""

    def joint(blocks: int) -> Problem:
        g = Tape(f"GPT-like, {blocks} blocks, {BATCH} x {CONTEXT} tokens, width {WIDTH}")
        x = g.input(4 * TOKENS * WIDTH)
        for _ in range(blocks):
            x = _block(g, x)
        head = g.input(4 * WIDTH * VOCABULARY, True)
        flops = 2 * TOKENS * WIDTH * VOCABULARY
        logits = g.matmul(_norm(g, x), head, 4 * TOKENS * VOCABULARY, flops)
        flat = g.fused("log_softmax", [logits], 4 * TOKENS * VOCABULARY, reads=(-1,))
        loss = g.add("mean", [flat], 4, flops=TOKENS, flags=("fusible", "reduction"))
        return g.differentiate(loss)

    one, two = len(joint(1)["ops"]), len(joint(2)["ops"])
    return joint(max(1, round((n_op - one) / (two - one)) + 1))


# ---- Checkmate's layers --------------------------------------------------------------------------

Shape = tuple[int, int, int]  # height, width, channels


class Layers(Graph):
    """A network of layers on ``n`` images of f32, with the shape of each layer's output."""

    def __init__(self, source: str, n: int, shape: Shape) -> None:
        super().__init__(source)
        self.n, self.shape = n, [shape]
        self.last = self.input(4 * n * prod(shape))

    def layer(self, kind: str, ins: list[int] | None, shape: Shape, flops: int = 0) -> int:
        ins = [self.last] if ins is None else ins
        size = self.n * prod(shape)
        self.shape.append(shape)
        flags = ("compute",) if kind in ("conv", "dense") else ("fusible",)
        self.last = self.add(kind, ins, 4 * size, flops=flops or size, flags=flags)
        return self.last

    def conv(self, channels: int, k: int = 3, stride: int = 1, **more: Any) -> int:
        a = more.get("of", self.last)
        h, w, c = self.shape[a]
        h, w = -(-h // stride), -(-w // stride)
        groups = c if more.get("depthwise") else 1
        flops = 2 * self.n * h * w * channels * k * k * c // groups
        return self.layer("conv", [a], (h, w, channels), flops)

    def each(self, kind: str, of: int | None = None) -> int:
        a = self.last if of is None else of
        return self.layer(kind, [a], self.shape[a])

    def resize(self, kind: str, factor: float) -> int:
        h, w, c = self.shape[self.last]
        return self.layer(kind, None, (int(h * factor), int(w * factor), c))

    def merge(self, kind: str, a: int, b: int) -> int:
        h, w, c = self.shape[a]
        more = self.shape[b][2] if kind == "concat" else 0
        return self.layer(kind, [a, b], (h, w, c + more))

    def dense(self, n_out: int, kind: str = "dense") -> int:
        n_in = prod(self.shape[self.last])
        return self.layer(kind, None, (1, 1, n_out), 2 * self.n * n_in * n_out)

    def differentiate(self) -> Problem:
        """Adds the loss and one gradient per layer, as the module's docstring describes; returns
        the problem."""
        n = len(self.ops)
        readers: list[list[int]] = [[] for _ in range(n)]
        for i in range(1, n):
            for a in self.ops[i].ins:
                readers[a].append(i)
        loss = self.add("loss", [n - 1], 4 * self.n, flops=4 * prod(self.shape[-1]) * self.n)
        gradient = {n - 1: loss}
        made = {}
        for i in range(n - 1, 0, -1):
            op = self.ops[i]
            above = [gradient[n - 1]] if i == n - 1 else [made[r] for r in readers[i]]
            ins = list(dict.fromkeys([*above, *(a for a in op.ins if a), i]))
            made[i] = self.add(
                f"{op.kind}_backward",
                ins,
                op.bytes,
                flops=2 * op.flops,
                flags=(*op.flags, "backward"),
            )
        return self.problem(loss + 1, [loss], [made[1]])


def vgg16(n: int = 64) -> Problem:
    g = Layers(f"VGG16, re-created, {n} x 224 x 224", n, (224, 224, 3))
    _vgg(g)
    g.layer("flatten", None, (1, 1, prod(g.shape[g.last])))
    for width in (4096, 4096, 1000):
        g.dense(width)
    return g.differentiate()


def _vgg(g: Layers) -> list[int]:
    """Adds thirteen convolutions and five pools; returns the pools' outputs."""
    pools = []
    for width, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(times):
            g.conv(width)
        pools.append(g.resize("pool", 0.5))
    return pools


def fcn8(n: int = 8, classes: int = 21) -> Problem:
    g = Layers(f"FCN8, re-created, {n} x 416 x 608", n, (416, 608, 3))
    pools = _vgg(g)
    g.conv(4096, 7)
    g.each("dropout")
    g.conv(4096, 1)
    g.each("dropout")
    g.conv(classes, 1)
    for pool in (pools[3], pools[2]):
        up = g.resize("upsample", 2)
        side = g.conv(classes, 1, of=pool)
        g.merge("add", g.each("crop", up), g.each("crop", side))
    g.resize("upsample", 8)
    g.each("reshape")
    g.each("softmax")
    return g.differentiate()


def unet(n: int = 8, classes: int = 2) -> Problem:
    g = Layers(f"U-Net, re-created, {n} x 416 x 608", n, (416, 608, 3))
    skips = []
    for width in (64, 128, 256, 512):
        g.conv(width)
        skips.append(g.conv(width))
        g.resize("pool", 0.5)
    g.conv(1024)
    g.conv(1024)
    for width, skip in zip((512, 256, 128, 64), reversed(skips), strict=True):
        g.resize("upsample", 2)
        g.merge("concat", skip, g.conv(width, 2))
        g.conv(width)
        g.conv(width)
    g.conv(classes, 1)
    return g.differentiate()


def _norm_relu(g: Layers) -> int:
    g.each("norm")
    return g.each("relu")


def mobilenet(n: int = 64) -> Problem:
    g = Layers(f"MobileNet, re-created, {n} x 224 x 224", n, (224, 224, 3))
    g.each("pad")
    g.conv(32, 3, 2)
    _norm_relu(g)
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    for width, stride in [*plan, *[(512, 1)] * 5, (1024, 2), (1024, 1)]:
        if stride == 2:
            g.each("pad")
        g.conv(g.shape[g.last][2], 3, stride, depthwise=True)
        _norm_relu(g)
        g.conv(width, 1)
        _norm_relu(g)
    g.layer("pool", None, (1, 1, 1024))
    g.each("reshape")
    g.each("dropout")
    g.conv(1000, 1)
    g.each("reshape")
    g.each("softmax")
    return g.differentiate()


def resnet50(n: int = 64) -> Problem:
    g = Layers(f"ResNet50, re-created, {n} x 224 x 224", n, (224, 224, 3))
    g.each("pad")
    g.conv(64, 7, 2)
    _norm_relu(g)
    g.each("pad")
    g.resize("pool", 0.5)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            into, stride = g.last, 2 if stage and not block else 1
            side = into
            if not block:
                g.conv(4 * width, 1, stride)
                side = g.each("norm")
            g.conv(width, 1, stride, of=into)
            _norm_relu(g)
            g.conv(width, 3)
            _norm_relu(g)
            g.conv(4 * width, 1)
            g.merge("add", side, g.each("norm"))
            g.each("relu")
    g.layer("pool", None, (1, 1, 2048))
    g.dense(1000)
    return g.differentiate()


# ---- random layered graphs -----------------------------------------------------------------------


def layered(n: int, edges: int, seed: int = 1) -> Problem:
    """Returns ``n`` nodes in layers of about sqrt(n) / 2 nodes. Each node reads a node of the
    previous layer and is read by a node of the next; further edges come from nodes up to a quarter
    of the graph earlier."""
    rng = random.Random(seed)
    g = Graph(f"random layered, {n} nodes, {edges} edges, re-created")
    layers: list[list[int]] = [[g.input(64)]]
    mean = max(2, round(n**0.5 / 2))
    while len(g.ops) < n:
        width = min(n - len(g.ops), rng.randint(mean - mean // 2, mean + mean // 2))
        before = layers[-1]
        layers.append([_random_node(g, rng, [rng.choice(before)]) for _ in range(width)])
        _read_all(g, rng, before, layers[-1])
    last = _random_node(g, rng, list(layers[-1]))
    total = sum(len(op.ins) for op in g.ops) - len(layers[1])
    place = {i: k for k, layer in enumerate(layers) for i in layer}
    while total < edges:
        i = rng.randrange(1, n)
        back = rng.randint(1, max(2, len(layers) // 4))
        a = rng.choice(layers[max(1, place[i] - back)])
        if place[a] < place[i] and a not in g.ops[i].ins:
            g.ops[i].ins.append(a)
            total += 1
    return g.problem(len(g.ops), [last], [])


def _read_all(g: Graph, rng: random.Random, before: list[int], layer: list[int]) -> None:
    read = {a for i in layer for a in g.ops[i].ins}
    for a in before:
        if a not in read:
            g.ops[rng.choice(layer)].ins.append(a)


def _random_node(g: Graph, rng: random.Random, ins: list[int]) -> int:
    size, time = rng.randint(1, 10), rng.randint(1, 10)
    return g.add("node", ins, size << 20, time_ps=time * 1_000_000, flags=("fusible",))


MODELS: dict[str, Callable[[], Problem]] = {
    "vgg16": vgg16,
    "unet": unet,
    "fcn8": fcn8,
    "mobilenet": mobilenet,
    "resnet50": resnet50,
    "layered_100": lambda: layered(100, 236),
    "layered_250": lambda: layered(250, 944),
    "layered_500": lambda: layered(500, 2461),
    "layered_1000": lambda: layered(1000, 5875),
}


def make(name: str) -> Problem:
    """Returns a model by name; ``gpt:N`` is a GPT of about N ops."""
    return gpt(int(name[4:])) if name.startswith("gpt:") else MODELS[name]()


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help=f"gpt:OPS, {', '.join(MODELS)}")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    text = json.dumps(make(options.name))
    if options.output:
        options.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
