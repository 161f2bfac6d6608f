"""What compiled templates call when the render is traced: `runtime`'s names, with those that make text replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from jinja2.tests import TESTS

from . import runtime
from .budget import Meter, current_meter
from .environment import ChatEnvironment
from .filters import Filter, check_filter
from .traced import (
    Traced,
    TracedBool,
    TracedFloat,
    TracedInt,
    TracedKey,
    TracedMarkup,
    as_text,
    by_segment,
    combine,
    escaped,
    percent,
    realign,
    spans_of,
    within,
    wrap,
    written,
)

__all__ = ["namespace"]

TEXT = (str, Traced, TracedKey)


# -- text


def join(meter: Meter, parts: Sequence[str]) -> str:
    if len(parts) == 1:
        return text(meter, parts[0])
    meter.text(sum(map(len, parts)))
    return combine(parts)


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
        runtime.check_percent(meter, left, right)
        return runtime.pay(meter, percent(left, right))
    return runtime.modulo(meter, left, right)


# -- JSON


def f_tojson(
    meter: Meter,
    value: Any,
    /,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if meter.shared or indent is not None or separators is not None:
        runtime.check_json_layout(meter, meter.weigh(value), ensure_ascii, indent, separators, sort_keys)
    if separators is None:
        separators = (", ", ": ") if indent is None else (",", ": ")
    if indent is not None and not isinstance(indent, str):
        indent = " " * indent
    quote = encode_basestring_ascii if ensure_ascii else encode_basestring
    writer = _JSONWriter(quote, indent, *separators, sort_keys)
    writer.write(value, "" if indent is None else "\n")
    result = combine(writer.parts)
    meter.text(len(result))
    return result


class _JSONWriter:
    """Writes a value as `json.dumps` does, in traced pieces; a string's escapes belong to the string."""

    def __init__(self, quote: Callable[[str], str], indent: str | None, item: str, key: str, sort: bool) -> None:
        self.parts: list[str] = []
        self.quote = quote
        self.indent = indent
        self.item = item
        self.key = key
        self.sort = sort

    def write(self, value: Any, newline: str) -> None:
        """Write `value`; `newline` stands before a line at the depth of its container, and is empty without indent."""
        parts = self.parts
        if isinstance(value, str):
            self.string(value)
        elif value is None:
            parts.append("null")
        elif value is True or value is False or isinstance(value, TracedBool):
            parts.append(_like("true" if value else "false", value))
        elif isinstance(value, int):
            parts.append(_like(int.__repr__(value), value))
        elif isinstance(value, float):
            parts.append(_like(_float(value), value))
        elif isinstance(value, list | tuple):
            inner = newline if self.indent is None else newline + self.indent
            separator = "[" + inner
            for item in value:
                parts.append(separator)
                self.write(item, inner)
                separator = self.item + inner
            parts.append(newline + "]" if value else "[]")
        elif isinstance(value, dict):
            inner = newline if self.indent is None else newline + self.indent
            separator = "{" + inner
            for key, item in sorted(value.items()) if self.sort else value.items():
                parts.append(separator)
                self.string(key if isinstance(key, str) else _key(key))
                parts.append(self.key)
                if item is None and isinstance(key, TracedKey):
                    parts.append(written("null", (key._parent, key._key)))
                else:
                    self.write(item, inner)
                separator = self.item + inner
            parts.append(newline + "}" if value else "{}")
        else:
            raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    def string(self, value: str) -> None:
        quoted = self.quote(value)
        if not isinstance(value, Traced):
            self.parts.append(quoted)
        elif len(quoted) == len(value) + 2:
            self.parts += ('"', value, '"')
        else:
            quote = self.quote
            self.parts += ('"', by_segment(value, lambda plain: quote(plain)[1:-1]), '"')


def _like(text: str, value: Any) -> str:
    return written(text, value) if isinstance(value, TracedInt | TracedFloat | TracedBool) else text


def _float(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return float.__repr__(value)


def _key(key: Any) -> str:
    if key is None:
        return "null"
    if key is True or key is False:
        return "true" if key else "false"
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, float):
        return _float(key)
    raise TypeError(f"keys must be str, int, float, bool or None, not {type(key).__name__}")


