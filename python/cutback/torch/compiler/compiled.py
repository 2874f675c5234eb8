"""The results of :func:`cutback.torch.compile`: functions and modules that run under a budget.

A compiled module is PyTorch's own ``OptimizedModule``, so that code which inspects one (front ends
that unwrap, save or wrap models) finds what ``torch.compile`` would have put there. Only its
``dynamo_ctx`` is ours; it recompiles its functions when another plan requires that.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import distributed
from torch._dynamo import OptimizedModule
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils._pytree import tree_iter

from ... import BudgetError, budgets
from ...planner.plan import Plan
from .. import hooks
from ..graph.slices import Sliced
from ..memory import MemoryTracker, StepTracker
from ..native.lowering import NativeNote
from .backends import make_backend
from .bypassed import Watch
from .counted_scratch import LEAST
from .eager_parts import ForwardTracker, follow, nodes_of
from .growing import LargerError
from .inductor import CompilerNote
from .one_piece import whole_buckets, without_messages
from .saved_plans import Path
from .scratch import AllocatorStats
from .several import ModelPartitioner

if TYPE_CHECKING:
    from torch.autograd.graph import Node

_KERNELS = (
    "Graphs do not show how much memory a kernel allocates for a result: MemoryTracker.events "
    "shows which op takes more than plan.problem says; leave that much space in the budget"
)

_HELD_S = 0.1  # the longest time to wait for a result of a collective

_OF_A_PLAN = {"plan": "plans[0]", "planned": "plans[0].numbers", "report": "plans[0].report(path)"}
"""Attributes of native steps, which have one graph, and what to write for a PyTorch model."""


def _missing(owner: object, name: str) -> AttributeError:
    """Returns the error for an attribute that a compiled function or module does not have."""
    what = type(owner).__name__
    text = f"{what!r} object has no attribute {name!r}"
    if name in _OF_A_PLAN:
        text += (
            f": a PyTorch model may have several graphs, so write {_OF_A_PLAN[name]} after the "
            "first training step"
        )
    return AttributeError(text, name=name, obj=owner)


def _nodes_before(*arguments: Any) -> set[Node]:
    """Returns the nodes of autograd's graph that made the arguments."""
    tensors = (t for t in tree_iter(arguments) if isinstance(t, torch.Tensor))
    return {t.grad_fn for t in tensors if t.grad_fn is not None}


def _settled(memory: MemoryTracker, expected: int) -> int:
    """Returns the bytes that are alive. If they are more than expected, first waits a moment for
    the threads of collectives, which may hold a result a little longer than its readers."""
    if distributed.is_available() and distributed.is_initialized():
        until = time.monotonic() + _HELD_S
        while memory.live_bytes > expected and time.monotonic() < until:
            time.sleep(0.001)
    return memory.live_bytes


