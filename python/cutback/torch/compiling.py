"""``cutback.torch.compile`` and the backend ``"cutback"`` of ``torch.compile``."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed, fx
from torch._dynamo import config as dynamo_config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch import config as functorch_config
from torch._guards import TracingContext
from torch.utils._pytree import tree_iter

from ..planning import Plan
from . import codegen, hooks
from .counter import replace_draws
from .graphs import UnsupportedGraphError, hint
from .inductor import CompilerNote, Watch
from .partition import Measured, Partitioner, Policy
from .saved_plans import Path, SavedPlans
from .several import LargerError, ModelPartitioner
from .totals import account

CODEGENS = ("eager", "inductor")

_DEPTH = 12  # frames of PyTorch between a compiled backward and what calls it


def _boxed(name: str) -> Callable[[fx.GraphModule, Sequence[Any]], codegen.Boxed]:
    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> codegen.Boxed:
        return codegen.compile_boxed(gm, name)

    return compiler


def _forward(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> codegen.Boxed:
    context = TracingContext.try_get()
    meta: Any = None if context is None else context.fw_metadata
    if getattr(meta, "bw_donated_idxs", 0) is None:  # to PyTorch None is some, when it runs
        meta.bw_donated_idxs = []
    return codegen.compile_boxed(gm, "forward")


def _inference(
    partitioner: Partitioner,
) -> Callable[[fx.GraphModule, Sequence[Any]], codegen.Boxed]:
    run = _boxed("inference")

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> codegen.Boxed:
        if partitioner.random == "counter":
            replace_draws(gm)
        return run(gm, example_inputs)

    return compiler


def _first_derivatives(run: codegen.Boxed) -> codegen.Boxed:
    """A backward that refuses ``create_graph=True`` at once: PyTorch would hand out gradients, and
    say only when they are differentiated that they cannot be."""

    def call(args: list[Any]) -> Any:
        frame = sys._getframe(1)
        for _ in range(_DEPTH):
            if frame.f_code.co_name == "_double_backward":  # AOTAutograd's way to a second backward
                raise UnsupportedGraphError(
                    "create_graph=True: gradients of a compiled step cannot be differentiated, as "
                    "there is no graph of the backward's backward. Run the part that needs second "
                    "derivatives without compile: plain, or under cutback.torch.checkpoint, which "
                    "has them"
                )
            if frame.f_back is None:
                break
            frame = frame.f_back
        del frame
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _backward(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> codegen.Boxed:
    return _first_derivatives(codegen.compile_boxed(gm, "backward"))


def _run_eager(partitioner: Partitioner, gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    backend = aot_autograd(
        fw_compiler=_forward,
        bw_compiler=_backward,
        inference_compiler=_inference(partitioner),
        partition_fn=partitioner,
    )
    # donated buffers would make backward(retain_graph=True) an error
    with functorch_config.patch(donated_buffer=False):
        return backend(gm, inputs)


def _run_inductor(partitioner: Partitioner, gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    watch = partitioner.watch = Watch()
    # what AOTAutograd has on disk comes without a plan; Inductor's own cache of kernels stays on
    with functorch_config.patch(enable_autograd_cache=False):
        return compile_fx(
            gm, list(inputs), inner_compile=watch.compile,
            config_patches={"custom_partitioner_fn": partitioner},
        )  # fmt: skip


def _run_tagged(
    partitioner: Partitioner, codegen: str, gm: fx.GraphModule, inputs: Sequence[Any]
) -> Any:
    """PyTorch splits the graph, by the plan's tags."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    from .tags import Tagger

    with functorch_config.patch(
        joint_custom_pass=Tagger(partitioner), activation_memory_budget=1.0,
        donated_buffer=False, enable_autograd_cache=False,
    ):  # fmt: skip
        if codegen == "inductor":
            from torch._inductor.compile_fx import compile_fx

            return compile_fx(gm, list(inputs))
        backend = aot_autograd(
            fw_compiler=_boxed("forward"),
            bw_compiler=_boxed("backward"),
            inference_compiler=_inference(partitioner),
            partition_fn=min_cut_rematerialization_partition,
        )
        return backend(gm, inputs)


@contextlib.contextmanager
def _compile_session() -> Iterator[None]:
    """Says to all threads that a trace is under way for ``torch.compile``, as PyTorch does by
    itself from 2.13 on: before, calls of compiled functions in other threads take the trace for one
    that they are in, and refuse. One thread compiles at a time, under Dynamo's lock."""
    if getattr(torch.compiler, "_is_compiling_flag", True):
        yield
        return
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = False


