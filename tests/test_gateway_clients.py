"""What clients of an OpenAI-compatible server break on: each of these facts as a test, over real HTTP.

The engine is scripted; the clients are a plain HTTP client, for the bytes, and OpenAI's own, for what it makes of them.
`served` and `Served` run a server in a thread, for the tests of chats too.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import httpx2
import openai
import pytest
from scripted import Play, Scripted, said, serving

import chatcodec
from chatcodec import Codec
from chatcodec.gateway import Gateway, Settings
from chatcodec.gateway.engines.engine import (
    ContextExceeded,
    End,
    EngineAnswerInvalid,
    EngineBusy,
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    Logprob,
    Piece,
)
from chatcodec.gateway.requests import RESERVED
from chatcodec.gateway.settings import BodyLimits

USER = [{"role": "user", "content": "How is the weather?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "note": {"type": "string"}},
        },
    },
}
TOOLS = [WEATHER]
ROUTES = {
    "/v1/chat/completions": "POST",
    "/tokenize": "POST",
    "/render": "POST",
    "/parse": "POST",
    "/v1/models": "GET",
    "/v1/models/m": "GET",
    "/health": "GET",
    "/metrics": "GET",
    "/openapi.json": "GET",
}
OPEN = ("/health", "/metrics", "/openapi.json")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": USER},
    "/tokenize": {"messages": USER},
    "/render": {"messages": USER},
    "/parse": {"output": "Hello"},
}
"""A right body for each route that takes one."""
CODEC = chatcodec.load("intellect-3")


def turn(content: str = "", *calls: Mapping[str, Any], reasoning: str = "") -> str:
    """What a model writes to say this; a call is its arguments."""
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(call)}}
            for n, call in enumerate(calls)
        ]
    return CODEC.compose(message, tools=TOOLS)


# -- a server, and what is asked of it


class Served:
    """A server that runs, its engine, and a client of it."""

    def __init__(self, url: str, engine: Scripted, gateway: Gateway, http: Any) -> None:
        self.url = url
        self.engine = engine
        self.gateway = gateway
        self.http = http

    def plays(self, *items: Any) -> None:
        """What the engine answers from now on."""
        self.play(lambda ask: items)

    def play(self, play: Play) -> None:
        self.engine.play = play
        self.engine.asks.clear()

    def ask(self, **body: Any) -> Any:
        return self.http.post("/v1/chat/completions", json=asked(**body))

    def whole(self, **body: Any) -> dict[str, Any]:
        """The answer that is not streamed."""
        response = self.ask(**body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        check_whole(answer)
        return answer

    def raw(self, **body: Any) -> bytes:
        """The bytes of the streamed answer."""
        response = self.ask(stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        content: bytes = response.content
        return content

    def chunks(self, **body: Any) -> list[dict[str, Any]]:
        """The chunks of the streamed answer, each of the right shape."""
        *chunks, done = data_of(self.raw(**body))
        assert done == "[DONE]"
        parsed = list(map(json.loads, chunks))
        check_chunks(parsed, usage=bool(body.get("stream_options")))
        return parsed

    def sdk(self, **options: Any) -> Any:
        return openai.OpenAI(
            **{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "http_client": plain(), **options}
        )

    def async_sdk(self) -> Any:
        http = httpx2.AsyncClient(verify=False, timeout=30)
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=http)


def plain() -> httpx2.Client:
    """A client that reads no certificates, which takes longer than most tests."""
    return httpx2.Client(verify=False, timeout=30)


@contextmanager
def served(
    codec: Codec = CODEC, *, takes_ids: bool = False, context: int | None = None, **settings: Any
) -> Iterator[Served]:
    """A server on a port, in a thread."""
    engine = Scripted(lambda ask: (), takes_ids=takes_ids, context=context)
    gateway = Gateway(codec, engine, Settings(models=("m", "alias"), **settings))
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        async with serving(gateway.app) as url:
            over = asyncio.Event()
            started.set_result((url, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        url, loop, over = started.result(30)
        try:
            with httpx2.Client(base_url=url, verify=False, timeout=30) as http:
                yield Served(url, engine, gateway, http)
        finally:
            loop.call_soon_threadsafe(over.set)
    finally:
        thread.join()


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served() as server:
        yield server


@pytest.fixture
def server(shared: Served) -> Served:
    shared.plays(*said("Hello!"))
    return shared


def asked(**body: Any) -> dict[str, Any]:
    return {"model": "m", "messages": USER, **body}


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def metrics(server: Served) -> dict[str, float]:
    """What is counted, by name and labels."""
    lines = server.http.get("/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


# -- the shapes of answers


def data_of(stream: bytes) -> list[str]:
    """The data of the events of a stream, in which nothing else may be but comments."""
    assert stream.endswith(b"\n\n")
    lines = stream[:-2].decode().split("\n\n")
    for line in lines:
        assert len(line.splitlines()) == 1, "an event is one line to every client"
        assert line.startswith((": ", "data: ")), line
    data = [line[6:] for line in lines if line.startswith("data: ")]
    assert all(data), "no empty data"
    return data


def check_chunks(chunks: Sequence[dict[str, Any]], *, usage: bool) -> None:
    """What holds of the chunks of every answer."""
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    told = list(chunks)
    if usage:
        last = told.pop()
        assert last["choices"] == []
        check_usage(last["usage"])
        assert all("usage" in chunk and chunk["usage"] is None for chunk in told)
    else:
        assert not any("usage" in chunk for chunk in told)
    assert all(len(chunk["choices"]) == 1 for chunk in told)
    choices = [chunk["choices"][0] for chunk in told]
    for index in {choice["index"] for choice in choices}:
        check_choice([choice for choice in choices if choice["index"] == index])


def check_choice(chunks: Sequence[dict[str, Any]]) -> None:
    first, *others = (chunk["delta"] for chunk in chunks)
    assert first["role"] == "assistant"
    assert not any("role" in delta for delta in others)
    assert all("finish_reason" in chunk and "logprobs" in chunk for chunk in chunks)
    *open_reasons, reason = (chunk["finish_reason"] for chunk in chunks)
    assert set(open_reasons) <= {None}
    assert reason in ("stop", "length", "tool_calls")
    assert all(value is not None for delta in others for value in delta.values())
    calls = [call for delta in others for call in delta.get("tool_calls", ())]
    known = -1
    for call in calls:
        function = call["function"]
        assert isinstance(function["arguments"], str)
        if call["index"] == known:
            assert set(call) == {"index", "function"}
            assert set(function) == {"arguments"}
        else:
            known += 1
            assert call["index"] == known
            assert call["id"]
            assert call["type"] == "function"
            assert function["name"]
    assert reason == "length" or (reason == "tool_calls") == bool(calls)


def check_whole(answer: dict[str, Any]) -> None:
    """What holds of every answer that is not streamed."""
    assert answer["object"] == "chat.completion"
    check_usage(answer["usage"])
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    for choice in answer["choices"]:
        message = choice["message"]
        assert message["role"] == "assistant"
        assert "content" in message
        calls = message.get("tool_calls", ())
        assert ("tool_calls" in message) == bool(calls)
        for call in calls:
            assert set(call) == {"id", "type", "function"}
            assert set(call["function"]) == {"name", "arguments"}
        assert choice["finish_reason"] == "length" or (choice["finish_reason"] == "tool_calls") == bool(calls)


def check_usage(usage: dict[str, Any]) -> None:
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The error of a response, in the shape that all have."""
    assert response.status_code == status, response.text[:2_000]
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) < 8_192
    body = response.json()
    assert list(body) == ["error"]
    return checked_error(body["error"])


