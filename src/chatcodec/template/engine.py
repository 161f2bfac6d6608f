"""`Template`: a chat template, compiled once and rendered many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import CodeType, TracebackType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.exceptions import TemplateSyntaxError

from ..errors import BudgetExceeded, TemplateError, TooDeep
from . import runtime
from .analysis import has_generation
from .budget import Budget, Meter, current_meter
from .environment import GLOBALS, RaisedByTemplate, token_limit
from .traced import Spans, TracedText, wrap

Root = Callable[[Meter, dict[str, Any]], str]


class Template:
    """A chat template.

    `source` is its Jinja text, `name` what errors call it, `constants` are variables that count as its own writing
    (the special tokens). `has_generation` tells whether the template uses `{% generation %}`. Raises `TemplateError`
    where the text does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str = "chat_template",
        constants: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.source = source
        self.name = name
        self.constants = dict(constants or {})
        self.budget = budget or Budget()
        limit = token_limit.set(self.budget.tokens)
        try:
            tree = runtime.ENVIRONMENT.parse(source)
            self.has_generation = has_generation(tree)
            self._code, self._lines, self.variables = _compile(tree, name)
        except TemplateSyntaxError as error:
            raise TemplateError(error.message or "syntax error", template=name, line=error.lineno) from error
        except BudgetExceeded as error:
            raise BudgetExceeded(error.message, template=name) from None
        except (RecursionError, MemoryError, SyntaxError, OverflowError, ValueError, AssertionError) as error:
            raise TemplateError(f"too large or too deeply nested to compile ({error})", template=name) from error
        finally:
            token_limit.reset(limit)

    def render(self, **variables: Any) -> str:
        """The text that transformers' compiled template gives for these variables; they are never changed.

        Raises `TemplateError` for whatever goes wrong, and `BudgetExceeded`, one of them, for too much work.
        """
        return self._run(self._plain, variables)

    def trace(self, **variables: Any) -> TracedText:
        """The same text, and for each of its characters which variable wrote it, or that the template did."""
        return self.trace_wrapped({name: wrap(value, None, name) for name, value in variables.items()})

    def trace_wrapped(self, variables: dict[str, Any]) -> TracedText:
        """`trace`, for variables that are traced already."""
        return TracedText.of(self._run(self._traced, variables))

    def generation(self, **variables: Any) -> list[tuple[int, int]] | None:
        """Where, in the text that `render` gives for these variables, the output of generation blocks stands.

        The ranges, (start, end) in characters, are in order, do not overlap, and none is empty; a block inside another
        is part of it. What is left of a block's output after trimming or cutting is still the block's; what the
        template puts into it afterwards (`replace`, `indent`) is not, and leaves a gap; output that is never printed
        has no range. None where the template has no generation blocks, and where it writes another text each time
        (random words, the time), so that the output cannot be located. Raises as `render` does.
        """
        if not self.has_generation:
            return None
        text = TracedText.of(self._run(self._marked, variables))
        return _ranges(text.origins) if text == self.render(**variables) else None

    def _run(self, root: Root, variables: dict[str, Any]) -> str:
        meter = Meter(self.budget, variables)
        token = current_meter.set(meter)
        try:
            return root(meter, {**GLOBALS, **self.constants, **variables})
        except Exception as error:
            raise self._failure(error) from error
        finally:
            current_meter.reset(token)

    @cached_property
    def _plain(self) -> Root:
        return self._bind(runtime.namespace())

    @cached_property
    def _traced(self) -> Root:
        from . import tracing

        return self._bind(tracing.namespace())

    @cached_property
    def _marked(self) -> Root:
        from . import tracing

        return self._bind(tracing.marking_namespace())

    def _bind(self, names: dict[str, Any]) -> Root:
        exec(self._code, names)
        root: Root = names["root"]
        return root

    def _failure(self, error: Exception) -> TemplateError:
        line = self._line(error.__traceback__)
        if isinstance(error, BudgetExceeded):
            return type(error)(error.message, template=self.name, line=line)
        if isinstance(error, RaisedByTemplate):
            failure = TemplateError(str(error.message), template=self.name, line=line)
            failure.raised = True
            return failure
        if isinstance(error, RecursionError):
            return TooDeep(f"RecursionError: {error}", template=self.name, line=line)
        if isinstance(error, MemoryError):
            return BudgetExceeded(f"MemoryError: {error}", template=self.name, line=line)
        if isinstance(error, JinjaError):
            return TemplateError(str(error.message), template=self.name, line=line)
        return TemplateError(f"{type(error).__name__}: {error}", template=self.name, line=line)

    def _line(self, traceback: TracebackType | None) -> int | None:
        """The template's line that the innermost frame of its code stands for."""
        found = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self._code.co_filename:
                found = traceback.tb_lineno
            traceback = traceback.tb_next
        if found is None:
            return None
        return max((pair for pair in self._lines if pair[0] <= found), default=(0, None))[1]

    def __repr__(self) -> str:
        return f"Template(name={self.name!r}, {len(self.source)} characters)"


def _ranges(spans: Spans) -> list[tuple[int, int]]:
    """The ranges of `spans`; those of one origin that touch are one."""
    ranges: list[tuple[int, int]] = []
    last = None
    for start, end, origin in spans:
        if origin is last and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))
        last = origin
    return ranges


def _compile(tree: nodes.Template, name: str) -> tuple[CodeType, list[tuple[int, int]], frozenset[str]]:
    """The module's code, pairs of its line and the template's, and the variables that it reads."""
    from .compiler import Compiler

    compiler = Compiler(runtime.ENVIRONMENT, name, None)
    compiler.visit(tree)
    source = compiler.module()
    code = compile(source, f"<chat template {name}>", "exec", dont_inherit=True)
    lines = [(python, template) for template, python in compiler.debug_info]
    return code, lines, frozenset(compiler.variables - GLOBALS.keys())
