"""The report of a ladder: ten lines that answer what people ask first, then everything by stage.

python report.py FOLDER     prints it from the state in a folder, as `build/gpu`
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from stages import STAGES
from store import Record, Store

WIDTH = 250
TEXT_LINES = 60  # of the first error; later ones get a third


def newest(store: Store, stage: str) -> dict[str, Record]:
    """A record for each item: of the present card and sources, else the last there is."""
    found = {}
    for item, records in store.state["results"].get(stage, {}).items():
        if records:
            found[item] = store.here(stage, item) or records[-1]
    return found


def short(value: Any) -> str:
    """A result in a line: numbers and words, no lists. One with a ``line`` has written it."""
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
    """How many passed, failed and so on."""
    kinds = {"ok": 0, "left out": 0, "failed": 0, "cut": 0}
    for record in records.values():
        left_out = record["status"] == "ok" and "left out" in (record.get("value") or {})
        kinds["left out" if left_out else record["status"]] += 1
    words = {"ok": "pass", "left out": "left out", "failed": "FAILED", "cut": "cut short"}
    return ", ".join(f"{n} {words[kind]}" for kind, n in kinds.items() if n) or "not run"


def _bits(store: Store) -> str:
    values = [
        r["value"] for r in newest(store, "checks").values() if isinstance(r.get("value"), dict)
    ]
    outputs, equal = (sum(v.get(key, 0) for v in values) for key in ("outputs", "equal"))
    promised = sum(v.get("promised", 0) for v in values)
    kept = sum(min(v.get("promised", 0), v.get("equal", 0)) for v in values)
    repeats = [v["repeats"] for v in values if "repeats" in v]
    if not outputs:
        return "not known"
    return (
        f"{equal} of {outputs} outputs have the CPU's bits, {kept} of the {promised} promised; "
        f"{sum(repeats)} of {len(repeats)} second runs have the bits of the first"
    )


def ratio(value: Any) -> float | None:
    """How many times faster than the fastest of the others ours is."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("best / ours"), (int, float)):
        return float(value["best / ours"])
    found = [v for k, v in value.items() if k.endswith("/ ours") and isinstance(v, (int, float))]
    return min(found) if found else None


def _ends_of_rows(store: Store) -> tuple[str, str]:
    """The best and the worst row."""
    rows = {}
    for stage in ("rows", "compile"):
        for item, record in newest(store, stage).items():
            if (seen := ratio(record.get("value"))) is not None:
                rows[f"{item} ({stage})", record["card"]] = seen
    if not rows:
        return "no row has a figure of PyTorch", "likewise"
    texts = []
    for pick in (max, min):
        (name, card), seen = pick(rows.items(), key=lambda pair: pair[1])
        texts.append(f"{name}: {seen:.2f} times as fast as PyTorch" + _of(store, card))
    return texts[0], texts[1]


def _of(store: Store, card: str | None) -> str:
    return "" if card == store.run.get("card") else f" [{card or 'no card'}]"


def _bridge(store: Store) -> str:
    found = {**newest(store, "bridge"), **newest(store, "models")}
    if not found:
        return "not run"
    lines = [
        f"{name}: {str(r['value']['line']).split('; ours', 2)[0][:90]}"
        for name, r in found.items()
        if "line" in (r.get("value") or {})
    ]
    return "; ".join([_counts(found), *lines])


def _sanitizer(store: Store) -> str:
    value = (newest(store, "sanitizer").get("sanitizer") or {}).get("value")
    if not isinstance(value, dict):
        return "not run"
    if "left out" in value:
        return str(value["left out"])
    tools = [tool for tool in value if tool != "trial"]
    return (
        "; ".join(f"{t}: {value[t].get('summary', value[t].get('ended', '?'))}" for t in tools)
        or "the trial alone"
    )


