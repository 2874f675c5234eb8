"""Joint graphs of training steps as AOTAutograd passes them to a partition function, and steps that
run a partition of them.

Every plan of a model runs here with the same code generator and without PyTorch's wrappers around a
compiled function, so that only the plans differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

import cutback.torch
from cutback.torch.graph.codegen import compile_boxed

Graphs = tuple[fx.GraphModule, fx.GraphModule]
Partition = Callable[..., Graphs]


class Joint(NamedTuple):
    """A joint graph, the other arguments of a partition function, and the arguments of the step."""

    gm: fx.GraphModule
    inputs: Any
    options: dict[str, Any]
    primals: list[torch.Tensor]  # empty if the step was only traced

    def partition(self, function: Partition) -> tuple[Graphs, float]:
        """Returns the forward and the backward graph, and the seconds of the call."""
        with _use_lazy_graph_module(True):  # as in torch.compile
            gm = copied(self.gm)
            begin = time.perf_counter()
            graphs = function(gm, self.inputs, **self.options)
            return graphs, time.perf_counter() - begin


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy of the joint graph, for a partition function to modify."""
    graph = fx.Graph()
    value, end = graph.graph_copy(gm.graph, {}, return_output_node=True)
    graph.output(value).meta.update(end.meta)
    module: fx.GraphModule = _make_graph_module(gm, graph)
    return module


def inductor_decompositions() -> dict[Any, Any]:
    """Returns the decompositions under which PyTorch's partitioner works in `torch.compile`."""
    from torch._inductor.compile_fx import select_decomp_table

    return dict(select_decomp_table())


def torch_partition(budget: float) -> Partition:
    """Returns PyTorch's own partitioner under `activation_memory_budget`."""

    def partition(gm: fx.GraphModule, inputs: Any, **options: Any) -> Graphs:
        with config.patch(activation_memory_budget=budget):
            found: Graphs = min_cut_rematerialization_partition(gm, inputs, **options)
        return found

    return partition


class _CapturedError(Exception):
    """Ends the compilation once the joint graph is captured."""


def capture(
    model: torch.nn.Module, inputs: tuple[Any, ...], decompositions: Any = None, run: bool = True
) -> Joint:
    """Returns the joint graph of `model(*inputs).backward()`.

    Args:
        decompositions: a table for AOTAutograd; None keeps the model's own operations. run: whether
        to run the step once to get its arguments; if not, tensors may be fake.
    """
    held: list[Any] = []
    arguments: list[torch.Tensor] = []

    def partition(gm: fx.GraphModule, joint_inputs: Any, **options: Any) -> Graphs:
        held.extend((copied(gm), joint_inputs, options))
        if not run:
            raise _CapturedError
        return cutback.torch.Partitioner()(gm, joint_inputs, **options)

    def compiler(gm: fx.GraphModule, example: Any) -> Any:
        function = compile_boxed(gm)

        def call(args: list[Any]) -> Any:
            if not arguments:  # the forward comes first
                arguments.extend(args)
            return function(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=compiler, partition_fn=partition, decompositions=decompositions
    )
    step = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    try:
        step(*inputs).backward()
    except torch._dynamo.exc.BackendCompilerFailed as failed:
        if not isinstance(failed.inner_exception, _CapturedError):
            raise
    model.zero_grad(set_to_none=True)
    gm, joint_inputs, options = held
    return Joint(gm, joint_inputs, options, arguments)


class Step:
    """Runs forward and backward of a partition on the arguments of its joint graph; sets
    `.grad`."""

    def __init__(self, joint: Joint, graphs: Graphs) -> None:
        self.graphs = graphs
        self.primals = joint.primals
        self.n_outputs = joint.options["num_fwd_outputs"]
        self.forward = compile_boxed(graphs[0], "forward")
        self.backward = compile_boxed(graphs[1], "backward")
        ends = graphs[0].graph.output_node()
        placeholders = joint.gm.graph.find_nodes(op="placeholder")
        by_desc = {n.meta["desc"]: i for i, n in enumerate(placeholders)}
        self.copies: list[tuple[int, int]] = []  # forward output, the primal it goes into
        for k, desc in enumerate(ends.meta["desc"][: self.n_outputs]):
            if isinstance(desc, InputMutationAOTOutput):
                self.copies.append((k, by_desc[desc.mutated_input]))
        (self.loss,) = set(range(self.n_outputs)) - {k for k, _ in self.copies}

    @property
    def text(self) -> str:
        """Returns the code that runs, which is equal for equal plans."""
        return self.forward._source + self.backward._source  # type: ignore[attr-defined]

    def __call__(self) -> torch.Tensor:
        """Returns the loss."""
        with torch.no_grad():
            outputs = self.forward(list(self.primals))
            for k, i in self.copies:
                self.primals[i].copy_(outputs[k])
            loss = outputs[self.loss]
            saved = list(outputs[self.n_outputs :])
            del outputs
            tangent = torch.ones_like(loss)  # held to the end, like the tangent of backward()
            saved.append(tangent)
            gradients = self.backward(saved)
        for primal, gradient in zip(self.primals, gradients, strict=True):
            if gradient is not None:
                primal.grad = gradient
        return loss

    def saved_bytes(self) -> int:
        """Returns the bytes live between forward and backward that do not belong to the caller."""
        with torch.no_grad():
            saved = self.forward(list(self.primals))[self.n_outputs :]
        own = {p.untyped_storage().data_ptr() for p in self.primals}
        kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
        return sum(size for where, size in kept.items() if where not in own)

    def redraws(self) -> int:
        """Returns the number of random operations that the backward runs. They draw other numbers
        than the forward, so gradients are wrong."""
        return sum(map(_draws, self.graphs[1].graph.nodes))

    def draws(self) -> int:
        """Returns the number of random operations that the forward runs."""
        return sum(map(_draws, self.graphs[0].graph.nodes))


def _draws(node: fx.Node) -> bool:
    """True if this call draws random numbers."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    if op is torch.ops.aten.native_dropout.default:
        return node.args[2] is not False
    for k, argument in enumerate(op._schema.arguments):
        if argument.name == "dropout_p":  # attention
            rate = node.args[k] if k < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return rate != 0
    return True
