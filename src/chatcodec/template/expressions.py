"""The expressions of a template as Python source; `compiler` writes the statements around them."""

from __future__ import annotations

from io import StringIO
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from .analysis import LOOP_COUNTERS, KnownMacro, is_constant, is_text, plain_access, terms
from .budget import LONG

HASHED_BITS = 60
MOST_LONG_NUMBERS = 100
"""Longer numbers may share one hash, and many of them make Python's compiler and dicts quadratic."""
OPERATORS = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "in": "in", "notin": "not in"}
DICT_READS = ("get", "items", "keys", "values")
NUMBERS = LOOP_COUNTERS - {"previtem", "nextitem", "first", "last"}
INLINE_TESTS = {
    "string": "isinstance({}, str)",
    "none": "({} is None)",
    "defined": "(not isinstance({}, Undefined))",
    "undefined": "isinstance({}, Undefined)",
}
DIRECT_METHODS = ("strip", "lstrip", "rstrip", "split", "startswith", "endswith", "replace", "join", "lower", "upper")


def _operation(name: str) -> Any:
    def visit(self: ExpressionWriter, node: nodes.BinExpr, frame: Frame) -> None:
        self.write(f"{name}(_m, ")
        self.visit(node.left, frame)
        self.write(", ")
        self.visit(node.right, frame)
        self.write(")")

    return visit


def _logic(word: str) -> Any:
    def visit(self: ExpressionWriter, node: nodes.BinExpr, frame: Frame) -> None:
        kind = type(node)
        self.write("(")
        for index, term in enumerate(terms(node, kind)):
            self.write(f" {word} " if index else "")
            self.visit(term, frame)
        self.write(")")

    return visit


