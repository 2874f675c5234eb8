"""Generated programs that write: in the forward, between the passes and in the backward.

A program is text, so that failures are readable and reproducible. It takes two leaves, ``x`` and
``w``, two tensors of state, ``n`` and ``b``, and a counter, ``c``. Everything visible from outside
is recorded after the forward, after the caller's writes, and after the backward, in two steps."""

from __future__ import annotations

import linecache
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import config
from torch.utils._pytree import tree_leaves, tree_map

import cutback.torch as ct

COMPUTES = (
    "h = h.sin()",
    "h = h.exp().tanh()",
    "h = h * w",
    "h = h * n",
    "h = h + b.reshape(4)",
    "h = (h.view(2, 2) @ b).view(4)",
    "h = torch.nn.functional.linear(h.view(1, 2, 2), w.view(2, 2)).reshape(4)",
    "h = h * n.view(2, 2).t().reshape(4)",
    "h = h * x.expand(2, 4)[1].cos()",
    "h = torch.where(n > 1, h, h.sin())",
)
OWN_WRITES = (
    "h = h.clone(); h.mul_(2)",
    "h = h * 1.5; h[1:3].add_(w[:2])",
    "h = h + 0.5; h.view(2, 2)[0].mul_(n[:2].clone())",
    "h = h.sin(); h = h.mul_(w.cos())",
)
STATE_WRITES = (
    "n.add_(1)",
    "n.copy_(h.detach())",
    "n[1].mul_(2)",
    "n.mul_(h.detach())",
    "b.t()[0].add_(h.detach()[:2])",
    "b.view(4)[1:3].copy_(n[:2])",
    "c.add_(1)",
    "n.data.mul_(0.5)",
    "b.data.view(4).add_(h.detach())",
)
FORWARD_WRITES = (
    "",
    "",
    "t.add_(1)",
    "t.view(-1)[0].mul_(2)",
    "t.copy_(x.view_as(t))",
    "t.mul_(x.view_as(t).cos())",
)
SAVES = (
    "ctx.save_for_backward(t)",
    "ctx.t = t",
    "ctx.t = t.clone()",
    "ctx.t = t.view(-1)[1:]",
    "ctx.t = t.view(-1)",
    "t = t * 2; ctx.save_for_backward(t)",
)
BACKWARD_WRITES = (
    "",
    "t.add_(1)",
    "t.add_(g.sum())",
    "t.zero_()",
    "t.copy_(t.sin())",
    "t.view(-1)[0].add_(1)",
    "t.view(-1)[1:].mul_(g[:1])",
    "with torch.no_grad(): t.mul_(2)",
)
GRADIENTS = ("g * 2", "g", "g * t.sum()", "g + t.view(-1)[0]")
RESULTS = ("x.clone()", "x * 2", "x * t.view(-1)[:1]", "x.sin()")
RETURNS = ("h", "h", "h, n", "h, h.view(2, 2)", "h, n * 2", "h, b.t()", "h, x.view(2, 2)")
BETWEEN = (
    "n.add_(1)",
    "b.mul_(2)",
    "c.add_(1)",
    "x.mul_(1.1)",
    "w.add_(0.5)",
    "out.detach().mul_(2)",
    "n.view(2, 2)[0].mul_(3)",
    "rest and rest[0].detach().add_(1)",
)


@dataclass(frozen=True)
class Program:
    """One program."""

    seed: int
    text: str
    between: tuple[str, ...]
    twice: bool  # two forwards, then two backwards
    again: bool  # a second backward of the same graph

    def function(self) -> Callable[..., Any]:
        """Returns the program as a function of ``x, w, n, b, c``."""
        name = f"<program {self.seed}>"
        linecache.cache[name] = len(self.text), None, self.text.splitlines(True), name
        # Dynamo imports the module of a function run by a checkpoint
        module = sys.modules[f"written_program_{self.seed}"] = ModuleType(
            f"written_program_{self.seed}"
        )
        scope = module.__dict__
        scope["torch"] = torch
        exec(compile(self.text, name, "exec"), scope)
        return scope["program"]  # type: ignore[no-any-return]

    def __str__(self) -> str:
        how = f"between = {self.between}, twice = {self.twice}, again = {self.again}"
        return f"# seed {self.seed}\n{self.text}\n{how}"


