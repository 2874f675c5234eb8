"""Shows the memory timeline as tables: bytes and times of each layer, and the lifetimes in the
arena."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from .layers import block_of, common, is_next
from .model import Picture
from .svg import escape, human_bytes
from .table import table

MOST_LIVES = 100
HEADERS = (
    "layer", "saved", "recomputed", "peak", "forward ms", "backward ms", "recomputation ms"
)  # fmt: skip


@dataclass
class Layer:
    """Sums over the steps of a layer. Bytes are those of the storages that it allocates."""

    name: str
    saved: int = 0
    recomputed: int = 0
    peak: int = 0
    forward_ps: int = 0
    backward_ps: int = 0
    recomputed_ps: int = 0

    @property
    def figures(self) -> tuple[int, ...]:
        """All figures but the peak; they are the same for equal layers."""
        return (
            self.saved, self.recomputed, self.forward_ps, self.backward_ps, self.recomputed_ps
        )  # fmt: skip


def layers_of(picture: Picture) -> list[Layer]:
    """Returns the layers in the order of their first steps. Operations outside of all layers count
    as one further layer."""
    unnamed = "other operations" if any(picture.paths) else "the step"
    found: dict[str, Layer] = {}
    at_step: list[Layer] = []
    for step, op in enumerate(picture.steps):
        name = block_of(picture.paths[op]) or unnamed
        layer = found.setdefault(name, Layer(name))
        at_step.append(layer)
        layer.peak = max(layer.peak, picture.live[step])
        phase, time = picture.phase(step), picture.times_ps[step]
        layer.forward_ps += time * (phase == "forward")
        layer.backward_ps += time * (phase == "backward")
        layer.recomputed_ps += time * (phase == "recomputed")
    for life in picture.lives:
        if life.category == "saved":
            at_step[life.made].saved += life.bytes
        elif life.category == "recomputed":
            at_step[life.made].recomputed += life.bytes
    return list(found.values())


def folded(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Groups consecutive layers that differ only in their number and their peak."""
    groups: list[list[Layer]] = []
    for layer in layers:
        last = groups[-1][-1] if groups else None
        if last and is_next(last.name, layer.name) and last.figures == layer.figures:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups


def layers_table(picture: Picture) -> str:
    """Returns an HTML table with a row for each layer. Equal layers share a row, which shows the
    bytes and times of one of them."""
    rows, marks = [], []
    for group in folded(layers_of(picture)):
        first, names = group[0], [layer.name for layer in group]
        label = common(names) + (f" (each of {len(group)})" if len(group) > 1 else "")
        rows.append(
            (
                label,
                human_bytes(first.saved),
                human_bytes(first.recomputed),
                human_bytes(max(layer.peak for layer in group)),
                *(f"{ps / 1e9:.3f}" for ps in first.figures[2:]),
            )
        )
        marks.append(f'data-layers="{escape(json.dumps(names))}"')
    held = "".join(
        f"<p>{escape(name)}: {human_bytes(size)} during the whole step.</p>"
        for name, size in picture.base
    )
    return table(HEADERS, rows, range(1, 7), marks) + held


def lives_table(picture: Picture, most: int = MOST_LIVES) -> str:
    """Returns an HTML table of the lifetimes in the arena, largest first."""
    lives = sorted((life for life in picture.lives if life.bytes), key=lambda life: -life.bytes)
    rows = [
        (
            life.label,
            life.category,
            human_bytes(life.bytes),
            life.offset,
            life.made,
            min(life.last, picture.n_step - 1),
        )
        for life in lives[:most]
    ]
    rest = f"<p>{len(lives) - most} smaller rows are not shown.</p>" if len(lives) > most else ""
    headers = ("made by", "category", "bytes", "offset", "first step", "last step")
    return table(headers, rows, (2, 3, 4, 5)) + rest
