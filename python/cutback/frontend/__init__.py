"""Turns a user's function into a compiled step: traced arrays, operations on them, graphs,
checkpoint regions, and the functions that trace, compile and differentiate.

Shapes and dtypes follow NumPy's rules. This folder imports the modules directly in ``cutback``,
``planner``, and ``run``, which runs graphs. Start at ``tracing.py``; ``training.py`` has the
functions that users call."""