class Runner:
    """Calls a compiled function, and recompiles it when another plan requires that. A copy, also by
    pickle, compiles and plans separately, with the same ``wishes`` (arguments of a partitioner)."""

    def __init__(
        self,
        function: Callable[..., Any],
        wishes: dict[str, Any],
        codegen: str,
        options: dict[str, Any],
    ) -> None:
        self.function = function
        self.wishes = wishes
        self.partitioner = ModelPartitioner(**wishes)
        self._updates_inside = self.updates_inside
        self.codegen = codegen
        self.options = options
        self._lock = threading.Lock()
        self._told = False
        self._told_of_limit = False
        self._left_out = 0  # bytes held by parts left to eager mode, in the last measured call
        self._to_measure = 3  # calls to measure: one graph, several graphs, a plan for all
        self._compile()

    def __reduce__(self) -> tuple[Any, ...]:
        return Runner, (self.function, self.wishes, self.codegen, self.options)

    def _compile(self) -> None:
        # a new backend is a new cache key for PyTorch, so earlier code is not used
        backend = make_backend(self.partitioner, self.codegen)
        self.run = torch.compile(
            self.function, backend=backend, **hooks.own_entries(), **self.options
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function. Raises our own errors without PyTorch's wrapper."""
        if self._updates_inside and not self.updates_inside:
            self._plan_separate_step()
        while True:
            self._take_up_plan()
            try:
                return self._call(args, kwargs)
            except LargerError:  # nothing has run yet
                continue

    @property
    def updates_inside(self) -> bool:
        """True if the optimizer steps parameters inside the backward."""
        inside = self.partitioner.options.updates
        return inside is not None and not inside.reason

    @property
    def updates_reason(self) -> str:
        """Returns why the optimizer does not step inside, although that was asked for, or ""."""
        inside = self.partitioner.options.updates
        return "" if inside is None else inside.reason

    @property
    def slices(self) -> list[Sliced]:
        """Returns the chains that run in pieces, and those that stay whole, with the reason."""
        return self.partitioner.compilations.sliced

    def _plan_separate_step(self) -> None:
        """Compiles again, because the backward may no longer update parameters."""
        self._updates_inside = False
        self.partitioner = ModelPartitioner(**self.wishes)
        self._compile()

    def _call(self, args: Any, kwargs: Any) -> Any:
        memory = None
        try:
            refused, plans = hooks.recompilations_refused(), len(self.partitioner.plans)
            with (
                self.partitioner.one_call() as runs, self._in_one_piece(), without_messages(),
                self._measured() as memory,
            ):  # fmt: skip
                before = set() if memory is None else _nodes_before(args, kwargs)
                result = self.run(*args, **kwargs)
            unmet = self.partitioner.graphs.unmet
            if unmet is not None:  # the first backward warns, if no other call comes before it
                unmet.error = self._with_parts_left_out(unmet.error, memory)
            # the smallest plan holds for the sizes of the call that made it
            bounded = self.partitioner.bounds_sizes or len(self.partitioner.plans) > plans
            most = max(runs.values(), default=1) if bounded else None
            self._tell_unplanned(result, memory, most, before)
            if hooks.recompilations_refused() > refused or not runs:
                self._tell_not_compiled(result, args, kwargs)
            return result
        except BudgetError as unmet:
            raise self._with_parts_left_out(unmet, memory) from None
        except BackendCompilerFailed as failed:
            at_hand = self.partitioner.at_hand
            error, at_hand.error = at_hand.error, None
            if error is not None and failed.inner_exception is error:
                if isinstance(error, BudgetError):
                    error = self._with_parts_left_out(error, memory)
                raise error from None
            raise

    def _measured(self) -> contextlib.AbstractContextManager[StepTracker | None]:
        """Measures what the forward holds in the first calls, because PyTorch may leave parts of a
        model to eager mode, which no plan covers."""
        options = self.partitioner.options
        plans = options.target.budget is not None and self.codegen != "inductor"
        # with offload, values in transit to the host live longer than planned
        plans = plans and not options.offload
        trains = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if self._told or self._to_measure == 0 or not (plans and trains):
            return contextlib.nullcontext()
        self._to_measure -= 1
        return ForwardTracker()

    def _tell_unplanned(
        self, result: Any, memory: StepTracker | None, runs: int | None, before: Collection[Node]
    ) -> None:
        """Warns if a step, or a part of it, was left to eager PyTorch, where no budget holds."""
        if self._told or self.partitioner.options.target.budget is None:
            return
        tensors = [t for t in tree_iter(result) if isinstance(t, torch.Tensor)]
        if all(t.grad_fn is None for t in tensors):
            return
        held = 0 if memory is None else memory.peak_bytes
        figure = f": the forward alone holds {budgets.text(held)} ({held} bytes)" if held else ""
        why = (
            "fullgraph=True gives the reason. PyTorch does not compile modules with "
            "register_full_backward_hook, nor nn.LSTM, nn.GRU and nn.RNN unless "
            "torch._dynamo.config.allow_rnn = True (on a CPU, train nn.LSTM under "
            "torch.backends.mkldnn.flags(enabled=False)), nor code whose shapes depend on values, "
            "such as x[mask], unless torch._dynamo.config.capture_dynamic_output_shape_ops = True"
        )
        if not self.partitioner.plans:
            self._told = True
            warnings.warn(
                "PyTorch compiled no graph of the model for training, so nothing was planned and "
                f"no budget is kept{figure}. {why}",
                stacklevel=5,
            )
            return
        limit = None if runs is None else self.partitioner.limit_bytes(runs)
        if limit is None or memory is None or self.partitioner.waits:
            return
        if self.partitioner.runs_other_graphs():  # the limit belongs to another step
            return
        is_over = "is"
        nodes, leaves = nodes_of(tensors, before)
        if held <= limit and runs == 1:  # pending runs of one graph have their own warning
            beside, held = self._beside(memory, leaves)
            is_over = "may be"
            figure = (
                f": when the forward ends they hold {budgets.text(beside)} ({beside} bytes) that "
                f"no plan counts, so the step may take {budgets.text(held)} ({held} bytes)"
            )
        if held > limit:
            self._told = True
            what = "parts of the model are not planned"
            if self.options["fullgraph"]:  # no part was left to eager mode
                what = "results of the model use more memory than PyTorch's shape functions say"
                why = _KERNELS
            warnings.warn(
                f"{what}, and it {is_over} over the "
                f"{self.partitioner.name_limit(limit)}{figure}. {why}",
                stacklevel=5,
            )
        elif not self.options["fullgraph"]:
            self._follow(memory, nodes, limit)

    def _beside(self, memory: MemoryTracker, leaves: list[torch.Tensor]) -> tuple[int, int]:
        """Returns the bytes left by the forward that no plan covers, and the peak that the step may
        reach. Those bytes are alive in addition to the planned ones until the backward reaches
        them; after that the gradients of ``leaves``, their parameters, are."""
        planned, live = 0, 0
        for plan in self.partitioner.plans:
            starts = plan.core.backward_starts
            planned += sum(life.bytes for life in plan.lives if life.made < starts <= life.last)
            live += plan.numbers["live_bytes"]
        beside = _settled(memory, planned) - planned
        if beside <= 0:
            return 0, 0
        self._left_out = beside
        gradients = sum(t.nbytes for t in leaves if t.layout is torch.strided)
        return beside, live + beside + gradients

    def _follow(self, memory: StepTracker, nodes: list[Node], limit: int) -> None:
        """Warns at the end of the backward if eager parts take the step over its budget there."""

        def tell(peak: int) -> None:
            if self._told or peak < limit + LEAST:
                return
            self._told = True
            warnings.warn(
                "parts of the model are not planned, and their backward takes the step over the "
                f"{self.partitioner.name_limit(limit)}: while it ran, at least "
                f"{budgets.text(peak)} ({peak} bytes) were alive. It holds what such a part "
                "computes, and what torch.utils.checkpoint computes again there. fullgraph=True "
                "says why PyTorch does not compile them",
                stacklevel=2,
            )

        follow(memory, nodes, tell)

    def _with_parts_left_out(self, error: BudgetError, memory: MemoryTracker | None) -> BudgetError:
        """Adds to a share's error that the share counts only what was compiled, while the forward
        was seen to hold more."""
        beside = self._left_out if memory is None else self._beside(memory, [])[0]
        if not beside:
            return error
        return error.replace(unplanned_bytes=beside)

    def _tell_not_compiled(self, result: Any, args: Any, kwargs: Any) -> None:
        """Warns if PyTorch has stopped compiling the model or parts of it, which then run in eager
        mode."""
        given = {id(t) for t in tree_iter((args, kwargs))}
        tensors = [t for t in tree_iter(result) if isinstance(t, torch.Tensor)]
        trains = any(t.grad_fn is not None and id(t) not in given for t in tensors)
        if self._told_of_limit or not self.partitioner.plans or not trains:
            return
        self._told_of_limit = True
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        warnings.warn(
            f"PyTorch no longer compiles {name}, so this step, or a part of it, ran without a "
            "plan and keeps to no budget: compilation is disabled, or it was recompiled "
            f"torch._dynamo.config.recompile_limit ({dynamo_config.recompile_limit}) times. "
            'TORCH_LOGS="recompiles" shows what differs from call to call; pass that as a '
            "tensor, keep it the same, or raise the limit",
            stacklevel=5,
        )

    def _take_up_plan(self) -> None:
        with self._lock:
            try:
                is_new = self.partitioner.take_up_plan()
            except BudgetError as unmet:
                raise self._with_parts_left_out(unmet, None) from None
            if is_new:
                self._compile()

    def _in_one_piece(self) -> contextlib.AbstractContextManager[Any]:
        """Keeps graphs whole inside DistributedDataParallel if they share a budget."""
        return whole_buckets() if self.partitioner.one_graph else contextlib.nullcontext()

    @property
    def allocator_stats(self) -> AllocatorStats | None:
        """Returns the figures of PyTorch's allocator for the first steps."""
        return self.partitioner.in_force.allocator_stats

    def save_plans(self, path: Path) -> None:
        """Writes the plans in force to a file."""
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
    def compiler_notes(self) -> list[CompilerNote | NativeNote | Sliced]:
        """With ``codegen="inductor"``, the changes that Inductor made to the plans; with
        ``"native"``, which ops of each graph run in our kernels, and why others do not; with
        ``slices=True``, the chains that stay whole because their number of rows is symbolic."""
        return self._runner.partitioner.compiler_notes

    @property
    def allocator_stats(self) -> AllocatorStats | None:
        """The bytes that PyTorch's allocator and the step's tensors took in the first two steps
        under the newest plan. None if no step has ended, or none was measured."""
        return self._runner.allocator_stats

    @property
    def updates_inside(self) -> bool:
        """True if the optimizer steps parameters inside the backward (``updates="inside"``)."""
        return self._runner.updates_inside

    @property
    def updates_reason(self) -> str:
        """Why ``updates="inside"`` was not followed, or "" if it was, or was not asked for."""
        return self._runner.updates_reason

    @property
    def slices(self) -> list[Sliced]:
        """The chains that run in pieces of rows, and those that stay whole, with the reason
        (``slices=True``). Empty before the first step."""
        return self._runner.slices

    def save_plans(self, path: Path) -> None:
        """Writes the plans in force to a file, for ``compile(model, plans=path)``. The file is
        compressed if its name ends in ``.gz``. If the model has several graphs, call it after a
        whole step.

        Raises:
            RuntimeError: nothing has been planned yet.
        """
        self._runner.save_plans(path)

    if not TYPE_CHECKING:  # a type checker knows the attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise _missing(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function."""
        if torch.compiler.is_dynamo_compiling():  # inlined, as in PyTorch
            return self.__wrapped__(*args, **kwargs)
        return self._runner(*args, **kwargs)


class Context:
    """Makes compiled functions that all have the same wishes. It replaces the Dynamo context of a
    compiled module, which front ends call to compile further functions of the module (Lightning
    does so for ``training_step``)."""

    _hooks = None

    def __init__(self, wishes: dict[str, Any], codegen: str, options: dict[str, Any]) -> None:
        self.wishes = wishes
        self.codegen = codegen
        self.options = options
        self.runners: list[Runner] = []
        self.watch: Watch | None = None  # watches until one of the functions is called for training

    def __reduce__(self) -> tuple[Any, ...]:
        return Context, (self.wishes, self.codegen, self.options)

    @property
    def fullgraph(self) -> bool:
        """The option ``fullgraph``, as in ``torch.compile``."""
        return bool(self.options["fullgraph"])

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles another function with the same arguments and a separate budget."""
        runner = Runner(function, self.wishes, self.codegen, self.options)
        self.runners.append(runner)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.watch is not None and torch.is_grad_enabled():
                self.watch.end()
                self.watch = None
            return runner(*args, **kwargs)

        call._cutback_runs = True  # type: ignore[attr-defined]
        # attributes that PyTorch's own functions have: what to inline inside another trace
        call._torchdynamo_inline = function  # type: ignore[attr-defined]
        call._torchdynamo_orig_callable = function  # type: ignore[attr-defined]
        call._torchdynamo_wrapper_id = id(call)  # type: ignore[attr-defined]
        call._is_torch_compile = True  # type: ignore[attr-defined]
        return call

    @property
    def plans(self) -> list[Plan]:
        """The plans of all functions."""
        return [plan for runner in self.runners for plan in runner.partitioner.plans]

    @property
    def compiler_notes(self) -> list[CompilerNote | NativeNote | Sliced]:
        """The notes of all functions."""
        return [note for runner in self.runners for note in runner.partitioner.compiler_notes]

    @property
    def allocator_stats(self) -> AllocatorStats | None:
        """The figures of the function that takes the most memory."""
        found = [s for s in (runner.allocator_stats for runner in self.runners) if s is not None]
        return max(found, key=lambda stats: stats.peak_bytes, default=None)

    @property
    def updates_inside(self) -> bool:
        """True if the optimizer steps parameters inside the backward (``updates="inside"``)."""
        return bool(self.runners) and all(runner.updates_inside for runner in self.runners)

    @property
    def updates_reason(self) -> str:
        """Why ``updates="inside"`` was not followed, or "" if it was, or was not asked for."""
        return next((runner.updates_reason for runner in self.runners if runner.updates_reason), "")

    @property
    def slices(self) -> list[Sliced]:
        """The slices of all functions."""
        return [found for runner in self.runners for found in runner.slices]

    def save_plans(self, path: Path) -> None:
        """Writes the plans in force to a file."""
        planned = [runner for runner in self.runners if runner.partitioner.plans]
        if len(planned) > 1:
            names = ", ".join(getattr(r.function, "__qualname__", "?") for r in planned)
            raise RuntimeError(
                f"several functions of the module have plans of their own ({names}), and a file "
                "holds the plans of one: compile that function separately"
            )
        (planned or self.runners)[0].save_plans(path)


def _below(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Accepts a state whose names lack the prefix, as the module itself writes it."""
    own = [key for key in state if key.startswith(prefix)]
    if not any(key.startswith(f"{prefix}_orig_mod.") for key in own):
        for key in own:
            state[f"{prefix}_orig_mod.{key[len(prefix) :]}"] = state.pop(key)


def _nothing() -> None:
    """Stands for a backend without a configuration."""


class CompiledModule(OptimizedModule):
    """A module under a budget; see :func:`compile`. It is what ``torch.compile`` returns for a
    module: parameters, buffers, attributes and training mode are those of the module, and the names
    in its state begin with ``_orig_mod.``."""

    def __init__(self, module: torch.nn.Module, context: Context) -> None:
        super().__init__(module, context)
        # not in the instance dictionary: the module's attributes must stay its own
        self.__dict__["_torchdynamo_orig_callable"] = module.forward
        self.__dict__["_torchdynamo_wrapper_id"] = id(self)
        self.__dict__["_is_torch_compile"] = True
        self.__dict__["get_compiler_config"] = _nothing
        self.register_load_state_dict_pre_hook(_below)
        if any(context.wishes.get(name) is not None for name in ("budget", "policy", "given")):
            context.watch = Watch(self, module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # the module's own attribute comes first
        except AttributeError:
            if name in _OF_A_PLAN:
                raise _missing(self, name) from None
            raise

    def _initialize(self) -> None:
        super()._initialize()
        # front ends look up the arguments of a model
        with contextlib.suppress(TypeError, ValueError):
            self.forward.__signature__ = inspect.signature(self._orig_mod.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module. Inside another compiled function it is inlined into that function."""
        if torch.compiler.is_dynamo_compiling():
            return self._modules["_orig_mod"](*args, **kwargs)
        return super().__call__(*args, **kwargs)

    @property
    def plans(self) -> list[Plan]:
        """The plans in force: one for each graph that was compiled for training, or one for all of
        them (see :func:`compile`)."""
        plans: list[Plan] = self.dynamo_ctx.plans
        return plans

    @property
    def compiler_notes(self) -> list[CompilerNote | NativeNote | Sliced]:
        """The notes on the graphs of all functions of the module."""
        notes: list[CompilerNote | NativeNote | Sliced] = self.dynamo_ctx.compiler_notes
        return notes

    @property
    def allocator_stats(self) -> AllocatorStats | None:
        """The bytes that PyTorch's allocator and the step's tensors took in the first two steps
        under the newest plan. None if no step has ended, or none was measured."""
        stats: AllocatorStats | None = self.dynamo_ctx.allocator_stats
        return stats

    @property
    def updates_inside(self) -> bool:
        """True if the optimizer steps parameters inside the backward (``updates="inside"``)."""
        return bool(self.dynamo_ctx.updates_inside)

    @property
    def updates_reason(self) -> str:
        """Why ``updates="inside"`` was not followed, or "" if it was, or was not asked for."""
        return str(self.dynamo_ctx.updates_reason)

    @property
    def slices(self) -> list[Sliced]:
        """The chains that run in pieces of rows, and those that stay whole, with the reason
        (``slices=True``). Empty before the first step."""
        found: list[Sliced] = self.dynamo_ctx.slices
        return found

    def save_plans(self, path: Path) -> None:
        """Writes the plans in force to a file, for ``compile(model, plans=path)``. The file is
        compressed if its name ends in ``.gz``. If the model has several graphs, call it after a
        whole step.

        Raises:
            RuntimeError: nothing has been planned yet.
        """
        self.dynamo_ctx.save_plans(path)


Compiled = CompiledModule | CompiledFunction


def uncompiled(step: Any) -> Any:
    """Returns the original function or module if ``step`` was compiled here, or is a module
    compiled by PyTorch; otherwise returns ``step``."""
    if isinstance(step, CompiledFunction):
        return step.__wrapped__
    return getattr(step, "_orig_mod", step) if isinstance(step, torch.nn.Module) else step
