"""The joint graph of a step together with the tensors that it would run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

from ..planning import Plan, plan
from .emitter import emit
from .graphs import UnsupportedGraphError
from .importer import Imported
from .moving import schedule_of
from .partition import device_row, prepare


class Captured(NamedTuple):
    """A step that can be run op by op."""

    gm: fx.GraphModule  # the joint graph
    graph: Imported
    primals: list[Any]  # what its placeholders but the tangents stand for, in order
    row: str  # of the device table
    plan: Plan  # every op once, nothing recomputed

    @property
    def device(self) -> torch.device:
        """Where the step runs: the first device of its inputs that is not the CPU, or the CPU."""
        devices = [t.device for t in tree_iter(self.primals) if isinstance(t, torch.Tensor)]
        return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


class _TracedError(Exception):
    """Carries the compiled graph and its inputs out of Dynamo, which then keeps nothing of it."""

    def __init__(self, run: Callable[..., Any], inputs: list[Any]) -> None:
        super().__init__("traced")
        self.run = run
        self.inputs = inputs


class _CalledError(Exception):
    """Carries the tensors that a forward graph was called with."""

    def __init__(self, primals: list[Any]) -> None:
        super().__init__("called")
        self.primals = primals


def save_everything(document: dict[str, Any], device: str) -> Plan:
    """The plan that runs each op once, whatever policies and checkpoints in the model say."""
    ops = []
    for op in document["ops"]:
        outs = [{k: v for k, v in out.items() if k != "constraint"} for out in op["out"]]
        ops.append({**op, "out": outs})
    return plan({**document, "ops": ops}, device=device)


def _check_real(step: Any, inputs: Any) -> None:
    tensors = list(tree_iter(inputs))
    if isinstance(step, torch.nn.Module):
        tensors += [*step.parameters(), *step.buffers()]
    for tensor in tensors:
        if isinstance(tensor, FakeTensor) or getattr(tensor, "is_meta", False):
            raise ValueError(
                "profile: the step is run, so it takes real tensors, and one of "
                f"{list(tensor.shape)} is fake or on the device 'meta'; trace() takes those"
            )


def _called(gm: fx.GraphModule, inputs: Any) -> Callable[[list[Any]], Any]:
    def run(args: list[Any]) -> Any:
        raise _CalledError(list(args))

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _no_gradient(gm: fx.GraphModule, inputs: Any) -> Any:
    raise UnsupportedGraphError(
        "profile: no input or parameter needs a gradient, so there is no backward"
    )


def capture(step: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Traces a step and takes the tensors that its graph would get. Nothing of the step runs, and
    PyTorch keeps no compiled code of it.

    Raises:
        UnsupportedGraphError: nothing needs a gradient, or a graph that cannot be planned.
        ValueError: an input or a parameter is a fake tensor.
    """
    _check_real(step, (inputs, kwargs))
    found: list[Any] = []

    def partition(
        gm: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        **options: Any,
    ) -> Any:
        graph = prepare(gm, num_fwd_outputs, static_lifetime_input_indices or (), None)
        row = device_row(gm)
        whole = save_everything(graph.document, row)
        found[:] = gm, graph, row, whole
        return emit(gm, graph, schedule_of(graph.document, whole.document))

    compiler = aot_autograd(
        fw_compiler=_called,
        bw_compiler=_called,
        inference_compiler=_no_gradient,
        partition_fn=partition,
    )

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        raise _TracedError(compiler(gm, example_inputs), example_inputs)

    traced = _trace(torch.compile(step, backend=backend, fullgraph=True, dynamic=False), inputs,
                    kwargs)  # fmt: skip
    try:
        traced.run(*traced.inputs)
    except _CalledError as called:
        gm, graph, row, whole = found
        return Captured(gm, graph, called.primals, row, whole)
    raise AssertionError("the forward graph was not called")


def _trace(step: Callable[..., Any], inputs: Any, kwargs: Any) -> _TracedError:
    try:
        step(*inputs, **kwargs)
    except BackendCompilerFailed as failed:
        if isinstance(failed.inner_exception, _TracedError):
            return failed.inner_exception
        if isinstance(failed.inner_exception, UnsupportedGraphError):
            raise failed.inner_exception from None
        raise
    raise UnsupportedGraphError("profile: the step has no operations on tensors")
