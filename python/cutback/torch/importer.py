"""From a joint graph of PyTorch to the planner's problem (``docs/problem.md``).

A joint graph is what AOTAutograd hands to a partitioner: forward and backward of one step in one FX
graph, functional except for trailing copies into mutated inputs. Every node becomes one op with
the same place in the given order, except that

- what the forward must have done before it returns (its outputs, effects, copies into its inputs,
  sizes) stands in front of the backward;
- a tangent is an op of the backward without inputs: unlike a primal, its memory belongs to the
  step;
- an input that the caller overwrites after the forward with a value that the graph returns gets an
  op of its own that does this (``copy_back``). So the planner knows that earlier readers of the
  input cannot run again, and that the new value lives until then;
- ``native_dropout`` makes its mask; its result is an op that reads input and mask, and that may run
  again (:data:`Imported.masked`).

Sizes and other numbers are no values of the problem: they are made once, in the forward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import optimization_hint

from . import ops

Policy = Callable[[fx.Node], str | None]
"""Asked for each forward node: a constraint of ``docs/problem.md``, or None."""

_TYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
_CLASSES = {torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


class Masked(NamedTuple):
    """The float result of a ``native_dropout``: ``x * mask * scale``."""

    x: fx.Node
    mask: fx.Node
    scale: float


class Imported(NamedTuple):
    """A problem, and what its op ids stand for."""

    document: dict[str, Any]
    order: list[fx.Node | None]  # by op id; None: a copy into an input after the forward
    outputs: list[fx.Node | None]  # of the joint graph, forward outputs first
    descs: list[Any]
    num_fwd_outputs: int
    masked: dict[fx.Node, Masked]


class Tensor(NamedTuple):
    """One tensor of a node."""

    position: int | None  # in the tuple that the node returns; None: the node is the tensor
    storage: int
    val: torch.Tensor
    bytes: int


class UnsupportedGraphError(NotImplementedError):
    """A graph that this version cannot plan; the text names the node and the way out."""


def hint(n: Any) -> int:
    """A size as an int: of a symbolic size its hint."""
    return n if type(n) is int else int(optimization_hint(n, 4096))


def is_tangent(node: fx.Node) -> bool:
    """Is this placeholder an input of the backward?"""
    return "tangents" in node.name


def is_number(node: fx.Node) -> bool:
    """Is the node's value a size or another number, not a tensor?"""
    return isinstance(node.meta.get("val"), _NUMBERS)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def ends(gm: fx.GraphModule) -> tuple[list[Any], list[Any]]:
    """Outputs of a graph, flat, and their descriptors (None where PyTorch gave none)."""
    node = next(iter(gm.graph.find_nodes(op="output")))
    outputs = list(_leaves(node.args[0]))
    descs = list(_leaves(node.meta.get("desc", ())))
    return outputs, descs if len(descs) == len(outputs) else [None] * len(outputs)


