"""The assistant's turn: its format, derived from the template, and what is done with it."""

from .format import TurnFormat

__all__ = ["TurnFormat"]
