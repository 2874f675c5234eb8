"""Runs a compiled graph on arrays, in memory that runs can share, and measures it and each of its
kernels.

Knows the core's compiled steps, arrays (NumPy, DLPack) and the plan a step follows; no tracing.
Imports the modules directly in ``cutback``, and ``planner``. Start at ``executable.py``."""
