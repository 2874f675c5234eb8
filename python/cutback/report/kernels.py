"""Shows the groups of a compiled step (`docs/fusion.md`) as text, as a picture and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..explanation import Group, Kernels, Local
from ..files import one_line
from .svg import document, human_bytes, tag, text

WIDTH, MARGIN, ROW, BLOCK, TOP = 960.0, 10.0, 40.0, 26.0, 26.0
AGAIN = 4.0  # height of the strip under a group with recomputed ops
BLOCKS_A_ROW, MOST_ROWS = 30, 8  # limits on the picture's size
MOST_KINDS = 6  # op kinds listed in a line

# The reasons complete the sentence "ends before X, ...".
REASONS = {
    "op": "which cannot be fused",
    "domain": "which iterates over other elements",
    "cut": "which would make rows split a block of a sum or of random numbers",
    "dtype": "which computes in another precision",
    "read": "which reads a value of the group in another order, or before it is complete",
    "wait": "which reads the result of a skipped op",
    "room": "which would exceed the plan's bytes",
    "limit": "because the group has the maximum number of ops",
}
# Reasons for a single op that did not join a group.
ALONE = {"op": "cannot be fused", "room": "in a group it would exceed the plan's bytes"}


def _plural(n: int, one: str) -> str:
    return f"{n} {one}" if n == 1 else f"{n} {one}s"


def why(group: Group) -> str:
    """Says why a group ends where it does."""
    reason, before = group["end"]["reason"], group["end"]["before"]
    if reason == "program":
        return "ends with the program"
    if reason == "backend":
        return "this backend runs each op separately"
    if reason == "plan":
        return "ends as planned"
    if before == group["ops"][0]["name"] and reason in ALONE:
        return ALONE[reason]
    if reason == "wait":
        later = one_line(group["end"]["waits_for"])
        return f"ends before {one_line(before)}, which waits for {later}"
    return f"ends before {one_line(before)}, {REASONS.get(reason, reason)}"


def over(group: Group) -> str:
    """Formats the iteration domain of a group: ``"8192 x 1024"`` (rows x columns) or ``"4096"``
    (elements)."""
    elements, columns = group["elements"], group["columns"]
    return f"{elements // columns} x {columns}" if columns else str(elements)


def kinds(group: Group, most: int = MOST_KINDS) -> str:
    """Lists the op kinds of a group, as in ``"add + gelu + layer_norm"``; for a single op, returns
    its name."""
    ops = group["ops"]
    if len(ops) == 1:
        return one_line(ops[0]["name"])
    more = f" and {len(ops) - most} more" if len(ops) > most else ""
    return " + ".join(op["kind"] for op in ops[:most]) + more


def unmade(values: Sequence[Local]) -> str:
    """Returns a clause about values without memory, such as ``"5 values of 160.00 MiB never exist
    in memory"``."""
    n, size = len(values), sum(row["bytes"] for row in values)
    verb = "exists" if n == 1 else "exist"
    return f"{_plural(n, 'value')} of {human_bytes(size)} never {verb} in memory"


def totals(kernels: Kernels) -> str:
    """Returns a summary of all groups."""
    groups: Sequence[Group] = kernels["groups"]
    ops = sum(len(group["ops"]) for group in groups)
    fused = [group for group in groups if len(group["ops"]) > 1]
    inside = sum(len(group["ops"]) for group in fused)
    moved = sum(group["read_bytes"] + group["written_bytes"] for group in groups)
    apart = sum(group["apart_bytes"] for group in groups)
    everything = [row for group in groups for row in group["locals"]]
    if not fused:
        return f"{_plural(ops, 'op')}, each in its own kernel. They move {human_bytes(moved)}."
    return (
        f"{_plural(ops, 'op')} in {_plural(len(groups), 'group')}; {inside} ops are fused into "
        f"{len(fused)} of these groups. They move {human_bytes(moved)}; as separate kernels they "
        f"would move {human_bytes(apart)}; {unmade(everything)}."
    )


