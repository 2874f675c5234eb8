"""The picture of `bench_side_by_side.py`: step time against peak memory, one panel per model.

python benchmarks/pytorch/picture.py [FOLDER [svg|png]]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
STYLES = {  # colour, marker, size
    "eager": ("black", "*", 110),
    "eager, checkpoints": ("black", "X", 60),
    "torch": ("tab:orange", "s", 36),
    "torch, decomposed": ("tab:brown", "D", 30),
    "cutback": ("tab:blue", "o", 40),
}
NAMES = {
    "eager, checkpoints": "eager, a checkpoint per block",
    "torch": "PyTorch's partitioner, budgets 1 to 0",
    "torch, decomposed": "the same, Inductor's decompositions",
}


def draw(folder: Path = RESULTS, kind: str = "svg") -> None:
    """Writes the picture of a folder's rows next to them. Does nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        print(f"no picture: {error}")
        return
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "cutback"  # so that the same rows give the same file
    from matplotlib import pyplot

    path = folder / f"pytorch_side_by_side.{kind}"
    rows = json.loads(path.with_suffix(".json").read_text())["rows"]
    names = list(dict.fromkeys(row["model"] for row in rows))
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(3.6 * columns, 2.9 * lines + 0.6), squeeze=False
    )
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    for ax, name in zip(axes.flat, names, strict=False):
        panel(ax, name, [row for row in rows if row["model"] == name])
    handles = [mark(axes.flat[0], kind, [], []) for kind in STYLES]
    handles.append(mark(axes.flat[0], "torch", [], [], hollow=True))
    labels = [NAMES.get(kind, kind) for kind in STYLES] + [
        "hollow: draws dropout again, wrong gradients"
    ]
    figure.legend(handles, labels, loc="upper center", ncol=min(3, columns), frameon=False)
    figure.supxlabel("peak of live tensors in a step, MB")
    figure.supylabel("step time, ms")
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.6 / (2.9 * lines + 0.6)))
    figure.savefig(path, metadata={"Date": None} if kind == "svg" else None)
    print(f"wrote {path}")


def mark(ax: Any, kind: str, x: list[float], y: list[float], hollow: bool = False) -> Any:
    """Draws the points of one kind."""
    color, marker, size = STYLES[kind]
    face = "none" if hollow else color
    return ax.scatter(x, y, s=size, marker=marker, facecolors=face, edgecolors=color, zorder=3)


def panel(ax: Any, name: str, rows: list[dict[str, Any]]) -> None:
    """Draws one model."""
    ours = sorted((r["peak bytes"] / 1e6, r["median"]) for r in rows if r["subject"] == "cutback")
    ax.plot([x for x, _ in ours], [y for _, y in ours], color="tab:blue", lw=1, zorder=2)
    for kind in STYLES:
        for hollow in (False, True):
            points = {
                (r["peak bytes"] / 1e6, r["median"])
                for r in rows
                if r["subject"] == kind and (r.get("valid", "yes") != "yes") is hollow
            }
            mark(ax, kind, [x for x, _ in points], [y for _, y in points], hollow)
    ax.set_title(name, fontsize=10)
    ax.set_xlim(0, 1.06 * max(r["peak bytes"] / 1e6 for r in rows))
    ax.set_ylim(0, 1.1 * max(r["median"] for r in rows))
    ax.grid(alpha=0.3)


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:2]), *sys.argv[2:3])
