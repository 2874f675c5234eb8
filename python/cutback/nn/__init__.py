"""Neural-network operations, with the names and argument order of ``torch.nn``.

Functions have PyTorch's signatures and are composed of operations of ``frontend``, the only folder
that this one imports besides the top-level modules. Start at ``functional.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from . import functional

__all__ = ["functional"]

if not TYPE_CHECKING:  # type checkers must report unknown names

    def __getattr__(name: str) -> NoReturn:
        from ..foreign import missing  # here, because only errors need it

        raise missing("cutback.nn", name)