def _traffic(group: Group) -> str:
    moved = (
        f"reads {human_bytes(group['read_bytes'])}, writes {human_bytes(group['written_bytes'])}"
    )
    if group["scratch_bytes"]:
        moved += f", {human_bytes(group['scratch_bytes'])} of scratch"
    return f"{moved}, {unmade(group['locals'])}" if group["locals"] else moved


def _op_lines(group: Group) -> list[str]:
    """Returns a line for each op of a fused group: name, bytes that never exist in memory, source
    line."""
    local = Counter({op["name"]: 0 for op in group["ops"]})
    for row in group["locals"]:
        local[row["name"]] += row["bytes"]
    width = max(len(one_line(op["name"])) for op in group["ops"])
    lines = []
    for op in group["ops"]:
        notes = ["recomputed"] if op["recomputed"] else []
        notes += [f"{human_bytes(local[op['name']])} never exist"] if local[op["name"]] else []
        cells = f"{one_line(op['name']):{width}}  {', '.join(notes):22}  {one_line(op['at'])}"
        lines.append(f"    {cells.rstrip()}")
    return lines


def kernels_text(kernels: Kernels) -> str:
    """Returns the groups of a compiled step as text: a line with the totals, then a line for each
    group, followed by its operations if it has several.

    Args:
        kernels: the JSON of ``Plan.explain(kernels=True, as_json=True)``.

    >>> value = step(params, x, y)
    >>> kernels = json.loads(step.plan.explain(kernels=True, as_json=True))
    >>> print(report.kernels_text(kernels))
    """
    lines = [totals(kernels)]
    for i, group in enumerate(kernels["groups"]):
        if i == kernels["backward_starts"] and i:
            lines.append("--- backward")
        single = len(group["ops"]) == 1
        name = kinds(group) if single else f"[{over(group)}] {kinds(group)}"
        line = f"group {i} {name}: {_traffic(group)}; {why(group)}"
        at = one_line(group["ops"][0]["at"]) if single else ""
        lines.append(f"{line}  ({at})" if at else line)
        if not single:
            lines += _op_lines(group)
    return "\n".join(lines) + "\n"


# ---- picture -------------------------------------------------------------------------------------


