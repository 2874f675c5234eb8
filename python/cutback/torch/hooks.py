"""The places of PyTorch that this bridge builds on, and whether this PyTorch has them."""

from __future__ import annotations

from importlib import import_module

TESTED = "2.13"

HOOKS = (
    ("torch._dynamo.backends.common", "aot_autograd", "joint graphs of compiled functions"),
    ("torch._dynamo.exc", "BackendCompilerFailed", "errors of a backend"),
    ("torch._functorch.config", "patch", "settings of AOTAutograd"),
    (
        "torch._functorch._aot_autograd.descriptors",
        "SavedForBackwardsAOTOutput",
        "the meaning of a graph's outputs",
    ),
    (
        "torch._functorch._aot_autograd.descriptors",
        "InputMutationAOTOutput",
        "which inputs a step overwrites",
    ),
    ("torch._guards", "CompileContext", "which graphs belong together"),
    ("torch._inductor.custom_graph_pass", "CustomPartitionerFn", "a partitioner for Inductor"),
    ("torch.fx._lazy_graph_module", "_make_graph_module", "graph modules as AOTAutograd has them"),
    ("torch.fx.experimental.symbolic_shapes", "optimization_hint", "hints of symbolic sizes"),
    ("torch.utils.flop_counter", "flop_registry", "arithmetic of operations"),
)
"""(module, name, what it is for)"""


def missing() -> tuple[str, str] | None:
    """The first place that this PyTorch does not have, and what it is for."""
    for module, name, purpose in HOOKS:
        try:
            found = hasattr(import_module(module), name)
        except ImportError:
            found = False
        if not found:
            return f"{module}.{name}", purpose
    return None


def check() -> None:
    """Looks for all of them.

    Raises:
        ImportError: one is missing; the text says which, and what works without it.
    """
    import torch

    gone = missing()
    if gone is not None:
        raise ImportError(
            f"cutback.torch needs {gone[0]} ({gone[1]}), which torch {torch.__version__} does not "
            f"have; it was tested with torch {TESTED}. What is planned on graphs (compile, the "
            'backend "cutback", Partitioner, trace) does not work with this PyTorch; checkpoint, '
            "checkpoint_plan, checkpoint_contexts and MemoryTracker do"
        )