def make_backend(
    partitioner: Partitioner, codegen: str
) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
    """A backend for ``torch.compile``.

    Raises:
        ValueError: no such code generator.
    """
    if codegen not in CODEGENS:
        raise ValueError(f"codegen={codegen!r} is not one of {', '.join(CODEGENS)}")
    run: Callable[..., Any] = _run_eager if codegen == "eager" else _run_inductor
    why = hooks.why_tags(codegen)
    if why is not None:
        warnings.warn(why, stacklevel=3)
        run = functools.partial(_run_tagged, codegen=codegen)
    partitioner.same_kernels = codegen == "eager"
    if codegen == "inductor":
        partitioner.inductor = True
        if partitioner.offload:
            raise ValueError(
                "offload goes with codegen='eager': Inductor cannot compile plans in which values "
                "move to the host"
            )

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        before = len(partitioner.plans)
        if isinstance(partitioner, ModelPartitioner):
            reason = getattr(gm, "compile_subgraph_reason", None)
            partitioner.is_last = reason is not None and not reason.graph_break
        with _compile_session():
            compiled = run(partitioner, gm=gm, inputs=inputs)
        if not isinstance(partitioner, ModelPartitioner):
            return compiled
        sizes = []
        if partitioner.bounds_sizes and len(partitioner.plans) > before:
            sizes = [(i, hint(n)) for i, n in enumerate(inputs) if isinstance(n, torch.SymInt)]
        return partitioner.counted(compiled, partitioner.frame(), sizes)

    return backend


def cutback(
    gm: fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None
) -> Any:
    """``torch.compile(model, backend="cutback", options={"budget": 0.5})``.

    Options are those of :func:`compile`, and ``on_plan``, a function that gets each plan."""
    options = dict(options or {})
    codegen = options.pop("codegen", "eager")
    known = {
        "budget", "measure", "policy", "device", "on_plan", "offload", "pinned", "profile",
        "random", "cse", "exact",
    }  # fmt: skip
    for name in options:
        if name not in known:
            raise ValueError(
                f"backend 'cutback': unknown option {name!r}; it knows codegen, "
                + ", ".join(sorted(known))
            )
    return make_backend(Partitioner(**options), codegen)(gm, inputs)