def _rows(kernels: Kernels) -> list[list[tuple[int, float, float]]]:
    """Lays out the groups as rows of blocks (group, x, width). The width is proportional to the
    bytes that the ops of a group would move as separate kernels."""
    sizes = [max(1, group["apart_bytes"]) for group in kernels["groups"]]
    space = WIDTH - 2 * MARGIN
    n_row = min(MOST_ROWS, 1 + len(sizes) // BLOCKS_A_ROW)
    scale = min(n_row * space / sum(sizes), space / max(sizes))
    rows: list[list[tuple[int, float, float]]] = [[]]
    x = 0.0
    for i, size in enumerate(sizes):
        if x + size * scale > space * 1.0001:
            rows.append([])
            x = 0.0
        rows[-1].append((i, MARGIN + x, size * scale))
        x += size * scale
    return rows


def _block(i: int, group: Group, x: float, y: float, width: float) -> str:
    fused = len(group["ops"]) > 1
    moved = group["read_bytes"] + group["written_bytes"]
    filled = width * min(1.0, moved / max(1, group["apart_bytes"]))
    names = ", ".join(op["name"] for op in group["ops"])
    again = [op["name"] for op in group["ops"] if op["recomputed"]]
    title = f"group {i}: {names}\n{_traffic(group)}\n{why(group)}"
    if again:
        title += f"\nrecomputed: {', '.join(again)}"
    body = tag("rect", css="area", x=x, y=y, width=max(filled, 0.3), height=BLOCK)
    body += tag("rect", title, css="box", x=x, y=y, width=max(width, 0.3), height=BLOCK)
    label = f"{len(group['ops'])} ops" if fused else group["ops"][0]["kind"]
    for shown in (kinds(group), label) if fused else (label,):
        if 6.6 * len(shown) + 8 < width:
            body += text(x + 4, y + BLOCK / 2 + 4, shown)
            break
    strip = ""
    if again:
        share = width * len(again) / len(group["ops"])
        strip = tag("rect", css="area", x=x, y=y + BLOCK, width=max(share, 0.3), height=AGAIN)
        strip = f'<g class="recomputed">{strip}</g>'
    return f'<g class="{"fused" if fused else "single"}">{body}</g>{strip}'


def _legend(y: float) -> list[str]:
    body, x = [], MARGIN
    for css, label in (
        ("fused", "group of several ops"),
        ("single", "single op"),
        ("recomputed", "recomputed ops"),
    ):
        square = tag("rect", css="area", x=x, y=y - 9, width=11, height=11)
        body.append(f'<g class="{css}">{square}</g>')
        body.append(text(x + 16, y, label))
        x += 40 + 6.2 * len(label)
    note = "width: bytes the ops would move as separate kernels; filled: bytes the group moves"
    return [*body, text(WIDTH - MARGIN, y, note, "end", "note")]


def kernels_svg(kernels: Kernels) -> str:
    """Returns the groups of a compiled step as an ``<svg>``, in execution order, from left to right
    and row by row.

    Args:
        kernels: the JSON of ``Plan.explain(kernels=True, as_json=True)``.

    >>> value = step(params, x, y)
    >>> kernels = json.loads(step.plan.explain(kernels=True, as_json=True))
    >>> svg = report.kernels_svg(kernels)
    """
    rows = _rows(kernels) if kernels["groups"] else []
    body = []
    for k, row in enumerate(rows):
        y = TOP + k * ROW
        for i, x, width in row:
            body.append(_block(i, kernels["groups"][i], x, y, width))
            if i == kernels["backward_starts"]:
                body.append(tag("line", css="axis", x1=x, x2=x, y1=y - 5, y2=y + BLOCK + 3))
                body.append(text(x + 3, y - 1, "backward", "start", "note"))
    height = TOP + len(rows) * ROW + 22
    return document(WIDTH, height, body + _legend(height - 8), "groups of the step")


# ---- tables --------------------------------------------------------------------------------------

HEADERS = ("groups", "over", "ops", "reads", "writes", "never exist", "why it ends", "source")


def _cells(group: Group) -> tuple[str, ...]:
    size = sum(row["bytes"] for row in group["locals"])
    return (
        over(group),
        kinds(group, most=12),
        human_bytes(group["read_bytes"]),
        human_bytes(group["written_bytes"]),
        f"{len(group['locals'])}: {human_bytes(size)}" if group["locals"] else "",
    )


def group_rows(kernels: Kernels) -> list[tuple[str, ...]]:
    """Returns table rows of the fused groups, those that move the most bytes first. Equal groups
    share a row, which shows the end and the source of the first one."""
    alike: dict[tuple[str, ...], list[int]] = {}
    groups = kernels["groups"]
    for i, group in enumerate(groups):
        if len(group["ops"]) > 1:
            alike.setdefault((*_cells(group), group["end"]["reason"]), []).append(i)
    rows: list[tuple[str, ...]] = []
    for found in sorted(
        alike.values(), key=lambda found: -len(found) * groups[found[0]]["apart_bytes"]
    ):
        first = groups[found[0]]
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        source = next((op["at"] for op in first["ops"] if op["at"]), "")
        names = ", ".join(map(str, found[:3])) + more
        rows.append((names, *_cells(first), why(first), source))
    return rows


def single_rows(kernels: Kernels) -> list[tuple[str, ...]]:
    """Returns table rows of the single ops, summed by kind and reason: kind, number of ops, bytes
    read and written, reason."""
    sums: dict[tuple[str, str], list[int]] = {}
    for group in kernels["groups"]:
        if len(group["ops"]) == 1:
            own = group["end"]["before"] == group["ops"][0]["name"]
            reason = group["end"]["reason"]
            ends = f"ends before an op {REASONS[reason]}" if reason in REASONS else why(group)
            key = group["ops"][0]["kind"], why(group) if own else ends
            row = sums.setdefault(key, [0, 0, 0])
            row[0] += 1
            row[1] += group["read_bytes"]
            row[2] += group["written_bytes"]
    ordered = sorted(sums.items(), key=lambda item: -item[1][1] - item[1][2])
    return [
        (kind, str(n), human_bytes(read), human_bytes(written), reason)
        for (kind, reason), (n, read, written) in ordered
    ]
