"""The process that reads one Parquet or Arrow file: `… KIND MAX_BYTES NUM_SKIPPED [binary]`.

Its path or URL is read from stdin: a URL may have credentials, and all users of a machine can read
the arguments of a process.
Each row is a line on stdout: the bytes of the file that have been read, a space, and the row as
JSON. A line that begins with a mark contains the reason why nothing more can be read. The first
NUM_SKIPPED rows are skipped. With
`binary`, a value of bytes is `{"base64": …}`; otherwise it is text, or its length.
"""

import base64
import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from training.data.row_limits import MAX_BINARY_ROW_BYTES, MAX_ROW_BYTES

ERROR_MARK = b"!"
MEMORY_MARK = b"!memory"
_MAX_REASON_CHARACTERS = 300
# Few enough that rows of the largest size fit, even if a dictionary has one text for all of them.
_BATCH_ROWS = 32
_BINARY_BATCH_ROWS = 4
_PAGE_BUFFER_BYTES = 1 << 20


def main(
    path: str,
    kind: str,
    max_bytes: int,
    num_skipped: int,
    output: BinaryIO,
    *,
    writes_binary: bool = False,
) -> None:
    """Write the rows of a file, or the reason why it cannot be read."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _limit_memory(max_bytes)
    try:
        num_rows = _BINARY_BATCH_ROWS if writes_binary else _BATCH_ROWS
        for position, batch in _READERS[kind](path, num_rows, num_skipped):
            for row in batch.to_pylist():
                output.write(b"%d %s\n" % (position, _write_row(row, writes_binary=writes_binary)))
    except MemoryError:  # Arrow's memory error is a subclass
        output.write(MEMORY_MARK + b"\n")
    except BrokenPipeError:  # the parent process stopped reading
        os._exit(0)
    except (OSError, ValueError, NotImplementedError, KeyError) as exc:
        reason = (str(exc).splitlines() or [type(exc).__name__])[0].replace(path, "the file")
        output.write(ERROR_MARK + reason[:_MAX_REASON_CHARACTERS].encode(errors="replace") + b"\n")
    output.flush()


def _open(path: str) -> Any:
    """Open a file of the file system mapped, or one in a bucket by its URL."""
    import pyarrow as pa

    if "://" not in path:
        return pa.memory_map(path)
    from pyarrow import fs

    filesystem, place = fs.FileSystem.from_uri(path)
    return filesystem.open_input_file(place)


def _limit_memory(max_bytes: int) -> None:
    """Limit the writable memory of this process; mapped files do not count."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    limit = used + max_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_parquet(path: str, batch_rows: int, num_skipped: int) -> Iterator[tuple[int, Any]]:
    import pyarrow.parquet as pq

    source = _open(path)
    size_bytes = source.size()
    # Read pages one by one; otherwise a whole row group would be in memory.
    with pq.ParquetFile(source, buffer_size=_PAGE_BUFFER_BYTES, pre_buffer=False) as file:
        num_rows = max(1, file.metadata.num_rows)
        first, num_done = 0, 0
        while first < file.num_row_groups and num_skipped > 0:
            group_rows = file.metadata.row_group(first).num_rows
            if group_rows > num_skipped:
                break
            first, num_skipped, num_done = (
                first + 1,
                num_skipped - group_rows,
                num_done + group_rows,
            )
        groups = list(range(first, file.num_row_groups))
        batches = file.iter_batches(batch_size=batch_rows, row_groups=groups, use_threads=False)
        for batch in batches:
            num_done += batch.num_rows
            position = min(size_bytes, size_bytes * num_done // num_rows)
            yield position, batch.slice(num_skipped)
            num_skipped = max(0, num_skipped - batch.num_rows)


def _read_arrow_file(path: str, batch_rows: int, num_skipped: int) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa

    with _open(path) as source:
        size_bytes = source.size()
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            position = size_bytes * number // reader.num_record_batches
            batch = reader.get_batch(number)
            yield from _cut(batch, position, batch_rows, num_skipped)
            num_skipped = max(0, num_skipped - batch.num_rows)


def _read_arrow_stream(path: str, batch_rows: int, num_skipped: int) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa

    with _open(path) as source:
        for batch in pa.ipc.open_stream(source):
            yield from _cut(batch, source.tell(), batch_rows, num_skipped)
            num_skipped = max(0, num_skipped - batch.num_rows)


def _cut(batch: Any, position: int, batch_rows: int, num_skipped: int) -> Iterator[tuple[int, Any]]:
    if num_skipped >= batch.num_rows:
        return
    batch.validate(full=True)
    for start in range(num_skipped, batch.num_rows, batch_rows):
        yield position, batch.slice(start, batch_rows)


_READERS = {
    "parquet": _read_parquet,
    "arrow_file": _read_arrow_file,
    "arrow_stream": _read_arrow_stream,
}


def _write_row(row: dict[str, Any], *, writes_binary: bool) -> bytes:
    """Return a row as JSON without the nulls that Arrow adds to objects; b"" if it is too long."""
    kept = {key: drop_nulls(value) for key, value in row.items()}
    write = _write_binary if writes_binary else _write_other
    line = json.dumps(kept, ensure_ascii=False, default=write).encode("utf-8", "surrogatepass")
    return line if len(line) <= (MAX_BINARY_ROW_BYTES if writes_binary else MAX_ROW_BYTES) else b""


def drop_nulls(value: Any) -> Any:
    """Remove the nulls that Arrow adds to objects that differ in their keys."""
    if isinstance(value, dict):
        return {key: drop_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [drop_nulls(item) for item in value]
    return value


def _write_other(value: Any) -> Any:
    """Convert a value that JSON lacks: UTF-8 bytes to a string, anything else to an object."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"bytes": len(value)}
    return {type(value).__name__: str(value)}


def _write_binary(value: Any) -> Any:
    """Convert a value that JSON lacks, as `_write_other` does, but keep bytes."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return _write_other(value)


if __name__ == "__main__":
    main(
        os.fsdecode(sys.stdin.buffer.read()),
        *(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.stdout.buffer),
        writes_binary="binary" in sys.argv[4:],
    )
