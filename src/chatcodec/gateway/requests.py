"""What clients ask, as they send it, and what it comes to.

The structures are OpenAI's, with what servers of open models take beside. What is not known is ignored, as other
servers do, save what would change the answer's shape; null is as good as nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from .engines.engine import SAMPLING
from .errors import wrong

MOST_STOPS = 4
LONGEST_STOP = 512
"""Characters. Where a stop string may begin, the answer waits for its end."""
LONGEST_NAME = 1_024
"""Characters of what is written to the log, or kept."""
LARGEST_VARIABLES = 4 * 2**10
"""Bytes of the template variables as JSON: the formats of turns are remembered by them."""
RESERVED = frozenset(
    (
        "messages",
        "conversation",
        "tools",
        "documents",
        "chat_template",
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "padding",
        "truncation",
        "max_length",
        "strict",
        "special_in_content",
        "self",
        "template_name",
        "budget",
        "format",
        "tokenizer",
        "cache",
    )
)
"""Names that no client may give as template variables: a renderer's own arguments."""

Message = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Message"})]
Tool = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Tool"})]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Stop = Annotated[str, Meta(max_length=LONGEST_STOP)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Ids = Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(description="Token ids.")]
Unsupported = Annotated[Any, Meta(description="Not supported.", extra_json_schema={"type": "null"})]


UNCONSTRAINED = ": what the model writes cannot be constrained here"
UNSUPPORTED = {
    "functions": "; use tools",
    "function_call": "; use tool_choice",
    "audio": "; text is",
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar"),
        UNCONSTRAINED,
    ),
}


class StreamOptions(Struct):
    include_usage: bool | None = None


class PromptRequest(Struct, kw_only=True):
    """What a prompt is made of: the part that all requests share."""

    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: (
        Annotated[dict[str, Any], Meta(description="Variables that the template reads, such as `enable_thinking`.")]
        | None
    ) = None
    reasoning_effort: Annotated[Name, Meta(description="Handed to a template that reads it.")] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: (
        Annotated[bool, Meta(description="The last message is the beginning of the answer, which goes on from there.")]
        | None
    ) = None
    model: str | None = None

    def variables(self) -> dict[str, Any]:
        """The template variables. Raises `ApiError` for names that are not the client's to set."""
        given = dict(self.chat_template_kwargs or {})
        for name in given:
            if name in RESERVED or name.startswith("_") or name.endswith("_token"):
                raise wrong(f"chat_template_kwargs.{name[:100]}", "it is no template variable that a request may set")
        if given and len(msgspec.json.encode(given)) > LARGEST_VARIABLES:
            raise wrong("chat_template_kwargs", f"they are larger than {LARGEST_VARIABLES} bytes", "too_large")
        if self.documents is not None:
            given["documents"] = self.documents
        return given


class NamedFunction(Struct):
    name: str


class ToolChoice(Struct):
    """A call of one function is wanted."""

    type: Literal["function"]
    function: NamedFunction


class ResponseFormat(Struct):
    type: Annotated[str, Meta(description="Only text: what the model writes is not constrained.")] = "text"


class ChatRequest(PromptRequest, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Annotated[Count, Meta(description="Counts before `max_tokens`.")] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: (
        Stop
        | Annotated[list[Stop], Meta(max_length=MOST_STOPS, description="They end the content, and are no part of it.")]
        | None
    ) = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: (
        Annotated[bool, Meta(description="As vLLM has it: the ids of the prompt and of the answer come too.")] | None
    ) = None
    user: Name | None = None
    modalities: list[Literal["text"]] | None = None
    functions: Unsupported = None
    function_call: Unsupported = None
    audio: Unsupported = None
    guided_json: Unsupported = None
    guided_regex: Unsupported = None
    guided_choice: Unsupported = None
    guided_grammar: Unsupported = None
    structured_outputs: Unsupported = None
    grammar: Unsupported = None

    def check(self) -> None:
        """Raises `ApiError` for what the types do not say."""
        for name, instead in UNSUPPORTED.items():
            if getattr(self, name) is not None:
                raise wrong(name, f"it is not supported{instead}", "unsupported_parameter")
        if self.response_format is not None and self.response_format.type != "text":
            raise wrong("response_format.type", f"only 'text' is supported{UNCONSTRAINED}", "unsupported_parameter")
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "it needs 'logprobs': true")
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "it needs 'stream': true")
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise wrong("add_generation_prompt", "an answer needs it; it is false only with continue_final_message")
        for token in self.logit_bias or ():
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise wrong("logit_bias", "its keys are token ids")
        if self.must_call and not self.tools:
            raise wrong("tool_choice", "it needs tools")
        if self.must_call and not self.offered:
            raise wrong("tool_choice.function.name", "no tool has this name")

    @property
    def offered(self) -> list[Tool] | None:
        """The tools that the model is told of: none, all, or the one that it shall call."""
        match self.tool_choice:
            case "none":
                return None
            case ToolChoice(function=NamedFunction(name=name)):
                return [tool for tool in self.tools or () if _name(tool) == name]
            case _:
                return self.tools or None

    @property
    def must_call(self) -> bool:
        return self.tool_choice not in (None, "auto", "none")

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(filter(None, given))

    @property
    def sampling(self) -> dict[str, Any]:
        return {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}


def _name(tool: Tool) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


class TokenizeRequest(PromptRequest, kw_only=True):
    """`POST /tokenize`: a text in `prompt`, or messages, as vLLM has it."""

    prompt: str | None = None
    return_token_strs: bool | None = None


class RenderRequest(PromptRequest, kw_only=True):
    """`POST /render`."""

    messages: Annotated[list[Message], Meta(min_length=1)]


class ParseRequest(PromptRequest, kw_only=True):
    """`POST /parse`: what a model wrote, as text or ids, and what it was asked, as a prompt or as messages."""

    output: str | Ids
    prompt: str | Ids | None = None
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