def checked_error(error: dict[str, Any]) -> dict[str, Any]:
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    return error


# -- errors: four keys, validation is 400, the right status


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"{}x", b'{"messages":[{]}', b"NaN"])
def test_what_is_no_object_of_json_is_400_on_every_route(server: Served, path: str, body: bytes) -> None:
    error = error_of(server.http.post(path, content=body), 400)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", BODIES)
def test_what_is_missing_is_400_with_its_name(server: Served, path: str) -> None:
    assert "messages" in error_of(server.http.post("/render", json={}), 400)["message"]
    error_of(server.http.post(path, json={}), 400)


WRONG: list[tuple[str, Any, str | None]] = [
    ("model", 5, "model"),
    ("model", None, "model"),
    ("messages", "hi", "messages"),
    ("messages", [], "messages"),
    ("messages", None, "messages"),
    ("messages", ["hi"], "messages[0]"),
    ("messages", [{"role": "user", "content": "x"}, {"role": "user", "content": 5}], "messages[1].content"),
    ("messages", [{"role": "user", "content": "x"}, {"role": 7, "content": "x"}], "messages[1].role"),
    ("tools", "x", "tools"),
    ("tools", [1], "tools[0]"),
    ("tools", [{"type": "retrieval"}], "tools[0].type"),
    ("tools", [{"type": "function"}], "tools[0].function"),
    ("tools", [WEATHER, {"type": "function", "function": {"name": ""}}], "tools[1].function.name"),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": [1]}}], "tools[0].function.parameters"),
    ("tool_choice", "always", "tool_choice"),
    ("tool_choice", "required", "tool_choice"),
    ("tool_choice", {"type": "function", "function": {"name": "get_weather"}}, "tool_choice"),
    ("tool_choice", 1, "tool_choice"),
    ("stream", "yes", "stream"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", 1.5, "max_tokens"),
    ("max_completion_tokens", -1, "max_completion_tokens"),
    ("temperature", 2.1, "temperature"),
    ("temperature", "hot", "temperature"),
    ("top_p", -0.1, "top_p"),
    ("presence_penalty", 3, "presence_penalty"),
    ("frequency_penalty", -3, "frequency_penalty"),
    ("logit_bias", {"50256": 101}, None),
    ("logit_bias", {"hello": 1}, "logit_bias"),
    ("seed", "x", "seed"),
    ("response_format", {"type": "json_object"}, "response_format.type"),
    ("response_format", "json", "response_format"),
    ("functions", [{"name": "f"}], "functions"),
    ("function_call", "auto", "function_call"),
    ("audio", {"voice": "alloy"}, "audio"),
    ("modalities", ["text", "audio"], "modalities"),
    ("chat_template_kwargs", [], "chat_template_kwargs"),
    ("chat_template_kwargs", {"colour": 1}, "chat_template_kwargs.colour"),
    ("documents", [{"text": "x"}], "documents"),
    ("continue_final_message", True, "continue_final_message"),
    ("add_generation_prompt", False, "add_generation_prompt"),
]


@pytest.mark.parametrize(("name", "value", "param"), WRONG)
def test_what_is_wrong_is_400_with_its_path(server: Served, name: str, value: Any, param: str | None) -> None:
    error = error_of(server.ask(**{name: value}), 400)
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert str(error["param"]).startswith(param)
        assert param in error["message"]
    assert not server.engine.asks


@pytest.mark.parametrize(("path", "method"), ROUTES.items())
def test_a_wrong_method_is_405_with_the_right_one(server: Served, path: str, method: str) -> None:
    for wrong in ("PUT", "DELETE", "PATCH", "OPTIONS", "POST" if method == "GET" else "GET"):
        response = server.http.request(wrong, path)
        assert error_of(response, 405)["code"] == "method_not_allowed"
        assert method in response.headers["allow"]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", "unknown_url"),
        ("POST", "/v1/completions", "unknown_url"),
        ("POST", "/v1/chat/completions/", "unknown_url"),
        ("DELETE", "/nowhere", "unknown_url"),
        ("GET", "/v1/models/other", "model_not_found"),
        ("GET", "/v1/models/org/other", "model_not_found"),
    ],
)
def test_what_is_not_there_is_404(server: Served, method: str, path: str, code: str) -> None:
    assert error_of(server.http.request(method, path), 404)["code"] == code


