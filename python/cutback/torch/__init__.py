"""The bridge to PyTorch; imports torch when it is imported itself."""

from __future__ import annotations

from .contexts import checkpoint_contexts
from .eager import checkpoint, checkpoint_plan

__all__ = ["checkpoint", "checkpoint_contexts", "checkpoint_plan"]
