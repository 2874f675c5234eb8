"""Neural-network operations, under the names and argument order of ``torch.nn``."""

from . import functional

__all__ = ["functional"]
