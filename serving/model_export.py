"""Models on their way out: as an archive, or to the Hugging Face hub."""

import tarfile
import zipfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Literal

from serving.model_store import StoredModel

ArchiveFormat = Literal["tar", "zip"]

_CHUNK_BYTES = 1 << 20


def stream_archive(model: StoredModel, kind: ArchiveFormat) -> Generator[bytes, None, None]:
    """Yield a model's files as one archive, in a folder of the model's name.

    They are not compressed: weights hardly are. Nothing is written to disk, and the model cannot be
    deleted meanwhile. Raises `ModelNotFoundError` before the first piece.
    """
    pieces = _stream(model, kind, model.hold())
    next(pieces)  # begun, so that it lets the model go also if nobody reads any of it
    return pieces


def stream_folder(folder: Path, name: str, kind: ArchiveFormat = "tar") -> Iterator[bytes]:
    """Yield the files of a folder as one archive, in a folder of this name."""
    yield from (_stream_tar if kind == "tar" else _stream_zip)(folder, name)


def push_to_hub(
    folder: Path,
    repository: str,
    *,
    token: str | None = None,
    private: bool = True,
    endpoint: str | None = None,
) -> str:
    """Upload a model's folder as `owner/name` to the hub; returns the address of the commit.

    `token` and `endpoint` are by default those that `hf auth login`, `HF_TOKEN` and `HF_ENDPOINT`
    give. Raises `huggingface_hub.errors.HfHubHTTPError` for what the hub refuses, and
    `ConnectionError` if it cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    api = HfApi(endpoint=endpoint, token=token)
    try:
        api.create_repo(repository, private=private, exist_ok=True, repo_type="model")
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"Upload {folder.name}"
        )
    except HfHubHTTPError:
        raise
    except HTTPError as exc:  # of the library below: no connection, or one that broke
        raise ConnectionError(
            f"the hub at {api.endpoint} cannot be reached: {exc}; check the connection, or set "
            "HF_ENDPOINT to the hub that you use"
        ) from exc
    return str(commit.commit_url)


def _stream(
    model: StoredModel, kind: ArchiveFormat, held: IO[bytes]
) -> Generator[bytes, None, None]:
    try:
        yield b""
        yield from stream_folder(model.path, model.id, kind)
    finally:
        held.close()


def _stream_tar(folder: Path, name: str) -> Iterator[bytes]:
    for path in _list_files(folder):
        entry = tarfile.TarInfo(f"{name}/{path.relative_to(folder)}")
        entry.size, entry.mtime = path.stat().st_size, int(path.stat().st_mtime)
        yield entry.tobuf(tarfile.PAX_FORMAT)
        yield from _read(path)
        yield b"\0" * (-entry.size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


class _Sink:
    """What a zip file is written to: a place that only ever gives out what is new."""

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


def _stream_zip(folder: Path, name: str) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, mode="w") as archive:
        for path in _list_files(folder):
            with archive.open(f"{name}/{path.relative_to(folder)}", "w", force_zip64=True) as entry:
                for chunk in _read(path):
                    entry.write(chunk)
                    yield sink.take()
    yield sink.take()


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