def test_an_unknown_model_is_404(server: Served) -> None:
    error = error_of(server.ask(model="gpt-4o"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    with pytest.raises(openai.NotFoundError), server.sdk() as client:
        client.chat.completions.create(model="gpt-4o", messages=USER)


def test_a_missing_or_wrong_key_is_401_on_every_route_that_is_not_open() -> None:
    with served(api_keys=("first", "zweiter")) as server:
        server.plays("Hello")
        for path, method in ROUTES.items():
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic first"}):
                response = server.http.request(method, path, headers=headers, json=BODIES.get(path))
                if path in OPEN:
                    assert response.status_code == 200
                else:
                    error_of(response, 401)
                    assert response.headers["www-authenticate"] == "Bearer"
        assert not server.engine.asks
        assert server.http.get("/v1/models", headers={"Authorization": "Bearer zweiter"}).status_code == 200
        with server.sdk() as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with server.sdk(api_key="first") as client:
            assert client.chat.completions.create(model="m", messages=USER).choices[0].message.content == "Hello"


def test_a_body_that_does_not_come_is_408() -> None:
    with served(body_timeout=0.05) as server:
        host, port = server.url.removeprefix("http://").split(":")
        for path in BODIES:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode())
                answer = b"".join(iter(lambda: connection.recv(65_536), b""))
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ")
            checked_error(json.loads(body)["error"])


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_413_and_the_client_learns_of_it(small: Served, path: str, chunked: bool) -> None:
    body = b" " * 3_000_000
    content = iter([body[place : place + 10_000] for place in range(0, len(body), 10_000)]) if chunked else body
    response = small.http.request("POST", path, content=content)
    assert error_of(response, 413)["code"] == "request_too_large"


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    with served(limits=BodyLimits(size=10_000)) as server:
        yield server


def test_the_size_is_of_the_body_that_comes(small: Served) -> None:
    small.plays("Hello")
    body = json.dumps(asked()).encode()
    assert small.http.post("/v1/chat/completions", content=body.ljust(10_000)).status_code == 200
    error_of(small.http.post("/v1/chat/completions", content=body.ljust(10_001)), 413)


def test_too_many_at_once_are_429_with_the_time_to_wait() -> None:
    with served(concurrency=1, queue=0) as server:
        server.plays("Hel", 30, "lo")
        with server.http.stream("POST", "/v1/chat/completions", json=asked(stream=True)) as first:
            lines = first.iter_lines()
            assert next(lines)
            for stream in (False, True):
                response = server.ask(stream=stream)
                assert error_of(response, 429)["type"] == "rate_limit_error"
                assert int(response.headers["retry-after"]) >= 1
            with server.sdk() as client, pytest.raises(openai.RateLimitError):
                client.chat.completions.create(model="m", messages=USER)
        assert until(lambda: server.engine.running == 0, 5)
        server.plays("Hello")
        assert until(lambda: server.ask().status_code == 200, 5)


def test_a_wait_that_is_too_long_is_429() -> None:
    with served(concurrency=1, queue_timeout=0.05) as server:
        server.plays("Hel", 30)
        with server.http.stream("POST", "/v1/chat/completions", json=asked(stream=True)) as first:
            lines = first.iter_lines()
            assert next(lines)
            response = server.ask()
            error_of(response, 429)
            assert int(response.headers["retry-after"]) >= 1


def test_more_choices_than_places_are_answered_all_the_same() -> None:
    with served(concurrency=2, queue_timeout=5) as server:
        server.plays("Hello")
        assert len(server.whole(n=5)["choices"]) == 5
        assert until(lambda: server.gateway.gate.running == 0, 5)


def test_a_server_that_stops_is_503_and_no_client_tries_again(server: Served) -> None:
    server.gateway.stopping.begun = True
    try:
        for path, method in ROUTES.items():
            if path in OPEN:
                continue
            response = server.http.request(method, path, json=BODIES.get(path))
            error_of(response, 503)
            assert int(response.headers["retry-after"]) >= 1
            assert response.headers["x-should-retry"] == "false"
        with server.sdk(max_retries=2) as client, pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=USER)
    finally:
        server.gateway.stopping.begun = False
    refused = 'chatcodec_requests_total{route="/v1/chat/completions",status="503"}'
    assert until(lambda: metrics(server).get(refused, 0) == 2, 5)
    assert not until(lambda: metrics(server).get(refused, 0) > 2, 0.05)


