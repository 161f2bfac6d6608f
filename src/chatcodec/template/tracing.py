"""What compiled templates call when the render is traced: `runtime`'s names, with those that make text replaced.

Traced are the variables, or, where these are plain, the output of generation blocks: then each is an origin. What the
trace cannot follow belongs to the input that went in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from jinja2.utils import url_quote

from . import jsontext, runtime
from .budget import Meter, current_meter
from .environment import ChatEnvironment
from .filters import Filter, check_filter, guarded_filters
from .methods import Formatter, StringMethods, check_braces, check_percent, pay
from .traced import (
    Traced,
    TracedBool,
    TracedBytes,
    TracedKey,
    TracedMarkup,
    TracedMethods,
    as_input,
    as_text,
    by_segment,
    claimed,
    combine,
    escaped,
    percent,
    realign,
    recased,
    spans_of,
    untraced,
    within,
    wrap,
)

__all__ = ["marking_namespace", "namespace"]

TEXT = (str, Traced, TracedKey)


# -- text


def join(meter: Meter, parts: Sequence[str]) -> str:
    if len(parts) == 1 and isinstance(parts[0], str):
        return str(parts[0])
    meter.text(sum(map(len, parts)))
    result = combine(parts)
    meter.text(8 * len(spans_of(result)))
    return result


def text(meter: Meter, value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    meter.weigh(value)
    result = as_text(value)
    meter.text(len(result))
    return result


def add(meter: Meter, *terms: Any) -> Any:
    if all(type(term) in TEXT for term in terms):
        return join(meter, terms)
    return runtime.add(meter, *terms)


def modulo(meter: Meter, left: Any, right: Any) -> Any:
    if isinstance(left, str):
        check_percent(meter, left, right)
        return pay(meter, left % right if isinstance(left, TracedMarkup) else percent(left, right))
    result = runtime.modulo(meter, left, right)
    return TracedBytes.of(result, as_text((left, right))) if isinstance(left, bytes) else result


# -- JSON


def f_tojson(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> str:
    if meter.shared or args or kwargs:
        runtime.check_json_layout(meter, meter.weigh(value), *args, **kwargs)
    result = jsontext.dumps(value, *args, **kwargs)
    meter.text(len(result))
    return result


def f_fromjson(meter: Meter, value: Any, /) -> Any:
    meter.text(16 * len(value))
    return jsontext.loads(value)


# -- methods and calls


class _Formatter(Formatter):
    """`str.format` in traced pieces."""

    def traced(self, template: str, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: Iterator[int]) -> str:
        """`numbers` are those of the fields that have none."""
        parts: list[str] = []
        for literal, field, spec, conversion in self.parse(str.__str__(template)):
            parts.append(literal)
            if field is None:
                continue
            if field == "" or field[0] in ".[":
                field = f"{next(numbers)}{field}"
            value, _ = self.get_field(field, args, kwargs)
            spec = self.traced(spec or "", args, kwargs, numbers)
            formatted = self.format_field(self.convert_field(value, conversion), str.__str__(spec))
            parts.append(claimed(within(formatted, value), spec))
        return claimed(combine(parts), template)


def _format(meter: Meter, template: str, /, *args: Any, **kwargs: Any) -> str:
    check_braces(meter, template, args, kwargs)
    if isinstance(template, TracedMarkup):
        args = tuple(escaped(text(meter, value)) for value in args)
        kwargs = {name: escaped(text(meter, value)) for name, value in kwargs.items()}
        return TracedMarkup.of(_format(meter, str(template), *args, **kwargs))
    formatter = _Formatter(ENVIRONMENT)
    plain = formatter.vformat(str.__str__(template), args, kwargs)
    traced = formatter.traced(template, args, kwargs, count())
    result: str = pay(meter, traced if traced == plain else claimed(plain, template, args, kwargs))
    return result


def _encode(meter: Meter, value: str, /, *args: Any, **kwargs: Any) -> bytes:
    return TracedBytes.of(runtime.METHODS["encode"](meter, value, *args, **kwargs), value)  # type: ignore[no-any-return]


def _maketrans(meter: Meter, value: str, /, *args: Any) -> dict[int, Any]:
    table: dict[int, Any] = str.maketrans(*args)
    for old, new in zip(*args[:2], strict=True) if len(args) > 1 else ():
        if table[ord(old)] is not None:
            table[ord(old)] = as_input(ord(new), new)
    return table


def _guard_format(name: str, template: str) -> Callable[..., str]:
    return lambda *args, **kwargs: METHODS[name](current_meter.get(), template, *args, **kwargs)


ENVIRONMENT = ChatEnvironment(_guard_format)
METHODS = StringMethods(TracedMethods())
METHODS["format"] = _format
METHODS["encode"] = _encode
METHODS["maketrans"] = _maketrans
METHODS["format_map"] = lambda meter, template, mapping: _format(meter, template, **mapping)
call, call_method = runtime.callers(ENVIRONMENT, TEXT, METHODS)


# -- filters and tests


def f_trim(meter: Meter, value: Any, /, chars: str | None = None) -> str:
    return METHODS["strip"](meter, value if isinstance(value, str) else text(meter, value), chars)  # type: ignore[no-any-return]


def f_string(meter: Meter, value: Any, /) -> str:
    return value if isinstance(value, str) else text(meter, value)


def f_join(meter: Meter, value: Any, /, d: Any = "", attribute: Any = None) -> str:
    check_filter(meter, "join", value, (d, attribute), {})
    if attribute is not None:
        value = ENVIRONMENT.filters["map"](value, attribute=attribute)
    result: str = METHODS["join"](meter, text(meter, d), [text(meter, item) for item in value])
    meter.text(len(result))
    return result


def f_replace(meter: Meter, value: Any, /, old: Any, new: Any, count: int | None = None) -> str:
    check_filter(meter, "replace", value, (old, new), {})
    value, old, new = text(meter, value), text(meter, old), text(meter, new)
    result = Traced.replace(value, old, new, -1 if count is None else count)
    meter.text(len(result))
    return result


def f_indent(meter: Meter, value: Any, /, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    check_filter(meter, "indent", value, (width,), {})
    indention = width if isinstance(width, str) else " " * width
    lines = Traced.splitlines(value + "\n")
    parts: list[str] = []
    for number, line in enumerate(lines):
        if number:
            parts.append("\n")
        if (first and number == 0) or (number and (blank or line)):
            parts.append(indention)
        parts.append(line)
    result = combine(parts)
    meter.text(len(result))
    return TracedMarkup.of(result) if isinstance(value, TracedMarkup) else result


def f_format(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> str:
    if isinstance(value, TracedMarkup):
        check_percent(meter, value, kwargs or args)
        return value % (kwargs or args)
    PLAIN_FILTERS["format"](meter, value, *args, **kwargs)  # the checks, and the errors
    return percent(text(meter, value), kwargs or args)


def f_safe(meter: Meter, value: Any, /) -> str:
    return TracedMarkup.of(text(meter, value))


def f_escape(meter: Meter, value: Any, /) -> str:
    value = value if isinstance(value, TracedMarkup) else escaped(text(meter, value))
    meter.text(len(value))
    return TracedMarkup.of(value)


def f_forceescape(meter: Meter, value: Any, /) -> str:
    return f_escape(meter, text(meter, value))


def f_pprint(meter: Meter, value: Any, /) -> str:
    return realign(PLAIN_FILTERS["pprint"](meter, untraced(value)), as_text(value))


def printing(function: Filter) -> Filter:
    """A filter of texts, given what its value prints as; the methods of traced text keep the origins."""

    def run(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(meter, value if isinstance(value, str) else text(meter, value), *args, **kwargs)

    return run


def followed(function: Filter, align: Callable[[str, str], str] = realign) -> Filter:
    """A filter of which the result is plain: traced again by comparison with the text that it was made from."""

    def run(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = function(meter, value, *args, **kwargs)
        texts = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, str)]
        traced = claimed(align(str.__str__(result), as_text(value)), *texts)
        return TracedMarkup.of(traced) if hasattr(result, "__html__") else traced

    return run


def percent_encoded(result: str, source: str) -> str:
    """`source|urlencode`, traced, where each character stands for itself."""
    traced = by_segment(source, url_quote)
    return traced if traced == result else realign(result, source)


def reading(function: Filter) -> Filter:
    """A filter that reads a number off its value: the number is the input's too."""

    def run(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = function(meter, value, *args, **kwargs)
        return as_input(result, value) if isinstance(value, str | int | float) else result

    return run


def is_true(value: Any) -> bool:
    return value is True or (type(value) is TracedBool and value == 1)


def is_false(value: Any) -> bool:
    return value is False or (type(value) is TracedBool and value == 0)


def is_boolean(value: Any) -> bool:
    return value is True or value is False or type(value) is TracedBool


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not is_boolean(value)


def is_same(value: Any, other: Any) -> bool:
    if type(value) is TracedBool or type(other) is TracedBool:
        return is_boolean(value) and is_boolean(other) and value == other
    return bool(runtime.TESTS["sameas"](value, other))


PLAIN_FILTERS = runtime.FILTERS
LOOKING_UP = (
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "attr",
    "sum",
    "groupby",
    "sort",
    "unique",
    "min",
    "max",
)
"""Filters that look things up in their own environment."""
LOSING = ("wordwrap", "urlize", "striptags", "xmlattr", "filesizeformat")
READING = ("int", "float", "abs", "round")
PRINTING = ("upper", "lower", "capitalize", "center")
FILTERS: dict[str, Filter] = {
    **PLAIN_FILTERS,
    **{name: function for name, function in guarded_filters(ENVIRONMENT).items() if name in LOOKING_UP},
    **{name: followed(PLAIN_FILTERS[name]) for name in LOSING},
    **{name: printing(PLAIN_FILTERS[name]) for name in PRINTING},
    **{name: reading(PLAIN_FILTERS[name]) for name in READING},
    "urlencode": followed(PLAIN_FILTERS["urlencode"], percent_encoded),
    "title": followed(printing(PLAIN_FILTERS["title"]), recased),
    "tojson": f_tojson,
    "fromjson": f_fromjson,
    "trim": f_trim,
    "string": f_string,
    "join": f_join,
    "replace": f_replace,
    "indent": f_indent,
    "format": f_format,
    "safe": f_safe,
    "e": f_escape,
    "escape": f_escape,
    "forceescape": f_forceescape,
    "pprint": f_pprint,
}
_TESTS: dict[str, Callable[..., Any]] = {
    **runtime.ALL_TESTS,
    "true": is_true,
    "false": is_false,
    "boolean": is_boolean,
    "integer": is_integer,
    "sameas": is_same,
}


def namespace() -> dict[str, Any]:
    """The names of a compiled module that renders traced text."""
    return dict(_NAMES)


def marking_namespace() -> dict[str, Any]:
    """The same, to be given plain variables: only what a generation block printed is traced, as one text by itself."""
    return {**_NAMES, "generated": _marked}


def _marked(meter: Meter, parts: Sequence[str]) -> str:
    text: str = wrap(runtime.join(meter, parts), None, "generation")
    return text


_NAMES: dict[str, Any] = {
    **runtime.namespace(),
    **runtime.install(ENVIRONMENT, FILTERS, _TESTS),
    **{function.__name__: function for function in (join, text, add, modulo)},
    **runtime.direct_methods(TEXT, METHODS, call_method),
    "generated": join,
    "call": call,
    "call_method": call_method,
    "attribute": ENVIRONMENT.getattr,
    "item": ENVIRONMENT.getitem,
    "TEXT": TEXT,
}
