"""`tuneserve files`: upload, list, show, download and delete an application's files of rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import wrap_file

from apps.cli.connection import DEFAULT_URL, AsJson, Connection, Url, locate
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

files = typer.Typer(help="Send files of rows, look at them, delete them.", no_args_is_help=True)

FILES = "/v1/files"
FileId = Annotated[str, typer.Argument(help="Id of a file.")]


@files.command()
def upload(
    path: Annotated[
        Path, typer.Argument(help="File of rows, in any kind of file that training takes.")
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload a file; the application then checks its rows, and `show` prints the result."""
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
    show(Connection(url).list_all(FILES, params=params), as_json, _render_files)


@files.command("show")
def show_file(file_id: FileId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a file: whether its rows can be used, and how many tokens they have."""
    show(Connection(url).ask("GET", locate(FILES, file_id)), as_json, _render_file)


@files.command()
def download(
    file_id: FileId,
    target: Annotated[Path | None, typer.Argument(help="A new file; else it is printed.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Download the content of a file, such as the metrics of a job."""
    if target is None and as_json:
        fail("--json needs a file to write to: tuneserve files download FILE TARGET --json")
    if target is not None and target.exists():
        fail(f"{str(target)!r} is there already; choose another name")
    with Connection(url).stream("GET", locate(FILES, file_id, "content")) as answer:
        if target is None:
            write_bytes(answer.iter_bytes())
        else:
            save(answer.iter_bytes(), target)
    if as_json:
        print_json({"id": file_id, "path": str(target)})


@files.command()
def delete(file_id: FileId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a file that no job needs."""
    answer = Connection(url).ask("DELETE", locate(FILES, file_id))
    show(answer, as_json, lambda _: f"deleted {file_id}")


def send_file(connection: Connection, path: Path) -> dict[str, Any]:
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
            answer: dict[str, Any] = connection.ask(
                "POST",
                FILES,
                data={"purpose": "fine-tune"},
                files={"file": (path.name, content)},
                timeout=None,
            )
    return answer


def save(pieces: Iterator[bytes], target: Path) -> None:
    """Write a new file under a temporary name, and rename it once it is complete."""
    building = target.with_name(f".{target.name}.part")
    try:
        with building.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        building.rename(target)
    finally:
        building.unlink(missing_ok=True)


def _render_files(found: list[dict[str, Any]]) -> Rows:
    cells = [
        (
            file["id"],
            file["filename"],
            show_size(file["bytes"]),
            show_time(file["created_at"]),
            file["status"],
        )
        for file in found
    ]
    return Rows(cells, ("file", "name", "size", "sent", "status"))


def _render_file(file: dict[str, Any]) -> Rows:
    check = file.get("check") or {}
    properties = {
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
        "not used": ", ".join(
            f"{name} ({count:,} rows)" for name, count in (check.get("ignored_keys") or {}).items()
        ),
    }
    return Rows([(name, str(value)) for name, value in properties.items() if value])
