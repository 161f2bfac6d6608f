"""Traced text is text: what `str` does with plain text, it does too, and every character keeps the origin that it had."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2 import Undefined

from chatcodec.errors import TemplateError
from chatcodec.template import Template, jsontext
from chatcodec.template.traced import Traced, TracedText, combine, path_of, spans_of, wrap

Cell = tuple[str, str | None]
Cells = list[Cell]
"""A text as the slow oracle sees it: each character with the path of its origin."""

settings.register_profile("traced", max_examples=60, deadline=None)
EXAMPLES = settings(settings.get_profile("traced"))
MANY = settings(EXAMPLES, max_examples=300)

# Texts


CHARACTERS = st.sampled_from("aaabbbcAB  \n\t\r.,-+0%{}\"'\\<>&ßİﬁΣσςéﬀǆŉ\u0301\x1c\x85\u2028🙂") | st.characters()
FEW = st.sampled_from("aab \n")
NUMBERS = st.integers(-12, 12)


@st.composite
def texts(draw: st.DrawFn, name: str = "s", characters: Any = FEW | CHARACTERS, longest: int = 6) -> str:
    """A text of some pieces; those that are not the template's have the origins `name0`, `name1`, …"""
    pieces = draw(st.lists(st.tuples(st.text(characters, max_size=longest), st.booleans()), max_size=5))
    return combine(
        [wrap(text, None, f"{name}{index}") if given else text for index, (text, given) in enumerate(pieces)]
    )


S = texts("s")
T = texts("t", FEW, 2)
U = texts("u", longest=2)
LISTS = st.lists(texts("x", longest=3), max_size=4).map(lambda found: [renamed(text, i) for i, text in enumerate(found)])
TABLES = st.dictionaries(FEW.map(ord), st.one_of(st.none(), st.just(98), st.sampled_from(["", "x", "yz", "ß"])))


def renamed(text: str, index: int) -> str:
    """`text` with other origins, so that two items of a list differ."""
    position, pieces = 0, []
    for start, end, origin in spans_of(text):
        pieces += [text[position:start].__str__(), wrap(plain(text[start:end]), None, f"{path_of(origin)}_{index}")]
        position = end
    return combine([plain(piece) if not spans_of(piece) else piece for piece in [*pieces, text[position:]]])