def f_fromjson(meter: Meter, value: Any, /) -> Any:
    spans = spans_of(value)
    parsed = runtime.f_fromjson(meter, str.__str__(value) if isinstance(value, str) else value)
    return _rewrapped(parsed, spans[0][2]) if spans else parsed


def _rewrapped(value: Any, origin: Any) -> Any:
    """What a traced text held as JSON: its paths go on from the text's own."""
    if isinstance(value, dict):
        return {name: wrap(item, origin, name) for name, item in value.items()}
    return wrap(value, origin, "value")


# -- methods and calls


class _Formatter(runtime.Formatter):
    """`str.format` in traced pieces."""

    def traced(self, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        parts: list[str] = []
        number = 0
        for literal, field, spec, conversion in self.parse(template):
            parts.append(literal)
            if field is None:
                continue
            if field == "" or field[0] in ".[":
                field, number = f"{number}{field}", number + 1
            value, _ = self.get_field(field, args, kwargs)
            value = self.convert_field(value, conversion)  # type: ignore[arg-type]
            spec = self.vformat(spec or "", args, kwargs)
            parts.append(within(self.format_field(value, spec), value))
        return combine(parts)


def _format(meter: Meter, template: str, /, *args: Any, **kwargs: Any) -> str:
    runtime.check_braces(meter, template, args, kwargs)
    formatter = _Formatter(ENVIRONMENT)
    plain = formatter.vformat(str.__str__(template), args, kwargs)
    traced = formatter.traced(str.__str__(template), args, kwargs)
    result: str = runtime.pay(meter, traced if traced == plain else plain)
    return result


def _guard_format(name: str, template: str) -> Callable[..., str]:
    return lambda *args, **kwargs: METHODS[name](current_meter.get(), template, *args, **kwargs)


ENVIRONMENT = ChatEnvironment(_guard_format)
METHODS = runtime.StringMethods(Traced)
METHODS["format"] = _format
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
    result = Traced.join(text(meter, d), [text(meter, item) for item in value])
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
    return result


def f_format(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> str:
    plain = PLAIN_FILTERS["format"](meter, value, *args, **kwargs)  # the checks, and the errors
    traced = percent(text(meter, value), kwargs or args)
    return traced if traced == plain else str(plain)


def f_safe(meter: Meter, value: Any, /) -> str:
    return TracedMarkup.of(text(meter, value))


def f_escape(meter: Meter, value: Any, /) -> str:
    value = value if isinstance(value, TracedMarkup) else escaped(text(meter, value))
    meter.text(len(value))
    return TracedMarkup.of(value)


def f_forceescape(meter: Meter, value: Any, /) -> str:
    return f_escape(meter, text(meter, value))


def followed(function: Filter) -> Filter:
    """A filter that loses origins, with its result traced again by comparison with its input."""

    def run(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = function(meter, value, *args, **kwargs)
        if isinstance(result, str) and not isinstance(result, Traced):
            if isinstance(value, str):
                traced = realign(result, value)
            else:
                traced = str(result)
            return TracedMarkup.of(traced) if hasattr(result, "__html__") else traced
        return result

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
    return bool(TESTS["sameas"](value, other))


PLAIN_FILTERS = runtime.FILTERS
FILTERS: dict[str, Filter] = {
    **{name: followed(function) for name, function in PLAIN_FILTERS.items()},
    **{name: PLAIN_FILTERS[name] for name in ("length", "count", "default", "d", "list", "items", "first", "last")},
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
}
FILTERS |= {
    name: followed(function)
    for name, function in runtime.guarded_filters(ENVIRONMENT).items()
    if name in ("map", "select", "reject", "selectattr", "rejectattr", "attr", "sum", "groupby", "sort", "unique", "min",
                "max")  # these look things up in their own environment
}  # fmt: skip
_TESTS = {
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


_NAMES: dict[str, Any] = {
    **runtime.namespace(),
    **runtime.install(ENVIRONMENT, FILTERS, _TESTS),
    **{function.__name__: function for function in (join, text, add, modulo)},
    **runtime.direct_methods(TEXT, METHODS, call_method),
    "call": call,
    "call_method": call_method,
    "attribute": ENVIRONMENT.getattr,
    "item": ENVIRONMENT.getitem,
    "TEXT": TEXT,
}
