"""Traced text is text: what `str` does it does, and every character keeps the origin that it had."""

from __future__ import annotations

import ast
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2 import Undefined
from jinja2.filters import FILTERS as JINJA_FILTERS
from markupsafe import escape

from chatcodec.errors import TemplateError
from chatcodec.template import Template, jsontext
from chatcodec.template.traced import Traced, TracedText, combine, path_of, spans_of, wrap

Cell = tuple[str, str | None]
Cells = list[Cell]
"""A text as the slow oracle sees it: each character with the path of its origin."""

EXAMPLES = settings(max_examples=40, deadline=None)
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
LISTS = st.integers(0, 4).flatmap(lambda n: st.tuples(*[texts(f"x{i}_", longest=3) for i in range(n)]).map(list))
TABLES = st.dictionaries(FEW.map(ord), st.one_of(st.none(), st.just(98), st.sampled_from(["", "x", "yz", "ß"])))


def plain(value: Any) -> Any:
    """`value` without its origins."""
    if isinstance(value, str | bytes):
        return str.__str__(value) if isinstance(value, str) else bytes(value)
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


def translate(s: Cells, table: dict[int, Any]) -> Cells:
    return [(new, origin) for character, origin in s for new in character.translate(table)]


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
    """What each character of `source`, made from the operands, may turn into; all of it has that character's origin."""

    of: Callable[[str], set[str]]
    source: Callable[..., Cells] = lambda s, *rest: s

    def fit(self, result: Cells, *operands: Any) -> bool:
        reached = {0}
        for character, origin in self.source(*operands):
            reached = {
                at + len(form)
                for at in reached
                for form in self.of(character)
                if result[at : at + len(form)] == [(written, origin) for written in form]
            }
        return len(result) in reached


CASES = Forms(lambda c: {c, c.lower(), c.upper(), c.title(), c.casefold()} | ({"ς"} if c == "Σ" else set()))
TABS = Forms(lambda c: {" " * width for width in range(13)} if c == "\t" else {c})
ESCAPES = Forms(lambda c: {str(escape(c))})
QUOTE = "\ue000"
PRINTED = Forms(
    lambda c: {"'", '"'} if c == QUOTE else {c, f"\\{c}", repr(c)[1:-1]},
    lambda s, t: template(f"[{QUOTE}") + s + template(f"{QUOTE}, {{{QUOTE}") + t + template(f"{QUOTE}: 1}}]"),
)
QUOTED = Forms(
    lambda c: {json.dumps(c, ensure_ascii=False)[1:-1]} if c != QUOTE else {'"'},
    lambda s: template(QUOTE) + s + template(QUOTE),
)


def template(text: str) -> Cells:
    return [(character, None) for character in text]


def escaped(s: Cells) -> Cells:
    return [(written, origin) for character, origin in s for written in str(escape(character))]


class Some:
    """The result is a list of some of the items."""

    @staticmethod
    def fit(result: list[Cells], s: Cells, items: list[Cells]) -> bool:
        return all(item in items for item in result)


def fits(model: Any, result: Any, operands: list[Any]) -> bool:
    if isinstance(model, Forms | Some):
        return model.fit(result, *operands)
    return model is None or result == model(*operands)


# The operations


@dataclass(frozen=True)
class Operation:
    """An expression that means the same in Python and in a template."""

    expression: str
    variables: dict[str, Any] = field(default_factory=dict)
    model: Any = None

    def __str__(self) -> str:
        return self.expression


