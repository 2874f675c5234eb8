"""The report of a ladder: ten lines that answer the first questions, then everything by stage.

python report.py FOLDER     prints it from the state in a folder such as `build/gpu`
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from stages import STAGES, Stage
from store import Record, Store

WIDTH = 250
TEXT_LINES = 60  # for the first error; later ones get a third


def newest(store: Store, stage: str) -> dict[str, Record]:
    """Returns one record per item: the one for the present card and sources, or else the latest."""
    found = {}
    for item, records in store.state["results"].get(stage, {}).items():
        if records:
            found[item] = store.here(stage, item) or records[-1]
    return found


def here(store: Store, stage: str) -> dict[str, Record]:
    """Returns the records for the present card and sources."""
    items = store.state["results"].get(stage, {})
    return {item: record for item in items if (record := store.here(stage, item))}


def listed(store: Store, stage: str) -> list[str]:
    """Returns the items of a stage, as last listed by a run."""
    for run in reversed(store.state["runs"]):
        if stage in run.get("items", {}):
            return list(run["items"][stage])
    return []


def missing(store: Store, stage: Stage, prefixes: tuple[str, ...] = ("",)) -> tuple[int, int]:
    """Returns (number of a stage's items without a result or cut short, number without one for the
    present card and sources). A stage that was never listed counts as one item."""
    nowhere = elsewhere = 0
    for listing in stage.listings:
        found = newest(store, listing.name)
        if stage.always:
            found = {i: r for i in found if (r := store.now(listing.name, i))}
        ours = found if stage.always else here(store, listing.name)
        names = listed(store, listing.name) or list(found)
        nowhere += not names
        if not stage.always:
            names = [name for name in names if name.startswith(prefixes)]
        nowhere += sum(n not in found or found[n]["status"] == "cut" for n in names)
        elsewhere += sum(n in found and n not in ours for n in names)
    return nowhere, elsewhere


def _unfinished(store: Store) -> str:
    """Says how the run ended if it ended early, and names stages with items that have no result
    here."""
    names = []
    for stage in STAGES:
        nowhere, elsewhere = missing(store, stage)
        if nowhere or elsewhere:
            names.append(stage.name + ("" if nowhere else " (only elsewhere)"))
    return "; ".join(filter(None, (ending(store.run, True), ", ".join(names))))


def short(value: Any) -> str:
    """Returns a result in one line: numbers and words, no lists; its ``line`` if it has one."""
    if not isinstance(value, dict):
        return "no result"
    if isinstance(value.get("line"), str):
        return str(value["line"])
    parts = []
    for key, v in value.items():
        if isinstance(v, float):
            parts.append(f"{key} {v:.4g}")
        elif isinstance(v, (int, str)) and len(str(v)) < 80:
            parts.append(f"{key} {v}")
    return ", ".join(parts) or "ok"


def _counts(records: dict[str, Record]) -> str:
    """Returns the numbers of passed items, failed ones and so on."""
    kinds = {"ok": 0, "left out": 0, "failed": 0, "cut": 0}
    for record in records.values():
        left_out = record["status"] == "ok" and "left out" in (record.get("value") or {})
        kinds["left out" if left_out else record["status"]] += 1
    words = {"ok": "pass", "left out": "left out", "failed": "FAILED", "cut": "cut short"}
    return ", ".join(f"{n} {words[kind]}" for kind, n in kinds.items() if n) or "not run"


def _places(store: Store, records: dict[str, Record]) -> str:
    """Counts records for the present card and sources, then for others."""
    groups: dict[str, dict[str, Record]] = {"": {}}
    for item, record in records.items():
        groups.setdefault(_place(store, record), {})[item] = record
    ours = groups.pop("")
    texts = [f"{_counts(found)} [{place}]" for place, found in groups.items()]
    return "; ".join(
        ([_counts(ours)] if ours else ["not run here"] if texts else ["not run"]) + texts
    )


def _place(store: Store, record: Record) -> str:
    """Returns the origin of a result; "" for the present card and sources."""
    run = store.run
    ours = record["run"] == len(store.state["runs"]) - 1 or (
        run.get("card") is not None
        and (record["card"], record["sources"]) == (run["card"], run.get("sources"))
    )
    if ours:
        return ""
    card = record["card"] or "no card"
    same = record["sources"] == run.get("sources")
    return card if same else f"{card}, commit {record.get('commit')}"


def _bits(store: Store) -> str:
    found = newest(store, "checks")
    ours = {item: r for item, r in found.items() if not _place(store, r)}
    values = [r["value"] for r in (ours or found).values() if isinstance(r.get("value"), dict)]
    of = "" if ours else "not known here; elsewhere "
    outputs, equal = (sum(v.get(key, 0) for v in values) for key in ("outputs", "equal"))
    promised = sum(v.get("promised", 0) for v in values)
    kept = sum(min(v.get("promised", 0), v.get("equal", 0)) for v in values)
    repeats = [v["repeats"] for v in values if "repeats" in v]
    if not outputs:
        return "not known"
    return (
        f"{of}{equal} of {outputs} outputs have the CPU's bits, {kept} of the {promised} promised; "
        f"{sum(repeats)} of {len(repeats)} second runs have the bits of the first"
    )


def ratio(value: Any) -> float | None:
    """Returns the fastest of the others divided by ours."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("best / ours"), (int, float)):
        return float(value["best / ours"])
    found = [v for k, v in value.items() if k.endswith("/ ours") and isinstance(v, (int, float))]
    return min(found) if found else None


