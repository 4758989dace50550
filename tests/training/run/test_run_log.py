import logging
import threading
from pathlib import Path

import pytest

from training.run.run_log import MAX_PART_BYTES, RunLog, log_to_file

LINE = "line {:06d}"
LINE_BYTES = len(LINE.format(0)) + 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def write_lines(log: RunLog, num_lines: int, first: int = 0) -> bytes:
    """Append numbered lines; returns all their bytes."""
    lines = [LINE.format(number) for number in range(first, first + num_lines)]
    for line in lines:
        log.append(line)
    return "".join(f"{line}\n" for line in lines).encode()


def measure_files(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("log.*"))


def test_run_log_is_bounded(path: Path) -> None:
    """With wall_clock_breakdown DeepSpeed logs every step."""
    text = "x" * 100_000
    with log_to_file(path):
        for _ in range(3 * MAX_PART_BYTES // len(text)):
            logging.getLogger("noisy").info(text)
        logging.getLogger("noisy").error("the last line")
    assert MAX_PART_BYTES < measure_files(path.parent) < 2 * MAX_PART_BYTES + 2 * len(text)
    assert path.read_text().endswith("ERROR noisy: the last line\n")


def test_offsets_count_all_written_bytes(path: Path) -> None:
    log = RunLog(path, max_part_bytes=10 * LINE_BYTES)
    assert log.measure() == (0, 0)
    written = b""
    for number in range(47):
        written += write_lines(log, 1, first=number)
        begin, end = log.measure()
        assert end == len(written)
        assert begin == max(0, (number + 1) // 10 - 1) * 10 * LINE_BYTES
        assert b"".join(log.read(begin)) == written[begin:]
    for begin in range(30 * LINE_BYTES, len(written) + 1, 7):
        assert b"".join(log.read(begin)) == written[begin:]
        assert b"".join(log.read(begin, begin + 31)) == written[begin : begin + 31]
    assert list(log.read(30 * LINE_BYTES - 1)) == [], "a removed part of the log was read"
    assert len(list(path.parent.glob("log.*"))) == 2


def test_log_is_read_across_rotation(path: Path) -> None:
    log = RunLog(path, max_part_bytes=10 * LINE_BYTES)
    written = write_lines(log, 9)
    pieces = log.read(0)
    assert next(pieces) == written
    written += write_lines(log, 3, first=9)
    assert written == written[: 9 * LINE_BYTES] + b"".join(pieces)


def test_concurrent_processes_write_complete_lines(path: Path) -> None:
    """Threads simulate processes: each has its own `RunLog`, and their locks are separate."""

    def write(writer: int) -> None:
        write_lines(RunLog(path, max_part_bytes=50 * LINE_BYTES), 300, first=1000 * writer)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = RunLog(path)
    lines = b"".join(log.read(log.measure().begin)).decode().splitlines()
    assert len(lines) >= 49
    assert len(set(lines)) == len(lines)
    assert all(len(line) == LINE_BYTES - 1 for line in lines)
    # A part grows beyond its size while the thread that renames it does not run: measure later.
    write_lines(RunLog(path, max_part_bytes=50 * LINE_BYTES), 100, first=9000)
    assert measure_files(path.parent) < 120 * LINE_BYTES


def test_three_parts_left_by_killed_process_are_read(path: Path) -> None:
    """This happens between the rename of the newest and the removal of the oldest part."""
    (path.parent / "log.0-4.txt").write_text("one\n")
    (path.parent / "log.4-8.txt").write_text("two\nlate, beyond the end of its part\n")
    log = RunLog(path, max_part_bytes=4)
    assert log.measure() == (0, 8)
    assert b"".join(log.read(0)) == b"one\ntwo\n"
    log.append("six")
    assert sorted(found.name for found in path.parent.glob("log.*")) == ["log.8-12.txt"]
    assert b"".join(log.read(log.measure().begin)) == b"six\n"
