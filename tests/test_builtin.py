"""The five built-in templates: the originals byte for byte where those work, the evident text where not.

python tests/test_builtin.py      writes the golden prompts anew; read the diff before you keep it
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import pytest
from conversations import (
    CONVERSATIONS,
    HELLO,
    IMAGE_URL,
    PARIS,
    ROME,
    SHAPES,
    SUNNY,
    TOOLS,
    WEATHER,
    Conversation,
    Message,
    S,
    assistant,
    call,
    conversation,
    result,
    system,
    text_parts,
    thinking,
    user,
)
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chatcodec.errors import TemplateError
from chatcodec.template import Template, engine
from chatcodec.template.budget import Meter

FORMATS = ["intellect-3", "iquest-coder", "step-audio-r1", "step3-vl", "telechat3"]
HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
DOCS = HERE.parent / "docs" / "formats"
ORIGINALS = HERE.parents[1] / "shared" / "seeds"

needs_originals = pytest.mark.skipif(not ORIGINALS.is_dir(), reason="the original templates are not at hand")


def source(name: str) -> str:
    return (files("chatcodec.builtin") / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def ours(name: str) -> Template:
    return Template(source(name), name=name)


@cache
def original(name: str) -> Template:
    return Template((ORIGINALS / f"{name}.jinja").read_text(encoding="utf-8"), name=f"original {name}")


def original_text(name: str, variables: Conversation) -> str | None:
    """None where the original fails."""
    try:
        return original(name).render(**variables)
    except TemplateError:
        return None


def prompted(variables: Conversation, prompt: bool) -> Conversation:
    return {**variables, "add_generation_prompt": prompt}


# Equality with the originals

# Plain conversations that the originals do not render well; each is a documented difference.
SPOILT = {
    "intellect-3": {
        name
        for name, given in CONVERSATIONS.items()
        if any(message["role"] == "assistant" and "reasoning_content" not in message for message in given["messages"])
    },
    "iquest-coder": {"tools-without-system"},
    "step-audio-r1": set(),
    "step3-vl": set(),
    "telechat3": {
        "later-system",
        "later-system-only",
        "two-systems-first",
        "system-last",
        "tools-with-later-system",
    },
}


@needs_originals
@pytest.mark.parametrize("prompt", [True, False], ids=["prompted", "unprompted"])
@pytest.mark.parametrize("case", CONVERSATIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_same_bytes_as_the_original(name: str, case: str, prompt: bool) -> None:
    variables = prompted(CONVERSATIONS[case], prompt)
    text = ours(name).render(**variables)
    if case in SPOILT[name]:
        assert text != original_text(name, variables)
    else:
        assert text == original_text(name, variables)


def test_enough_conversations_render_the_same() -> None:
    for name in FORMATS:
        assert len(CONVERSATIONS.keys() - SPOILT[name]) >= 60


FRAGMENTS = [
    "a",
    "B c",
    " ",
    "\n",
    "\n\n",
    "é",
    "你好",
    "🙂",
    "<think>",
    "</tool_call>",
    "{",
    '"',
    "\\",
    "<|im_end|>",
    "&<>'",
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
texts_with_think_end = st.lists(st.sampled_from([*FRAGMENTS, "</think>", "\n</think>\n"]), max_size=6).map("".join)
names = st.sampled_from(["get_weather", "now", "查询"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
wrapped_results = st.just("<tool_response>\nx\n</tool_response>")


@st.composite
def shared_domain(draw: st.DrawFn, name: str) -> Conversation:
    """A conversation on which this format's original and our template have to agree."""
    contents = texts if name in ("step3-vl", "telechat3") else texts_with_think_end
    messages: list[Message] = []
    open_ids: list[str] = []
    tools = draw(st.none() | st.lists(st.sampled_from([*TOOLS, CONVERSATIONS["bare-tool"]["tools"][0]]), max_size=2))
    if draw(st.booleans()) or (name == "iquest-coder" and tools):
        messages.append(system(draw(texts)))
    steps = draw(st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), min_size=1, max_size=8))
    for number, role in enumerate(steps):
        if role == "user":
            messages.append(user(draw(contents | wrapped_results)))
        elif role == "system" and name != "telechat3":
            keys = draw(st.sampled_from([{}, {"name": "observation"}, {"name": "x"}]))
            messages.append({**system(draw(texts)), **keys})
        elif role == "assistant":
            keys = {"reasoning_content": draw(contents)} if name == "intellect-3" or draw(st.booleans()) else {}
            arguments = draw(st.lists(st.dictionaries(texts, json_values, max_size=3), max_size=3))
            calls = [call(draw(names), given, f"call_{number}_{i}") for i, given in enumerate(arguments)]
            messages.append(assistant(draw(contents), *calls, **keys))
            open_ids = [made["id"] for made in calls] or open_ids
        elif role == "tool" and open_ids:
            messages.append(result(draw(contents), draw(st.sampled_from(open_ids))))
    return conversation(*(messages or [HELLO]), tools=tools, prompt=draw(st.booleans()))