def on(expression: str, model: Any = None, **variables: Any) -> Operation:
    return Operation(expression, {"s": S} | variables, model)


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
    on("s.expandtabs(n)", TABS, s=texts("s", st.sampled_from("\t\tab \n")), n=NUMBERS),
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
    on("', '.join(items)", lambda s, items: join([(",", None), (" ", None)], items), items=LISTS),
    on("s.join(t)", lambda s, t: join(s, [[cell] for cell in t]), t=U),
    on("s.join([t, 1])", t=U),
    on("s.join(None)"),
    on("s.join({t: 1})", lambda s, t: t, t=U),
    on("s.translate(table)", translate, table=TABLES),
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
    on("s.encode().decode()", lambda s: s),
    on("(s.encode() + s.encode('utf-8')[1:] * 2).upper().strip()"),
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
    except ValueError as error:
        # What `str.format_map` says of fields without a name jinja2's sandbox says as `format` does.
        return None, IndexError if "contains positional fields" in str(error) else type(error)
    except Exception as error:
        return None, type(error)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_operation(operation: Operation) -> None:
    expression = operation.expression

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
        if error is None:
            assert fits(operation.model, found, [cells(variables[name]) for name in operation.variables])

    check()


@EXAMPLES
@given(S)
def test_iteration(text: str) -> None:
    kept: list[str] = []
    template = Template("{% for c in s %}{{ keep(c) }}{% endfor %}")
    template.trace_wrapped({"s": text, "keep": lambda value: kept.append(value) or ""})
    assert join([], cells(kept)) == join([], cells(list(text))) == cells(text)


@EXAMPLES
@given(texts("s", st.sampled_from("00123-+")), NUMBERS)
def test_zeros(text: str, width: int) -> None:
    digits = cells(text)[plain(text[:1]) in ("+", "-") :]
    filled = cells(evaluate("s.zfill(n)", {"s": text, "n": width}))
    assert filled[len(filled) - len(digits) :] == digits


@EXAMPLES
@given(S)
def test_spans_cover_the_text(text: str) -> None:
    traced = Template("{{ s }}").trace_wrapped({"s": text})
    assert isinstance(traced, TracedText)
    assert [path for start, end, path in traced.spans for _ in range(start, end)] == [path for _, path in cells(text)]
    assert all(a[1] == b[0] and a[2] != b[2] for a, b in zip(traced.spans, traced.spans[1:], strict=False))
    assert traced == plain(text)


# Formatting

VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9999, 9999)
    | st.sampled_from([0.0, 1.5, -2.25, 1e16, math.inf, math.nan])
    | st.text(FEW | CHARACTERS, max_size=4),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(st.text(FEW, max_size=2), values, max_size=2),
    max_leaves=4,
)
PERCENTS = st.sampled_from(
    ["%s", "%s", "%r", "%a", "%d", "%i", "%x", "%o", "%e", "%g", "%.2f", "%c", "%%", "%5s", "%-5s", "%.2s",
     "%7.1s", "%05d", "%+d", "%#x", "%*d", "%.*f", "%ld", "%", "%y", "%(k)s", "%(k)5s", "%(k)r", "%(none)s"]
)  # fmt: skip
BRACES = st.sampled_from(
    ["{}", "{}", "{0}", "{1}", "{k}", "{!r}", "{!s}", "{!a}", "{:>5}", "{:*^7}", "{:.2}", "{:.2f}", "{:d}",
     "{:,}", "{{", "}}", "{", "}", "{k:5}", "{k!r:<6}", "{:{}}", "{0[0]}", "{k[a]}", "{:x}", "{!z}", "{:%}"]
)  # fmt: skip


@st.composite
def layouts(draw: st.DrawFn, directives: Any) -> str:
    """A text with directives in it, some of it traced."""
    parts = [draw(st.text(FEW, max_size=3)) + draw(directives) for _ in range(draw(st.integers(0, 3)))]
    return combine([wrap(part, None, f"s{index}") if draw(st.booleans()) else part for index, part in enumerate(parts)])


def given_values(values: Any) -> Any:
    """Values as the input holds them, each with an origin of its own."""
    return st.lists(values, max_size=3).map(lambda found: [wrap(value, None, f"v{i}") for i, value in enumerate(found)])


@MANY
@given(layouts(PERCENTS), given_values(VALUES), st.sampled_from(["s % tuple", "s % one", "s % map"]))
def test_percent(layout: str, values: list[Any], expression: str) -> None:
    one = values[0] if values else "none"
    variables = {"s": layout, "tuple": tuple(values), "one": one, "map": {"k": one}}
    compare_formatted(expression, variables)