def _function(pick: random.Random, number: int) -> tuple[str, str]:
    """Returns an autograd.Function and its call."""
    own = pick.random() < 0.2  # its own tensor, which it returns and its backward writes
    forward = pick.choice(FORWARD_WRITES)
    save = "ctx.save_for_backward(t)" if own else pick.choice(SAVES)
    load = "t, = ctx.saved_tensors" if "save_for" in save else "t = ctx.t"
    write = pick.choice(BACKWARD_WRITES)
    gradient = pick.choice(GRADIENTS)
    lines = [
        f"class F{number}(torch.autograd.Function):",
        "    @staticmethod",
        "    def forward(ctx, x, t):",
        *([f"        {forward}"] if forward else []),
        f"        {save}",
        f"        return {pick.choice(RESULTS)}",
        "    @staticmethod",
        "    def backward(ctx, g):",
        f"        {load}",
        *([f"        {write}"] if write else []),
        f"        return {gradient}, None",
        "",
    ]
    state = f"log{number}" if own else pick.choice(("n", "n", "b"))
    call = f"h = F{number}.apply(h, {state})"
    return "\n".join(lines), (f"log{number} = torch.full((4,), 0.75); {call}" if own else call)


def generate(seed: int) -> Program:
    """Returns the program for a seed."""
    pick = random.Random(seed)
    classes, body, returned = [], ["h = x * w"], pick.choice(RETURNS)
    for _ in range(pick.randint(3, 6)):
        roll = pick.random()
        if roll < 0.4:
            body.append(pick.choice(COMPUTES))
        elif roll < 0.5:
            body.append(pick.choice(OWN_WRITES))
        elif roll < 0.65:
            body.append(pick.choice(STATE_WRITES))
        elif len(classes) < 2:
            text, call = _function(pick, len(classes))
            classes.append(text)
            body.append(call)
            if call.startswith("log"):
                returned = f"h, {call[:4]}"
    lines = [*classes, "def program(x, w, n, b, c):"]
    lines += [f"    {line}" for statement in body for line in statement.split("; ")]
    lines += [f"    return {returned}"]
    between = tuple(pick.sample(BETWEEN, pick.choice((0, 0, 0, 1, 1, 2))))
    return Program(seed, "\n".join(lines), between, pick.random() < 0.15, pick.random() < 0.15)


# ---- ways in -------------------------------------------------------------------------------


def _interpreted(gm: Any, example_inputs: Any) -> Any:
    return make_boxed_func(gm.forward)


def plain(f: Callable[..., Any], budget: Any) -> Any:
    return f


def aot_eager(f: Callable[..., Any], budget: Any) -> Any:
    return torch.compile(f, backend="aot_eager")


def by_compile(f: Callable[..., Any], budget: Any) -> Any:
    return ct.compile(f, budget=budget)


def by_name(f: Callable[..., Any], budget: Any) -> Any:
    return torch.compile(f, backend="cutback", options={"budget": budget})


def by_partition_fn(f: Callable[..., Any], budget: Any) -> Any:
    backend = aot_autograd(
        fw_compiler=_interpreted, partition_fn=ct.Partitioner(budget=budget),
        keep_inference_input_mutations=True,
    )  # fmt: skip
    return torch.compile(f, backend=backend)


def by_inductor(f: Callable[..., Any], budget: Any) -> Any:
    return ct.compile(f, budget=budget, codegen="inductor")


def by_custom_partitioner(f: Callable[..., Any], budget: Any) -> Any:
    partitioner = ct.Partitioner(budget=budget)

    def call(*args: Any) -> Any:
        with config.patch(custom_partitioner_fn=partitioner):
            return compiled(*args)

    compiled = torch.compile(f)
    return call


