"""The server's OpenAPI description, and the server held to it."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted, serving
from vocabularies import tokenizer_json

import chatcodec

httpx2 = pytest.importorskip("httpx2")
jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("msgspec")
tokenizers = pytest.importorskip("tokenizers")

from chatcodec.gateway import Gateway, Settings  # noqa: E402
from chatcodec.gateway.engines.engine import Alternative, End, Logprob, Piece  # noqa: E402
from chatcodec.gateway.openapi import description  # noqa: E402
from chatcodec.gateway.settings import BodyLimits  # noqa: E402

SPECIAL = ("<|user|>", "<|assistant|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
CODEC = chatcodec.load(
    "intellect-3", tokenizer=tokenizers.Tokenizer.from_str(tokenizer_json("neox", extra_special=SPECIAL))
)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
TURN = CODEC.compose({"role": "assistant", "reasoning_content": "Hm", "content": "Hello.", "tool_calls": [CALL]})
CALLED = TURN[TURN.index("<tool_call>") :]
BROKEN = TURN + CALLED.replace("<arg_value>", "") + CALLED.replace("call>f", "call>g", 1)
"""A call, another that is broken, and one of no tool, which is told as a call."""
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
SMALL = {"max_messages": 5, "max_tools": 5, "max_n": 4}
"""Bounds that are reached with short requests."""


def gateway(turn: str = TURN, **more: Any) -> Gateway:
    def play(ask: Any) -> Iterator[Any]:
        for text in re.findall("<[^>]*>|[^<]+", turn):
            token = Logprob(text, -0.5, text.encode(), top=(Alternative(text, -0.5, text.encode()),))
            yield Piece(text, logprobs=(token,) if ask.logprobs is not None else ())
        yield End("stop", prompt_tokens=7, cached_tokens=3)

    return Gateway(CODEC, Scripted(play, takes_ids=True), Settings(models=("m", "other/m"), **SMALL, **more))


@contextmanager
def running(**more: Any) -> Iterator[str]:
    """A gateway in a thread of its own; says its address."""
    app = gateway(**more).app
    address: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(app) as url:
            address.append(url)
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield address[0]
    finally:
        over.set()
        thread.join(30)


# -- the document


def described(**more: Any) -> dict[str, Any]:
    return description(Settings(models=("m", "other/m"), **more))


def test_it_is_openapi() -> None:
    document = json.loads(json.dumps(described(api_keys=("k",))))
    assert document["openapi"].startswith("3.1")
    names = set(document["components"]["schemas"])
    for name, schema in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert references(schema) <= names, name
    assert references(document["paths"]) <= names
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] for operation in operations)


def references(schema: Any) -> set[str]:
    match schema:
        case {"$ref": str(reference)}:
            return {reference.removeprefix("#/components/schemas/")}
        case dict():
            return set().union(*map(references, schema.values()))
        case list():
            return set().union(*map(references, schema))
        case _:
            return set()


def test_every_route_is_described() -> None:
    routes = {route.path.replace(":path", "") for route in gateway()._routes()}
    assert set(described()["paths"]) == routes


def test_bounds_are_the_servers() -> None:
    schemas = described(max_n=4, max_messages=9, max_tools=8)["components"]["schemas"]
    chat = schemas["ChatRequest"]["properties"]
    assert chat["model"]["enum"] == ["m", "other/m"]
    assert (chat["messages"]["minItems"], chat["messages"]["maxItems"]) == (1, 9)
    assert chat["tools"]["anyOf"][0]["maxItems"] == 8
    assert chat["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 4}
    assert chat["stop"]["anyOf"][1]["maxItems"] == 4
    assert set(chat["tool_choice"]["anyOf"][0]["enum"]) == {"auto", "none", "required"}
    assert schemas["RenderRequest"]["properties"]["messages"]["maxItems"] == 9
    assert (
        described(max_n=1000)["components"]["schemas"]["ChatRequest"]["properties"]["n"]["anyOf"][0]["maximum"] == 128
    )
    assert "1234 bytes" in described(limits=BodyLimits(size=1234))["info"]["description"]


def test_a_key_is_asked_for_where_there_is_one() -> None:
    keyless, keyed = described(), described(api_keys=("k",))
    assert "security" not in keyless
    assert "401" not in keyless["paths"]["/v1/models"]["get"]["responses"]
    assert keyed["security"] == [{"key": []}]
    assert keyed["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    open_routes = [path for path, methods in keyed["paths"].items() for one in methods.values() if "security" in one]
    assert open_routes == ["/health", "/metrics", "/openapi.json"]
    for path, methods in keyed["paths"].items():
        assert ("401" in next(iter(methods.values()))["responses"]) == (path not in open_routes)


# -- what is answered has all that is described, and nothing else


def strict(schema: Any) -> Any:
    """The schemas of answers, for answers that hold nothing that is not described."""
    schema = copy.deepcopy(schema)
    for one in schema.values():
        if "properties" in one:
            one["additionalProperties"] = False
    return schema


def assert_described(answer: Any, name: str) -> None:
    schemas = strict(described()["components"]["schemas"])
    document = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    jsonschema.Draft202012Validator(document).validate(answer)


ANSWERS = [
    ("POST", "/v1/chat/completions", CHAT, "ChatCompletion"),
    ("POST", "/v1/chat/completions", {**CHAT, "tools": None}, "ChatCompletion"),
    ("POST", "/v1/chat/completions", {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 1}, "ChatCompletion"),
    ("POST", "/v1/chat/completions", {**CHAT, "return_token_ids": True}, "ChatCompletion"),
    ("POST", "/render", CHAT, "Render"),
    ("POST", "/parse", {"output": TURN, "tools": TOOLS}, "Parse"),
    ("POST", "/parse", {"output": TURN[:-20], "tools": TOOLS, "finish_reason": "length"}, "Parse"),
    ("GET", "/v1/models", None, "ModelList"),
    ("GET", "/v1/models/other/m", None, "Model"),
    ("GET", "/health", None, "Health"),
    ("POST", "/render", {}, "Error"),
    ("GET", "/v1/models/none", None, "Error"),
    ("GET", "/nothing", None, "Error"),
    ("PUT", "/parse", None, "Error"),
]


def test_answers_are_as_described() -> None:
    async def run() -> None:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(gateway().app), base_url="http://server"
        ) as client:
            for method, path, body, name in ANSWERS:
                response = await client.request(method, path, json=body)
                assert (response.status_code == 200) == (name != "Error"), response.text
                assert_described(response.json(), name)

    asyncio.run(run())


def chat(turn: str, **more: Any) -> str:
    """What the server answers to a chat."""

    async def run() -> str:
        transport = httpx2.ASGITransport(gateway(turn).app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            response = await client.post("/v1/chat/completions", json={**CHAT, **more})
            text: str = response.text
            return text

    return asyncio.run(run())


@pytest.mark.parametrize("turn", [TURN, BROKEN])
def test_chunks_are_as_described(turn: str) -> None:
    options = {"n": 2, "logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    text = chat(turn, stream=True, **options)
    *chunks, done = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert done == "[DONE]"
    for chunk in chunks:
        assert_described(json.loads(chunk), "ChatCompletionChunk")


def test_attempts_are_as_described() -> None:
    answer = json.loads(chat(BROKEN))
    assert_described(answer, "ChatCompletion")
    message = answer["choices"][0]["message"]
    assert [call["status"] for call in message["invalid_tool_calls"]] == ["malformed"]


# -- schemathesis

SCHEMATHESIS = Path(sysconfig.get_path("scripts"), "schemathesis")
PROVEN = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,negative_data_rejection,unsupported_method,allow_header_conformance,ignored_auth"
)


def schemathesis(url: str, folder: Path, *more: str) -> None:
    """Runs schemathesis with requests that are right and wrong by the description, the same each time."""
    arguments = ["--checks", PROVEN, "--seed", "1", "--no-color", "--max-response-time", "20", "--warnings", "off"]
    run = subprocess.run(
        [SCHEMATHESIS, "run", f"{url}/openapi.json", *arguments, *more],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="pip install schemathesis")
def test_the_server_is_as_described(tmp_path: Path) -> None:
    with running() as url:
        schemathesis(url, tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", "40")


@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="pip install schemathesis")
def test_the_server_asks_for_the_key_as_described(tmp_path: Path) -> None:
    with running(api_keys=("right",)) as url:
        schemathesis(
            url, tmp_path, "--phases", "examples,fuzzing", "--max-examples", "3", "-H", "Authorization: Bearer right"
        )
