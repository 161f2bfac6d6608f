"""The objects that a running template handles beside its data: macros, namespaces, its own blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError
from jinja2.utils import missing

__all__ = ["Macro", "Namespace", "SelfReference", "TemplateDict"]


class Namespace:
    """What `namespace(...)` makes: the one thing that a template may assign to across scopes.

    As in transformers, a name that begins with an underscore is refused.
    """

    __slots__ = ("_attrs",)

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        self._attrs = dict(*args, **kwargs)
        for name in self._attrs:
            check_attribute(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._attrs[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        check_attribute(name)
        self._attrs[name] = value

    def __repr__(self) -> str:
        return f"<Namespace {self._attrs!r}>"


def check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the underscore-prefixed name {name!r}")


class TemplateDict:
    """The global `dict`: makes dicts and reaches nothing else."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)

    def __repr__(self) -> str:
        return "<class 'dict'>"


class Macro:
    """A compiled macro or call block, called as jinja2 calls one."""

    __slots__ = ("_body", "arguments", "caller", "catch_kwargs", "catch_varargs", "name")

    def __init__(
        self,
        body: Callable[..., str],
        name: str | None,
        arguments: tuple[str, ...],
        catch_kwargs: bool,
        catch_varargs: bool,
        caller: bool,
    ) -> None:
        self._body = body
        self.name = name
        self.arguments = arguments
        self.catch_kwargs = catch_kwargs
        self.catch_varargs = catch_varargs
        self.caller = caller

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        if kwargs or self.caller or self.catch_kwargs or self.catch_varargs or len(args) != len(self.arguments):
            args = self._bind(args, kwargs)
        return self._body(*args)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        expected = len(self.arguments)
        bound = list(args[:expected])
        found_caller = expected == len(bound) and "caller" in self.arguments
        for name in self.arguments[len(bound) :]:
            bound.append(kwargs.pop(name, missing))
            found_caller = found_caller or name == "caller"
        if self.caller and not found_caller:
            caller = kwargs.pop("caller", None)
            bound.append(Undefined("No caller defined", name="caller") if caller is None else caller)
        if self.catch_kwargs:
            bound.append(kwargs)
        elif "caller" in kwargs:
            raise TypeError(f"macro {self.name!r} was invoked with two values for the special caller argument")
        elif kwargs:
            raise TypeError(f"macro {self.name!r} takes no keyword argument {next(iter(kwargs))!r}")
        if self.catch_varargs:
            bound.append(args[expected:])
        elif len(args) > expected:
            raise TypeError(f"macro {self.name!r} takes not more than {expected} argument(s)")
        return tuple(bound)

    def __repr__(self) -> str:
        return f"<Macro {'anonymous' if self.name is None else repr(self.name)}>"


class SelfReference:
    """The name `self` in a template: its blocks, callable by name."""

    __slots__ = ("_blocks", "_context", "_meter")

    def __init__(self, meter: object, context: Mapping[str, Any], blocks: Mapping[str, Callable[..., str]]) -> None:
        self._meter = meter
        self._context = context
        self._blocks = blocks

    def __getitem__(self, name: str) -> Callable[[], str]:
        block = self._blocks[name]
        return lambda: block(self._meter, self._context)

    def __repr__(self) -> str:
        return "<TemplateReference None>"
