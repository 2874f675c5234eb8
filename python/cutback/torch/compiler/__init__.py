"""A budget for a model that PyTorch compiles: partitioners, back ends, plans that are kept.

Knows when PyTorch compiles what, and how several graphs and calls share one budget. Uses ``graph``.
Start at ``compiling.py``, then ``partition.py``.
"""
