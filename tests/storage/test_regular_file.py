import errno
import os
from pathlib import Path

import pytest

from storage.regular_file import open_regular, read_regular


def test_regular_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read_regular(file) == read_regular(link) == b"content"
    with open_regular(file) as opened:
        assert not os.get_inheritable(opened.fileno())


def test_fifo_is_rejected_without_blocking(tmp_path: Path) -> None:
    fifo = tmp_path / "run.json"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match=r"^\[Errno 22\] not a regular file") as refused:
        open_regular(fifo)
    assert refused.value.errno == errno.EINVAL


def test_errors_of_open_are_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "gone")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(OSError, match=r"^\[Errno 40\] .* symbolic links") as refused:
        open_regular(tmp_path / "link", follow_links=False)
    assert refused.value.errno == errno.ELOOP


def test_failed_open_closes_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match=r"^\[Errno \d+\] .*(directory|regular)"):
            open_regular(path)
    assert len(os.listdir("/proc/self/fd")) == before
