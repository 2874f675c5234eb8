"""The command line: ``cutback plan FILE``, ``cut``, ``frontier``, ``explain``, ``diff``,
``evaluate``, ``estimate``, ``place``, ``doctor``, ``ops``, ``cache``.

Files contain problems or traced graphs, and may be compressed. An error prints one line to standard
error and exits with code 2. Each command imports its modules when it runs, so that the others start
faster."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native, estimate_command, files
from .budgets import MEASURES, PRESETS, Budget, parse_bytes, parse_preset, text, whole_number
from .devices import resolve
from .schedule import bytes_of
from .terminal import CommandParser, exit_status, interruptible, print_json, print_text

if TYPE_CHECKING:
    from .planner.plan import Plan

_DEVICE = (
    "row of the cost model: a name, measured (this CPU) or FILE.json (default: a100 for traced "
    "graphs, else cpu)"
)
_FILE = "a problem or a traced graph, as JSON or gzipped JSON (docs/problem.md)"


def _file(name: str) -> str:
    """Returns the name of an output file; ``-`` means standard output."""
    return "/dev/stdout" if name == "-" else name


def _budget_parser(plan: argparse.ArgumentParser) -> None:
    plan.add_argument(
        "--budget",
        help="a number from 0 (the smallest plan) to 1 (save everything), bytes, 6GiB, 0.4x or "
        "40%% (a share of the bytes of saving everything), min (the smallest plan that takes at "
        "most 40%% more time) or smallest (however slow)",
    )
    plan.add_argument(
        "--budgets",
        metavar="LIST",
        help="print a table for several budgets: a list such as 0.5,0.9x,4GiB,min, or N for N "
        "shares from 0.98x to 0.02x; with -o FOLDER, also write the plans",
    )
    plan.add_argument(
        "--measure", choices=MEASURES, help="the quantity that the budget bounds (default: live)"
    )
    plan.add_argument(
        "--max-extra",
        type=_number,
        metavar="SHARE",
        help="extra time allowed for --budget min (default: 0.4)",
    )


def _plan_parser(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("file", help=_FILE)
    _budget_parser(plan)
    plan.add_argument("--offload", action="store_true", help="values may move to the host and back")
    plan.add_argument(
        "--offload-only",
        action="store_const",
        const="only",
        dest="offload",
        help="values may move to the host and back, but nothing is recomputed",
    )
    plan.add_argument("--pinned", metavar="BYTES", help="limit on the bytes held on the host")
    plan.add_argument(
        "--exact",
        action="store_true",
        help="search again for exactly this budget; such plans are not comparable with others",
    )
    plan.add_argument("--preset", choices=PRESETS, help="what to save without a budget")
    plan.add_argument(
        "--policy",
        help="a name such as dots_saveable, save:OP,..., recompute:OP,..., offload:OP,..., "
        "names:PATTERN,..., mu-two[:BYTES] or a JSON table; join several with + (docs/planner.md)",
    )
    plan.add_argument("--device", help=_DEVICE)
    plan.add_argument(
        "--profile", metavar="FILE", help="measured seconds by operation, to replace modelled ones"
    )
    plan.add_argument(
        "--time-limit", type=_seconds, default=0.0, metavar="S", help="search for at most S seconds"
    )
    plan.add_argument("--explain", action="store_true", help="print each decision with its reason")
    plan.add_argument("--json", action="store_true", help="print the plan (docs/problem.md)")
    plan.add_argument("--report", type=_file, metavar="FILE", help="also write an HTML page")
    plan.add_argument(
        "-o",
        "--output",
        type=_file,
        metavar="FILE",
        help="write the plan to FILE, or, with --explain, the explanation",
    )


def _cut_parser(cut: argparse.ArgumentParser) -> None:
    cut.add_argument("file", help=_FILE)
    cut.add_argument("--preset", choices=PRESETS, default="conservative")
    cut.add_argument("--json", action="store_true", help="print saved ids, cut value and time")
    cut.add_argument(
        "--dump-network", type=_file, metavar="FILE", help="write the network in DIMACS form"
    )


def _place_parser(place: argparse.ArgumentParser) -> None:
    place.add_argument("file", help="CSV: id,lower,upper,size (docs/planner.md)")
    place.add_argument("--capacity", required=True, help="bytes, or a size such as 1MiB")
    place.add_argument(
        "--output", type=_file, default="/dev/stdout", metavar="FILE", help="CSV with offsets"
    )


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        from .doctor import version

        sys.stdout.write(f"cutback {version()}\n")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cutback", description="Plan what a training step saves and recomputes."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=CommandParser
    )
    doctor = commands.add_parser(
        "doctor", help="show what this installation consists of, and check that it works"
    )
    doctor.add_argument(
        "--verbose", action="store_true", help="list where NVIDIA's libraries were searched for"
    )
    commands.add_parser("ops", help="list the operations")
    cache = commands.add_parser("cache", help="show or clear the cache of compiled GPU kernels")
    cache.add_argument("action", choices=("info", "clear"))
    _plan_parser(commands.add_parser("plan", help="plan a graph from a file"))
    _cut_parser(commands.add_parser("cut", help="compute the minimum cut of a preset"))

    frontier = commands.add_parser("frontier", help="list all trade-offs of saved bytes and time")
    frontier.add_argument("file", help=_FILE)
    frontier.add_argument(
        "--preset", choices=PRESETS[1:], default="recompute_all", help="what may be recomputed"
    )
    frontier.add_argument("--device", help=_DEVICE)
    frontier.add_argument("--json", action="store_true", help="print all points (docs/planner.md)")
    frontier.add_argument("--report", type=_file, metavar="FILE", help="also write an HTML page")
    frontier.add_argument(
        "--peaks",
        action="store_true",
        help="with --report: also plot peak against time (needs a search for each budget)",
    )

    explain = commands.add_parser("explain", help="say what a plan does, and why")
    explain.add_argument("plan", help="a plan file")
    explain.add_argument("file", nargs="?", help="its graph (default: the file the plan names)")
    explain.add_argument("--json", action="store_true", help="print everything (docs/problem.md)")
    explain.add_argument("--report", type=_file, metavar="FILE", help="also write an HTML page")

    diff = commands.add_parser("diff", help="compare two plans of one graph")
    diff.add_argument("plan", help="a plan file")
    diff.add_argument("other", help="another plan file")
    diff.add_argument("file", nargs="?", help="their graph (default: as the first plan says)")
    diff.add_argument("--json", action="store_true", help="print totals and all changes")
    diff.add_argument("--report", type=_file, metavar="FILE", help="also write an HTML page")

    estimate_command.add_parser(commands)
    _place_parser(commands.add_parser("place", help="place buffers in one block of memory"))
    evaluate = commands.add_parser("evaluate", help="compute the bytes and time of a plan")
    evaluate.add_argument("file", help=_FILE)
    evaluate.add_argument("plan", help="a document with steps and backward_starts")
    evaluate.add_argument("--device", help="row of the cost model (default: the plan's)")
    evaluate.add_argument("--json", action="store_true", help="print bytes and picoseconds")
    return parser


_DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+"


def _bytes(text: str | None) -> int | str | None:
    return int(text) if text is not None and whole_number(text) else text


def _budget(text: str | None) -> Budget:
    """Parses ``--budget``. A decimal fraction is a position; an integer without a unit is passed on
    as an int."""
    if text is not None and re.fullmatch(_DECIMAL, text):
        return float(text)
    return _bytes(text)


def _number(text: str) -> float:
    """Parses a number for argparse; refuses underscores and non-ASCII digits, unlike ``float``."""
    if not text.isascii() or "_" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return float(text)


def _seconds(text: str) -> float:
    """Parses a time in seconds for argparse."""
    seconds = _number(text)
    if not 0 <= seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text} seconds are not between 0 and 1e6")
    return seconds


def _read_graph(path: str) -> str:
    graph = files.read_text(path)
    if not graph.lstrip().startswith("{"):
        raise ValueError(f"{path}: expected a JSON object with a graph")
    return graph


def _read_problem(path: str) -> tuple[str, _native.Problem]:
    """Reads a graph file. Returns its text, and the problem that it holds or is converted to.

    Raises:
        ValueError: if it holds neither a problem nor a traced graph; the message names the file.
    """
    graph = _read_graph(path)
    try:
        return graph, _native.Problem.read(graph)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _budgets(spec: str) -> list[Budget]:
    """Parses ``--budgets``: a list of budgets, or a number of shares."""
    if whole_number(spec):
        n = int(spec)
        if not 1 <= n <= 1000:
            raise ValueError(
                f"--budgets {spec}: a single number is the number of shares to plan, 1 to 1000; "
                f"for one budget in bytes write --budget {spec}"
            )
        return [f"{0.98 - 0.96 * i / max(1, n - 1):.4f}x" for i in range(n)]
    return [_budget(part.strip()) for part in spec.split(",") if part.strip()]


def _plan_several(options: argparse.Namespace, problem: _native.Problem, device: str | None) -> int:
    from .planner.plan import Plan
    from .planner.search import plans

    asked, measure = _budgets(options.budgets), options.measure or "live"
    if not asked:
        raise ValueError(f"--budgets {options.budgets!r} names no budget")
    with interruptible(len(asked)) as progress:
        answers = plans(
            problem,
            asked,
            measure=measure,
            preset=options.preset,
            policy=options.policy,
            device=device,
            time_limit=options.time_limit,
            progress=progress,
        )
    if options.output:
        os.makedirs(options.output, exist_ok=True)
    titles = f"{'budget':>12} {measure:>12} {'extra time':>10} {'at least':>8} {'gap':>8}"
    print_text(f"{titles} recomputed")
    for spec, answer in zip(asked, answers, strict=True):
        if not isinstance(answer, Plan):
            least = answer.smallest_bytes
            found = "" if least is None else f": the smallest plan found takes {text(least)}"
            print_text(f"{spec!s:>12} {'-':>12}  out of reach{found}")
            continue
        n = answer.numbers
        extra, bound = (
            f"{100 * max(0, ps - n['once_ps']) / max(1, n['once_ps']):.2f}%"
            for ps in (n["time_ps"], answer.bound_ps)
        )
        if n["bound_class"] == "trivial":
            bound = "trivial"
        gap = "n/a" if n["gap"] is None else f"{100 * n['gap']:.2f}%"
        size = text(bytes_of(n, measure))
        print_text(f"{spec!s:>12} {size:>12} {extra:>10} {bound:>8} {gap:>8} {n['recomputed']:>10}")
        if options.output:
            _write_plan(Path(options.output) / f"{spec}.json", answer, options.file)
    return 0


def _write_plan(path: str | Path, plan: Plan, graph: str) -> None:
    """Writes a plan with the name of its graph's file, unless that is not Unicode."""
    name = os.path.relpath(graph, os.path.dirname(os.path.abspath(path)))
    named = {} if re.search("[\ud800-\udfff]", name) else {"file": name}
    files.write_text(path, json.dumps({**plan.document, **named}) + "\n")


