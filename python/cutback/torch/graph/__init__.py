"""A model's joint graph: what PyTorch traced, as a problem for the planner, and the planner's
answer as graphs again.

Knows FX graphs and PyTorch's ops, and nothing of compiling, eager regions or profiling. Uses
``memory`` and ``transfers`` beside it, ``report``, and the modules that all of ``cutback`` share.
Start at ``importer.py``, then ``emitter.py``.
"""
