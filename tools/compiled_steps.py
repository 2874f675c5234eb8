"""Compiled steps for `plan_hashes.py`: the demo models, the rows of the CPU benchmarks, GPT-2-small
and a Llama block, each under several plans. Nothing is run, so inputs are zeros.

An answer has a hash of each stage's text (without source lines), the bytes, the modelled time and
the number of kernels of the program, and the processor time of planning and compiling, which is not
compared. Budgets are in bytes: shares of what saving everything takes when each op is planned
separately, so that plans with and without groups have equal bytes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks/cpu", "benchmarks", "examples/demo")]

PREFIX = "steps/"
STAGES = ("problem", "plan", "program", "kernels")
PRESETS = ("autograd", "conservative", "aggressive", "shape-aware", "recompute_all")
SHARES = (0.7, 0.5, 0.3)
MORE_SHARES = (0.9, 0.8, 0.6, 0.4, 0.2)
MEASURES = ("live", "saved", "total")
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "single": {"groups": False},
    "groups": {"groups": True},
}
COUNTED = (("arena_bytes", "B", 1), ("time_ps", "us", 1e-6), ("kernels", "kernels", 1))
LOCATION = re.compile(r' @"[^"]*"|"at":"[^"]*",?')


class StepQuestion(NamedTuple):
    """One step to compile. ``plan`` is a preset, a share of the bytes, "min" or "none"."""

    model: str
    plan: str | float
    measure: str
    way: str

    @property
    def name(self) -> str:
        measure = "" if self.measure == "arena" else f" {self.measure}"
        return f"{PREFIX}{self.model} {self.plan}{measure} {self.way}"


class Model(NamedTuple):
    """A function to compile and its arguments."""

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    trains: bool = False
    """With AdamW, whose gradients stay in the arena."""


class Blank:
    """An array that is multiplied and then converted: only its shape matters."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape

    def __mul__(self, other: Any) -> Blank:
        return self

    __truediv__ = __mul__

    def astype(self, dtype: Any) -> Any:
        return np.zeros(self.shape, dtype)


