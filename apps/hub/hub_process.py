"""A transfer from or to the hub, in a process of its own with the operator's token.

`python -m apps.hub.hub_process install REPOSITORY FOLDER` prints `{"listed": ...}` as `ListedModel`
and waits for a line on its standard input before it downloads. `... push FOLDER REPOSITORY` prints
`{"target": ID}`, the present id of the repository, and waits in the same way before it uploads;
then `{"sent_bytes": N}` after each file, and `{"sending": true}` meanwhile. The last line is
`{"done": ...}` as `TransferResult`, or `{"failed": ...}` as `FailedTransfer`.
`apps.hub.transfer_process` starts it. No message has a token.
"""

import argparse
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypedDict

from apps.hub.hub_files import HubFile, RefusedFilesError, choose_files
from apps.hub.redaction import redact
from storage import durable
from system.machine_faults import is_out_of_space
from system.process_limits import end_with_parent, offer_for_killing

_MAX_WORKERS = 4
_ANSWER_S = 60.0
_MAX_REASON_CHARACTERS = 300
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_FOLDER = ".cache"  # where the hub's library keeps its notes on a download


class ListedModel(TypedDict):
    """What the hub lists of a model; `id` is its present id, which may be that of a redirect."""

    id: str
    commit: str
    bytes: int


class TransferResult(TypedDict):
    """The address of a pushed model; None for a downloaded one."""

    url: str | None


class FailedTransfer(TypedDict):
    """Why a transfer failed, as the error of a request."""

    status: int
    message: str
    code: str


