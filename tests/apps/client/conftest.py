import pytest

from apps.client import connection


@pytest.fixture
def short_retry_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the retry interval and the retry timeout for an unreachable API."""
    monkeypatch.setattr(connection, "RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(connection, "PATIENCE_S", 0.2)