def by_checkpoint(f: Callable[..., Any], budget: Any) -> Any:
    if budget is None:
        return lambda *args: ct.checkpoint(f, *args)
    return lambda *args: ct.checkpoint(f, *args, budget=budget)


def by_checkpoint_in_compile(f: Callable[..., Any], budget: Any) -> Any:
    def region(*args: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(f, *args, use_reentrant=False)

    return ct.compile(region, budget=budget)


def by_torchs_checkpoint(f: Callable[..., Any], budget: Any) -> Any:
    return lambda *args: torch.utils.checkpoint.checkpoint(f, *args, use_reentrant=False)


def aot_eager_around_a_checkpoint(f: Callable[..., Any], budget: Any) -> Any:
    return aot_eager(by_torchs_checkpoint(f, budget), budget)


EAGER_CODE = (by_compile, by_name, by_partition_fn, by_checkpoint, by_checkpoint_in_compile)
INDUCTOR = (by_inductor, by_custom_partitioner)
DOORS = (*EAGER_CODE, *INDUCTOR)
REFERENCES = {
    by_checkpoint: by_torchs_checkpoint,
    by_checkpoint_in_compile: aot_eager_around_a_checkpoint,
}
"""What PyTorch has for a door; ``aot_eager`` for the others."""


# ---- running and judging -------------------------------------------------------------------


def _copies(tree: Any) -> Any:
    return tree_map(lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, tree)


def run(program: Program, call: Callable[..., Any]) -> list[Any]:
    """Returns everything visible from outside, at each moment."""
    torch.manual_seed(3)
    leaves = [torch.arange(1.0, 5.0) / 3, torch.arange(4.0, 0.0, -1) / 5]
    state = [
        torch.arange(2.0, 6.0) / 4,
        torch.arange(4.0).view(2, 2) / 3,
        torch.zeros((), dtype=torch.int64),
    ]
    leaves = [t.requires_grad_() for t in leaves]
    seen: list[Any] = []
    for _ in range(2):
        names = dict(zip("xwnbc", (*leaves, *state), strict=True))
        outputs = []
        for _ in range(1 + program.twice):
            result = call(*leaves, *state)
            out, *rest = result if isinstance(result, tuple) else (result,)
            outputs.append(out)
            seen.append(_copies((out, rest, leaves, state)))
        with torch.no_grad():
            for line in program.between:
                exec(line, {"torch": torch, **names, "out": out, "rest": rest})
        seen.append(_copies((leaves, state)))
        for out in outputs:
            for k in range(1 + program.again):
                loss = (out * torch.arange(1.0, 5.0)).sum()
                loss.backward(retain_graph=program.again and k == 0)
                seen.append(_copies((out, rest, leaves, state, [t.grad for t in leaves])))
        for t in leaves:
            t.grad = None
    return seen


def same(a: Any, b: Any, bits: bool) -> bool:
    """Returns True if the bits are equal, or, if that is not required, close."""
    xs, ys = tree_leaves(a), tree_leaves(b)
    if len(xs) != len(ys):
        return False
    for x, y in zip(xs, ys, strict=True):
        if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
            if x is not y:
                return False
        elif not (
            torch.equal(x, y)
            if bits
            else torch.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True)
        ) and not (bits and torch.allclose(x, y, rtol=0, atol=0, equal_nan=True)):
            return False
    return True


def outcome(program: Program, door: Callable[..., Any], budget: Any, expected: Any) -> str:
    """Returns ``"same"``, ``"differs at moment ..."``, or the error."""
    torch._dynamo.reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = run(program, door(program.function(), budget))
    except Exception as error:
        inner = getattr(error, "inner_exception", None) or error
        return f"{type(inner).__name__}: {inner}"
    if expected is None:
        return "taken"
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        if not same(a, b, door not in INDUCTOR):
            return f"differs at moment {k}: {a} instead of {b}"
    return "same"


def eager(program: Program) -> tuple[list[Any] | None, str]:
    """Returns the results of eager PyTorch; None and the error if it refuses."""
    try:
        return run(program, program.function()), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
