"""An OpenAI-compatible server for chat, in front of an engine that only completes tokens."""

from typing import TYPE_CHECKING, Any

from .settings import Settings

if TYPE_CHECKING:
    from .app import Gateway

__all__ = ["Gateway", "Settings"]


def __getattr__(name: str) -> Any:
    """`Gateway` needs the extra `serve`, so it is loaded when it is asked for."""
    if name != "Gateway":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .app import Gateway

    return Gateway
