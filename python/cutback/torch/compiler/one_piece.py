"""Settings of PyTorch that keep graphs in one piece during a call of a compiled model.

PyTorch ends a graph where a model calls a logger. `transformers` does that in the loss of GPT-2 and
others, for a message that it shows once per process. The loss would be a graph of its own, and a
plan for ``"smallest"`` would cover only a part of the step. So such messages are not shown by
compiled code.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from torch import distributed
from torch._dynamo import config

_ONCE = ("warning_once", "info_once")
"""Methods that `transformers` adds to loggers."""


@contextlib.contextmanager
def without_messages() -> Iterator[None]:
    """Makes compiled code leave out messages that are shown once."""
    methods = [m for m in (getattr(logging.Logger, name, None) for name in _ONCE) if m is not None]
    if not methods or not hasattr(config, "ignore_logging_functions"):
        yield
        return
    ignored = config.ignore_logging_functions  # that of this thread
    added = [m for m in methods if m not in ignored]
    ignored.update(added)
    try:
        yield
    finally:
        ignored.difference_update(added)


def whole_buckets() -> contextlib.AbstractContextManager[Any]:
    """Keeps graphs whole inside DistributedDataParallel. PyTorch would cut each into one graph per
    bucket of gradients."""
    if (
        distributed.is_available()
        and distributed.is_initialized()
        and config.optimize_ddp in (True, "ddp_optimizer")
    ):
        whole: contextlib.AbstractContextManager[Any] = config.patch(optimize_ddp=False)
        return whole
    return contextlib.nullcontext()