def _check_options(options: argparse.Namespace) -> None:
    """Checks that no option of ``plan`` would be ignored.

    Raises:
        ValueError: if one would be; the message names the option that it needs.
    """
    if options.json and options.explain:
        raise ValueError("--json and --explain exclude each other")
    if options.budgets is not None:
        if (options.budget, options.max_extra, options.report) != (None,) * 3 or options.explain:
            raise ValueError(
                "--budgets cannot be used with --budget, --max-extra, --explain or --report"
            )
        for name in ("exact", "json", "offload", "pinned", "profile"):
            if getattr(options, name) not in (None, False):
                raise ValueError(f"--{name} needs a single --budget")
    searched = options.budget is not None or options.budgets is not None
    if not searched and options.measure is not None:
        raise ValueError("--measure needs --budget, because it says what the budget bounds")
    if searched and options.preset is not None and options.measure != "saved":
        raise ValueError(
            "--preset can only be used without --budget (it says what to save) or with "
            "--measure saved (it says what may be recomputed)"
        )


def _check_outputs(options: argparse.Namespace) -> None:
    """Checks that no output file is one of the files that are read.

    Raises:
        ValueError: if one is.
    """
    given = vars(options)
    for name in ("output", "report", "dump_network"):
        for source in ("file", "plan", "other", "profile"):
            to, read = given.get(name) or "", given.get(source) or ""
            if os.path.exists(to) and os.path.exists(read) and os.path.samefile(to, read):
                flag = name.replace("_", "-")
                raise ValueError(
                    f"--{flag} {to}: cannot write to a file that the command reads; name another"
                )


