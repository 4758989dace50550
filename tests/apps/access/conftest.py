"""Clients of the application with keys of every role."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from apps.access.keys import KeyStore
from apps.access.settings import AccessSettings
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from storage.layout import StorageLayout

Connect = Callable[..., httpx.AsyncClient]


@pytest.fixture
def keys(layout: StorageLayout) -> KeyStore:
    return KeyStore(layout)


@pytest.fixture
def connect(services: Services) -> Connect:
    """Build a separate application and a client with a key, by default from a remote address."""

    def connect(
        key: str | None = None,
        *,
        api_key: str | None = None,
        client: tuple[str, int] = ("10.0.0.9", 5),
        base_url: str = "http://tuneserve.example",
        **settings: Any,
    ) -> httpx.AsyncClient:
        app = build_http(services, api_key, AccessSettings(**settings))
        transport = httpx.ASGITransport(app, client=client)
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=transport, base_url=base_url, headers=headers)

    return connect