class ExpressionWriter(CodeGenerator):
    """Writes expressions, and keeps what it needs to know of the template to write them well."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.optimizer = None  # folding constants would run a template's arithmetic before anything bounds it
        self.variables: set[str] = set()
        """The names that the template reads from what it is given."""
        self._loops: dict[str, Loop] = {}
        self._namespaces: frozenset[str] = frozenset()
        self._macros: dict[str, KnownMacro] = {}
        self._given_names: frozenset[str] = frozenset()
        self._constant_names: frozenset[str] = frozenset()
        self._fields: dict[tuple[str, str], str] = {}
        self._long_numbers = 0

    def _text(self, node: nodes.Expr, frame: Frame) -> str:
        source = self._source(node, frame)
        if is_text(node):
            return source
        name = self.temporary_identifier()
        return f"({name} if type({name} := {source}) in TEXT else text(_m, {name}))"

    def _source(self, node: nodes.Node, frame: Frame) -> str:
        """The source of an expression, instead of writing it."""
        stream, first, lines = self.stream, self._first_write, self._new_lines
        self.stream, self._first_write, self._new_lines = StringIO(), True, 0
        try:
            self.visit(node, frame)
            return self.stream.getvalue()
        finally:
            self.stream, self._first_write, self._new_lines = stream, first, lines

    def condition(self, node: nodes.Node, frame: Frame) -> None:
        """Write `node` where only its truth counts: a missing attribute need not become an Undefined object."""
        if isinstance(node, nodes.And | nodes.Or):
            self.write("(")
            self.condition(node.left, frame)
            self.write(" and " if isinstance(node, nodes.And) else " or ")
            self.condition(node.right, frame)
            self.write(")")
        elif isinstance(node, nodes.Not):
            self.write("(not ")
            self.condition(node.node, frame)
            self.write(")")
        elif (access := plain_access(node)) and not self._is_namespace(node) and not self._counter(node, frame):
            node, key = access
            field = self._field(node, key, frame)
            if field is not None:
                self.write(f"({field} if {field} is not missing else type(")
                self.visit(node.node, frame)
                self.write(f") is not dict and {_lookup(node)}(")
                self.visit(node.node, frame)
                self.write(f", {key!r}))")
                return
            name = self.temporary_identifier()
            self.write(f"({name}.get({key!r}) if type({name} := ")
            self.visit(node.node, frame)
            self.write(f") is dict else {_lookup(node)}({name}, {key!r}))")
        else:
            self.visit(node, frame)

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        value = node.value
        if isinstance(value, int) and value.bit_length() > HASHED_BITS:
            self._long_numbers += 1
            if self._long_numbers > MOST_LONG_NUMBERS:
                self.fail(f"more than {MOST_LONG_NUMBERS} numbers of more than {HASHED_BITS} bits", node.lineno)
        self.write(f"float({str(value)!r})" if isinstance(value, float) else repr(value))

    def visit_Name(self, node: nodes.Name, frame: Frame) -> None:
        if node.ctx == "store" and frame.toplevel and self._assign_stack:
            self._assign_stack[-1].add(node.name)
        reference = frame.symbols.ref(node.name)
        if node.ctx == "load":
            load = frame.symbols.find_load(reference)
            if load is None or load[0] != "param" or self.parameter_is_undeclared(reference):
                self.write(f"(Undefined(name={node.name!r}) if {reference} is missing else {reference})")
                return
        self.write(reference)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._container(node, lambda: super(ExpressionWriter, self).visit_List(node, frame))

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            self.write("(")
            for item in node.items:
                self.visit(item, frame)
                self.write(", ")
            self.write(")")
        else:
            self._container(node, lambda: super(ExpressionWriter, self).visit_Tuple(node, frame))

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._container(node, lambda: super(ExpressionWriter, self).visit_Dict(node, frame))

    def _container(self, node: nodes.Expr, write: Any) -> None:
        constant = is_constant(node)
        self.write("" if constant else "made(_m, ")
        write()
        self.write("" if constant else ")")

    visit_Mul = _operation("multiply")
    visit_Mod = _operation("modulo")
    visit_Pow = _operation("power")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        if self._is_number(node, frame):
            super().visit_Add(node, frame)
            return
        self.write("add(_m")
        for term in terms(node):
            self.write(", ")
            self.visit(term, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("join(_m, (")
        for part in node.nodes:
            self.write(self._text(part, frame) + ", ")
        self.write("))")

    visit_And = _logic("and")
    visit_Or = _logic("or")

    def visit_Not(self, node: nodes.UnaryExpr, frame: Frame) -> None:
        self.condition(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        left = self._source(node.expr, frame)
        comparisons = []
        cheap = is_constant(node.expr)
        number = self._is_number(node.expr, frame)
        for position, operand in enumerate(node.ops):
            right = self._source(operand.expr, frame)
            last = position == len(node.ops) - 1
            name = "" if last else self.temporary_identifier()
            right = right if last else f"({name} := {right})"
            operator = OPERATORS[operand.op]
            constant = is_constant(operand.expr)
            counted = operand.op not in ("in", "notin") and (number or self._is_number(operand.expr, frame))
            if constant or counted or (cheap and operand.op in ("eq", "ne")):
                comparisons.append(f"({left} {operator} {right})")
            elif operand.op in ("in", "notin"):
                comparisons.append(f"({'not ' if operand.op == 'notin' else ''}contains(_m, {left}, {right}))")
            elif operand.op in ("eq", "ne"):
                comparisons.append(f"({'not ' if operand.op == 'ne' else ''}{self._equal(left, right)})")
            else:
                comparisons.append(f"compare(_m, {operand.op!r}, {left}, {right})")
            left, cheap, number = name, constant, False
        self.write(comparisons[0] if len(comparisons) == 1 else f"({' and '.join(comparisons)})")

    def _equal(self, left: str, right: str) -> str:
        """Short strings, the usual thing, are compared in place."""
        if len(right) > 120:
            return f"equal(_m, {left}, {right})"
        name = self.temporary_identifier()
        short = f"type({name} := {left}) is str and len({name}) < {LONG}"
        return f"({name} == {right} if {short} else equal(_m, {name}, {right}))"

    def _counter(self, node: nodes.Node, frame: Frame) -> str | None:
        """The source of `loop.index` and its like, where the loop counts by itself."""
        if not (isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop"):
            return None
        reference = frame.symbols.find_ref("loop")
        loop = self._loops.get(reference or "")
        if loop is None or loop.generic:
            return None
        return loop.attribute(node.attr)

    def _is_namespace(self, node: nodes.Node) -> bool:
        return (
            isinstance(node, nodes.Getattr | nodes.Getitem)
            and isinstance(node.node, nodes.Name)
            and node.node.name in self._namespaces
        )

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        counter = self._counter(node, frame)
        if counter is not None:
            self.write(counter)
        else:
            self._lookup(node, frame)

    def _lookup(self, node: nodes.Getattr | nodes.Getitem, frame: Frame) -> None:
        access = plain_access(node)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == 0:
            self._end(node.node, 0, frame)
            return
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Neg) and _is_one(node.arg.node):
            self._end(node.node, -1, frame)
            return
        if access is None:
            self.write(f"{_lookup(node)}(")
            self.visit(node.node, frame)
            self.write(", ")
            if isinstance(node, nodes.Getattr):
                self.write(repr(node.attr))
            else:
                self.visit(node.arg, frame)
            self.write(")")
            return
        key = access[1]
        field = self._field(node, key, frame)
        if field is not None:
            self.write(f"({field} if {field} is not missing else {_lookup(node)}(")
            self.visit(node.node, frame)
            self.write(f", {key!r}))")
            return
        name = self.temporary_identifier()
        kind, values = ("Namespace", f"{name}._attrs") if self._is_namespace(node) else ("dict", name)
        self.write(f"({values}[{key!r}] if type({name} := ")
        self.visit(node.node, frame)
        self.write(f") is {kind} and {key!r} in {values} else {_lookup(node)}({name}, {key!r}))")

    def _end(self, node: nodes.Expr, index: int, frame: Frame) -> None:
        """The first or last item of what is nearly always a list with items."""
        name = self.temporary_identifier()
        self.write(f"({name}[{index}] if type({name} := {self._source(node, frame)}) is list and {name}")
        self.write(f" else item({name}, {index}))")

    def _field(self, node: nodes.Getattr | nodes.Getitem, key: str, frame: Frame) -> str | None:
        if not isinstance(node.node, nodes.Name):
            return None
        return self._fields.get((frame.symbols.find_ref(node.node.name) or "", key))

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            self._lookup(node, frame)
            return
        self.write("cut(_m, ")
        self.visit(node.node, frame)
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            self.write(", ")
            if bound is None:
                self.write("None")
            else:
                self.visit(bound, frame)
        self.write(")")

    def visit_Filter(self, node: nodes.Filter, frame: Frame) -> None:
        self._known("filter", node, frame)
        if node.name in ("length", "count") and node.node is not None and not node.args:
            self.write("len(")
            self.visit(node.node, frame)
            self.write(")")
            return
        if node.name in ("default", "d") and node.node is not None and self._default(node, frame):
            return
        self.write(f"f_{node.name}(_m, " if node.name in self.environment.filters else f"no_filter({node.name!r}, ")
        if node.node is None:
            self.write(f"join(_m, {frame.buffer})")
        else:
            self.visit(node.node, frame)
        if not _asks_default_layout(node):
            self.signature(node, frame)
        self.write(")")

    def _default(self, node: nodes.Filter, frame: Frame) -> bool:
        """`message.key | default(value)` on a plain dict asks the dict, and makes no Undefined object."""
        if node.kwargs or node.dyn_args or node.dyn_kwargs or not node.args or len(node.args) > 2:
            return False
        falsy_too = len(node.args) == 2 and isinstance(node.args[1], nodes.Const) and node.args[1].value is True
        if len(node.args) == 2 and not falsy_too:
            return False
        access = plain_access(node.node) if node.node is not None else None
        if access is None or self._is_namespace(access[0]) or self._counter(access[0], frame):
            return False
        asked, key = access
        holder, value = self.temporary_identifier(), self.temporary_identifier()
        found = (
            f"({holder}.get({key!r}, UNDEFINED) if type({holder} := {self._source(asked.node, frame)}) is dict"
            f" else {_lookup(asked)}({holder}, {key!r}))"
        )
        otherwise = self._source(node.args[0], frame)
        if falsy_too:
            self.write(f"({found} or {otherwise})")
        else:
            self.write(f"({value} if not isinstance({value} := {found}, Undefined) else {otherwise})")
        return True

    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        self._known("test", node, frame)
        inline = INLINE_TESTS.get(node.name)
        given = node.args or node.kwargs or node.dyn_args or node.dyn_kwargs
        if inline is not None and not given and not _is_literal(node.node):
            self.write(self._defined(node, frame) or inline.format(self._source(node.node, frame)))
            return
        self.write(f"x_{node.name}(" if node.name in self.environment.tests else f"no_test({node.name!r}, ")
        self.visit(node.node, frame)
        self.signature(node, frame)
        self.write(")")

    def _defined(self, node: nodes.Test, frame: Frame) -> str | None:
        """`message.key is defined` on a plain dict asks the dict."""
        access = plain_access(node.node)
        if node.name not in ("defined", "undefined") or access is None:
            return None
        asked, key = access
        if self._is_namespace(asked) or self._counter(asked, frame):
            return None
        name = self.temporary_identifier()
        value = (
            f"({key!r} in {name} and not isinstance({name}[{key!r}], Undefined)"
            f" if type({name} := {self._source(asked.node, frame)}) is dict"
            f" else not isinstance({_lookup(asked)}({name}, {key!r}), Undefined))"
        )
        return value if node.name == "defined" else f"(not {value})"

    def _known(self, kind: str, node: nodes.Filter | nodes.Test, frame: Frame) -> None:
        known = self.environment.filters if kind == "filter" else self.environment.tests
        if node.name not in known and not frame.soft_frame:
            self.fail(f"No {kind} named {node.name!r}.", node.lineno)

    def visit_CondExpr(self, node: nodes.CondExpr, frame: Frame) -> None:
        frame = frame.soft()
        self.write("(")
        self.visit(node.expr1, frame)
        self.write(" if ")
        self.condition(node.test, frame)
        self.write(" else ")
        if node.expr2 is not None:
            self.visit(node.expr2, frame)
        else:
            hint = (
                f"the inline if-expression on {self.position(node)} evaluated to false and no else section was defined."
            )
            self.write(f"Undefined({hint!r})")
        self.write(")")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        callee = node.node
        if isinstance(callee, nodes.Name) and not forward_caller and self._call_known_macro(callee, node, frame):
            return
        if isinstance(callee, nodes.Getattr) and not self._counter(callee, frame) and not self._is_namespace(callee):
            direct = callee.attr in DIRECT_METHODS or callee.attr in DICT_READS
            self.write(f"s_{callee.attr}(_m, " if direct else f"call_method(_m, {callee.attr!r}, ")
            self.visit(callee.node, frame)
        else:
            self.write("call(_m, ")
            self.visit(callee, frame)
        self.signature(node, frame, {"caller": "caller"} if forward_caller else None)
        self.write(")")

    def _call_known_macro(self, callee: nodes.Name, node: nodes.Call, frame: Frame) -> bool:
        """Call a macro's function directly where the call fits it: `Macro` would only bind the arguments."""
        macro = self._macros.get(callee.name)
        if macro is None or not macro.function or node.kwargs or node.dyn_args or node.dyn_kwargs:
            return False
        if len(node.args) != len(macro.node.args):
            return False
        arguments = [self._source(argument, frame) for argument in node.args]
        reference = frame.symbols.ref(callee.name)
        function = f"({macro.function} if {reference} is not missing else Undefined(name={callee.name!r}))"
        if macro.keeps_strings:
            name = self.temporary_identifier()
            self.write(
                f"({name} if type({name} := {arguments[0]}) in TEXT and {reference} is not missing"
                f" else {function}({name}))"
            )
        else:
            self.write(f"{function}({', '.join(arguments)})")
        return True

    def _is_number(self, node: nodes.Expr, frame: Frame) -> bool:
        """Whether the value of `node` can only be a small number, which costs nothing to add and compare."""
        if isinstance(node, nodes.Const):
            return isinstance(node.value, int | float)
        if isinstance(node, nodes.Add | nodes.Sub):
            return self._is_number(node.left, frame) and self._is_number(node.right, frame)
        if isinstance(node, nodes.Filter):
            return node.name in ("length", "count")
        return isinstance(node, nodes.Getattr) and node.attr in NUMBERS and bool(self._counter(node, frame))


