"""Training samples: each assistant's turn after the prompt that the model would be given, as it would write it.

It writes what the template does, which takes white space off the ends of texts in many formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .completions import BothWays
from .errors import UnsupportedInput
from .messages import Message, Tool
from .tokens.samples import Exchange, Sample, joined

TURNS = ("all", "last", "flagged")
FLAGS = ("train", "weight")
"""Fields of a message that say whether it is trained, the first one that is there; no template sees them."""
OVERFLOWS = ("drop", "truncate", "error")


def training_samples(
    codec: BothWays,
    messages: list[Message],
    tools: list[Tool] | None,
    *,
    turns: str | Callable[[int, Message], bool],
    given: int,
    max_length: int | None,
    overflow: str,
    variables: Mapping[str, Any],
) -> list[Sample]:
    """See `Codec.training_samples`."""
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise UnsupportedInput("max_length", f"a number of tokens is needed, not {max_length!r}")
    chosen = _chosen(messages, turns, given)
    shown = [{name: value for name, value in message.items() if name not in FLAGS} for message in messages]
    samples = joined(_exchanges(codec, shown, tools, chosen, variables))
    return fitting(samples, max_length, overflow)


def _chosen(messages: list[Message], turns: str | Callable[[int, Message], bool], given: int) -> list[int]:
    """The places of the messages to train."""
    own = [place for place, message in enumerate(messages) if message["role"] == "assistant" and place >= given]
    if turns in ("all", "last"):  # what begins the conversation answers nothing
        own = [place for place in own if place and not _is_excluded(messages[place])]
    if callable(turns):
        return [place for place in own if turns(place, messages[place])]
    if turns not in TURNS:
        raise UnsupportedInput("turns", f"it is one of {', '.join(TURNS)}, or a function of a place and a message")
    if turns == "flagged":
        return [place for place in own if _is_flagged(messages[place])]
    return own[-1:] if turns == "last" else own


def _is_flagged(message: Message) -> bool:
    return bool(_flag(message))


def _is_excluded(message: Message) -> bool:
    flag = _flag(message)
    return flag is not None and not flag


def _flag(message: Message) -> Any:
    return next((message[name] for name in FLAGS if name in message), None)


def _exchanges(
    codec: BothWays, messages: list[Message], tools: list[Tool] | None, chosen: list[int], variables: Mapping[str, Any]
) -> Iterator[Exchange]:
    completions = codec.completions(**variables)
    for place in chosen:
        if place == 0:
            raise UnsupportedInput("messages[0]", "nothing stands before it that the model could answer")
        prompt = codec.encode(messages[:place], tools, **variables)
        follower = messages[place + 1]["role"] if place + 1 < len(messages) else None
        try:
            message = completions.as_written(messages[place])
            completion = completions.compose(message, prompt.text, tools, end=True, follower=follower)
        except UnsupportedInput as error:
            below = "" if error.path in ("message", "prompt") else f".{error.path}"
            raise UnsupportedInput(f"messages[{place}]{below}", error.reason) from None
        yield Exchange(place, prompt.text, prompt.tokenized.ids_between, completion.text, completion.ids)


def fitting(samples: list[Sample], length: int | None, overflow: str) -> list[Sample]:
    """The samples of at most `length` tokens, and what `overflow` makes of those that are longer: "drop" nothing,
    "truncate" the turns that fit, "error" an `UnsupportedInput` with the path of the first message that does not."""
    if overflow not in OVERFLOWS:
        raise UnsupportedInput("overflow", f"it is one of {', '.join(OVERFLOWS)}")
    found: list[Sample] = []
    for sample in samples:
        if length is None or len(sample) <= length:
            found.append(sample)
        elif overflow == "error":
            place = next(turn for turn, end in zip(sample.turns, sample.ends, strict=True) if end > length)
            raise UnsupportedInput(
                f"messages[{place}]", f"it ends behind token {length:,}, in a sample of {len(sample):,} tokens"
            )
        elif overflow == "truncate" and (cut := sample.cut(length)) is not None:
            found.append(cut)
    return found
