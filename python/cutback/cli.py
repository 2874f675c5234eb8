"""The command line: ``cutback doctor``, ``cutback plan FILE``, ``cutback ops``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import __version__
from .budgets import MEASURES, PRESETS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cutback", description="Plan what a training step saves and recomputes."
    )
    parser.add_argument("--version", action="version", version=f"cutback {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("doctor", help="show what this installation consists of, and try it")
    commands.add_parser("ops", help="list the operations")
    plan = commands.add_parser("plan", help="plan a problem from a file")
    plan.add_argument("file", help="problem JSON, may be gzipped (docs/problem.md)")
    plan.add_argument("--budget", help="bytes, 6GiB, 0.4x (a share of saving everything) or min")
    plan.add_argument("--measure", choices=MEASURES, default="live", help="what the budget bounds")
    plan.add_argument("--preset", choices=PRESETS, help="what to save without a budget")
    plan.add_argument("--device", help="row of the cost model")
    plan.add_argument(
        "--explain", action="store_true", help="print each decision with its reason instead of JSON"
    )
    plan.add_argument("--report", metavar="FILE", help="write an HTML page as well")
    plan.add_argument(
        "-o", "--output", metavar="FILE", help="write there instead of to standard output"
    )
    return parser


def _budget(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _plan(options: argparse.Namespace) -> int:
    from .planning import plan

    answer = plan(
        options.file,
        budget=_budget(options.budget),
        measure=options.measure,
        preset=options.preset,
        device=options.device,
    )
    if options.report:
        answer.report(options.report)
    text = answer.explain() if options.explain else answer.to_json()
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text.rstrip("\n") + "\n")
    else:
        sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def _ops() -> int:
    from .policies import OPS

    for name, low, high, outs, _, attributes, meaning, differentiable in OPS.values():
        ins = str(low) if low == high else f"{low}+" if high < 0 else f"{low}-{high}"
        gradient = "" if differentiable else "  (no gradient)"
        sys.stdout.write(f"{name:18} {ins:>3} -> {outs}  {meaning}{gradient}\n")
        if attributes:
            sys.stdout.write(f"{'':30}{attributes}\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0 when it succeeded, 2 after a mistake, which is told in one line."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "plan":
            return _plan(options)
        if options.command == "ops":
            return _ops()
        from .doctor import main as doctor

        return doctor()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        sys.stderr.write(f"cutback: {' '.join(str(error).split())}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
