"""Files that the application writes are private to their owner under any umask."""

import logging
import os
import stat
from pathlib import Path

import pytest

from storage.layout import open_storage
from storage.privacy import make_private, make_tree_private


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_old_storage(root: Path) -> Path:
    """Build a storage root as earlier versions wrote it under the usual umask."""
    for folder in ("files/file-1", "runs", "models", "cache/tokens"):
        (root / folder).mkdir(parents=True, mode=0o755)
    (root / "aliases.json").write_text("{}")
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root


def test_new_storage_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        layout = open_storage(tmp_path / "storage")
    finally:
        os.umask(before)
    for folder in (layout.root, layout.files, layout.runs, layout.models):
        assert read_mode(folder) == 0o700


def test_open_storage_makes_older_storage_private(tmp_path: Path) -> None:
    layout = open_storage(make_old_storage(tmp_path / "storage"))
    for folder in (layout.root, layout.files, layout.runs, layout.models, layout.root / "cache"):
        assert read_mode(folder) == 0o700
    assert read_mode(layout.store.aliases) == 0o600


def test_mode_of_shared_root_is_not_changed(tmp_path: Path) -> None:
    root = make_old_storage(tmp_path / "data")
    (root / "photographs").mkdir()
    layout = open_storage(root)
    assert read_mode(root) == 0o755
    assert read_mode(layout.files) == 0o700


def test_failed_mode_change_logs_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError

    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    with caplog.at_level(logging.WARNING):
        make_private(tmp_path)
    assert f"{tmp_path} has mode 0755" in caplog.text


def test_close_tree_keeps_owner_permissions(tmp_path: Path) -> None:
    root = make_old_storage(tmp_path / "storage")
    (root / "script").write_text("")
    (root / "script").chmod(0o755)
    (root / "link").symlink_to(tmp_path / "nowhere")
    make_tree_private(root)
    assert read_mode(root / "script") == 0o700
    assert read_mode(root / "aliases.json") == 0o600
    assert read_mode(root / "files" / "file-1") == 0o700
