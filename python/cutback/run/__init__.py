"""Running: a compiled graph on arrays, the memory that it runs in, what it took, and what each
kernel of it took.

Knows the core's compiled steps, arrays (NumPy, DLPack) and the plan a step follows; no tracing.
Imports the modules directly in ``cutback``, and ``planner``. Start at ``executable.py``."""
