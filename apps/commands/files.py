"""`tuneserve files`: rows to learn from, sent to an application and looked at there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.progress import wrap_file
from rich.table import Table

from apps.commands.connection import (
    DEFAULT_URL,
    AsJson,
    Connection,
    Url,
    fail,
    notes,
    print_json,
    say,
    show,
    show_size,
    show_time,
)

files = typer.Typer(help="Send files of rows, look at them, delete them.", no_args_is_help=True)

FileId = Annotated[str, typer.Argument(help="Id of a file.")]


@files.command()
def upload(
    path: Annotated[Path, typer.Argument(help="File of rows: JSON, JSONL or CSV.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send a file; its rows are then checked there, as `show` tells."""
    file = send_file(Connection(url), path)
    show(file, as_json, lambda sent: sent["id"])


@files.command("list")
def list_files(
    purpose: Annotated[str | None, typer.Option(help="Only those of this purpose.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show all files, newest first."""
    params = {"purpose": purpose} if purpose else {}
    show(Connection(url).list_all("/v1/files", params=params), as_json, _render_files)


@files.command("show")
def show_file(file_id: FileId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a file: whether its rows can be used, and how many tokens they are."""
    show(Connection(url).ask("GET", f"/v1/files/{file_id}"), as_json, _render_file)


@files.command()
def download(
    file_id: FileId,
    target: Annotated[Path | None, typer.Argument(help="A new file; else it is printed.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Fetch the content of a file, as of the figures that a job leaves."""
    if target is not None and target.exists():
        fail(f"{str(target)!r} is there already; choose another name")
    output = typer.get_binary_stream("stdout")
    path = f"/v1/files/{file_id}/content"
    with Connection(url).stream("GET", path) as answer, open_output(target, output) as file:
        for piece in answer.iter_bytes():
            file.write(piece)


@files.command()
def delete(file_id: FileId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a file that no job needs."""
    answer = Connection(url).ask("DELETE", f"/v1/files/{file_id}")
    if as_json:
        print_json(answer)
    else:
        say(f"deleted {file_id}")


def send_file(connection: Connection, path: Path) -> dict[str, Any]:
    """Send a file of rows, and return its record."""
    if not path.is_file():
        fail(f"there is no file {str(path)!r}")
    with path.open("rb") as raw:
        size = path.stat().st_size
        with wrap_file(
            raw, size, description=f"Sending {path.name}", console=notes, transient=True
        ) as content:
            answer: dict[str, Any] = connection.ask(
                "POST",
                "/v1/files",
                data={"purpose": "fine-tune"},
                files={"file": (path.name, content)},
                timeout=None,
            )
    return answer


@contextmanager
def open_output(target: Path | None, otherwise: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open a file to write to, which is there only once it is whole; or another output."""
    if target is None:
        yield otherwise
        return
    building = target.with_name(f".{target.name}.part")
    try:
        with building.open("wb") as file:
            yield file
        building.rename(target)
    finally:
        building.unlink(missing_ok=True)


def _render_files(found: list[dict[str, Any]]) -> Table:
    table = Table("file", "name", "size", "sent", "status")
    for file in found:
        table.add_row(
            file["id"],
            file["filename"],
            show_size(file["bytes"]),
            show_time(file["created_at"]),
            file["status"],
        )
    return table


def _render_file(file: dict[str, Any]) -> Table:
    table = Table(show_header=False)
    check = file.get("check") or {}
    rows = {
        "file": file["id"],
        "name": file["filename"],
        "size": show_size(file["bytes"]),
        "sent": show_time(file["created_at"]),
        "status": file["status"],
        "why": file["status_details"],
        "rows": check.get("num_rows"),
        "format": check.get("format"),
        "tokens": check and f"{check['num_tokens']:,} of {check['model']}",
        "learned": check and f"{check['learned_share']:.0%} of them",
    }
    for name, value in rows.items():
        if value not in (None, {}):
            table.add_row(name, str(value))
    return table