class Runner:
    """Calls a compiled model, and compiles it anew when that takes another plan. A copy of it, also
    by pickle, compiles and plans for itself, with the same ``wishes`` (of a partitioner)."""

    def __init__(
        self, model: Any, wishes: dict[str, Any], codegen: str, options: dict[str, Any]
    ) -> None:
        self.model = model
        self.wishes = wishes
        self.partitioner = ModelPartitioner(**wishes)
        self.codegen = codegen
        self.options = options
        self._lock = threading.Lock()
        self._told = False
        self._compile()

    def __reduce__(self) -> tuple[Any, ...]:
        return Runner, (self.model, self.wishes, self.codegen, self.options)

    def _compile(self) -> None:
        # a new backend is a new key for PyTorch: what it compiled before does not count
        backend = make_backend(self.partitioner, self.codegen)
        self.run = torch.compile(self.model, backend=backend, **self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Our own errors come out as they are, without PyTorch's wrapping."""
        while True:
            self._take_up_plan()
            try:
                return self._call(args, kwargs)
            except LargerError:  # nothing has run
                continue

    def _call(self, args: Any, kwargs: Any) -> Any:
        try:
            with self.partitioner.one_call(), self._in_one_piece():
                result = self.run(*args, **kwargs)
            if not self.partitioner.plans and not self._told:
                self._tell_unplanned(result)
            return result
        except BackendCompilerFailed as failed:
            error, self.partitioner.error = self.partitioner.error, None
            if error is not None and failed.inner_exception is error:
                raise error from None
            raise

    def _tell_unplanned(self, result: Any) -> None:
        """A step that was left to eager PyTorch keeps to no budget."""
        tensors = [t for t in tree_iter(result) if isinstance(t, torch.Tensor)]
        if self.partitioner.budget is None or all(t.grad_fn is None for t in tensors):
            return
        self._told = True
        warnings.warn(
            "PyTorch compiled no graph of the model for training, so nothing was planned and the "
            "budget does not hold. fullgraph=True says why. nn.LSTM, nn.GRU and nn.RNN are left to "
            "eager PyTorch unless torch._dynamo.config.allow_rnn = True",
            stacklevel=5,
        )

    def _take_up_plan(self) -> None:
        with self._lock:
            if self.partitioner.begins_anew() or self.partitioner.needs_another_round():
                self._compile()

    def _in_one_piece(self) -> contextlib.AbstractContextManager[Any]:
        """Inside DistributedDataParallel PyTorch cuts each graph into one for each bucket of
        gradients; where all graphs share a budget they stay whole."""
        if (
            self.partitioner.one_graph
            and distributed.is_available()
            and distributed.is_initialized()
            and dynamo_config.optimize_ddp in (True, "ddp_optimizer")
        ):
            whole: contextlib.AbstractContextManager[Any] = dynamo_config.patch(optimize_ddp=False)
            return whole
        return contextlib.nullcontext()

    def save_plans(self, path: Path) -> None:
        """Plans in force, to a file."""
        self._take_up_plan()
        saved = self.partitioner.saved()
        if not saved.plans:
            raise RuntimeError("nothing has been planned yet: run a training step first")
        saved.write(path)


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

    @property
    def compiler_notes(self) -> list[CompilerNote]:
        """What Inductor did to the plans, with ``codegen="inductor"``."""
        return self._runner.partitioner.compiler_notes

    def save_plans(self, path: Path) -> None:
        """Writes the plans in force to a file, for ``compile(model, plans=path)``; gzipped if the
        name ends in ``.gz``. Where the model falls into several graphs, after one whole step.

        Raises:
            RuntimeError: nothing has been planned yet.
        """
        self._runner.save_plans(path)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function."""
        return self._runner(*args, **kwargs)


def _below(state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Names in a state are those of the module, also when a module around is loaded."""
    for key in [k for k in state if k.startswith(prefix)]:
        state[f"{prefix}_orig_mod.{key[len(prefix) :]}"] = state.pop(key)


class CompiledModule(torch.nn.Module):
    """A module under a budget; see :func:`compile`. Parameters, buffers, the names in its state,
    and the training mode are those of the module."""

    def __init__(self, module: torch.nn.Module, runner: Runner) -> None:
        super().__init__()
        self._orig_mod = module
        self.training = module.training
        self.__dict__["_runner"] = runner
        self._register_load_state_dict_pre_hook(_below)

    @property
    def plans(self) -> list[Plan]:
        """The plans in force: one for each graph that was compiled for training, or one for all of
        them (see :func:`compile`)."""
        plans: list[Plan] = self.__dict__["_runner"].partitioner.plans
        return plans

    @property
    def compiler_notes(self) -> list[CompilerNote]:
        """What Inductor did to the plans, with ``codegen="inductor"``."""
        notes: list[CompilerNote] = self.__dict__["_runner"].partitioner.compiler_notes
        return notes

    def save_plans(self, path: Path) -> None:
        """Writes the plans in force to a file, for ``compile(model, plans=path)``; gzipped if the
        name ends in ``.gz``. Where the model falls into several graphs, after one whole step.

        Raises:
            RuntimeError: nothing has been planned yet.
        """
        self.__dict__["_runner"].save_plans(path)

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


def uncompiled(step: Any) -> Any:
    """What was compiled, if it was, here or by PyTorch as a module; otherwise ``step``."""
    if isinstance(step, CompiledFunction):
        return step.__wrapped__
    return getattr(step, "_orig_mod", step) if isinstance(step, torch.nn.Module) else step


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
    exact: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    profile: Measured | None = None,
    random: str = "torch",
    cse: bool = True,
    plans: Path | None = None,
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
            ``"inductor"``: Inductor compiles the two planned graphs; it may reorder and fuse. Plans
            are corrected by its estimate of the peak (:mod:`cutback.torch.inductor`).
        offload: with ``codegen="eager"``, may values move to the host and back? ``"only"``: and
            nothing runs again. On CUDA the copies go to pinned memory, on streams of their own.
        pinned: most bytes that the host may hold for it at one time: an int or ``"8GiB"``.
        exact: search again at just this budget, for a faster plan than the search's targets, which
            are 2 % apart, give; see :func:`cutback.plan`.
        optimizer: with ``measure="total"``, whose states count, also those that its first step will
            allocate, as does what its step takes beside them.
        fullgraph, dynamic: as for ``torch.compile``.
        profile: measured times, see :class:`Partitioner`. They are of graphs as
            ``codegen="eager"`` has them, for inputs of one size: pass ``dynamic=False``.
        random: ``"torch"``: PyTorch's random numbers; their masks are kept for the backward.
            ``"counter"``: those of our counter-based generator, seeded by one draw of PyTorch's for
            each step: other numbers under the same seed, and nothing is kept, as the backward can
            draw them again. Inductor's own generator works like that already.
        cse: see :class:`Partitioner`.
        plans: instead of budget and policy, a file that ``save_plans`` of the result wrote, in this
            process or another: its plans are followed, nothing is planned.

    Returns:
        A module or function like ``model``, with the properties ``plans`` and ``compiler_notes``
        and the method ``save_plans(path)``.

    Raises:
        BudgetError (at the first call): no plan meets the budget. UnsupportedGraphError (at the
        first call): what cannot be planned. ValueError, TypeError: a mistake in the arguments.
        ValueError (at the first call): ``plans`` are for another model, or other shapes; the text
        says what differs.
    """
    if not callable(model):
        raise TypeError(f"model={model!r:.60} is neither a module nor a function")
    if plans is not None and (budget is not None or policy is not None):
        raise TypeError("give plans, or a budget and a policy: plans were made under their own")
    given = None if plans is None else SavedPlans.read(plans)
    wishes = {
        "budget": budget,
        "measure": measure,
        "policy": policy,
        "device": device,
        "offload": offload,
        "pinned": pinned,
        "exact": exact,
        "total": None if optimizer is None else account(model, optimizer),
        "profile": profile,
        "random": random,
        "cse": cse,
        "given": given,
    }
    options = {"fullgraph": fullgraph, "dynamic": dynamic}
    runner = Runner(model, wishes, codegen, options)
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, runner)
    return CompiledFunction(model, runner)
