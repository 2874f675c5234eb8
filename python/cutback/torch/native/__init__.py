"""Groups of a planned graph as calls of our kernels.

``rows`` is the table: for each ATen operation, what it is in our operations, or why it stays
PyTorch's. ``choosing`` says which nodes of a graph run in our kernels, ``grouping`` which of them
run together, ``building`` compiles a group, and ``lowering`` writes the graph in which groups are
single calls. ``arrays`` and ``layouts`` are what rows are written with.
"""
