"""`tuneserve files`: upload, list, show, download and delete an application's files of rows."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import wrap_file

from apps.cli.connection import DEFAULT_URL, AsJson, Url, run_with_api
from apps.cli.output import (
    Rows,
    escape_controls,
    fail,
    notes,
    print_json,
    show,
    show_size,
    show_time,
    write_bytes,
)
from apps.client.client import ApiClient
from apps.client.resources import File

files = typer.Typer(help="Upload, show, download and delete files of rows.", no_args_is_help=True)

FileId = Annotated[str, typer.Argument(help="Id of a file.")]


@files.command()
def upload(
    path: Annotated[
        Path, typer.Argument(help="File of rows, in any format that training accepts.")
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload a file; the application then checks its rows, and `show` prints the result."""
    file = run_with_api(url, lambda api: send_file(api, path))
    show(file.raw, as_json, lambda: file.id)


@files.command("list")
def list_files(
    purpose: Annotated[str | None, typer.Option(help="Only files with this purpose.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show all files, newest first."""
    found = run_with_api(url, lambda api: api.files.list_all(purpose))
    show([file.raw for file in found], as_json, lambda: _render_files(found))


@files.command("show")
def show_file(file_id: FileId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a file: whether its rows can be used, and how many tokens they have."""
    file = run_with_api(url, lambda api: api.files.get(file_id))
    show(file.raw, as_json, lambda: _render_file(file))


@files.command()
def download(
    file_id: FileId,
    target: Annotated[
        Path | None, typer.Argument(help="A new file; by default the content is printed.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Download the content of a file, such as the metrics of a job."""
    if target is None and as_json:
        fail("--json needs a file to write to: tuneserve files download FILE TARGET --json")
    if target is not None and target.exists():
        fail(f"{str(target)!r} already exists; choose another name")

    async def fetch(api: ApiClient) -> None:
        async with api.files.download(file_id) as pieces:
            if target is None:
                await write_bytes(pieces)
            else:
                await save(pieces, target)

    run_with_api(url, fetch)
    if as_json:
        print_json({"id": file_id, "path": str(target)})


@files.command()
def delete(file_id: FileId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a file that no job needs."""
    answer = run_with_api(url, lambda api: api.files.delete(file_id))
    show(answer, as_json, lambda: f"deleted {file_id}")


async def send_file(api: ApiClient, path: Path) -> File:
    """Upload a file of rows, and return its record."""
    if not path.is_file():
        fail(f"there is no file {str(path)!r}")
    try:
        raw = path.open("rb")
    except OSError as exc:
        fail(exc)
    with raw:
        size = path.stat().st_size
        what = f"Sending {escape_controls(path.name)}"
        with wrap_file(raw, size, description=what, console=notes, transient=True) as content:
            return await api.files.upload(path.name, content)


async def save(pieces: AsyncIterator[bytes], target: Path) -> None:
    """Write a new file under a temporary name, and rename it once it is complete."""
    building = target.with_name(f".{target.name}.part")
    try:
        with building.open("wb") as file:
            async for piece in pieces:
                file.write(piece)
        building.rename(target)
    finally:
        building.unlink(missing_ok=True)


def _render_files(found: list[File]) -> Rows:
    cells = [
        (
            file.id,
            file.filename,
            show_size(file.bytes),
            show_time(file.created_at),
            file.status or "",
        )
        for file in found
    ]
    return Rows(cells, ("file", "name", "size", "sent", "status"))


def _render_file(file: File) -> Rows:
    check = file.check
    properties: dict[str, str | None] = {
        "file": file.id,
        "name": file.filename,
        "size": show_size(file.bytes),
        "sent": show_time(file.created_at),
        "status": file.status,
        "why": file.status_details,
    }
    if check is not None:
        properties |= {
            "rows": str(check.num_rows or ""),
            "format": check.format,
            "tokens": f"{check.num_tokens:,} of {check.model}" if check.num_tokens else None,
            "learned": f"{check.learned_share:.0%} of them" if check.num_tokens else None,
            "labels": ", ".join(
                f"{label} ({count:,} rows)" for label, count in check.label_counts.items()
            ),
            "not used": ", ".join(
                f"{name} ({count:,} rows)" for name, count in check.ignored_keys.items()
            ),
        }
    return Rows([(name, value) for name, value in properties.items() if value])
