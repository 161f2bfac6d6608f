"""`Engine`: what completes tokens, whatever server it is, and what is asked of it and comes back.

An adapter knows how one kind of server is asked and how it answers, and nothing of chat. It is always asked for a
stream: whoever has enough closes it, and the engine's work ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion of one prompt."""

    text: str
    ids: list[int] | None = None
    """The prompt's token ids; None where no tokenizer is at hand, and the text is all there is."""
    beginning: str = ""
    """The special token that the text begins with: a server that takes text puts it there itself."""
    max_tokens: int | None = None
    """None: as many as the engine's context holds."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a turn. The gateway stops reading by itself: an engine that knows them stops sooner."""
    shown: tuple[str, ...] = ()
    """Control tokens that the text of the answer must show."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """What the client says of sampling, by OpenAI's and vLLM's names; see `SAMPLING`."""
    logprobs: int | None = None
    """How many alternatives each token's probability comes with; None for no probabilities."""
    exact_ids: bool = False
    """The ids of all tokens are wanted, even if they then come late: perhaps only when the answer is over."""


SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "ignore_eos",
)
"""What is handed through, each only where the client gave it; an adapter leaves out what its server lacks."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token and its natural logarithm of probability, minus infinity for an impossible one.

    `text` need not be whole characters. `bytes` is exact, or None where they are not told.
    """

    text: str
    logprob: float
    bytes: bytes | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Logprob(Alternative):
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the answer.

    `ids` are all tokens of the piece, or None where the engine does not tell them (all); then only `text` is known.
    `tokens` counts them in any case; `logprobs` may be fewer, where several tokens make one character.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    tokens: int = 1
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The answer is over: the model stopped, or ran into `max_tokens` or the context's end. Counts that the engine
    does not tell are None."""

    reason: Literal["stop", "length"]
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


Answer: TypeAlias = AsyncGenerator[Piece | End, None]


class Engine(Protocol):
    """A server that completes tokens. Several answers may run at once."""

    @property
    def name(self) -> str:
        """What kind of server it is, for logs: "llama.cpp", "vllm", "sglang", "openai"."""
        ...

    @property
    def takes_ids(self) -> bool:
        """Whether a prompt may be token ids."""
        ...

    @property
    def context(self) -> int | None:
        """How many tokens prompt and answer may have together, if it is known."""
        ...

    def complete(self, ask: Ask) -> Answer:
        """The answer as it comes: pieces, then one `End`. Closing the generator ends the engine's work.

        Raises `EngineError` where there is no answer, or no more of it: nothing but an `End` is a proper end.
        """
        ...

    async def ids_of(self, text: str) -> list[int] | None:
        """What the engine's own tokenizer makes of a text; None where it does not tell. Raises `EngineError`."""
        ...

    async def check(self) -> None:
        """Raises `EngineError` where the engine is not ready."""
        ...

    async def close(self) -> None: ...


class EngineError(Exception):
    """The engine failed. The message is for the client and says nothing of the prompt."""


class EngineUnreachable(EngineError):
    """No connection, or it broke."""


class EngineBusy(EngineError):
    """The engine says that it has too much to do."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineTimeout(EngineError):
    """Nothing came for too long."""


class EngineAnswerInvalid(EngineError):
    """What came is no answer: garbage, a stream that stops before its end."""


class EngineRefused(EngineError):
    """The engine takes the request for wrong: sampling parameters out of range, say. `message` is the engine's."""


class ContextExceeded(EngineError):
    """Prompt, or prompt and answer, are longer than the context. Counts in tokens, None where unknown."""

    def __init__(self, prompt_tokens: int | None, context: int | None) -> None:
        super().__init__("the prompt does not fit the engine's context")
        self.prompt_tokens = prompt_tokens
        self.context = context
