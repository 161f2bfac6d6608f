"""Bodies of requests: what is refused before it is decoded, and what is said of one that is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, said

import chatcodec

httpx2 = pytest.importorskip("httpx2")
pytest.importorskip("msgspec")

from chatcodec.gateway import Gateway, Settings  # noqa: E402
from chatcodec.gateway.bodies import check_shape, decode_body  # noqa: E402
from chatcodec.gateway.errors import ApiError  # noqa: E402
from chatcodec.gateway.requests import ChatRequest, ParseRequest, RenderRequest, TokenizeRequest  # noqa: E402
from chatcodec.gateway.settings import BodyLimits  # noqa: E402

LIMITS = BodyLimits()
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


def refused(body: bytes | str | dict[str, Any], shape: type = ChatRequest, limits: BodyLimits = LIMITS) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _read(body, shape, limits)
    return caught.value


def taken(**fields: Any) -> Any:
    return _read({**CHAT, **fields}, ChatRequest, LIMITS)


def _read(body: bytes | str | dict[str, Any], shape: type, limits: BodyLimits) -> Any:
    asked = decode_body(_bytes(body), shape, limits)
    if isinstance(asked, ChatRequest):
        asked.check()
    return asked


def _bytes(body: bytes | str | dict[str, Any]) -> bytes:
    if isinstance(body, dict):
        body = json.dumps(body)
    return body.encode() if isinstance(body, str) else body


# -- the shape


def nested(depth: int) -> bytes:
    return b'{"a":' * (depth // 2) + b"[" * (depth - depth // 2) + b"]" * (depth - depth // 2) + b"}" * (depth // 2)


def test_depth_is_bounded_exactly() -> None:
    check_shape(nested(32), LIMITS)
    check_shape(nested(32) * 5, LIMITS)
    with pytest.raises(ApiError, match="deeper than 32") as caught:
        check_shape(nested(33), LIMITS)
    assert (caught.value.status, caught.value.code) == (400, "too_deep")


@pytest.mark.parametrize("body", ["[1, 2, 3]", '{"a": 1, "b": {}}', "[[[]]]", '["a,b,c", "[[[", "]"]'])
def test_values_are_bounded_exactly(body: str) -> None:
    """Items and members, and the lists and objects that hold them."""
    values = 3
    check_shape(body.encode(), BodyLimits(values=values))
    with pytest.raises(ApiError, match="more than 2 values") as caught:
        check_shape(body.encode(), BodyLimits(values=values - 1))
    assert (caught.value.status, caught.value.code) == (400, "too_many_values")


@pytest.mark.parametrize(
    "text",
    [b'"[[[[,,,,{{{{"', rb'"\"[[[[,,,,"', rb'"\\", "[[[["', rb'"\\\"[[[["', '"é\\u005b[[[["'.encode(), b'"\xff[[[["'],
)
def test_what_stands_in_a_string_does_not_count(text: bytes) -> None:
    check_shape(b"[" + text + b"]", BodyLimits(depth=1, values=3))


@pytest.mark.parametrize("text", [b'"[[[[', b'"[[[[\\', b'"[[[[\\"', b'"', b"\\", b"", b"]]]]"])
def test_what_is_no_json_is_left_to_the_decoder(text: bytes) -> None:
    check_shape(text, BodyLimits(depth=1, values=1))
    assert refused(text).code in ("invalid_json", None)


@settings(max_examples=200)
@given(st.recursive(st.none() | st.text('[]{},"\\a\n', max_size=6) | st.integers(), st.lists, max_leaves=20))
def test_the_shape_is_that_of_the_value(value: Any) -> None:
    """Whatever strings hold: measured against the decoded value."""

    def measured(value: Any) -> tuple[int, int]:
        if not isinstance(value, list):
            return 0, 0
        inner = [measured(item) for item in value]
        depth = 1 + max((depth for depth, _ in inner), default=0)
        return depth, 1 + max(len(value) - 1, 0) + sum(count for _, count in inner)

    body = json.dumps(value).encode()
    depth, values = measured(value)
    check_shape(body, BodyLimits(depth=depth, values=values))
    for less in (BodyLimits(depth=depth - 1, values=values), BodyLimits(depth=depth, values=values - 1)):
        if depth:
            with pytest.raises(ApiError):
                check_shape(body, less)


LARGE = 2**24


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b"a" * LARGE + b'"',
        b'"' + b"[," * (LARGE // 2) + b'"',
        b'"' + b'\\"' * (LARGE // 2),
        b'"' + b"\\" * LARGE,
        b'"' * LARGE,
        b'1""' * (LARGE // 3),
        b'"a' * (LARGE // 2),
        b" " * LARGE,
        b"[," * (LARGE // 2),
        b"," * LARGE,
        b"[]" * (LARGE // 2),
        b"]" * LARGE,
        b'{"a":"b"},' * (LARGE // 10),
    ],
    ids=lambda body: repr(body[:6]),
)
def test_looking_at_a_hostile_body_takes_little_time(body: bytes) -> None:
    begun = time.perf_counter()
    with contextlib.suppress(ApiError):
        check_shape(body, LIMITS)
    assert time.perf_counter() - begun < 10


def test_long_numbers_take_little_time() -> None:
    begun = time.perf_counter()
    for digits in ("7" * 10_000, "7" * 10**6, "7" * 10**6 + ".5"):
        schema = '{"type":"function","function":{"name":"f","parameters":{"maximum":' + digits + "}}}"
        error = refused('{"model":"m","messages":[{"role":"user"}],"tools":[' + schema + "]}")
        assert error.param == "tools[0][...][...][...]"
        assert len(error.message) < 200
    many = ",".join(["7" * 4_000] * 4_000)
    _read('{"model":"m","messages":[{"a":[' + many + "]}]}", ChatRequest, LIMITS)
    assert time.perf_counter() - begun < 10


# -- what is said


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": None}, "messages", "messages: expected `array`, got `null`"),
        ({"messages": []}, "messages", "messages: expected `array` of length >= 1"),
        ({"messages": [{}, 1]}, "messages[1]", "messages[1]: expected `object`, got `int`"),
        ({"model": 5}, "model", "model: expected `str`, got `int`"),
        ({"n": 0}, "n", "n: expected `int` >= 1"),
        ({"n": 129}, "n", "n: expected `int` <= 128"),
        ({"n": 1.0}, "n", "n: expected `int | null`, got `float`"),
        ({"n": True}, "n", "n: expected `int | null`, got `bool`"),
        ({"n": "1"}, "n", "n: expected `int | null`, got `str`"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: expected `int` >= 1"),
        ({"max_tokens": 2**31}, "max_tokens", "max_tokens: expected `int` <= 2147483647"),
        ({"seed": 2**63}, "seed", "seed: expected `int` <= 9223372036854775807"),
        ({"temperature": -0.1}, "temperature", "temperature: expected `float` >= 0.0"),
        ({"top_p": 1.5}, "top_p", "top_p: expected `float` <= 1.0"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "top_logprobs: expected `int` <= 20"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs: it needs 'logprobs': true"),
        ({"stop": ["a", 1]}, "stop[1]", "stop[1]: expected `str`, got `int`"),
        ({"stop": list("abcde")}, "stop", "stop: expected `array` of length <= 4"),
        ({"stop": "x" * 513}, "stop", "stop: expected `str` of length <= 512"),
        ({"stop": ["", "x" * 513]}, "stop[1]", "stop[1]: expected `str` of length <= 512"),
        ({"stream_options": {}}, "stream_options", "stream_options: it needs 'stream': true"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "stream_options.include_usage: expected `bool | null`, got `int`",
        ),
        (
            {"tool_choice": "any"},
            "tool_choice",
            "tool_choice: invalid enum value 'any'; /openapi.json lists those that there are",
        ),
        ({"tool_choice": {}}, "tool_choice.type", "tool_choice.type: it is missing"),
        (
            {"tool_choice": {"type": "any"}},
            "tool_choice.type",
            "tool_choice.type: invalid enum value 'any'; /openapi.json lists those that there are",
        ),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice: it needs tools"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]},
            "tool_choice.function.name",
            "tool_choice.function.name: no tool has this name",
        ),
        (
            {"response_format": {"type": "json_object"}},
            "response_format.type",
            "response_format.type: only 'text' is supported: what the model writes cannot be constrained here",
        ),
        (
            {"modalities": ["text", "audio"]},
            "modalities[1]",
            "modalities[1]: invalid enum value 'audio'; /openapi.json lists those that there are",
        ),
        ({"functions": []}, "functions", "functions: it is not supported; use tools"),
        ({"function_call": "auto"}, "function_call", "function_call: it is not supported; use tool_choice"),
        ({"audio": {}}, "audio", "audio: it is not supported; text is"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]", "logit_bias[...]: expected `float` <= 100.0"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "logit_bias: its keys are token ids"),
        ({"logit_bias": {"٣": 1}}, "logit_bias", "logit_bias: its keys are token ids"),
        ({"user": "u" * 1025}, "user", "user: expected `str` of length <= 1024"),
        ({"tools": [1]}, "tools[0]", "tools[0]: expected `object`, got `int`"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(fields: dict[str, Any], param: str, message: str) -> None:
    error = refused({**CHAT, **fields})
    assert (error.status, error.param, error.message) == (400, param, message)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ('{"model": "m"}', "messages", "messages: it is missing"),
        ('{"messages": [{}]}', "model", "model: it is missing"),
        ("[]", None, "the body: expected `object`, got `array`"),
        ("null", None, "the body: expected `object`, got `null`"),
        ('{"model": "m", "messages": [{"a": 1e999}]}', "messages[0][...]", "messages[0][...]: number out of range"),
    ],
)
def test_what_is_wrong_as_a_whole(body: str, param: str | None, message: str) -> None:
    error = refused(body)
    assert (error.status, error.param, error.message) == (400, param, message)


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_an_empty_body_is_told_as_that(body: bytes) -> None:
    with pytest.raises(ApiError, match="the body is empty") as caught:
        decode_body(body, ChatRequest, LIMITS)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_a_path_that_the_input_spells_is_not_taken_for_one() -> None:
    error = refused({**CHAT, "tool_choice": "x - at `$.model`"})
    assert error.param == "tool_choice"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xef\xbb\xbf{}",
        b"\xff",
        b'{"model": "\xff"}',
        b'{"model": "\xed\xa0\x80"}',
        rb'{"model": "\ud800"}',
        b'{"model": "\x00"}',
        b'{"model": NaN}',
        b'{"model": -Infinity}',
        b"{'model': 1}",
    ],
)
def test_what_is_no_json(body: bytes) -> None:
    error = refused(body)
    assert (error.status, error.param, error.code) == (400, None, "invalid_json")
    assert error.message.startswith("the body is not valid JSON: ")


@pytest.mark.parametrize(
    ("shape", "body", "param"),
    [
        (RenderRequest, "{}", "messages"),
        (ParseRequest, "{}", "output"),
        (ParseRequest, '{"output": [1, -1]}', "output[1]"),
        (ParseRequest, '{"output": [2147483648]}', "output[0]"),
        (ParseRequest, '{"output": [1.0]}', "output[0]"),
        (ParseRequest, '{"output": "", "finish_reason": "end"}', "finish_reason"),
        (TokenizeRequest, '{"messages": []}', "messages"),
    ],
)
def test_other_routes(shape: type, body: str, param: str) -> None:
    assert refused(body, shape).param == param


# -- what is taken


def test_null_is_as_good_as_nothing() -> None:
    fields = [name for name in ChatRequest.__struct_fields__ if name not in CHAT]
    assert taken(**dict.fromkeys(fields)) == taken()


def test_what_clients_send_that_says_nothing() -> None:
    asked = taken(
        tools=[],
        stop=["", ""],
        logit_bias={},
        chat_template_kwargs={},
        modalities=["text"],
        response_format={"type": "text"},
        top_logprobs=0,
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        stream_options=None,
        temperature=1,
    )
    assert not asked.offered
    assert asked.stops == ()
    assert taken(stop="").stops == ()
    assert taken(stop=["", "x" * 512]).stops == ("x" * 512,)


def test_two_tools_of_one_name_are_taken() -> None:
    assert taken(tools=[TOOL, TOOL]).offered == [TOOL, TOOL]


def test_only_tools_that_may_be_called_are_offered() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    assert taken(tools=[TOOL, other], tool_choice={"type": "function", "function": {"name": "f"}}).offered == [TOOL]
    assert taken(tools=[TOOL, other], tool_choice="required").offered == [TOOL, other]
    assert taken(tools=[TOOL], tool_choice="none").offered is None


def test_the_last_of_two_keys_counts() -> None:
    asked = decode_body(b'{"model": "a", "model": "b", "messages": [{}]}', ChatRequest, LIMITS)
    assert asked.model == "b"


def test_max_completion_tokens_counts_before_max_tokens() -> None:
    assert taken(max_tokens=1, max_completion_tokens=2).most_tokens == 2
    assert taken(max_tokens=1, max_completion_tokens=None).most_tokens == 1
    assert taken().most_tokens is None


def test_only_what_is_given_is_handed_through() -> None:
    assert taken(temperature=0, top_k=-1, seed=None).sampling == {"temperature": 0.0, "top_k": -1}


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "_x", "bos_token", "self"])
def test_names_that_are_no_template_variables(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        taken(chat_template_kwargs={name: 1}).variables()
    assert (caught.value.status, caught.value.param) == (400, f"chat_template_kwargs.{name}")


def test_template_variables_are_bounded() -> None:
    taken(chat_template_kwargs={"a": "x" * 4_000}).variables()
    with pytest.raises(ApiError) as caught:
        taken(chat_template_kwargs={"a": "x" * 4_100}).variables()
    assert (caught.value.status, caught.value.param) == (400, "chat_template_kwargs")


# -- the server, with any bytes


@pytest.fixture(scope="module")
def ask() -> Iterator[Any]:
    """Posts bytes to a route of a server whose engine always says the same."""
    codec = chatcodec.load("intellect-3")
    turn = codec.compose({"role": "assistant", "content": "Hello."})
    gateway = Gateway(codec, Scripted(lambda asked: said(turn)), Settings(models=("m",)))
    with asyncio.Runner() as runner:
        client = httpx2.AsyncClient(transport=httpx2.ASGITransport(gateway.app), base_url="http://server")

        def post(path: str, body: bytes) -> Any:
            return runner.run(client.post(path, content=body, headers={"Content-Type": "application/json"}))

        yield post
        runner.run(client.aclose())


PATHS = ("/v1/chat/completions", "/tokenize", "/render", "/parse")
STRANGE = [
    b"\\ud800", b"\\udfff\\ud800", b"\\u0000", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xf4\x90\x80\x80",
    b"1" + b"0" * 400, b"-1" + b"0" * 5000, b"1e999", b"-0.0", b"1.0", b"NaN", b"Infinity", b"null", b"true", b"[]",
    b"{}", b"[" * 31, b'{"a":' * 31, b"[[[[[[[[[]]]]]]]]]", b'"', b"\\", b",", b":", b"]", b"}", b'"",', b"<|user|>",
    b'"\\u0001\\u0001"', b'"role":"tool",', b'"content":[{"type":"text"}],', b'"tool_calls":[{}],', b'"tools":[{}],',
    b'"model":"z",', b'"n":3,', b'"stream":true,', b'"messages":1,', "\u2028\U0001f600".encode(),
]  # fmt: skip
WORDS = st.sampled_from(["user", "assistant", "system", "tool", "text", "string", "object", "Hi", "", "<|user|>", "f"])
FIELDS = st.sampled_from(
    ["role", "content", "type", "text", "tool_calls", "id", "function", "name", "arguments", "parameters", "properties",
     "reasoning_content", "tool_call_id", "items", "enum", "anyOf", "$ref", "required", "additionalProperties", "a"]
)  # fmt: skip
NUMBERS = st.integers() | st.integers(10**300, 10**400) | st.floats()
SCALARS = WORDS | st.text(max_size=5) | st.none() | st.booleans() | NUMBERS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
CALLED = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
TEXTS = WORDS | st.text(max_size=20) | st.sampled_from(["hm</think>Hi", CALLED, CALLED[:30], "\0", "<|endoftext|>"])
SCHEMAS = st.dictionaries(FIELDS, VALUES, max_size=4)
TOOLS = st.lists(SCHEMAS.map(lambda schema: {"type": "function", "function": {"name": "f", "parameters": schema}}))
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": TEXTS},
        optional={
            "reasoning_content": TEXTS,
            "name": WORDS,
            "tool_calls": st.lists(
                SCHEMAS.map(lambda value: {"type": "function", "function": {"name": "f", "arguments": value}}),
                max_size=2,
            ),
            "extra": VALUES,
        },
    ),
    min_size=1,
    max_size=3,
)
OPTIONS = {
    "tools": TOOLS,
    "chat_template_kwargs": st.dictionaries(st.just("content"), WORDS),
    "stream": st.booleans(),
    "stop": TEXTS | st.lists(TEXTS, max_size=4),
    "logprobs": st.booleans(),
    "n": st.integers(1, 3),
    "finish_reason": st.sampled_from(["stop", "length", "tool_calls"]),
    "return_token_ids": st.booleans(),
    "return_token_strs": st.booleans(),
    "reasoning_effort": WORDS,
    "documents": st.lists(SCHEMAS, max_size=2),
}
PROMPTS = st.fixed_dictionaries({"prompt": TEXTS}) | st.fixed_dictionaries(
    {"messages": MESSAGES}, optional={"continue_final_message": st.booleans(), "add_generation_prompt": st.booleans()}
)
OUTPUTS = TEXTS | st.lists(st.integers(0, 60_000) | st.integers(0, 2**31 - 1), max_size=4)
RIGHT = st.builds(
    lambda prompt, output, options: {"model": "m", "output": output, **prompt, **options},
    PROMPTS,
    OUTPUTS,
    st.fixed_dictionaries({}, optional=OPTIONS),
)
NAMES = st.sampled_from([*OPTIONS, "model", "messages", "prompt", "output", "continue_final_message", "tool_choice"])
WRONG = st.builds(lambda body, wrong: {**body, **wrong}, RIGHT, st.dictionaries(NAMES, VALUES, min_size=1, max_size=2))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A request that may be right, as JSON that may be damaged."""
    body = json.dumps(draw(RIGHT | WRONG), ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        start = draw(st.integers(0, len(body)))
        end = min(len(body), start + draw(st.integers(0, 3)))
        body = body[:start] + draw(st.sampled_from(STRANGE)) + body[end:]
    return body


@settings(max_examples=300)
@given(path=st.sampled_from(PATHS), body=bodies() | st.binary(max_size=40))
def test_no_body_breaks_the_server(ask: Any, path: str, body: bytes) -> None:
    response = ask(path, body)
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        assert_error(response)
    elif response.headers["content-type"] == "application/json":
        assert "error" not in response.json()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        json.dumps({**CHAT, "output": "", "chat_template_kwargs": {"\x01" * 5000: 1}}),
        json.dumps({**CHAT, "output": "", "chat_template_kwargs": {"\U0001f600" * 5000: 1}}),
        json.dumps({**CHAT, "output": "", "model": "\x01" * 5000}),
        json.dumps({**CHAT, "output": "", "tool_choice": "\x01" * 5000, "finish_reason": "\x01" * 5000, "n": "x"}),
        json.dumps({"model": "m", "output": "", "messages": [{"role": "\x01" * 5000}]}),
        json.dumps({"model": "m", "output": "", "messages": [{"role": "user", "content": [{"type": "\x01" * 5000}]}]}),
        json.dumps({"model": "m", "output": "", "messages": [{"role": "user", "\x01" * 5000: [0] * 33}]}),
        json.dumps({"model": "m", "output": "", "messages": [{"role": "user", "\x01" * 5000: 10**4290}]}),
        json.dumps({**CHAT, "output": "", "tools": [{"type": "\x01" * 5000, "function": {}}]}),
        "[" * 10_000_000,
        "[" * 20_000_000,
    ],
    ids=range(11),
)
def test_an_error_is_short(ask: Any, path: str, body: str) -> None:
    response = ask(path, body.encode())
    if response.status_code != 200:
        assert_error(response)


def assert_error(response: Any) -> None:
    assert len(response.content) < 8192
    error = response.json()["error"]
    assert set(response.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
