"""All checks and measurements for a GPU, in stages, within a time limit: `make gpu`.

python tests/gpu/run.py [--limit SECONDS] [--only STAGE,...] [--items PREFIX,...] [--again]
                        [--installed] [--stand-in | --null] [--patience FACTOR] [--folder DIR]
                        [--out DIR]

README.md in this folder describes the stages, and how a second call continues where the first
ended.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from pathlib import Path

BEGIN = time.monotonic()
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import package
import report
import resumed
from ladder import SMALLEST, Ladder
from stages import NAMES, STAGES, Stage
from store import Store, own, usable

LIMIT = 600.0  # for both calls together
LONGER = 1800.0  # for stages selected by name, such as a build on a slow machine


def _limit(text: str) -> float:
    """Parses a limit: enough seconds for at least one purpose."""
    if not SMALLEST <= (seconds := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a useful limit: the smallest is {SMALLEST:g} seconds"
        )
    return seconds


def _patience(text: str) -> float:
    if not 0 < (factor := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {text!r}")
    return factor


def _number(text: str) -> float:
    """Parses a number, or returns NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=_limit, metavar="SECONDS", help="for everything")
    parser.add_argument("--only", default="", metavar="STAGE,...", help=", ".join(NAMES))
    parser.add_argument("--items", default="", metavar="PREFIX,...", help="whose names begin so")
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--installed", action="store_true", help="the package as it is installed")
    parser.add_argument(
        "--patience",
        type=_patience,
        default=1,
        metavar="FACTOR",
        help="times the seconds of each stage",
    )
    parser.add_argument("--stand-in", action="store_true", help="without a GPU, in small sizes")
    parser.add_argument("--null", action="store_true", help="on a driver that runs nothing")
    parser.add_argument("--folder", type=Path, help="state and package; default build/gpu")
    parser.add_argument(
        "--out", type=Path, help="archive and report; default $OUT, or out in there"
    )
    args = parser.parse_args()
    if args.limit is None:
        args.limit = LONGER if args.only else LIMIT
    return args


def _folders(args: argparse.Namespace) -> tuple[Path, Path]:
    """Returns the folders of the state and of the outputs; fallbacks if they cannot be written."""
    import tempfile

    folder = (args.folder or package.folder()).resolve()
    if not usable(folder):
        elsewhere = Path(tempfile.mkdtemp(prefix="cutback-gpu-"))
        print(f"cannot write to {folder}; the state is in {elsewhere}", flush=True)
        folder = elsewhere
    asked = args.out or os.environ.get("OUT")
    out = Path(asked).resolve() if asked else folder / "out"
    if not usable(out):
        print(f"cannot write to {out}; the archive is in {folder / 'out'}", flush=True)
        out = folder / "out"
        if not usable(out):
            raise SystemExit(f"cannot write to {out} either; name a folder with --out or $OUT")
    return folder, out


def _variables(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Returns the environment of items. Caches are in the folder, so they move with it and need no
    home."""
    found = dict(os.environ)
    caches = folder / "caches"
    for name in ("kernels", "torch", "triton"):
        own(caches / name)
    found |= {
        "CUTBACK_GPU_FOLDER": str(folder),
        "CUTBACK_CACHE_DIR": str(caches / "kernels"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if not usable(Path(os.path.expanduser("~"))):
        own(caches / "home")
        found["HOME"] = str(caches / "home")
    if args.installed:
        found["CUTBACK_GPU_INSTALLED"] = "1"
    if args.stand_in:
        found |= resumed.stand_in() | {"CUTBACK_GPU_ROWS_SMALL": "1"}
    if args.null:
        found |= resumed.null()
    return found


def _selected(only: str) -> tuple[Stage, ...]:
    names = [name for name in only.split(",") if name]
    if unknown := [name for name in names if name not in NAMES]:
        raise SystemExit(f"there is no stage {unknown[0]!r}; the stages: {', '.join(NAMES)}")
    return tuple(s for s in STAGES if not names or s.always or s.name in names)


def _forget(store: Store, stages: tuple[Stage, ...], prefixes: tuple[str, ...]) -> None:
    for stage in stages:
        for listing in stage.listings:
            items = store.state["results"].get(listing.name, {})
            for name in [name for name in items if name.startswith(prefixes)]:
                del items[name]


def main() -> int:
    """Runs the command line. Returns 0 if no requested item has failed."""
    args = _arguments()
    try:
        return _climb(args)
    except OSError as error:
        raise SystemExit(f"the ladder cannot run: {error}") from None


def _climb(args: argparse.Namespace) -> int:
    stages = _selected(args.only)
    folder, out = _folders(args)
    os.environ["CUTBACK_GPU_FOLDER"] = str(folder)
    store = Store(folder, out)
    how = "stand-in" if args.stand_in else "null driver" if args.null else ""
    store.start(
        {
            "start": time.strftime("%Y-%m-%d %H:%M:%S"), "limit": args.limit, "only": args.only,
            "commit": package.commit(), "sources": package.sources(), "card": None, "how": how,
        }
    )  # fmt: skip
    prefixes = tuple(filter(None, args.items.split(","))) or ("",)
    if args.again:
        _forget(store, stages, prefixes)
    variables = _variables(args, folder)
    if variables.get("HOME") != os.environ.get("HOME"):
        store.notes.append(f"{Path.home()} cannot be written; items have {variables['HOME']}")
    ladder = Ladder(store, variables, args.limit, BEGIN, args.patience)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: ladder.stop(number))
    ladder.prefixes = prefixes
    ladder.climb(stages)
    asked = [stage for stage in stages if not args.only or stage.name in args.only.split(",")]
    unmatched = ladder.unmatched(tuple(asked))
    if unmatched:
        store.notes.append(f"no item begins with {', '.join(map(repr, unmatched))} (--items)")
        ladder.keep()
    text = report.safe_text(store)
    print(text, flush=True)
    # the first screen again, at the end of the terminal
    print(text.partition("\n\n")[0], flush=True)
    print(", ".join(map(str, store.written)) or "no file was written", flush=True)
    if store.problem:
        print(store.problem, flush=True)
        return 1
    if unmatched:
        print(store.notes[-1], flush=True)
    names = {listing.name for stage in asked for listing in stage.listings}
    failed = [name for name in report.failures(store) if name.split(" ")[0] in names]
    complete = not any(any(report.missing(store, stage, prefixes)) for stage in asked)
    return 0 if complete and not failed and not unmatched and not ladder.is_ending else 1


if __name__ == "__main__":
    sys.exit(main())
