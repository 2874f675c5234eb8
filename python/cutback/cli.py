"""The command line: ``cutback plan FILE``, ``cut``, ``frontier``, ``explain``, ``evaluate``,
``doctor``, ``ops``.

Files are problems or traced graphs, gzipped or not. A mistake is one line on standard error and
exit code 2."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import __version__
from .budgets import MEASURES, PRESETS, parse_preset, text

_FILE = "a problem or a traced graph, as JSON or gzipped JSON (docs/problem.md)"


def _plan_parser(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("file", help=_FILE)
    plan.add_argument("--budget", help="bytes, 6GiB, 0.4x (a share of saving everything) or min")
    plan.add_argument("--measure", choices=MEASURES, default="live", help="what the budget bounds")
    plan.add_argument(
        "--max-extra", type=float, metavar="SHARE", help="time that min may cost; 0.4 unless given"
    )
    plan.add_argument(
        "--offload",
        nargs="?",
        const=True,
        default=False,
        choices=("only",),
        help="values may move to the host and back; only: and nothing runs again",
    )
    plan.add_argument("--pinned", metavar="BYTES", help="most that the host may hold at a time")
    plan.add_argument("--preset", choices=PRESETS, help="what to save without a budget")
    plan.add_argument(
        "--policy",
        help="dots_saveable, everything_saveable, nothing_saveable, save:OP,OP,... or a JSON table",
    )
    plan.add_argument(
        "--device", help="row of the cost model; a100 for traced graphs, else cpu, unless given"
    )
    plan.add_argument(
        "--time-limit", type=float, default=0.0, metavar="S", help="end the search after S seconds"
    )
    plan.add_argument(
        "--explain", action="store_true", help="print each decision with its reason instead of JSON"
    )
    plan.add_argument("--report", metavar="FILE", help="write an HTML page as well")
    plan.add_argument(
        "-o", "--output", metavar="FILE", help="write there instead of to standard output"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cutback", description="Plan what a training step saves and recomputes."
    )
    parser.add_argument("--version", action="version", version=f"cutback {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("doctor", help="show what this installation consists of, and try it")
    commands.add_parser("ops", help="list the operations")
    _plan_parser(commands.add_parser("plan", help="plan a graph from a file"))

    cut = commands.add_parser("cut", help="the minimum cut of a preset")
    cut.add_argument("file", help=_FILE)
    cut.add_argument("--preset", choices=PRESETS, default="conservative")
    cut.add_argument("--json", action="store_true", help="ids of what is saved, value and time")
    cut.add_argument("--dump-network", metavar="FILE", help="write the network in DIMACS form")

    frontier = commands.add_parser("frontier", help="every trade-off of saved bytes and time")
    frontier.add_argument("file", help=_FILE)
    frontier.add_argument(
        "--preset", choices=PRESETS[1:], default="recompute_all", help="what may run again"
    )
    frontier.add_argument(
        "--device", help="row of the cost model; a100 for traced graphs, else cpu, unless given"
    )
    frontier.add_argument("--json", action="store_true", help="all points (docs/planner.md)")
    frontier.add_argument("--report", metavar="FILE", help="write an HTML page as well")

    explain = commands.add_parser("explain", help="what a plan does, and why")
    explain.add_argument("plan", help="a plan file")
    explain.add_argument("file", nargs="?", help="its graph; unless given, where the plan says")
    explain.add_argument("--report", metavar="FILE", help="write an HTML page as well")

    evaluate = commands.add_parser("evaluate", help="bytes and time of a plan")
    evaluate.add_argument("file", help=_FILE)
    evaluate.add_argument("plan", help="a document with steps and backward_starts")
    evaluate.add_argument("--device", help="row of the cost model; the plan's unless given")
    return parser


def _budget(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _print(what: str) -> None:
    sys.stdout.write(what.rstrip("\n") + "\n")


@contextmanager
def _interruptible() -> Iterator[Callable[[float], bool]]:
    """A progress function: shows the seconds where somebody may look, and ends the search at the
    first Ctrl-C; a second one ends the program."""
    stop = False
    shown = sys.stderr.isatty()

    def interrupt(number: int, frame: object) -> None:
        nonlocal stop
        if stop:
            raise KeyboardInterrupt
        stop = True

    def progress(seconds: float) -> bool:
        if shown and seconds >= 0.5:
            sys.stderr.write(f"\rsearching, {seconds:.1f} s (Ctrl-C: take the best so far) ")
            sys.stderr.flush()
        return stop

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield progress
    finally:
        signal.signal(signal.SIGINT, before)
        if shown:
            sys.stderr.write("\r\x1b[K")


def _plan(options: argparse.Namespace) -> int:
    from . import files
    from .planning import plan

    graph = files.read_text(options.file)
    device = options.device or ("a100" if files.is_traced(graph) else None)
    with _interruptible() as progress:
        answer = plan(
            graph,
            budget=_budget(options.budget),
            measure=options.measure,
            max_extra=options.max_extra,
            offload=options.offload,
            pinned=_budget(options.pinned),
            preset=options.preset,
            policy=options.policy,
            device=device,
            time_limit=options.time_limit,
            progress=progress,
        )
    if options.report:
        answer.report(options.report, title=f"Plan of {Path(options.file).name}")
    if not options.output:
        _print(answer.explain() if options.explain else answer.to_json())
        return 0
    written = answer.explain()
    if not options.explain:
        folder = os.path.dirname(os.path.abspath(options.output))
        document = {**answer.document, "file": os.path.relpath(options.file, folder)}
        written = json.dumps(document)
        _print(str(answer))
    Path(options.output).write_text(written.rstrip("\n") + "\n", encoding="utf-8")
    return 0


def _cut(options: argparse.Namespace) -> int:
    from . import _native, files

    graph = files.read_text(options.file)
    answer, network = _native.cut_json(
        graph, parse_preset(options.preset), options.dump_network is not None
    )
    if network is not None:
        Path(options.dump_network).write_text(network, encoding="utf-8")
    if options.json:
        _print(answer)
        return 0
    cut = json.loads(answer)
    _print(
        f"{options.preset}: saves {len(cut['saved'])} values, {text(cut['saved_bytes'])} besides "
        f"arguments; cut {cut['cut']} of a network of {cut['nodes']} nodes and {cut['arcs']} arcs, "
        f"in {cut['solve_ms']:.2f} ms"
    )
    return 0


def _frontier(options: argparse.Namespace) -> int:
    from . import files
    from .tradeoffs import frontier

    graph = files.read_text(options.file)
    device = options.device or ("a100" if files.is_traced(graph) else None)
    answer = frontier(graph, preset=options.preset, device=device)
    if options.report:
        answer.report(options.report, title=f"Frontier of {Path(options.file).name}")
    _print(answer.to_json() if options.json else str(answer))
    return 0


def _graph_of(options: argparse.Namespace, plan: str) -> str:
    """The file of the graph that a plan is for."""
    if options.file:
        return str(options.file)
    document = json.loads(plan)
    named = document.get("file") if isinstance(document, dict) else None
    if not isinstance(named, str):
        raise ValueError(f"{options.plan} does not name its graph; give it as the second argument")
    return os.path.join(os.path.dirname(os.path.abspath(options.plan)), named)


def _explain(options: argparse.Namespace) -> int:
    from . import files
    from .planning import Plan, read_problem

    plan = files.read_text(options.plan)
    answer = Plan(read_problem(files.read_text(_graph_of(options, plan))), plan)
    _print(answer.explain())
    if options.report:
        answer.report(options.report, title=f"Plan {Path(options.plan).name}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from . import _native, files

    graph, plan = files.read_text(options.file), files.read_text(options.plan)
    device = options.device
    if device is None and files.is_traced(graph) and '"device"' not in plan:
        device = "a100"
    _print(_native.evaluate_json(graph, plan, device))
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


_COMMANDS = {
    "plan": _plan,
    "cut": _cut,
    "frontier": _frontier,
    "explain": _explain,
    "evaluate": _evaluate,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0 when it succeeded, 2 after a mistake, which is told in one line."""
    options = _parser().parse_args(arguments)
    try:
        if options.command in _COMMANDS:
            return _COMMANDS[options.command](options)
        if options.command == "ops":
            return _ops()
        from .doctor import main as doctor

        return doctor()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ValueError, TypeError, NotImplementedError, MemoryError) as error:
        sys.stderr.write(f"cutback: {' '.join(str(error).split()) or type(error).__name__}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("cutback: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