def _plan(options: argparse.Namespace) -> int:
    from .frontend.planning import plan

    _check_options(options)
    graph, problem = _read_problem(options.file)
    device = options.device or ("a100" if files.is_traced(graph) else None)
    if options.budgets is not None:
        return _plan_several(options, problem, device)
    with interruptible() as progress:
        answer = plan(
            problem,
            budget=_budget(options.budget),
            measure=options.measure or "live",
            max_extra=options.max_extra,
            offload=options.offload,
            pinned=_bytes(options.pinned),
            exact=options.exact,
            preset=options.preset,
            policy=options.policy,
            device=device,
            profile=options.profile,
            time_limit=options.time_limit,
            progress=progress,
        )
    if options.report:
        answer.report(options.report, title=f"Plan of {Path(options.file).name}")
    explained = answer.explain() if options.explain else ""
    if options.output and options.explain:
        files.write_text(options.output, explained.rstrip("\n") + "\n")
    elif options.output:
        _write_plan(options.output, answer, options.file)
    if options.json:
        print_json(answer.to_json())
    elif not options.explain:
        print_text(str(answer))
    elif not options.output:
        print_text(explained)
    return 0


def _cut(options: argparse.Namespace) -> int:
    _, problem = _read_problem(options.file)
    answer, network = problem.cut_json(
        parse_preset(options.preset), options.dump_network is not None
    )
    if network is not None:
        files.write_text(options.dump_network, network)
    if options.json:
        print_json(answer)
        return 0
    cut = json.loads(answer)
    print_text(
        f"{options.preset}: saves {len(cut['saved'])} values, {text(cut['saved_bytes'])} besides "
        f"arguments; cut {cut['cut']} of a network of {cut['nodes']} nodes and {cut['arcs']} arcs, "
        f"in {cut['solve_ms']:.2f} ms"
    )
    return 0


