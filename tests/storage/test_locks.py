"""File locks; each open file is its own lock holder, as if it were another process."""

import os
import threading
from pathlib import Path

import pytest

from storage.locks import (
    LockedError,
    lock_exclusive,
    lock_existing,
    lock_open_file,
    lock_shared,
    try_lock,
)


def test_a_file_is_locked_by_many_or_by_one(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.touch()
    first, second = lock_shared(file), lock_shared(file)
    with pytest.raises(LockedError, match=f"^{tmp_path.name} is in use$"), lock_existing(file):
        pass
    first.close()
    second.close()
    with lock_existing(file):
        file.unlink()
    with pytest.raises(FileNotFoundError):
        lock_shared(file)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_file_that_was_replaced_before_it_was_locked_is_refused(
    tmp_path: Path, is_replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "manifest.json"
    file.write_text("old")
    monkeypatch.setattr("fcntl.flock", lambda *_: _replace(file) if is_replaced else None)
    if is_replaced:
        with pytest.raises(FileNotFoundError):
            lock_shared(file)
    else:
        lock_shared(file).close()


def _replace(file: Path) -> None:
    new = file.with_suffix(".new")
    new.write_text("new")
    os.replace(new, file)


def test_a_lock_file_is_created_and_waited_for(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    order = []
    entered = threading.Event()

    def wait() -> None:
        entered.set()
        with lock_exclusive(file):
            order.append("second")

    waiting = threading.Thread(target=wait)
    with lock_exclusive(file):
        waiting.start()
        entered.wait()
        is_locked = pytest.raises(LockedError, match=r"^\.lock is locked")
        with is_locked, lock_exclusive(file, waits=False):
            pass
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_an_open_file_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with file.open("w") as holder, file.open("rb") as other:
        lock_open_file(holder)
        assert not try_lock(other)
        assert not try_lock(other, is_shared=True)
        holder.close()
        assert try_lock(other, is_shared=True)
        with file.open("rb") as third:
            assert try_lock(third, is_shared=True)
            assert not try_lock(third)
