import pytest

from apps.client import connection


@pytest.fixture
def short_retry_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only a moment for an API that is away."""
    monkeypatch.setattr(connection, "RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(connection, "PATIENCE_S", 0.2)