def test_health_is_503_with_the_time_to_wait_where_the_engine_is_not_ready() -> None:
    with served() as server:

        async def check() -> None:
            raise EngineUnreachable("nobody listens")

        server.engine.check = check  # type: ignore[method-assign]
        response = server.http.get("/health")
        assert response.status_code == 503
        assert "nobody listens" in response.text
        assert int(response.headers["retry-after"]) >= 1
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


# -- errors: of the engine, before and after the first token

FAILURES: list[tuple[Exception, int, type[Exception]]] = [
    (EngineError("no"), 502, openai.InternalServerError),
    (EngineUnreachable("nobody listens"), 502, openai.InternalServerError),
    (EngineAnswerInvalid("garbage"), 502, openai.InternalServerError),
    (EngineTimeout("silence"), 504, openai.InternalServerError),
    (EngineBusy("later", 7), 429, openai.RateLimitError),
    (EngineBusy("later"), 429, openai.RateLimitError),
    (EngineBusy("later", float("nan")), 429, openai.RateLimitError),
    (EngineBusy("later", float("inf")), 429, openai.RateLimitError),
    (EngineBusy("later", -1e300), 429, openai.RateLimitError),
    (EngineRefused("temperature is too high"), 400, openai.BadRequestError),
    (ContextExceeded(5_000, 4_096), 400, openai.BadRequestError),
    (ContextExceeded(None, None), 400, openai.BadRequestError),
    (RuntimeError("a secret"), 500, openai.InternalServerError),
]