def plain(value: Any) -> Any:
    """`value` without its origins."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    return value


def cells(value: Any) -> Any:
    """The cells of a text, or of the texts in a list or tuple; spans are found to be well-formed."""
    if isinstance(value, list | tuple):
        return list(map(cells, value))
    if not isinstance(value, str):
        return value
    owners: list[str | None] = [None] * len(value)
    last = 0
    for start, end, origin in spans_of(value):
        assert last <= start < end <= len(value)
        owners[start:end] = [path_of(origin)] * (end - start)
        last = end
    return list(zip(plain(value), owners, strict=True))


# The slow oracle


def text_of(value: Cells) -> str:
    return "".join(character for character, _ in value)


def strip(s: Cells, chars: Cells | None = None, sides: str = "lr") -> Cells:
    dropped = str.isspace if chars is None else text_of(chars).__contains__
    while "l" in sides and s and dropped(s[0][0]):
        s = s[1:]
    while "r" in sides and s and dropped(s[-1][0]):
        s = s[:-1]
    return s


def split(s: Cells, separator: Cells, limit: int = -1) -> list[Cells]:
    found: list[Cells] = []
    start = position = 0
    while limit != 0 and position < len(s):
        end = position + len(separator)
        if text_of(s[position:end]) == text_of(separator):
            found.append(s[start:position])
            start = position = end
            limit -= 1
        else:
            position += 1
    return [*found, s[start:]]


def words(s: Cells, limit: int = -1) -> list[Cells]:
    found: list[Cells] = []
    s = strip(s, sides="l")
    while s and limit != 0:
        length = next((at for at, (character, _) in enumerate(s) if character.isspace()), len(s))
        found.append(s[:length])
        s = strip(s[length:], sides="l")
        limit -= 1
    return [*found, s] if s else found


def backwards(function: Callable[..., list[Cells]], s: Cells, *args: Any) -> list[Cells]:
    """`function` from the right: on reversed texts."""
    turned = [argument[::-1] if isinstance(argument, list) else argument for argument in args]
    return [part[::-1] for part in function(s[::-1], *turned)][::-1]


def lines(s: Cells, keepends: bool = False) -> list[Cells]:
    found: list[Cells] = []
    while s:
        length = next((at for at, (character, _) in enumerate(s) if character in LINE_ENDS), len(s))
        end = length + (2 if text_of(s[length : length + 2]) == "\r\n" else 1)
        found.append(s[: end if keepends else length])
        s = s[end:]
    return found


LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def partition(s: Cells, separator: Cells) -> list[Cells]:
    head, *tail = split(s, separator, 1)
    return [head, s[len(head) : len(head) + len(separator)], *tail] if tail else [s, [], []]


def join(separator: Cells, items: list[Cells]) -> Cells:
    joined: Cells = []
    for index, item in enumerate(items):
        joined += (separator if index else []) + item
    return joined


def replace(s: Cells, old: Cells, new: Cells, count: int = -1) -> Cells:
    if old:
        replaced = join(new, split(s, old, count))
    else:
        replaced = []
        for position in range(len(s) + 1):
            replaced += (new if count else []) + s[position : position + 1]
            count -= count > 0
    return s if text_of(s) == text_of(replaced) else replaced


def padded(s: Cells, width: int, character: str = " ", left: Callable[[int], int] = lambda missing: 0) -> Cells:
    missing = max(width - len(s), 0)
    before = left(missing)
    return [(character, None)] * before + s + [(character, None)] * (missing - before)


def indent(s: Cells, indention: Cells, first: bool = False, blank: bool = False) -> Cells:
    found = [
        (indention if (first if number == 0 else line or blank) else []) + line
        for number, line in enumerate(lines([*s, ("\n", None)]))
    ]
    return join([("\n", None)], found)


@dataclass(frozen=True)
class Forms:
    """What each character may turn into; all of that has the character's origin."""

    of: Callable[[str], set[str]]

    def fit(self, source: Cells, result: Cells) -> bool:
        reached = {0}
        for character, origin in source:
            reached = {
                at + len(form)
                for at in reached
                for form in self.of(character)
                if result[at : at + len(form)] == [(written, origin) for written in form]
            }
        return len(result) in reached


CASES = Forms(lambda c: {c, c.lower(), c.upper(), c.title(), c.casefold()} | ({"ς"} if c == "Σ" else set()))
TABS = Forms(lambda c: {" " * width for width in range(13)} if c == "\t" else {c})


# The operations


@dataclass(frozen=True)
class Operation:
    """An expression that means the same in Python and in a template."""

    expression: str
    variables: dict[str, Any] = field(default_factory=dict)
    model: Callable[..., Any] | Forms | None = None

    def __str__(self) -> str:
        return self.expression


def on(expression: str, model: Callable[..., Any] | Forms | None = None, **variables: Any) -> Operation:
    return Operation(expression, {"s": S, **variables}, model)


