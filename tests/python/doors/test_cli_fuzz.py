"""Runs every verb of the command line on mutated files: the outcome is an answer or a one-line
error, never a traceback.

The mutations come from a seed; a failure names it, and the same seed makes the same files.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import random

import numpy as np
import pytest

import cutback
from cutback import cli

W = [np.full((8, 8), 0.1, np.float32) for _ in range(2)]
X = np.ones((4, 8), np.float32)
LINK = {"name": "linked", "flops_per_s": {"f32": 1e11}, "bytes_per_s": 2e10, "launch_s": 1e-6,
        "link_bytes_per_s": 1e10}  # fmt: skip


def node(name, op, inputs, storage, phase, role, *, shape=(4, 8)):
    out = {"shape": list(shape), "dtype": "float32", "bytes": 128, "storage": storage}
    kind = "placeholder" if role != "op" else "call_function"
    return {"name": name, "kind": kind, "op": op, "inputs": inputs, "out": [out],
            "phase": f"is_{phase}", "role": role}  # fmt: skip


TRACED = {
    "name": "small", "torch": "2.13.0",
    "nodes": [
        node("primals_1", "primals_1", [], 0, "forward", "primal"),
        node("tangents_1", "tangents_1", [], 1, "backward", "tangent"),
        node("sin", "aten.sin.default", [0], 2, "forward", "op"),
        node("cos", "aten.cos.default", [2], 3, "forward", "op"),
        node("mul", "aten.mul.Tensor", [1, 2], 4, "backward", "op"),
    ],
    "storage_bytes": [128] * 5, "forward_outputs": [3], "backward_outputs": [4],
}  # fmt: skip


def loss(params, x):
    for w in params:
        x = cutback.tanh(cutback.exp(x @ w) * 0.01)
    return (x * x).mean()


def seeds():
    """Returns one document of each kind of file."""
    made = cutback.plan(loss, W, X, preset="recompute_all")
    problem = made.problem
    moved = cutback.plan(problem, budget="0.6x", measure="arena", offload="only", device=LINK)
    times = {"format": "cutback.times", "version": 1, "seconds": {problem["ops"][4]["name"]: 1e-6}}
    return {
        "problem": problem,
        "traced": TRACED,
        "plan": {**made.document, "file": "problem.json"},
        "moved": moved.document,
        "times": times,
        "device": LINK,
        "policy": {"matmul": "must_save", "at:*": "free", "*": "prefer_recompute"},
    }


COMMANDS = {  # maps the kind of the mutated file to commands
    "problem": """
        plan problem
        plan problem --explain
        plan problem --budget 0.7x --json
        plan problem --budgets 0.9x,min
        plan problem --policy mu-two
        plan problem --policy names:*
        plan problem --budget 0.7x --offload --device device --report page
        cut problem --dump-network network
        cut problem --json
        frontier problem
        frontier problem --report page
        explain plan
        evaluate problem plan
        diff plan plan
    """,
    "traced": """
        plan traced
        plan traced --explain
        plan traced --budget 0.8x
        cut traced
        frontier traced --report page
        evaluate traced plan
    """,
    "plan": """
        explain plan
        explain plan problem --json
        explain plan --report page
        diff plan moved problem --report page
        diff moved plan problem --json
        evaluate problem plan
    """,
    "moved": """
        diff plan moved problem
        explain moved problem --report page
        evaluate problem moved --json
    """,
    "device": """
        plan problem --device device
        plan problem --device device --explain
        evaluate problem moved --device device
        frontier problem --device device
    """,
    "times": "plan problem --profile times",
    "policy": """
        plan problem --policy policy
        plan problem --policy policy+dots_saveable
    """,
}
ODD = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30,
    0.5, -0.0, 1e-320, 1e300, float("inf"), float("nan"), "", "x", "0", "\ud800", "\x00", "\x1b[2J",
    "\u202e", "\U0001f600", "a" * 300, [], {}, [[]], [0], [None], {"a": 1}, {"": []}, "save",
]  # fmt: skip


def places(document):
    """Returns every (container, key) in a document."""
    found, rest = [], [document]
    while rest:
        here = rest.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here))
        for key in keys:
            found.append((here, key))
            if isinstance(here[key], (dict, list)):
                rest.append(here[key])
    return found


def change(document, random_):
    """Mutates a document once, in place."""
    options = places(document)
    if not options:
        return
    here, key = random_.choice(options)
    what = random_.randrange(7)
    if what == 0 and isinstance(here, (dict, list)):
        del here[key]
    elif what == 1 and isinstance(here, list):
        here.insert(key, copy.deepcopy(here[key]))
    elif what == 2 and isinstance(here, dict):
        here[random_.choice(["x", "", "\x1b", key + " "])] = here.pop(key)
    elif what == 3 and type(here[key]) is int:
        here[key] += random_.choice([-1, 1, 2, 64, 2**32])
    elif what == 4:
        other, at = random_.choice(options)
        with contextlib.suppress(KeyError, IndexError):
            here[key] = copy.deepcopy(other[at])
    elif what == 5:
        here[key] = {"deep": here[key]} if random_.randrange(2) else [here[key]]
    else:
        here[key] = copy.deepcopy(random_.choice(ODD))


def mutated(document, random_):
    """Returns the bytes of a file that is almost valid."""
    document = copy.deepcopy(document)
    for _ in range(random_.choice([1, 1, 1, 2, 3, 8])):
        change(document, random_)
    if isinstance(document, dict) and random_.randrange(2):
        document.pop("fingerprint", None)  # otherwise most mutations fail at it
    data = json.dumps(document, ensure_ascii=random_.randrange(2)).encode("utf-8", "surrogatepass")
    if random_.randrange(5) == 0:
        at = random_.randrange(len(data) + 1)
        what = random_.randrange(4)
        junk = random_.randbytes(random_.randrange(4))
        data = (data[:at], data[:at] + junk + data[at:], data[at:], data[:at] + data)[what]
    if random_.randrange(20) == 0:
        data = b"[" * 5000 if random_.randrange(2) else b'{"a":' * 5000
    if random_.randrange(20) == 0:
        data = gzip.compress(data)[: random_.choice([None, -1, 12])]
    return data


def fuzz(folder, first, count):
    documents = seeds()
    paths = {name: folder / f"{name}.json" for name in documents}
    for name, document in documents.items():
        paths[name].write_text(json.dumps(document))
    paths |= {"page": folder / "page.html", "network": folder / "network"}
    failures = {}
    answered = 0
    for seed in range(first, first + count):
        random_ = random.Random(seed)
        kind = random_.choice(list(COMMANDS))
        command = random_.choice(COMMANDS[kind].strip().split("\n")).strip()
        paths[kind].write_bytes(mutated(documents[kind], random_))
        verb, *words = command.split()
        arguments = [verb] + [
            "+".join(str(paths.get(part, part)) for part in word.split("+")) for word in words
        ]
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = cli.main(arguments)
        except Exception as error:
            failures[seed] = (command, repr(error))
            code = None
        said = err.getvalue()
        if code == 2 and (not said.startswith("cutback: ") or said.count("\n") != 1):
            failures[seed] = (command, said)
        if code == 2 and ("internal error" in said or "\x1b" in said or "please report" in said):
            failures[seed] = (command, said)
        if code == 0:
            answered += 1
            if "\x1b" in out.getvalue() or "\u202e" in out.getvalue():
                failures[seed] = (command, "escapes")
        paths[kind].write_text(json.dumps(documents[kind]))
    assert not failures, failures
    return answered


@pytest.mark.plans_unchecked
def test_mutated_files(tmp_path):
    assert 10 < fuzz(tmp_path, 0, 300) < 250


@pytest.mark.very_slow
@pytest.mark.plans_unchecked
@pytest.mark.parametrize("part", range(10))
def test_many_mutated_files(tmp_path, part):
    fuzz(tmp_path, 1000 + 3000 * part, 3000)
