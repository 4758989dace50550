"""Reader of Parquet and Arrow files, in a separate process with a memory limit.

A file declares the memory size of its pages and batches itself, so a small file can request any
amount; and Arrow's readers are C++ that was not written for hostile files. If the process exceeds
its limit or crashes, only the file is refused.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import TIMEOUT_MAX, Timer
from typing import IO

from system.child_environment import build_child_environment
from training.data import row_limits
from training.data.faults import DataError, RowFault
from training.data.files.columnar_process import ERROR_MARK, MEMORY_MARK
from training.data.files.json_rows import parse_line
from training.data.files.kinds import FileKind, Record

MAX_MEMORY_BYTES = 512 << 20
"""Memory that reading a file may take in addition to that of the process at its start."""
_KIND_NAMES = {"parquet": "Parquet", "arrow_file": "Arrow", "arrow_stream": "Arrow"}


def read_columnar(
    path: Path | str,
    name: str,
    kind: FileKind,
    *,
    reads_binary: bool = False,
    num_skipped: int = 0,
    deadline: float = float("inf"),
) -> Iterator[tuple[int, Record]]:
    """Yield the rows, numbered from 1, each after the bytes of the file that have been read.

    The first `num_skipped` rows are skipped.

    With `reads_binary`, bytes are `{"base64": …}`, and rows may have `MAX_BINARY_ROW_BYTES`. Raises
    `DataError` for a file that cannot be read, or that needs more than `MAX_MEMORY_BYTES`, and
    `TimeoutError` if no row could be read before `deadline`, a monotonic time.
    """
    limit = row_limits.MAX_BINARY_ROW_BYTES if reads_binary else row_limits.MAX_ROW_BYTES
    lines = read_lines(
        path, name, kind, reads_binary=reads_binary, num_skipped=num_skipped, deadline=deadline
    )
    for number, line in enumerate(lines, num_skipped + 1):
        position, _, content = line.partition(b" ")
        fault: RowFault | None = None
        if len(content) > limit or not content.strip():
            fault = row_limits.describe_endless(limit)
        yield int(position), (number, fault or parse_line(content))


def read_lines(
    path: Path | str,
    name: str,
    kind: FileKind,
    *,
    reads_binary: bool = False,
    num_skipped: int = 0,
    deadline: float = float("inf"),
) -> Iterator[bytes]:
    """Yield a line for each row: the position in the file, a space and the row as JSON.

    The first `num_skipped` rows are skipped. The JSON of a row that is too long is omitted. Raises
    as `read_columnar` does.
    """
    process = subprocess.Popen(  # noqa: S603 - our own command
        [
            *(sys.executable, "-m", "training.data.files.columnar_process"),
            *(kind, str(MAX_MEMORY_BYTES), str(num_skipped)),
            *(["binary"] if reads_binary else []),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=build_child_environment(
            {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # other pools reserve more than they use
        ),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    timer = _kill_at(process, deadline)
    try:
        with suppress(BrokenPipeError), process.stdin:  # it has ended: its status is reported below
            process.stdin.write(os.fsencode(path))
        yield from _take_lines(process.stdout, name, kind)
        status = process.wait()
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{name} was not read in time")
        if status:
            raise DataError(
                f"{name} cannot be read as {_KIND_NAMES[kind]} (the process that read it ended "
                f"with {status}): it seems damaged; write it again, or convert it to JSONL"
            )
    finally:
        timer.cancel()
        process.kill()
        process.stdout.close()
        process.wait()


def _kill_at(process: "subprocess.Popen[bytes]", deadline: float) -> Timer:
    """Kill a process at a monotonic time, unless the timer is cancelled before."""
    wait_s = min(max(0.0, deadline - time.monotonic()), TIMEOUT_MAX)
    timer = Timer(wait_s, process.kill)
    timer.daemon = True
    if deadline < float("inf"):
        timer.start()
    return timer


def _take_lines(output: IO[bytes], name: str, kind: FileKind) -> Iterator[bytes]:
    for line in output:
        if line.startswith(MEMORY_MARK):
            raise DataError(
                f"{name}: reading it as {_KIND_NAMES[kind]} takes more than {MAX_MEMORY_BYTES:,} "
                "bytes of memory: write it with smaller row groups, pages or batches, or convert "
                "it to JSONL"
            )
        if line.startswith(ERROR_MARK):
            reason = line[len(ERROR_MARK) :].decode(errors="replace").strip()
            raise DataError(f"{name} cannot be read as {_KIND_NAMES[kind]}: {reason}")
        yield line
