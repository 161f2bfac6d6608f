"""`Codec`, a chat template read in both directions, and `load`, which finds one.

It wires the rooms below it. The way of a conversation: `messages` reads it into plain data, `adapting` puts it into the
shape that the template takes (`capabilities`), `template` renders it, and `prompt` tells who wrote what. The way back:
`turn` derives from renders how an assistant's turn is written, and reads and writes turns by that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from . import laws, sources
from .adapting import adapt, is_plain
from .capabilities import Capabilities, Probe
from .errors import BudgetExceeded, FormatNotDerived, TemplateError, TooDeep, UnsupportedInput
from .events import FinishReason
from .messages import Message, Tool, plain, read_messages, read_tools
from .prompt import Prompt, Trace
from .template import Budget, Template
from .template.environment import clock
from .template.traced import TracedText, wrap
from .turn.calls import Limits
from .turn.checks import check
from .turn.decoder import Decoder, Vocabulary
from .turn.derive import derive
from .turn.format import TurnFormat

STOPPING_TOKENS = ("eos_token", "eot_token")
"""Special tokens that end a turn, whatever its format."""
MOST_FORMATS = 64
"""Sets of template variables whose formats are remembered."""
STANDARD_VARIABLES = frozenset(("messages", "tools", "documents", "add_generation_prompt"))


def load(
    source: str | os.PathLike[str],
    *,
    template_name: str | None = None,
    budget: Budget | None = None,
    format: TurnFormat | None = None,
) -> Codec:
    """The codec of a model's folder, a template or tokenizer configuration file, a GGUF file, or a built-in format.

    `template_name` picks one of several named templates; `format` is as for `Codec`. Raises `SourceError` where no
    template is found, and `TemplateError` where it does not compile.
    """
    found = sources.find(source, template_name=template_name)
    return Codec(
        found.template,
        special_tokens=found.special_tokens,
        name=found.name,
        source=found,
        budget=budget,
        format=format,
    )


class Codec:
    """A chat template, with the special tokens that it writes by name (`{"bos_token": "<s>", …}`).

    `format` is how the assistant's turn is written, where it shall not be derived from the template; `vocabulary` is
    what is needed to decode token ids. Raises `SourceError` for a format that nothing can be read by.
    """

    def __init__(
        self,
        template: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        name: str = "chat_template",
        source: sources.Source | None = None,
        budget: Budget | None = None,
        format: TurnFormat | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.special_tokens = dict(special_tokens or {})
        self.source = source
        self.template = Template(template, name=name, constants=self.special_tokens, budget=budget)
        self.vocabulary = vocabulary
        if format is not None:
            check(format)
        self._given_format = format
        self._formats: dict[str, TurnFormat | FormatNotDerived] = {}

    @property
    def variables(self) -> tuple[str, ...]:
        """The template variables that may be given beside messages and tools, such as `enable_thinking`."""
        read = self.template.variables - STANDARD_VARIABLES - self.special_tokens.keys()
        extra = {"documents"} & self.template.variables
        return tuple(sorted({name for name in read if not name.endswith("_token")} | extra))

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the template takes, found out by rendering some small conversations."""
        return Probe(self.template).capabilities()

    def encode(
        self,
        messages: Any,
        tools: Any = None,
        add_generation_prompt: bool = True,
        *,
        strict: bool = False,
        **template_variables: Any,
    ) -> Prompt:
        """The prompt of a conversation.

        `messages` and `tools` are in OpenAI's shape (dicts, dataclasses or pydantic models) and are not changed;
        `template_variables` are handed to the template (`enable_thinking`, `documents`, …). The text is that of
        transformers' `apply_chat_template(tokenize=False)`, save where that loses or garbles the conversation.

        Raises `UnsupportedInput` for a conversation that the template cannot carry, and for a variable that it never
        reads; with `strict`, also for one of which the template leaves out what a message says. Raises
        `BudgetExceeded` where rendering takes too much work.
        """
        self._check_variables(template_variables)
        conversation = _Conversation(
            read_messages(messages),
            read_tools(tools),
            {
                "documents": None,
                **{name: plain(value, name) for name, value in template_variables.items()},
                "add_generation_prompt": bool(add_generation_prompt),
            },
        )
        now = clock.get() or datetime.now()
        prompt = Prompt(self._render(conversation, now), lambda: self._trace(conversation, now), template_variables)
        if strict and prompt.trace.unsaid:
            raise UnsupportedInput(prompt.trace.unsaid[0], "the template leaves it out of the prompt")
        return prompt

    # -- the model's output

    @property
    def format(self) -> TurnFormat:
        """How the assistant's turn is written: given, or derived from the template. Raises `FormatNotDerived`."""
        return self.format_with()

    def format_with(self, **template_variables: Any) -> TurnFormat:
        """The same for a prompt with these template variables: `enable_thinking=False` may write another turn."""
        if self._given_format is not None:
            return self._given_format
        self._check_variables(template_variables)
        key = repr(sorted(template_variables.items()))
        found = self._formats.get(key)
        if found is None:
            try:
                found = self._derive(template_variables)
            except FormatNotDerived as error:
                found = error
            if len(self._formats) >= MOST_FORMATS:
                self._formats.clear()
            self._formats[key] = found
        if isinstance(found, FormatNotDerived):
            raise found
        return found

    def _derive(self, variables: Mapping[str, Any]) -> TurnFormat:
        def trace(messages: Any, tools: Any = None, add_generation_prompt: bool = False, **more: Any) -> TracedText:
            given = {name: value for name, value in {**more, **variables}.items() if name in self.template.variables}
            return self.encode(messages, tools, add_generation_prompt, **given).trace.text

        turn = derive(trace, template=self.template.name)
        laws.prove(turn, trace, template=self.template.name)
        return turn

    def decoder(
        self,
        prompt: Prompt | str | Sequence[int] | None = None,
        tools: Any = None,
        *,
        limits: Limits | None = None,
        **template_variables: Any,
    ) -> Decoder:
        """A decoder of one turn, to be fed as the model writes.

        `prompt` is what the model was given (a `Prompt`, its text, or its ids): its end tells whether reasoning is
        open already. Without one, the template's own generation prompt counts. `tools` give the arguments their
        types. `template_variables` are those that the prompt was made with; a `Prompt` knows them. Raises
        `FormatNotDerived`.
        """
        return Decoder(
            self._format_after(prompt, template_variables),
            prompt=prompt.text if isinstance(prompt, Prompt) else prompt,
            tools=read_tools(tools),
            vocabulary=self.vocabulary,
            limits=limits,
        )

    def decode(
        self,
        output: str | Sequence[int],
        prompt: Prompt | str | Sequence[int] | None = None,
        tools: Any = None,
        *,
        finish_reason: FinishReason | None = None,
        **template_variables: Any,
    ) -> Message:
        """The message that a model's whole output says; see `decoder`, and `Decoder.message` for its shape.

        `finish_reason` is the engine's, "length" where the output was cut. Calls that are broken, cut, or of no
        declared tool are no part of the message; a `decoder` has them all in `calls`.
        """
        decoder = self.decoder(prompt, tools, **template_variables)
        decoder.feed(output)
        decoder.close(finish_reason)
        return decoder.message

    def compose(
        self,
        message: Mapping[str, Any],
        prompt: Prompt | str | None = None,
        tools: Any = None,
        **template_variables: Any,
    ) -> str:
        """The completion that decodes to `message`, as the model would have written it after `prompt`.

        Raises `UnsupportedInput` where the format cannot carry the message (with `tools`, the arguments' types are
        known, and more can be carried), `FormatNotDerived` where there is no format.
        """
        given = plain(message, "message")
        if not isinstance(given, dict):
            raise UnsupportedInput("message", "a message is an object")
        return laws.compose_faithfully(
            self._format_after(prompt, template_variables),
            given,
            prompt=prompt.text if isinstance(prompt, Prompt) else prompt,
            tools=read_tools(tools),
        )

    def _format_after(self, prompt: Any, variables: Mapping[str, Any]) -> TurnFormat:
        """The format, with what else may end a turn: the source's stops, and the special token that says so."""
        turn = self.format_with(**{**(prompt.variables if isinstance(prompt, Prompt) else {}), **variables})
        stops = [*(self.source.stops if self.source else ()), *map(self.special_tokens.get, STOPPING_TOKENS)]
        more = [stop for stop in dict.fromkeys(stops) if stop and stop not in (*turn.ends, *turn.next_turns)]
        return replace(turn, ends=(*turn.ends, *more)) if more else turn

    # -- rendering

    def _check_variables(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name in STANDARD_VARIABLES and name != "documents":
                raise UnsupportedInput(name, "it is given on its own, not as a template variable")
            if name not in self.template.variables and name not in self.special_tokens:
                known = ", ".join(self.variables) or "none"
                raise UnsupportedInput(name, f"the template never reads this variable; those it reads: {known}")

    def _adapted(self, messages: list[Message], tools: list[Tool] | None) -> tuple[list[Message], Any]:
        if not tools and is_plain(messages, self.capabilities):
            return messages, tools
        return adapt(messages, tools, self.capabilities)

    def _render(self, conversation: _Conversation, now: datetime) -> str:
        messages, tools = self._adapted(conversation.messages, conversation.tools)
        token = clock.set(now)
        try:
            return self.template.render(messages=messages, tools=tools, **conversation.variables)
        except TemplateError as error:
            if isinstance(error, BudgetExceeded) and not isinstance(error, TooDeep):
                raise
            raise self._blame(error, messages, tools, conversation.variables) from error
        finally:
            clock.reset(token)

    def _trace(self, conversation: _Conversation, now: datetime) -> Trace:
        messages = wrap(conversation.messages, None, "messages")
        tools = wrap(conversation.tools, None, "tools")
        variables = {name: wrap(value, None, name) for name, value in conversation.variables.items()}
        adapted, adapted_tools = self._adapted(messages, tools)
        token = clock.set(now)
        try:
            text = self.template.trace_wrapped({"messages": adapted, "tools": adapted_tools, **variables})
        finally:
            clock.reset(token)
        return Trace(
            text,
            conversation.messages,
            {"tools": conversation.tools, **conversation.variables},
            lambda: self.capabilities.media,
        )

    def _blame(
        self, error: TemplateError, messages: list[Message], tools: Any, variables: dict[str, Any]
    ) -> UnsupportedInput:
        """The error of a conversation that the template failed on: which message it failed at, and why."""

        def fails(count: int, tools: Any) -> bool:
            try:
                self.template.render(messages=messages[:count], tools=tools, **variables)
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

    def __repr__(self) -> str:
        return f"Codec({self.template.name!r})"


class _Conversation:
    """One call's input as plain data of our own."""

    def __init__(self, messages: list[Message], tools: list[Tool] | None, variables: dict[str, Any]) -> None:
        self.messages = messages
        self.tools = tools
        self.variables = variables
