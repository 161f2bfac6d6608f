"""Reasoning that stands inline: in the content, between the format's own marks."""

from __future__ import annotations

from ..messages import REASONING_FIELDS, Message
from .format import Section


def without_inline_reasoning(message: Message, section: Section | None) -> Message:
    """The message with the reasoning that its content begins with apart; it need not be closed.

    A message that has reasoning already, or whose content is no string, is as it was.
    """
    content = message.get("content")
    if section is None or not section.open.strip() or not isinstance(content, str):
        return message
    if any(message.get(name) for name in REASONING_FIELDS) or not content.lstrip().startswith(section.open.strip()):
        return message
    inside = content.lstrip()[len(section.open.strip()) :]
    reasoning, closed, content = inside.partition(section.close.strip())
    reasoning = reasoning.removeprefix(section.open[len(section.open.rstrip()) :]).lstrip(section.strip_left)
    if closed:
        reasoning = reasoning.removesuffix(section.close[: -len(section.close.lstrip())]).rstrip(section.strip_right)
    return {**message, "reasoning_content": reasoning, "content": content.lstrip() if closed else ""}
