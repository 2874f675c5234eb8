"""``python -m cutback``."""

import sys

from .cli import main

sys.exit(main())
