"""Groups of a planned graph as calls of our kernels.

``rows`` is the table: for each ATen operation, what it is in our operations, or why it stays
PyTorch's. ``choosing`` measures which of them run in our kernels, and ``decisions`` keeps that for
the machine. ``grouping`` says which nodes run together, ``building`` and ``calls`` compile a group,
and ``lowering`` writes the graph in which groups are single calls. ``arrays`` and ``layouts`` are
what rows are written with.
"""
