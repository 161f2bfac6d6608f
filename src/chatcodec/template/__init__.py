"""The template engine: Jinja in, text or traced text out; it knows no chat format and no token."""

from .budget import Budget
from .engine import Template

__all__ = ["Budget", "Template"]
