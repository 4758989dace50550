"""The log of `tuneserve run`: private, rotated, and kept from the previous start."""

import os
import stat
import subprocess
import sys
from pathlib import Path

from apps.server.server_log import ServerLog


def write_log(path: Path, text: str, max_bytes: int = 10_000, num_old_files: int = 2) -> ServerLog:
    """Log the output of a process, as `tuneserve run` does."""
    log = ServerLog(path, max_bytes=max_bytes, num_old_files=num_old_files)
    command = [sys.executable, "-c", "import sys; sys.stdout.write(sys.argv[1])", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        log.follow(process.stdout)
        process.wait()
        log.close()
    return log


def test_start_keeps_log_of_previous_start(tmp_path: Path) -> None:
    path = tmp_path / "deploy.log"
    for number in range(4):
        write_log(path, f"start {number}\n")
    texts = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert texts == {
        "deploy.log": "start 3\n",
        "deploy.log.1": "start 2\n",
        "deploy.log.2": "start 1\n",
    }


def test_log_is_rotated_by_size(tmp_path: Path) -> None:
    lines = [f"line {number:04}" for number in range(400)]
    log = write_log(tmp_path / "deploy.log", "\n".join(lines), max_bytes=1000)
    assert all(file.stat().st_size <= 1000 for file in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 3
    assert log.read_last_lines().splitlines() == lines[-15:]
    assert (tmp_path / "deploy.log").read_text().splitlines()[-1] == lines[-1]


def test_log_files_are_private_to_owner(tmp_path: Path) -> None:
    path = tmp_path / "deploy.log"
    path.write_text("of an earlier version\n")
    path.chmod(0o644)
    before = os.umask(0o022)
    try:
        write_log(path, "%s is no format \n")
    finally:
        os.umask(before)
    assert path.read_text() == "%s is no format \n"
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
