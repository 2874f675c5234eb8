"""Runs groups of a planned graph as calls of our kernels. ``table`` says for each ATen operation
how it is expressed in our operations, or why it stays with PyTorch. ``choosing`` measures which
operations run in our kernels, and ``decisions`` stores the results for the machine. ``grouping``
decides which nodes run together, ``building`` and ``calls`` compile a group, and ``lowering``
writes the graph in which groups are single calls. Rows of the table use ``arrays`` and
``layouts``.
"""