class Zeros:
    """Replaces a generator of random inputs, and touches no memory."""

    def standard_normal(self, shape: Any, dtype: Any = None) -> Any:
        return Blank(shape) if dtype is None else np.zeros(shape, dtype)

    def random(self, shape: Any, dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def integers(self, low: int, high: int, shape: Any, dtype: Any) -> Any:
        return np.zeros(shape, dtype)


def row_model(number: int) -> Model:
    import ours
    import rows

    row = rows.ROWS[number]
    zeros: Any = Zeros()
    params, data = row.make(zeros, row.sizes)
    return Model(ours.LOSSES[number], (params, *data), dict(row.options))


def encoder() -> Model:
    """Returns the encoder of bench_groups."""
    import bench_groups
    import rows

    zeros: Any = Zeros()
    layers = [rows._block(zeros, (8, 256, 512))[0] for _ in range(bench_groups.LAYERS)]
    first, *_ = [layer.pop("x") for layer in layers]
    return Model(bench_groups.encoder, (layers, first), {})


def gpt_model(config: Any, batch: int, trains: bool) -> Model:
    import gpt

    zeros: Any = Zeros()
    tokens = np.zeros((batch, config.context), np.int64)
    return Model(
        lambda params, x, y: gpt.loss(params, x, y, config),
        (gpt.init(config, zeros), tokens, tokens),
        {},
        trains,
    )


def demo_gpt() -> Model:
    import gpt

    return gpt_model(gpt.GPTConfig(vocab=96), 16, trains=True)


def gpt2_small() -> Model:
    import gpt

    sizes = {"vocab": 50257, "context": 512, "layers": 12, "heads": 12, "width": 768}
    return gpt_model(gpt.GPTConfig(**sizes), 4, trains=False)


def demo_convnet() -> Model:
    import convnet

    config, zeros = convnet.ConvConfig(), Zeros()
    params, states = convnet.init(config, zeros)  # type: ignore[arg-type]
    images, labels = np.zeros((128, 1, 8, 8), np.float32), np.zeros(128, np.int64)

    def loss(params: Any, states: Any, images: Any, labels: Any) -> Any:
        return convnet.loss(params, states, images, labels, config)

    return Model(loss, (params, states, images, labels), {}, trains=True)


def llama_block() -> Model:
    """Applies RMSNorm, rotary embeddings, attention with shared keys and values, and SwiGLU."""
    import cutback as cb
    from cutback.nn import functional as F

    batch, time, width, heads, shared, hidden = 2, 256, 1024, 16, 4, 2816
    one = width // heads

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        left, right = x[..., : one // 2], x[..., one // 2 :]
        return cb.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)

    def split(x: Any, weight: Any, n: int) -> Any:
        return (x @ weight).reshape(batch, time, n, one).transpose(0, 2, 1, 3)

    def repeated(x: Any) -> Any:
        wide = cb.broadcast_to(
            x.reshape(batch, shared, 1, time, one), (batch, shared, heads // shared, time, one)
        )
        return wide.reshape(batch, heads, time, one)

    def loss(p: Any, x: Any, cos: Any, sin: Any) -> Any:
        h = F.rms_norm(x, (width,), p["norm1"], 1e-5)
        q = rotated(split(h, p["q"], heads), cos, sin)
        k = repeated(rotated(split(h, p["k"], shared), cos, sin))
        v = repeated(split(h, p["v"], shared))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(0, 2, 1, 3).reshape(batch, time, width) @ p["o"]
        h = F.rms_norm(x, (width,), p["norm2"], 1e-5)
        x = x + (F.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
        return (x * x).mean()

    shapes = {
        "norm1": (width,),
        "norm2": (width,),
        "q": (width, width),
        "k": (width, shared * one),
        "v": (width, shared * one),
        "o": (width, width),
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
    }
    params = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    angles = np.zeros((time, one // 2), np.float32)
    return Model(loss, (params, np.zeros((batch, time, width), np.float32), angles, angles), {})


MODELS: dict[str, Callable[[], Model]] = {
    **{f"row{n}": (lambda n=n: row_model(n)) for n in range(1, 14)},  # type: ignore[misc]
    "encoder": encoder,
    "demo_gpt": demo_gpt,
    "demo_convnet": demo_convnet,
    "llama_block": llama_block,
    "gpt2_small": gpt2_small,
}


@cache
def model_of(name: str) -> Model:
    return MODELS[name]()


def prepared(model: Model, options: dict[str, Any]) -> Any:
    import cutback as cb

    if model.trains:
        step = cb.compile(model.loss, optimizer=cb.optim.AdamW(lr=1e-3), seed=7, **options)
    else:
        step = cb.value_and_grad(model.loss, **options)
    return step.prepare(*model.args, **model.kwargs)


@cache
def bytes_of_saving_everything(name: str, measure: str) -> int:
    """Returns the bytes of saving everything, with each op planned separately."""
    planned = prepared(model_of(name), {"preset": "autograd", **WAYS["single"]}).planned
    if measure == "total":
        return int(planned.total_bytes)
    return int(getattr(planned, f"save_all_{measure}_bytes"))


def options_of(question: StepQuestion) -> dict[str, Any]:
    options = dict(WAYS[question.way])
    if question.plan == "none":
        return options
    if question.plan in PRESETS:
        return {**options, "preset": question.plan}
    options["measure"] = question.measure
    if isinstance(question.plan, float):
        whole = bytes_of_saving_everything(question.model, question.measure)
        return {**options, "budget": int(question.plan * whole)}
    return {**options, "budget": question.plan}


def facts_of_step(step: Any) -> dict[str, Any]:
    """Returns the recorded facts of a compiled step."""
    texts = {stage: step.executable.text(stage) for stage in STAGES}
    planned = step.planned
    kernels = json.loads(texts["kernels"])["groups"]
    return {
        "texts": {stage: short_hash(LOCATION.sub("", text)) for stage, text in texts.items()},
        "arena_bytes": planned.arena_bytes,
        "live_bytes": planned.live_bytes,
        "saved_bytes": planned.saved_bytes,
        "time_ps": sum(kernel["modelled_ps"] for kernel in kernels),  # of the program
        "planned_ps": planned.time_ps,
        "kernels": planned.n_groups,
        "in_groups": step.plan.in_groups,
    }


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def same_as_default(way: str) -> bool:
    """True if a way of grouping is the default."""
    import cutback as cb

    default = inspect.signature(cb.compile).parameters["groups"].default
    return way != "default" and default is WAYS[way]["groups"]


@cache
def answer_step(question: StepQuestion) -> dict[str, Any] | str:
    """Returns the facts of a compiled step, or the name of the error."""
    import cutback as cb

    if same_as_default(question.way):
        return answer_step(question._replace(way="default"))
    model, options = model_of(question.model), options_of(question)
    begin = time.process_time()
    try:
        step = prepared(model, options)
    except (cb.BudgetError, NotImplementedError, ValueError) as error:
        return type(error).__name__
    return {**facts_of_step(step), "seconds": round(time.process_time() - begin, 3)}


def step_questions(full: bool) -> Iterator[StepQuestion]:
    """Yields the questions, those of one model together, so that a process builds few models."""
    for model in MODELS:
        budgets: list[str | float] = [*SHARES, "min", *(MORE_SHARES if full else ())]
        for plan in ("none", *PRESETS, *budgets):
            for measure in ("arena", *(MEASURES if full and plan in budgets else ())):
                yield from (StepQuestion(model, plan, measure, way) for way in WAYS)


def changes(before: Any, after: Any) -> str:
    """Returns the differences between two answers, in words."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        old, new = (x.get("arena_bytes") if isinstance(x, dict) else x for x in (before, after))
        return f"{old} -> {new}"
    texts = [name for name, text in before["texts"].items() if after["texts"].get(name) != text]
    found = [", ".join(texts) or "only numbers"]
    for key, unit, scale in COUNTED:
        old, new = before[key] * scale, after[key] * scale
        found.append(f"{old:,.10g} {unit}" if old == new else f"{old:,.10g} -> {new:,.10g} {unit}")
    return "; ".join(found)


def worse_than_best(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Returns where the default way of `after` has more bytes, time or kernels than the best way of
    `before`, each counted separately."""
    for name, new in after.items():
        if not name.startswith(PREFIX) or not name.endswith(" default"):
            continue
        stem = name.removesuffix(" default")
        ways = [before.get(f"{stem} {way}") for way in WAYS]
        old = [answer for answer in ways if isinstance(answer, dict)]
        if not isinstance(new, dict):
            if old:
                yield f"{stem}: {new}, was planned before"
            continue
        worse = []
        for key, unit, scale in COUNTED:
            best = min((answer[key] for answer in old), default=new[key])
            if new[key] > best:
                worse.append(f"{new[key] * scale:,.10g} {unit}, best was {best * scale:,.10g}")
        if worse:
            yield f"{stem}: {'; '.join(worse)}"
