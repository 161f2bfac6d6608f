"""The server's description of itself, as OpenAPI 3.1.

What is asked is described by the structures that requests are decoded to, with the bounds that the settings set; what
is answered, by the structures below, which serve for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from .. import __version__
from ..events import FinishReason, Status
from .requests import ChatRequest, ParseRequest, RenderRequest, TokenizeRequest
from .settings import Settings

Schema = dict[str, Any]

_COMPONENT = "#/components/schemas/{name}"
_JSON = "application/json"

# -- answers


class ErrorDetail(Struct):
    message: str
    type: str
    param: Annotated[str, Meta(description="The path in the request of what is wrong.")] | None
    code: str | None


class Error(Struct):
    error: ErrorDetail


class Function(Struct):
    name: str
    arguments: Annotated[str, Meta(description="JSON, valid in a whole answer whose `finish_reason` is `tool_calls`.")]


class ToolCall(Struct):
    id: str
    type: Literal["function"]
    function: Function


class InvalidToolCall(Struct):
    """An attempt at a call that came to nothing. One that was told of before it broke is in `tool_calls` too."""

    id: str
    name: str
    status: Literal["incomplete", "malformed"]
    raw: Annotated[str, Meta(description="What the model wrote for it.")]
    notes: Annotated[list[str], Meta(description="What is wrong with it.")]


class SaidMessage(Struct):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class AnswerMessage(SaidMessage, kw_only=True):
    refusal: None
    reasoning: Annotated[str, Meta(description="The same as `reasoning_content`.")] | UnsetType = UNSET
    invalid_tool_calls: list[InvalidToolCall] | UnsetType = UNSET


class TokenAlternative(Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TokenAlternative):
    top_logprobs: list[TokenAlternative]


class Logprobs(Struct):
    content: Annotated[list[TokenLogprob], Meta(description="All tokens that were sampled, in their order.")]
    refusal: None


class CachedTokens(Struct):
    cached_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | UnsetType = UNSET


class Choice(Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionPiece(Struct):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallPiece(Struct):
    """`id`, `type` and the name come with the first piece of a call."""

    index: int
    function: FunctionPiece
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class InvalidToolCallPiece(InvalidToolCall, kw_only=True):
    """It comes whole; `index` is its place in the message's list."""

    index: int


class AnswerDelta(Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallPiece] | UnsetType = UNSET
    invalid_tool_calls: list[InvalidToolCallPiece] | UnsetType = UNSET


