"""`Codec`, a chat template read in both directions, and `load`, which finds one.

It wires the rooms below it. The way of a conversation: `messages` reads it into plain data, `rendering` puts it into
the shape that the template takes (`adapting`, `capabilities`) and through the template, and `prompt` tells who wrote
what, and what its tokens are (`tokenized`). The way back: `turn` derives from renders how an assistant's turn is
written, and reads and writes turns by that. Both ways together: `completions`, `training` and `session`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from . import laws, sources
from .capabilities import Capabilities, Probe
from .completions import Completions
from .errors import FormatNotDerived, SourceError, UnsupportedInput
from .events import FinishReason
from .messages import Message, plain, read_messages, read_tools
from .prompt import Prompt
from .rendering import Conversation, Rendering
from .session import Session
from .template import Budget, Template
from .template.environment import clock
from .template.traced import TracedText
from .tokenized import SPECIAL_IN_CONTENT, Making
from .tokens.encoding import CACHE_BYTES, Encoder
from .tokens.samples import Sample
from .tokens.tokenizer import Tokenizer
from .tokens.vocabularies.finding import as_tokenizer, find_tokenizer
from .training import training_samples
from .turn.calls import Limits
from .turn.checks import check
from .turn.decoder import Decoder
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
    tokenizer: Any = None,
    cache: int = CACHE_BYTES,
) -> Codec:
    """The codec of a model's folder, a template or tokenizer configuration file, a GGUF file, or a built-in format.

    `template_name` picks one of several named templates; `format`, `tokenizer` and `cache` are as for `Codec`; without
    a `tokenizer`, the one beside the template is read when ids are first asked for. Raises `SourceError` where no
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
        tokenizer=tokenizer,
        cache=cache,
    )


