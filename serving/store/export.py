"""Export of models as an archive or to the Hugging Face hub."""

import hashlib
import logging
import re
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Literal, NamedTuple

from serving.store.stored_model import StoredModel
from storage import durable
from storage.manifest import ListedFile, check_listed, survey_directory

logger = logging.getLogger(__name__)

ArchiveFormat = Literal["tar", "zip"]

_CHUNK_BYTES = 1 << 20
_ANSWER_S = 60.0
# Weights that transformers or PEFT may load in place of those that are pushed, and what names them.
_MODEL_FILE = re.compile(
    r"config\.json|adapter_config\.json|[^/]+\.safetensors(\.index\.json)?"
    r"|(pytorch|adapter)_model[^/]*\.bin(\.index\.json)?"
)


class PublicRepositoryError(ValueError):
    """A private push to a repository that everybody can read."""


class _Entry(NamedTuple):
    """One file of an archive; `read` yields exactly `size_bytes` bytes."""

    name: str
    size_bytes: int
    modified_at: int
    read: Callable[[], Iterator[bytes]]


def stream_archive(model: StoredModel, kind: ArchiveFormat) -> Generator[bytes, None, None]:
    """Return an iterator over a model's published files as one archive, in a folder of its name.

    The archive is not compressed, since weights hardly compress. Nothing is written to disk, and
    the model cannot be deleted meanwhile. Before the first piece, names and sizes are compared with
    the manifest: raises `DamagedDirectoryError` if they differ, and `ModelNotFoundError`. Contents
    are hashed while they are read, and the last chunk of a file is withheld until its hash is
    verified: after a `DamagedDirectoryError` the archive is truncated, and no program accepts it as
    complete.
    """
    pieces = _stream(model, kind, model.lock_shared())
    next(pieces)  # start the generator, so that closing it releases the model even if it is unread
    return pieces


def stream_folder(folder: Path, name: str, kind: ArchiveFormat = "tar") -> Iterator[bytes]:
    """Yield the files of a folder as one archive, in a folder with the given name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    yield from _write_archive(name, kind, [_describe_file(folder, path) for path in files])


def push_to_hub(
    folder: Path,
    repository: str,
    *,
    token: str | None = None,
    private: bool = True,
    endpoint: str | None = None,
    accept: Callable[[str], None] | None = None,
    report: Callable[[int], None] | None = None,
) -> str:
    """Upload a model's folder to the hub as `repository` (`owner/name`); return the commit's URL.

    All files become visible in one commit, which deletes weights, configurations and adapters that
    the repository has and the model has not. `accept` is called with the present id of the
    repository, which may have been renamed, and may raise before anything is uploaded. `report` is
    called with the bytes that are uploaded, in total, after each file. `token` and `endpoint`
    default to those of `hf auth login`, `HF_TOKEN` and `HF_ENDPOINT`. Raises
    `PublicRepositoryError` if `private`, and the repository is public,
    `huggingface_hub.errors.HfHubHTTPError` if the hub rejects a request, and `ConnectionError` if
    it cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    api = HfApi(endpoint=endpoint, token=token)
    files = {path.relative_to(folder).as_posix(): path for path in _list_visible(folder)}
    try:
        api.create_repo(repository, private=private, exist_ok=True, repo_type="model")
        info = api.model_info(repository, timeout=_ANSWER_S)
        if accept is not None:
            accept(info.id)
        if private and info.private is not True:
            raise PublicRepositoryError(
                f"{info.id!r} is public on the hub, and the push is private: make the repository "
                "private on the hub first, or push publicly"
            )
        present = [one.rfilename for one in info.siblings or ()]
        deletions = [
            CommitOperationDelete(path_in_repo=name)
            for name in present
            if name not in files and _MODEL_FILE.fullmatch(name)
        ]
        additions, sent_bytes = [], 0
        for name, path in files.items():
            addition = CommitOperationAdd(path_in_repo=name, path_or_fileobj=path)
            additions.append(addition)
            api.preupload_lfs_files(info.id, [addition], free_memory=False)
            sent_bytes += path.stat().st_size
            if report is not None:
                report(sent_bytes)
        commit = api.create_commit(
            info.id, [*additions, *deletions], commit_message=f"Upload {folder.name}"
        )
    except HfHubHTTPError:
        raise
    except HTTPError as exc:  # the HTTP library's error: no connection, or an interrupted one
        raise ConnectionError(
            f"the hub at {api.endpoint} cannot be reached: {exc}; check the connection, or set "
            "HF_ENDPOINT to the hub that you use"
        ) from exc
    return str(commit.commit_url)