@needs_originals
@pytest.mark.parametrize("name", FORMATS)
@hypothesis_given(data=st.data())
def test_same_bytes_as_the_original_for_any_conversation(name: str, data: st.DataObject) -> None:
    variables = data.draw(shared_domain(name))
    assert ours(name).render(**variables) == original(name).render(**variables)


# Golden prompts

GOLDEN_CASES = [
    "question",
    "canonical",
    "mixed-reasoning",
    "later-system",
    "tools-without-system",
    "tool-loop",
    "nested-arguments",
    "call-with-nothing-else",
]
GOLDEN_SHAPES = {name: [] for name in FORMATS} | {"step3-vl": ["image"]}


def golden_prompts() -> dict[tuple[str, str], Conversation]:
    plain = {(name, case): CONVERSATIONS[case] for name in FORMATS for case in GOLDEN_CASES}
    shapes = {(name, case): SHAPES[case][0] for name in FORMATS for case in GOLDEN_SHAPES[name]}
    return plain | shapes


@pytest.mark.parametrize(("name", "case"), golden_prompts())
def test_golden_prompt(name: str, case: str) -> None:
    written = (GOLDEN / name / f"{case}.txt").read_bytes().decode()
    assert ours(name).render(**golden_prompts()[name, case]) == written


def test_no_golden_prompt_is_left_over() -> None:
    assert {
        (file.parent.name, file.stem) for name in FORMATS for file in GOLDEN.glob(f"{name}/*.txt")
    } == golden_prompts().keys()


# Differences from the originals, by the name they have in the format's page


@dataclass(frozen=True)
class Difference:
    """Ours renders `given` as the plain conversation `plain`; or writes `text`; or refuses with `error`."""

    given: Conversation
    plain: Conversation | None = None
    text: str | None = None
    error: str | None = None


def shape(*shapes: str) -> list[Difference]:
    return [Difference(SHAPES[name][0], plain=SHAPES[name][1]) for name in shapes]


def asked(*messages: Message, **keys: Any) -> Conversation:
    return conversation(S, WEATHER, *messages, **keys)


def returned(content: Any) -> Conversation:
    return asked(thinking("r", "", PARIS), result(content), tools=TOOLS)


def called(arguments: Any, **keys: Any) -> Conversation:
    return asked(thinking("r", "", call("now", arguments)), **keys)


AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
NO_ARGUMENTS = [Difference(called(given), plain=called({})) for given in (None, [])]
OTHER_PARTS = [
    Difference(asked(user([AUDIO])), error="cannot carry content of type 'input_audio'"),
    Difference(asked(user([{"data": 1}])), error="cannot carry content of type 'unknown'"),
    Difference(returned([*text_parts("a"), AUDIO]), error="cannot carry content of type 'input_audio'"),
]
NO_IMAGE = Difference(asked(user([IMAGE_URL])), error="cannot carry content of type 'image_url'")
CUSTOM_CALL = {"id": "call_1", "type": "custom", "custom": {"name": "run", "input": "x"}}

COMMON = {
    "developer": shape("developer", "later-developer"),
    "function-role": shape("function-role"),
    "unknown-role": [Difference(asked({"role": "critic", "content": "No."}), error="unknown role 'critic'")],
    "missing-arguments": [*shape("absent-arguments", "empty-arguments-as-string"), *NO_ARGUMENTS],
    "tool-value": [
        *shape("object-result", "list-result", "null-result"),
        Difference(returned(True), plain=returned("true")),
        Difference(returned([1.5, None]), plain=returned("[1.5, null]")),
        Difference(returned([{"type": "dog"}]), plain=returned('[{"type": "dog"}]')),
        Difference(returned({"a": "é"}), plain=returned('{"a": "é"}')),
    ],
    "parts": [
        *shape("part-in-user", "parts-everywhere", "no-parts"),
        Difference(asked(user({"type": "text", "text": "x"})), plain=asked(user("x"))),
    ],
    "other-parts": [*OTHER_PARTS, NO_IMAGE],
    "no-content": [
        *shape("null-content", "null-content-with-calls", "absent-content-with-calls"),
        Difference(asked(user(None)), plain=asked(user(""))),
    ],
    "no-messages": [Difference(conversation(), error="messages must not be empty")],
    "nameless-call": [Difference(asked(thinking("r", "", CUSTOM_CALL)), error="a tool call must name its function")],
}