@pytest.mark.parametrize(("failure", "status", "raised"), FAILURES)
@pytest.mark.parametrize("begin", [(), ("\n<th",)], ids=["at once", "before anything is said"])
def test_before_the_first_token_an_error_is_a_plain_status(
    server: Served, failure: Exception, status: int, raised: type[Exception], begin: Sequence[str]
) -> None:
    server.plays(*begin, failure)
    for stream in (False, True):
        response = server.ask(stream=stream)
        error = error_of(response, status)
        assert "secret" not in error["message"]
        if status == 429:
            assert int(response.headers["retry-after"]) in range(1, 3_601)
        with server.sdk() as client, pytest.raises(raised):
            client.chat.completions.create(model="m", messages=USER, stream=stream)


def test_a_full_context_is_400_with_the_counts(server: Served) -> None:
    server.plays(ContextExceeded(5_000, 4_096))
    error = error_of(server.ask(), 400)
    assert error["code"] == "context_length_exceeded"
    assert "5000" in error["message"]
    assert "4096" in error["message"]


def test_an_engine_s_time_to_wait_is_handed_on(server: Served) -> None:
    server.plays(EngineBusy("later", 7))
    assert server.ask().headers["retry-after"] == "7"


@pytest.mark.parametrize(("failure", "status", "raised"), FAILURES)
def test_after_the_first_token_an_error_is_an_event_and_the_end(
    server: Served, failure: Exception, status: int, raised: type[Exception]
) -> None:
    server.plays("Hello ", "world", failure)
    *chunks, last = map(json.loads, data_of(server.raw()))
    error = checked_error(last["error"])
    assert "secret" not in error["message"]
    assert chunks
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks), "a failure is no proper end"
    error_of(server.ask(), status)


@pytest.mark.parametrize("begin", ["Hello ", turn("", {"city": "Paris"})[:-20]], ids=["content", "a call"])
def test_the_sdk_raises_for_an_error_in_a_stream(server: Served, begin: str) -> None:
    server.plays(begin, 0.01, EngineUnreachable("it died"))
    with server.sdk() as client:
        seen = []
        stream = client.chat.completions.create(model="m", messages=USER, tools=TOOLS, stream=True)
        with pytest.raises(openai.APIError, match="it died"):
            seen.extend(stream)
        assert seen
        assert all(chunk.choices[0].finish_reason is None for chunk in seen)
        with client.chat.completions.stream(model="m", messages=USER) as events, pytest.raises(openai.APIError):
            list(events)

    async def same() -> None:
        async with server.async_sdk() as client:
            stream = await client.chat.completions.create(model="m", messages=USER, stream=True)
            async for _ in stream:
                pass

    with pytest.raises(openai.APIError, match="it died"):
        asyncio.run(same())


def test_one_choice_that_fails_fails_the_request(server: Served) -> None:
    server.play(lambda ask: ["Hello ", EngineError("no")] if len(server.engine.asks) == 2 else ["Hello ", 0.05, "you"])
    error_of(server.ask(n=3), 502)
    server.engine.asks.clear()
    *_, last = data_of(server.raw(n=3))
    assert "error" in json.loads(last)
    assert until(lambda: server.engine.running == 0, 5)


def test_a_request_that_takes_too_long_is_504_or_an_event() -> None:
    with served(timeout=0.1) as server:
        server.plays(30)
        assert error_of(server.ask(), 504)["code"] == "timeout"
        assert error_of(server.ask(stream=True), 504)["code"] == "timeout"
        server.plays("Hello ", 30)
        assert json.loads(data_of(server.raw())[-1])["error"]["code"] == "timeout"
        assert until(lambda: server.engine.running == 0, 5)


def test_on_stopping_no_stream_is_cut_in_silence() -> None:
    with served() as server:
        server.plays("Hello ", 30)
        with server.sdk() as client:
            stream = client.chat.completions.create(model="m", messages=USER, stream=True)
            assert next(stream)
            server.gateway.stopping.begun = True
            # The event is the server's loop's own.
            server.gateway.stopping.cut._loop.call_soon_threadsafe(server.gateway.stopping.cut.set)  # type: ignore[attr-defined]
            with pytest.raises(openai.APIError, match="stopping"):
                list(stream)
        assert until(lambda: server.engine.running == 0, 5)


def test_sdks_try_again_where_the_engine_is_busy(server: Served) -> None:
    server.play(lambda ask: [EngineBusy("later")] if len(server.engine.asks) == 1 else ["Hello"])
    with server.sdk(max_retries=1) as client:
        assert client.chat.completions.create(model="m", messages=USER).choices[0].message.content == "Hello"
    assert len(server.engine.asks) == 2


