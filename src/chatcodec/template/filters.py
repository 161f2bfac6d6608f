"""jinja2's own filters, each with a check before it that pays for what it may cost.

A filter for compiled code takes the meter first: `filter(meter, value, *args, **kwargs)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import update_wrapper
from typing import Any

from jinja2 import Environment
from jinja2.filters import FILTERS
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.utils import _PassArg

from ..errors import BudgetExceeded
from .budget import Meter, current_meter
from .methods import check_percent, metered_list

SLOW_TEXT = frozenset(("urlize", "striptags", "wordwrap", "xmlattr", "urlencode", "pprint", "title", "wordcount"))
"""Filters that run regular expressions or worse over their text."""
LONGEST_SLOW_TEXT = 100_000
DEEP = frozenset(
    ["pprint", "sort", "dictsort", "unique", "groupby", "min", "max", "sum", "xmlattr", "urlencode", "string", "format"]
)
"""Filters that walk, compare or print whole structures."""
NUMBERED = frozenset(("center", "indent", "batch", "slice", "wordwrap", "truncate"))

Filter = Callable[..., Any]


def guarded_filters(environment: Environment) -> dict[str, Filter]:
    return {name: _guarded(name, without_context(function, environment)) for name, function in FILTERS.items()}


def without_context(function: Filter, environment: Environment) -> Filter:
    """A stock filter with the context, evaluation context or environment that it asks for filled in."""
    asked = _PassArg.from_obj(function)
    if asked is None:
        return function
    first: Any = environment
    if asked is _PassArg.context:
        first = Context(environment, {}, None, {})
    elif asked is _PassArg.eval_context:
        first = EvalContext(environment)
    return lambda *args, **kwargs: function(first, *args, **kwargs)


def in_context(function: Filter) -> Filter:
    """A filter as jinja2 calls one: without the meter."""
    return lambda *args, **kwargs: function(current_meter.get(), *args, **kwargs)


def _guarded(name: str, function: Filter) -> Filter:
    def run(meter: Meter, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, Iterator):
            value = metered_list(meter, value)  # long chains of lazy filters would overflow the stack
        check_filter(meter, name, value, args, kwargs)
        result = function(value, *args, **kwargs)
        if isinstance(result, str):
            meter.text(len(result))
        elif isinstance(result, list):
            meter.text(8 * len(result))
        elif isinstance(result, Iterator):
            return _paced(meter, result)
        return result

    return update_wrapper(run, function, updated=())


def _paced(meter: Meter, items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        meter.steps -= 8
        meter.chars -= 8
        if meter.steps < 0 or meter.chars < 0:
            meter.overrun()
        yield item


def check_filter(meter: Meter, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Pay for `value|name(*args)` before it runs."""
    if any(isinstance(argument, list | dict | tuple) for argument in (*args, *kwargs.values())):
        meter.shared = True
    if name in NUMBERED:
        for argument in (*args, *kwargs.values()):
            meter.number(argument)
    if name in DEEP:
        size = meter.weigh(value) + meter.weigh((args, kwargs))
        meter.step(16 * size)
    check = CHECKS.get(name)
    if check is not None:
        check(meter, value, *args, **kwargs)
    if isinstance(value, str):
        _check_text(meter, name, len(value), args, kwargs)
    elif name not in DEEP and hasattr(value, "__len__"):
        meter.step(len(value))


def _check_text(meter: Meter, name: str, length: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name in SLOW_TEXT:
        if length > LONGEST_SLOW_TEXT:
            raise BudgetExceeded(f"the filter {name!r} on a text of {length:,} characters")
        meter.step(8 * length + length * length // 1_000)
        meter.text(length * (8 + sum(len(a) for a in (*args, *kwargs.values()) if isinstance(a, str))))
    elif name in ("list", "reverse", "unique", "sort", "batch", "slice"):
        meter.elements(length)
    else:
        meter.step(length >> 5)


def _check_replace(meter: Meter, value: Any, old: Any, new: Any, *rest: Any, **named: Any) -> None:
    value, old, new = str(value), str(old), str(new)
    if len(new) > len(old):
        meter.text(value.count(old) * (len(new) - len(old)))


def _check_indent(meter: Meter, value: Any, width: Any = 4, *rest: Any, **named: Any) -> None:
    if isinstance(value, list):
        raise TypeError("indent needs a text")  # jinja2's filter would add a line to the list itself
    size = width if isinstance(width, int) else len(width)
    if isinstance(value, str):
        meter.text(max(size, 0) * (value.count("\n") + 1))


def _check_join(meter: Meter, value: Any, d: Any = "", attribute: Any = None) -> None:
    if attribute is None and hasattr(value, "__len__"):
        meter.text(len(value) * len(str(d)))
        meter.weigh(value)


def _check_round(meter: Meter, value: Any, precision: Any = 0, method: Any = "common") -> None:
    if isinstance(precision, int) and (precision < 0 or method != "common"):
        meter.number(abs(precision))


def _check_format(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> None:
    check_percent(meter, str(value), kwargs or args)


CHECKS: dict[str, Callable[..., None]] = {
    "replace": _check_replace,
    "indent": _check_indent,
    "join": _check_join,
    "format": _check_format,
    "round": _check_round,
}
