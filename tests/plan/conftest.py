"""Paths, and tiers of graphs: parameters of the three small ones run by default, the others are
``very_slow``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