def failures(store: Store) -> dict[str, Record]:
    """What has failed, in the order of the stages."""
    found = {}
    for stage in STAGES:
        for listing in stage.listings:
            for item, record in newest(store, listing.name).items():
                if record["status"] == "failed":
                    found[f"{listing.name} {item}"] = record
    return found


def _works(store: Store) -> str:
    smoke = newest(store, "smoke")
    if not smoke:
        card = (newest(store, "facts").get("card") or {}).get("failed")
        return f"NOT KNOWN: {card or 'the first steps did not run'}"
    statuses = {record["status"] for record in smoke.values()}
    word = "NO" if "failed" in statuses else "so far" if statuses != {"ok"} else "yes"
    context = ((store.run.get("facts") or {}).get("card") or {}).get("context", "ok")
    why = "" if context == "ok" else f"; no context: {context}"
    return f"{word}: of the first steps {_counts(smoke)}{why}"


def _clocks(value: Any) -> str:
    if not isinstance(value, dict):
        return "not known"
    if why := value.get("left out") or value.get("problem"):
        return str(why)
    reasons = ", ".join(value.get("reasons for lower clocks", [])) or "none"
    sm, memory = (value.get(key, "?") for key in ("SM clock", "memory clock"))
    return f"SM {sm}, memory {memory}, reasons for lower clocks: {reasons}"


def first_screen(store: Store) -> list[str]:
    """The ten lines."""
    run, failed = store.run, failures(store)
    best, worst = _ends_of_rows(store)
    unfinished = [
        stage.name
        for stage in STAGES
        if any(r["status"] == "cut" for r in newest(store, stage.name).values())
        or not newest(store, stage.name)
    ]
    names = ", ".join(list(failed)[:8]) + (
        f" and {len(failed) - 8} more" if len(failed) > 8 else ""
    )
    facts = run.get("facts") or {}
    driver = (facts.get("smi") or {}).get("driver version", "")
    lines = {
        "card": f"{run.get('card') or 'none'}{driver and ', driver '}{driver}; {run.get('commit')}",
        "works": _works(store),
        "correct": f"of the checks {_counts(newest(store, 'checks'))}",
        "bits": _bits(store),
        "best row": best,
        "worst row": worst,
        "bridge": _bridge(store),
        "sanitizer": _sanitizer(store),
        "FAILED": names or "nothing",
        "not finished": ", ".join(unfinished) or "everything has run",
    }
    return [f"{name:13}{text}"[:WIDTH] for name, text in lines.items()]


# The rest


def _facts(store: Store) -> Iterator[str]:
    facts = store.run.get("facts") or {}
    for item, value in facts.items():
        if not isinstance(value, dict):
            record = newest(store, "facts").get(item, {})
            yield f"{item}: {record.get('failed', 'not known')}"
            continue
        for key, v in value.items():
            if isinstance(v, dict):
                for name, text in v.items():
                    yield f"{item}, {key}: {name} {text}"
            elif isinstance(v, list):
                yield f"{item}: {key}: {', '.join(map(str, v)) or 'none'}"
            else:
                yield f"{item}: {key} {v}"
    after = (newest(store, "after").get("smi after") or {}).get("value")
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
        yield f"{item}{sign}, {took}: {said}{warning}{_of(store, record['card'])}"
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
    """The report."""
    run = store.run
    lines = [*first_screen(store), ""]
    for number, other in enumerate(store.state["runs"]):
        now = " (this one)" if other is run else ""
        lines.append(
            f"run {number + 1}{now}: {other.get('start')}, limit {other.get('limit')} s, "
            f"card {other.get('card')}, commit {other.get('commit')}, {other.get('how', '')}"
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
    """The report, or why it cannot be made: results that it does not expect must not end a run."""
    try:
        return text(store)
    except Exception:
        return f"the report cannot be made; state.json has the results\n{traceback.format_exc()}"


if __name__ == "__main__":
    here = Path(sys.argv[1])
    sys.stdout.write(text(Store(here, here / "out")))