class _HubError(Exception):
    """A transfer cannot be made, for a reason that is no exception of a library."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def _download(
    repository: str, revision: str | None, folder: Path, output: TextIO
) -> TransferResult:
    """Download the files of a model to `folder`, once the parent has accepted their size."""
    from huggingface_hub import HfApi, snapshot_download

    info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=_ANSWER_S)
    if info.sha is None or not _COMMIT.fullmatch(info.sha):
        raise _HubError(502, "hub_failed", f"the hub names no commit of {repository!r}")
    listed = [
        HubFile(
            one.rfilename, -1 if one.size is None else one.size, one.lfs.sha256 if one.lfs else None
        )
        for one in info.siblings or ()
    ]
    files = choose_files(repository, listed)
    if any(file.size_bytes < 0 for file in files):
        raise _HubError(502, "hub_failed", f"the hub lists no sizes of the files of {repository!r}")
    found = ListedModel(id=info.id, commit=info.sha, bytes=sum(one.size_bytes for one in files))
    _report(output, "listed", found)
    _wait_for_parent()
    snapshot_download(
        info.id,
        revision=info.sha,
        local_dir=folder,
        cache_dir=folder / _HUB_FOLDER,
        allow_patterns=[file.name for file in files],
        max_workers=_MAX_WORKERS,
    )
    shutil.rmtree(folder / _HUB_FOLDER, ignore_errors=True)
    _check_files(folder, files)
    return TransferResult(url=None)


def _wait_for_parent() -> None:
    """Wait until the parent accepts what was reported; raises if it does not."""
    if not sys.stdin.readline():
        raise _HubError(409, "hub_failed", "the transfer was not started")


def _check_files(folder: Path, files: Sequence[HubFile]) -> None:
    """Compare the downloaded files with the list of the hub; raises `_HubError`."""
    for file in files:
        path = folder / file.name
        size_bytes = path.stat().st_size if path.is_file() else 0
        if size_bytes != file.size_bytes:
            reason = f"it has {size_bytes:,} bytes, and the hub lists {file.size_bytes:,}"
        elif file.sha256 is not None and durable.hash_file(path) != file.sha256:
            reason = "its SHA-256 is not the one that the hub lists"
        else:
            continue
        message = f"{file.name!r} was damaged during the download: {reason}; try again"
        raise _HubError(502, "download_damaged", message)


def _push(folder: Path, repository: str, output: TextIO, *, private: bool) -> TransferResult:
    from apps.hub.hub_client import RedirectedUploadError
    from serving.store.export import PublicRepositoryError, push_to_hub

    def accept(repository_id: str) -> None:
        _report(output, "target", repository_id)
        _wait_for_parent()

    def report(sent_bytes: int) -> None:
        _report(output, "sent_bytes", sent_bytes)

    try:
        url = push_to_hub(folder, repository, private=private, accept=accept, report=report)
    except PublicRepositoryError as exc:
        raise _HubError(409, "repository_public", str(exc)) from exc
    except RedirectedUploadError as exc:
        message = f"the hub redirects uploads to {repository!r}; push to its present id"
        raise _HubError(409, "repository_moved", message) from exc
    return TransferResult(url=url)


def explain_failure(
    exc: Exception, repository: str, revision: str | None = None, *, is_push: bool = False
) -> FailedTransfer:
    """Return why a transfer failed, with the status that a request would get."""
    from huggingface_hub import errors

    status, code, message = 500, "transfer_failed", "the server's log has the reason"
    if isinstance(exc, _HubError):
        status, code, message = exc.status, exc.code, str(exc)
    elif isinstance(exc, RefusedFilesError):
        status, code, message = 400, "not_installable", str(exc)
    elif is_out_of_space(exc):
        status, code, message = 507, "disk_full", "the server's disk has no room for it"
    elif isinstance(exc, errors.OfflineModeIsEnabled):
        status, code = 409, "hub_offline"
        message = "the server does not use the hub: its environment has HF_HUB_OFFLINE"
    elif isinstance(exc, errors.GatedRepoError):
        status, code = 403, "hub_refused"
        message = (
            f"{repository!r} is gated, and the server's token has no access to it: the operator "
            "has to accept its terms on the hub, and to set HF_TOKEN"
        )
    elif isinstance(exc, errors.RevisionNotFoundError):
        status, code = 404, "revision_not_found"
        message = f"{repository!r} has no revision {revision!r} on the hub"
    elif isinstance(exc, errors.HfHubHTTPError):
        status, code, message = _explain_answer(exc, repository, is_push=is_push)
    elif isinstance(exc, (errors.HTTPError, ConnectionError)):  # type: ignore[attr-defined]
        status, code = 502, "hub_unreachable"
        message = f"the connection to the hub failed: {_shorten(exc)}; try again"
    elif isinstance(exc, errors.FileMetadataError | errors.LocalEntryNotFoundError):
        status, code = 502, "hub_failed"
        message = f"the download from the hub failed: {_shorten(exc)}; try again"
    elif isinstance(exc, OSError) and "onsistency" in str(exc):  # the library's own error
        status, code = 502, "download_damaged"
        message = f"a file was damaged during the download: {_shorten(exc)}; try again"
    return FailedTransfer(status=status, message=message, code=code)


def _explain_answer(exc: Any, repository: str, *, is_push: bool) -> tuple[int, str, str]:
    """Return status, code and message for an error that the hub answered."""
    answered = exc.response.status_code
    if is_push and answered in (401, 403, 404):
        message = f"the hub does not let the server's token (HF_TOKEN) write to {repository!r}"
        if exc.server_message:  # such as a full account, or terms that are to be accepted
            message = f"{message}: {_shorten(exc.server_message)}"
        return 403, "hub_refused", message
    if answered in (401, 404):
        message = (
            f"there is no model {repository!r} on the hub, or the server's token (HF_TOKEN) may "
            "not read it"
        )
        return 404, "hub_model_not_found", message
    if answered == 403:
        return 403, "hub_refused", f"the hub refuses the server access to {repository!r}"
    reason = _shorten(exc.server_message or exc.response.reason_phrase)
    return 502, "hub_failed", f"the hub answered {answered}: {reason}; try again later"


def _shorten(reason: object) -> str:
    words = " ".join(str(reason).split()) or type(reason).__name__
    return _redact(words)[:_MAX_REASON_CHARACTERS]  # a token that is cut would not be found


def _redact(text: str) -> str:
    from huggingface_hub import get_token

    return redact(text, [get_token()])


def _limit_client(output: TextIO) -> None:
    from apps.hub.hub_client import use_limited_client

    use_limited_client(lambda: _report(output, "sending", value=True))


def _report(output: TextIO, name: str, value: object) -> None:
    print(json.dumps({name: value}), file=output, flush=True)


def _end(output: TextIO, name: str, value: object) -> NoReturn:
    _report(output, name, value)
    sys.stderr.flush()
    os._exit(0)  # skip the interpreter's shutdown: threads of the library may still run


def main() -> None:
    """Make the transfer that the command line names, and print its result."""
    parser = argparse.ArgumentParser(prog="python -m apps.hub.hub_process")
    parser.add_argument("--parent", type=int, help="end when this process, the parent, does")
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install")
    install.add_argument("repository")
    install.add_argument("folder", type=Path)
    install.add_argument("--revision")
    push = commands.add_parser("push")
    push.add_argument("folder", type=Path)
    push.add_argument("repository")
    push.add_argument("--private", action="store_true")
    options = parser.parse_args()
    if options.parent is not None:
        end_with_parent(options.parent)
    offer_for_killing()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries must not mix with the result
    repository, revision = options.repository, getattr(options, "revision", None)
    is_push = options.command == "push"
    try:
        _limit_client(output)
        if is_push:
            result = _push(options.folder, repository, output, private=options.private)
        else:
            result = _download(repository, revision, options.folder, output)
    except Exception as exc:  # noqa: BLE001 - the process ends here
        failed = explain_failure(exc, repository, revision, is_push=is_push)
        failed["message"] = _redact(failed["message"])
        sys.stderr.write(_redact(traceback.format_exc()))
        _end(output, "failed", failed)
    _end(output, "done", result)


if __name__ == "__main__":
    main()
