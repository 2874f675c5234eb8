"""Runs compiled graphs on arrays, in memory that steps can share, and measures runs and kernels.

This folder handles the core's compiled steps, arrays (NumPy, DLPack) and plans; tracing is in
``frontend``. It imports the modules directly in ``cutback``, and ``planner``. Start at
``executable.py``."""