def _frontier(options: argparse.Namespace) -> int:
    from .planner.tradeoffs import Frontier

    if options.peaks and not options.report:
        raise ValueError("--peaks needs --report FILE")
    graph, problem = _read_problem(options.file)
    device = options.device or ("a100" if files.is_traced(graph) else None)
    answer = Frontier.of(problem, options.preset, device, graph)
    if options.report:
        title = f"Frontier of {Path(options.file).name}"
        answer.report(options.report, title=title, peaks=options.peaks)
    if options.json:
        print_json(answer.to_json())
    else:
        print_text(str(answer))
    return 0


def _read_plan(path: str) -> tuple[str, dict[str, Any]]:
    """Reads a plan file. Returns its text and the document, which may name the file of its graph.

    Raises:
        ValueError: if the file does not contain a JSON object.
    """
    plan = files.read_text(path)
    document = files.parse_json(plan, path)
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected a JSON object with a plan")
    return plan, document


def _problem_of(options: argparse.Namespace, document: Mapping[str, Any]) -> _native.Problem:
    """Returns the problem that a plan is for."""
    if options.file:
        return _read_problem(options.file)[1]
    named = document.get("file")
    if not isinstance(named, str):
        raise ValueError(f"{options.plan} does not name its graph; pass it as the last argument")
    folder = os.path.dirname(os.path.abspath(options.plan))
    return _read_problem(os.path.join(folder, named))[1]


def _plan_for(problem: _native.Problem, plan: str, path: str) -> Plan:
    """Reads a plan with its problem.

    Raises:
        ValueError: if the plan belongs to another graph or is damaged; the message names the file.
    """
    from .planner.plan import Plan

    try:
        return Plan.of(problem.read_plan(plan))
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"{path}: {error}") from None