def module_path(node: fx.Node) -> str:
    """``"layers.0.mlp"``: the innermost module that a node belongs to, as far as known."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    # Dynamo writes L['self']._modules['layers']._modules['0']
    path = path.replace("._modules['", ".").replace("']", "").replace("L['", "")
    return path.removeprefix("self").removeprefix("fn").lstrip(".")


def location(node: fx.Node) -> str:
    """``"model.py:12 (layers.0.mlp)"``: innermost source line and module, as far as known."""
    trace, at = node.meta.get("stack_trace"), ""
    if trace:
        start = trace.rfind('File "')
        if start >= 0:
            end = trace.find('"', start + 6)
            stop = trace.find(",", end + 8)
            name = trace[start + 6 : end]
            at = f"{name[name.rfind('/') + 1 :]}:{trace[end + 8 : stop]}"
    path = module_path(node)
    return f"{at} ({path})" if at and path else at or path


class _Reader:
    """One pass over the nodes, then the order, then the document."""

    def __init__(self, gm: fx.GraphModule, num_fwd_outputs: int) -> None:
        self.gm = gm
        self.nodes = [n for n in gm.graph.nodes if n.op != "output"]
        self.outputs, self.descs = ends(gm)
        self.num_fwd_outputs = num_fwd_outputs
        self.storage_bytes: list[int] = []
        self.static: list[bool] = []
        self.tensors: dict[fx.Node, list[Tensor]] = {}
        self.late: set[fx.Node] = set()  # what depends on a tangent
        self.masked: dict[fx.Node, Masked] = {}
        self.kinds = ops.learn(n.target for n in self.nodes if n.op == "call_function")
        self._ids: dict[int, int] = {}  # storage of a fake tensor -> id
        self._kept: list[Any] = []  # storages whose addresses are keys

    # ---- storages and phases ------------------------------------------------------------------

    def read(self) -> None:
        for node in self.nodes:
            if node.op == "placeholder":
                self._check_placeholder(node)
            elif any(i in self.late for i in node.all_input_nodes):
                self.late.add(node)
            self._read_tensors(node)
        self._find_dropouts()

    def _check_placeholder(self, node: fx.Node) -> None:
        if "fwd_seed" in node.name or "fwd_base_offset" in node.name or "bwd_seed" in node.name:
            raise UnsupportedGraphError(
                f"{node.name}: graphs with functionalised random numbers are not supported; set "
                "torch._functorch.config.functionalize_rng_ops = False"
            )
        if is_tangent(node):
            self.late.add(node)

    def _read_tensors(self, node: fx.Node) -> None:
        val = node.meta.get("val")
        if node.op == "get_attr" and val is None:
            val = _attribute(self.gm, str(node.target))
        if isinstance(val, torch.Tensor):
            self.tensors[node] = [self._tensor(node, None, val, set())]
        elif isinstance(val, (list, tuple)):
            made: set[int] = set()
            self.tensors[node] = [
                self._tensor(node, i, v, made)
                for i, v in enumerate(val)
                if isinstance(v, torch.Tensor)
            ]
        else:
            self.tensors[node] = []
            if val is None and node.op == "call_function" and node.users:
                raise UnsupportedGraphError(
                    f"{node.name} ({node.target}): the graph does not say what it returns "
                    '(no meta["val"]); trace it with fake tensors'
                )

    def _tensor(
        self, node: fx.Node, index: int | None, val: torch.Tensor, made: set[int]
    ) -> Tensor:
        if val.layout is not torch.strided:
            raise UnsupportedGraphError(
                f"{node.name} ({location(node)}): a tensor of layout {val.layout}; only dense "
                "(strided) tensors can be planned. Keep it out of the compiled part"
            )
        if val.is_complex():
            raise UnsupportedGraphError(
                f"{node.name} ({location(node)}): a complex tensor; complex gradients are not "
                "supported. Keep it out of the compiled part"
            )
        memory = val.untyped_storage()
        key = memory._cdata
        id = self._ids.get(key)
        if id is not None and not (self.static[id] or id in made or id in self.read_by(node)):
            id = None  # an op that reads no such memory makes its own
        if id is None:
            id = self._ids[key] = len(self.storage_bytes)
            self._kept.append(memory)
            self.storage_bytes.append(hint(memory.nbytes()))
            self.static.append(
                node.op == "get_attr" or (node.op == "placeholder" and not is_tangent(node))
            )
            made.add(id)
        return Tensor(index, id, val, hint(val.numel()) * val.element_size())

    def read_by(self, node: fx.Node) -> set[int]:
        """Storages that the node reads."""
        return {t.storage for i in node.all_input_nodes for t in self.tensors[i]}

    def written_by(self, node: fx.Node) -> set[int]:
        """Storages that the node writes into."""
        if node.op != "call_function" or not self.kinds[node.target].mutable:
            return set()
        written = set()
        for argument, given in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written |= {
                    t.storage
                    for n in _leaves(given)
                    if isinstance(n, fx.Node)
                    for t in self.tensors[n]
                }
        return written

    def _find_dropouts(self) -> None:
        native = torch.ops.aten.native_dropout.default
        for node in self.nodes:
            if node.target is not native or len(node.args) < 3 or node.args[2] is not True:
                continue
            x, p, _ = node.args
            parts: dict[Any, list[fx.Node]] = {0: [], 1: []}
            for user in node.users:
                if user.target is operator.getitem:
                    parts[user.args[1]].append(user)
            if len(parts[0]) == 1 == len(parts[1]) and len(node.users) == 2 and 0 <= p < 1:
                value, mask = parts[0][0], parts[1][0]
                self.masked[value] = Masked(x, mask, 1.0 / (1.0 - p))

    # ---- order --------------------------------------------------------------------------------

    def overwritten(self) -> dict[int, fx.Node]:
        """Inputs that the caller overwrites after the forward: position of the forward output with
        the new value -> placeholder."""
        by_desc = {n.meta["desc"]: n for n in self.nodes if n.meta.get("desc") is not None}
        found = {}
        for k, desc in enumerate(self.descs[: self.num_fwd_outputs]):
            if type(desc).__name__ != "InputMutationAOTOutput":
                continue
            target = by_desc.get(desc.mutated_input)
            if target is None:
                raise UnsupportedGraphError(
                    f"forward output {k} overwrites {desc.mutated_input.expr()}, which is no input "
                    "of the graph; write into tensors that are passed as they are"
                )
            found[k] = target
        return found

    def split(self, overwritten: dict[int, fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
        """Nodes before and after the start of the backward, each in the graph's order."""
        first = next((i for i, n in enumerate(self.nodes) if self._starts(n)), len(self.nodes))
        early = set(self.nodes[:first])
        wanted = self._wanted_early(overwritten)
        for node in reversed(self.nodes):
            if node in wanted:
                wanted.update(node.all_input_nodes)
        for node in wanted:
            if node in self.late:
                raise UnsupportedGraphError(
                    f"{node.name} ({location(node)}) depends on a gradient, but the forward "
                    "returns it or what is made of it"
                )
        early |= wanted
        forward = [n for n in self.nodes if n in early and n not in self.late]
        return forward, [n for n in self.nodes if n not in early or n in self.late]

    def _starts(self, node: fx.Node) -> bool:
        return node in self.late and node.op != "placeholder"

    def _wanted_early(self, overwritten: dict[int, fx.Node]) -> set[fx.Node]:
        """What must have run when the forward returns, but for what it reads."""
        wanted = {n for n in self.outputs[: self.num_fwd_outputs] if isinstance(n, fx.Node)}
        changed = {t.storage for n in overwritten.values() for t in self.tensors[n]}
        for node in self.nodes:
            written = self.written_by(node)
            if written and node not in self.late and not _in_backward(node):
                wanted.add(node)
                changed |= written
        for node in self.nodes:
            if node.op != "call_function":
                if node not in self.late:
                    wanted.add(node)
            elif is_number(node) and node not in self.late:
                wanted.add(node)
            elif changed and not changed.isdisjoint(self.read_by(node)):
                if node not in self.late:
                    wanted.add(node)
                elif not self.written_by(node):
                    raise UnsupportedGraphError(
                        f"{node.name} ({location(node)}): the backward reads an input that the "
                        "forward overwrites; clone the input first"
                    )
        return wanted


