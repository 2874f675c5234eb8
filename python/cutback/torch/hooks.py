"""The internals of PyTorch that this bridge builds on, and checks that this PyTorch has them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch._dynamo.guards import GuardBuilder
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
    from torch.autograd import ProfilerConfig, ProfilerEvent

TESTED = "2.13"

HOOKS = (
    ("torch._dynamo.backends.common", "aot_autograd", "joint graphs of compiled functions"),
    ("torch._dynamo.exc", "BackendCompilerFailed", "errors of a backend"),
    ("torch._functorch.config", "patch", "settings of AOTAutograd"),
    (
        "torch._functorch._aot_autograd.descriptors",
        "InputMutationAOTOutput",
        "which inputs a step overwrites",
    ),
    ("torch._guards", "CompileContext", "which graphs belong together"),
    ("torch._subclasses.fake_tensor", "FakeTensor", "telling real tensors from fake ones"),
    ("torch._guards", "detect_fake_mode", "the shapes of nodes that are added"),
    ("torch.utils.flop_counter", "flop_registry", "arithmetic of operations"),
)
"""(module, name, what it is for)"""

EMITTING = (
    (
        "torch._functorch._aot_autograd.descriptors",
        "SavedForBackwardsAOTOutput",
        "the meaning of a graph's outputs",
    ),
    ("torch.fx._lazy_graph_module", "_make_graph_module", "graph modules as AOTAutograd has them"),
)
"""Needed to write graphs of our own; without it plans are given to PyTorch as tags."""

INDUCTOR = (
    ("torch._inductor.custom_graph_pass", "CustomPartitionerFn", "a partitioner for Inductor"),
)
"""Needed to write graphs of our own with Inductor."""

Hook = tuple[str, str, str]

_NEAR = 12  # frames searched between a partitioner and AOTAutograd's function that calls it


def _lacks(hook: Hook) -> bool:
    try:
        return not hasattr(import_module(hook[0]), hook[1])
    except ImportError:
        return True


def why_tags(codegen: str) -> str | None:
    """Returns why a plan can be given to PyTorch only as tags, or None if it can be emitted as
    graphs."""
    import torch

    for hook in EMITTING + (INDUCTOR if codegen == "inductor" else ()):
        if _lacks(hook):
            return (
                f"torch {torch.__version__} does not have {hook[0]}.{hook[1]} ({hook[2]}): the "
                "plan is given to PyTorch's partitioner as tags. What is saved is as planned and "
                f"bits are the same, but the peak is not promised; tested with torch {TESTED}"
            )
    return None


def missing() -> Hook | None:
    """Returns the first part that this PyTorch lacks, and its purpose, or None if it has all."""
    return next((hook for hook in HOOKS if _lacks(hook)), None)


def check() -> None:
    """Checks that this PyTorch has all parts.

    Raises:
        ImportError: a part is missing; the text names it, and what works without it.
    """
    import torch

    gone = missing()
    if gone is not None:
        raise ImportError(
            f"cutback.torch needs {gone[0]}.{gone[1]} ({gone[2]}), which torch {torch.__version__} "
            f"does not have; it was tested with torch {TESTED}. What is planned on graphs "
            '(compile, the backend "cutback", Partitioner, trace) does not work with this PyTorch; '
            "checkpoint, checkpoint_plan, checkpoint_contexts and MemoryTracker do"
        )


class Profiler(NamedTuple):
    """PyTorch's memory profiler that preceded Kineto."""

    enable: Callable[[ProfilerConfig], None]  # starts it in this thread
    # stops it, and returns the events of each thread in order
    disable: Callable[[], list[list[ProfilerEvent]]]
    mark: Callable[[str], AbstractContextManager[None]]  # records an event of this name
    config: ProfilerConfig


def memory_profiler() -> Profiler | None:
    """Returns the profiler, or None if this PyTorch lacks it."""
    try:
        from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
        from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast
        from torch.autograd import ProfilerConfig, ProfilerState

        config = ProfilerConfig(
            ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()
        )
    except (AttributeError, ImportError, TypeError):
        return None
    return Profiler(_enable_profiler_legacy, _disable_profiler_legacy, _RecordFunctionFast, config)


def is_profiled() -> bool:
    """True if a profiler is active in this thread, or one of Kineto's in any thread."""
    import torch
    from torch.autograd import profiler

    here = torch._C._autograd._profiler_enabled()
    return bool(here or getattr(profiler, "_is_profiler_enabled", False))


