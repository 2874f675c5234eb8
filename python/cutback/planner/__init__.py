"""Plans: problems read and made ready, searched for a budget, and what came of it: one plan, its
decisions and reasons, two compared, and the frontier of all.

Knows problems and plans as objects (``problem.py`` and ``schedule.py`` beside this folder), no
functions and no graphs; the core plans. Imports the modules beside these folders, and ``report``.
Start at ``plan.py``."""
