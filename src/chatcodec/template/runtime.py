"""What compiled templates call: operators, lookups, loops, calls and filters on plain values, each paid for.

Every function takes the render's `Meter` first where it may cost something. `tracing` replaces those that make text.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import LoopContext
from jinja2.sandbox import SandboxedFormatter
from jinja2.tests import TESTS
from jinja2.utils import missing

from ..errors import BudgetExceeded
from .budget import ELEMENT, LARGEST_INTEGER_BITS, LONG, Meter, current_meter
from .compiler import DIRECT_METHODS
from .environment import ChatEnvironment, tojson
from .filters import guarded_filters, in_context
from .objects import Macro, Namespace, SelfReference

__all__ = ["ENVIRONMENT", "namespace"]

TEXT = (str,)
CHUNK = 64
"""The passes of a loop between two looks at the clock."""
SHALLOW = frozenset((list, tuple, dict, range, type({}.keys()), type({}.values()), type({}.items())))
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "lteq": operator.le, "gt": operator.gt,
    "gteq": operator.ge,
}  # fmt: skip
DICT_READS = frozenset(("get", "items", "keys", "values"))
_CONTAINERS = (list, tuple, dict, set, frozenset)
_DIRECTIVE = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+)?)?")
_CODECS = frozenset(("utf-8", "utf8", "ascii", "latin-1", "latin1", "iso-8859-1", "utf-16", "utf-16-le", "utf-16-be", "utf-32"))
_BYTES_METHODS = frozenset(
    ("decode", "hex", "startswith", "endswith", "find", "index", "count", "lower", "upper", "strip")
)


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


def pay(meter: Meter, result: Any) -> Any:
    """Pay for a value that an operation has made."""
    if isinstance(result, str | bytes):
        meter.text(len(result))
    elif isinstance(result, list | tuple):
        meter.text(8 * len(result))
        meter.shared = True
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


def check_percent(meter: Meter, template: str | bytes, values: Any) -> None:
    """Pay for `template % values` before it is made."""
    pattern = template if isinstance(template, str) else template.decode("latin-1")
    for directive in _DIRECTIVE.finditer(pattern):
        for size in directive.groups():
            if size == "*":
                for value in values if isinstance(values, tuple) else (values,):
                    meter.number(value)
                    meter.text(value if isinstance(value, int) else 0)
            elif size is not None:
                meter.number(int(size[:20]))
                meter.text(int(size[:20]))
    meter.text(pattern.count("%") * meter.weigh(values))


def cut(meter: Meter, value: Any, start: Any, stop: Any, step: Any) -> Any:
    result = value[start:stop:step] if step is not None else value[start:stop]
    meter.text(8 * len(result) if isinstance(result, list | tuple) else len(result))
    return result


def contains(meter: Meter, item: Any, container: Any) -> bool:
    if isinstance(container, str):
        meter.scan(container)
    elif isinstance(item, _CONTAINERS):
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
    elif isinstance(left, _CONTAINERS):
        meter.weigh(left)
        meter.weigh(right)
    return left == right


def compare(meter: Meter, name: str, left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        meter.scan(left)
    elif isinstance(left, _CONTAINERS) and isinstance(right, _CONTAINERS):
        meter.weigh(left)
        meter.weigh(right)
    return COMPARISONS[name](left, right)


def made(meter: Meter, container: Any) -> Any:
    """Pay for a list, tuple or dict that the template wrote down, with all that it holds."""
    meter.elements(len(container))
    for value in container.values() if type(container) is dict else container:
        if isinstance(value, _CONTAINERS):
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
        meter.step(cost)
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


class Formatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        check_spec(format_spec)
        return str(super().format_field(value, format_spec))


def check_spec(spec: str) -> None:
    for number in re.findall(r"\d+", spec):
        current_meter.get().number(int(number[:20]))
        current_meter.get().text(int(number[:20]))


class StringMethods(dict[str, Callable[..., Any]]):
    """The methods of `str` by name, each called with the meter and the string first. `kind` has the methods."""

    def __init__(self, kind: Any) -> None:
        for name in dir(str):
            if not name.startswith("_"):
                self[name] = self._walking(getattr(kind, name))
        for name in ("strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition"):
            self[name] = self._walking_often(getattr(kind, name))
        for name in ("split", "rsplit", "splitlines"):
            self[name] = self._splitting(getattr(kind, name))
        for name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
            self[name] = self._padding(getattr(kind, name))
        self["join"] = self._joining(kind.join)
        self["replace"] = self._replacing(kind.replace)
        self["translate"] = self._translating(kind.translate)
        self["encode"] = _encode

    @staticmethod
    def _walking(method: Callable[..., Any]) -> Callable[..., Any]:
        """Most methods: they go through their text and their arguments once."""

        def run(meter: Meter, value: str, /, *args: Any, **kwargs: Any) -> Any:
            if len(value) > LONG:
                meter.step(len(value) >> 5)
                for argument in args:
                    meter.scan(argument) if isinstance(argument, str) else meter.weigh(argument)
            return pay(meter, method(value, *args, **kwargs))

        return run

    @staticmethod
    def _walking_often(method: Callable[..., Any]) -> Callable[..., Any]:
        """Methods that may go through their argument at each character of their text."""

        def run(meter: Meter, value: str, /, *args: Any) -> Any:
            if len(value) > LONG:
                needle = args[0] if args and isinstance(args[0], str) else ""
                meter.step(len(value) * (1 + (len(needle) >> 3)) >> 5)
            result = method(value, *args)
            if type(result) is str:
                meter.chars -= len(result)
                if meter.chars < 0:
                    meter.overrun()
            return result

        return run

    @staticmethod
    def _splitting(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(meter: Meter, value: str, /, *args: Any, **kwargs: Any) -> Any:
            if len(value) > LONG:
                separator = args[0] if args else kwargs.get("sep")
                known = isinstance(separator, str) and separator
                meter.step(len(value) * (1 + (len(separator) >> 3 if known else 0)) >> 5)
                meter.elements(value.count(separator) if known else len(value) // 2)
            result = method(value, *args, **kwargs)
            meter.text(len(value) + ELEMENT * len(result))
            return result

        return run

    @staticmethod
    def _padding(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(meter: Meter, value: str, /, *args: Any, **kwargs: Any) -> Any:
            for number in (*args, *kwargs.values()):
                meter.number(number)
                if isinstance(number, int):
                    meter.text(max(number, 0) * (1 + value.count("\t")))
            meter.text(8 * value.count("\t"))
            return pay(meter, method(value, *args, **kwargs))

        return run

    @staticmethod
    def _joining(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(meter: Meter, value: str, /, items: Any) -> Any:
            if not isinstance(items, list | tuple | str):
                items = list(paced_each(meter, items, 1))
            meter.text(len(value) * len(items) + sum(len(item) for item in items if isinstance(item, str)))
            meter.step(len(items) >> 2)
            return method(value, items)

        return run

    @staticmethod
    def _replacing(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(meter: Meter, value: str, /, *args: Any, **kwargs: Any) -> Any:
            check_replace(meter, value, *args)
            return pay(meter, method(value, *args, **kwargs))

        return run

    @staticmethod
    def _translating(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(meter: Meter, value: str, /, table: Any) -> Any:
            if isinstance(table, Mapping):
                longest = max((len(new) for new in table.values() if isinstance(new, str)), default=1)
                meter.step(len(table) + len(value))
                meter.text(len(value) * longest)
            return pay(meter, method(value, table))

        return run


def _encode(meter: Meter, value: str, /, encoding: str = "utf-8", errors: str = "strict") -> bytes:
    result: bytes = pay(meter, value.encode(check_codec(encoding), errors))
    return result


def check_codec(name: str) -> str:
    """Some of Python's codecs take time that grows with the square of the text."""
    if name.lower().replace("_", "-") not in _CODECS:
        raise SecurityError(f"the encoding {name!r} is not available in a chat template")
    return name


