"""From a request to what the engine is asked, and to the choices that its answers are read by.

All of it is work of the processor, for a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codec import Codec
from ..errors import SourceError, UnsupportedInput
from ..messages import Message, Tool, read_tools
from ..prompt import Prompt
from ..turn.controls import Controls
from ..turn.decoder import Decoder
from ..turn.format import TurnFormat
from ..turn.inline import without_inline_reasoning
from ..turn.said import read_message
from .bodies import check_shape
from .choice import ByteVocabulary, Choice
from .engines.engine import Ask
from .errors import context_exceeded, wrong
from .requests import ChatRequest, PromptRequest
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Begun:
    """A prompt, and what of the answer the client has written itself; `ids` are None without a tokenizer."""

    prompt: Prompt
    variables: dict[str, Any]
    written: str = ""
    ids: list[int] | None = None
    written_ids: Sequence[int] = ()
    last: Message | None = None
    """The message that goes on."""

    @property
    def text(self) -> str:
        return self.prompt.text + self.written

    @property
    def all_ids(self) -> list[int] | None:
        return None if self.ids is None else [*self.ids, *self.written_ids]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One `ask` and one choice for each of the answers that are wanted."""

    asks: list[Ask]
    choices: list[Choice]
    prompt_ids: list[int] | None


class Preparing:
    """Makes prompts with a codec. `takes_ids` says that the engine takes ids; `context` is its length in tokens."""

    def __init__(self, codec: Codec, settings: Settings, *, takes_ids: bool, context: int | None) -> None:
        self.codec = codec
        self._settings = settings
        self.context = context
        self._has_tokenizer = _has_tokenizer(codec)
        self.by_ids = takes_ids and self._has_tokenizer

    @property
    def vocabulary(self) -> ByteVocabulary | None:
        return ByteVocabulary(self.codec.tokenizer) if self._has_tokenizer else None

    def warm_up(self) -> None:
        """Finds out beforehand what is found out once. Raises `ChatCodecError` where no turn can be read, or no prompt
        made as the settings say."""
        variables = dict(self._settings.template_kwargs)
        self.codec.format_with(**variables)
        self.codec.encode([{"role": "user", "content": "…"}], special_in_content=self._special, **variables)

    # -- prompts

    def begin(self, asked: PromptRequest, tools: list[Tool] | None, *, generation_prompt: bool = True) -> Begun:
        """The prompt of a request. Raises `ApiError`, `UnsupportedInput`."""
        variables = self.variables(asked)
        messages, last = asked.messages or [], None
        if asked.continue_final_message:
            *messages, _ = messages
            last = self.last_message(asked, variables)
        prompt = self.codec.encode(
            messages, tools, generation_prompt or last is not None, special_in_content=self._special, **variables
        )
        ids = prompt.ids if self._has_tokenizer else None
        if last is None:
            return Begun(prompt, variables, ids=ids)
        try:
            self._check_special(last)
            written = self.codec.compose(last, prompt, open=True)
            written_ids = self.codec.compose_ids(last, prompt, open=True) if self._has_tokenizer else ()
        except UnsupportedInput as error:
            raise UnsupportedInput(f"messages[{len(messages)}].{error.path}", error.reason) from None
        return Begun(prompt, variables, written, ids, written_ids, last)

    def last_message(self, asked: PromptRequest, variables: dict[str, Any]) -> Message:
        """The message that goes on, its reasoning apart from its content. Raises `ApiError`."""
        if asked.add_generation_prompt:
            raise wrong("continue_final_message", "it cannot be together with add_generation_prompt")
        last = (asked.messages or [{}])[-1]
        if last.get("role") != "assistant":
            raise wrong("continue_final_message", "the last message is not the assistant's")
        return without_inline_reasoning(last, self.codec.format_with(**variables).reasoning)

    def check(self, asked: PromptRequest) -> None:
        """Raises `ApiError` for messages and tools that are too many, or no such thing."""
        for name, most in (("messages", self._settings.max_messages), ("tools", self._settings.max_tools)):
            if len(getattr(asked, name) or ()) > most:
                raise wrong(name, f"there are more than {most}", "too_many")
        for index, tool in enumerate(asked.tools or ()):
            _check_tool(tool, f"tools[{index}]")
        for path, text in _argument_texts(asked.messages or ()):
            check_shape(text.encode("utf-8", "replace"), self._settings.limits, path)

    def variables(self, asked: PromptRequest) -> dict[str, Any]:
        """The template variables of a request over those of the server. Raises `ApiError`."""
        given = asked.variables()
        known = self.codec.template.variables
        for name in given:
            if name not in known and name != "documents":
                readable = ", ".join(self.codec.variables) or "none"
                raise wrong(
                    f"chat_template_kwargs.{name}", f"the template never reads it; the variables it reads: {readable}"
                )
        if asked.reasoning_effort is not None and "reasoning_effort" in known:
            given.setdefault("reasoning_effort", asked.reasoning_effort)
        return {**self._settings.template_kwargs, **given}

    def _check_special(self, last: Message) -> None:
        """What the client begins is part of the prompt too. Raises `UnsupportedInput`."""
        if self._special != "error":
            return
        begun = read_message(last)
        for name, text in (("content", begun.content), ("reasoning_content", begun.reasoning)):
            if any(control in text for control in self.codec.tokenizer.control_tokens()):
                raise UnsupportedInput(name, "it spells a control token of the vocabulary")

    @property
    def _special(self) -> str:
        """What becomes of control tokens in messages: in a prompt that is sent as text none can be told apart."""
        special = self._settings.special_in_content
        return "error" if special == "text" and self._has_tokenizer and not self.by_ids else special

    def ids(self, text: str) -> list[int]:
        """The ids of a text, as an engine makes them: a control token's spelling is that token."""
        encoder = self.codec.encoder
        return encoder.ids(text, encoder.controls.cut(text))

    def read(self, ids: Sequence[int]) -> str:
        """The text that ids stand for."""
        return b"".join(map(self.codec.tokenizer.token_bytes, ids)).decode("utf-8", "replace")

    # -- chats

    def check_chat(self, asked: ChatRequest) -> None:
        """What can be told before the prompt is made. Raises `ApiError`."""
        self.check(asked)
        if (asked.n or 1) > self._settings.max_n:
            raise wrong("n", f"it is at most {self._settings.max_n} here")
        if asked.return_token_ids and not self.by_ids:
            raise wrong("return_token_ids", "the engine is not asked by token ids here", "unsupported_parameter")

    def prepare(self, asked: ChatRequest) -> Prepared:
        """What the engine is asked for a chat. Raises `ApiError`, `ChatCodecError`."""
        tools = asked.offered
        begun = self.begin(asked, tools)
        turn = self.codec.format_after(begun.prompt)
        if not tools:
            turn = replace(turn, calls=None)
        ids = begun.all_ids
        ask = Ask(
            text=begun.text,
            ids=ids if self.by_ids else None,
            max_tokens=self._room(ids, asked.most_tokens),
            stop_ids=tuple(self.codec.completions(**begun.variables).stop_ids) if self._has_tokenizer else (),
            shown=self._shown(turn),
            beginning=self._beginning(turn),
            sampling=asked.sampling,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            exact_ids=bool(asked.return_token_ids),
        )
        count, declared = range(asked.n or 1), read_tools(tools)
        return Prepared(
            [_seeded(ask, index) for index in count],
            [self._choice(index, asked, begun, turn, ask.shown, declared) for index in count],
            ids,
        )

    def _choice(
        self,
        index: int,
        asked: ChatRequest,
        begun: Begun,
        turn: TurnFormat,
        shown: Sequence[str],
        tools: list[Tool] | None,
    ) -> Choice:
        vocabulary = self.vocabulary if self.by_ids else None
        last = read_message(begun.last) if begun.last else None
        return Choice(
            index,
            Decoder(turn, prompt=begun.prompt.text, tools=tools, vocabulary=vocabulary),
            begun=begun.written if vocabulary is None else begun.written_ids,
            begun_length=len(last.reasoning) + len(last.content) if last else 0,
            begun_in="content" if last and last.content else "reasoning",
            stops=asked.stops,
            offers_tools=bool(tools),
            must_call=asked.must_call,
            parallel=asked.parallel_tool_calls is not False,
            tells_tokens=bool(asked.logprobs or asked.return_token_ids),
            vocabulary=vocabulary,
            shown=shown,
        )

    def _room(self, ids: Sequence[int] | None, most: int | None) -> int | None:
        """How many tokens the answer may have. Raises `ApiError` where the prompt leaves none."""
        bounds = [bound for bound in (most, self._settings.max_tokens) if bound is not None]
        if self.context is not None and ids is not None:
            bounds.append(self.context - len(ids))
            if bounds[-1] < 1:
                raise context_exceeded(len(ids), self.context)
        return min(bounds, default=None)

    def _beginning(self, turn: TurnFormat) -> str:
        """The special token that begins a prompt, and no turn of it: servers put that before a text themselves."""
        token = self.codec.special_tokens.get("bos_token") or ""
        return "" if any(token in text for text in (turn.header, *turn.next_turns)) else token

    def _shown(self, turn: TurnFormat) -> tuple[str, ...]:
        """The control tokens that the format writes."""
        if not self._has_tokenizer:
            return ()
        known = self.codec.tokenizer.control_tokens()
        characters = Controls(turn, known).characters
        return tuple(text for text, token in known.items() if token in characters)


def _has_tokenizer(codec: Codec) -> bool:
    try:
        return codec.tokenizer is not None
    except SourceError:
        return False


def _argument_texts(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """The JSON within the JSON: arguments of calls that are given as text, with their paths."""
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                yield f"messages[{index}].tool_calls[{place}].function.arguments", arguments


def _check_tool(tool: Tool, path: str) -> None:
    if tool.get("type") != "function":
        raise wrong(f"{path}.type", "only 'function' is supported")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise wrong(f"{path}.function", "it is an object with a name and parameters")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise wrong(f"{path}.function.name", "a function needs a name")
    if not isinstance(function.get("parameters"), dict | None):
        raise wrong(f"{path}.function.parameters", "it is a JSON schema: an object")


def _seeded(ask: Ask, index: int) -> Ask:
    """The same for another choice: with the same seed all would be equal."""
    if not index or "seed" not in ask.sampling:
        return ask
    seed = (ask.sampling["seed"] + index + 2**63) % 2**64 - 2**63
    return replace(ask, sampling={**ask.sampling, "seed": seed})
