"""What a template takes, found out by rendering small conversations and looking where their words end up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from .errors import BudgetExceeded, TemplateError
from .messages import REASONING_FIELDS, Message
from .template import Template

MEDIA: dict[str, dict[str, Any]] = {
    "image": {"type": "image", "image": "zqmedia"},
    "image_url": {"type": "image_url", "image_url": {"url": "zqmedia"}},
    "audio": {"type": "audio", "audio": "zqmedia"},
    "input_audio": {"type": "input_audio", "input_audio": {"data": "zqmedia", "format": "wav"}},
    "video": {"type": "video", "video": "zqmedia"},
    "video_url": {"type": "video_url", "video_url": {"url": "zqmedia"}},
}
"""One content part of each kind that OpenAI's API, vLLM and transformers know."""

ROLES_OF_TEXT = ("system", "user", "assistant", "tool")
MOST_OVERRUNS = 3
"""Probes that may overrun the budget before no more are rendered: a template of such a kind has no capabilities."""
NINE = "abcdef{:03d}"
LONG_ID = "call_abcdefghijklmnop{:03d}"


@dataclass(frozen=True)
class Capabilities:
    """What the template takes of a conversation. Every field is the answer of a render, none a guess by name."""

    system: bool
    """A system message at the start reaches the prompt."""
    late_system: bool
    """So does one further on."""
    developer: bool
    """The role `developer` is read."""
    tools: bool
    """Tool definitions reach the prompt."""
    bare_tools: bool
    """They may stand without `{"type": "function", "function": …}` around them."""
    typeless_tools: bool
    """They may come as `{"function": …}` alone."""
    tool_calls: bool
    parallel_tool_calls: bool
    tool_results: bool
    function_results: bool
    """The old role `function` is read as `tool` is."""
    arguments: str
    """How a call's arguments are taken: as "object", as "string" (JSON), or as "either"."""
    tool_call_ids: str
    """"any", "nine" where only nine letters and digits will do; "none" where they never reach the prompt."""
    missing_ids: bool
    """Calls and results may come without ids."""
    missing_result_ids: bool
    """Results may come without ids where the calls have them."""
    untyped_calls: bool
    """Calls may come without `"type": "function"`."""
    bare_calls: bool
    """Calls may come as `{"name": …, "arguments": …}`, without `function`."""
    tool_name_needed: bool
    """A tool result needs the name of its function."""
    absent_content: frozenset[str]
    """Where content may be absent: "user", "assistant", "assistant with calls", "tool"."""
    text_parts: frozenset[str]
    """The roles whose content may be a list of text parts."""
    parts_only: frozenset[str]
    """The roles whose content has to be one: a string is lost, or breaks the template."""
    structured_results: bool
    """A tool result that is an object is written as JSON."""
    media: frozenset[str]
    """The kinds of content part beside text that leave something in the prompt."""
    reasoning: bool
    """The reasoning of the turn under way (calls, then results) reaches the prompt."""
    past_reasoning: bool
    """So does that of an earlier turn."""
    reasoning_beside_content: bool
    """Reasoning and content may both stand beside calls."""
    reasoning_parts: bool
    """Reasoning is taken as content parts (`{"type": "thinking", "thinking": …}`), and in no other way."""

    def lines(self) -> Iterator[tuple[str, str]]:
        """Each capability as a label and a value, for people."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool):
                value = "yes" if value else "no"
            elif isinstance(value, frozenset):
                value = ", ".join(sorted(value)) or "none"
            yield field.name.replace("_", " "), value


def user(content: Any = "zquser") -> Message:
    return {"role": "user", "content": content}


def reply(content: Any = "zqreply", **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def call(number: int = 1, *, arguments: Any = None, identity: str = NINE) -> dict[str, Any]:
    value = {f"zqkey{number}": f"zqvalue{number}"} if arguments is None else arguments
    return {
        "id": identity.format(number),
        "type": "function",
        "function": {"name": f"zqname{number}", "arguments": value},
    }


def result(number: int = 1, content: Any = "zqresult", *, identity: str = NINE, **more: Any) -> Message:
    return {"role": "tool", "tool_call_id": identity.format(number), "content": content, **more}


def definition(number: int = 1) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {f"zqkey{number}": {"type": "string", "description": "zqparameter"}}}
    return {
        "type": "function",
        "function": {"name": f"zqname{number}", "description": "zqdescription", "parameters": parameters},
    }


def text_parts(*words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": word} for word in words]


class Probe:
    """Renders probe conversations on one template."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self._overran = 0

    def capabilities(self) -> Capabilities:
        return Capabilities(
            system=self.shows("zqsystem", [self.system(), user()]),
            late_system=self.shows("zqsystem", [user(), reply(), self.system(), user()])
            or self.shows("zqsystem", [user(), self.system(), reply(), user()]),
            developer=self.shows("zqsystem", [{"role": "developer", "content": "zqsystem"}, user()]),
            tools=self.shows("zqname1", [user()], tools=[definition()]),
            bare_tools=self.shows("zqname1", [user()], tools=[definition()["function"]]),
            typeless_tools=self.shows("zqname1", [user()], tools=[{"function": definition()["function"]}]),
            tool_calls=self.shows("zqname1", self.calling(call(arguments=self.sample_arguments))),
            parallel_tool_calls=self.parallel(),
            tool_results=self.shows("zqresult", self.answered()),
            function_results=self.shows("zqresult", self.answered(role="function")),
            arguments=self.arguments,
            tool_call_ids=self.ids,
            missing_ids=self.missing_ids(),
            missing_result_ids=self.missing_result_ids(),
            untyped_calls=self.takes_call({"id": NINE.format(1), "function": self.sample_call()["function"]}),
            bare_calls=self.takes_call({"id": NINE.format(1), **self.sample_call()["function"]}),
            tool_name_needed=not self.shows("zqresult", self.answered()) and self.named_results,
            absent_content=frozenset(self.absent_content()),
            text_parts=self.part_roles,
            parts_only=frozenset(role for role in ROLES_OF_TEXT if self._needs_part(role)),
            structured_results=self.structured_results(),
            media=frozenset(kind for kind in MEDIA if self.takes_media(kind)),
            reasoning=self.shows(
                "zqreason", [user(), {**self.turn(), "reasoning_content": "zqreason"}, *self.results()]
            )
            or self.shows("zqreason", [user(), {**reply(), "reasoning_content": "zqreason"}]),
            past_reasoning=self.shows("zqreason", [user(), {**reply(), "reasoning_content": "zqreason"}, user()]),
            reasoning_beside_content=self.reasoning_beside_content(),
            reasoning_parts=self.reasoning_parts(),
        )

    def render(self, messages: list[Message], tools: Any = None, **variables: Any) -> str | None:
        """The text, or None where the template fails."""
        if self.house_parts:
            messages = [_with_parts(message) for message in messages]
        return self._render(messages, tools, **variables)

    @cached_property
    def house_parts(self) -> bool:
        """Whether the template is written for content in parts alone."""
        plain, parts = [user()], [user(text_parts("zquser"))]
        return "zquser" not in (self._render(plain) or "") and "zquser" in (self._render(parts) or "")

    def _render(self, messages: list[Message], tools: Any = None, **variables: Any) -> str | None:
        if self._overran >= MOST_OVERRUNS:
            return None
        try:
            return self.template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=False, **variables
            )
        except TemplateError as error:
            self._overran += isinstance(error, BudgetExceeded)
            return None

    def shows(self, word: str, messages: list[Message], tools: Any = None) -> bool:
        return word in (self.render(messages, tools) or "")

    @staticmethod
    def system() -> Message:
        return {"role": "system", "content": "zqsystem"}

    # -- calls

    @cached_property
    def arguments(self) -> str:
        as_object = self._written_arguments({"zqkey1": "zqvalue1"}, "{'zqkey1':")
        as_text = self._written_arguments('{"zqkey1": "zqvalue1"}', '\\"zqkey1')
        if as_text is None or as_object is None:
            return "string" if as_object is None and as_text is not None else "object"
        same = "".join(as_object.split()) == "".join(as_text.split())
        return "either" if same else "object"

    def _written_arguments(self, arguments: Any, garbled: str) -> str | None:
        """The turn with the arguments; None where they do not reach the prompt, or as Python prints them, or as JSON
        inside JSON."""
        for closing in ([], self.results()):
            text = self.render([user(), self.turn(call(arguments=arguments)), *closing], [definition()])
            written = (text or "").rpartition("zquser")[2]
            if "zqvalue1" in written:
                return None if garbled in written else written
        return None

    @property
    def sample_arguments(self) -> Any:
        return '{"zqkey1": "zqvalue1"}' if self.arguments == "string" else {"zqkey1": "zqvalue1"}

    def turn(self, *calls: dict[str, Any], **more: Any) -> Message:
        return {"role": "assistant", "content": "zqreply", "tool_calls": list(calls) or [self.sample_call()], **more}

    def sample_call(self, number: int = 1, **more: Any) -> dict[str, Any]:
        key, value = f"zqkey{number}", f"zqvalue{number}"
        arguments: Any = f'{{"{key}": "{value}"}}' if self.arguments == "string" else {key: value}
        return call(number, arguments=arguments, **more)

    def calling(self, *calls: dict[str, Any]) -> list[Message]:
        return [user(), self.turn(*calls), *self.results()]

    def results(self, **more: Any) -> list[Message]:
        return [result(**({"name": "zqname1"} | more))]

    def answered(self, content: Any = "zqresult", **more: Any) -> list[Message]:
        return [user(), self.turn(), result(content=content, **more)]

    @cached_property
    def named_results(self) -> bool:
        return self.shows("zqresult", self.answered(name="zqname1"))

    def parallel(self) -> bool:
        turn = self.turn(self.sample_call(1), self.sample_call(2))
        text = self.render([user(), turn, result(1, name="zqname1"), result(2, name="zqname2")], [definition()])
        return "zqvalue1" in (text or "") and "zqvalue2" in (text or "")

    @cached_property
    def ids(self) -> str:
        long = [user(), self.turn(self.sample_call(identity=LONG_ID)), result(identity=LONG_ID, name="zqname1")]
        nine = [user(), self.turn(), result(name="zqname1")]
        text = self.render(long)
        if text is None:
            return "nine" if self.render(nine) is not None else "any"
        return "any" if LONG_ID.format(1) in text else "none"

    def missing_ids(self) -> bool:
        turn = self.turn({name: value for name, value in self.sample_call().items() if name != "id"})
        answer = {name: value for name, value in result(name="zqname1").items() if name != "tool_call_id"}
        return self.shows("zqresult", [user(), turn, answer]) or not self.named_results

    def missing_result_ids(self) -> bool:
        answer = {name: value for name, value in result(name="zqname1").items() if name != "tool_call_id"}
        return self.shows("zqresult", [user(), self.turn(), answer]) or not self.named_results

    def takes_call(self, call: dict[str, Any]) -> bool:
        written = (self.render([user(), self.turn(call), *self.results()]) or "").rpartition("zquser")[2]
        return "zqname1" in written and "zqvalue1" in written

    # -- content

    def absent_content(self) -> Iterator[str]:
        if self.render([{"role": "user"}]) is not None:
            yield "user"
        if self.render([user(), {"role": "assistant"}, user()]) is not None:
            yield "assistant"
        turn = {name: value for name, value in self.turn().items() if name != "content"}
        if self.render([user(), turn, *self.results()]) is not None:
            yield "assistant with calls"
        answer = {name: value for name, value in result(name="zqname1").items() if name != "content"}
        if self.render([user(), self.turn(), answer]) is not None:
            yield "tool"

    @cached_property
    def part_roles(self) -> frozenset[str]:
        parts = text_parts("zqone", "zqtwo")
        return frozenset(role for role in ROLES_OF_TEXT if self._keeps(role, parts, "zqone", "zqtwo"))

    def _needs_part(self, role: str) -> bool:
        return not self._keeps(role, "zqone", "zqone") and self._keeps(role, text_parts("zqone"), "zqone")

    def _keeps(self, role: str, content: Any, *words: str) -> bool:
        """Whether a message of this role with this content says these words, and does not show how they were held."""
        conversation = {
            "system": [{"role": "system", "content": content}, user()],
            "user": [user(content)],
            "assistant": [user(), reply(content), user()],
            "tool": self.answered(content, name="zqname1"),
        }[role]
        if self.house_parts:
            others = [
                _with_parts(message) if message["content"] is not content else message for message in conversation
            ]
            conversation = others
        text = self._render(conversation) or ""
        return all(word in text for word in words) and not _shows_structure(text)

    def reasoning_beside_content(self) -> bool:
        fields = dict.fromkeys(REASONING_FIELDS, "zqreason")
        both, alone = self.turn(**fields), {**self.turn(**fields), "content": ""}
        return not (
            self.render([user(), both, *self.results()], [definition()]) is None
            and self.shows("zqreason", [user(), alone, *self.results()], [definition()])
        )

    def reasoning_parts(self) -> bool:
        fields = dict.fromkeys(REASONING_FIELDS, "zqreason")
        parts = [{"type": "thinking", "thinking": "zqreason"}, *text_parts("zqreply")]
        if self.shows("zqreason", [user(), {**reply(), **fields}]):
            return False
        text = self._render([user(), reply(parts), user()]) or ""
        return "zqreason" in text and "zqreply" in text and not _shows_structure(text)

    def structured_results(self) -> bool:
        text = self.render(self.answered({"zqfield": "zqresult"}, name="zqname1")) or ""
        return '"zqfield": "zqresult"' in text or '"zqfield":"zqresult"' in text

    def takes_media(self, kind: str) -> bool:
        without = self.render([{"role": "user", "content": text_parts("zqone")}])
        withal = self.render([{"role": "user", "content": [*text_parts("zqone"), MEDIA[kind]]}])
        return without is not None and withal is not None and without != withal and not _shows_structure(withal)


def _with_parts(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": text_parts(content)} if isinstance(content, str) else message


def _shows_structure(text: str) -> bool:
    """Whether a content part is printed as an object, instead of what it says."""
    return any(sign in text for sign in ("'type': '", '"type": "t', '"type":"t'))
