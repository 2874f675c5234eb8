"""Execute notebooks in place of a reader: every cell must run. Writes only with --inplace.

Stored outputs have no times of cells and no stderr, such as warnings and progress bars: both differ
between machines.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError


def without_stderr(notebook: nbformat.NotebookNode) -> None:
    """Removes what cells wrote to stderr."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]


def execute(path: Path, inplace: bool) -> bool:
    """Run one notebook in its own folder; return whether every cell ran."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=1800,  # of a cell: ends one that hangs, also on a busy machine
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return False
    if inplace:
        without_stderr(notebook)
        nbformat.write(notebook, path)
    print(f"{path}: {len(notebook.cells)} cells ran")
    return True


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--inplace", action="store_true", help="store the outputs in the files")
    args = parser.parse_args()
    # notebooks that use PyTorch take longest, so they start first
    notebooks = sorted(args.notebooks, key=lambda path: "import torch" not in path.read_text())
    # each cell waits for the kernel of its notebook
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda path: execute(path, args.inplace), notebooks))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
