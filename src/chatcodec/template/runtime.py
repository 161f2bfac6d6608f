"""What compiled templates call: operators, lookups, loops, calls and filters on plain values, each paid for.

Every function takes the render's `Meter` first where it may cost something. `tracing` replaces those that make text.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import LoopContext
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import missing
from markupsafe import Markup

from ..errors import BudgetExceeded
from .budget import ELEMENT, LARGEST_INTEGER_BITS, LONG, Meter, current_meter
from .environment import ChatEnvironment, tojson
from .expressions import DICT_READS, DIRECT_METHODS
from .filters import guarded_filters, in_context, without_context
from .methods import (
    CONTAINERS,
    Formatter,
    MarkupFormatter,
    StringMethods,
    check_braces,
    check_percent,
    guard_method,
    pay,
)
from .objects import Macro, Namespace, SelfReference

__all__ = ["ENVIRONMENT", "namespace"]

TEXT = (str,)
SHORTENING = frozenset(("strip", "lstrip", "rstrip", "split"))
CHUNK = 64
"""The passes of a loop between two looks at the clock."""
TESTS: dict[str, Callable[..., Any]] = {**JINJA_TESTS}  # type: ignore[dict-item]
SHALLOW = frozenset((list, tuple, dict, range, type({}.keys()), type({}.values()), type({}.items())))
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "lteq": operator.le, "gt": operator.gt,
    "gteq": operator.ge,
}  # fmt: skip


# -- text


def join(meter: Meter, parts: Sequence[str]) -> str:
    if len(parts) == 1 and type(parts[0]) is str:
        return parts[0]
    meter.chars -= sum(map(len, parts))
    if meter.chars < 0:
        meter.overrun()
    return "".join(parts)


def text(meter: Meter, value: Any) -> str:
    """What printing `value` writes."""
    if isinstance(value, str):
        return str(value)
    meter.weigh(value)
    result = str(value)
    meter.text(len(result))
    return result


def add(meter: Meter, *terms: Any) -> Any:
    result = terms[0]
    for term in terms[1:]:
        result = result + term
        if type(result) is str:
            meter.chars -= len(result)
            if meter.chars < 0:
                meter.overrun()
        else:
            pay(meter, result)
    return result


def multiply(meter: Meter, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > LARGEST_INTEGER_BITS:
            raise BudgetExceeded("a product is too large")
    elif isinstance(left, int) and hasattr(right, "__len__"):
        meter.text(max(left, 0) * len(right) * (1 if isinstance(right, str | bytes) else 8))
    elif isinstance(right, int) and hasattr(left, "__len__"):
        meter.text(max(right, 0) * len(left) * (1 if isinstance(left, str | bytes) else 8))
    meter.shared = True
    return left * right


def power(meter: Meter, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > LARGEST_INTEGER_BITS:
        raise BudgetExceeded("a power is too large")
    return left**right


def modulo(meter: Meter, left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        check_percent(meter, left, right)
        return pay(meter, left % right)
    return left % right


def cut(meter: Meter, value: Any, start: Any, stop: Any, step: Any) -> Any:
    result = value[start:stop:step] if step is not None else value[start:stop]
    meter.text(8 * len(result) if isinstance(result, list | tuple) else len(result))
    return result


def contains(meter: Meter, item: Any, container: Any) -> bool:
    if isinstance(container, str):
        meter.scan(container)
    elif isinstance(item, CONTAINERS):
        meter.weigh(item)
        meter.weigh(container)
    elif type(container) is not dict and hasattr(container, "__len__"):
        meter.step(len(container))
        if isinstance(item, str):
            meter.scan(item, len(container))
    return item in container


def equal(meter: Meter, left: Any, right: Any) -> Any:
    if isinstance(left, str):
        if len(left) > LONG:
            meter.scan(left)
    elif isinstance(left, CONTAINERS):
        meter.weigh(left)
        meter.weigh(right)
    return left == right


def compare(meter: Meter, name: str, left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        meter.scan(left)
    elif isinstance(left, CONTAINERS) and isinstance(right, CONTAINERS):
        meter.weigh(left)
        meter.weigh(right)
    return COMPARISONS[name](left, right)


def made(meter: Meter, container: Any) -> Any:
    """Pay for a list, tuple or dict that the template wrote down, with all that it holds."""
    meter.elements(len(container))
    for value in container.values() if type(container) is dict else container:
        if isinstance(value, CONTAINERS):
            meter.shared = True
            meter.weigh(value)
    return container


# -- loops


def paced(meter: Meter, items: Any, cost: int) -> Any:
    """`items`, to loop over; each pass costs `cost`."""
    if type(items) in SHALLOW:
        meter.steps -= cost * len(items)
        if meter.steps < 0:
            meter.overrun()
        return in_chunks(meter, items) if len(items) > CHUNK else items
    return paced_each(meter, items, cost)


def in_chunks(meter: Meter, items: Iterable[Any]) -> Iterator[Any]:
    iterator = iter(items)
    while chunk := tuple(islice(iterator, CHUNK)):
        meter.on_time()
        yield from chunk


def paced_each(meter: Meter, items: Iterable[Any], cost: int) -> Iterator[Any]:
    for count, item in enumerate(items):
        meter.steps -= cost
        if meter.steps < 0:
            meter.overrun()
        if not count % CHUNK:
            meter.on_time()
        yield item


def sequence(meter: Meter, items: Any) -> Any:
    """`items` as something that has a length and positions."""
    if type(items) in (list, tuple, range):
        return items
    return list(paced_each(meter, items, 1))


def known(context: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in context.items() if value is not missing}


# -- attributes and calls


def _guard_format(name: str, template: str) -> Callable[..., str]:
    return lambda *args, **kwargs: METHODS[name](current_meter.get(), template, *args, **kwargs)


ENVIRONMENT = ChatEnvironment(_guard_format)
attribute = ENVIRONMENT.getattr
item = ENVIRONMENT.getitem


def _format(meter: Meter, template: str, /, *args: Any, **kwargs: Any) -> str:
    check_braces(meter, template, args, kwargs)
    formatter = Formatter(ENVIRONMENT)
    if isinstance(template, Markup):
        formatter = MarkupFormatter(ENVIRONMENT, escape=template.escape)
    result: str = pay(meter, type(template)(formatter.vformat(template, args, kwargs)))
    return result


def _format_map(meter: Meter, template: str, /, mapping: Any) -> str:
    return METHODS["format"](meter, template, **mapping)  # type: ignore[no-any-return]


METHODS = StringMethods(str)
METHODS["format"] = _format
METHODS["format_map"] = _format_map


def direct_method(name: str, kinds: tuple[type, ...], methods: Mapping[str, Any], otherwise: Any) -> Callable[..., Any]:
    """`owner.name(...)` for an owner that is nearly always a string, and a short one: then only its result counts."""
    method = methods[name]
    of_string = getattr(str, name)
    kind = str if name in SHORTENING else None

    def run(meter: Meter, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(owner) is kind and not kwargs and len(owner) < LONG:
            result = of_string(owner, *args)
            meter.chars -= len(owner) + (ELEMENT * len(result) if type(result) is list else 0)
            if meter.chars < 0:
                meter.overrun()
            return result
        if type(owner) in kinds:
            return method(meter, owner, *args, **kwargs)
        return otherwise(meter, name, owner, *args, **kwargs)

    def ask(meter: Meter, owner: Any, /, *args: Any) -> Any:
        if isinstance(owner, str) and len(owner) < LONG:
            return of_string(owner, *args)
        if type(owner) in kinds:
            return method(meter, owner, *args)
        return otherwise(meter, name, owner, *args)

    return ask if name in ("startswith", "endswith") else run


def callers(
    environment: ChatEnvironment, kinds: tuple[type, ...], methods: Mapping[str, Callable[..., Any]]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What `f(...)` and `owner.name(...)` are compiled to, in this environment and with these string methods."""

    def call(meter: Meter, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(function) is Macro:
            return function(*args, **kwargs)
        if not environment.is_safe_callable(function):
            raise SecurityError(f"{function!r} is not safely callable")
        if function is not Namespace and any(isinstance(value, CONTAINERS) for value in (*args, *kwargs.values())):
            meter.shared = True
        meter.elements(len(args) + len(kwargs) + sum(len(value) for value in args if type(value) in (dict, list)))
        if isinstance(function, BuiltinMethodType | MethodType):
            function = guard_method(meter, function, methods, args, kwargs)
        try:
            return pay(meter, function(*args, **kwargs))
        except StopIteration:
            return Undefined("value was undefined because a callable raised a StopIteration exception")

    def call_method(meter: Meter, name: str, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(owner) in kinds:
            method = methods.get(name)
            if method is not None:
                return method(meter, owner, *args, **kwargs)
        elif type(owner) is dict and name in DICT_READS:
            return getattr(owner, name)(*args, **kwargs)
        return call(meter, environment.getattr(owner, name), *args, **kwargs)

    return call, call_method


call, call_method = callers(ENVIRONMENT, TEXT, METHODS)


# -- filters and tests


def no_filter(name: str, *unused: Any, **also_unused: Any) -> Any:
    raise TemplateRuntimeError(f"No filter named {name!r} found.")


def no_test(name: str, *unused: Any, **also_unused: Any) -> Any:
    raise TemplateRuntimeError(f"No test named {name!r} found.")


def is_mapping(value: Any) -> bool:
    return type(value) is dict or (not isinstance(value, str) and isinstance(value, Mapping))


def is_iterable(value: Any) -> bool:
    if isinstance(value, str | list | dict | tuple):
        return True
    return bool(TESTS["iterable"](value))


def _json_encoder() -> Callable[[Any], str]:
    """`json.dumps(value, ensure_ascii=False)` without making an encoder each time, where CPython has the means."""
    encoder = json.JSONEncoder(ensure_ascii=False)
    make_encoder: Any = getattr(json.encoder, "c_make_encoder", None)
    if make_encoder is None:
        return encoder.encode
    chunks = make_encoder(None, encoder.default, json.encoder.encode_basestring, None, ": ", ", ", False, False, True)
    return lambda value: "".join(chunks(value, 0))


_dumps = _json_encoder()


def f_tojson(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> str:
    if args or kwargs:
        check_json_layout(meter, meter.weigh(value), *args, **kwargs)
        result = tojson(value, *args, **kwargs)
    else:
        if meter.shared:
            meter.weigh(value)
        result = _dumps(value)
    meter.chars -= len(result)
    if meter.chars < 0:
        meter.overrun()
    return result


def check_json_layout(
    meter: Meter,
    size: int,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> None:
    width = indent if isinstance(indent, int) else len(indent or "")
    meter.number(width * 1_000)
    if separators is not None:
        meter.text(size * sum(len(separator) for separator in separators))


def f_fromjson(meter: Meter, value: Any, /) -> Any:
    meter.text(16 * len(value))
    return json.loads(value)


def f_trim(meter: Meter, value: Any, /, chars: str | None = None) -> str:
    if isinstance(value, Markup):
        return pay(meter, value.strip(chars))  # type: ignore[no-any-return]
    return METHODS["strip"](meter, value if isinstance(value, str) else text(meter, value), chars)  # type: ignore[no-any-return]


def f_length(meter: Meter, value: Any, /) -> int:
    return len(value)


def f_default(meter: Meter, value: Any, /, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def f_string(meter: Meter, value: Any, /) -> str:
    return value if isinstance(value, str) else text(meter, value)


def f_items(meter: Meter, value: Any, /) -> Any:
    return value.items() if type(value) is dict else _stock_items(value)


_stock_items: Any = JINJA_FILTERS["items"]
FAST_FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": f_tojson,
    "fromjson": f_fromjson,
    "trim": f_trim,
    "length": f_length,
    "count": f_length,
    "default": f_default,
    "d": f_default,
    "string": f_string,
    "items": f_items,
}


FILTERS: dict[str, Callable[..., Any]] = {**guarded_filters(ENVIRONMENT), **FAST_FILTERS}


def walking_test(name: str) -> Callable[..., Any]:
    """A test that looks at every character of a text."""
    test = TESTS[name]

    def run(value: Any) -> Any:
        if isinstance(value, str):
            current_meter.get().scan(value)
        return test(value)

    return run


def metered_test(name: str) -> Callable[[Any, Any], Any]:
    if name == "in":
        return lambda value, container: contains(current_meter.get(), value, container)
    return lambda left, right: compare(current_meter.get(), name, left, right)


ALL_TESTS: dict[str, Callable[..., Any]] = {
    **TESTS,
    "mapping": is_mapping,
    "iterable": is_iterable,
    "lower": walking_test("lower"),
    "upper": walking_test("upper"),
    "in": metered_test("in"),
    **{alias: metered_test("eq") for alias in ("eq", "==", "equalto")},
    **{alias: metered_test("ne") for alias in ("ne", "!=")},
    **{alias: metered_test("lt") for alias in ("lt", "<", "lessthan")},
    **{alias: metered_test("gt") for alias in ("gt", ">", "greaterthan")},
    **{alias: metered_test("lteq") for alias in ("le", "<=")},
    **{alias: metered_test("gteq") for alias in ("ge", ">=")},
}


def install(
    environment: ChatEnvironment,
    filters: Mapping[str, Callable[..., Any]],
    tests: Mapping[str, Callable[..., Any]],
) -> dict[str, Any]:
    """Give `environment` its filters and tests, for `map` and `select`; the names compiled code calls them by."""
    environment.filters = {name: in_context(function) for name, function in filters.items()}
    environment.tests = {**tests}
    for name in ("filter", "test"):
        environment.tests[name] = without_context(tests[name], environment)
    names = {f"f_{name}": function for name, function in filters.items()}
    compiled: Mapping[str, Any] = environment.tests
    names |= {f"x_{name}": test for name, test in compiled.items() if name.isidentifier()}
    return names


def dict_read(name: str, otherwise: Any) -> Callable[..., Any]:
    """`owner.name(...)` for an owner that is nearly always a dict."""
    method = getattr(dict, name)

    def run(meter: Meter, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(owner) is dict:
            return method(owner, *args, **kwargs)
        return otherwise(meter, name, owner, *args, **kwargs)

    return run


def direct_methods(kinds: tuple[type, ...], methods: Mapping[str, Any], otherwise: Any) -> dict[str, Any]:
    names = {f"s_{name}": direct_method(name, kinds, methods, otherwise) for name in DIRECT_METHODS}
    return names | {f"s_{name}": dict_read(name, otherwise) for name in DICT_READS}


def namespace() -> dict[str, Any]:
    """The names of a compiled module that renders plain text."""
    return dict(_NAMES)


_NAMES: dict[str, Any] = {
    **install(ENVIRONMENT, FILTERS, ALL_TESTS),
    **{
        function.__name__: function
        for function in (
            join,
            text,
            add,
            multiply,
            power,
            modulo,
            cut,
            contains,
            equal,
            compare,
            made,
            paced,
            paced_each,
        )
    },
    **{function.__name__: function for function in (sequence, known, call_method, call, no_filter, no_test)},
    **direct_methods(TEXT, METHODS, call_method),
    "generated": join,
    "attribute": attribute,
    "item": item,
    "TEXT": TEXT,
    "missing": missing,
    "UNDEFINED": Undefined(),
    "Undefined": Undefined,
    "LoopContext": LoopContext,
    "Macro": Macro,
    "Namespace": Namespace,
    "SelfReference": SelfReference,
    "TemplateRuntimeError": TemplateRuntimeError,
}
