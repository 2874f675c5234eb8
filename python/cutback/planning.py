"""Plans under the name that those pickled by earlier versions have for them: see ``planner``."""

from .frontend.planning import min_cut, plan
from .planner.plan import Entry, Plan
from .planner.search import Best, plans

__all__ = ["Best", "Entry", "Plan", "min_cut", "plan", "plans"]
