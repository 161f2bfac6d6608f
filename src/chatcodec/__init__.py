"""chatcodec: a model's chat template, read in both directions."""

from .codec import Codec, load
from .errors import (
    BudgetExceeded,
    ChatCodecError,
    FormatNotDerived,
    SourceError,
    TemplateError,
    UnsupportedInput,
)
from .events import ToolCall
from .prompt import Prompt
from .session import Session
from .template import Budget
from .tokens import Sample, Token, Tokenizer
from .turn import TurnFormat
from .turn.decoder import Decoder

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetExceeded",
    "ChatCodecError",
    "Codec",
    "Decoder",
    "FormatNotDerived",
    "Prompt",
    "Sample",
    "Session",
    "SourceError",
    "TemplateError",
    "Token",
    "Tokenizer",
    "ToolCall",
    "TurnFormat",
    "UnsupportedInput",
    "load",
]
