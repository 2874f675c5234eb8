"""Reads and prepares problems, searches for plans, explains and compares plans, and computes
frontiers.

This folder handles problems and plans (``problem.py`` and ``schedule.py`` in the parent folder),
but not functions or graphs; the core does the planning. It imports top-level modules of the package
and ``report``. Start at ``plan.py``."""