def check_replace(meter: Meter, value: str, old: Any = None, new: Any = None, *rest: Any) -> None:
    meter.scan(value)
    if isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        meter.text(value.count(old) * (len(new) - len(old)))


def _format(meter: Meter, template: str, /, *args: Any, **kwargs: Any) -> str:
    check_braces(meter, template, args, kwargs)
    result: str = pay(meter, Formatter(ENVIRONMENT).vformat(template, args, kwargs))
    return result


def check_braces(meter: Meter, template: str, args: Any, kwargs: Any) -> None:
    """Pay for `template.format(*args, **kwargs)` before it is made."""
    meter.text(template.count("{") * (meter.weigh(args) + meter.weigh(kwargs)))


def _format_map(meter: Meter, template: str, /, mapping: Any) -> str:
    return METHODS["format"](meter, template, **mapping)  # type: ignore[no-any-return]


METHODS = StringMethods(str)
METHODS["format"] = _format
METHODS["format_map"] = _format_map


def direct_method(name: str, kinds: tuple[type, ...], methods: Mapping[str, Any], otherwise: Any) -> Callable[..., Any]:
    """`owner.name(...)` for an owner that is nearly always a string."""
    method = methods[name]

    def run(meter: Meter, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(owner) in kinds:
            return method(meter, owner, *args, **kwargs)
        return otherwise(meter, name, owner, *args, **kwargs)

    return run


def callers(
    environment: ChatEnvironment, kinds: tuple[type, ...], methods: Mapping[str, Callable[..., Any]]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What `f(...)` and `owner.name(...)` are compiled to, in this environment and with these string methods."""

    def call(meter: Meter, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(function) is Macro:
            return function(*args, **kwargs)
        if not environment.is_safe_callable(function):
            raise SecurityError(f"{function!r} is not safely callable")
        if function is not Namespace and any(isinstance(value, _CONTAINERS) for value in (*args, *kwargs.values())):
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


def guard_method(
    meter: Meter, function: Any, methods: Mapping[str, Callable[..., Any]], args: Any, kwargs: Any
) -> Callable[..., Any]:
    """A method, such as one that was stored in a variable, with its cost paid for."""
    owner, name = function.__self__, function.__name__
    if isinstance(owner, str) and name in methods:
        return lambda *args, **kwargs: methods[name](meter, owner, *args, **kwargs)
    if isinstance(owner, bytes) and name not in _BYTES_METHODS:
        raise SecurityError(f"bytes.{name} is not available in a chat template")
    if name == "decode" and args:
        check_codec(args[0])
    if isinstance(owner, list | tuple) or (args and isinstance(owner, range)):
        meter.weigh(owner)
    elif hasattr(owner, "__len__"):
        meter.elements(len(owner))
    for value in (*args, *kwargs.values()):
        meter.number(value)
        if isinstance(value, _CONTAINERS):
            meter.weigh(value)
    return function  # type: ignore[no-any-return]


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
    if json.encoder.c_make_encoder is None:
        return encoder.encode
    chunks = json.encoder.c_make_encoder(
        None, encoder.default, json.encoder.encode_basestring, None, ": ", ", ", False, False, True
    )
    return lambda value: "".join(chunks(value, 0))


_dumps = _json_encoder()
_DEFAULT_LAYOUT = {"ensure_ascii": False}


def f_tojson(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> str:
    if args or (kwargs and kwargs != _DEFAULT_LAYOUT):
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
    return METHODS["strip"](meter, value if isinstance(value, str) else text(meter, value), chars)  # type: ignore[no-any-return]


def f_length(meter: Meter, value: Any, /) -> int:
    return len(value)


def f_default(meter: Meter, value: Any, /, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def f_string(meter: Meter, value: Any, /) -> str:
    return value if isinstance(value, str) else text(meter, value)


FAST_FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": f_tojson,
    "fromjson": f_fromjson,
    "trim": f_trim,
    "length": f_length,
    "count": f_length,
    "default": f_default,
    "d": f_default,
    "string": f_string,
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
    """Give `environment` its filters and tests, for jinja2's `map` and `select`; the names compiled code calls them by."""
    environment.filters = {name: in_context(function) for name, function in filters.items()}
    environment.tests = dict(tests)
    names = {f"f_{name}": function for name, function in filters.items()}
    names |= {f"x_{name}": function for name, function in tests.items() if name.isidentifier()}
    return names


def direct_methods(kinds: tuple[type, ...], methods: Mapping[str, Any], otherwise: Any) -> dict[str, Any]:
    return {f"s_{name}": direct_method(name, kinds, methods, otherwise) for name in DIRECT_METHODS}


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
    "attribute": attribute,
    "item": item,
    "TEXT": TEXT,
    "missing": missing,
    "Undefined": Undefined,
    "LoopContext": LoopContext,
    "Macro": Macro,
    "Namespace": Namespace,
    "SelfReference": SelfReference,
    "TemplateRuntimeError": TemplateRuntimeError,
}
