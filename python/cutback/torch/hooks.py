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
    ("torch._subclasses.fake_tensor", "FakeTensor", "telling real tensors from fake ones"),
    ("torch.fx._lazy_graph_module", "_make_graph_module", "graph modules as AOTAutograd has them"),
    ("torch.fx.experimental.symbolic_shapes", "optimization_hint", "hints of symbolic sizes"),
    ("torch.utils.flop_counter", "flop_registry", "arithmetic of operations"),
)
"""(module, name, what it is for)"""


def check() -> None:
    """Looks for all of them.

    Raises:
        ImportError: one is missing; the text says which.
    """
    import torch

    for module, name, purpose in HOOKS:
        try:
            found = hasattr(import_module(module), name)
        except ImportError:
            found = False
        if not found:
            raise ImportError(
                f"cutback.torch needs {module}.{name} ({purpose}), which torch "
                f"{torch.__version__} does not have; it was tested with torch {TESTED}"
            )