def _explain(options: argparse.Namespace) -> int:
    plan, document = _read_plan(options.plan)
    answer = _plan_for(_problem_of(options, document), plan, options.plan)
    (print_json if options.json else print_text)(answer.explain(as_json=options.json))
    if options.report:
        answer.report(options.report, title=f"Plan {Path(options.plan).name}")
    return 0


def _diff(options: argparse.Namespace) -> int:
    (first, document), (second, _) = _read_plan(options.plan), _read_plan(options.other)
    problem = _problem_of(options, document)
    before = _plan_for(problem, first, options.plan)
    after = _plan_for(problem, second, options.other)
    answer = before.diff(after)
    if options.json:
        print_json(answer.to_json())
    else:
        print_text(str(answer))
    if options.report:
        names = f"{Path(options.plan).name} and {Path(options.other).name}"
        answer.report(options.report, title=f"Plans {names}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    (graph, problem), plan = _read_problem(options.file), files.read_text(options.plan)
    device = resolve(options.device)
    if device is None and files.is_traced(graph) and '"device"' not in plan:
        device = "a100"
    try:
        answer = problem.evaluate_json(plan, device)
    except ValueError as error:
        raise ValueError(f"{options.plan}: {error}") from None
    if options.json:
        print_json(answer)
        return 0
    n = json.loads(answer)
    extra = 100 * (n["time_ps"] - n["once_ps"]) / max(1, n["once_ps"])
    print_text(
        f"peak {text(n['peak_bytes'])}, arena {text(n['arena_bytes'])}, saved "
        f"{text(n['saved_bytes'])}\n{n['time_ps'] / 1e9:.3f} ms, {extra:.1f} % more than running "
        f"everything once; {n['recomputed']} of {n['runs']} runs are recomputations"
    )
    return 0


def _estimate(options: argparse.Namespace) -> int:
    answer = estimate_command.estimate(options, _bytes(options.budget))
    if options.json:
        print_json(json.dumps(answer.document()))
    else:
        print_text(str(answer))
    return 0


def _place(options: argparse.Namespace) -> int:
    from . import placement

    capacity = parse_bytes(_bytes(options.capacity) or 0)
    try:
        buffers = placement.read_csv(files.read_text(options.file))
        offsets = placement.place(buffers, capacity)
    except ValueError as error:
        raise ValueError(f"{options.file}: {error}") from None
    answer = placement.write_csv(buffers, offsets)
    if options.output == "/dev/stdout":
        sys.stdout.write(answer)
        return 0
    files.write_text(options.output, answer)
    top = max((b.size + at for b, at in zip(buffers, offsets, strict=True)), default=0)
    print_text(f"{len(buffers)} buffers in {text(top)}: {options.output}")
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


def _cache(action: str) -> int:
    from .cuda import cache_clear, cache_info

    info = cache_clear() if action == "clear" else cache_info()
    kept = f"{info.files} files, {text(info.bytes)}"
    said = f"deleted {kept}" if action == "clear" else kept
    sys.stdout.write(f"{files.one_line(str(info.folder))}: {said}\n")
    if info.problem:
        sys.stdout.write(f"the cache is not used: {info.problem}\n")
    return 0


_COMMANDS = {
    "plan": _plan,
    "cut": _cut,
    "frontier": _frontier,
    "explain": _explain,
    "diff": _diff,
    "estimate": _estimate,
    "evaluate": _evaluate,
    "place": _place,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0 on success, and 2 after an error, which is printed on one line."""
    return exit_status(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        importlib.import_module("argcomplete").autocomplete(parser)
    options = parser.parse_args(arguments)
    if options.command in _COMMANDS:
        _check_outputs(options)
        return _COMMANDS[options.command](options)
    if options.command == "ops":
        return _ops()
    if options.command == "cache":
        return _cache(options.action)
    from .doctor import main as doctor

    return doctor(options.verbose)


if __name__ == "__main__":
    sys.exit(main())
