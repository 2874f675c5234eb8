"""Budgets for regions that run in eager mode. A region is recorded once and planned; its backward
then recomputes individual values.

Uses ``graph`` for facts about PyTorch's ops, but not the compiler. Start at ``regions.py``, then
``log.py`` (records what a region did) and ``plan.py`` (decides what it will do).
"""
