"""Neural-network operations, under the names and argument order of ``torch.nn``.

Knows PyTorch's signatures; each function is written in operations of ``frontend``, the only folder
it imports besides the shared modules. Start at ``functional.py``."""

from . import functional

__all__ = ["functional"]
