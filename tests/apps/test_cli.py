"""The command line: the environment that it starts `serve run` in."""

from pathlib import Path

import pytest

from apps.cli import build_environment

OURS = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}


@pytest.fixture(autouse=True)
def no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a cluster, and a user who has set nothing."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for name in {"RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_worker_niceness"} | OURS:
        monkeypatch.delenv(name, raising=False)


def test_a_cluster_of_our_own_is_closed_to_others() -> None:
    first, second = build_environment(), build_environment()
    assert first["RAY_AUTH_MODE"] == "token"
    assert first["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/a/token")
    monkeypatch.setenv("RAY_worker_niceness", "7")
    environment = build_environment()
    assert "RAY_AUTH_TOKEN" not in environment
    assert environment["RAY_worker_niceness"] == "7"


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "auto"])
def test_a_cluster_that_is_there_is_joined_as_it_is(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
    environment = build_environment()
    assert not OURS & environment.keys()
    assert environment["RAY_worker_niceness"] == "0"


def test_a_cluster_of_our_own_may_be_wished_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
    assert build_environment().keys() >= OURS
