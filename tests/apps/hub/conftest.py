from collections.abc import Iterator

import pytest

from tests.apps.hub.fake_hub import FakeHub, serve_fake_hub

TOKEN = "secret-token-of-the-operator"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that the processes of transfers use, with the operator's token."""
    with serve_fake_hub() as server:
        use_hub(monkeypatch, server.url)
        yield server


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let processes that are started use a hub."""
    for name, value in (
        ("HF_ENDPOINT", url),
        ("HF_TOKEN", TOKEN),
        ("HF_HUB_OFFLINE", "0"),
        ("HF_HUB_DISABLE_XET", "1"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "5"),
    ):
        monkeypatch.setenv(name, value)
