"""What completes tokens: one adapter for each kind of server, the one within this process, and how to find which."""

from .embedded import Embedded
from .engine import (
    SAMPLING,
    Alternative,
    Answer,
    Ask,
    ContextExceeded,
    End,
    Engine,
    EngineAnswerInvalid,
    EngineBusy,
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    Logprob,
    Piece,
)
from .finding import KINDS, find_engine

__all__ = [
    "KINDS",
    "SAMPLING",
    "Alternative",
    "Answer",
    "Ask",
    "ContextExceeded",
    "Embedded",
    "End",
    "Engine",
    "EngineAnswerInvalid",
    "EngineBusy",
    "EngineError",
    "EngineRefused",
    "EngineTimeout",
    "EngineUnreachable",
    "Logprob",
    "Piece",
    "find_engine",
]
