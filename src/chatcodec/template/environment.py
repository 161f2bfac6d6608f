"""The jinja2 environment that chat templates are written for: what transformers provides, and what it means there.

Facts: transformers' `_compile_jinja_template` (5.24). Beyond it: a `fromjson` filter, and `generation` blocks
anywhere. jinja2 parses with it and finds attributes with it; compiled code takes filters and tests from `runtime`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, generate_lorem_ipsum

from ..errors import BudgetExceeded
from .budget import current_meter
from .compiler import Compiler
from .objects import Namespace, TemplateDict
from .traced import realign

LONGEST_DATE_FORMAT = 1_000
MOST_LOREM_WORDS = 10_000

clock: ContextVar[datetime | None] = ContextVar("clock", default=None)
"""What time `strftime_now` tells; None is the time it is."""


class RaisedByTemplate(JinjaError):
    """The template called `raise_exception`."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`: marks what the model writes; the text is the same without."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("generation"), [], [], body)
        block.set_lineno(line)
        return block


token_limit: ContextVar[int] = ContextVar("token_limit", default=0)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """`guard_format` stands in for `str.format` wherever a template gets hold of it."""

    code_generator_class = Compiler

    def __init__(self, guard_format: Callable[[str, str], Callable[..., str]]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
        self._guard_format = guard_format

    def _tokenize(self, *args: Any, **kwargs: Any) -> TokenStream:
        stream = super()._tokenize(*args, **kwargs)
        return TokenStream(_limited(iter(stream), token_limit.get()), stream.name, stream.filename)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        return self._guard_format(value.__name__, value.__self__)


def _limited(tokens: Iterator[Token], limit: int) -> Iterator[Token]:
    for count, token in enumerate(tokens):
        if count >= limit > 0:
            raise BudgetExceeded(f"the template has more than {limit:,} tokens")
        yield token


def raise_exception(message: object) -> None:
    raise RaisedByTemplate(str(message))


def strftime_now(format: str) -> str:
    if len(format) > LONGEST_DATE_FORMAT:
        raise BudgetExceeded(f"a date format of {len(format):,} characters")
    current_meter.get().step(16 * len(format))
    return realign((clock.get() or datetime.now()).strftime(format), format)


def lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
    if n * max > MOST_LOREM_WORDS:
        raise BudgetExceeded(f"lipsum of {n} paragraphs of {max} words")
    current_meter.get().step(20 * n * max)
    return generate_lorem_ipsum(n, html, min, max)


GLOBALS: dict[str, Any] = {
    "range": safe_range,
    "dict": TemplateDict(),
    "namespace": Namespace,
    "lipsum": lipsum,
    "cycler": Cycler,
    "joiner": Joiner,
    "raise_exception": raise_exception,
    "strftime_now": strftime_now,
}


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """transformers' `tojson`: `json.dumps`, nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
