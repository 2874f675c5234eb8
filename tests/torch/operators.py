"""PyTorch's operator database through the bridge: each operator is placed between recomputable
operations and is forced to be recomputed itself. Forward results and gradients must have the bits
of ``torch.compile(backend="aot_eager")``."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch._functorch.config
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import CheckpointPolicy

import cutback.torch as ct

DTYPES = {
    "f32": torch.float32, "bf16": torch.bfloat16, "c64": torch.complex64, "i64": torch.int64,
}  # fmt: skip

ONCE = frozenset({"random_stateful", "random_counter", "effect", "collective", "mutates"})
"""Flags of operations that no policy lets run again."""


GRAPH_BREAK = "graph break"
"""Why it is not known what ran again: PyTorch compiles the operator in pieces, if at all."""


NO_TENSOR = "no tensor"
"""The operator makes no tensor."""


class Step(NamedTuple):
    """A function of tensors that calls one operator once per sample."""

    function: Callable[..., list[torch.Tensor]]
    inputs: list[torch.Tensor]
    line: str  # "operators.py:12", the line that calls the operator
    # the same function, except that Dynamo does not trace into the operator
    opaque: Callable[..., list[torch.Tensor]]


class Result(NamedTuple):
    """The outcome for one operator."""

    wrong: str  # "" if the bits agree
    refused: str  # Cutback's error for a graph that PyTorch compiles
    uncompiled: str  # PyTorch's own error
    rerun: list[str]  # kinds of the operator's ops that were recomputed
    kept: list[str]  # flags that kept some from being recomputed


def _remade(t: torch.Tensor) -> torch.Tensor:
    """Returns the same bits, through operations whose results have to be recomputed."""
    return t if t.dtype == torch.bool or t.layout is not torch.strided else t.neg().neg()


def _read(t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Returns a value whose derivative with respect to ``w`` needs ``t``, whatever its type."""
    if t.layout is not torch.strided:
        t = t.to_dense()
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    return (t.to(w.dtype) * w).sin()


def dtypes_of(op: Any, wanted: Sequence[str]) -> list[str]:
    """Returns the requested dtypes that an operator takes, or otherwise one that it does take."""
    own = op.supported_dtypes("cpu")
    taken = [name for name in DTYPES if DTYPES[name] in own]
    return [name for name in wanted if name in taken] or taken[-1:]


def samples(op: Any, dtype: torch.dtype, most: int) -> list[Any]:
    """Returns the first samples of an operator; a seed gives the same ones in every process."""
    torch.manual_seed(17)
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    found = op.sample_inputs("cpu", dtype, requires_grad=grad)
    return list(itertools.islice(found, most))


