"""``cutback.torch.compile`` and the backend ``"cutback"`` of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch import config as functorch_config

from ..planning import Plan
from . import codegen
from .partition import Partitioner, Policy
from .several import ModelPartitioner
from .totals import account

CODEGENS = ("eager", "inductor")


def _boxed(name: str) -> Callable[[fx.GraphModule, Sequence[Any]], codegen.Boxed]:
    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> codegen.Boxed:
        return codegen.compile_boxed(gm, name)

    return compiler


def _run_eager(partitioner: Partitioner, gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    backend = aot_autograd(
        fw_compiler=_boxed("forward"),
        bw_compiler=_boxed("backward"),
        inference_compiler=_boxed("inference"),
        partition_fn=partitioner,
    )
    # donated buffers would make backward(retain_graph=True) an error
    with functorch_config.patch(donated_buffer=False):
        return backend(gm, inputs)


def _run_inductor(partitioner: Partitioner, gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    # what AOTAutograd has on disk comes without a plan; Inductor's own cache of kernels stays on
    with functorch_config.patch(enable_autograd_cache=False):
        return compile_fx(gm, list(inputs), config_patches={"custom_partitioner_fn": partitioner})


def make_backend(
    partitioner: Partitioner, codegen: str
) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
    """A backend for ``torch.compile``.

    Raises:
        ValueError: no such code generator.
    """
    if codegen not in CODEGENS:
        raise ValueError(f"codegen={codegen!r} is not one of {', '.join(CODEGENS)}")
    run = _run_eager if codegen == "eager" else _run_inductor
    if codegen == "inductor":
        partitioner.inductor = True
        if partitioner.offload:
            raise ValueError(
                "offload goes with codegen='eager': Inductor cannot compile plans in which values "
                "move to the host"
            )

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        compiled = run(partitioner, gm, inputs)
        if isinstance(partitioner, ModelPartitioner):
            return partitioner.counted(compiled, partitioner.frame())
        return compiled

    return backend


def cutback(
    gm: fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None
) -> Any:
    """``torch.compile(model, backend="cutback", options={"budget": 0.5})``.

    Options are those of :func:`compile`, and ``on_plan``, a function that gets each plan."""
    options = dict(options or {})
    codegen = options.pop("codegen", "eager")
    known = {"budget", "measure", "policy", "device", "on_plan", "offload", "pinned"}
    for name in options:
        if name not in known:
            raise ValueError(
                f"backend 'cutback': unknown option {name!r}; it knows codegen, "
                + ", ".join(sorted(known))
            )
    return make_backend(Partitioner(**options), codegen)(gm, inputs)


class Runner:
    """Calls a compiled model, and compiles it anew when that takes another plan."""

    def __init__(
        self, model: Any, partitioner: ModelPartitioner, codegen: str, options: dict[str, Any]
    ) -> None:
        self.model = model
        self.partitioner = partitioner
        self.codegen = codegen
        self.options = options
        self._compile()

    def _compile(self) -> None:
        # a new backend is a new key for PyTorch: what it compiled before does not count
        backend = make_backend(self.partitioner, self.codegen)
        self.run = torch.compile(self.model, backend=backend, **self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Our own errors come out as they are, without PyTorch's wrapping."""
        if self.partitioner.needs_another_round():
            self._compile()
        self.partitioner.runs.clear()
        try:
            result = self.run(*args, **kwargs)
        except BackendCompilerFailed as failed:
            error, self.partitioner.error = self.partitioner.error, None
            if error is not None and failed.inner_exception is error:
                raise error from None
            raise
        self.partitioner.check_runs()
        return result


class CompiledFunction:
    """A function under a budget; see :func:`compile`."""

    def __init__(self, function: Callable[..., Any], runner: Runner) -> None:
        self.__wrapped__ = function
        self._runner = runner

    @property
    def plans(self) -> list[Plan]:
        """The plans in force: one for each graph that was compiled for training, or one for all of
        them (see :func:`compile`)."""
        return self._runner.partitioner.plans

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function."""
        return self._runner(*args, **kwargs)


class CompiledModule(torch.nn.Module):
    """A module under a budget; see :func:`compile`. Parameters, buffers, the names in its state,
    and the training mode are those of the module."""

    def __init__(self, module: torch.nn.Module, runner: Runner) -> None:
        super().__init__()
        self._orig_mod = module
        self.training = module.training
        self.__dict__["_runner"] = runner

    @property
    def plans(self) -> list[Plan]:
        """The plans in force: one for each graph that was compiled for training, or one for all of
        them (see :func:`compile`)."""
        plans: list[Plan] = self.__dict__["_runner"].partitioner.plans
        return plans

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module."""
        return self.__dict__["_runner"](*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module."""
        return self._orig_mod.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Into the module."""
        return self._orig_mod.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_mod"), name)


Compiled = CompiledModule | CompiledFunction


def compile(
    model: torch.nn.Module | Callable[..., Any],
    budget: int | float | str | None = None,
    measure: str = "live",
    policy: Policy = None,
    codegen: str = "eager",
    device: str | None = None,
    *,
    offload: bool | str = False,
    pinned: int | str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
) -> Any:
    """A module or function whose training steps keep to a memory budget.

    Args:
        model: what runs in the forward; tensors that it takes, and its parameters, get their
            gradients from ``backward()`` as always.
        budget, measure, policy, device: see :class:`Partitioner`. The budget holds for the step:
            what forward and backward make, tangents and gradients included; parameters and inputs
            are the caller's. Where the model falls into several graphs, the first step plans them
            one by one; the second compiles anew with one plan for all, and from then on the budget
            holds for all together (:mod:`cutback.torch.several`).
        codegen: ``"eager"``: the planned ops in the planned order, with PyTorch's own kernels:
            the planned peak is the measured one, and the bits do not depend on the budget.
            ``"inductor"``: Inductor compiles the two planned graphs; it may reorder and fuse.
        offload: with ``codegen="eager"``, may values move to the host and back? ``"only"``: and
            nothing runs again. On CUDA the copies go to pinned memory, on streams of their own.
        pinned: most bytes that the host may hold for it at one time: an int or ``"8GiB"``.
        optimizer: with ``measure="total"``, whose states count, also those that its first step will
            allocate, as does what its step takes beside them.
        fullgraph, dynamic: as for ``torch.compile``.

    Returns:
        A module or function like ``model``, with the property ``plans``.

    Raises:
        BudgetError (at the first call): no plan meets the budget. UnsupportedGraphError (at the
        first call): what cannot be planned. ValueError, TypeError: a mistake in the arguments.
    """
    total = None if optimizer is None else account(model, optimizer)
    partitioner = ModelPartitioner(
        budget, measure, policy, device, offload=offload, pinned=pinned, total=total
    )
    runner = Runner(model, partitioner, codegen, {"fullgraph": fullgraph, "dynamic": dynamic})
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, runner)
    return CompiledFunction(model, runner)