def _in_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


# ---- the document -----------------------------------------------------------------------------


class _Writer:
    """Writes ops, values and storages in the order of the steps."""

    def __init__(self, reader: _Reader, policy: Policy | None, parameters: set[fx.Node]) -> None:
        self.r = reader
        self.policy = policy
        self.parameters = parameters
        self.ops: list[dict[str, Any]] = []
        self.order: list[fx.Node | None] = []
        self.value: dict[fx.Node, dict[int | None, int]] = {}  # node -> index in tuple -> value
        self.storage_flags: list[set[str]] = [{"static"} if s else set() for s in reader.static]
        self.n_values = 0

    def values_of(self, node: fx.Node) -> list[int]:
        return list(self.value[node].values())

    def inputs_of(self, node: fx.Node) -> list[int]:
        masked = self.r.masked.get(node)
        if masked is not None:
            return [*self.values_of(masked.x), *self.values_of(masked.mask)]
        if node.target is operator.getitem:
            source = self.value[node.args[0]]
            if node.args[1] in source:
                return [source[node.args[1]]]
        found: dict[int, None] = {}
        for i in node.all_input_nodes:
            found.update(dict.fromkeys(self.value[i].values()))
        return list(found)

    def add(self, node: fx.Node) -> None:
        op: dict[str, Any] = {"name": node.name, "kind": "placeholder", "in": [], "out": []}
        tensors = self.r.tensors[node]
        if node.op == "call_function":
            tensors = self._call(node, op)
        elif is_tangent(node):
            op.update(kind="tangent", flags=["backward", "effect"], time_ps=0)
        else:
            op["flags"] = ["placeholder"]
            if node in self.parameters:
                op["flags"].append("parameter")
        self.value[node] = {}
        for t in tensors:
            self._out(op, node, t)
        if self.policy is not None and node.op == "call_function" and op["out"]:
            self._constrain(node, op)
        self._push(node, op)

    def _push(self, node: fx.Node | None, op: dict[str, Any]) -> None:
        self.ops.append(op)
        self.order.append(node)

    def _out(self, op: dict[str, Any], node: fx.Node, t: Tensor) -> None:
        self.value[node][t.position] = self.n_values
        self.n_values += 1
        shape = ",".join(str(hint(n)) for n in t.val.shape)
        kind = _TYPES.get(t.val.dtype) or str(t.val.dtype).removeprefix("torch.")
        op["out"].append({"storage": t.storage, "type": f"{kind}[{shape}]", "bytes": t.bytes})

    def _call(self, node: fx.Node, op: dict[str, Any]) -> list[Tensor]:
        kind = self.r.kinds[node.target]
        tensors = self.r.tensors[node]
        op["kind"] = kind.name
        at = location(node)
        if at:
            op["at"] = at
        op["in"] = self.inputs_of(node)
        if node in self.r.masked:
            op["kind"], flags = "aten.native_dropout.result", {"fusible"}
        else:
            if any(user in self.r.masked for user in node.users):
                tensors = [t for t in tensors if t.position == 1]  # the result is an op of its own
            flags = self._flags(node, kind, tensors)
        if node in self.r.late:
            flags.add("backward")
        op["flags"] = sorted(flags)
        if "view" not in flags and tensors:
            op["bytes"] = self._moved(node, tensors)
            flops = self._flops(node, kind)
            if flops:
                op["flops"] = flops
            work = _CLASSES.get(tensors[0].val.dtype)
            if work:
                op["class"] = work
        elif not tensors:
            op["time_ps"] = 0
        return tensors

    def _flags(self, node: fx.Node, kind: ops.Kind, tensors: list[Tensor]) -> set[str]:
        """Flags of this call."""
        flags = set(kind.flags)
        if kind.mutable:
            return {"mutates"}
        if kind.rate is not None and _rate(node, kind.rate) == 0:
            flags.discard("random_stateful")  # dropout that is off draws nothing
        if (
            node.is_impure(impure_random=False) or not tensors
        ):  # what makes no tensor is a number or an effect
            flags.add("effect")
        read = self.r.read_by(node)
        aliases = sum(t.storage in read for t in tensors)
        if aliases and aliases == len(tensors):
            return flags - {"fusible", "reduction", "compute"} | {"view"}
        if aliases:  # a view beside a fresh tensor: taken for written to, which is never wrong
            flags.add("mutates")
        return flags

    def _moved(self, node: fx.Node, tensors: list[Tensor]) -> int:
        """Bytes of all outputs, and of each storage that is read, once."""
        read: dict[int, int] = {}
        for i in node.all_input_nodes:
            for t in self.r.tensors[i]:
                bytes = min(t.bytes, self.r.storage_bytes[t.storage])
                read[t.storage] = max(read.get(t.storage, 0), bytes)
        return sum(read.values()) + sum(t.bytes for t in tensors)

    def _flops(self, node: fx.Node, kind: ops.Kind) -> float:
        if kind.flops is None:
            return 0.0

        def value(n: fx.Node) -> Any:
            return n.meta.get("val")

        args, kwargs = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
        try:
            return float(hint(kind.flops(*args, **kwargs, out_val=node.meta["val"])))
        except (TypeError, ValueError, AssertionError, IndexError, AttributeError):
            return 0.0  # a formula for other arguments: the op counts by its traffic

    def _constrain(self, node: fx.Node, op: dict[str, Any]) -> None:
        flags = set(op["flags"])
        if self.policy is None or flags & {"backward", "view"}:
            return
        word = self.policy(node)
        if word is None or word == "free":
            return
        if word.endswith("recompute"):
            if flags & (ops.ONCE - {"unknown"}):
                return  # cannot run again, whatever is wished
            op["flags"] = sorted(flags - {"unknown"})  # the user says that it can
        for out in op["out"]:
            out["constraint"] = word

    def copy_back(self, k: int, target: fx.Node, value: fx.Node) -> None:
        """The caller copies forward output ``k`` into the input ``target``."""
        new, old = self.values_of(value), self.values_of(target)
        op: dict[str, Any] = {
            "name": f"copy_back_{k}", "kind": "copy_back", "flags": ["mutates"], "time_ps": 0,
            "in": list(dict.fromkeys([*old, *new])),
            "out": [{"storage": t.storage, "bytes": t.bytes} for t in self.r.tensors[target]],
        }  # fmt: skip
        self.n_values += len(op["out"])
        self._push(None, op)


