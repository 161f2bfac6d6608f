"""The methods of strings, and `%` and `format`, each paid for before it makes anything large."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedFormatter
from markupsafe import EscapeFormatter, Markup

from .budget import ELEMENT, LONG, Meter, current_meter

CONTAINERS = (list, tuple, dict, set, frozenset)
_DIRECTIVE = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+)?)?")
_CODECS = frozenset(
    ("utf-8", "utf8", "ascii", "latin-1", "latin1", "iso-8859-1", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
)
_BYTES_METHODS = frozenset(
    ("decode", "hex", "startswith", "endswith", "find", "index", "count", "lower", "upper", "strip")
)


def pay(meter: Meter, result: Any) -> Any:
    """Pay for a value that an operation has made."""
    if isinstance(result, str | bytes):
        meter.text(len(result))
    elif isinstance(result, list | tuple):
        meter.text(8 * len(result))
        meter.shared = True
    return result


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
        self["maketrans"] = lambda meter, value, /, *args: str.maketrans(*args)

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
                known = separator if isinstance(separator, str) else ""
                meter.step(len(value) * (1 + (len(known) >> 3)) >> 5)
                meter.elements(value.count(known) if known else len(value) // 2)
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
                items = metered_list(meter, items)
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


class Formatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        check_spec(format_spec)
        return str(super().format_field(value, format_spec))


class MarkupFormatter(Formatter, EscapeFormatter):
    """`Markup.format`: what is put in is escaped."""


def check_spec(spec: str) -> None:
    for number in re.findall(r"\d+", spec):
        current_meter.get().number(int(number[:20]))
        current_meter.get().text(int(number[:20]))


def check_braces(meter: Meter, template: str, args: Any, kwargs: Any) -> None:
    """Pay for `template.format(*args, **kwargs)` before it is made."""
    meter.text(template.count("{") * (meter.weigh(args) + meter.weigh(kwargs)))


def guard_method(
    meter: Meter, function: Any, methods: Mapping[str, Callable[..., Any]], args: Any, kwargs: Any
) -> Callable[..., Any]:
    """A method, such as one that was stored in a variable, with its cost paid for."""
    owner, name = function.__self__, function.__name__
    if isinstance(owner, str) and name in methods:
        if not isinstance(owner, Markup):
            return lambda *args, **kwargs: methods[name](meter, owner, *args, **kwargs)
        methods[name](meter, str(owner), *args, **kwargs)  # pays for what markup does in much the same way
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
        if isinstance(value, CONTAINERS):
            meter.weigh(value)
    return function  # type: ignore[no-any-return]


def metered_list(meter: Meter, items: Iterable[Any]) -> list[Any]:
    collected = []
    for item in items:
        meter.step(1)
        meter.text(8)
        collected.append(item)
    return collected
