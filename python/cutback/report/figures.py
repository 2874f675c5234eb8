"""Draws pictures with matplotlib, if it is installed, for papers and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from .model import Picture
from .svg import human_bytes, nice_ticks
from .timeline import blocks_of, stack_of

COLOURS = {
    "saved": "#2f6fde", "recomputed": "#e07b1a", "offloaded": "#b0413e", "gradient": "#2a9d62",
    "temporary": "#9aa7b5", "scratch": "#8d6cc9",
}  # fmt: skip
MOST_LABELS = 30  # with more layers, none is named on the axis
LEAST_WIDTH = 0.015  # a layer is named if it covers at least this share of the axis


def _axes(what: str, axes: Any) -> Any:
    """Returns the axes to draw on: the given ones, or those of a new figure.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt  # optional, and slow to import
    except ImportError as error:
        raise ImportError(
            f"{what}.plot() needs matplotlib: pip install 'cutback[plots]'; "
            f"{what}.report(path) writes a page without it"
        ) from error
    return plt.subplots(figsize=(9.6, 4.0), layout="constrained")[1]


def plot_plan(picture: Picture, axes: Any = None, *, time: bool = False) -> Any:
    """Draws the memory timeline of a plan on matplotlib axes, and returns them. If ``time``, the x
    axis is milliseconds of modelled time instead of steps."""
    axes = _axes("plan", axes)
    starts = [ps / 1e9 for ps in accumulate(picture.times_ps, initial=0)]
    at: Sequence[float] = starts if time else range(picture.n_step + 1)
    below = [0] * picture.n_step
    for category, row in stack_of(picture).items():
        above = [b + size for b, size in zip(below, row, strict=True)]
        axes.stairs(above, at, baseline=below, fill=True, color=COLOURS[category], label=category)
        below = above
    if picture.everything:
        axes.stairs(picture.everything, at, color="0.5", label="saving everything")
    if picture.floor_bytes is not None:
        axes.axhline(picture.floor_bytes, color="0.5", linestyle="--", label="floor")
    if picture.live_budget is not None:
        axes.axhline(picture.live_budget, color="#c62f2f", linestyle="--", label="budget")
    axes.axvline(at[picture.backward_starts], color="0.3", linewidth=0.8)
    axes.set_xlabel("modelled time (ms)" if time else "step")
    axes.set_ylabel("live bytes")
    axes.set_xlim(at[0], max(at[-1], at[0] + 1e-9))
    axes.set_yticks(ticks := nice_ticks(axes.get_ylim()[1]), [human_bytes(t) for t in ticks])
    _name_layers(picture, axes, at)
    axes.legend(frameon=False, fontsize="small")
    return axes


def _name_layers(picture: Picture, axes: Any, at: Sequence[float]) -> None:
    """Writes the names of layers above the axes, if they fit."""
    least = LEAST_WIDTH * at[-1]
    named = [
        span for span in blocks_of(picture) if span.layer and at[span.stop] - at[span.first] > least
    ]
    if not 1 < len(named) <= MOST_LABELS:
        return
    above = axes.secondary_xaxis("top")
    above.set_xticks(
        [(at[span.first] + at[span.stop]) / 2 for span in named],
        [span.layer.replace("$", r"\$") for span in named],
        rotation=90,
        fontsize="x-small",
    )
    above.tick_params(length=0)


def plot_frontier(
    frontier: Mapping[str, Any], references: Sequence[Mapping[str, Any]] = (), axes: Any = None
) -> Any:
    """Draws the saved bytes and extra time of a frontier on matplotlib axes, and returns them."""
    axes = _axes("frontier", axes)
    once = max(1, frontier["once_ps"])

    def extra(time_ps: int) -> float:
        return float(100 * (time_ps - once) / once)

    saved = frontier["saved_bytes"]
    axes.fill_between(
        saved, [extra(ps) for ps in frontier["bound_ps"]], color="0.85", label="no plan below this"
    )
    axes.step(saved, [extra(ps) for ps in frontier["time_ps"]], where="post", color="#2f6fde",
              marker=".", label="plans")  # fmt: skip
    names: dict[tuple[int, float], list[str]] = {}
    for name, point in frontier["baselines"].items():
        names.setdefault((point["saved_bytes"], extra(point["time_ps"])), []).append(name)
    for place, known in names.items():
        axes.plot(*place, "D", color="#2a9d62")
        axes.annotate(
            ", ".join(known), place, xytext=(6, 4), textcoords="offset points", fontsize="x-small"
        )
    if references:
        axes.plot(
            [point["saved_bytes"] for point in references],
            [extra(point["time_ps"]) for point in references],
            "x",
            color="#8d6cc9",
            label="PyTorch",
        )
    axes.set_xlabel("bytes saved between forward and backward")
    axes.set_ylabel("extra time (%)")
    axes.set_xticks(ticks := nice_ticks(axes.get_xlim()[1]), [human_bytes(t) for t in ticks])
    axes.legend(frameon=False, fontsize="small")
    return axes
