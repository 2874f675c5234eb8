"""Functional operations under NumPy's names: :mod:`cutback.frontend.ops` under a shorter name."""

from .frontend.ops import *  # noqa: F403
from .frontend.ops import __all__ as __all__
