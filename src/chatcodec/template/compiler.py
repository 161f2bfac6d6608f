"""jinja2's AST in, the source of a Python module out.

The code generator of jinja2 is told by `Environment.code_generator_class`; ours keeps its scoping (frames, symbols)
to the letter and writes everything else anew: text goes to lists instead of generators, attributes of plain dicts
are read inline, loops that only ask for their index count it themselves, and whatever may be expensive is a call
into the runtime, which pays for it. The module's names are bound to `runtime` (plain strings) or to `tracing` (traced
text, or text in which the output of generation blocks is marked); the code is the same.

Of the module: `root(_m, ctx)` gives the text; `_m` is the render's `Meter`, `ctx` the variables by name. What starts
with `l_` is a variable of the template, with `t_` a temporary, with `f_` a filter and with `x_` a test.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.compiler import Frame, MacroRef, find_undeclared
from jinja2.idtracking import VAR_LOAD_ALIAS, VAR_LOAD_RESOLVE, VAR_LOAD_UNDEFINED
from jinja2.nodes import EvalContext

from .analysis import (
    asked_for,
    cost_of,
    is_generation,
    is_text,
    known_macros,
    loop_attributes,
    names_in_loops,
    namespace_names,
    own_breaks,
    repeated_fields,
    stored_anywhere,
    stored_at_top,
    terms,
)
from .expressions import ExpressionWriter, Loop

LOOP_NEEDS_SEQUENCE = frozenset(("last", "length", "revindex", "revindex0", "previtem", "nextitem"))
MAX_NESTING = 60
"""Statements inside statements; Python itself gives up at 100 levels of indentation."""


class Compiler(ExpressionWriter):
    """Writes one template's module. Raises jinja2's `TemplateAssertionError` for what cannot be compiled."""

    # -- the frame of the module

    def module(self) -> str:
        assert isinstance(self.stream, StringIO)
        return self.stream.getvalue()

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        for block in node.find_all(nodes.Block):
            if block.name in self.blocks:
                self.fail(f"block {block.name!r} defined twice", block.lineno)
            self.blocks[block.name] = block
        self._namespaces = frozenset(namespace_names(node))
        self._macros = known_macros(node)
        self._given_names = frozenset(stored_anywhere(node) - asked_for(node))
        self._constant_names = frozenset(names_in_loops(node) - stored_at_top(node.body))
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
        self._enter(node)
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
        self._leave(node, frame)
        self.outdent()

    def _enter(self, node: Any) -> None:
        """Pay for a call of a block or a macro."""
        self.writeline(f"_m.steps -= {cost_of(node.body)}; _m.depth -= 1")
        self.writeline("if _m.steps < 0 or _m.depth < 0: _m.overrun()")

    def _leave(self, node: nodes.Node, frame: Frame) -> None:
        self.writeline("_m.depth += 1")
        if is_generation(node):
            self.writeline(f"return generated(_m, {frame.buffer})")
        else:
            self.return_buffer_contents(frame)

    def indent(self) -> None:
        super().indent()
        if self._indentation > MAX_NESTING:
            self.fail(f"more than {MAX_NESTING} statements inside one another", self._last_line or 1)

    def enter_frame(self, frame: Frame) -> None:
        undefined = []
        for target, (action, param) in frame.symbols.loads.items():
            if action == VAR_LOAD_RESOLVE:
                assert param is not None
                if frame.parent is None or param not in self._given_names:
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
        loop_ref = loop_frame.symbols.declare_parameter("loop") if loop.extended else ""
        loop_frame.symbols.analyze_node(node, for_branch="body")
        if node.else_:
            else_frame.symbols.analyze_node(node, for_branch="else")
        filtered = self._loop_filter(node, frame, loop_frame) if node.test else ""
        self._loops[loop_ref] = loop
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
        self._loops.pop(loop_ref, None)
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
        for key in repeated_fields(node.target.name, node.body):
            name = self.temporary_identifier()
            self._fields[target, key] = name
            self.writeline(f"{name} = {target}.get({key!r}, missing) if type({target}) is dict else missing")

    def leave_frame(self, frame: Frame, with_python_scope: bool = False) -> None:
        counted = {ref for ref, loop in self._loops.items() if not loop.generic}
        targets = [target for target in frame.symbols.loads if target not in counted]
        if targets and not with_python_scope:
            self.writeline(f"{' = '.join(targets)} = missing")

    def _plan_loop(self, node: nodes.For) -> Loop:
        used = "loop" in find_undeclared(node.iter_child_nodes(only=("body",)), ("loop",))
        scoped = any(block.scoped for block in node.find_all(nodes.Block))
        loop = Loop(extended=used or node.recursive or scoped, cost=cost_of(node.body))
        asked = None if node.recursive or scoped else loop_attributes(node.body)
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
        self.write(f" in paced(_m, fiter, {cost_of([node.test])}):")
        self.indent()
        self.writeline("if ", node.test)
        self.condition(node.test, test_frame)
        self.write(":")
        self.indent()
        self.writeline("yield ")
        self.visit(node.target, loop_frame)
        self.outdent(3)
        return name

    def _loop_head(self, node: nodes.For, frame: Frame, loop_frame: Frame, loop: Loop, filtered: str) -> None:
        paced = "paced_each" if next(own_breaks(node.body), None) else "paced"
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
        if is_generation(node):
            self.writeline(f"{frame.buffer}.append({name}())", node)
            return
        self.writeline("caller = ")
        self._macro_object(name, reference)
        self.writeline(f"{frame.buffer}.append(", node)
        self.visit_Call(node.call, frame, forward_caller=True)
        self.write(")")

    def _macro_function(self, node: nodes.Macro | nodes.CallBlock, frame: Frame) -> tuple[str, MacroRef]:
        frame = frame.inner()
        frame.symbols.analyze_node(node)
        reference = MacroRef(node)
        parameters = [frame.symbols.ref(argument.name) for argument in node.args]
        given = [argument.name for argument in node.args]
        specials = () if is_generation(node) else ("caller", "kwargs", "varargs")
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
        self._enter(node)
        self.buffer(frame)
        self.enter_frame(frame)
        self._defaults(node, frame)
        self.blockvisit(node.body, frame)
        self._leave(node, frame)
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
        self.writeline(f"{frame.buffer}.append(", node)
        self.visit(node.filter, filter_frame)
        self.write(")")
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
        pieces: list[_Piece] = []
        for child in node.nodes:
            self._emit(child, frame, pieces)
        self._flush(frame, pieces)

    def _flush(self, frame: Frame, pieces: list[_Piece]) -> None:
        """Write the statement that adds the pieces to the buffer, each on the line that errors in it are told from."""
        if not pieces:
            return
        self.writeline(f"{frame.buffer}.append(" if len(pieces) == 1 else f"{frame.buffer} += (")
        for piece in pieces:
            self.newline(piece.node)
            self.write(repr(piece.source) if piece.literal else piece.source)
            self.write(", " if len(pieces) > 1 else "")
        self.write(")")
        pieces.clear()

    def _emit(self, node: nodes.Expr, frame: Frame, pieces: list[_Piece]) -> None:
        """Add the source of the texts that `node` prints to `pieces`, or write statements that do."""
        if isinstance(node, nodes.TemplateData):
            _add_literal(pieces, node.data, node)
        elif isinstance(node, nodes.Const):
            _add_literal(pieces, str(node.value), node)
        elif isinstance(node, nodes.Concat):
            for part in node.nodes:
                self._emit(part, frame, pieces)
        elif isinstance(node, nodes.Filter) and node.name == "safe" and node.node is not None and not node.args:
            self._emit(node.node, frame, pieces)
        elif isinstance(node, nodes.Add) and any(map(is_text, terms(node))):
            self._emit_sum(node, frame, pieces)
        else:
            pieces.append(_Piece(self._text(node, frame), node))

    def _emit_sum(self, node: nodes.Add, frame: Frame, pieces: list[_Piece]) -> None:
        """Strings added only to be printed are printed one by one, unless one of them turns out to be no string."""
        self._flush(frame, pieces)
        parts = []
        guards = []
        for term in terms(node):
            if isinstance(term, nodes.Const):
                parts.append(_Piece(repr(term.value), term))
                continue
            name = self.temporary_identifier()
            self.newline(term)
            self.write(f"{name} = {self._source(term, frame)}")
            parts.append(_Piece(name, term))
            guards.append(f"type({name}) in TEXT")
        if not guards:
            self._flush(frame, parts)
            return
        summed = f"text(_m, add(_m, {', '.join(part.source for part in parts)}))"
        self.writeline(f"if {' and '.join(guards)}:")
        self.indent()
        self._flush(frame, parts)
        self.outdent()
        self.writeline("else:")
        self.indent()
        self._flush(frame, [_Piece(summed, node)])
        self.outdent()


class _Piece(NamedTuple):
    """The source of one printed text, or, if it is literal, the text itself; and where in the template it stands."""

    source: str
    node: nodes.Node
    literal: bool = False


def _add_literal(pieces: list[_Piece], text: str, node: nodes.Node) -> None:
    if pieces and pieces[-1].literal:
        pieces[-1] = pieces[-1]._replace(source=pieces[-1].source + text)
    elif text:
        pieces.append(_Piece(text, node, literal=True))