def pick(*slugs: str) -> dict[str, list[Difference]]:
    return {slug: COMMON[slug] for slug in slugs}


def without(differences: list[Difference], *given: Conversation) -> list[Difference]:
    return [difference for difference in differences if difference.given not in given]


USUAL = ["developer", "function-role", "unknown-role", "no-messages", "nameless-call"]
STRING_ARGUMENTS = Difference(
    SHAPES["arguments-as-string"][0], error="the arguments of 'get_weather' must be an object"
)


def spoken(content: str) -> Conversation:
    """The content as a current turn, behind which nothing else stands."""
    return conversation(HELLO, assistant(content), prompt=False)


REUSED_ID = asked(
    thinking("r", "", PARIS),
    SUNNY,
    thinking("r", "", call("now", {})),
    result("12:00"),
    tools=TOOLS,
    prompt=False,
)

DIFFERENCES: dict[str, dict[str, list[Difference]]] = {
    "step3-vl": {
        **pick(*USUAL, "missing-arguments"),
        "tool-value": [
            *without(COMMON["tool-value"], SHAPES["null-result"][0]),
            Difference(returned({"value": 3}), plain=returned('{"value": 3}')),
        ],
        "string-parts": [Difference(asked(user(["a", "b"])), plain=asked(user("ab")))],
        "untyped-parts": [Difference(asked(user([{"text": "a"}])), plain=asked(user("a")))],
        "image-url": [
            Difference(SHAPES["image"][0], text="user\nWhat is this?<im_patch><|im_end|>"),
            Difference(
                returned([IMAGE_URL, *text_parts("ok")]),
                text="<tool_response>\n<im_patch>ok\n</tool_response>",
            ),
            Difference(asked(user({"type": "image"})), text="user\n<im_patch><|im_end|>"),
        ],
        "other-parts": OTHER_PARTS,
        "reasoning-parts": [
            Difference(asked(thinking(text_parts("a", "b"), "c")), plain=asked(thinking("ab", "c"))),
        ],
        "mentioned-think-end": [
            Difference(spoken("Use the </think> tag."), text="<think>\n\n</think>\nUse the </think> tag.<|im_end|>"),
            Difference(
                spoken("Write <think>\nso\n</think>\nfirst."),
                text="<think>\n\n</think>\nWrite <think>\nso\n</think>\nfirst.<|im_end|>",
            ),
            Difference(
                spoken("<think>r</think>Use </think> to end."),
                text="<think>\nr\n</think>\nUse </think> to end.<|im_end|>",
            ),
            Difference(spoken("<think>a <think> b</think>c"), text="<think>\na <think> b\n</think>\nc<|im_end|>"),
        ],
    },
    "iquest-coder": {
        **pick(*USUAL, "no-content", "other-parts", "missing-arguments", "tool-value"),
        "parts": COMMON["parts"],
        "arguments-string": [STRING_ARGUMENTS],
        "tools-without-system": [
            Difference(
                CONVERSATIONS["tools-without-system"],
                text="You are IQuest-Coder, a helpful assistant developed by IQuest.\n\n# Tools\n\nYou",
            )
        ],
        "type-list": [
            Difference(
                asked(tools=[{"name": "f", "parameters": {"properties": {"a": {"type": ["string", "null"]}}}}]),
                text="<name>a</name>\n<type>string | null</type>\n</parameter>",
            )
        ],
        "untyped-tool": [Difference(asked(tools=[{"function": TOOLS[0]["function"]}]), plain=asked(tools=TOOLS))],
        "nameless-tool": [Difference(asked(tools=[{"type": "custom", "custom": {}}]), error="a tool must have a name")],
    },
    "step-audio-r1": {
        **pick(*USUAL, "parts", "other-parts", "missing-arguments", "tool-value"),
        "no-content": without(
            COMMON["no-content"], SHAPES["null-content-with-calls"][0], SHAPES["absent-content-with-calls"][0]
        ),
        "arguments-string": [
            *shape("arguments-as-string"),
            Difference(called('{"a":1 }'), text='<|CALL_START|>function\nnow\n{"a":1 }<|CALL_END|>'),
        ],
        "reused-id": [
            Difference(REUSED_ID, text='function_output\nget_weather\n{"t": 20}<|EOT|>'),
        ],
        "named-result": [
            Difference(
                asked({"role": "tool", "name": "clock", "content": "x"}),
                text="function_output\nclock\nx<|EOT|>",
            ),
            Difference(
                asked(thinking("r", "", PARIS), result("x", "call_9", name="clock")),
                text="function_output\nclock\nx<|EOT|>",
            ),
        ],
        "result-by-place": [
            *shape("results-without-ids"),
            Difference(
                asked(thinking("r", "", PARIS), thinking("r", "", call("now", {}, "call_2")), result("late")),
                text="function_output\nnow\nlate<|EOT|>",
            ),
            Difference(
                asked(thinking("r", "", PARIS, call("now", {}, "call_2")), SUNNY, result("x", "other")),
                text="function_output\nnow\nx<|EOT|>",
            ),
        ],
        "call-without-wrapper": shape("call-without-wrapper"),
    },
    "intellect-3": {
        **pick(*USUAL, "missing-arguments", "tool-value"),
        "no-content": COMMON["no-content"],
        "parts": without(COMMON["parts"], SHAPES["part-in-user"][0], SHAPES["no-parts"][0]),
        "other-parts": [*OTHER_PARTS, NO_IMAGE],
        "untyped-parts": [Difference(asked(user([{"text": "a"}])), plain=asked(user("a")))],
        "arguments-string": [STRING_ARGUMENTS],
        "no-reasoning": [
            Difference(spoken("A1"), text="<|assistant|>\n<think></think>\nA1"),
            Difference(
                asked(assistant("", PARIS)),
                text="<|assistant|>\n<think></think>\n<tool_call>get_weather\n<arg_key>city",
            ),
        ],
        "reasoning-in-content": [
            Difference(spoken("<think>r</think>\n\nA1"), text="<|assistant|>\n<think>r</think>\nA1"),
            Difference(
                spoken("\n<think>\nr\n</think>A </think> B"),
                text="<|assistant|>\n<think>r</think>\nA </think> B",
            ),
        ],
        "reasoning-parts": [
            Difference(asked(thinking(text_parts("a", "b"), "c")), plain=asked(thinking("ab", "c"))),
        ],
    },
    "telechat3": {
        **pick(*USUAL, "no-content", "parts", "other-parts", "missing-arguments", "tool-value"),
        "null-calls": shape("null-calls"),
        "later-system": [
            Difference(CONVERSATIONS["later-system"], text="Hi.<_end>\n<_system>Be brief.\n<_user>Why?"),
            Difference(CONVERSATIONS["system-last"], text="<_user>Hello!<_system>Answer in French.\n<_bot>"),
            Difference(CONVERSATIONS["two-systems-first"], text="<_system>You are S.\n<_system>Be brief.\n<_user>"),
        ],
        "mentioned-think-end": [
            Difference(spoken("Use the </think> tag. Done"), text="<_bot>Use the </think> tag. Done<_end>"),
            Difference(
                spoken("Write <think>\nso\n</think>\nfirst."),
                text="<_bot>Write <think>\nso\n</think>\nfirst.<_end>",
            ),
            Difference(spoken("<think>r</think>Use </think> to end."), text="<_bot>Use </think> to end.<_end>"),
        ],
    },
}