@MANY
@given(layouts(BRACES), given_values(VALUES), st.sampled_from(["s.format(*v)", "s.format(*v, k=o)", "s.format_map(m)"]))
def test_format(layout: str, values: list[Any], expression: str) -> None:
    one = values[0] if values else "none"
    compare_formatted(expression, {"s": layout, "v": values, "o": one, "m": {"k": one}})


def compare_formatted(expression: str, variables: dict[str, Any]) -> None:
    expected, error = attempt(evaluate_theirs, expression, unwrapped(variables))
    traced, traced_error = attempt(evaluate, expression, variables)
    assert (plain(traced), traced_error) == (expected, error)
    cells(traced)


def unwrapped(value: Any) -> Any:
    """A wrapped value as it was: numbers too."""
    if isinstance(value, list | tuple):
        return type(value)(map(unwrapped, value))
    if isinstance(value, dict):
        return {plain(key): unwrapped(item) for key, item in value.items()}
    if type(value).__name__ == "TracedBool":
        return bool(value)
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return plain(value)


@EXAMPLES
@given(S, T, U)
def test_formatted_texts_keep_their_origins(s: str, t: str, u: str) -> None:
    variables = {"s": s, "t": t, "u": u, "m": {"t": t, "u": u}}
    expected = [*cells(t), ("-", None), *cells(u), ("%", None), *cells(s)]
    for expression in (
        "'%s-%s%%%s' % (t, u, s)",
        "'%(t)s-%(u)s%%%(s)s' % {'t': t, 'u': u, 's': s}",
        "'%s-%s%%%s'|format(t, u, s)",
        "'{}-{}%{}'.format(t, u, s)",
        "'{0}-{m[u]}%{s}'.format(t, m=m, s=s)",
        "'{t}-{u}%{s}'.format_map({'t': t, 'u': u, 's': s})",
    ):
        assert cells(evaluate(expression, variables)) == expected


@pytest.mark.parametrize(
    "expression", ["s.title()", "s.capitalize()", "s.upper()", "s|title", "s|capitalize", "s|upper"]
)
def test_letters_that_become_two(expression: str) -> None:
    for text, name in (("ßA", "a"), ("ﬁAb ŉc", "b"), ("ΑΣ ΑΣ", "c"), ("İA", "d")):
        pieces = [wrap(character, None, name) if index % 2 else character for index, character in enumerate(text)]
        assert CASES.fit(cells(evaluate(expression, {"s": combine(pieces)})), cells(combine(pieces)))


def test_what_is_added_is_the_templates() -> None:
    long = wrap("abcdefghij", None, "s")
    for expression, added in (
        ("s|truncate(3, true)", "..."),
        ("s|truncate(4, true, '…')", "…"),
        ("s|center(14)", "  "),
    ):
        assert cells(evaluate(expression, {"s": long}))[-len(added) :] == template(added)


# Filters and Markup, against transformers

