"""Token ids: texts to ids, who wrote which token, which are trained; it knows no Jinja."""

from .attribution import Token
from .samples import Sample
from .tokenizer import Control, Tokenizer

__all__ = ["Control", "Sample", "Token", "Tokenizer"]