def _list_visible(folder: Path) -> list[Path]:
    """Return all files of a folder but hidden ones, and those in hidden folders."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in files if "/." not in f"/{path.relative_to(folder).as_posix()}"]


def _stream(
    model: StoredModel, kind: ArchiveFormat, lock: IO[bytes]
) -> Generator[bytes, None, None]:
    try:
        entries = _list_published(model.path)
        yield b""
        try:
            yield from _write_archive(model.id, kind, entries)
        except (durable.DamagedDirectoryError, OSError) as exc:
            logger.error("an archive of model %s was broken off: %s", model.id, exc)  # noqa: TRY400
            raise
    finally:
        lock.close()


def _list_published(folder: Path) -> list[_Entry]:
    """List the files of a published model; its manifest, with the sizes of all, is the first."""
    published = survey_directory(folder)
    manifest = folder / durable.MANIFEST_NAME
    entries = [
        _describe_file(folder, folder / name)._replace(
            size_bytes=expected.size_bytes, read=partial(_read_published, folder, name, expected)
        )
        for name, expected in published.items()
    ]
    return [_describe_file(folder, manifest), *sorted(entries, key=lambda entry: entry.name)]


def _describe_file(folder: Path, path: Path) -> _Entry:
    status = path.stat()
    name = path.relative_to(folder).as_posix()
    return _Entry(name, status.st_size, int(status.st_mtime), partial(_read, path))


def _write_archive(name: str, kind: ArchiveFormat, entries: Iterable[_Entry]) -> Iterator[bytes]:
    return (_write_tar if kind == "tar" else _write_zip)(name, entries)


def _write_tar(name: str, entries: Iterable[_Entry]) -> Iterator[bytes]:
    for entry in entries:
        header = tarfile.TarInfo(f"{name}/{entry.name}")
        header.size, header.mtime = entry.size_bytes, entry.modified_at
        yield header.tobuf(tarfile.PAX_FORMAT)
        yield from entry.read()
        yield b"\0" * (-entry.size_bytes % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


class _Sink:
    """An output file for `zipfile` that buffers the written bytes until `take`."""

    def __init__(self) -> None:
        self._content = bytearray()

    def write(self, content: bytes) -> int:
        self._content += content
        return len(content)

    def flush(self) -> None:
        return None

    def close(self) -> None:
        return None

    def take(self) -> bytes:
        content, self._content = bytes(self._content), bytearray()
        return content


def _write_zip(name: str, entries: Iterable[_Entry]) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, mode="w") as archive:
        for entry in entries:
            with archive.open(f"{name}/{entry.name}", "w", force_zip64=True) as file:
                for chunk in entry.read():
                    file.write(chunk)
                    yield sink.take()
    yield sink.take()


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _read_published(folder: Path, name: str, expected: ListedFile) -> Iterator[bytes]:
    """Yield a published file; withhold its last chunk until the hash of the file is verified.

    Raises `DamagedDirectoryError` if size or hash differ.
    """
    digest = hashlib.sha256()
    size_bytes = 0
    withheld = b""
    for chunk in _read(folder / name):
        digest.update(chunk)
        size_bytes += len(chunk)
        if withheld:
            yield withheld
        withheld = chunk
    found = ListedFile(size_bytes, digest.hexdigest())
    check_listed(folder, name, expected, found)
    if withheld:
        yield withheld