def _rate(node: fx.Node, position: int) -> Any:
    """Dropout probability of a call."""
    args: Sequence[Any] = node.args
    kwargs: dict[str, Any] = node.kwargs
    return args[position] if len(args) > position else kwargs.get("dropout_p", 0.0)


def import_joint(
    gm: fx.GraphModule,
    num_fwd_outputs: int,
    *,
    static_inputs: Sequence[int] = (),
    policy: Policy | None = None,
) -> Imported:
    """The planner's problem of a joint graph.

    Args:
        gm: the graph, as ``aot_autograd`` passes it to a ``partition_fn``.
        num_fwd_outputs: how many of its outputs are the forward's.
        static_inputs: positions of parameters and buffers among the primals.
        policy: constraints on forward nodes.

    Raises:
        UnsupportedGraphError: sparse or complex tensors, or a graph that cannot be split.
    """
    reader = _Reader(gm, num_fwd_outputs)
    reader.read()
    overwritten = reader.overwritten()
    forward, backward = reader.split(overwritten)
    primals = [n for n in reader.nodes if n.op == "placeholder" and not is_tangent(n)]
    parameters = {primals[i] for i in static_inputs if i < len(primals)}
    writer = _Writer(reader, policy, parameters)
    for node in _dropouts_together(forward, reader.masked):
        writer.add(node)
    outputs = reader.outputs
    for k, target in overwritten.items():
        writer.copy_back(k, target, outputs[k])
    start = len(writer.ops)
    for node in _tangents_first(backward):
        writer.add(node)
    document = _document(writer, start, set(overwritten), parameters)
    return Imported(document, writer.order, outputs, reader.descs, num_fwd_outputs, reader.masked)


