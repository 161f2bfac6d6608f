"""A conversation through a template: adapted to what that takes, rendered, and traced when somebody asks.

In: a `Conversation`, plain data of our own. Out: text, or who wrote what of it. What holds: the text is the same each
time, with the clock standing still; where the template fails, the error names the message that it failed at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .adapting import adapt, is_plain
from .capabilities import Capabilities
from .errors import BudgetExceeded, TemplateError, TooDeep, UnsupportedInput
from .messages import Message, Tool
from .prompt import Trace
from .template import Template
from .template.environment import clock
from .template.traced import TracedText, wrap, written
from .tokens.controls import Range


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is rendered; `variables` are all that the template is given beside messages and tools."""

    messages: list[Message]
    tools: list[Tool] | None
    variables: dict[str, Any]


class Rendering:
    """`capabilities` gives what the template takes, when a conversation needs it."""

    def __init__(self, template: Template, capabilities: Callable[[], Capabilities]) -> None:
        self._template = template
        self._capabilities = capabilities

    def _adapted(self, messages: list[Message], tools: list[Tool] | None) -> tuple[list[Message], Any]:
        if not tools and is_plain(messages, self._capabilities()):
            return messages, tools
        return adapt(messages, tools, self._capabilities())

    def render(self, conversation: Conversation, now: datetime) -> str:
        """The prompt's text. Raises `UnsupportedInput` where the template fails, `BudgetExceeded`."""
        messages, tools = self._adapted(conversation.messages, conversation.tools)
        token = clock.set(now)
        try:
            return self._template.render(messages=messages, tools=tools, **conversation.variables)
        except TemplateError as error:
            if isinstance(error, BudgetExceeded) and not isinstance(error, TooDeep):
                raise
            raise self._blame(error, messages, tools, conversation.variables) from error
        finally:
            clock.reset(token)

    def generation(self, conversation: Conversation) -> list[Range] | None:
        """What the template's `{% generation %}` blocks print of it; None without such, see `Template.generation`."""
        messages, tools = self._adapted(conversation.messages, conversation.tools)
        return self._template.generation(messages=messages, tools=tools, **conversation.variables)

    def trace(self, conversation: Conversation, now: datetime, rendered: str) -> Trace:
        """Who wrote what of `rendered`, its text."""
        messages = wrap(conversation.messages, None, "messages")
        tools = wrap(conversation.tools, None, "tools")
        variables = {name: wrap(value, None, name) for name, value in conversation.variables.items()}
        adapted, adapted_tools = self._adapted(messages, tools)
        token = clock.set(now)
        try:
            text = self._template.trace_wrapped({"messages": adapted, "tools": adapted_tools, **variables})
        finally:
            clock.reset(token)
        if str.__str__(text) != rendered:  # a template of random words: nobody knows who wrote which
            text = TracedText.of(written(rendered, (None, "messages")))
        return Trace(
            text,
            conversation.messages,
            {"tools": conversation.tools, **conversation.variables},
            lambda: self._capabilities().media,
        )

    def _blame(
        self, error: TemplateError, messages: list[Message], tools: Any, variables: dict[str, Any]
    ) -> UnsupportedInput:
        """The error of a conversation that the template failed on: which message it failed at, and why."""

        def fails(count: int, tools: Any) -> bool:
            try:
                self._template.render(messages=messages[:count], tools=tools, **variables)
            except TemplateError as again:
                return again.message == error.message
            return False

        reason = (
            f"the template refuses it: {error.message}"
            if error.raised
            else f"the template fails on it: {error.message}"
        )
        where = f" ({error.template}, line {error.line})" if error.line else ""
        if tools and not fails(len(messages), None):
            return UnsupportedInput("tools", reason + where)
        low, high = 1, len(messages)
        while low < high:
            middle = (low + high) // 2
            if fails(middle, tools):
                high = middle
            else:
                low = middle + 1
        return UnsupportedInput(f"messages[{high - 1}]", reason + where)
