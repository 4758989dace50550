"""Uploads of files as multipart forms: streamed to disk, checked on the way, then published.

Only a few chunks are in memory at a time. The file is written directly to the storage root, since
the folder for temporary files may be small, or in memory.
"""

import asyncio
import codecs
import hashlib
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import IO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from apps.errors import ApiError
from apps.file_index import FileObject
from apps.file_store import FileStore, Purpose, make_safe_name
from apps.settings import UsageLimits
from apps.usage_limits import IncomingBytes, check_stored_files
from storage.layout import UPLOAD_PREFIX, StorageLayout
from storage.locks import lock_exclusive
from storage.scratch import ScratchFolder
from system.priority import lower_thread_priority
from system.threads import DedicatedThread
from training.data.faults import DataError
from training.data.files.kinds import NUM_MAGIC_BYTES
from training.data.files.measuring import is_packed, measure_unpacked

_EXPECTED = (
    "expected rows as JSON, JSONL, CSV, plain text, Parquet or Arrow, also compressed with gzip or "
    "zstd, or images in a ZIP archive"
)
_WRITE_BYTES = 1 << 18
_MAX_FIELD_BYTES = 1_000
_MAX_PARTS = 16
_FILE_FIELD = "file"
_PURPOSE: Purpose = "fine-tune"


@dataclass
class _Part:
    """One part of a form: a field, or the file if it has a filename."""

    disposition: bytes = b""
    name: str = ""
    filename: str | None = None
    value: bytearray = field(default_factory=bytearray)


_INCOMING_BYTES = IncomingBytes()
# One file at a time: each may use as much memory as the limit for reading Parquet allows.
_UNPACKING = DedicatedThread("unpack-uploads")


class IncomingFile:
    """An upload that is received into its own scratch folder, which `close` removes.

    Raises `ApiError` 409 or 507 if there is no room for another file.
    """

    def __init__(
        self, layout: StorageLayout, files: FileStore, max_bytes: int, limits: UsageLimits
    ) -> None:
        self._stored = files.measure()
        check_stored_files(self._stored, limits)
        self._layout = layout
        self._files = files
        self._max_bytes = max_bytes
        self._limits = limits
        self._scratch = ScratchFolder(layout.files, UPLOAD_PREFIX)
        self._content = self._scratch.path / "content"
        self._form = _Form()
        self._size_bytes = self._num_counted = 0
        self._digest = hashlib.sha256()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._head = b""
        self._is_packed: bool | None = None  # until enough bytes are received

    def close(self) -> None:
        """Remove everything that was not published."""
        self._scratch.remove()
        _INCOMING_BYTES.add(-self._num_counted)
        self._num_counted = 0

    async def receive(self, content_type: str, chunks: AsyncIterable[bytes]) -> None:
        """Write the file of a form to disk as it is received, in pieces, off the event loop.

        Raises `ApiError` 400 for an invalid form, an unsupported purpose, or a file that is empty,
        not text or cannot be unpacked; 413 if the file, or what it unpacks to, exceeds the limit;
        and 507 if all uploads in progress together would exceed what may be stored.
        """
        parser = self._form.start(content_type)
        with self._content.open("wb") as file:
            waiting = bytearray()
            async for chunk in chunks:
                waiting += chunk
                if len(waiting) >= _WRITE_BYTES:
                    await asyncio.to_thread(self._write, parser, bytes(waiting), file)
                    waiting.clear()
            await asyncio.to_thread(self._write, parser, bytes(waiting), file)
        self._form.check_end()
        if not self._form.has_purpose:
            raise ApiError(400, f"the form has no purpose: expected {_PURPOSE!r}", param="purpose")
        if self._form.filename is None:
            message = "the form has no file: expected a part 'file' with a filename"
            raise ApiError(400, message, param=_FILE_FIELD)
        if self._size_bytes == 0:
            raise ApiError(400, f"the file is empty; {_EXPECTED}", param=_FILE_FIELD)
        self._check_text(b"", is_last=True)
        if self._is_packed:
            await _UNPACKING.run(self._check_unpacked)

    def publish(self) -> FileObject:
        """Move the file to the other files and close; return it as the API shows it.

        Raises `ApiError` 409 or 507 if other uploads have left no room for it.
        """
        try:
            assert self._form.filename is not None
            with lock_exclusive(self._layout.upload_lock):  # one upload is counted at a time
                check_stored_files(self._files.measure(), self._limits, self._size_bytes)
                return self._files.add_upload(
                    self._content,
                    make_safe_name(self._form.filename),
                    {
                        "bytes": self._size_bytes,
                        "filename": self._form.filename,
                        "purpose": _PURPOSE,
                        "sha256": self._digest.hexdigest(),
                    },
                )
        finally:
            self.close()

    def _write(self, parser: MultipartParser, chunk: bytes, file: IO[bytes]) -> None:
        for piece in self._form.take(parser, chunk):
            self._size_bytes += len(piece)
            if self._size_bytes > self._max_bytes:
                raise ApiError(
                    413,
                    f"the file is larger than {self._max_bytes:,} bytes, which is the maximum",
                )
            self._num_counted += len(piece)
            check_stored_files(self._stored, self._limits, _INCOMING_BYTES.add(len(piece)))
            self._check_text(piece)
            self._digest.update(piece)
            file.write(piece)

    def _check_text(self, piece: bytes, *, is_last: bool = False) -> None:
        """Check that a file that is not packed is text; packed content is checked later."""
        if self._is_packed is None:
            self._head += piece
            if len(self._head) < NUM_MAGIC_BYTES and not is_last:
                return
            self._is_packed, piece = is_packed(self._head), self._head
        if self._is_packed:
            return
        try:
            self._decoder.decode(piece, is_last)
        except UnicodeDecodeError as exc:
            raise ApiError(
                400,
                f"{self._form.filename!r} is not text ({exc.reason} in UTF-8); {_EXPECTED}",
                param=_FILE_FIELD,
            ) from exc

    def _check_unpacked(self) -> None:
        """Refuse a packed file whose content exceeds the size limit or is not text."""
        lower_thread_priority()
        name = self._form.filename or self._content.name
        try:
            num_bytes = measure_unpacked(self._content, name, self._max_bytes)
        except DataError as exc:
            raise ApiError(400, str(exc), param=_FILE_FIELD) from exc
        if num_bytes > self._max_bytes:
            raise ApiError(
                413,
                f"{name!r} unpacks to more than {self._max_bytes:,} bytes, which is the "
                "maximum; split it into several files",
            )


