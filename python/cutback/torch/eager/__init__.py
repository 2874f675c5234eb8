"""A budget for a region that runs in eager mode: it is watched once, planned, and then rerun
value by value in the backward.

Uses ``graph`` for what is known of PyTorch's ops, nothing of the compiler. Start at ``regions.py``,
then ``log.py`` (what a region did) and ``plan.py`` (what it will do).
"""
