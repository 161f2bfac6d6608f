"""Questions that the compiler asks of jinja2's AST before it writes code. Nothing here writes any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jinja2 import nodes
from jinja2.compiler import find_undeclared

Access = nodes.Getattr | nodes.Getitem
DICT_ATTRIBUTES = frozenset(dir(dict))
LOOP_COUNTERS = frozenset(
    ("index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth", "depth0")
)
TEXT_FILTERS = frozenset(("tojson", "trim", "upper", "lower", "title", "capitalize", "replace", "string", "indent"))


class KnownMacro:
    """A macro defined once at the top of the template, whose name nothing else ever takes."""

    def __init__(self, node: nodes.Macro) -> None:
        self.node = node
        self.function = ""
        self.keeps_strings = keeps_strings(node)


def is_generation(node: nodes.Node) -> bool:
    """Whether `node` is `{% generation %}`: a scope of its own, like any call block, that prints its body as it is."""
    return isinstance(node, nodes.CallBlock) and isinstance(node.call.node, nodes.ExtensionAttribute)


def has_generation(tree: nodes.Template) -> bool:
    return any(map(is_generation, tree.find_all(nodes.CallBlock)))


def terms(node: nodes.BinExpr, kind: type[nodes.BinExpr] = nodes.Add) -> list[nodes.Expr]:
    """`a + b + c` as a list; long chains would nest Python's parentheses too deep."""
    terms = []
    left: nodes.Expr = node
    while type(left) is kind:
        terms.append(left.right)
        left = left.left
    return [left, *reversed(terms)]


def is_text(node: nodes.Expr) -> bool:
    """Whether the value of `node` is always a string that may be added to strings and printed as it is."""
    if isinstance(node, nodes.Const):
        return isinstance(node.value, str)
    if isinstance(node, nodes.CondExpr):
        return node.expr2 is not None and is_text(node.expr1) and is_text(node.expr2)
    return isinstance(node, nodes.Concat) or (isinstance(node, nodes.Filter) and node.name in TEXT_FILTERS)


def is_constant(node: nodes.Expr) -> bool:
    if isinstance(node, nodes.Const):
        return True
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return False


def plain_access(node: nodes.Node) -> tuple[Access, str] | None:
    """`node` with the key that it reads, if it reads one from a dict and no attribute of dicts has that name."""
    key: Any = None
    if isinstance(node, nodes.Getattr):
        key = node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        key = node.arg.value
    if isinstance(node, Access) and isinstance(key, str) and key not in DICT_ATTRIBUTES:
        return node, key
    return None


def namespace_names(node: nodes.Node) -> Iterator[str]:
    for assign in node.find_all(nodes.Assign):
        value = assign.node
        if (
            isinstance(assign.target, nodes.Name)
            and isinstance(value, nodes.Call)
            and isinstance(value.node, nodes.Name)
            and value.node.name == "namespace"
        ):
            yield assign.target.name


def asked_for(tree: nodes.Node) -> set[str]:
    """The names of which the template asks whether they were given, though it may give them a value itself."""
    return {
        test.node.name
        for test in tree.find_all(nodes.Test)
        if test.name in ("defined", "undefined") and isinstance(test.node, nodes.Name)
    }


def stored_at_top(body: Iterable[nodes.Node]) -> set[str]:
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
            names |= stored_at_top([*node.body, *node.else_])
            names |= stored_at_top(node.elif_)
    return names


def names_in_loops(tree: nodes.Node) -> set[str]:
    """What loops and macros read, and would look up again each time."""
    names: set[str] = set()
    scopes: Iterable[Any] = tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))
    for scope in scopes:
        names.update(name.name for child in scope.body for name in [child, *child.find_all(nodes.Name)]
                     if isinstance(name, nodes.Name) and name.ctx == "load")  # fmt: skip
    for loop in tree.find_all(nodes.For):
        names.difference_update(name.name for name in [loop.target, *loop.target.find_all(nodes.Name)]
                                if isinstance(name, nodes.Name))  # fmt: skip
    return names - {"loop", "self", "super", "caller", "varargs", "kwargs"}


def repeated_fields(name: str, body: list[nodes.Node]) -> list[str]:
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
                and (access := plain_access(node))
            ):
                key = access[1]
                counts[key] = counts.get(key, 0) + 1
    return [key for key, count in counts.items() if count >= 3]


def stored_anywhere(tree: nodes.Template) -> frozenset[str]:
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    return frozenset(
        stored | {macro.name for macro in tree.find_all(nodes.Macro)} | {"loop", "caller", "varargs", "kwargs"}
    )


def known_macros(tree: nodes.Template) -> dict[str, KnownMacro]:
    stored: dict[str, int] = {}
    for name in tree.find_all(nodes.Name):
        if name.ctx != "load":
            stored[name.name] = stored.get(name.name, 0) + 1
    for macro in tree.find_all(nodes.Macro):
        stored[macro.name] = stored.get(macro.name, 0) + 1
    return {
        node.name: KnownMacro(node)
        for node in tree.body
        if isinstance(node, nodes.Macro)
        and stored[node.name] == 1
        and not find_undeclared([*node.body, *node.defaults], ("caller", "kwargs", "varargs"))
    }


def keeps_strings(macro: nodes.Macro) -> bool:
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


def _holds_for_string(test: nodes.Node, argument: str) -> bool:
    answers = {"string": True, "defined": True, "none": False, "mapping": False, "undefined": False}
    if isinstance(test, nodes.Test) and _is_name(test.node, argument) and test.name in answers:
        return answers[test.name]
    if isinstance(test, nodes.Not):
        return not _holds_for_string(test.node, argument)
    raise nodes.Impossible


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def cost_of(body: Iterable[nodes.Node]) -> int:
    """The syntax nodes that one pass through `body` evaluates at most; inner loops and macros pay for themselves."""
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


def own_breaks(body: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, nodes.Break):
            yield node
        elif not isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            stack.extend(node.iter_child_nodes())


def loop_attributes(body: Iterable[nodes.Node]) -> set[str] | None:
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
