"""Converts a model's joint graph, as traced by PyTorch, to a problem for the planner, and the
planner's answer back to graphs.

It knows FX graphs and PyTorch's ops, but nothing about compiling, eager regions or profiling. It
uses the neighbouring modules ``memory`` and ``transfers``, ``report``, and the shared modules of
``cutback``. Start at ``importer.py``, then ``emitter.py``.
"""
