"""python -m translate IN.ptx OUT.c: what the driver runs for each module that it loads."""

import sys
from pathlib import Path

from .ptx import UnsupportedError
from .write import translate

if __name__ == "__main__":
    try:
        text, _ = translate(Path(sys.argv[1]).read_text(encoding="utf-8"))
    except UnsupportedError as error:
        sys.exit(str(error))
    Path(sys.argv[2]).write_text(text, encoding="utf-8")
