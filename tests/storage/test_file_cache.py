import os
import time
from pathlib import Path

import pytest

from storage import durable
from storage.file_cache import FolderWatch, ParsedFileCache

AN_HOUR_AGO_NS = time.time_ns() - 3600 * 10**9


def write(path: Path, text: str, mtime_ns: int = AN_HOUR_AGO_NS) -> None:
    durable.write_bytes(path, text.encode())
    os.utime(path, ns=(mtime_ns, mtime_ns))


def test_file_is_parsed_again_only_after_replacement(tmp_path: Path) -> None:
    parsed: list[str] = []

    def parse(path: Path) -> str:
        parsed.append(path.read_text())
        return parsed[-1]

    cache, file = ParsedFileCache(parse), tmp_path / "a.json"
    write(file, "one")
    assert [cache.read(str(file)) for _ in range(3)] == ["one"] * 3
    assert parsed == ["one"]
    write(file, "two")  # of the same size and time
    assert [cache.read(str(file)) for _ in range(3)] == ["two"] * 3
    assert parsed == ["one", "two"]
    file.unlink()
    with pytest.raises(FileNotFoundError):
        cache.read(str(file))


def test_change_within_one_clock_tick_is_detected(tmp_path: Path) -> None:
    cache, file = ParsedFileCache(Path.read_text), tmp_path / "a.json"
    file.write_text("one")
    now = time.time_ns()
    os.utime(file, ns=(now, now))
    assert cache.read(str(file)) == "one"
    found = file.stat()
    with file.open("r+") as same_inode:
        same_inode.write("two")
    os.utime(file, ns=(now, now))
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (found.st_ino, found.st_mtime_ns)
    assert cache.read(str(file)) == "two"


def test_number_of_cache_entries_is_limited(tmp_path: Path) -> None:
    parsed: list[str] = []

    def parse(path: Path) -> str:
        parsed.append(path.name)
        return path.name

    cache = ParsedFileCache(parse, max_entries=2)
    for name in "abc":
        write(tmp_path / name, name)
    for name in "abcbca":
        cache.read(str(tmp_path / name))
    assert parsed == ["a", "b", "c", "a"]


def test_folder_watch_reports_only_changes(tmp_path: Path) -> None:
    os.utime(tmp_path, (0, 0))
    watch = FolderWatch(tmp_path)
    assert [watch.check_changed() for _ in range(3)] == [True, False, False]
    (tmp_path / "new").touch()
    # The folder's modification time is so recent that another change might leave it the same, so
    # that changes are reported until it is older.
    assert [watch.check_changed() for _ in range(3)] == [True, True, True]
    os.utime(tmp_path, (1, 1))
    assert [watch.check_changed() for _ in range(2)] == [True, False]
    watch.reset()
    assert watch.check_changed()