class ChunkChoice(Struct, kw_only=True):
    index: int
    delta: AnswerDelta
    logprobs: Logprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: Annotated[list[ChunkChoice], Meta(description="Empty in the chunk with the usage alone.")]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Model(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | None


class ModelList(Struct):
    object: Literal["list"]
    data: list[Model]


class Tokens(Struct):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Span(Struct):
    start: int
    end: int
    path: Annotated[str, Meta(description="Of the input that wrote it; null for the template.")] | None


class Render(Struct):
    text: str
    spans: Annotated[list[Span], Meta(description="In characters, in order, without a gap over the text.")]
    dropped: Annotated[list[str], Meta(description="The paths of the input that did not reach the text.")]
    ids: Annotated[list[int], Meta(description="Null where the server has no tokenizer.")] | None


class Attempt(Struct):
    """An attempt at a tool call, whatever came of it; `span` is where `raw` stands in the output."""

    index: int
    id: str
    name: str
    arguments: str
    status: Status
    raw: str
    span: Annotated[list[int], Meta(min_length=2, max_length=2)]
    notes: list[str]


class Parse(Struct):
    message: SaidMessage
    finish_reason: FinishReason | None
    calls: list[Attempt]
    rest: Annotated[str, Meta(description="What stands behind the end of the turn.")]


class Health(Struct):
    status: Literal["ok", "unavailable"]
    engine: str
    reason: str | UnsetType = UNSET


# -- what requests hold, and what the server does not look into, but the template's codec

_MESSAGE: Schema = {
    "description": "A message in OpenAI's shape.",
    "type": "object",
    "properties": {
        "role": {"type": "string", "examples": ["system", "user", "assistant", "tool"]},
        "content": {"description": "A text, a list of parts (`{type: text, text: …}`), or null."},
        "reasoning_content": {"description": "What the assistant thought, a text."},
        "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        "tool_call_id": {"description": "Which call a message of the role `tool` answers."},
    },
    "required": ["role"],
}
_TOOL: Schema = {
    "description": "A tool in OpenAI's shape.",
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "description": {"description": "What it does, a text."},
                "parameters": {"description": "A JSON schema.", "type": ["object", "null"]},
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}

# -- routes

_ERRORS = {
    400: "The request is wrong: `param` says where.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    429: "Too much is asked at once.",
    502: "The engine failed.",
    503: "The server is stopping.",
    504: "The answer took too long.",
}
_ANYWHERE = (408, 413, 504)
_RETRIED = (429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """`path` is asked with `asked` by POST, or by GET where that is None, and answers with `answer` or one of
    `errors`. `guarded` says that it asks for the key, and is closed while the server stops."""

    path: str
    id: str
    summary: str
    about: str
    answer: type | None
    asked: type | None = None
    errors: tuple[int, ...] = ()
    guarded: bool = True


_ROUTES = (
    _Route(
        path="/v1/chat/completions",
        id="createChatCompletion",
        summary="Answer a chat",
        about="With `stream`, the answer comes as server-sent events; what they say joined is the whole answer.",
        asked=ChatRequest,
        answer=ChatCompletion,
        errors=(400, 404, 429, 502),
    ),
    _Route(path="/v1/models", id="listModels", summary="List the models", about="", answer=ModelList),
    _Route(
        path="/v1/models/{model}", id="retrieveModel", summary="Describe a model", about="", answer=Model, errors=(404,)
    ),
    _Route(
        path="/tokenize",
        id="tokenize",
        summary="Make token ids",
        about="Of the text in `prompt`, to which nothing is added and in which control tokens are those tokens, or of "
        "the prompt that `messages` make.",
        asked=TokenizeRequest,
        answer=Tokens,
        errors=(400, 404),
    ),
    _Route(
        path="/render",
        id="render",
        summary="Make a prompt of messages",
        about="Says for each part of the prompt which part of the input wrote it, and what was left out.",
        asked=RenderRequest,
        answer=Render,
        errors=(400, 404),
    ),
    _Route(
        path="/parse",
        id="parse",
        summary="Make a message of a model's output",
        about="`prompt` or `messages` are what the model was asked: they tell whether its reasoning is open already.",
        asked=ParseRequest,
        answer=Parse,
        errors=(400, 404),
    ),
    _Route(
        path="/health",
        id="health",
        summary="Whether chats can be answered now",
        about="",
        answer=Health,
        errors=(503,),
        guarded=False,
    ),
    _Route(
        path="/metrics",
        id="metrics",
        summary="Counts for Prometheus",
        about="",
        answer=None,
        guarded=False,
    ),
    _Route(
        path="/openapi.json",
        id="openapi",
        summary="This description",
        about="",
        answer=dict,
        guarded=False,
    ),
)


def description(settings: Settings) -> Schema:
    """The whole document."""
    components: Schema = {"schemas": _schemas(settings)}
    document: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "chatcodec",
            "version": __version__,
            "description": f"OpenAI-compatible chat in front of a completion engine. A body has at most "
            f"{settings.limits.size} bytes, {settings.limits.depth} levels of lists and objects, and "
            f"{settings.limits.values} values.",
        },
        "paths": {
            route.path: {"get" if route.asked is None else "post": _operation(route, settings)} for route in _ROUTES
        },
        "components": components,
    }
    if settings.api_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _operation(route: _Route, settings: Settings) -> Schema:
    operation: Schema = {"operationId": route.id, "summary": route.summary}
    if route.about:
        operation["description"] = route.about
    if "{model}" in route.path:
        schema = {"type": "string", "examples": list(settings.models)}
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": schema}]
    if route.asked is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": _of(route.asked)}}}
    operation["responses"] = _responses(route, settings)
    if settings.api_keys and not route.guarded:
        operation["security"] = []
    return operation


def _responses(route: _Route, settings: Settings) -> Schema:
    statuses = {*route.errors, *_ANYWHERE}
    if route.guarded:
        statuses |= {401, 503} if settings.api_keys else {503}
    responses = {"200": {"description": "The answer.", "content": _content(route)}}
    for status in sorted(statuses):
        responses[str(status)] = _error(status)
    if route.answer is Health:
        responses["503"] = {"description": "Not now: `reason` says why.", "content": _content(route)}
    return responses


def _content(route: _Route) -> Schema:
    if route.answer is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    content = {_JSON: {"schema": {"type": "object"} if route.answer is dict else _of(route.answer)}}
    if route.answer is ChatCompletion:
        content["text/event-stream"] = {"schema": _event()}
    return content


def _event() -> Schema:
    data = {
        "description": "`[DONE]` at the end, or JSON: a chunk, or an error, after which nothing follows.",
        "type": "string",
        "contentMediaType": _JSON,
        "contentSchema": {"anyOf": [_of(ChatCompletionChunk), _of(Error)]},
    }
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _error(status: int) -> Schema:
    answer: Schema = {"description": _ERRORS[status], "content": {_JSON: {"schema": _of(Error)}}}
    if status in _RETRIED:
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return answer


def _schemas(settings: Settings) -> Schema:
    asked = [route.asked for route in _ROUTES if route.asked is not None]
    answers = [route.answer for route in _ROUTES if route.answer not in (None, dict)]
    _, schemas = msgspec.json.schema_components([*asked, *answers, ChatCompletionChunk, Error], ref_template=_COMPONENT)
    for kind in asked:
        _bound(schemas[kind.__name__]["properties"], settings)
    return {**schemas, "Message": _MESSAGE, "Tool": _TOOL}


def _bound(fields: Mapping[str, Schema], settings: Settings) -> None:
    """Adds what the settings say to the fields of a request."""
    bounds: dict[str, Schema] = {
        "model": {"enum": list(settings.models)},
        "messages": {"maxItems": settings.max_messages},
        "tools": {"maxItems": settings.max_tools},
        "n": {"maximum": min(settings.max_n, 128)},
    }
    for name, bound in bounds.items():
        if name in fields:
            schema = fields[name]
            schema.get("anyOf", [schema])[0].update(bound)


def _of(kind: type) -> Schema:
    return {"$ref": _COMPONENT.format(name=kind.__name__)}
