"""From a user's function to a compiled step: traced arrays, the operations on them, the graph that
these append to, checkpoint regions, and the functions that trace, compile and differentiate.

Knows NumPy's rules of shapes and dtypes. Imports the modules directly in ``cutback``, ``planner``,
and ``run``, which makes a graph run. Start at ``tracing.py``; ``training.py`` has what users
call."""