class Loop:
    """How one `for` is written: plainly, counting by itself, or with jinja2's own loop object."""

    def __init__(self, extended: bool, cost: int) -> None:
        self.extended = extended
        self.cost = cost
        self.generic = False
        self.asked: set[str] = set()
        self.index = self.sequence = self.end = self.empty = ""

    @property
    def counted(self) -> bool:
        return self.extended and not self.generic

    def attribute(self, name: str) -> str:
        index, end, items = self.index, self.end, self.sequence
        return {
            "index0": index,
            "index": f"({index} + 1)",
            "first": f"({index} == 0)",
            "last": f"({index} == {end})",
            "length": f"({end} + 1)",
            "revindex": f"({end} - {index} + 1)",
            "revindex0": f"({end} - {index})",
            "previtem": f"({items}[{index} - 1] if {index} else Undefined('there is no previous item'))",
            "nextitem": f"({items}[{index} + 1] if {index} < {end} else Undefined('there is no next item'))",
            "depth": "1",
            "depth0": "0",
        }[name]


def _asks_default_layout(node: nodes.Filter) -> bool:
    """`tojson(ensure_ascii=False)` asks for what `tojson` does anyway."""
    if node.name != "tojson" or node.args or node.dyn_args or node.dyn_kwargs or len(node.kwargs) != 1:
        return False
    value = node.kwargs[0].value
    return node.kwargs[0].key == "ensure_ascii" and isinstance(value, nodes.Const) and value.value is False


def _is_one(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and node.value == 1


def _lookup(node: nodes.Expr) -> str:
    return "attribute" if isinstance(node, nodes.Getattr) else "item"


def _is_literal(node: nodes.Node) -> bool:
    """Whether Python would warn of `is` behind it: a literal, signed or not."""
    while isinstance(node, nodes.Neg | nodes.Pos):
        node = node.node
    return isinstance(node, nodes.Literal)