def _ends_of_rows(store: Store) -> tuple[str, str]:
    """Returns the best and the worst row."""
    rows = {}
    for stage in ("rows", "compile"):
        for item, record in newest(store, stage).items():
            if (seen := ratio(record.get("value"))) is not None:
                rows[f"{item} ({stage})", _place(store, record)] = seen
    if not rows:
        return "no row has a figure of PyTorch", "likewise"
    texts = []
    for pick in (max, min):
        (name, place), seen = pick(rows.items(), key=lambda pair: pair[1])
        texts.append(f"{name}: {seen:.2f} times as fast as PyTorch" + _of(place))
    return texts[0], texts[1]


def _of(place: str) -> str:
    return f" [{place}]" if place else ""


def _bridge(store: Store) -> str:
    found = {**newest(store, "bridge"), **newest(store, "models")}
    if not found:
        return "not run"
    lines = [
        f"{name}: {str(r['value']['line']).split('; ours', 2)[0][:90]}{_of(_place(store, r))}"
        for name, r in found.items()
        if "line" in (r.get("value") or {})
    ]
    return "; ".join([_places(store, found), *lines])


def _sanitizer(store: Store) -> str:
    record = newest(store, "sanitizer").get("sanitizer") or {}
    value = record.get("value")
    if not isinstance(value, dict):
        return "not run"
    of = _of(_place(store, record))
    if "left out" in value:
        return f"{value['left out']}{of}"
    tools = [tool for tool in value if tool != "trial"]
    return (
        "; ".join(f"{t}: {value[t].get('summary', value[t].get('ended', '?'))}" for t in tools)
        or "the trial alone"
    ) + of


def failures(store: Store) -> dict[str, Record]:
    """Returns all failures, in the order of the stages."""
    found = {}
    for stage in STAGES:
        for listing in stage.listings:
            for item, record in newest(store, listing.name).items():
                if record["status"] == "failed":
                    found[f"{listing.name} {item}"] = record
    return found


def _works(store: Store) -> str:
    smoke, known = here(store, "smoke"), newest(store, "smoke")
    if not smoke:
        card = (store.now("facts", "card") or {}).get("failed")
        elsewhere = f" (elsewhere: {_places(store, known).partition('; ')[2]})" if known else ""
        return f"NOT KNOWN here: {card or 'the first steps did not run'}{elsewhere}"
    statuses = [record["status"] for record in smoke.values()]
    context = ((store.run.get("facts") or {}).get("card") or {}).get("context", "ok")
    why = "" if context == "ok" else f"; no context: {context}"
    done, steps = statuses.count("ok"), len({*smoke, *listed(store, "smoke")})
    if "failed" in statuses:
        return f"NO: of the first steps {_counts(smoke)}{why}"
    if done < steps:
        return f"so far: {done} of {steps} first steps are done: {_counts(smoke)}{why}"
    return f"yes: of the first steps {_counts(smoke)}{why}"


def _clocks(value: Any) -> str:
    if not isinstance(value, dict):
        return "not known"
    if why := value.get("left out") or value.get("problem"):
        return str(why)
    reasons = ", ".join(value.get("reasons for lower clocks", [])) or "none"
    sm, memory = (value.get(key, "?") for key in ("SM clock", "memory clock"))
    return f"SM {sm}, memory {memory}, reasons for lower clocks: {reasons}"


def ending(run: Record, present: bool = False) -> str:
    """Says how a run ended, or "" if it ended normally or that was not recorded."""
    if "ended" not in run:
        return ""
    if run["ended"] is None:
        return "it had not ended when this was written" if present else "it did not end: killed?"
    return str(run["ended"])


