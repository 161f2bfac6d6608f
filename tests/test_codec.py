"""The codec in both directions: one format for all its uses, what it is given, and the way round from turn to turn."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
from turn_formats import FORMATS, GEMMA, HARMONY, HERMES, IQUEST_CODER, STEP3_VL

import chatcodec
from chatcodec import Codec, FormatNotDerived, SourceError, TemplateError, UnsupportedInput, load
from chatcodec.laws import composing_undoes_decoding
from chatcodec.turn.compose import compose
from chatcodec.turn.decoder import Decoder
from chatcodec.turn.format import Call, Calls, Section, TurnFormat

TYPED = {"text": {"type": "string"}, "items": {"type": "array"}, "-dash": {"type": "string"}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": TYPED}}}
    for name in ("f", "-g")
]
USER = {"role": "user", "content": "Hi"}


def decoded(form: TurnFormat, text: str, tools: Any = None, prompt: str | None = None) -> Decoder:
    whole, single = (Decoder(form, tools=tools, prompt=prompt) for _ in range(2))
    for piece in (text[:0], text):
        whole.feed(piece)
    for character in text:
        single.feed(character)
    for decoder in (whole, single):
        decoder.close()
    assert (whole.message, whole.calls, whole.rest) == (single.message, single.calls, single.rest)
    return whole


def calling(**arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


# -- one format for all uses


def test_the_sources_stops_end_a_turn_in_every_use() -> None:
    codec = chatcodec.load("intellect-3")
    output = "\n<think></think>\nhello<|endoftext|>"
    assert codec.decode(output)["content"] == "hello"
    with pytest.raises(UnsupportedInput, match="content"):
        codec.compose({"role": "assistant", "content": "hello<|endoftext|>"})


def test_a_number_is_not_the_text_that_spells_it() -> None:
    codec = chatcodec.load("iquest-coder")
    for text in ("1.5", "1e5", "-0", "9" * 5_000):
        with pytest.raises(UnsupportedInput, match="tool_calls"):
            codec.compose(calling(text=text))
        completion = codec.compose(calling(text=text), tools=TOOLS)
        assert f'"{text}"' in codec.decode(completion, tools=TOOLS)["tool_calls"][0]["function"]["arguments"]


def test_a_turn_that_the_prompt_ends_is_not_gone_on_with() -> None:
    codec = chatcodec.load("step3-vl")
    talk = [USER, {"role": "assistant", "content": "Hello."}, USER]
    prompt = codec.encode(talk, add_generation_prompt=False)
    assert codec.decode("so", prompt)["content"] == "so"


def test_a_derivation_that_failed_is_remembered() -> None:
    codec = Codec("{% for m in messages %}{{ m.role }}{% endfor %}")
    errors = []
    for _ in range(2):
        with pytest.raises(FormatNotDerived) as caught:
            _ = codec.format
        errors.append(caught.value)
    assert errors[0] is errors[1]


@pytest.mark.parametrize("name", ["add_generation_prompt", "messages", "tools"])
def test_what_is_given_on_its_own_is_no_template_variable(name: str) -> None:
    with pytest.raises(UnsupportedInput, match=name):
        chatcodec.load("step3-vl").format_with(**{name: False})


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_completion_composes_to_itself(form: TurnFormat) -> None:
    message = calling(text="x y") | {"content": None}
    message["tool_calls"][0]["id"] = "functions.f:0"
    completion = compose(message, form)
    assert composing_undoes_decoding(form, completion, tools=TOOLS) is None


# -- formats by hand


def without(form: TurnFormat, kind: type) -> TurnFormat:
    assert form.calls is not None
    pieces = tuple(piece for piece in form.calls.call.pieces if not isinstance(piece, kind))
    return replace(form, calls=replace(form.calls, call=replace(form.calls.call, pieces=pieces)))


def calls_of(form: TurnFormat) -> Calls:
    assert form.calls is not None
    return form.calls


INCOHERENT = {
    "calls.call.pieces": without(HERMES, type(calls_of(HERMES).call.pieces[3])),
    "calls.call.pieces: a name": without(HERMES, type(calls_of(HERMES).call.pieces[1])),
    "calls.call.pieces: with a name_path": replace(
        HERMES, calls=replace(calls_of(HERMES), call=Call(calls_of(HERMES).call.pieces[1:], ("name",), ("arguments",)))
    ),
    "reasoning.close": replace(HERMES, reasoning=Section("<think>", " ")),
    "ends[0]": replace(HERMES, ends=("\n",)),
}


@pytest.mark.parametrize("place", INCOHERENT)
def test_a_format_that_nothing_can_be_read_by_is_refused(place: str) -> None:
    for make in (lambda form: Codec("{{ messages }}", format=form), Decoder):
        with pytest.raises(SourceError) as caught:
            make(INCOHERENT[place])
        assert str(caught.value).startswith(f"format.{place}")


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_the_formats_of_the_tests_are_coherent(form: TurnFormat) -> None:
    assert Codec("{{ messages }}", format=form).format is form


# -- what is a call, and what is not


def test_a_value_that_does_not_begin_ends_its_call() -> None:
    assert [call.status for call in decoded(GEMMA, "<|tool_call>call:f{a:[)").calls] == ["malformed"]


@pytest.mark.parametrize(
    "text",
    [
        "Write `<tool_call>\n<function=get_weather>` to call.",
        "First <function=name> then </function>.\nSo be careful.",
        "Use <tool_call> and </tool_call>.",
    ],
)
def test_a_call_that_is_only_described_is_content(text: str) -> None:
    assert decoded(IQUEST_CODER, text).message["content"] == text


def test_an_empty_wrapper_in_prose_is_content() -> None:
    text = "Use `<tool_calls></tool_calls>` to call."
    assert decoded(STEP3_VL, "</think>\n" + text).message["content"] == text


def test_an_object_that_is_not_closed_is_taken_with_a_note() -> None:
    decoder = decoded(HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>')
    assert [(call.status, call.notes) for call in decoder.calls] == [("ok", ("the object is not closed",))]


def test_the_first_name_holds() -> None:
    decoder = decoded(HERMES, '<tool_call>\n{"name": "f", "name": "g", "arguments": {}}\n</tool_call>', TOOLS)
    assert [(call.name, call.status) for call in decoder.calls] == [("f", "ok")]
    assert decoder.calls[0].notes


def test_a_name_may_begin_with_a_dash() -> None:
    output = "<tool_call>\n<function=-g>\n<parameter=-dash>\nx\n</parameter>\n</function>\n</tool_call>"
    assert decoded(IQUEST_CODER, output, TOOLS).message["tool_calls"][0]["function"]["name"] == "-g"


def test_a_declared_list_is_read_by_its_own_brackets() -> None:
    value = '["</parameter>\\n</function>\\n</tool_call>", 1]'
    output = f"<tool_call>\n<function=f>\n<parameter=items>\n{value}\n</parameter>\n</function>\n</tool_call>"
    function = decoded(IQUEST_CODER, output, TOOLS).message["tool_calls"][0]["function"]
    assert function["arguments"] == f'{{"items": {value}}}'


def test_white_space_between_a_channels_words_is_kept() -> None:
    text = "one two three four   five, and   six"
    assert decoded(HARMONY, text).message["content"] == text


# -- turn after turn


CHANNELS = """\
{%- macro said(m) %}{% if effort is not defined %}{% set effort = 'low' %}{% endif %}{{ effort }}{% endmacro %}
{{- said(none) }}{% for m in messages %}
{%- if m.tool_calls and m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}
{{- '<|start|>' + m.role }}{% if m.thinking %}{{ '<|think|>' + m.thinking }}{% endif %}
{{- '<|say|>' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}{{ '<|call|>' + c.function.name + (c.function.arguments | tojson) }}{% endfor %}
{%- endfor %}"""


def test_reasoning_stays_where_a_template_refuses_content_beside_it() -> None:
    turn = calling(text="x") | {"content": "Let me see.", "reasoning_content": "Hm."}
    prompt = Codec(CHANNELS).encode([USER, turn], TOOLS)
    assert "Hm." in prompt.text
    assert "Let me see." not in prompt.text
    assert "messages[1].content" in prompt.dropped


def test_a_variable_that_a_macro_asks_for_can_be_given() -> None:
    codec = Codec(CHANNELS)
    assert codec.variables == ("effort",)
    assert codec.encode([USER], effort="high").text.startswith("high")


PARTS = """\
{%- for m in messages %}[{{ m.role }}]
{%- for p in m.content if m.content is not string %}
{{- '<t>' + p.thinking + '</t>' if p.type == 'thinking' else p.text }}
{%- else %}{{ m.content if m.content is string }}{% endfor %}{% endfor %}"""


def test_reasoning_goes_in_as_a_part_where_no_other_way_is_read() -> None:
    codec = Codec(PARTS)
    assert codec.capabilities.reasoning_parts
    text = codec.encode([USER, {"role": "assistant", "content": "C", "reasoning_content": "R"}]).text
    assert text.endswith("<t>R</t>C")


OWN_WRITING = """\
{%- for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}<{{ c.function.name }}
{%- if c.function.arguments is mapping %}{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}
{%- else %} {{ c.function.arguments }}{% endif %}>{% endfor %}{% endfor %}"""


def test_json_text_is_not_pasted_into_a_writing_of_the_templates_own() -> None:
    turn = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"text": "x"}'}}]}
    assert "<f text=x>" in Codec(OWN_WRITING).encode([USER, turn]).text


# -- errors


@pytest.mark.parametrize(
    "error",
    [UnsupportedInput("a.b", "no"), TemplateError("m", template="t", line=3), FormatNotDerived("r", seen=("x",))],
    ids=lambda error: type(error).__name__,
)
def test_errors_go_through_process_pools(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_a_codec_goes_to_other_processes() -> None:
    codec = load("telechat3", cache=0)
    other = pickle.loads(pickle.dumps(codec))
    assert (
        other.encode([{"role": "user", "content": "x"}]).text == codec.encode([{"role": "user", "content": "x"}]).text
    )
    assert other.source == codec.source
    assert copy.deepcopy(codec).format == codec.format


def test_documents_do_not_change_the_format() -> None:
    codec = Codec(
        "{% for d in documents or () %}{{ d.text }}{% endfor %}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    assert codec.format_with(documents=[{"text": "a"}]) is codec.format


def test_what_a_prompt_was_made_of_is_its_own() -> None:
    codec = Codec("{{ documents[0].text }}{% for m in messages %}{{ m.content }}{% endfor %}")
    documents = [{"text": "a"}]
    prompt = codec.encode([{"role": "user", "content": "x"}], documents=documents)
    documents[0]["text"] = "b"
    assert prompt.variables == {"documents": [{"text": "a"}]}
    assert prompt.spans[0] == (0, 1, "documents[0].text")


def test_a_template_of_random_words_is_nobodys() -> None:
    codec = Codec("{{ range(10 ** 5)|list|random }}{% for m in messages %}{{ m.content }}{% endfor %}")
    for _ in range(5):
        prompt = codec.encode([{"role": "user", "content": "x"}])
        assert prompt.spans in ([(0, len(prompt.text), "messages")], codec_spans(prompt.text))


def codec_spans(text: str) -> list[tuple[int, int, str | None]]:
    return [(0, len(text) - 1, None), (len(text) - 1, len(text), "messages[0].content")]


@pytest.mark.parametrize("ids", [b"ab", [1.5], ["a"], [-1], [True], 5, None])
def test_what_is_no_list_of_ids_is_refused(ids: Any) -> None:
    with pytest.raises(UnsupportedInput, match="output"):
        load("telechat3").decode(ids)
