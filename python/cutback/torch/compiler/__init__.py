"""Runs compiled models under a budget: partitioners, back ends and saved plans.

The package knows which graph PyTorch compiles at which time, and how several graphs and calls share
one budget. It uses ``graph``. Start at ``compiling.py``, then ``partition.py``.
"""