def _dropouts_together(forward: list[fx.Node], masked: dict[fx.Node, Masked]) -> Iterator[fx.Node]:
    """Each dropout, then its mask, then its result."""
    parts = {m.mask: value for value, m in masked.items()}
    for node in forward:
        if node in masked or node in parts:
            continue
        yield node
        for user in node.users:
            if user in parts and user.args[0] is node:
                yield user
                yield parts[user]


def _tangents_first(backward: list[fx.Node]) -> list[fx.Node]:
    return sorted(backward, key=lambda n: n.op != "placeholder")


def _document(
    w: _Writer, start: int, overwritten: set[int], parameters: set[fx.Node]
) -> dict[str, Any]:
    r = w.r
    forward_outputs: dict[int, None] = {}
    for k, node in enumerate(r.outputs[: r.num_fwd_outputs]):
        if isinstance(node, fx.Node):
            forward_outputs.update(dict.fromkeys(w.values_of(node)))
            if k not in overwritten:
                _hold(w, node)
    backward_outputs: dict[int, None] = {}
    for node in r.outputs[r.num_fwd_outputs :]:
        if isinstance(node, fx.Node):
            backward_outputs.update(dict.fromkeys(w.values_of(node)))
            _hold(w, node)
    for node in r.nodes:  # backward() holds the gradient of a scalar, which it makes, to its end
        if is_tangent(node) and any(t.val.dim() == 0 for t in r.tensors[node]):
            _hold(w, node)
    static = {t.storage for n in parameters for t in r.tensors[n]}
    storages = []
    for bytes, flags in zip(r.storage_bytes, w.storage_flags, strict=True):
        storages.append({"bytes": bytes, "flags": sorted(flags)} if flags else {"bytes": bytes})
    return {
        "format": "cutback.problem",
        "version": 1,
        "source": f"PyTorch {torch.__version__} joint graph",
        "backward_starts": start,
        "static_bytes": sum(r.storage_bytes[s] for s in static),
        "forward_outputs": list(forward_outputs),
        "backward_outputs": list(backward_outputs),
        "storages": storages,
        "ops": w.ops,
    }


def _hold(w: _Writer, node: fx.Node) -> None:
    for t in w.r.tensors[node]:
        if not w.r.static[t.storage]:
            w.storage_flags[t.storage].add("hold_end")