# -- errors: bounded, whatever the input

LONG = "x" * 100_000
FIELDS: dict[str, list[str]] = {
    "/v1/chat/completions": [
        *("model", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens", "n", "stop", "seed"),
        *("logprobs", "temperature", "logit_bias", "response_format", "user", "functions", "modalities", "audio"),
        *("chat_template_kwargs", "reasoning_effort", "documents", "continue_final_message", "return_token_ids"),
    ],
    "/tokenize": ["prompt", "messages", "tools", "chat_template_kwargs", "documents", "reasoning_effort"],
    "/render": ["messages", "tools", "chat_template_kwargs", "documents", "add_generation_prompt"],
    "/parse": ["output", "prompt", "messages", "finish_reason", "tools", "chat_template_kwargs"],
}


def long_values(name: str, text: str) -> Iterator[Any]:
    """A long text at each place in a field, and a very long one."""
    yield text * 10
    yield [text]
    yield {text: text}
    yield {"type": text}
    if name == "messages":
        yield [{"role": text, "content": "x"}]
        yield [{"role": "user", "content": [{"type": text}]}]
        yield [{"role": "user", text: 1}, {"role": "assistant", "tool_calls": text}]
        for arguments in (text, '{"x":' + text, {text: 1}):
            call = {"id": text, "type": "function", "function": {"name": text, "arguments": arguments}}
            yield [*USER, {"role": "assistant", "tool_calls": [call]}]
        yield [*USER, {"role": "tool", "tool_call_id": text, "content": {"a": text}}]
    if name == "tools":
        yield [{"type": text}]
        yield [{"type": "function", "function": {"name": text, "parameters": text}}]
    if name == "chat_template_kwargs":
        yield {f"_{text}": 1}
        yield {"content": text}


@pytest.mark.parametrize("path", BODIES)
def test_an_error_does_not_echo_its_input(server: Served, path: str) -> None:
    for name in FIELDS[path]:
        for value in long_values(name, LONG):
            response = server.http.post(path, json={**BODIES[path], name: value})
            if response.status_code != 200:
                error_of(response, response.status_code)
                assert response.status_code in (400, 404)
                assert "x" * 1_000 not in response.text


@pytest.mark.parametrize("character", ["\0", "\x1f", "€", "😀", '"', "\\", "\x7f", "\u2028"])
def test_an_error_stays_small_whatever_its_characters_take(server: Served, character: str) -> None:
    text = character * 10_000
    for body in ({"model": text}, {"response_format": {"type": text}}, {"messages": [{"role": text}]}):
        response = server.ask(**body)
        error_of(response, response.status_code)
    error_of(server.http.post("/parse", json={"output": "x", "finish_reason": text}), 400)
    server.plays(EngineError(text))
    error_of(server.ask(), 502)
    server.plays("Hello", EngineError(text))
    *_, last = data_of(server.raw())
    assert len(last.encode()) < 8_192


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "value",
    [
        "[" * 3_000,
        "[" * 3_000 + "]" * 3_000,
        '{"a":' * 3_000 + "1" + "}" * 3_000,
        "[" + "1," * 600_000 + "1]",
        "[" + "[]," * 600_000 + "[]]",
        "[{" + ",".join(f'"{n}":0' for n in range(600_000)) + "}]",
    ],
    ids=["open lists", "deep lists", "deep objects", "many numbers", "many lists", "many members"],
)
def test_a_deep_or_huge_body_is_refused_before_it_is_decoded(server: Served, path: str, value: str) -> None:
    begin = json.dumps(BODIES[path]).rstrip("}").encode()
    start = time.monotonic()
    error = error_of(server.http.post(path, content=begin + b',"tools":' + value.encode() + b"}"), 400)
    assert time.monotonic() - start < 3
    assert error["code"] in ("too_deep", "too_many_values")


