"""chatcodec: a model's chat template, read in both directions."""

from .codec import Codec, load
from .errors import BudgetExceeded, ChatCodecError, SourceError, TemplateError, UnsupportedInput
from .prompt import Prompt
from .template import Budget

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetExceeded",
    "ChatCodecError",
    "Codec",
    "Prompt",
    "SourceError",
    "TemplateError",
    "UnsupportedInput",
    "load",
]