@pytest.mark.parametrize(
    ("name", "slug"), [(name, slug) for name, differences in DIFFERENCES.items() for slug in differences]
)
def test_difference(name: str, slug: str) -> None:
    for difference in DIFFERENCES[name][slug]:
        if difference.error is not None:
            with pytest.raises(TemplateError, match=re.escape(difference.error)):
                ours(name).render(**difference.given)
            continue
        text = ours(name).render(**difference.given)
        if difference.plain is not None:
            assert text == ours(name).render(**difference.plain)
        if difference.text is not None:
            assert difference.text in text


@needs_originals
@pytest.mark.parametrize(
    ("name", "slug"), [(name, slug) for name, differences in DIFFERENCES.items() for slug in differences]
)
def test_difference_is_one(name: str, slug: str) -> None:
    for difference in DIFFERENCES[name][slug]:
        if difference.error is None:
            assert original_text(name, difference.given) != ours(name).render(**difference.given), difference


@pytest.mark.parametrize("name", FORMATS)
def test_every_difference_is_documented_and_the_other_way_round(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    table = page[page.index("## Differences from the original") :]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == sorted(DIFFERENCES[name])


INLINE_REASONING = {
    "<think>r</think>A": ("r", "A"),
    "<think>\nr\n</think>\n\nA": ("r", "A"),
    "\n<think>r\n\ns</think>A\n": ("r\n\ns", "A\n"),
    "r\n</think>\nA": ("r", "A"),
    "</think>A": ("", "A"),
    "<think></think>": ("", ""),
    "r\n</think>\n\n\nA": ("r", "A"),
}


@needs_originals
@pytest.mark.parametrize("content", INLINE_REASONING)
@pytest.mark.parametrize("name", ["step3-vl", "telechat3"])
def test_reasoning_at_the_head_of_content_is_split_off_as_in_the_original(name: str, content: str) -> None:
    for given in (spoken(content), conversation(HELLO, assistant(content, PARIS), HELLO)):
        assert ours(name).render(**given) == original_text(name, given)


@pytest.mark.parametrize("content", INLINE_REASONING)
@pytest.mark.parametrize("name", ["step3-vl", "telechat3"])
def test_reasoning_at_the_head_of_content_is_reasoning(name: str, content: str) -> None:
    reasoning, answer = INLINE_REASONING[content]
    plain = conversation(HELLO, thinking(reasoning, answer), prompt=False)
    assert ours(name).render(**spoken(content)) == ours(name).render(**plain)


# Every shape renders, and says what its plain form says


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("name", FORMATS)
def test_shape_renders_as_its_plain_form(name: str, case: str) -> None:
    given, plain = SHAPES[case]
    if plain is None or (case == "arguments-as-string" and name in ("iquest-coder", "intellect-3")):
        pytest.skip("a documented refusal, tested with the differences")
    assert ours(name).render(**given) == ours(name).render(**plain)


@pytest.mark.parametrize("name", FORMATS)
def test_tools_and_prompt_may_be_left_out(name: str) -> None:
    given = prompted(CONVERSATIONS["question"], False)
    assert ours(name).render(messages=given["messages"]) == ours(name).render(**given)


# Other environments


def _tojson(value: Any, ensure_ascii: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


@cache
def strictly(name: str, **settings: bool) -> Callable[..., str]:
    """In plain jinja2, where whitespace is kept and everything undefined is an error."""
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, **settings)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source(name)).render


