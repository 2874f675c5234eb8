"""Converts a model's joint graph, as traced by PyTorch, to a problem for the planner, and converts
the planner's answer back to graphs.

It knows FX graphs and PyTorch's ops, but nothing about compiling, eager regions or profiling. It
uses the modules ``memory``, ``transfers`` and ``report``, and the shared modules of ``cutback``.
Start at ``importer.py``, then ``emitter.py``.
"""
