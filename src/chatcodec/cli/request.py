"""`Request`: a codec, and what the command line says over the documents' heads."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..codec import Codec, load
from ..errors import SourceError, TemplateError, UnsupportedInput
from ..prompt import Prompt
from .inputs import Conversation, InputError, format_in, tools_in
from .outputs import say


def load_codec(arguments: argparse.Namespace, *, with_format: bool = False) -> Codec:
    """The codec that the arguments name; `with_format`: they may name a turn format too."""
    format = format_in(arguments.format) if with_format and arguments.format is not None else None
    tokenizer = getattr(arguments, "tokenizer", None)
    return load(arguments.source, template_name=arguments.template, format=format, tokenizer=tokenizer)


def checked_variables(codec: Codec, given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The values of `--set`. Raises `InputError` for one that the template never reads."""
    variables = dict(given)
    for name in variables:
        if not _reads(codec, name):
            known = ", ".join(codec.variables) or "none"
            raise InputError(f"--set {name}: the template never reads this variable; those it reads: {known}")
    return variables


def turn_variables(codec: Codec, given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The same where a turn is read: that stands behind a generation prompt. Raises `InputError`."""
    variables = checked_variables(codec, given)
    if "add_generation_prompt" in variables:
        raise InputError("--set add_generation_prompt: a turn always goes on from the generation prompt")
    return variables


def _reads(codec: Codec, name: str) -> bool:
    return name in codec.template.variables or name in codec.special_tokens or name == "add_generation_prompt"


def check_tokenizer(codec: Codec) -> None:
    """Raises `SourceError`, with the way out, where there are no token ids to be had."""
    try:
        codec.tokenizer  # noqa: B018 - it is looked for when it is asked for
    except SourceError as error:
        raise SourceError(f"{error} (on the command line: --tokenizer PATH)") from error


@contextmanager
def named(where: str) -> Iterator[None]:
    """What is wrong with a conversation is told with the place where it stands, as `InputError`."""
    try:
        yield
    except (UnsupportedInput, TemplateError) as error:
        raise InputError(f"{where}: {error}") from error


class Request:
    """`tools` and `variables` count in place of a conversation's own; `special` is `encode`'s `special_in_content`."""

    def __init__(
        self, codec: Codec, *, tools: Any, variables: dict[str, Any], strict: bool = False, special: str = "text"
    ) -> None:
        self.codec = codec
        self._tools = tools
        self._strict = strict
        self._special = special
        self._variables = variables
        self._ignored: set[str] = set()

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Request:
        codec = load_codec(arguments)
        tools = None if arguments.tools is None else tools_in(arguments.tools)
        variables = checked_variables(codec, arguments.set)
        if arguments.generation_prompt is not None:
            variables["add_generation_prompt"] = arguments.generation_prompt
        special = arguments.special_in_content
        return cls(codec, tools=tools, variables=variables, strict=arguments.strict, special=special)

    def encode(self, given: Conversation, where: str) -> Prompt:
        """The conversation's prompt. Raises `InputError`, naming where the conversation stands."""
        with named(where):
            return self.codec.encode(
                given.messages,
                tools=self.tools(given),
                strict=self._strict,
                special_in_content=self._special,
                **self.variables(given, where),
            )

    def tools(self, given: Conversation) -> Any:
        return given.tools if self._tools is None else self._tools

    def variables(self, given: Conversation, where: str) -> dict[str, Any]:
        """The template variables of the conversation. Says which of what stands beside it are none."""
        variables, ignored = self.told_apart(given)
        self._note_ignored(where, ignored)
        return variables

    def told_apart(self, given: Conversation) -> tuple[dict[str, Any], set[str]]:
        """The template variables of the conversation, and the names of what stands beside it and is none."""
        beside = {name: value for name, value in given.beside.items() if _reads(self.codec, name)}
        return {**beside, **given.variables, **self._variables}, given.beside.keys() - beside.keys()

    def _note_ignored(self, where: str, names: Iterable[str]) -> None:
        for name in sorted(set(names) - self._ignored):
            self._ignored.add(name)
            say("note", f"{where}: {name!r} is ignored: the template reads no variable of that name")