OPERATIONS = [
    on("s[i]", lambda s, i: [s[i]], i=NUMBERS),
    on("s[a:b]", lambda s, a, b: s[a:b], a=NUMBERS, b=NUMBERS),
    on("s[a:]", lambda s, a: s[a:], a=NUMBERS),
    on("s[:b]", lambda s, b: s[:b], b=NUMBERS),
    on("s[a:b:c]", lambda s, a, b, c: s[a:b:c], a=st.none() | NUMBERS, b=st.none() | NUMBERS, c=st.integers(-3, 3)),
    on("s[::-1]", lambda s: s[::-1]),
    on("s + t", lambda s, t: s + t, t=U),
    on("'<' + s + t + '>'", lambda s, t: [("<", None), *s, *t, (">", None)], t=U),
    on("s * n", lambda s, n: s * n, n=NUMBERS),
    on("n * s", lambda s, n: s * n, n=NUMBERS),
    on("t in s", t=T),
    on("s == t", t=S),
    on("s < t", t=S),
    on("s + n", n=NUMBERS),
    on("n + s", n=NUMBERS),
    on("s * t", t=U),
    on("s * 1.5"),
    on("s - t", t=U),
    on("-s"),
    on("s.capitalize()", CASES),
    on("s.casefold()", CASES),
    on("s.lower()", CASES),
    on("s.upper()", CASES),
    on("s.swapcase()", CASES),
    on("s.title()", CASES),
    on("s.ljust(n)", padded, n=NUMBERS),
    on("s.ljust(n, 'ß')", lambda s, n: padded(s, n, "ß"), n=NUMBERS),
    on("s.rjust(n)", lambda s, n: padded(s, n, " ", lambda missing: missing), n=NUMBERS),
    on("s.rjust(n, 'a')", lambda s, n: padded(s, n, "a", lambda missing: missing), n=NUMBERS),
    on("s.center(n)", lambda s, n: padded(s, n, " ", lambda missing: missing // 2 + (missing & n & 1)), n=NUMBERS),
    on("s.center(n, 'a')", lambda s, n: padded(s, n, "a", lambda missing: missing // 2 + (missing & n & 1)), n=NUMBERS),
    on("s.center(n, t)", n=NUMBERS, t=U),
    on("s.center(t)", t=U),
    on("s.zfill(n)", n=NUMBERS),
    on("s.zfill(None)"),
    on("s.expandtabs()", TABS),
    on("s.expandtabs(n)", TABS, n=NUMBERS),
    on("s.expandtabs(tabsize=n)", TABS, n=NUMBERS),
    on("s.strip()", strip),
    on("s.strip(None)", lambda s: strip(s)),
    on("s.strip(t)", strip, t=T),
    on("s.strip(1)"),
    on("s.strip(t, t)", t=T),
    on("s.lstrip()", lambda s: strip(s, None, "l")),
    on("s.lstrip(t)", lambda s, t: strip(s, t, "l"), t=T),
    on("s.rstrip()", lambda s: strip(s, None, "r")),
    on("s.rstrip(t)", lambda s, t: strip(s, t, "r"), t=T),
    on("s.removeprefix(t)", lambda s, t: s[len(t) :] if text_of(s).startswith(text_of(t)) else s, t=T),
    on("s.removesuffix(t)", lambda s, t: s[: len(s) - len(t)] if text_of(s).endswith(text_of(t)) else s, t=T),
    on("s.split()", words),
    on("s.split(None, n)", words, n=NUMBERS),
    on("s.split(t)", split, t=T),
    on("s.split(t, n)", split, t=T, n=NUMBERS),
    on("s.split(sep=t, maxsplit=n)", split, t=T, n=NUMBERS),
    on("s.split(maxsplit=n)", words, n=NUMBERS),
    on("s.split(1)"),
    on("s.rsplit()", lambda s: backwards(words, s)),
    on("s.rsplit(None, n)", lambda s, n: backwards(words, s, n), n=NUMBERS),
    on("s.rsplit(t)", lambda s, t: backwards(split, s, t), t=T),
    on("s.rsplit(t, n)", lambda s, t, n: backwards(split, s, t, n), t=T, n=NUMBERS),
    on("s.rsplit(sep=t, maxsplit=n)", lambda s, t, n: backwards(split, s, t, n), t=T, n=NUMBERS),
    on("s.splitlines()", lines),
    on("s.splitlines(True)", lambda s: lines(s, True)),
    on("s.splitlines(keepends=k)", lines, k=st.booleans()),
    on("s.partition(t)", partition, t=T),
    on("s.partition(None)"),
    on("s.rpartition(t)", lambda s, t: backwards(partition, s, t), t=T),
    on("s.replace(t, u)", replace, t=T, u=U),
    on("s.replace(t, u, n)", replace, t=T, u=U, n=NUMBERS),
    on("s.replace('', u)", lambda s, u: replace(s, [], u), u=U),
    on("s.replace('', u, n)", lambda s, u, n: replace(s, [], u, n), u=U, n=NUMBERS),
    on("s.replace(t, 1)", t=T),
    on("s.replace(t)", t=T),
    on("s.replace(t, u, 'x')", t=T, u=U),
    on("s.join(items)", join, items=LISTS),
    on("', '.join(items)", lambda items: join([(",", None), (" ", None)], items), s=st.none(), items=LISTS),
    on("s.join(t)", lambda s, t: join(s, [[cell] for cell in t]), t=U),
    on("s.join([t, 1])", t=U),
    on("s.join(None)"),
    on("s.join({t: 1})", lambda s, t: t, t=U),
    on("s.translate(table)", lambda s, table: [(new, origin) for char, origin in s
       for new in {None: "", 98: "b"}.get(new := table.get(ord(char), char), new)], table=TABLES),
    on("s.translate(s.maketrans('ab', 'ba'))"),
    on("s.translate(1)"),
    on("s.maketrans({'a': s})"),
    on("s.maketrans(t, u)", t=T, u=U),
    on("s.count(t)", t=T),
    on("s.count(t, a, b)", t=T, a=NUMBERS, b=NUMBERS),
    on("s.find(t)", t=T),
    on("s.find(t, a, b)", t=T, a=NUMBERS, b=NUMBERS),
    on("s.rfind(t)", t=T),
    on("s.rfind(t, a, b)", t=T, a=NUMBERS, b=NUMBERS),
    on("s.index(t)", t=T),
    on("s.index(t, a, b)", t=T, a=NUMBERS, b=NUMBERS),
    on("s.rindex(t, a, b)", t=T, a=NUMBERS, b=NUMBERS),
    on("s.startswith(t)", t=T),
    on("s.startswith((t, u), a, b)", t=T, u=U, a=NUMBERS, b=NUMBERS),
    on("s.endswith(t)", t=T),
    on("s.endswith((t, u), a, b)", t=T, u=U, a=NUMBERS, b=NUMBERS),
    on("s.startswith(1)"),
    on("s.encode('utf-8', 'replace')"),
    on("s.encode(encoding='ascii', errors='ignore')"),
    on("s.encode()"),
    on("s.format()"),
    on("s.format(t, u, k=t)", t=U, u=U),
    on("s.format_map({'a': t})", t=U),
    *[on(f"s.{name}()") for name in dir(str) if name.startswith("is")],
]  # fmt: skip


def test_no_method_is_forgotten() -> None:
    called = set(re.findall(r"\.([a-z_]+)\(", " ".join(map(str, OPERATIONS))))
    assert called >= {name for name in dir(str) if not name.startswith("_")}


@cache
def keeping(expression: str) -> Template:
    return Template(f"{{{{ keep({expression}) }}}}")


def evaluate(expression: str, variables: dict[str, Any]) -> Any:
    """The value of an expression in a traced render."""
    kept: list[Any] = []
    keeping(expression).trace_wrapped({**variables, "keep": lambda value: kept.append(value) or ""})
    if isinstance(kept[0], Undefined):
        raise IndexError
    return kept[0]


def attempt(run: Callable[..., Any], *args: Any) -> tuple[Any, type | None]:
    """The result and the type of the error."""
    try:
        return run(*args), None
    except TemplateError as error:
        return None, type(error.__cause__)
    except Exception as error:
        return None, type(error)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_operation(operation: Operation) -> None:
    expression, model = operation.expression, operation.model

    @EXAMPLES
    @given(st.fixed_dictionaries(operation.variables))
    def check(variables: dict[str, Any]) -> None:
        expected, error = attempt(eval, expression, {}, plain(variables))
        direct, direct_error = attempt(eval, expression, {}, dict(variables))
        traced, traced_error = attempt(evaluate, expression, variables)
        assert (direct_error, traced_error) == (error, error)
        assert plain(direct) == plain(traced) == expected
        assert type(plain(traced)) is type(expected)
        cells(direct)
        found = cells(traced)
        if error is not None or model is None:
            return
        arguments = [cells(value) for value in variables.values() if value is not None or "None" not in expression]
        if operation.variables["s"] == st.none():
            arguments = arguments[1:]
        if isinstance(model, Forms):
            assert model.fit(cells(variables["s"]), found)
        else:
            assert found == model(*arguments)

    check()
