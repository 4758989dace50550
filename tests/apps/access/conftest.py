"""Clients of the application with keys of every role."""

from collections.abc import Callable
from typing import Any

import pytest

from apps.access.keys import KeyStore
from apps.access.settings import AccessSettings
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from storage.layout import StorageLayout
from tests.apps.conftest import AppClient

Connect = Callable[..., AppClient]


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
    ) -> AppClient:
        app = build_http(services, api_key, AccessSettings(**settings))
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return AppClient(app, base_url, client, headers)

    return connect
