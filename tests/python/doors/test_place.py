"""Tests `cutback place`: buffers from CSV files, their offsets, and the errors for bad files."""

from __future__ import annotations

from pathlib import Path

import pytest
from buffers import CAPACITY, HARD, tight_buffers

from cutback import cli
from cutback.placement import Buffer, place, read_csv, write_csv

SMALL = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


def check(buffers: list[Buffer], offsets: list[int], capacity: int) -> None:
    """Checks that every pair is disjoint in time or in memory. Slow, and shares no code with the
    search."""
    for i, (a, at) in enumerate(zip(buffers, offsets, strict=True)):
        assert at >= 0 and at + a.size <= capacity
        for b, other in zip(buffers[:i], offsets[:i], strict=True):
            meet = a.lower < b.upper and b.lower < a.upper
            assert not meet or at + a.size <= other or other + b.size <= at, (a, b)


def test_a_file_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text(SMALL)
    assert cli.main(["place", str(file), "--capacity", "12", "--output", str(out)]) == 0
    assert "5 buffers in 12 B" in capsys.readouterr().out
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert rows[0] == ["id", "lower", "upper", "size", "offset"]
    check(read_csv(SMALL), [int(row[4]) for row in rows[1:]], 12)
    assert cli.main(["place", str(file), "--capacity", "12"]) == 0
    assert capsys.readouterr().out == out.read_text()
    assert cli.main(["place", str(file), "--capacity", "11"]) == 2
    assert "at time 0 they take 12 bytes" in capsys.readouterr().err


def test_files_keep_their_buffers() -> None:
    buffers = read_csv("size, upper,id,lower\n0,9,empty,3\n\n7,5,full,0\n")
    assert buffers == [Buffer("empty", 3, 9, 0), Buffer("full", 0, 5, 7)]
    assert write_csv(buffers, [0, 0]).splitlines()[1] == "empty,3,9,0,0"
    assert place(buffers, 7) == [0, 0]
    assert place([], 0) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'id' is missing"),
        ("id,lower,upper\n", "'size' is missing"),
        ("id,lower,upper,size,gaps\n", "column 'gaps' is not one of"),
        ("id,lower,upper,size,id\n", "column 'id' is named twice"),
        ("id,lower,upper,size\na,0,1\n", "line 2 has 3 fields"),
        ("id,lower,upper,size\na,0,1,x\n", "line 2: size is 'x'"),
        ("id,lower,upper,size\na,-1,1,2\n", "line 2: lower is '-1'"),
        ("id,lower,upper,size\na,0,1,9223372036854775808\n", "2^63 or more"),
        ("id,lower,upper,size\na,4,4,2\n", "lower is 4 and upper is 4"),
        ("id,lower,upper,size\na,0,1,2\na,1,2,2\n", "line 3: id 'a' is already used on line 2"),
    ],
)
def test_bad_files_are_explained(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.csv"
    file.write_text(text)
    assert cli.main(["place", str(file), "--capacity", "1MiB"]) == 2
    told = capsys.readouterr().err
    assert says in told and "in.csv" in told and told.count("\n") == 1


def test_sizes_that_add_up_to_too_much() -> None:
    with pytest.raises(ValueError, match="add up to"):
        place([Buffer(str(k), 0, 1, 2**62) for k in range(3)], 2**63 - 1)


@pytest.mark.parametrize(
    ("seed", "n"),
    [pair if pair[0] < 3 else pytest.param(*pair, marks=pytest.mark.very_slow) for pair in HARD],
)
def test_tight_instances_fit(seed: int, n: int) -> None:
    buffers = [Buffer(str(k), *row) for k, row in enumerate(tight_buffers(seed, n))]
    check(buffers, place(buffers, CAPACITY), CAPACITY)
