"""A model's joint graph: what PyTorch traced, as a problem for the planner, and the planner's
answer as graphs again.

Knows FX graphs and PyTorch's ops. Uses the planner (``cutback.planner``) and `hooks`; nothing of
compiling, eager regions or profiling. Start at ``importer.py``, then ``emitter.py``.
"""