@pytest.mark.parametrize("blocks", [False, True], ids=["blocks kept", "blocks trimmed"])
@pytest.mark.parametrize("name", FORMATS)
def test_no_need_of_lenient_settings(name: str, blocks: bool) -> None:
    for case, given in CONVERSATIONS.items():
        text = strictly(name, trim_blocks=blocks, lstrip_blocks=blocks)(**given)
        assert text == ours(name).render(**given), case


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_same_text_in_transformers(name: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    template = utils._compile_jinja_template(source(name))
    for case, given in CONVERSATIONS.items():
        assert template.render(**given) == ours(name).render(**given), case
    for case, (given, plain) in SHAPES.items():
        if plain is not None and case != "arguments-as-string":
            assert template.render(**given) == ours(name).render(**given), case


# Data and cost


def test_formats_json_names_each_template() -> None:
    formats = json.loads((files("chatcodec.builtin") / "formats.json").read_text(encoding="utf-8"))
    templates = [file.name for file in files("chatcodec.builtin").iterdir() if file.name.endswith(".jinja")]
    assert sorted(formats) == FORMATS
    assert sorted(templates) == [f"{name}.jinja" for name in FORMATS]
    for entry in formats.values():
        assert entry.keys() == {"special_tokens", "stops", "stop_ids"}
        assert entry["stops"]
        assert entry["stop_ids"]


def _steps(name: str, given: Conversation, monkeypatch: pytest.MonkeyPatch) -> int:
    meters: list[Meter] = []

    class Kept(Meter):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            meters.append(self)

    monkeypatch.setattr(engine, "Meter", Kept)
    ours(name).render(**given)
    return meters[-1].used


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("grow", ["rounds", "calls"])
def test_cost_is_linear(name: str, grow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(size: int) -> Conversation:
        if grow == "rounds":
            return asked(*[thinking("r", "c", PARIS, ROME), SUNNY] * size)
        ids = [f"call_{number}" for number in range(size)]
        calls = [call("now", {}, call_id) for call_id in ids]
        return asked(thinking("r", "c", *calls), *[result("x", call_id) for call_id in reversed(ids)])

    assert 0 < _steps(name, of(800), monkeypatch) < 4.5 * _steps(name, of(200), monkeypatch)


def write_golden_prompts() -> None:
    for (name, case), given in golden_prompts().items():
        file = GOLDEN / name / f"{case}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(ours(name).render(**given).encode())


if __name__ == "__main__":
    write_golden_prompts()
