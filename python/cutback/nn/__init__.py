"""Neural-network operations, under the names and argument order of ``torch.nn``.

Knows PyTorch's signatures; each is written in operations of ``frontend``, the one folder it imports
beside the shared modules. Start at ``functional.py``."""

from . import functional

__all__ = ["functional"]
