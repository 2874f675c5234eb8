"""Writes C from a parsed module: a function for each kernel, a statement for each instruction.

Registers are unsigned integers of their width; an instruction reads them as the types that it
names. Everything that reaches beyond a thread's own registers goes through `runtime/sim_thread.h`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import memory, together
from .cost import JUMPS, cost_of
from .forms import C_TYPES, FORMS
from .ptx import BITS, Function, Module, Statement, UnsupportedError, Variable, split, variable

_SPECIAL = {
    "%laneid": "t->lane",
    "%warpid": "(t->id >> 5)",
    "%nwarpid": "32",
    "%smid": "(t->block % 132)",
    "%nsmid": "132",
    "%clock": "(uint32_t)-t->fuel",
    "%clock64": "(uint64_t)-t->fuel",
    "%dynamic_smem_size": "t->dynamic_shared",
    "%total_smem_size": "t->total_shared",
    "%lanemask_eq": "(1u << t->lane)",
    "%lanemask_lt": "((1u << t->lane) - 1)",
    "%lanemask_le": "((2u << t->lane) - 1)",
    "%lanemask_gt": "~((2u << t->lane) - 1)",
    "%lanemask_ge": "~((1u << t->lane) - 1)",
    "WARP_SZ": "32",
}
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")


@dataclass(frozen=True)
class Instruction:
    """An instruction without its guard: "ld.global.v2.f32" and its operands."""

    opcode: str
    operands: tuple[str, ...]
    site: int

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")


@dataclass
class Layout:
    """The memory layout of a kernel: byte offsets of its variables in their windows."""

    shared: dict[str, int] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0
    local_bytes: int = 0
    has_dynamic: bool = False

    def place(self, what: Variable) -> None:
        table, size = self.shared, self.shared_bytes
        align = max(what.align, 16) if what.is_extern else what.align
        if what.space == "local":
            table, size = self.local, self.local_bytes
        table[what.name] = size = -(-size // align) * align
        if what.space == "local":
            self.local_bytes = size + what.bytes
        else:
            self.shared_bytes = size + what.bytes


class Writer:
    """Writes one function. Afterwards `needs_fibers` and `forms` say what the function contains."""

    def __init__(self, module: Module, function: Function, layout: Layout) -> None:
        self.module, self.function, self.layout = module, function, layout
        self.lines: list[str] = []
        self.forms: set[str] = set()
        self.needs_fibers = False
        self.scopes: list[dict[str, int]] = [{}]
        self.buffers: dict[str, str] = {}  # maps .param memory of calls to a C expression
        self.params: dict[str, int] = {}  # maps a parameter of a kernel to its offset
        self.tables: dict[str, list[str]] = {}  # .branchtargets
        self.seen: set[str] = set()  # labels
        self.globals = list(module.variables)
        self.begun = 0  # the line of the block of instructions that is being written
        self.issued = 0  # the half instructions of a machine that they cost

    # Registers, constants, symbols

    def bits(self, register: str) -> int | None:
        """Returns the width of a register, or None if no register of this name is in scope."""
        for scope in reversed(self.scopes):
            if register in scope:
                return scope[register]
        return None

    @staticmethod
    def name(register: str) -> str:
        return "r_" + re.sub(r"\W", "_", register.lstrip("%"))

    def symbol(self, name: str) -> str:
        """Returns the address of a variable, in its own space."""
        if name in self.params:
            return f"(SIM_PARAMS + {self.params[name]})"
        if name in self.layout.shared:
            return f"{self.layout.shared[name]}u"
        if name in self.layout.local:
            return f"(t->local + {self.layout.local[name]})"
        if name in self.module.variables:
            return f"t->globals[{self.globals.index(name)}]"
        raise UnsupportedError(f"name {name}")

    def raw(self, text: str) -> str:
        """Returns an operand as an unsigned integer."""
        if self.bits(text) is not None:
            return self.name(text)
        index = re.fullmatch(r"%(tid|ntid|ctaid|nctaid)\.([xyz])", text)
        if index:
            return f"t->{index[1]}[{'xyz'.index(index[2])}]"
        if text in _SPECIAL:
            return _SPECIAL[text]
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", text):
            return f"0x{text[2:]}ull"
        if _INTEGER.match(text):
            return f"{int(text.rstrip('U'), 0) & (1 << 64) - 1:#x}ull"
        return self.symbol(text)

    def value(self, text: str, type_: str) -> str:
        """Returns a source operand as a C expression of a PTX type."""
        if text.startswith("!"):
            return f"!{self.value(text[1:], type_)}"
        raw = self.raw(text)
        if type_ == "f32":
            return f"sim_f32((uint32_t){raw})"
        if type_ == "f64":
            return f"sim_f64((uint64_t){raw})"
        return f"(({C_TYPES[type_]}){raw})"

    def assign(self, register: str, type_: str, expression: str) -> str:
        """Returns the statement that gives a register a value of a PTX type."""
        if register == "_":
            return f"(void)({expression});"
        bits = self.bits(register)
        if bits is None:
            raise UnsupportedError(f"register {register}")
        name = self.name(register)
        if type_ == "pred":
            return f"{name} = ({expression}) != 0;"
        if type_ in ("f32", "f64"):
            return f"{name} = sim_bits{type_[1:]}({expression});"
        extended = f"({C_TYPES[type_]})({expression})"
        if type_[0] == "s" and bits > BITS[type_]:
            extended = f"(int64_t){extended}"
        return f"{name} = (uint{bits}_t){extended};"

    def address(self, operand: str, space: str) -> str:
        """Returns the generic address that "[%rd1+16]" means in a space."""
        found = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+)\s*)?\]", operand)
        if not found:
            raise UnsupportedError(f"address {operand}")
        base = f"SIM_SHARED + {self.raw(found[1])}" if space == "shared" else self.raw(found[1])
        return f"(uint64_t){base} + {int(found[2] or '0', 0)}ll"

    def buffer(self, operand: str) -> str | None:
        """Returns the host memory of "[param+8]" if this is an argument of a kernel or a call."""
        found = re.fullmatch(r"\[\s*([\w$]+)\s*(?:\+\s*(\d+)\s*)?\]", operand)
        if not found or self.bits(found[1]) is not None:
            return None
        offset = int(found[2] or 0)
        if found[1] in self.params:
            return f"(t->params + {self.params[found[1]] + offset})"
        if found[1] in self.buffers:
            return f"({self.buffers[found[1]]} + {offset})"
        return None

    # Statements

    def write(self) -> None:
        """Writes the whole body."""
        self._begin_block()
        for statement in self.function.body:
            try:
                self._statement(statement)
            except UnsupportedError as error:
                where = f"line {statement.line} of {self.function.name}: {statement.text}"
                raise UnsupportedError(f"{error} ({where})") from None
            except (IndexError, ValueError, KeyError):
                where = f"line {statement.line} of {self.function.name}"
                raise UnsupportedError(f"{where}: {statement.text}") from None
        self._end_block()

    def _begin_block(self) -> None:
        """Begins a block: instructions from here to a label or jump run together, and are counted
        once."""
        self.begun, self.issued = len(self.lines), 0
        self.lines.append(";")

    def _end_block(self) -> None:
        if self.issued:
            self.lines[self.begun] = f"t->issued += {self.issued};"

    def _statement(self, statement: Statement) -> None:
        text = statement.text
        if text == "{":
            self.scopes.append({})
            self.lines.append("{")
        elif text == "}":
            self.scopes.pop()
            self.lines.append(";}")
        elif text.endswith(":"):
            self.seen.add(text[:-1])
            self._end_block()
            self.lines.append(f"{self.label(text[:-1])}:;")
            self._begin_block()
        elif text.startswith(".reg"):
            self._registers(text)
        elif text.startswith((".shared", ".local")):
            pass  # placed before
        elif text.startswith(".param"):
            made = variable(text)
            self.buffers[made.name] = f"b_{made.name}"
            self.lines.append(f"char b_{made.name}[{made.bytes}] __attribute__((aligned(16)));")
        elif text.startswith(".branchtargets"):
            self.lines.pop()  # the block of the label would begin here
            table = self.lines.pop().removesuffix(":;")
            self.tables[table] = split(text.split(None, 1)[1])
            self._begin_block()
        elif not text.startswith(".pragma"):
            self._guarded(text, statement.site)

    def _registers(self, text: str) -> None:
        found = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text)
        if not found or found[1] not in BITS:
            raise UnsupportedError(text)
        for one in split(found[2]):
            many = re.fullmatch(r"(%?[\w$]+)<(\d+)>", one)
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [one]
            self.scopes[-1].update(dict.fromkeys(names, BITS[found[1]]))
            zeros = ", ".join(f"{self.name(name)} = 0" for name in names)
            self.lines.append(f"uint{BITS[found[1]]}_t {zeros};")

    def _guarded(self, text: str, site: int) -> None:
        guard = re.match(r"@(!?)(%?[\w$]+)\s+", text)
        opcode, _, rest = text[guard.end() if guard else 0 :].partition(" ")
        line = self._instruction(Instruction(opcode, tuple(split(rest)), site))
        if guard:
            line = f"if ({guard[1]}{self.name(guard[2])}) {{ {line} }}"
        self.issued += cost_of(opcode)
        jumps = opcode.split(".")[0] in JUMPS
        if jumps:
            self._end_block()
        self.lines.append(line)
        if jumps:
            self._begin_block()

    def _instruction(self, ins: Instruction) -> str:
        form = FORMS.get(ins.opcode)
        if form:
            self.forms.add(ins.opcode)
            return self._arithmetic(ins)
        base = ins.parts[0]
        for handlers in (_FLOW, memory.HANDLERS, together.HANDLERS):
            if base in handlers:
                line: str = handlers[base](self, ins)
                return line
        raise UnsupportedError(f"unknown instruction {ins.opcode}")

    def _arithmetic(self, ins: Instruction) -> str:
        form = FORMS[ins.opcode]
        if len(ins.operands) != len(form.sources) + 1:
            raise UnsupportedError(f"{ins.opcode} with {len(ins.operands)} operands")
        expression = form.expression
        for letter, text, type_ in zip("abcd", ins.operands[1:], form.sources, strict=False):
            expression = expression.replace(f"${letter}", self.value(text, type_))
        target, _, other = ins.operands[0].partition("|")
        if not other:
            return self.assign(target, form.result, expression)
        # setp assigns the comparison to p and its opposite to q, unless it joins another condition
        if re.match(r"setp\.\w+\.(and|or|xor)\.", ins.opcode):
            raise UnsupportedError(f"{ins.opcode} with two results")
        both = self.assign(target, "pred", "p_") + self.assign(other, "pred", "!p_")
        return f"{{ bool p_ = {expression}; {both} }}"

    @staticmethod
    def label(name: str) -> str:
        return "L_" + re.sub(r"\W", "_", name)

    def goto(self, label: str, site: int) -> str:
        burn = f"sim_burn(t, {site}); " if label in self.seen else ""
        return f"{burn}goto {self.label(label)};"


# Flow of control, and moves


def _branch(w: Writer, ins: Instruction) -> str:
    if ins.opcode not in ("bra", "bra.uni"):
        raise UnsupportedError(f"unknown instruction {ins.opcode}")
    return w.goto(ins.operands[0], ins.site)


def _indexed_branch(w: Writer, ins: Instruction) -> str:
    targets = w.tables[w.label(ins.operands[1])]
    cases = " ".join(f"case {i}: {w.goto(label, ins.site)}" for i, label in enumerate(targets))
    return f"switch ({w.value(ins.operands[0], 'u32')}) {{ {cases} }}"


def _return(w: Writer, ins: Instruction) -> str:
    if ins.parts[0] == "exit" and not w.function.is_entry:
        raise UnsupportedError("exit inside a function")
    return "return;"


def _trap(w: Writer, ins: Instruction) -> str:
    return f"t->hooks->fault(t, {ins.site}, SIM_TRAP, 0, 0);"


def _nothing(w: Writer, ins: Instruction) -> str:
    return ";"


def _call(w: Writer, ins: Instruction) -> str:
    operands = list(ins.operands)
    result = operands.pop(0).strip("() ") if operands[0].startswith("(") else None
    name = operands[0]
    arguments = split(operands[1].strip("()")) if len(operands) > 1 else []
    if all(function.name != name for function in w.module.functions):
        raise UnsupportedError(f"call of {name}")
    passed = ", ".join(w.buffers[argument] for argument in arguments) or "0"
    given = w.buffers[result] if result else "0"
    return f"{{ char *arguments_[] = {{{passed}}}; f_{name}(t, arguments_, {given}); }}"


def _move(w: Writer, ins: Instruction) -> str:
    type_ = ins.parts[-1]
    to, source = ins.operands
    if type_ == "pred":
        return w.assign(to, "pred", w.value(source, "pred"))
    bits = BITS[type_]
    if to.startswith("{"):
        parts = split(to.strip("{}"))
        each = bits // len(parts)
        pieces = (w.assign(part, f"b{each}", f"v_ >> {i * each}") for i, part in enumerate(parts))
        return f"{{ uint{bits}_t v_ = {w.value(source, f'b{bits}')}; {' '.join(pieces)} }}"
    if source.startswith("{"):
        parts = split(source.strip("{}"))
        each = bits // len(parts)
        whole = " | ".join(
            f"(uint{bits}_t){w.value(part, f'b{each}')} << {i * each}"
            for i, part in enumerate(parts)
        )
        return w.assign(to, f"b{bits}", whole)
    return w.assign(to, f"b{bits}", w.value(source, f"b{bits}"))


_FLOW = {
    "bra": _branch,
    "brx": _indexed_branch,
    "ret": _return,
    "exit": _return,
    "trap": _trap,
    "nanosleep": _nothing,
    "prefetch": _nothing,
    "call": _call,
    "mov": _move,
}