def _caller(function: Any, sample: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Returns the operator as a function of the tensors of a sample, and these tensors."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        given, args, kwargs = tree_unflatten(values, spec)
        result = function(given, *args, **kwargs)
        return tuple(t for t in tree_leaves(result) if isinstance(t, torch.Tensor))

    return call, [leaves[i] for i in places]


def step_of(function: Any, chosen: Sequence[Any]) -> Step:
    """Returns one step that calls an operator with each of some samples."""
    callers = [_caller(function, sample) for sample in chosen]
    calls = [call for call, _ in callers]
    counts = [len(tensors) for _, tensors in callers]
    inputs = [t for _, tensors in callers for t in tensors]

    def between(calls: Sequence[Any], w: torch.Tensor, tensors: Any) -> list[torch.Tensor]:
        outputs = []
        at = 0
        for call, count in zip(calls, counts, strict=True):
            given = [_remade(t) for t in tensors[at : at + count]]
            at += count
            results = call(*given)
            outputs += [_read(t, w) for t in results]
        return outputs

    line = between.__code__.co_firstlineno + 6
    shut = [torch.compiler.allow_in_graph(_wrapped(call)) for call in calls]
    return Step(
        lambda w, *tensors: between(calls, w, tensors),
        inputs,
        f"operators.py:{line}",
        lambda w, *tensors: between(shut, w, tensors),
    )


def _wrapped(call: Any) -> Any:
    return lambda *tensors: call(*tensors)


class Bits(NamedTuple):
    """Results of a step."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def run(call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Bits:
    """Runs one step with new leaves; the incoming gradients differ from element to element."""
    w = torch.tensor(0.7, requires_grad=True)
    leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    torch.manual_seed(23)
    outputs = call(w, *leaves)
    wanted = [w, *(t for t in leaves if t.requires_grad)]
    incoming = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape) for t in outputs]
    gradients = torch.autograd.grad(outputs, wanted, incoming, allow_unused=True)
    return Bits([t.detach() for t in outputs], list(gradients))


def _words(t: torch.Tensor) -> torch.Tensor:
    """Returns the bits as integers, with all NaNs equal."""
    if t.layout is not torch.strided:
        t = t.to_dense()
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = t.detach().resolve_neg().contiguous().view(-1)
    words = flat.view(kinds[t.element_size()])
    return words.masked_fill(flat.isnan(), 0x7F) if t.is_floating_point() else words


def differs(name: str, got: Sequence[Any], expected: Sequence[Any]) -> str:
    """Returns a description of the first difference, or ""."""
    if len(got) != len(expected):
        return f"{len(got)} {name}, not {len(expected)}"
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        if (a is None) != (b is None):
            return f"{name} {k}: {a} is not {b}"
        if a is None:
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name} {k}: {a.dtype}{list(a.shape)} is not {b.dtype}{list(b.shape)}"
        x, y = _words(a), _words(b)
        if not torch.equal(x, y):
            return f"{name} {k}: {int((x != y).sum())} of {x.numel()} elements differ"
    return ""


def forced(plan: Any, line: str) -> tuple[str, list[str], list[str]]:
    """Examines a plan whose policy recomputes everything. Returns why values were saved although
    they could be recomputed, the kinds of the operator's ops that the backward recomputes, and the
    flags of ops that it needs but must not repeat."""
    ops, start = plan.problem["ops"], plan.problem["backward_starts"]
    steps = plan.document["steps"][plan.document["backward_starts"] :]
    again = {i for i in steps if isinstance(i, int)}
    maker = [i for i, op in enumerate(ops) for _ in op["out"]]
    todo = [v for op in ops[start:] for v in op["in"]]
    seen: set[int] = set()
    rerun, kept, saved = [], [], []
    while todo:
        i = maker[todo.pop()]
        op = ops[i]
        if i >= start or i in seen or "placeholder" in op.get("flags", ()):
            continue
        seen.add(i)
        own = op.get("at", "").split(" ")[0] == line
        pinned = ONCE.intersection(op["flags"])
        if pinned:
            kept += [f"{flag} {op['kind']}" for flag in sorted(pinned) if own]
            continue
        todo += op["in"]
        if "view" in op["flags"]:
            continue
        if i not in again:
            saved.append(op["kind"])
        elif own:
            rerun.append(op["kind"])
    return ", ".join(saved), sorted(set(rerun)), sorted(set(kept))


def _compiled(step: Step, call: Any, whole: bool, backend: str) -> tuple[Bits, Any]:
    torch._dynamo.reset()
    options = {"fullgraph": whole, "dynamic": False}
    # PyTorch inspects the first call of a compiled function under a dispatch mode, in which torch
    # 2.13 computes a wrong pseudo-inverse of complex matrices.
    with (
        torch._dynamo.config.patch(
            capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
        ),
        torch._functorch.config.patch(check_custom_op_aliasing=False),
    ):
        if backend == "aot_eager":
            return run(torch.compile(call, backend=backend, **options), step.inputs), None
        own = ct.compile(call, policy=CheckpointPolicy.MUST_RECOMPUTE, **options)
        return run(own, step.inputs), own


def check(function: Any, chosen: Sequence[Any], filled: bool = True) -> Result:
    """Checks one operator with some samples. ``filled`` is True if its result is more than
    uninitialized memory. Warnings are PyTorch's own, about its operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _check(function, chosen, filled)


def _check(function: Any, chosen: Sequence[Any], filled: bool) -> Result:
    step = step_of(function, chosen)
    why = ""
    for call, whole in ((step.opaque, True), (step.function, True), (step.function, False)):
        try:
            expected, _ = _compiled(step, call, whole, "aot_eager")
            break
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    else:
        if len(chosen) > 1:  # some of the samples may work
            return _together([_check(function, [sample], filled) for sample in chosen])
        return Result("", "", why, [], [])
    if not expected.outputs:
        return Result("", "", NO_TENSOR, [], [])
    try:
        got, own = _compiled(step, call, whole, "cutback")
    except ct.UnsupportedGraphError as error:
        return Result("", str(error)[:300], "", [], [])
    wrong = ""
    if filled:
        wrong = differs("outputs", got.outputs, expected.outputs)
        wrong = wrong or differs("gradients", got.gradients, expected.gradients)
    if not whole:
        return Result(wrong, "", "", [], [GRAPH_BREAK])
    if len(own.plans) != 1:
        return Result(wrong or f"{len(own.plans)} plans", "", "", [], [])
    saved, rerun, kept = forced(own.plans[0], step.line)
    if saved and not wrong:
        wrong = f"saved, though it could run again: {saved}"
    return Result(wrong, "", "", rerun, kept)


def reason(result: Result) -> str:
    """Returns the reason why the operator was not recomputed, or ""."""
    if result.uncompiled:
        return NO_TENSOR if result.uncompiled == NO_TENSOR else "not compiled"
    if GRAPH_BREAK in result.kept:
        return GRAPH_BREAK
    words = {flag.split(" ")[0] for flag in result.kept}
    if words:
        return ", ".join(sorted("random" if w == "random_stateful" else w for w in words))
    return "" if result.rerun else "view"


def _together(parts: Sequence[Result]) -> Result:
    """Returns the outcome of several samples; those that PyTorch does not compile count only if
    there are no others."""
    told = [part for part in parts if not part.uncompiled]
    if not told:
        return parts[0]

    def first(texts: Sequence[str]) -> str:
        return next((text for text in texts if text), "")

    return Result(
        first([part.wrong for part in told]),
        first([part.refused for part in told]),
        "",
        sorted({kind for part in told for kind in part.rerun}),
        sorted({flag for part in told for flag in part.kept}),
    )