class Codec:
    """A chat template, with the special tokens that it writes by name (`{"bos_token": "<s>", …}`).

    `format` is how the assistant's turn is written, where it shall not be derived from the template. `tokenizer` is
    what token ids are made with and read by: the path of a tokenizer's file or folder, an object of `tokenizers`,
    `transformers`, `tiktoken` or `mistral_common`, or one that is a `chatcodec.tokens.Tokenizer`. `cache` bounds the
    bytes that are kept of texts and their ids, 0 keeps none. Raises `SourceError` for a format that nothing can be
    read by, and for a tokenizer that cannot be read.
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
        tokenizer: Any = None,
        cache: int = CACHE_BYTES,
    ) -> None:
        self._made_of = {
            "special_tokens": special_tokens,
            "name": name,
            "source": source,
            "budget": budget,
            "format": format,
            "tokenizer": tokenizer,
            "cache": cache,
        }
        self.special_tokens = dict(special_tokens or {})
        self.source = source
        self.template = Template(template, name=name, constants=self.special_tokens, budget=budget)
        self._given_tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
        self._cache = cache
        if format is not None:
            check(format)
        self._given_format = format
        self._formats: dict[str, TurnFormat | FormatNotDerived] = {}
        self._completions: dict[str, Completions] = {}

    @property
    def variables(self) -> tuple[str, ...]:
        """The template variables that may be given beside messages and tools, such as `enable_thinking`."""
        read = self.template.variables - STANDARD_VARIABLES - self.special_tokens.keys()
        extra = {"documents"} & self.template.variables
        return tuple(sorted({name for name in read if not name.endswith("_token")} | extra))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was given, or that stands beside the template; its `engine` tells which library is in
        use. Raises `SourceError` where there is none."""
        if self._given_tokenizer is not None:
            return self._given_tokenizer
        found = find_tokenizer(self.source.path) if self.source and self.source.path else None
        if found is None:
            raise SourceError(
                f"{self.template.name}: token ids need a tokenizer, and none stands beside the template; give one: "
                "tokenizer= a model's folder, its tokenizer.json, or a tokenizer object"
            )
        return found

    @cached_property
    def encoder(self) -> Encoder:
        """The tokenizer, with what it encoded kept."""
        return Encoder(self.tokenizer, cache=self._cache)

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the template takes, found out by rendering some small conversations."""
        return Probe(self.template).capabilities()

    @cached_property
    def _rendering(self) -> Rendering:
        return Rendering(self.template, lambda: self.capabilities)

    def encode(
        self,
        messages: Any,
        tools: Any = None,
        add_generation_prompt: bool = True,
        *,
        strict: bool = False,
        special_in_content: str = "text",
        **template_variables: Any,
    ) -> Prompt:
        """The prompt of a conversation.

        `messages` and `tools` are in OpenAI's shape (dicts, dataclasses or pydantic models) and are not changed;
        `template_variables` are handed to the template (`enable_thinking`, `documents`, …). The text is that of
        transformers' `apply_chat_template(tokenize=False)`, save where that loses or garbles the conversation.

        `special_in_content` says what the prompt's ids make of a control token's spelling in the input: "text" is
        encoded as text, "error" raises `UnsupportedInput` with its path (and needs a tokenizer), and "allow" makes it
        the control token, as `apply_chat_template` does.

        Raises `UnsupportedInput` for a conversation that the template cannot carry, and for a variable that it never
        reads; with `strict`, also for one of which the template leaves out what a message says. Raises
        `BudgetExceeded` where rendering takes too much work.
        """
        if special_in_content not in SPECIAL_IN_CONTENT:
            raise UnsupportedInput("special_in_content", f"it is one of {', '.join(SPECIAL_IN_CONTENT)}")
        self._check_variables(template_variables)
        conversation = Conversation(
            read_messages(messages),
            read_tools(tools),
            {
                "documents": None,
                **{name: plain(value, name) for name, value in template_variables.items()},
                "add_generation_prompt": bool(add_generation_prompt),
            },
        )
        now = clock.get() or datetime.now()
        given = {name: conversation.variables[name] for name in template_variables}
        making = self._making(conversation, given, special_in_content)
        text = self._rendering.render(conversation, now)
        prompt = Prompt(text, lambda: self._rendering.trace(conversation, now, text), making)
        if special_in_content == "error":
            _ = prompt.tokenized.ids
        if strict and prompt.trace.unsaid:
            raise UnsupportedInput(prompt.trace.unsaid[0], "the template leaves it out of the prompt")
        return prompt

    def _making(self, conversation: Conversation, variables: Mapping[str, Any], special: str) -> Making:
        def before(place: int) -> str:
            return self.encode(conversation.messages[:place], conversation.tools, **variables).text

        return Making(
            conversation.messages,
            conversation.tools,
            variables,
            special,
            self.template.source,
            encoder=lambda: self.encoder,
            format=lambda: self.format_with(**variables),
            before=before,
            generation=lambda: self._rendering.generation(conversation),
        )

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
        template_variables.pop("documents", None)  # what is said does not change how a turn is written
        key = _key(template_variables)
        found = self._formats.get(key)
        if found is None:
            try:
                found = self._derive(template_variables)
            except FormatNotDerived as error:
                found = error
            _remember(self._formats, key, found)
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
            self.format_after(prompt, **template_variables),
            prompt=prompt.text if isinstance(prompt, Prompt) else prompt,
            tools=read_tools(tools),
            vocabulary=_Vocabulary(self),
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
        *,
        open: bool = False,
        **template_variables: Any,
    ) -> str:
        """The completion that decodes to `message`, as the model would have written it after `prompt`.

        With `open` the message goes on: the completion is what has been written up to the end of its content, or,
        where it has none, of its reasoning; it has no calls.

        Raises `UnsupportedInput` where the format cannot carry the message (with `tools`, the arguments' types are
        known, and more can be carried), `FormatNotDerived` where there is no format.
        """
        given = plain(message, "message")
        if not isinstance(given, dict):
            raise UnsupportedInput("message", "a message is an object")
        turn, begun = self.format_after(prompt, **template_variables), _text_of(prompt)
        if open:
            return laws.compose_open(turn, given, prompt=begun)
        return laws.compose_faithfully(turn, given, prompt=begun, tools=read_tools(tools))

    def compose_ids(
        self,
        message: Mapping[str, Any],
        prompt: Prompt | str | None = None,
        tools: Any = None,
        *,
        end: bool = True,
        open: bool = False,
        **template_variables: Any,
    ) -> list[int]:
        """The same completion as token ids, with `end` up to and with the token that ends the turn.

        Control tokens are those that the format writes; their spelling in the message is text.
        """
        given = plain(message, "message")
        if not isinstance(given, dict):
            raise UnsupportedInput("message", "a message is an object")
        completions = self.completions(**_with_variables(prompt, template_variables))
        text = _text_of(prompt)
        if open:
            return completions.compose_open(given, text).ids
        return completions.compose(given, text, read_tools(tools), end=end).ids

    def completions(self, **template_variables: Any) -> Completions:
        """What writes completions after prompts with these template variables. Raises `FormatNotDerived`."""
        template_variables.pop("documents", None)
        key = _key(template_variables)
        found = self._completions.get(key)
        if found is None:
            found = Completions(self, self.format_with(**template_variables), template_variables)
            _remember(self._completions, key, found)
        return found

    @property
    def stops(self) -> tuple[str, ...]:
        """What ends a turn whatever its format: the source's stops, and the special tokens that say so."""
        stops = [*(self.source.stops if self.source else ()), *map(self.special_tokens.get, STOPPING_TOKENS)]
        return tuple(dict.fromkeys(filter(None, stops)))

    # -- training and sampling

    def training_samples(
        self,
        messages: Any,
        tools: Any = None,
        *,
        turns: str | Callable[[int, Message], bool] = "all",
        given: int = 0,
        max_length: int | None = None,
        overflow: str = "drop",
        **template_variables: Any,
    ) -> list[Sample]:
        """What a model is trained on to write the assistant's messages: each after the prompt that it would be given.

        `turns` are "all", the "last" (both without those whose field `train`, or `weight`, says no, and without what
        begins the conversation), those that are "flagged" (the field says yes), or those for which
        `turns(place, message)` is true; the first `given` messages are not trained in any case. Reasoning that stands
        inline before the content counts as reasoning. One sample holds several turns where later prompts go on from
        earlier ones; where the template rewrites history there are more. `max_length` is in tokens; a longer sample is
        dropped, or, with `overflow="truncate"`, cut behind the last turn that fits, or, with "error", raises
        `UnsupportedInput`.

        Raises `UnsupportedInput` with the message's path for a turn that the format cannot carry, `FormatNotDerived`.
        """
        return training_samples(
            self,
            read_messages(messages),
            read_tools(tools),
            turns=turns,
            given=given,
            max_length=max_length,
            overflow=overflow,
            variables=template_variables,
        )

    def session(self, tools: Any = None, *, history: str = "sampled", **template_variables: Any) -> Session:
        """A conversation in token ids, whose prompts go on from what was sent and sampled.

        Where the template rewrites history, `history="sampled"` keeps the ids (`Session.departures` tells where the
        template would differ), `history="template"` takes the template's. Raises `FormatNotDerived`.
        """
        return Session(self, tools, history=history, **template_variables)

    def format_after(self, prompt: Prompt | str | Sequence[int] | None = None, **template_variables: Any) -> TurnFormat:
        """The format of a turn after `prompt`, with what else may end one: the source's stops, and the special token
        that says so. Raises `FormatNotDerived`."""
        turn = self.format_with(**_with_variables(prompt, template_variables))
        more = [stop for stop in self.stops if stop not in (*turn.ends, *turn.next_turns)]
        return replace(turn, ends=(*turn.ends, *more)) if more else turn

    # -- as a whole

    def _check_variables(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name in STANDARD_VARIABLES and name != "documents":
                raise UnsupportedInput(name, "it is given on its own, not as a template variable")
            if name not in self.template.variables and name not in self.special_tokens:
                known = ", ".join(self.variables) or "none"
                raise UnsupportedInput(name, f"the template never reads this variable; those it reads: {known}")

    def __reduce__(self) -> Any:
        """What it was made of: another process makes its own, if it can have the tokenizer that was given."""
        return _make, (self.template.source, self._made_of)

    def __repr__(self) -> str:
        return f"Codec({self.template.name!r})"


def _make(template: str, made_of: dict[str, Any]) -> Codec:
    return Codec(template, **made_of)


def _with_variables(prompt: Any, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The template variables of a turn after `prompt`."""
    return {**(prompt.variables if isinstance(prompt, Prompt) else {}), **variables}


def _text_of(prompt: Prompt | str | None) -> str | None:
    if prompt is None or isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Prompt):
        return prompt.text
    raise UnsupportedInput("prompt", "to compose, give the Prompt or its text")


def _key(variables: Mapping[str, Any]) -> str:
    return repr(sorted(variables.items()))


def _remember(known: dict[str, Any], key: str, value: Any) -> None:
    if len(known) >= MOST_FORMATS:
        known.clear()
    known[key] = value


class _Vocabulary:
    """The codec's tokenizer, looked for when ids come."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def token_bytes(self, token: int) -> bytes:
        return self._codec.tokenizer.token_bytes(token)

    def control_tokens(self) -> Mapping[str, int]:
        return self._codec.tokenizer.control_tokens()