class _Form:
    """The parts of a form, collected from the parser's callbacks."""

    def __init__(self) -> None:
        self.filename: str | None = None
        self.has_purpose = False
        self._num_parts = 0
        self._has_ended = False
        self._part = _Part()
        self._header = [bytearray(), bytearray()]  # its name and value, as far as received
        self._pieces: list[bytes] = []

    def start(self, content_type: str) -> MultipartParser:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or b"boundary" not in options:
            message = f"content-type is {content_type!r}, expected multipart/form-data"
            raise ApiError(400, message, param="content-type")
        try:
            return self._make_parser(options[b"boundary"])
        except FormParserError as exc:
            raise ApiError(400, f"the form cannot be read: {exc}", param="content-type") from exc

    def _make_parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_part_data": self._take_data,
                "on_part_end": self._end_part,
                "on_header_field": lambda data, start, end: self._take_header(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._take_header(1, data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._name_part,
                "on_end": self._end,
            },
        )

    def take(self, parser: MultipartParser, chunk: bytes) -> list[bytes]:
        """Parse a chunk, and return the pieces of the file in it."""
        try:
            parser.write(chunk)
        except FormParserError as exc:
            raise ApiError(400, f"the form cannot be read: {exc}") from exc
        pieces, self._pieces = self._pieces, []
        return pieces

    def check_end(self) -> None:
        """Raise `ApiError` 400 if the form is incomplete."""
        if not self._has_ended:
            raise ApiError(400, "the form is truncated: its last boundary is missing")

    def _end(self) -> None:
        self._has_ended = True

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise ApiError(400, f"the form has more than {_MAX_PARTS} parts")
        self._part = _Part()

    def _take_header(self, which: int, data: bytes) -> None:
        self._header[which] += data
        if len(self._header[which]) > _MAX_FIELD_BYTES:
            raise ApiError(400, f"a header in the form has more than {_MAX_FIELD_BYTES} bytes")

    def _end_header(self) -> None:
        name, value = map(bytes, self._header)
        self._header = [bytearray(), bytearray()]
        if name.lower() == b"content-disposition":
            self._part.disposition = value

    def _name_part(self) -> None:
        _, options = parse_options_header(self._part.disposition)
        self._part.name = options.get(b"name", b"").decode(errors="replace")
        if b"filename" not in options:
            return
        if self._part.name != _FILE_FIELD or self.filename is not None:
            message = f"expected one file, in the part {_FILE_FIELD!r}; found another in "
            raise ApiError(400, f"{message}{self._part.name!r}", param=self._part.name)
        name = options[b"filename"].decode(errors="replace") or "upload.jsonl"
        self._part.filename = self.filename = name

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.filename is not None:
            self._pieces.append(data[start:end])
            return
        self._part.value += data[start:end]
        if len(self._part.value) > _MAX_FIELD_BYTES:
            message = f"{self._part.name!r} has more than {_MAX_FIELD_BYTES} bytes"
            raise ApiError(400, message, param=self._part.name)

    def _end_part(self) -> None:
        if self._part.filename is not None:
            return
        if self._part.name != "purpose":
            message = "is not a field of an upload; expected 'file' and 'purpose'"
            raise ApiError(400, f"{self._part.name!r} {message}", param=self._part.name)
        purpose = self._part.value.decode(errors="replace")
        if purpose != _PURPOSE:
            raise ApiError(400, f"purpose is {purpose!r}, expected {_PURPOSE!r}", param="purpose")
        self.has_purpose = True
