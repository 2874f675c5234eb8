"""Neural-network operations, under the names and argument order of ``torch.nn``.

Knows PyTorch's signatures; each function is written in operations of ``frontend``, the only folder
it imports besides the shared modules. Start at ``functional.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from . import functional

__all__ = ["functional"]

if not TYPE_CHECKING:  # type checkers must report unknown names

    def __getattr__(name: str) -> NoReturn:
        from ..foreign import missing  # for an error alone

        raise missing("cutback.nn", name)