def first_screen(store: Store) -> list[str]:
    """Returns the ten lines."""
    run, failed = store.run, failures(store)
    best, worst = _ends_of_rows(store)
    texts = [name + _of(_place(store, record)) for name, record in failed.items()]
    names = ", ".join(texts[:8]) + (f" and {len(failed) - 8} more" if len(failed) > 8 else "")
    facts = run.get("facts") or {}
    driver = (facts.get("smi") or {}).get("driver version", "")
    card = run.get("card") or ("none" if store.now("facts", "card") else "not known")
    lines = {
        "card": f"{card}{driver and ', driver '}{driver}; {run.get('commit')}",
        "works": _works(store),
        "correct": f"of the checks {_places(store, newest(store, 'checks'))}",
        "bits": _bits(store),
        "best row": best,
        "worst row": worst,
        "bridge": _bridge(store),
        "sanitizer": _sanitizer(store),
        "FAILED": names or "nothing",
        "not finished": _unfinished(store) or "everything has run",
    }
    return [f"{name:13}{text}"[:WIDTH] for name, text in lines.items()]


# The rest


def _broken_torch(store: Store) -> str:
    """Returns the reason why the installed PyTorch cannot be used; "" if it can, or was not
    tried."""
    for stage in ("libraries", "smoke"):
        why = ((here(store, stage).get("torch") or {}).get("value") or {}).get("left out")
        if why and str(why).startswith("torch cannot"):
            return f", but {why}"
    return ""


def _facts(store: Store) -> Iterator[str]:
    facts = store.run.get("facts") or {}
    for item, value in facts.items():
        if not isinstance(value, dict):
            record = store.now("facts", item) or {}
            yield f"{item}: {record.get('failed', 'not known')}"
            continue
        for key, v in value.items():
            if isinstance(v, dict):
                for name, text in v.items():
                    if key == "packages" and name == "torch":
                        text = f"{text}{_broken_torch(store)}"
                    yield f"{item}, {key}: {name} {text}"
            elif isinstance(v, list):
                yield f"{item}: {key}: {', '.join(map(str, v)) or 'none'}"
            else:
                yield f"{item}: {key} {v}"
    after = (store.now("after", "smi after") or {}).get("value")
    yield f"clocks before: {_clocks(facts.get('smi'))}"
    yield f"clocks after: {_clocks(after)}"
    yield from (f"in the kernel's log: {line}" for line in (after or {}).get("faults", []))


def _lines(store: Store, stage: str) -> Iterator[str]:
    for item, record in newest(store, stage).items():
        value = record.get("value")
        said = short(value) if record["status"] == "ok" else str(record.get("failed"))
        if record["status"] == "cut" and value is not None:
            said += f"; until then: {short(value)}"
        sign = "" if record["status"] == "ok" else f" {record['status'].upper()}"
        warning = (
            f" WARNING: {value['warning']}"
            if isinstance(value, dict) and "warning" in value
            else ""
        )
        took = f"{record.get('seconds', 0)} s"
        yield f"{item}{sign}, {took}: {said}{warning}{_of(_place(store, record))}"
        if stage in ("libraries", "smoke") and isinstance(value, dict):
            yield from (f"    opened {path}" for path in value.get("opened", []))
        if stage == "sanitizer" and isinstance(value, dict):
            for tool, seen in value.items():
                if isinstance(seen, dict):
                    yield f"    {tool}: {seen}"


def _errors(store: Store) -> Iterator[str]:
    most = TEXT_LINES
    for name, record in failures(store).items():
        yield f"---- {name}: {record['failed']}"
        if "kernels" in record:
            yield f"its kernels, source and machine code: {record['kernels']} in the archive"
        lines = str(record.get("text", "")).strip().splitlines()
        yield from lines[-most:]
        most = TEXT_LINES // 3


def text(store: Store) -> str:
    """Returns the report."""
    run = store.run
    lines = [*first_screen(store), ""]
    for number, other in enumerate(store.state["runs"]):
        now = " (this one)" if other is run else ""
        lines.append(
            f"run {number + 1}{now}: {other.get('start')}, limit {other.get('limit')} s, "
            f"card {other.get('card')}, commit {other.get('commit')}, {other.get('how', '')}"
            f"{'; ' if ending(other) else ''}{ending(other, other is run)}"
        )
    lines += [f"NOTE {note}" for note in store.notes]
    lines += ["", "== facts", *_facts(store)]
    for stage in STAGES[1:]:
        for listing in stage.listings:
            found = list(_lines(store, listing.name))
            lines += (
                ["", f"== {listing.name}", *found] if found else [f"== {listing.name}: not run"]
            )
    lines += ["", "== errors", *_errors(store)]
    return "\n".join(line[: 4 * WIDTH] for line in lines) + "\n"


def safe_text(store: Store) -> str:
    """Returns the report, or the reason why it cannot be made: unexpected results must not end a
    run."""
    try:
        return text(store)
    except Exception:
        return f"the report cannot be made; state.json has the results\n{traceback.format_exc()}"


if __name__ == "__main__":
    here = Path(sys.argv[1])
    sys.stdout.write(text(Store(here, here / "out")))