@pytest.mark.parametrize("piece", [b'""', b"]", b"[]", b"1,", b'"\\"', b"\\", b'","'])
def test_nonsense_is_refused_before_long(server: Served, piece: bytes) -> None:
    start = time.monotonic()
    error_of(server.http.post("/render", content=piece * (BodyLimits().size // len(piece))), 400)
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("arguments", ['{"a":' + "[" * 100_000, '{"a":[' + "1," * 1_000_000 + "1]}"])
def test_the_json_in_the_text_of_arguments_is_bounded_too(server: Served, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    start = time.monotonic()
    error_of(server.ask(messages=[*USER, {"role": "assistant", "tool_calls": [call]}]), 400)
    assert time.monotonic() - start < 3


def test_a_marker_in_a_string_is_no_depth(server: Served) -> None:
    text = "[{" * 1_000 + '\\"' + "]," * 1_000
    assert server.whole(messages=[{"role": "user", "content": text}])
    assert text in server.engine.asks[-1].text


@pytest.mark.parametrize("settings", [{"max_messages": 3}, {"max_tools": 3}])
def test_messages_and_tools_are_counted(settings: dict[str, Any]) -> None:
    with served(**settings) as server:
        server.plays("Hello")
        name = next(iter(settings)).removeprefix("max_")
        one = USER if name == "messages" else TOOLS
        assert server.ask(**{name: one * 3}).status_code == 200
        assert error_of(server.ask(**{name: one * 4}), 400)["param"] == name


# -- template variables

RENDERERS_OWN = (
    *("chat_template", "tokenize", "add_generation_prompt", "continue_final_message", "return_tensors", "messages"),
    *("tools", "documents", "conversation", "return_dict", "tokenizer_kwargs", "padding", "truncation", "max_length"),
    *("strict", "special_in_content", "self", "template_name", "_x", "__class__", "bos_token", "eos_token"),
)


@pytest.fixture(scope="module")
def tokenized() -> Iterator[Served]:
    tokenizers = pytest.importorskip("tokenizers")
    from vocabularies import tokenizer_json

    with served(
        chatcodec.load("intellect-3", tokenizer=tokenizers.Tokenizer.from_str(tokenizer_json("neox")))
    ) as server:
        yield server


@pytest.mark.parametrize("path", BODIES)
def test_no_variable_of_the_renderer_s_own_is_taken_on_any_route(tokenized: Served, path: str) -> None:
    for name in {*RESERVED, *RENDERERS_OWN}:
        body = {**BODIES[path], "chat_template_kwargs": {name: None if name == "tools" else "{{ 1 }}"}}
        error = error_of(tokenized.http.post(path, json=body), 400)
        assert error["param"] == f"chat_template_kwargs.{name}"
    assert not tokenized.engine.asks


def test_no_template_is_taken_from_a_request(server: Served) -> None:
    body = {"chat_template": "{% for i in range(10**9) %}x{% endfor %}", "tokenize": False, "tokenizer": "x"}
    plain = server.http.post("/render", json=BODIES["/render"]).json()
    assert server.http.post("/render", json={**BODIES["/render"], **body}).json() == plain
    assert server.whole(**body)
    assert server.engine.asks[-1].text == plain["text"]


# -- streams: what is in them, and what is not


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello!",
        turn("Hello.", reasoning="Hmm."),
        turn("", {"city": "Paris"}),
        turn("I look.", {"city": "Paris", "days": 3}, {"city": "Rom"}, {}, reasoning="Two."),
        "Line\u2028one\u2029two\x85three\x0bfour\x0cfive\x1csix\r\nseven\n\neight\rnine",
    ],
    ids=["nothing", "content", "reasoning", "a call", "three calls", "ends of lines"],
)
def test_chunks_and_answers_have_the_right_shape(server: Served, text: str, usage: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    for size in (1, 7, 1_000):
        server.plays(*said(text, size))
        chunks = server.chunks(tools=TOOLS, **options)
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        whole = server.whole(tools=TOOLS)
        assert (
            whole["choices"][0]["finish_reason"]
            == [c for c in chunks if c["choices"]][-1]["choices"][0]["finish_reason"]
        )
        assert all(json.loads(call["function"]["arguments"]) is not None for call in calls_of(whole))


def calls_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = answer["choices"][0]["message"].get("tool_calls", [])
    return calls


def test_usage_is_asked_for(server: Served) -> None:
    for options in (None, {}, {"include_usage": False}):
        chunks = [json.loads(data) for data in data_of(server.raw(stream_options=options))[:-1]]
        assert not any("usage" in chunk for chunk in chunks)
        assert all(chunk["choices"] for chunk in chunks)


def test_a_stream_that_waits_says_so_in_comments_that_clients_survive() -> None:
    with served(keep_alive=0.02) as server:
        server.plays(0.1, "Hel", 0.1, "lo", 0.1)
        raw = server.raw()
        comments = [line for line in raw.decode().split("\n\n") if line.startswith(":")]
        assert len(comments) >= 6
        assert all(line.startswith(": ") for line in comments)
        assert data_of(raw)[-1] == "[DONE]"
        with server.sdk() as client:
            stream = client.chat.completions.create(model="m", messages=USER, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello"

        async def same() -> str:
            async with server.async_sdk() as client:
                stream = await client.chat.completions.create(model="m", messages=USER, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert asyncio.run(same()) == "Hello"


def test_a_stream_that_waits_can_still_fail() -> None:
    with served(keep_alive=0.01) as server:
        server.plays(0.05, EngineError("no"))
        assert json.loads(data_of(server.raw())[-1])["error"]["code"] == "engine_error"


@pytest.mark.parametrize(
    ("text", "end", "reason"),
    [
        ("Hello", "stop", "stop"),
        ("Hello", "length", "length"),
        ("", "stop", "stop"),
        (turn("", {"city": "Paris"}), "stop", "tool_calls"),
        (turn("", {"city": "Paris"}) + "\nThere.", "stop", "tool_calls"),
        (turn("", {"city": "Paris"}), "length", "length"),
        (turn("", {"city": "Paris"}, {"city": "Rom"})[:-20], "length", "length"),
        (turn("", {"city": "Paris"}).replace("get_weather", "get_wind"), "stop", "tool_calls"),
    ],
)
def test_finish_reason(server: Served, text: str, end: Any, reason: str) -> None:
    server.plays(*said(text), End(end))
    assert server.whole(tools=TOOLS)["choices"][0]["finish_reason"] == reason
    assert server.chunks(tools=TOOLS)[-1]["choices"][0]["finish_reason"] == reason


def test_without_tools_nothing_is_a_call(server: Served) -> None:
    server.plays(*said(turn("", {"city": "Paris"})))
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = server.whole(**body)["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert "<tool_call>get_weather" in choice["message"]["content"]


# -- bounds


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("n", [1, 2, 16], [0, -1, 17, 129, 10**30]),
        ("stop", ["a", ["a", "b", "c", "d"], [], "", None], [["a", "b", "c", "d", "e"], [1], 1]),
        ("top_logprobs", [0, 20], [-1, 21]),
        ("max_tokens", [1, 10**6], [0, 10**30]),
        ("max_completion_tokens", [1, 10**6], [0, 10**30]),
    ],
)
def test_bounds(server: Served, name: str, right: list[Any], wrong: list[Any]) -> None:
    for value in right:
        assert server.whole(**{name: value}, logprobs=True)
    server.engine.asks.clear()
    for value in wrong:
        assert str(error_of(server.ask(**{name: value}, logprobs=True), 400)["param"]).startswith(name)
    assert not server.engine.asks


def test_a_stop_string_is_never_in_the_text(server: Served) -> None:
    server.plays(*said("One, two, three.", 1))
    assert server.whole(stop=", t")["choices"][0]["message"]["content"] == "One"
    content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in server.chunks(stop=["x", "o, "]))
    assert content == "One, tw"


@pytest.mark.parametrize("top", [0, 2])
def test_there_are_as_many_top_logprobs_as_were_asked_for(server: Served, top: int) -> None:
    tops = tuple(Logprob(text, -1.0) for text in ("Hello", "Hey")[:top])
    server.plays(Piece("Hello", logprobs=(Logprob("Hello", -0.5, top=tops),)))
    entry = server.whole(logprobs=True, top_logprobs=top)["choices"][0]["logprobs"]["content"][0]
    assert server.engine.asks[-1].logprobs == top
    assert len(entry["top_logprobs"]) == top


# -- clients that leave, or are slow


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_engine_s_work(server: Served, stream: bool) -> None:
    server.plays("Hello ", 30)
    left = server.engine.left
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps(asked(stream=stream, n=2)).encode()
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert until(lambda: server.engine.running == 2, 5)
    assert until(lambda: server.engine.running == 0, 0.5)
    assert server.engine.left == left + 2


def test_what_a_slow_reader_does_not_read_is_not_written(server: Served) -> None:
    count = 0

    def endless(ask: Any) -> Iterator[str]:
        nonlocal count
        while True:
            count += 1
            yield "word " * 40_000

    server.play(endless)
    with server.http.stream("POST", "/v1/chat/completions", json=asked(stream=True)) as response:
        pieces = response.iter_raw()
        assert next(pieces)
        seen = -1
        for _ in range(100):
            if count == seen:
                break
            seen = count
            time.sleep(0.05)
        assert count == seen < 500
    assert until(lambda: server.engine.running == 0, 5)
