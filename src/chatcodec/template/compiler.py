"""jinja2's AST in, the source of a Python module out.

The code generator of jinja2 is told by `Environment.code_generator_class`; ours keeps its scoping (frames, symbols)
to the letter and writes everything else anew: text goes to lists instead of generators, attributes of plain dicts
are read inline, loops that only ask for their index count it themselves, and whatever may be expensive is a call
into the runtime, which pays for it. The module's names are bound twice, to `runtime` (plain strings) and to
`tracing` (traced text); the code is the same.

Of the module: `root(_m, ctx)` gives the text; `_m` is the render's `Meter`, `ctx` the variables by name. What starts
with `l_` is a variable of the template, with `t_` a temporary, with `f_` a filter and with `x_` a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef, find_undeclared
from jinja2.idtracking import VAR_LOAD_ALIAS, VAR_LOAD_RESOLVE, VAR_LOAD_UNDEFINED
from jinja2.nodes import EvalContext

DICT_ATTRIBUTES = frozenset(dir(dict))
LOOP_COUNTERS = frozenset(
    (
        "index",
        "index0",
        "first",
        "last",
        "length",
        "revindex",
        "revindex0",
        "previtem",
        "nextitem",
        "depth",
        "depth0",
    )
)
LOOP_NEEDS_SEQUENCE = frozenset(("last", "length", "revindex", "revindex0", "previtem", "nextitem"))
TEXT_FILTERS = frozenset(("tojson", "trim", "upper", "lower", "title", "capitalize", "replace", "string", "indent"))
OPERATORS = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}
INLINE_TESTS = {
    "string": "isinstance({}, str)",
    "none": "({} is None)",
    "defined": "(not isinstance({}, Undefined))",
    "undefined": "isinstance({}, Undefined)",
}
DIRECT_METHODS = (
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "startswith",
    "endswith",
    "replace",
    "join",
    "lower",
    "upper",
)
MAX_NESTING = 60
"""Statements inside statements; Python itself gives up at 100 levels of indentation."""


class Compiler(CodeGenerator):
    """Writes one template's module. Raises jinja2's `TemplateAssertionError` for what cannot be compiled."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.optimizer = None  # folding constants would run a template's arithmetic before anything bounds it
        self.variables: set[str] = set()
        """The names that the template reads from what it is given."""
        self._loops: dict[str, _Loop] = {}
        self._namespaces: frozenset[str] = frozenset()
        self._macros: dict[str, _KnownMacro] = {}
        self._constant_names: frozenset[str] = frozenset()
        self._fields: dict[tuple[str, str], str] = {}

    # -- the frame of the module

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        for block in node.find_all(nodes.Block):
            if block.name in self.blocks:
                self.fail(f"block {block.name!r} defined twice", block.lineno)
            self.blocks[block.name] = block
        self._namespaces = frozenset(_namespace_names(node))
        self._macros = _known_macros(node)
        self._constant_names = frozenset(_names_in_loops(node) - _stored_at_top(node.body))
        root = Frame(EvalContext(self.environment, self.name))
        root.toplevel = root.rootlevel = True
        self._function("root", node, root)
        for name, block in self.blocks.items():
            block_frame = Frame(root.eval_ctx)
            block_frame.block_frame = True
            block_frame.block = name
            self._function(f"block_{name}", block, block_frame)
        blocks = ", ".join(f"{name!r}: block_{name}" for name in self.blocks)
        self.writeline(f"blocks = {{{blocks}}}", extra=1)

    def _function(self, name: str, node: nodes.Template | nodes.Block, frame: Frame) -> None:
        self.writeline(f"def {name}(_m, ctx):", node, 1)
        self.indent()
        self.writeline("resolve = ctx.get")
        undeclared = find_undeclared(node.body, ("self", "super"))
        if "self" in undeclared:
            self.writeline(f"{frame.symbols.declare_parameter('self')} = SelfReference(_m, ctx, blocks)")
        if "super" in undeclared and isinstance(node, nodes.Block):
            reference = frame.symbols.declare_parameter("super")
            self.writeline(f"{reference} = Undefined('there is no parent block called {node.name}.', name='super')")
        frame.symbols.analyze_node(node)
        self.buffer(frame)
        for constant in sorted(self._constant_names):
            self.writeline(f"g_{constant} = resolve({constant!r}, missing)")
        self.enter_frame(frame)
        self.blockvisit(node.body, frame)
        self.return_buffer_contents(frame)
        self.outdent()

    def indent(self) -> None:
        super().indent()
        if self._indentation > MAX_NESTING:
            self.fail(f"more than {MAX_NESTING} statements inside one another", self._last_line or 1)

    def enter_frame(self, frame: Frame) -> None:
        undefined = []
        for target, (action, param) in frame.symbols.loads.items():
            if action == VAR_LOAD_RESOLVE:
                assert param is not None
                self.variables.add(param)
                value = f"g_{param}" if param in self._constant_names else f"resolve({param!r}, missing)"
                self.writeline(f"{target} = {value}")
            elif action == VAR_LOAD_ALIAS:
                self.writeline(f"{target} = {param}")
            elif action == VAR_LOAD_UNDEFINED:
                undefined.append(target)
        if undefined:
            self.writeline(f"{' = '.join(undefined)} = missing")

    def pop_assign_tracking(self, frame: Frame) -> None:
        names = self._assign_stack.pop()
        if frame.toplevel:
            for name in sorted(names):
                self.writeline(f"ctx[{name!r}] = {frame.symbols.ref(name)}")

    def return_buffer_contents(self, frame: Frame, force_unescaped: bool = False) -> None:
        self.writeline(f"return join(_m, {frame.buffer})")

    # -- statements

    def visit_Block(self, node: nodes.Block, frame: Frame) -> None:
        context = f"dict(ctx, **known({self.dump_local_context(frame)}))" if node.scoped else "ctx"
        self.writeline(f"{frame.buffer}.append(block_{node.name}(_m, {context}))", node)

    def _no_loader(self, node: nodes.Node, frame: Frame) -> None:
        self.writeline("raise TemplateRuntimeError('no loader for this environment specified')", node)

    visit_Extends = visit_Include = visit_Import = visit_FromImport = _no_loader

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier, frame: Frame) -> None:
        self.fail("autoescape is not available in a chat template", node.lineno)

    def visit_If(self, node: nodes.If, frame: Frame) -> None:
        frame = frame.soft()
        branches = [node, *node.elif_]
        for keyword, branch in zip(["if", *["elif"] * len(node.elif_)], branches, strict=True):
            self.writeline(f"{keyword} ", branch)
            self.condition(branch.test, frame)
            self.write(":")
            self._body(branch.body, frame)
        if node.else_:
            self.writeline("else:")
            self._body(node.else_, frame)

    def _body(self, body: Iterable[nodes.Node], frame: Frame) -> None:
        self.indent()
        self.blockvisit(body, frame)
        self.outdent()

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        for name in node.find_all(nodes.Name):
            if name.ctx == "store" and name.name == "loop":
                self.fail("Can't assign to special loop variable in for-loop target", name.lineno)
        loop_frame = frame.inner()
        loop_frame.loop_frame = True
        else_frame = frame.inner()
        loop = self._plan_loop(node)
        if loop.extended:
            loop_ref = loop_frame.symbols.declare_parameter("loop")
            self._loops[loop_ref] = loop
        loop_frame.symbols.analyze_node(node, for_branch="body")
        if node.else_:
            else_frame.symbols.analyze_node(node, for_branch="else")
        filtered = self._loop_filter(node, frame, loop_frame) if node.test else ""
        if node.recursive:
            self.writeline("def loop(reciter, loop_render_func, depth=0):", node)
            self.indent()
            self.buffer(loop_frame)
            else_frame.buffer = loop_frame.buffer
        if loop.generic:
            self.writeline(f"{loop_ref} = missing")
        if node.else_:
            loop.empty = self.temporary_identifier()
            self.writeline(f"{loop.empty} = True")

        self._loop_head(node, frame, loop_frame, loop, filtered)
        self.indent()
        self.enter_frame(loop_frame)
        self._read_fields(node, loop_frame)
        self.blockvisit(node.body, loop_frame)
        if node.else_:
            self.writeline(f"{loop.empty} = False")
        self.outdent()
        if not node.recursive or node.else_:
            self.leave_frame(loop_frame)
        if node.else_:
            self.writeline(f"if {loop.empty}:")
            self.indent()
            self.enter_frame(else_frame)
            self.blockvisit(node.else_, else_frame)
            self.leave_frame(else_frame)
            self.outdent()
        if node.recursive:
            self.return_buffer_contents(loop_frame)
            self.outdent()
            self.writeline(f"{frame.buffer}.append(loop(", node)
            self.visit(node.iter, frame)
            self.write(", loop))")
        if self._assign_stack:
            self._assign_stack[-1].difference_update(loop_frame.symbols.stores)

    def _read_fields(self, node: nodes.For, frame: Frame) -> None:
        """Read what the body asks of the loop's item again and again (`message.role`) once."""
        if not isinstance(node.target, nodes.Name):
            return
        target = frame.symbols.ref(node.target.name)
        for known in [known for known in self._fields if known[0] == target]:
            del self._fields[known]
        for key in _repeated_fields(node.target.name, node.body):
            name = self.temporary_identifier()
            self._fields[target, key] = name
            self.writeline(f"{name} = {target}.get({key!r}, missing) if type({target}) is dict else missing")

    def leave_frame(self, frame: Frame, with_python_scope: bool = False) -> None:
        counted = {ref for ref, loop in self._loops.items() if not loop.generic}
        targets = [target for target in frame.symbols.loads if target not in counted]
        if targets and not with_python_scope:
            self.writeline(f"{' = '.join(targets)} = missing")

    def _plan_loop(self, node: nodes.For) -> _Loop:
        used = "loop" in find_undeclared(node.iter_child_nodes(only=("body",)), ("loop",))
        scoped = any(block.scoped for block in node.find_all(nodes.Block))
        loop = _Loop(extended=used or node.recursive or scoped, cost=_cost(node.body))
        asked = None if node.recursive or scoped else _loop_attributes(node.body)
        loop.generic = loop.extended and asked is None
        loop.asked = asked or set()
        return loop

    def _loop_filter(self, node: nodes.For, frame: Frame, loop_frame: Frame) -> str:
        assert node.test is not None
        name = self.temporary_identifier()
        test_frame = frame.inner()
        test_frame.symbols.analyze_node(node, for_branch="test")
        self.writeline(f"def {name}(fiter):", node.test)
        self.indent()
        self.enter_frame(test_frame)
        self.writeline("for ")
        self.visit(node.target, loop_frame)
        self.write(f" in paced(_m, fiter, {_cost([node.test])}):")
        self.indent()
        self.writeline("if ", node.test)
        self.condition(node.test, test_frame)
        self.write(":")
        self.indent()
        self.writeline("yield ")
        self.visit(node.target, loop_frame)
        self.outdent(3)
        return name

    def _loop_head(self, node: nodes.For, frame: Frame, loop_frame: Frame, loop: _Loop, filtered: str) -> None:
        paced = "paced_each" if next(_own_breaks(node.body), None) else "paced"
        if loop.counted:
            loop.index = self.temporary_identifier()
            if loop.asked & LOOP_NEEDS_SEQUENCE:
                loop.sequence = self.temporary_identifier()
                loop.end = self.temporary_identifier()
                self.writeline(f"{loop.sequence} = sequence(_m, ")
                self._iterable(node, frame, filtered)
                self.write(")")
                self.writeline(f"{loop.end} = len({loop.sequence}) - 1")
        self.writeline("for ", node)
        if loop.counted:
            self.write(f"{loop.index}, ")
        self.visit(node.target, loop_frame)
        if loop.generic:
            self.write(f", {loop_frame.symbols.ref('loop')}")
        self.write(" in ")
        self.write("enumerate(" if loop.counted else "LoopContext(" if loop.generic else "")
        self.write(f"{paced}(_m, ")
        if loop.sequence:
            self.write(loop.sequence)
        else:
            self._iterable(node, frame, filtered)
        self.write(f", {loop.cost})")
        if node.recursive:
            self.write(", Undefined, loop_render_func, depth)")
        elif loop.generic:
            self.write(", Undefined)")
        elif loop.counted:
            self.write(")")
        self.write(":")

    def _iterable(self, node: nodes.For, frame: Frame, filtered: str) -> None:
        self.write(f"{filtered}(" if filtered else "")
        if node.recursive:
            self.write("reciter")
        else:
            self.visit(node.iter, frame)
        self.write(")" if filtered else "")

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        name, reference = self._macro_function(node, frame)
        if frame.toplevel:
            self.writeline(f"ctx[{node.name!r}] = ")
            self.write(f"{frame.symbols.ref(node.name)} = ")
        else:
            self.writeline(f"{frame.symbols.ref(node.name)} = ")
        self._macro_object(name, reference)

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:
        name, reference = self._macro_function(node, frame)
        if _is_generation(node):
            self.writeline(f"{frame.buffer}.append({name}())", node)
            return
        self.writeline("caller = ")
        self._macro_object(name, reference)
        self.writeline(f"{frame.buffer}.append(text(_m, ", node)
        self.visit_Call(node.call, frame, forward_caller=True)
        self.write("))")

    def _macro_function(self, node: nodes.Macro | nodes.CallBlock, frame: Frame) -> tuple[str, MacroRef]:
        frame = frame.inner()
        frame.symbols.analyze_node(node)
        reference = MacroRef(node)
        parameters = [frame.symbols.ref(argument.name) for argument in node.args]
        given = [argument.name for argument in node.args]
        specials = () if _is_generation(node) else ("caller", "kwargs", "varargs")
        undeclared = find_undeclared(node.body, specials)
        if "caller" in undeclared:
            reference.accesses_caller = True
            if "caller" not in given:
                parameters.append(frame.symbols.declare_parameter("caller"))
            elif given.index("caller") < len(given) - len(node.defaults):
                self.fail("the special 'caller' argument must be omitted or be given a default", node.lineno)
        if "kwargs" in undeclared and "kwargs" not in given:
            reference.accesses_kwargs = True
            parameters.append(frame.symbols.declare_parameter("kwargs"))
        if "varargs" in undeclared and "varargs" not in given:
            reference.accesses_varargs = True
            parameters.append(frame.symbols.declare_parameter("varargs"))
        frame.symbols.analyze_node(node)
        name = self.temporary_identifier()
        if frame.symbols.parent is not None and (macro := self._macros.get(getattr(node, "name", ""))):
            macro.function = name
        self.writeline(f"def {name}({', '.join(parameters)}):", node)
        self.indent()
        self.writeline(f"_m.steps -= {_cost(node.body)}; _m.depth -= 1")
        self.writeline("if _m.steps < 0 or _m.depth < 0: _m.overrun()")
        self.buffer(frame)
        self.enter_frame(frame)
        self._defaults(node, frame)
        self.blockvisit(node.body, frame)
        self.writeline("_m.depth += 1")
        self.return_buffer_contents(frame)
        self.outdent()
        return name, reference

    def _defaults(self, node: nodes.Macro | nodes.CallBlock, frame: Frame) -> None:
        self.push_parameter_definitions(frame)
        for index, argument in enumerate(node.args):
            parameter = frame.symbols.ref(argument.name)
            self.writeline(f"if {parameter} is missing:")
            self.indent()
            position = index - len(node.args) + len(node.defaults)
            self.writeline(f"{parameter} = ")
            if position < 0:
                hint = f"parameter {argument.name!r} was not provided"
                self.write(f"Undefined({hint!r}, name={argument.name!r})")
            else:
                self.visit(node.defaults[position], frame)
            self.mark_parameter_stored(parameter)
            self.outdent()
        self.pop_parameter_definitions()

    def _macro_object(self, name: str, reference: MacroRef) -> None:
        arguments = tuple(argument.name for argument in reference.node.args)
        self.write(
            f"Macro({name}, {getattr(reference.node, 'name', None)!r}, {arguments!r},"
            f" {reference.accesses_kwargs}, {reference.accesses_varargs}, {reference.accesses_caller})"
        )

    def visit_FilterBlock(self, node: nodes.FilterBlock, frame: Frame) -> None:
        filter_frame = frame.inner()
        filter_frame.symbols.analyze_node(node)
        self.enter_frame(filter_frame)
        self.buffer(filter_frame)
        self.blockvisit(node.body, filter_frame)
        self.writeline(f"{frame.buffer}.append(text(_m, ", node)
        self.visit(node.filter, filter_frame)
        self.write("))")
        self.leave_frame(filter_frame)

    def visit_AssignBlock(self, node: nodes.AssignBlock, frame: Frame) -> None:
        self.push_assign_tracking()
        block_frame = frame.inner()
        block_frame.symbols.analyze_node(node)
        self.enter_frame(block_frame)
        self.buffer(block_frame)
        self.blockvisit(node.body, block_frame)
        self.newline(node)
        self.visit(node.target, frame)
        self.write(" = ")
        if node.filter is not None:
            self.visit_Filter(node.filter, block_frame)
        else:
            self.write(f"join(_m, {block_frame.buffer})")
        self.pop_assign_tracking(frame)
        self.leave_frame(block_frame)

    def visit_Assign(self, node: nodes.Assign, frame: Frame) -> None:
        self.push_assign_tracking()
        for name in dict.fromkeys(target.name for target in node.find_all(nodes.NSRef)):
            self.writeline(f"if type({frame.symbols.ref(name)}) is not Namespace:")
            self.indent()
            self.writeline("raise TemplateRuntimeError('cannot assign attribute on non-namespace object')")
            self.outdent()
        self.newline(node)
        self.visit(node.target, frame)
        self.write(" = ")
        self.visit(node.node, frame)
        self.pop_assign_tracking(frame)

    def visit_NSRef(self, node: nodes.NSRef, frame: Frame) -> None:
        attributes = "" if node.attr.startswith("_") else "._attrs"
        self.write(f"{frame.symbols.ref(node.name)}{attributes}[{node.attr!r}]")

    # -- output

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:
        pieces: list[str | _Literal] = []
        for child in node.nodes:
            self._emit(child, frame, pieces)
        self._flush(frame, pieces)

    def _flush(self, frame: Frame, pieces: list[str | _Literal]) -> None:
        sources = [repr(piece.text) if isinstance(piece, _Literal) else piece for piece in pieces]
        if len(sources) == 1:
            self.writeline(f"{frame.buffer}.append({sources[0]})")
        elif sources:
            self.writeline(f"{frame.buffer} += ({', '.join(sources)})")
        pieces.clear()

    def _emit(self, node: nodes.Expr, frame: Frame, pieces: list[str | _Literal]) -> None:
        """Add the source of the texts that `node` prints to `pieces`, or write statements that do."""
        if isinstance(node, nodes.TemplateData):
            _add_literal(pieces, node.data)
        elif isinstance(node, nodes.Const):
            _add_literal(pieces, str(node.value))
        elif isinstance(node, nodes.Concat):
            for part in node.nodes:
                self._emit(part, frame, pieces)
        elif isinstance(node, nodes.Filter) and node.name == "safe" and node.node is not None and not node.args:
            self._emit(node.node, frame, pieces)
        elif isinstance(node, nodes.Add) and any(map(_is_text, _terms(node))):
            self._emit_sum(_terms(node), frame, pieces)
        else:
            pieces.append(self._text(node, frame))

    def _emit_sum(self, terms: list[nodes.Expr], frame: Frame, pieces: list[str | _Literal]) -> None:
        """Strings added only to be printed are printed one by one, unless one of them turns out to be no string."""
        self._flush(frame, pieces)
        sources = []
        guards = []
        for term in terms:
            if isinstance(term, nodes.Const):
                sources.append(repr(term.value))
                continue
            name = self.temporary_identifier()
            self.newline(term)
            self.write(f"{name} = {self._source(term, frame)}")
            sources.append(name)
            guards.append(f"type({name}) in TEXT")
        if guards:
            self.writeline(f"if {' and '.join(guards)}:")
            self.indent()
            self._flush(frame, list(sources))
            self.outdent()
            self.writeline("else:")
            self.indent()
            self._flush(frame, [f"text(_m, add(_m, {', '.join(sources)}))"])
            self.outdent()
        else:
            self._flush(frame, sources)

    def _text(self, node: nodes.Expr, frame: Frame) -> str:
        source = self._source(node, frame)
        if _is_text(node):
            return source
        name = self.temporary_identifier()
        return f"({name} if type({name} := {source}) in TEXT else text(_m, {name}))"

    def _source(self, node: nodes.Node, frame: Frame) -> str:
        """The source of an expression, instead of writing it."""
        stream, first, lines = self.stream, self._first_write, self._new_lines
        self.stream, self._first_write, self._new_lines = _Lines(), True, 0
        try:
            self.visit(node, frame)
            return "".join(self.stream.parts)
        finally:
            self.stream, self._first_write, self._new_lines = stream, first, lines

    # -- expressions

    def condition(self, node: nodes.Expr, frame: Frame) -> None:
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
        elif (key := _plain_key(node)) is not None and not self._is_namespace(node) and not self._counter(node, frame):
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
        self.write(repr(node.value) if not isinstance(node.value, float) else f"float({str(node.value)!r})")

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
        self._container(node, lambda: super(Compiler, self).visit_List(node, frame))

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "store":
            self.write("(")
            for item in node.items:
                self.visit(item, frame)
                self.write(", ")
            self.write(")")
        else:
            self._container(node, lambda: super(Compiler, self).visit_Tuple(node, frame))

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._container(node, lambda: super(Compiler, self).visit_Dict(node, frame))

    def _container(self, node: nodes.Expr, write: Any) -> None:
        constant = _is_constant(node)
        self.write("" if constant else "made(_m, ")
        write()
        self.write("" if constant else ")")

    def _operation(name: str) -> Any:
        def visit(self: Compiler, node: nodes.BinExpr, frame: Frame) -> None:
            self.write(f"{name}(_m, ")
            self.visit(node.left, frame)
            self.write(", ")
            self.visit(node.right, frame)
            self.write(")")

        return visit

    visit_Mul = _operation("multiply")
    visit_Mod = _operation("modulo")
    visit_Pow = _operation("power")

    def visit_Add(self, node: nodes.Add, frame: Frame) -> None:
        if self._is_number(node, frame):
            super().visit_Add(node, frame)
            return
        self.write("add(_m")
        for term in _terms(node):
            self.write(", ")
            self.visit(term, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("join(_m, (")
        for part in node.nodes:
            self.write(self._text(part, frame) + ", ")
        self.write("))")

    def _logic(word: str) -> Any:
        def visit(self: Compiler, node: nodes.BinExpr, frame: Frame) -> None:
            kind = type(node)
            self.write("(")
            for index, term in enumerate(_terms(node, kind)):
                self.write(f" {word} " if index else "")
                self.visit(term, frame)
            self.write(")")

        return visit

    visit_And = _logic("and")
    visit_Or = _logic("or")

    def visit_Not(self, node: nodes.Not, frame: Frame) -> None:
        self.condition(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        left = self._source(node.expr, frame)
        comparisons = []
        cheap = _is_constant(node.expr)
        number = self._is_number(node.expr, frame)
        for position, operand in enumerate(node.ops):
            right = self._source(operand.expr, frame)
            last = position == len(node.ops) - 1
            name = "" if last else self.temporary_identifier()
            right = right if last else f"({name} := {right})"
            operator = OPERATORS[operand.op]
            constant = _is_constant(operand.expr)
            counted = operand.op not in ("in", "notin") and (number or self._is_number(operand.expr, frame))
            if constant or counted or (cheap and operand.op in ("eq", "ne")):
                comparisons.append(f"({left} {operator} {right})")
            elif operand.op in ("in", "notin"):
                comparisons.append(f"({'not ' if operand.op == 'notin' else ''}contains(_m, {left}, {right}))")
            elif operand.op in ("eq", "ne"):
                comparisons.append(f"({'not ' if operand.op == 'ne' else ''}equal(_m, {left}, {right}))")
            else:
                comparisons.append(f"compare(_m, {operand.op!r}, {left}, {right})")
            left, cheap, number = name, constant, False
        self.write(comparisons[0] if len(comparisons) == 1 else f"({' and '.join(comparisons)})")

    def _counter(self, node: nodes.Expr, frame: Frame) -> str | None:
        """The source of `loop.index` and its like, where the loop counts by itself."""
        if not (isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop"):
            return None
        reference = frame.symbols.find_ref("loop")
        loop = self._loops.get(reference or "")
        if loop is None or loop.generic or frame.symbols.find_load(reference)[0] != "param":
            return None
        return loop.attribute(node.attr)

    def _is_namespace(self, node: nodes.Expr) -> bool:
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
        key = _plain_key(node)
        if key is None:
            self.write(f"{_lookup(node)}(")
            self.visit(node.node, frame)
            self.write(", ")
            if isinstance(node, nodes.Getattr):
                self.write(repr(node.attr))
            else:
                self.visit(node.arg, frame)
            self.write(")")
            return
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
        self.write(f"f_{node.name}(_m, " if node.name in self.environment.filters else f"no_filter({node.name!r}, ")
        if node.node is None:
            self.write(f"join(_m, {frame.buffer})")
        else:
            self.visit(node.node, frame)
        self.signature(node, frame)
        self.write(")")

    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        self._known("test", node, frame)
        inline = INLINE_TESTS.get(node.name)
        if inline is not None and not (node.args or node.kwargs or node.dyn_args or node.dyn_kwargs):
            self.write(self._defined(node, frame) or inline.format(self._source(node.node, frame)))
            return
        self.write(f"x_{node.name}(" if node.name in self.environment.tests else f"no_test({node.name!r}, ")
        self.visit(node.node, frame)
        self.signature(node, frame)
        self.write(")")

    def _defined(self, node: nodes.Test, frame: Frame) -> str | None:
        """`message.key is defined` on a plain dict asks the dict."""
        key = _plain_key(node.node)
        if node.name not in ("defined", "undefined") or key is None or self._is_namespace(node.node):
            return None
        if self._counter(node.node, frame):
            return None
        name = self.temporary_identifier()
        value = (
            f"({key!r} in {name} and not isinstance({name}[{key!r}], Undefined)"
            f" if type({name} := {self._source(node.node.node, frame)}) is dict"
            f" else not isinstance({_lookup(node.node)}({name}, {key!r}), Undefined))"
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
            direct = callee.attr in DIRECT_METHODS
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
        return (self._counter(node, frame) or "")[:1] in ("t", "(") and node.attr not in (
            "previtem",
            "nextitem",
        )


class _KnownMacro:
    """A macro defined once at the top of the template, whose name nothing else ever takes."""

    def __init__(self, node: nodes.Macro) -> None:
        self.node = node
        self.function = ""
        self.keeps_strings = _keeps_strings(node)


class _Loop:
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


class _Lines:
    """A stream that keeps what is written to it."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)


class _Literal(NamedTuple):
    text: str


def _add_literal(pieces: list[str | _Literal], text: str) -> None:
    if pieces and isinstance(last := pieces[-1], _Literal):
        pieces[-1] = _Literal(last.text + text)
    elif text:
        pieces.append(_Literal(text))


def _is_generation(node: nodes.Node) -> bool:
    """Whether `node` is `{% generation %}`: a scope of its own, like any call block, that prints its body as it is."""
    return isinstance(node, nodes.CallBlock) and isinstance(node.call.node, nodes.ExtensionAttribute)


def _terms(node: nodes.BinExpr, kind: type[nodes.BinExpr] = nodes.Add) -> list[nodes.Expr]:
    """`a + b + c` as a list; long chains would nest Python's parentheses too deep."""
    terms = []
    left: nodes.Expr = node
    while type(left) is kind:
        terms.append(left.right)
        left = left.left
    return [left, *reversed(terms)]


def _is_text(node: nodes.Expr) -> bool:
    """Whether the value of `node` is always a string that may be added to strings and printed as it is."""
    if isinstance(node, nodes.Const):
        return isinstance(node.value, str)
    return isinstance(node, nodes.Concat) or (isinstance(node, nodes.Filter) and node.name in TEXT_FILTERS)


def _is_constant(node: nodes.Expr) -> bool:
    if isinstance(node, nodes.Const):
        return True
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return False


def _plain_key(node: nodes.Node) -> str | None:
    """The key that `node` reads from a dict, if no attribute of dicts has that name."""
    if isinstance(node, nodes.Getattr):
        key: Any = node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        key = node.arg.value
    else:
        return None
    return key if isinstance(key, str) and key not in DICT_ATTRIBUTES else None


def _lookup(node: nodes.Expr) -> str:
    return "attribute" if isinstance(node, nodes.Getattr) else "item"


def _namespace_names(node: nodes.Node) -> Iterator[str]:
    for assign in node.find_all(nodes.Assign):
        value = assign.node
        if (
            isinstance(assign.target, nodes.Name)
            and isinstance(value, nodes.Call)
            and isinstance(value.node, nodes.Name)
            and value.node.name == "namespace"
        ):
            yield assign.target.name


def _stored_at_top(body: Iterable[nodes.Node]) -> set[str]:
    """The names that the template itself gives values to, where all that follows sees them."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, nodes.Assign | nodes.AssignBlock):
            names.update(name.name for name in node.target.find_all(nodes.Name))
            if isinstance(node.target, nodes.Name):
                names.add(node.target.name)
        elif isinstance(node, nodes.Macro):
            names.add(node.name)
        elif isinstance(node, nodes.If):
            names |= _stored_at_top([*node.body, *node.else_])
            names |= _stored_at_top(node.elif_)
    return names


def _names_in_loops(tree: nodes.Node) -> set[str]:
    """What loops and macros read, and would look up again each time."""
    names = set()
    for scope in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        names.update(name.name for child in scope.body for name in [child, *child.find_all(nodes.Name)]
                     if isinstance(name, nodes.Name) and name.ctx == "load")  # fmt: skip
    for loop in tree.find_all(nodes.For):
        names.difference_update(name.name for name in [loop.target, *loop.target.find_all(nodes.Name)]
                                if isinstance(name, nodes.Name))  # fmt: skip
    return names - {"loop", "self", "super", "caller", "varargs", "kwargs"}


def _repeated_fields(name: str, body: list[nodes.Node]) -> list[str]:
    """The keys that `body` reads from `name` at three places or more, if it never gives `name` another value."""
    counts: dict[str, int] = {}
    for statement in body:
        for node in [statement, *statement.find_all((nodes.Name, nodes.Getattr, nodes.Getitem))]:
            if isinstance(node, nodes.Name):
                if node.ctx != "load" and node.name == name:
                    return []
            elif (
                isinstance(node, nodes.Getattr | nodes.Getitem)
                and isinstance(node.node, nodes.Name)
                and node.node.name == name
                and (key := _plain_key(node)) is not None
            ):
                counts[key] = counts.get(key, 0) + 1
    return [key for key, count in counts.items() if count >= 3]


def _known_macros(tree: nodes.Template) -> dict[str, _KnownMacro]:
    stored: dict[str, int] = {}
    for name in tree.find_all(nodes.Name):
        if name.ctx != "load":
            stored[name.name] = stored.get(name.name, 0) + 1
    for macro in tree.find_all(nodes.Macro):
        stored[macro.name] = stored.get(macro.name, 0) + 1
    return {
        node.name: _KnownMacro(node)
        for node in tree.body
        if isinstance(node, nodes.Macro)
        and stored[node.name] == 1
        and not find_undeclared([*node.body, *node.defaults], ("caller", "kwargs", "varargs"))
    }


def _keeps_strings(macro: nodes.Macro) -> bool:
    """Whether the macro, given a string, prints just that string: the usual `render_content(content)`."""
    if len(macro.args) != 1:
        return False
    try:
        return _printed(macro.body, macro.args[0].name) == 1
    except nodes.Impossible:
        return False


def _printed(body: Iterable[nodes.Node], argument: str) -> int:
    """How often `body` prints `argument`, a string; Impossible if it does anything else or cannot be told."""
    count = 0
    for node in body:
        if isinstance(node, nodes.Output) and all(_is_name(child, argument) for child in node.nodes):
            count += len(node.nodes)
        elif isinstance(node, nodes.If):
            for branch in (node, *node.elif_):
                if _holds_for_string(branch.test, argument):
                    count += _printed(branch.body, argument)
                    break
            else:
                count += _printed(node.else_, argument)
        else:
            raise nodes.Impossible
    return count


def _holds_for_string(test: nodes.Expr, argument: str) -> bool:
    answers = {"string": True, "defined": True, "none": False, "mapping": False, "undefined": False}
    if isinstance(test, nodes.Test) and _is_name(test.node, argument) and test.name in answers:
        return answers[test.name]
    if isinstance(test, nodes.Not):
        return not _holds_for_string(test.node, argument)
    raise nodes.Impossible


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _cost(body: Iterable[nodes.Node]) -> int:
    """The syntax nodes that one pass through `body` evaluates at the most; inner loops and macros pay for themselves."""
    count = 1
    stack = list(body)
    while stack:
        node = stack.pop()
        count += 1
        if isinstance(node, nodes.For):
            stack.append(node.iter)
        elif not isinstance(node, nodes.Macro):
            stack.extend(node.iter_child_nodes())
    return count


def _own_breaks(body: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, nodes.Break):
            yield node
        elif not isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            stack.extend(node.iter_child_nodes())


def _loop_attributes(body: Iterable[nodes.Node]) -> set[str] | None:
    """Which attributes of `loop` the loop around `body` is asked for; None if `loop` itself is handed around."""
    asked: set[str] = set()
    stack: list[nodes.Node] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop":
            if node.attr not in LOOP_COUNTERS:
                return None
            asked.add(node.attr)
        elif isinstance(node, nodes.Name) and node.name == "loop":
            return None
        elif isinstance(node, nodes.Macro | nodes.CallBlock):
            if "loop" in find_undeclared([node], ("loop",)):
                return None
        elif isinstance(node, nodes.For):
            stack.append(node.iter)
            stack.extend(node.else_)
            if node.test is not None:
                stack.append(node.test)
        else:
            stack.extend(node.iter_child_nodes())
    return asked
