"""Text that remembers who wrote it.

A `Traced` is a `str` in which ranges of characters carry an origin, the place in the input that wrote them; characters
in no range were written by the template. Its methods are those of `str`, and what they return is traced again. Text
in which nothing is traced is a plain `str`.

Where a change cannot be followed, all that comes out belongs to the input that went in, or to the container of several:
text that may be the input's never counts as the template's. Numbers that a template computes are its own.

The strings and numbers of the input are their own origins: each knows the container that it stands in and its key
there, and a range refers to it. A container's origin, and that of a null in it, is the tuple `(parent, key)`; a
variable's parent is None.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index
from typing import Any, Self, SupportsIndex, TypeAlias

from markupsafe import escape

from .objects import Namespace

Origin: TypeAlias = Any
Span: TypeAlias = tuple[int, int, Origin]
Spans: TypeAlias = tuple[Span, ...]

_IDENTIFIER = re.compile(r"[^\W\d]\w*\Z")
_new: Callable[[type, str], Any] = str.__new__


def make(text: str, spans: Spans) -> str:
    if not spans:
        return text
    traced = _new(Traced, text)
    traced._spans = spans
    return traced  # type: ignore[no-any-return]


def spans_of(text: str) -> Spans:
    if not isinstance(text, Traced):
        return ()
    if text._spans is not None:
        return text._spans
    return ((0, len(text), text),) if text else ()


def part(spans: Spans, start: int, end: int) -> Spans:
    """The spans of the characters from `start` to `end`, counted from `start`."""
    if len(spans) == 1:
        first, last, origin = spans[0]
        first, last = max(first, start), min(last, end)
        return ((first - start, last - start, origin),) if first < last else ()
    found = []
    for place in range(max(bisect_right(spans, (start,)) - 1, 0), len(spans)):
        first, last, origin = spans[place]
        if first >= end:
            break
        first, last = max(first, start), min(last, end)
        if first < last:
            found.append((first - start, last - start, origin))
    return tuple(found)


def piece(text: str, start: int, end: int) -> str:
    return make(str.__getitem__(text, slice(start, end)), part(spans_of(text), start, end))


def combine(parts: Iterable[str]) -> str:
    parts = parts if isinstance(parts, list | tuple) else list(parts)
    spans: list[Span] = []
    position = 0
    for text in parts:
        length = len(text)
        if type(text) is not str and isinstance(text, Traced):
            if text._spans is None:
                if length:
                    spans.append((position, position + length, text))
            else:
                for start, end, origin in text._spans:
                    spans.append((position + start, position + end, origin))
        position += length
    return make("".join(parts), tuple(spans))


def by_segment(text: str, change: Callable[[str], str]) -> str:
    """`change(text)` for a change that treats each character by itself."""
    plain = str.__str__(text)
    spans = spans_of(text)
    changed = change(plain)
    if not spans or not changed:
        return changed
    if len(spans) == 1 and spans[0][0] == 0 and spans[0][1] == len(plain):
        return make(changed, ((0, len(changed), spans[0][2]),))
    if len(changed) == len(plain):
        return make(changed, spans)
    parts: list[str] = []
    position = 0
    for start, end, origin in spans:
        parts.append(change(plain[position:start]))
        segment = change(plain[start:end])
        parts.append(make(segment, ((0, len(segment), origin),) if segment else ()))
        position = end
    parts.append(change(plain[position:]))
    whole = combine(parts)
    return whole if whole == changed else recased(changed, text)


def recased(changed: str, text: str) -> str:
    """`changed`, which is `text` in other case: each character became its lower, upper or title form."""
    owners = _owners(text)
    found: list[Origin | None] = []
    for character, owner in zip(str.__str__(text), owners, strict=True):
        forms = (character, character.lower(), character.upper(), character.title())
        fitting = [form for form in forms if str.startswith(changed, form, len(found))]
        if not fitting:
            return realign(changed, text)
        found += [owner] * len(max(fitting, key=len))
    return make(str(changed), _runs(found)) if len(found) == len(changed) else realign(changed, text)


def realign(result: str, source: str) -> str:
    """`result`, made from `source` by some unknown change, traced.

    Where only white space has changed, each character keeps its origin; else all belongs to the input in `source`.
    """
    text = str.__str__(result)
    spans = spans_of(source)
    if not spans or text == source:
        return make(text, spans)
    if "".join(text.split()) != "".join(str.split(source)):
        return written(text, origin_in(source))
    letters: list[Origin | None] = []
    gaps: list[Origin | None] = [None]  # who wrote of the white space in front of each letter
    for character, owner in zip(str.__str__(source), _owners(source), strict=True):
        if not character.isspace():
            letters.append(owner)
            gaps.append(None)
        elif gaps[-1] is None:
            gaps[-1] = owner
    found: list[Origin | None] = []
    count = 0
    for character in text:
        found.append(gaps[count] if character.isspace() else letters[count])
        count += not character.isspace()
    return make(text, _runs(found))


def claimed(text: str, *values: Any) -> str:
    """`text`, in which all that has no owner belongs to the input in `values`."""
    origin = origin_in(values)
    if origin is None:
        return text
    return make(str.__str__(text), _runs([origin if owner is None else owner for owner in _owners(text)]))


def origin_in(value: Any) -> Origin | None:
    """Who wrote what a print of `value` has from the input: one string or number, or else the container of all.

    It is not the first of them: that may be a role or a name, which others take for the template's own words.
    """
    if isinstance(value, TracedInt | TracedFloat | TracedBool):
        return value
    texts = (value,) if isinstance(value, str) else _printed(value)
    found = {id(origin): origin for text in texts for _, _, origin in spans_of(text)}
    if len(found) < 2:
        return next(iter(found.values()), None)
    container: Origin = None
    for place, keys in enumerate(zip(*map(keys_of, found.values()), strict=False)):
        if place and any(key != keys[0] for key in keys):
            break
        container = (container, keys[0])
    return container


def _owners(text: str) -> list[Origin | None]:
    owners: list[Origin | None] = [None] * len(text)
    for start, end, origin in spans_of(text):
        owners[start:end] = [origin] * (end - start)
    return owners


def _runs(owners: Sequence[Origin | None]) -> Spans:
    spans: list[Span] = []
    for position, owner in enumerate(owners):
        if owner is None:
            continue
        if spans and spans[-1][1] == position and spans[-1][2] is owner:
            spans[-1] = (spans[-1][0], position + 1, owner)
        else:
            spans.append((position, position + 1, owner))
    return tuple(spans)


class Traced(str):
    """A string with origins. Its methods may be called on plain strings too: `Traced.strip(text)`."""

    __slots__ = ("_key", "_parent", "_spans")
    _spans: Spans | None
    """None where the whole text is the input's, and so its own origin."""
    _parent: Origin
    _key: Any

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        if hasattr(other, "__html__"):
            return TracedMarkup.join_escaped((self, other))
        return combine((self, other))

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return combine((other, self))

    def __mul__(self, count: SupportsIndex) -> str:
        return combine([self] * index(count))

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return percent(self, values)

    def __rmod__(self, template: str) -> str:
        return percent(template, self)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        text = str.__getitem__(self, key)
        if not isinstance(key, slice):
            start = index(key) % len(self)
            return make(text, part(spans_of(self), start, start + 1))
        start, stop, step = key.indices(len(self))
        if step == 1:
            return make(text, part(spans_of(self), start, stop))
        return make(text, _runs(_owners(self)[key]))

    def __iter__(self) -> Iterator[str]:
        plain = str.__str__(self)
        for position, owner in enumerate(_owners(self)):
            yield make(plain[position], ((0, 1, owner),) if owner is not None else ())

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def lower(self) -> str:
        return by_segment(self, str.lower)

    def upper(self) -> str:
        return by_segment(self, str.upper)

    def casefold(self) -> str:
        return by_segment(self, str.casefold)

    def swapcase(self) -> str:
        return by_segment(self, str.swapcase)

    def capitalize(self) -> str:
        return by_segment(self, str.capitalize)

    def title(self) -> str:
        return by_segment(self, str.title)

    def translate(self, table: Any) -> str:
        changed = str.translate(self, table)
        spans = spans_of(self)
        if len(spans) == 1 and spans[0][:2] == (0, len(self)):
            return written(changed, spans[0][2])
        return combine([_translated(character, table) for character in Traced.__iter__(self)])

    def expandtabs(self, tabsize: Any = 8) -> str:
        parts: list[str] = []
        position = column = 0
        for match in re.finditer(r"[\t\n\r]", self):
            parts.append(piece(self, position, match.start()))
            column += match.start() - position
            position = match.end()
            mark = piece(self, match.start(), position)
            if match[0] == "\t":
                width = tabsize - column % tabsize if tabsize > 0 else 0
                mark = by_segment(mark, lambda _, width=width: " " * width)  # type: ignore[misc]
                column += width
            else:
                column = 0
            parts.append(mark)
        parts.append(piece(self, position, len(self)))
        return combine(parts)

    def zfill(self, width: SupportsIndex) -> str:
        zeros = "0" * (len(str.zfill(self, width)) - len(self))
        sign = 1 if zeros and self[:1] in ("+", "-") else 0
        return combine((piece(self, 0, sign), zeros, piece(self, sign, len(self))))

    def strip(self, chars: str | None = None) -> str:
        start = len(self) - len(str.lstrip(self, chars))
        return piece(self, start, max(len(str.rstrip(self, chars)), start))

    def lstrip(self, chars: str | None = None) -> str:
        return piece(self, len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None) -> str:
        return piece(self, 0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        return piece(self, len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        return piece(self, 0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return _located(self, str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return _located(self, str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = []
        position = 0
        for whole, line in zip(str.splitlines(self, True), str.splitlines(self, keepends), strict=True):
            lines.append(piece(self, position, position + len(line)))
            position += len(whole)
        return lines

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        head, middle, _ = str.partition(self, sep)
        return _parted(self, len(head), len(head) + len(middle))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        head, middle, _ = str.rpartition(self, sep)
        return _parted(self, len(head), len(head) + len(middle))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        changed = str.replace(self, old, new, count)
        if changed == self or not (isinstance(self, Traced) or isinstance(new, Traced)):
            return changed if not isinstance(self, Traced) else self if changed == self else changed
        limit = count.__index__()
        parts: list[str] = []
        position = start = 0
        while limit != 0 and (found := str.find(self, old, start)) >= 0:
            parts += (piece(self, position, found), new)
            position = found + len(old)
            start = position if old else found + 1
            limit -= 1
            if start > len(self):
                break
        parts.append(piece(self, position, len(self)))
        return combine(parts)

    def join(self, items: Iterable[str], /) -> str:
        items = list(items)
        if not all(isinstance(item, str) for item in items):
            str.join(self, items)  # raises the error that str raises
        parts: list[str] = []
        for item in items:
            parts += (self, item) if parts else (item,)
        return combine(parts)

    def ljust(self, width: SupportsIndex, fillchar: str = " ", /) -> str:
        return _padded(str.ljust(self, width, fillchar), self, 0, fillchar)

    def rjust(self, width: SupportsIndex, fillchar: str = " ", /) -> str:
        text = str.rjust(self, width, fillchar)
        return _padded(text, self, len(text) - len(self), fillchar)

    def center(self, width: SupportsIndex, fillchar: str = " ", /) -> str:
        text = str.center(self, width, fillchar)
        padding = len(text) - len(self)
        return _padded(text, self, padding // 2 + (padding & width.__index__() & 1), fillchar)


class TracedMarkup(Traced):
    """What `|safe` and `|escape` give: whatever it is put together with is escaped, as by markupsafe's `Markup`."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> TracedMarkup:
        markup: TracedMarkup = _new(cls, text)
        markup._spans = spans_of(text)
        return markup

    @classmethod
    def join_escaped(cls, parts: Iterable[str]) -> TracedMarkup:
        return cls.of(combine([_safe(part) for part in parts]))

    def __html__(self) -> str:
        return self

    def __str__(self) -> str:
        return make(str.__str__(self), spans_of(self))

    def __repr__(self) -> str:
        return f"Markup({str.__repr__(self)})"

    def __add__(self, other: str) -> str:
        return self.join_escaped((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return self.join_escaped((other, self)) if isinstance(other, str) else NotImplemented

    def __mod__(self, values: Any) -> str:
        if isinstance(values, tuple):
            return self.of(percent(self, tuple(map(_safe, values))))
        if isinstance(values, dict):
            return self.of(percent(self, {name: _safe(value) for name, value in values.items()}))
        return self.of(percent(self, _safe(values)))

    def join(self, items: Iterable[str], /) -> str:
        return self.of(Traced.join(self, [_safe(item) for item in items]))


def _as_markup(result: Any) -> Any:
    if isinstance(result, str):
        return TracedMarkup.of(result)
    return type(result)(map(TracedMarkup.of, result)) if isinstance(result, list | tuple) else result


def _markup_method(name: str) -> Callable[..., Any]:
    method = getattr(Traced, name)
    escapes = name in ("replace", "ljust", "rjust", "center")

    def run(self: TracedMarkup, *args: Any, **kwargs: Any) -> Any:
        if escapes and len(args) > 1:
            args = (args[0], _safe(args[1]), *args[2:])
        return _as_markup(method(self, *args, **kwargs))

    return run


_SAME_KIND = """
    __mul__ __rmul__ __getitem__ lower upper casefold swapcase capitalize title translate expandtabs zfill strip lstrip
    rstrip removeprefix removesuffix split rsplit splitlines partition rpartition replace ljust rjust center
"""
for _name in _SAME_KIND.split():
    setattr(TracedMarkup, _name, _markup_method(_name))


class TracedMethods:
    """The methods of strings, plain or traced, as functions: `TracedMethods().strip(text)`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def run(text: str, *args: Any, **kwargs: Any) -> Any:
            kind = type(text) if isinstance(text, Traced) else Traced
            return getattr(kind, name)(text, *args, **kwargs)

        return run


def _safe(value: Any) -> Any:
    return escaped(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def escaped(text: str) -> str:
    return by_segment(text, lambda plain: str(escape(plain)))


def _parted(text: str, first: int, second: int) -> tuple[str, str, str]:
    return piece(text, 0, first), piece(text, first, second), piece(text, second, len(text))


def _placed(text: str, inner: str, start: int) -> str:
    return make(text, tuple((start + first, start + last, origin) for first, last, origin in spans_of(inner)))


def _padded(text: str, inner: str, start: int, fill: str) -> str:
    if not isinstance(fill, Traced):
        return _placed(text, inner, start)
    return combine((fill * start, inner, fill * (len(text) - len(inner) - start)))


def _translated(character: str, table: Any) -> str:
    """`character.translate(table)`; what the table has from the input stays the input's."""
    changed = str.translate(character, table)
    if isinstance(character, Traced):
        return by_segment(character, lambda _: changed)
    try:
        return claimed(changed, table[ord(character)])
    except LookupError:
        return changed


def _located(text: str, pieces: list[str], separator: str | None) -> list[str]:
    """`pieces`, found in `text` one after the other."""
    if not isinstance(text, Traced):
        return pieces
    found = []
    position = 0
    for plain in pieces:
        if separator is None:
            position = str.find(text, plain, position)
        found.append(make(plain, part(spans_of(text), position, position + len(plain))))
        position += len(plain) + len(separator or "")
    return found


_DIRECTIVE = re.compile(
    r"%(?:\((?P<key>[^)]*)\))?(?P<layout>[-#0 +]*(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d*))?)[hlL]?(?P<kind>.)",
    re.DOTALL,
)


def percent(template: str, values: Any) -> str:
    """`template % values`, traced."""
    text = str.__mod__(str.__str__(template), values)
    positional = list(values) if isinstance(values, tuple) else [values]
    parts: list[str] = []
    position = 0
    for match in _DIRECTIVE.finditer(template):
        parts.append(piece(template, position, match.start()))
        position = match.end()
        if match["kind"] == "%":
            parts.append(piece(template, position - 1, position))
            continue
        sizes = [positional.pop(0) for size in (match["width"], match["precision"]) if size == "*"]
        value = values[match["key"]] if match["key"] is not None else positional.pop(0)
        formatted = str.__mod__(f"%{match['layout']}{match['kind']}", (*sizes, value))
        parts.append(within(formatted, value))
    parts.append(piece(template, position, len(template)))
    whole = combine(parts)
    return whole if whole == text else claimed(text, template, values)


def within(formatted: str, value: Any) -> str:
    """`formatted`, the layout of `value` to some width: where the value's own text stands in it, it is traced."""
    text = as_text(value)
    if not isinstance(text, Traced):
        return formatted
    for shown in (text, combine(list(_printed(value)))):
        start = str.find(formatted, shown)
        if start >= 0:
            return _placed(formatted, shown, start)
    return realign(formatted, text)


# -- values


class TracedKey(Traced):
    """A key of a dict, written by the dict that holds it."""

    __slots__ = ()


class TracedInt(int):
    _parent: Origin
    _key: Any

    def __str__(self) -> str:
        return written(int.__repr__(self), self)


class TracedFloat(float):
    _parent: Origin
    _key: Any

    def __str__(self) -> str:
        return written(float.__repr__(self), self)


class TracedBool(int):
    """A bool that knows its origin; Python lets nobody derive from bool itself."""

    _parent: Origin
    _key: Any

    def __repr__(self) -> str:
        return "True" if self else "False"

    def __str__(self) -> str:
        return written(repr(self), self)


class TracedBytes(bytes):
    """The bytes of a traced text, and what is made of them."""

    _text: str

    @classmethod
    def of(cls, value: Any, text: str) -> Any:
        """`value`, made from the bytes of `text`, traced."""
        if isinstance(value, str):
            return realign(value, text)
        if not isinstance(value, bytes) or not spans_of(text):
            return as_input(value, text) if type(value) is int else value
        traced = cls(value)
        traced._text = text
        return traced

    def __iter__(self) -> Iterator[int]:
        return iter([as_input(number, self._text) for number in bytes.__iter__(self)])

    def __radd__(self, other: bytes) -> Any:
        return TracedBytes.of(bytes.__add__(other, self), self._text)


def _bytes_method(name: str) -> Callable[..., Any]:
    method = getattr(bytes, name)

    def run(self: TracedBytes, *args: Any, **kwargs: Any) -> Any:
        return TracedBytes.of(method(self, *args, **kwargs), self._text)

    run.__name__ = name  # by which the sandbox knows it
    return run


_MADE_OF_BYTES = """
    __add__ __mul__ __rmul__ __mod__ __getitem__ __repr__ __str__ decode hex lower upper strip
"""
for _name in _MADE_OF_BYTES.split():
    setattr(TracedBytes, _name, _bytes_method(_name))


_NUMBERS: dict[type, Any] = {int: TracedInt, float: TracedFloat, bool: TracedBool}


def written(text: str, origin: Origin) -> str:
    """`text`, all of it written by `origin`."""
    return make(text, ((0, len(text), origin),) if text else ())


def wrap(value: Any, parent: Origin, key: Any) -> Any:
    """A copy of `value`, which stands under `key` in `parent`, whose strings, numbers and keys know their place."""
    kind = type(value)
    if kind is str:
        return _leaf(Traced, value, parent, key) if value else value
    if kind is dict or kind is list or kind is tuple:
        return wrap_items(value, (parent, key))
    if kind in _NUMBERS:
        number = _NUMBERS[kind](value)
        number._parent = parent
        number._key = key
        return number
    return value


def as_input(value: Any, source: Any) -> Any:
    """`value`, read off `source`, as the input in that has it: with paths that go on from there."""
    origin = origin_in(source)
    if origin is None:
        return value
    return wrap(value, *origin) if type(origin) is tuple else wrap(value, origin._parent, origin._key)


def wrap_items(value: Any, origin: Origin) -> Any:
    """A copy of a container that stands at `origin`, with all that it holds wrapped."""
    if type(value) is dict:
        return {
            (_leaf(TracedKey, name, origin, name) if type(name) is str else name): (
                _leaf(Traced, item, origin, name) if type(item) is str and item else wrap(item, origin, name)
            )
            for name, item in value.items()
        }
    return type(value)([wrap(item, origin, index) for index, item in enumerate(value)])


def _leaf(kind: type[Traced], value: str, parent: Origin, key: Any) -> Traced:
    leaf: Traced = _new(kind, value)
    leaf._spans = None
    leaf._parent = parent
    leaf._key = key
    return leaf


def as_text(value: Any) -> str:
    """`str(value)`, traced also where strings stand inside containers."""
    return combine(list(_printed(value))) if isinstance(value, _CONTAINERS) else str(value)


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), dict: ("{", "}")}
_CONTAINERS = (*_BRACKETS, *_VIEWS, Namespace)


def _printed(value: Any, outer: tuple[int, ...] = ()) -> Iterator[str]:
    """`repr(value)` in pieces, for a value that stands in the containers with the ids `outer`."""
    kind = type(value)
    if kind in _BRACKETS:
        yield from _bracketed(kind, value, outer)
    elif isinstance(value, str):
        yield from _quoted(value)
    elif isinstance(value, TracedInt | TracedFloat | TracedBool):
        yield str(value)
    elif kind is Namespace:
        yield "<Namespace "
        yield from _printed(value._attrs, outer)
        yield ">"
    elif kind in _VIEWS:
        inner = _printed(list(value), (*outer, id(value)))
        yield from ("...",) if id(value) in outer else (kind.__name__, "(", *inner, ")")
    elif isinstance(value, tuple):
        plain, traced = repr(value), combine(list(_bracketed(tuple, value, outer)))
        yield traced if traced == plain else claimed(plain, traced)
    else:
        yield repr(value)


def _bracketed(kind: type, value: Any, outer: tuple[int, ...]) -> Iterator[str]:
    start, end = _BRACKETS[kind]
    if id(value) in outer:  # a namespace holds what holds it
        yield f"{start}...{end}"
        return
    if kind is set and not value:
        yield "set()"
        return
    outer = (*outer, id(value))
    yield start
    for place, item in enumerate(value):
        if place:
            yield ", "
        yield from _printed(item, outer)
        if kind is dict:
            yield ": "
            yield from _printed(value[item], outer)
    yield ",)" if kind is tuple and len(value) == 1 else end


def _quoted(value: str) -> Iterator[str]:
    if isinstance(value, TracedMarkup):
        yield "Markup("
        yield from _quoted(str(value))
        yield ")"
    elif isinstance(value, Traced):
        quoted = repr(str.__str__(value))
        yield quoted[0]
        mark = '"' if quoted[0] == "'" else "'"  # in front of it, each part is quoted as the whole is
        yield by_segment(value, lambda part: repr(mark + part)[2:-1])
        yield quoted[-1]
    else:
        yield repr(value)


def keys_of(origin: Origin) -> list[Any]:
    """Where an origin stands in the input, from the outside: the variable's name, then keys and indices."""
    keys = []
    node = origin
    while node is not None:
        parent, key = node if type(node) is tuple else (node._parent, node._key)
        keys.append(key)
        node = parent
    keys.reverse()
    return keys


def path_of(origin: Origin) -> str:
    """An origin as people write it: `messages[3].tool_calls[0].function.arguments.city`."""
    keys = keys_of(origin)
    path = str(keys[0])
    for key in keys[1:]:
        if isinstance(key, str):
            path += f".{key}" if _IDENTIFIER.match(key) else f"[{key!r}]"
        else:
            path += f"[{key}]"
    return path


def untraced(value: Any) -> Any:
    """A copy of `value` in plain builtin types."""
    if isinstance(value, str):
        return str.__str__(value) if isinstance(value, Traced) else value
    if isinstance(value, TracedBool):
        return bool(value)
    if isinstance(value, TracedInt | TracedFloat):
        return int(value) if isinstance(value, TracedInt) else float(value)
    if isinstance(value, TracedBytes):
        return bytes(value)
    if type(value) is dict:
        return {untraced(name): untraced(item) for name, item in value.items()}
    return type(value)(map(untraced, value)) if type(value) in (list, tuple) else value


class TracedText(str):
    """The result of a traced render.

    `spans` are `(start, end, path)` in characters, in order and without gap over the whole text; path is None for what
    the template itself wrote. `origins` are the traced ranges alone, as origins.
    """

    origins: Spans

    @classmethod
    def of(cls, text: str) -> TracedText:
        traced = cls(str.__str__(text))
        traced.origins = spans_of(text)
        return traced

    @property
    def spans(self) -> list[tuple[int, int, str | None]]:
        spans: list[tuple[int, int, str | None]] = []
        position = 0
        for start, end, origin in self.origins:
            if position < start:
                spans.append((position, start, None))
            path = path_of(origin)
            if spans and spans[-1][2] == path and spans[-1][1] == start:
                start = spans.pop()[0]
            spans.append((start, end, path))
            position = end
        if position < len(self):
            spans.append((position, len(self), None))
        return spans
