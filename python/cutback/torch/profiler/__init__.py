"""What a step takes: its problem without running it (``tracing.py``), times and bytes of its ops
measured (``profiling.py``), the largest batch, and mu-TWO.

Uses ``graph``, ``compiler``, and ``cutback.frontend`` for plans. Start at ``profiling.py``, then
``stepping.py``.
"""
