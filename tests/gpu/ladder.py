"""Runs stages of items, one process each, within a time limit, and keeps the results.

A run starts with items that have no result, and those that were cut short by the end of their
stage. If time is left, it repeats items that failed or were measured on another card or with other
sources. No item or stage stops the next one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
from processes import GRACE, Child, ended
from stages import AFTER, Listing, Stage
from store import Record, Store, own

RESERVE = 10.0  # seconds at the end: GRACE, a final query of the clocks, the archive
LEAST = 2.0  # no item starts with less time
SMALLEST = RESERVE + LEAST + 3  # with a lower limit a run would do nothing; 3 is for the start
LISTING = 20.0  # limit for listing items
EVERY = 10.0  # seconds between archives within a stage
KEPT_ERRORS = 12  # number of failed items whose kernels are kept


def plain(name: str) -> str:
    """Converts a name to a valid file name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name)


def last_json(text: str) -> Any:
    """Returns the last line that is a JSON object, or None."""
    import json

    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


@dataclass
class Running:
    """A running item."""

    listing: Listing
    item: str
    child: Child
    cache: Path | None


class Ladder:
    """One run. ``variables`` is the environment of items; ``limit`` has the seconds for everything,
    counted from ``begin``; ``patience`` is a factor on the usual seconds of stages and items."""

    def __init__(
        self,
        store: Store,
        variables: Mapping[str, str],
        limit: float,
        begin: float | None = None,
        patience: float = 1,
    ) -> None:
        self.store, self.variables, self.patience = store, dict(variables), patience
        self.begin = time.monotonic() if begin is None else begin
        self.end = self.begin + max(limit - RESERVE, 1)
        self.one_at_a_time = self.is_ending = False
        self.interrupted = ""  # name of the signal
        self._has_said_so = False
        self.prefixes = ("",)  # prefixes of the requested items
        self._listed: dict[str, list[tuple[str, float]]] = {}
        self._ran: set[tuple[str, str]] = set()
        self._running: list[Running] = []
        self._kept = 0.0

    # Output

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begin:5.1f}s] {text}", flush=True)

    def keep(self, every: float = 0.0) -> None:
        """Writes report and archive, unless that was done less than `every` seconds ago."""
        if time.monotonic() - self._kept >= every:
            self.store.archive(report.safe_text(self.store))
            self._kept = time.monotonic()

    # Which items

    def _list(self, listing: Listing, deadline: float) -> list[tuple[str, float]]:
        """Returns names and seconds of a script's items. If a script cannot list them, that counts
        as a failed item with the script's name."""
        if listing.name in self._listed:
            return self._listed[listing.name]
        self._listed[listing.name] = []
        command = [sys.executable, str(listing.path), "--list", listing.name]
        limit = max(min(LISTING * self.patience, deadline - time.monotonic()), LEAST)
        log = self.store.folder / "logs" / listing.name / "list"
        child = Child(command, self.variables, limit, log, cwd=self.store.folder)
        while not child.poll():
            if self.is_ending:
                child.stop()
            time.sleep(0.02)
        found = []
        for line in child.text(child.out).splitlines():
            name, tab, seconds = line.rpartition("\t")
            if tab:
                found.append((name, float(seconds)))
        if (how := ended(child)) or not found:
            text = child.text(child.err)[-4000:]
            last = (text.strip().splitlines() or [how or "it lists nothing"])[-1]
            self._no_list(listing, last, text)
        else:
            self.store.state["results"].get(listing.name, {}).pop("(list of items)", None)
            self._listed[listing.name] = found
            self.store.run.setdefault("items", {})[listing.name] = [name for name, _ in found]
        return self._listed[listing.name]

    def _no_list(self, listing: Listing, why: str, text: str = "") -> None:
        record = {"status": "failed", "failed": why, "text": text, "value": None}
        self._put(listing.name, "(list of items)", record)

    def _wanted(self, stage: Stage, listing: Listing, item: str, first: bool) -> bool:
        """True if an item should run in the first or the second pass."""
        if (listing.name, item) in self._ran and first:
            return False
        here = self.store.here(listing.name, item)
        if stage.always:
            return first
        if here is None:
            done = any(
                record["status"] == "ok" for record in self.store.records(listing.name, item)
            )
            return (stage.each_card or not done) if first else True
        if here["status"] == "ok":
            return False
        if first:
            return here["status"] == "cut" and here.get("cuts", 1) == 1
        return here["status"] == "cut" or (listing.name, item) not in self._ran

    def unmatched(self, stages: tuple[Stage, ...]) -> list[str]:
        """Returns the prefixes that match no item. The result is empty if not all items are
        known."""
        lists = [self._listed.get(each.name) for s in stages if not s.always for each in s.listings]
        if not all(lists):
            return []
        names = [name for found in lists for name, _ in found or ()]
        return [p for p in self.prefixes if p and not any(name.startswith(p) for name in names)]

    # Running

    def _put(self, stage: str, item: str, record: Record) -> None:
        self.store.put(stage, item, record)
        said = record.get("failed") or report.short(record.get("value"))
        self.say(f"{stage} {item}: {record['status']}, {said}"[:300])

    def _start(self, listing: Listing, item: str, seconds: float) -> None:
        variables, cache = self.variables | {"CUTBACK_GPU_ITEM": f"{listing.name} {item}"}, None
        if listing.own_cache:
            cache = self.store.folder / "caches" / f"{listing.name}-{plain(item)}"
            shutil.rmtree(cache, ignore_errors=True)
            own(cache)
            variables |= {"CUTBACK_CACHE_DIR": str(cache), "CUTBACK_CUDA_KEEP_SOURCES": "1"}
        command = [sys.executable, str(listing.path), "--item", item]
        log = self.store.folder / "logs" / listing.name / plain(item)
        self._ran.add((listing.name, item))
        try:
            child = Child(command, variables, seconds * self.patience, log, cwd=self.store.folder)
        except OSError as error:
            self._put(listing.name, item, {"status": "failed", "failed": str(error), "value": None})
            return
        self._running.append(Running(listing, item, child, cache))

    def _finish(self, one: Running) -> None:
        """Records an item's result, and keeps the kernels of a failed one."""
        child, value = one.child, last_json(one.child.text(one.child.out, 1 << 22))
        how, text = ended(child), child.text(child.err)[-4000:]
        status = "ok"
        if child.stopped:
            status = "cut"
        elif how or not isinstance(value, dict):
            status = "failed"
        record: Record = {"status": status, "seconds": round(child.seconds, 1), "value": value}
        if status != "ok":
            lines = text.strip().splitlines()
            plainly = how if child.late or child.stopped or child.lost else ""
            record["failed"] = plainly or (lines[-1] if lines else how or "it printed no result")
            record["text"] = text
        errors = self.store.folder / "errors"
        if one.cache is not None:
            kept = errors / one.cache.name
            if status == "failed" and (kept.exists() or _count(errors) < KEPT_ERRORS):
                errors.mkdir(exist_ok=True)
                shutil.rmtree(kept, ignore_errors=True)
                shutil.move(one.cache, kept)
                record["kernels"] = str(kept.relative_to(self.store.folder))
            shutil.rmtree(one.cache, ignore_errors=True)
        self._put(one.listing.name, one.item, record)

    def _jobs(self, listing: Listing) -> int:
        return 1 if self.one_at_a_time else min(listing.jobs, max(2, os.cpu_count() or 1))

    def _fill(self, queues: dict[Listing, list[tuple[str, float]]], deadline: float) -> None:
        """Starts all items that may start now."""
        for listing, queue in queues.items():
            while queue and not self.is_ending:
                active = [r for r in self._running if self.one_at_a_time or r.listing == listing]
                if len(active) >= self._jobs(listing) or deadline - time.monotonic() < LEAST:
                    break
                item, seconds = queue.pop(0)
                self._start(listing, item, seconds)

    def _poll(self) -> None:
        for one in list(self._running):
            if one.child.poll():
                self._running.remove(one)
                self._finish(one)

    def run_stage(self, stage: Stage, first: bool) -> None:
        """Runs one pass over a stage, within its share or the remaining time."""
        now = time.monotonic()
        share = self.end if stage.needed or not first else now + stage.seconds * self.patience
        deadline = min(share, self.end)
        self._say_if_interrupted()
        if deadline - now < LEAST or self.is_ending:
            if first and not self.is_ending:
                self.say(f"== {stage.name}: no time is left for it")
            return
        queues: dict[Listing, list[tuple[str, float]]] = {}
        for listing in stage.listings:
            if not listing.path.exists():
                if first:
                    self._no_list(listing, f"there is no {listing.script}")
                continue
            listed = self._list(listing, deadline)
            if not stage.always:
                listed = [pair for pair in listed if pair[0].startswith(self.prefixes)]
            wanted = [p for p in listed if self._wanted(stage, listing, p[0], first)]
            if first and (known := len(listed) - len(wanted)):
                self.say(f"{listing.name}: {known} of {len(listed)} items are known")
            if wanted:
                queues[listing] = wanted
        if not queues:
            return
        self.say(f"== {stage.name}: {stage.title}, {deadline - time.monotonic():.0f} s")
        while any(queues.values()) or self._running:
            self._say_if_interrupted()
            if time.monotonic() >= deadline or self.is_ending:
                for one in self._running:
                    one.child.stop()
                queues = {listing: [] for listing in queues}
            self._fill(queues, deadline)
            self._poll()
            self.keep(EVERY)
            time.sleep(0.02)
            if deadline - time.monotonic() < LEAST and not self._running:
                break
        self.keep()

    def _learn(self, stage: Stage) -> bool:
        """Uses the results of facts and build. Returns whether the rest can run."""
        run = self.store.run
        if stage.name == "facts":
            card = (self.store.now("facts", "card") or {}).get("value") or {}
            run["facts"] = {
                item: record.get("value")
                for item in self.store.state["results"].get("facts", {})
                if (record := self.store.now("facts", item))
            }
            run["card"] = card.get("card")
            self.one_at_a_time = card.get("compute mode") == "exclusive process"
            if self.one_at_a_time:
                self.variables["CUTBACK_GPU_JOBS"] = "1"
                self.say("the card serves one process at a time: items run one by one")
        if stage.name == "build":
            record = self.store.now("build", "package") or {}
            value = record.get("value") or {}
            if "package" not in value:
                self.say("there is no package to run: the other stages are left out")
                return False
            if value["package"]:
                path = (value["package"], self.variables.get("PYTHONPATH", ""))
                self.variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
            if why := self._no_card():
                self.say(f"{why}: the other stages are left out")
                return False
        return True

    def _no_card(self) -> str:
        """Returns the reason why no stage can work, or "" if that is not certain."""
        if self.store.run.get("card"):
            return ""
        record = self.store.now("facts", "card") or {}
        why = str(record.get("failed", ""))
        certain = ("cannot open shared object", "no device", "NO_DEVICE", "STUB_LIBRARY")
        return why if any(words in why for words in certain) else ""

    def climb(self, stages: tuple[Stage, ...]) -> None:
        """Runs both passes over all stages, then writes the final report and archive."""
        try:
            self._climb(stages)
        finally:
            self._say_if_interrupted()
            late = time.monotonic() > self.end - LEAST
            how = f"interrupted by {self.interrupted}" if self.interrupted else ""
            self.store.run["ended"] = how or ("its time ran out" if late else "")
            self.store.save()
            self.keep()

    def _climb(self, stages: tuple[Stage, ...]) -> None:
        for first in (True, False):
            for stage in stages:
                self._guarded(stage, first)
                if first and stage.always and not self._learn(stage):
                    return
        self._after()

    def _guarded(self, stage: Stage, first: bool) -> None:
        """Runs a stage so that an error of our own in it does not stop the next stage."""
        try:
            self.run_stage(stage, first)
        except Exception:
            for one in self._running:
                one.child.kill()
            self._running.clear()
            self.store.notes.append(f"stage {stage.name} broke off: {traceback.format_exc()}")
            self.say(self.store.notes[-1])

    def _after(self) -> None:
        """Records the clocks at the end."""
        self.end += GRACE
        self._guarded(Stage(AFTER, 3, "clocks at the end", always=True), True)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends running items and keeps what is known; for signals."""
        self.is_ending, self.interrupted = True, signal.Signals(number).name

    def _say_if_interrupted(self) -> None:
        """Prints outside the handler, because the signal may have interrupted a print."""
        if self.is_ending and not self._has_said_so:
            self._has_said_so = True
            self.say(f"interrupted by {self.interrupted}: what runs is ended, nothing more begins")


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