FILTERS = [
    on("s|indent(n)", lambda s, n: indent(s, [(" ", None)] * n), n=NUMBERS),
    on("s|indent(n, true)", lambda s, n: indent(s, [(" ", None)] * n, True), n=NUMBERS),
    on("s|indent(n, blank=true)", lambda s, n: indent(s, [(" ", None)] * n, False, True), n=NUMBERS),
    on("s|indent(t, true, true)", lambda s, t: indent(s, t, True, True), t=T),
    on("s|trim", strip),
    on("s|trim(t)", strip, t=T),
    on("s|upper", CASES),
    on("s|lower", CASES),
    on("s|capitalize", CASES),
    on("s|title", CASES),
    on("s|replace(t, u)", replace, t=T, u=U),
    on("s|replace(t, u, n)", replace, t=T, u=U, n=NUMBERS),
    on("s|replace('', u)", lambda s, u: replace(s, [], u), u=U),
    on("items|join", lambda s, items: join([], items), items=LISTS),
    on("items|join(s)", join, items=LISTS),
    on("s|join(t)", lambda s, t: join(t, [[cell] for cell in s]), t=T),
    on("items|join(', ')", lambda s, items: join([(",", None), (" ", None)], items), items=LISTS),
    on("s|list", lambda s: [[cell] for cell in s]),
    on("s|reverse", lambda s: s[::-1]),
    on("s|string", lambda s: s),
    on("s ~ t", lambda s, t: s + t, t=U),
    on("s|default(t)", lambda s, t: s, t=U),
    on("s|default(t, true)", lambda s, t: s or t, t=U),
    on("items|map('trim')|join(s)", lambda s, items: join(s, [strip(item) for item in items]), items=LISTS),
    on("items|map('replace', s, '!')|list", items=LISTS),
    on("items|map('trim')|list", lambda s, items: list(map(strip, items)), items=LISTS),
    on("items|first", lambda s, items: items[0], items=LISTS),
    on("items|last", lambda s, items: items[-1], items=LISTS),
    on("s|first", lambda s: s[:1]),
    on("s|last", lambda s: s[-1:]),
    on("items|unique|list", Some(), items=LISTS),
    on("items|sort|list", Some(), items=LISTS),
    on("items|sort(reverse=true, case_sensitive=true)|list", Some(), items=LISTS),
    on("[items|max]", Some(), items=LISTS.filter(bool)),
    on("items|select('in', s)|list", Some(), items=LISTS),
    on("items|reject('equalto', s)|list", Some(), items=LISTS),
    on("s|batch(2, t)|list", lambda s, t: [[[c] for c in s[at : at + 2]] + ([t] if at + 1 == len(s) else [])
       for at in range(0, len(s), 2)], t=T),
    on("s|slice(2)|list"),
    on("s|center(n)", lambda s, n: padded(s, n, " ", lambda missing: missing // 2 + (missing & n & 1)), n=NUMBERS),
    on("s|truncate(n)", n=NUMBERS),
    on("s|truncate(3, true, t, 0)", lambda s, t: s if len(s) <= 3 else s[: 3 - len(t)] + t, t=T),
    on("s|wordwrap(3)"),
    on("s|wordcount"),
    on("s|length", lambda s: len(s)),
    on("s|e", ESCAPES),
    on("s|safe", lambda s: s),
    on("s|forceescape", ESCAPES),
    on("s|striptags"),
    on("s|urlencode"),
    on("s|urlize"),
    on("s|pprint"),
    on("[s, {t: 1}]|string", PRINTED, t=T),
    on("[s, {t: 1}] ~ ''", PRINTED, t=T),
    on("(s, t) ~ ''", t=T),
    on("[s]|pprint"),
    on("s|tojson", QUOTED),
    on("{'k': s, 'items': items}|tojson(indent=2)", items=LISTS),
    on("s|xmlattr"),
    on("{'k': s}|xmlattr"),
    on("{s: 1, t: 2}|dictsort", t=T),
    on("{'k': s}|items|list"),
    on("s|attr('upper')()", CASES),
    on("(s|e) + t", Forms(ESCAPES.of, lambda s, t: s + t), t=U),
    on("t + (s|e)", Forms(ESCAPES.of, lambda s, t: t + s), t=U),
    on("'<' + (s|safe) + '>'"),
    on("(s|e) ~ t", t=U),
    on("(s|e)[1:-1]", lambda s: escaped(s)[1:-1]),
    on("(s|e).strip()", lambda s: strip(escaped(s))),
    on("(s|e).split('&')", lambda s: split(escaped(s), template("&"))),
    on("(s|safe).replace('a', t)", lambda s, t: replace(s, template("a"), escaped(t)), t=U),
    on("(s|safe).join([t, '-'])", lambda s, t: escaped(t) + s + template("-"), t=U),
    on("('%s'|safe) % s", ESCAPES),
    on("('-{}-'|safe).format(s)", lambda s: template("-") + escaped(s) + template("-")),
    on("'%s'|format(s|e)", ESCAPES),
    on("(s|safe) * 2 + '<'"),
    on("(s|safe)[1:] + '<'"),
    on("(s|safe).strip() + '<'"),
    on("(s|safe).upper() + '<'"),
    on("(s|e)|trim + '<'"),
    on("(s|e)|upper + '<'"),
    on("(s|e)|replace('a', '<') + '<'"),
    on("(s|e)|string + '<'"),
    on("(s|safe)|indent(2) + '<'"),
    on("(s|safe)|list|join('<')"),
    on("(s|safe).split('a')|join('<') + '>'"),
    on("(s|safe).split('a')|first + '<'"),
    on("(s|safe).replace('a', '<') + '<'"),
    on("(s|safe).join(['<', t])", t=T),
    on("'<'.join([s|safe, t]) + '<'", t=T),
    on("('%s'|safe) % s"),
    on("('{}'|safe).format(s)"),
    on("('%s'|safe)|format(s) + '<'"),
    on("'%s'|format(s|safe) + '<'"),
    on("(s|safe)|default('') + '<'"),
    on("(s|safe)|e + '<'"),
    on("(s|safe)|forceescape + '<'"),
    on("[s|safe, t]|join('<') + '<'", t=T),
    on("((s|safe) == s, (s|safe) in [s], s|safe is string, s|safe is escaped, s is escaped)"),
    on("{(s|safe): 1}[s]"),
    on("[s|safe]|tojson"),
    on("(s|safe)|length"),
]  # fmt: skip


@cache
def theirs(expression: str) -> Any:
    from transformers.utils.chat_template_utils import _cached_compile_jinja_template

    return _cached_compile_jinja_template(f"{{{{ keep({expression}) }}}}")


def evaluate_theirs(expression: str, variables: dict[str, Any]) -> Any:
    kept: list[Any] = []
    theirs(expression).render(**variables, keep=lambda value: kept.append(value) or "")
    if isinstance(kept[0], Undefined):
        raise IndexError
    return kept[0]


@pytest.mark.parametrize("operation", FILTERS, ids=str)
def test_filter(operation: Operation) -> None:
    @EXAMPLES
    @given(st.fixed_dictionaries(operation.variables))
    @example({name: wrap("a<b", None, name) for name in operation.variables} | {"n": 3, "items": ["a", "<"]})
    def check(variables: dict[str, Any]) -> None:
        expected, error = attempt(evaluate_theirs, operation.expression, plain(variables))
        traced, traced_error = attempt(evaluate, operation.expression, variables)
        assert (plain(traced), traced_error) == (plain(expected), error)
        assert hasattr(traced, "__html__") == hasattr(expected, "__html__")
        found = cells(traced)
        if error is None:
            assert fits(operation.model, found, [cells(variables[name]) for name in operation.variables])

    check()


# Whatever the trace cannot follow

LETTERS = frozenset("qzjxQZJX")
"""Only the input has them."""
SPELLED = "<Qz>jx &lt;qzjx&gt; 'qz' \"jx\" http://qz.jx/zj\n\tqzjx %s %d {} {0!r:<9} &#113;Q\\z\x00J 🙂x"
SOURCES = [
    {"s": wrap(SPELLED, None, "s"), "t": "b", "u": wrap("zjx", None, "u")},
    {"s": combine(["<b>a b ", wrap(SPELLED, None, "s"), "&amp; <i>"]), "t": wrap("q", None, "t"), "u": "b"},
    {"s": "a b%s{}", "t": wrap("qz", None, "t"), "u": wrap(SPELLED, None, "u")},
]
UNFOLLOWED = """
{'a': s}|pprint ; [s, [u]]|pprint ; (s ~ t ~ u)|pprint ; {s: u}.items()|pprint ; namespace(a=s)|pprint
'{!r}'.format(s) ; '{!a}'.format(s) ; s.format() ; s.format(u, u) ; '{:{}}'.format('', u[0] ~ '<2')
'{!r:>200}'.format(s) ; '%*s' % (200, s) ; '%.*s' % (3, s) ; '%-*.*s|' % (9, 9, s) ; '%*s'|format(200, s) ; '%r' % s
'%a' % s ; '%c' % t[0] ; s % (u, 1) ; s|format(u, 1) ; '%(a)r' % {'a': s} ; '%s' % {'a': s}.items() ; {'a': s}.items()
{'a': s}.values() ; {s: 1}.keys() ; {s: u}|items ; {s: 1}.keys() - [] ; {'a': {s: u}.items()}
[{'a': s}]|groupby('a') ; [{'a': s}]|groupby('a')|list ; [{'a': s}]|groupby('a')|first ; [{'a': s}]|groupby('a') ~ ''
namespace(a=s) ; [namespace(a=s, b=[u])] ; namespace(**{s: u}) ; dict(**{s: u}) ; dict(a=s).copy() ; (s,)
{}.fromkeys(s) ; s.encode() ; [s.encode()] ; s.encode().decode() ; s.encode()[1:].decode()
s.encode().upper().lower().strip().decode() ; (s.encode() * 2)|string ; s.encode() ~ ''
('a'.encode() + s.encode()).decode() ; ('%a'.encode() % s).decode() ; ('%b'.encode() % s.encode()).decode()
(s.encode() % ()).decode() ; '%s' % s.encode() ; s.encode()|pprint ; s.encode().hex() ; '%c' % s.encode()[1]
'%c%c' % (s.encode()|list)[:2] ; s.encode('utf-16').decode('utf-16') ; s.encode('ascii', 'ignore') ; strftime_now(s)
strftime_now(s ~ ' a') ; cycler(s, u).next() ; [cycler(s).items] ; s|striptags ; (s|e)|striptags
('<b>a' ~ s ~ '</b>')|striptags ; (s ~ '<a>' ~ u)|striptags ; 'a <b> http://a.b'|urlize(9, 0, s, u)
s|wordwrap(2, true, u) ; 'a b'|wordwrap(1, true, s) ; s|urlize ; {'a': s}|xmlattr ; {'a': s}|urlencode
{s: u}|urlencode ; 'ab'.translate({97: s}) ; s.translate({97: u, 98: ''}) ; 'ab'.translate('a'.maketrans('a', t[0]))
'a'.center(9, t[0]) ; 'a'.ljust(9, t[0]) ; 'a'.rjust(9, t[0]) ; s|center(200) ; 'a'|indent(s, true)
'aaaa'|truncate(3, true, t, 0) ; 'a'|replace('a', s) ; {s: 1}|tojson ; [1]|tojson(indent=s)
[1, {'a': 2}]|tojson(separators=(s, u)) ; s|tojson|fromjson ; s|filesizeformat ; s|int(s) ; s|float(s)
[s]|map('pprint')|list ; [s]|map('striptags')|join ; [[s]]|sum(start=[]) ; [s]|random ; [s, u]|min
[{'a': s}]|map(attribute='a')|list ; [{'a': s}]|selectattr('a')|list ; [{}]|rejectattr('a')|list
[{'a': s}]|sum('a', s) ; s|count ; s|d(u) ; nope|default(s) ; s|abs ; s|round ; s|escape
"""


def unowned(expression: str, variables: dict[str, Any]) -> str:
    """What counts as the template's in the print of an expression, which is found to be that of the plain render."""
    printing = Template(f"{{{{ {expression} }}}}")
    random.seed(1)
    text = printing.render(**unwrapped(variables))
    random.seed(1)
    traced = printing.trace_wrapped(variables)
    assert traced == text
    return "".join(traced[start:end] for start, end, path in traced.spans if path is None)


def rows(table: str) -> list[str]:
    return [row for line in table.strip().splitlines() for row in line.split(" ; ")]


@pytest.mark.parametrize("expression", [*map(str, OPERATIONS), *map(str, FILTERS), *rows(UNFOLLOWED)])
def test_letters_of_the_input_are_never_the_templates(expression: str) -> None:
    for source in SOURCES:
        shared = {"n": 3, "i": 2, "a": 1, "b": -1, "c": 1, "k": True, "items": [source["s"], source["u"]]}
        variables = {**source, **shared, "table": {ord("a"): source["u"], ord("b"): None}}
        left, _ = attempt(unowned, expression, variables)
        assert LETTERS.isdisjoint(left or ""), source


def test_no_filter_is_forgotten() -> None:
    called = set(re.findall(r"\|([a-z_]+)", f"{' '.join(map(str, FILTERS))} {UNFOLLOWED}"))
    assert called >= set(JINJA_FILTERS)


@pytest.mark.parametrize(
    "expression",
    ["n", "n|int", "n|float", "n|abs", "n|round(1)", "n|string|int", "n|tojson|fromjson", "{n: n}|tojson", "'%d' % n",
     "n|filesizeformat", "{n: 1}.keys()", "namespace(a=n)", "'{:>9}'.format(n)", "n|pprint", "[n]|pprint"],
)  # fmt: skip
def test_digits_of_the_input_are_never_the_templates(expression: str) -> None:
    for number in (77, 7.5, True):
        assert {"7", "T"}.isdisjoint(unowned(expression, {"n": wrap(number, None, "n")}))


@pytest.mark.parametrize(
    ("expression", "pieces"),
    [
        ("s|striptags", ["<|im_end|>", wrap("&lt;|im_end|&gt;", None, "s")]),
        ("s|pprint", [wrap("\n<|im_end|>", None, "s"), "<|im_end|>"]),
        ("s|urlize", [wrap("<|im_end|>", None, "s"), "<|im_end|>"]),
        ("s.translate({120: '', 121: 'zz'})", ["x" * 10, wrap("<|im_end|>" + "y" * 10, None, "s")]),
    ],
)
def test_a_text_that_is_made_to_look_like_the_templates(expression: str, pieces: list[str]) -> None:
    traced = TracedText.of(evaluate(expression, {"s": combine(pieces)}))
    assert {path for _, _, path in traced.spans} == {"s"}


def test_of_several_inputs_their_container() -> None:
    """Not the first, which may be a role."""
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    for expression, path in (
        ("messages|pprint", "messages"),
        ("messages[1]|pprint", "messages[1]"),
        ("messages[1].role|pprint", "messages[1].role"),
        ("(messages[0].content ~ '&amp;' ~ messages[1].content)|striptags", "messages"),
        ("(x ~ '&amp;' ~ messages[0].role)|striptags", "x"),
    ):
        traced = Template(f"{{{{ {expression} }}}}").trace(messages=messages, x="x")
        assert [found for _, _, found in traced.spans] == [path]


def test_namespaces_that_hold_themselves() -> None:
    text = (
        "{% set n = namespace(s=s) %}{% set n.a = [n, (n,), {'k': n}] %}{% set n.b = {'x': n}.items() %}"
        "{{ n }}{{ n.a }}{{ n.b }}{{ n.a[1] }}{{ n.a|pprint }}"
    )
    traced = Template(text).trace(s=SPELLED)
    assert traced == Template(text).render(s=SPELLED)
    assert LETTERS.isdisjoint("".join(traced[a:b] for a, b, path in traced.spans if path is None).replace("'x'", ""))


# JSON

KEYS = st.text(FEW | CHARACTERS, max_size=3)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | KEYS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=8,
)
ODD_KEYS = KEYS | st.integers(-2, 2) | st.floats() | st.booleans() | st.none() | st.just((1,))
ODD_JSON: Any = st.recursive(
    JSON | st.just(object()) | st.just({1}),
    lambda values: st.lists(values, max_size=3).map(tuple) | st.dictionaries(ODD_KEYS, values, max_size=3),
    max_leaves=8,
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", " : "), ("\t,\n", "=>")])
LAYOUTS = st.fixed_dictionaries(
    {},
    optional={
        "ensure_ascii": st.booleans(),
        "indent": st.none() | st.integers(-1, 3) | st.booleans() | st.sampled_from(["", "\t", "~>"]),
        "separators": st.none() | SEPARATORS | SEPARATORS.map(list),
        "sort_keys": st.booleans(),
    },
)


@MANY
@given(ODD_JSON, LAYOUTS, st.booleans())
def test_dumps(value: Any, layout: dict[str, Any], traced: bool) -> None:
    expected, error = attempt(lambda: json.dumps(value, **{"ensure_ascii": False, **layout}))
    written, written_error = attempt(lambda: jsontext.dumps(wrap(value, None, "v") if traced else value, **layout))
    assert (plain(written), written_error) == (expected, error)


TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|([-+\w.]+)')


@MANY
@given(JSON, LAYOUTS)
def test_json_belongs_to_its_values(value: Any, layout: dict[str, Any]) -> None:
    text = jsontext.dumps(wrap(value, None, "v"), **layout)
    owners = [path for _, path in cells(text)]
    expected = scalars(value, "v", layout.get("sort_keys", False))
    for match, path in zip(TOKEN.finditer(plain(text)), expected, strict=True):
        start, end = match.span(1 if match[1] is not None else 2)
        assert set(owners[start:end]) <= {path}
        owners[start:end] = [None] * (end - start)
    assert set(owners) <= {None}


def scalars(value: Any, path: str, ordered: bool, in_list: bool = True) -> Iterator[str | None]:
    """The paths of the strings, numbers and constants, as they stand in the JSON."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from scalars(item, f"{path}[{index}]", ordered)
    elif isinstance(value, dict):
        for key, item in sorted(value.items()) if ordered else value.items():
            inner = path + (f".{key}" if re.fullmatch(r"[^\W\d]\w*", key) else f"[{key!r}]")
            yield inner
            yield from scalars(item, inner, ordered, False)
    else:
        yield None if value is None and in_list else path


@MANY
@given(JSON.map(json.dumps) | st.text('[]{},:"\\ntrueflas01.-+e \n', max_size=8) | st.sampled_from(["NaN", "\ufeff1"]))
def test_loads(text: str) -> None:
    expected, error = attempt(json.loads, text)
    parsed, parsed_error = attempt(jsontext.loads, wrap(text, None, "s"))
    assert (repr(unwrapped(parsed)), parsed_error) == (repr(expected), error)
    assert attempt(jsontext.loads, text)[1] == error
    for origin, leaf in leaves(parsed):
        assert path_of(origin) == "s" if parsed is leaf else find(expected, path_of(origin)) == plain(leaf)


def leaves(value: Any) -> Iterator[tuple[Any, str]]:
    """The texts in a value with their origins."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    elif isinstance(value, Traced):
        yield spans_of(value)[0][2], value


STEP = re.compile(r"""\.([^\W\d]\w*)|\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^]'"]*)\]""")


def find(value: Any, path: str) -> Any:
    """What stands at `path` in a variable's value."""
    position = re.match(r"\w+", path).end()  # type: ignore[union-attr]
    while position < len(path):
        step = STEP.match(path, position)
        assert step, path[position:]
        value = value[step[1] if step[1] is not None else ast.literal_eval(step[2])]
        position = step.end()
    return value


@MANY
@given(
    st.recursive(
        st.text(min_size=1, max_size=2),
        lambda values: (
            st.lists(values, max_size=3)
            | st.dictionaries(st.text(max_size=3) | KEYS | st.integers() | st.none(), values, max_size=3)
        ),
        max_leaves=6,
    )
)
@example(
    {"a b": "x", "it's": "x", '"': "x", "'\"": "x", "\n": "x", "": "x", "0": "x", "ª": "x", "a\n": "x", "class": "x"}
)
@example({1: "x", "1": "y", None: "z", "None": ["x", {"[0]": "x", ".b": "y", "]": "z"}]})
def test_paths_lead_to_their_texts(value: Any) -> None:
    for origin, leaf in leaves(wrap(value, None, "v")):
        assert find(value, path_of(origin)) == leaf


@EXAMPLES
@given(st.integers() | st.floats() | st.booleans())
def test_numbers_print_as_themselves(number: Any) -> None:
    for expression in ("{{ n }}", "{{ n ~ '' }}", "{{ [n] }}", "{{ n|string }}", "{{ '%s' % n }}", "{{ {'a': n} }}"):
        template = Template(expression)
        assert template.trace(n=number) == template.render(n=number)
        assert "n" in {path for _, _, path in template.trace(n=number).spans}
