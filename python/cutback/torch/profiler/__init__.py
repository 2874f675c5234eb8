"""Traces a step to a planner problem without running it (``tracing.py``), measures the time and
bytes of its ops (``profiling.py``), finds the largest batch, and implements mu-TWO.

Uses ``graph``, ``compiler``, and ``cutback.frontend`` for plans. Start at ``profiling.py``, then
``stepping.py``.
"""