def searches_kernels() -> bool:
    """True if cuDNN tries its algorithms when it first meets a size. The allocations of such a run
    say nothing about later ones."""
    import torch

    return bool(torch.backends.cudnn.benchmark) and torch.cuda.is_initialized()


def output_metadata() -> ViewAndMutationMeta | None:
    """Returns AOTAutograd's metadata of the outputs of the graph being partitioned, or None if this
    PyTorch keeps it elsewhere. Only AOTAutograd's own frames have it at this time. Call this from a
    partitioner."""
    frame = sys._getframe(1)
    for _ in range(_NEAR):
        found = frame.f_locals.get("fw_metadata")
        if hasattr(found, "unsafe_view_out_indices"):
            return found
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def is_kept_object(value: object) -> bool:
    """True if AOTAutograd can keep this object, which is neither a tensor nor a number, from the
    forward to the backward: a device mesh, a process group, a generator, or any other object of a
    type that is registered as opaque. ``value`` may be the placeholder of such an object in a
    trace. Needs PyTorch 2.13; older versions keep none."""
    try:
        from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
        from torch._library.fake_class_registry import FakeScriptObject
        from torch._library.opaque_object import is_opaque_type
    except ImportError:
        return False
    if not hasattr(ViewAndMutationMeta, "opaque_objects_saved_for_backwards_slice"):
        return False
    real = value.real_obj if isinstance(value, FakeScriptObject) else value
    return bool(is_opaque_type(type(real)))


def is_backward_state(value: object) -> bool:
    """True if compiled autograd passes hooks of the forward's values to the backward through this
    graph input. The backward takes it last, and the forward does not return it."""
    try:
        from torch.fx.experimental._backward_state import BackwardState
    except ImportError:
        return False
    return isinstance(value, BackwardState)


def compiles_backwards() -> bool:
    """True if compiled autograd is on: it traces the backward graph given first to AOTAutograd,
    instead of calling the compiled one."""
    from torch._dynamo import compiled_autograd, config

    return bool(compiled_autograd.compiled_autograd_enabled or config.compiled_autograd)


def add_guard(holds: Callable[[], bool]) -> None:
    """Adds a guard to the code being compiled: PyTorch checks it before each run and recompiles if
    it fails. Call this from a backend."""
    from torch._dynamo.source import GlobalStateSource
    from torch._guards import Guard, TracingContext

    def create(builder: GuardBuilder, guard: Guard) -> None:
        root = builder.guard_manager.root
        text = ["the plan in force"]
        try:
            root.add_lambda_guard(lambda _: holds(), text, None)
        except TypeError:  # before 2.12
            root.add_lambda_guard(lambda _: holds(), text)

    context = TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(Guard(GlobalStateSource(), create))


def own_entries() -> dict[str, bool]:
    """Returns arguments of ``torch.compile`` that give compiled code a recompilation limit of its
    own. Otherwise all functions that share code share the limit, as do all modules whose forward is
    PyTorch's own (``nn.Sequential``), and the ninth would run uncompiled. Needs PyTorch 2.13."""
    import torch

    name = "isolate_recompiles"
    return {name: True} if name in signature(torch.compile).parameters else {}


def compilations_of(frame: int) -> int | None:
    """Returns how often PyTorch has compiled the frame with this number, or None if this PyTorch
    does not count. ``torch._dynamo.reset()`` restarts the count at zero."""
    try:
        from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER
    except ImportError:
        return None
    return int(FRAME_COMPILE_COUNTER.get(frame, 0))


def recompilations_refused() -> int:
    """Returns how often PyTorch has reached its recompilation limit. The call that reaches it and
    all later ones run uncompiled."""
    try:
        from torch._dynamo.utils import counters

        told = counters["unimplemented"]
        return sum(n for text, n in told.items() if "recompile limit exceeded" in text)
    except (AttributeError, ImportError):
        return 0


def forget_compiled(backend: Callable[..., Any]) -> None:
    """Drops the code that PyTorch compiled with a backend, so that it does not count towards the
    recompilation limit. A function that other backends have compiled, too, keeps its code, because
    PyTorch can drop only all of it. Does nothing if PyTorch lacks the private functions needed
    here."""
    try:
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
        from torch._dynamo.convert_frame import input_codes

        codes = [code for code in [weak() for weak in input_codes.seen] if code is not None]
        for code in codes:
            entries = _debug_get_cache_entry_list(code)
            users = [getattr(entry.backend, "compiler_fn", entry.backend) for entry in entries]
            if users and all(user is backend for user in users):
                reset_code(code)
    except (AttributeError, ImportError):
        pass
