"""Who may ask a server without a key: what runs on the machine, but no web page of others'."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from scripted import Scripted, serving

from chatcodec import load
from chatcodec.gateway import Gateway, Settings

CODEC = load("intellect-3")


def status(settings: dict[str, Any], headers: dict[str, str], path: str = "/v1/models") -> tuple[int, str | None]:
    async def ask() -> tuple[int, str | None]:
        gateway = Gateway(CODEC, Scripted(lambda ask: []), Settings(models=("m",), **settings))
        async with serving(gateway.app) as url, httpx2.AsyncClient(base_url=url) as client:
            answer = await client.get(path, headers=headers)
            return answer.status_code, answer.json().get("error", {}).get("code")

    return asyncio.run(ask())


LOCAL = {"hosts": ("localhost", "gpu.lan")}


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost", "localhost:8000", "LocalHost:80", "[::1]:8000", "10.1.2.3", "gpu.lan:443"]
)
def test_addresses_and_known_names_are_let_in(host: str) -> None:
    assert status(LOCAL, {"Host": host}) == (200, None)
    assert status(LOCAL, {"Host": host, "Origin": f"http://{host}"}) == (200, None)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io"])
def test_other_names_are_not(host: str) -> None:
    """A name of a page's own may lead here (DNS rebinding)."""
    assert status(LOCAL, {"Host": host}) == (403, "unknown_host")
    assert status({}, {"Host": host}) == (200, None)
    assert status({**LOCAL, "api_keys": ("k",)}, {"Host": host, "Authorization": "Bearer k"}) == (200, None)
    assert status(LOCAL, {"Host": host}, "/health") == (200, None)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000", "file://"])
def test_a_web_page_may_not_ask_without_a_key(origin: str) -> None:
    headers = {"Host": "localhost:8000", "Origin": origin}
    assert status({}, headers) == (403, "foreign_origin")
    assert status({"api_keys": ("k",)}, {**headers, "Authorization": "Bearer k"}) == (200, None)


def test_a_key_may_have_any_letters() -> None:
    key = "schlüssel"
    sent = {"Authorization": f"Bearer {key}".encode()}
    assert status({"api_keys": (key,)}, sent) == (200, None)  # type: ignore[arg-type]
    assert status({"api_keys": (key,)}, {"Authorization": "Bearer schlussel"}) == (401, "invalid_api_key")
