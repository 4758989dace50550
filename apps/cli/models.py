"""`tuneserve models`: the models and aliases of an application."""

import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from apps.cli.connection import DEFAULT_URL, AsJson, Connection, Url, locate
from apps.cli.files import save
from apps.cli.output import Rows, fail, notes, show, show_time

models = typer.Typer(help="List, add, promote, export and delete models.", no_args_is_help=True)

MODELS, ALIASES = "/v1/models", "/v1/aliases"
_CHUNK_BYTES = 1 << 20
ModelId = Annotated[str, typer.Argument(help="Id or alias of a model.")]
AliasName = Annotated[str, typer.Argument(help="An alias, as in 'latest'.")]


@models.command("list")
def list_models(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show all models with their aliases, newest first."""
    show(Connection(url).list_all(MODELS), as_json, _render_models)


@models.command("show")
def show_model(model_id: ModelId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a model and its lineage."""
    connection = Connection(url)
    model = connection.ask("GET", locate(MODELS, model_id))
    model["lineage"] = connection.ask("GET", locate(MODELS, model_id, "lineage"))
    show(model, as_json, _render_model)


@models.command()
def add(
    source: Annotated[Path, typer.Argument(help="Folder of a Hugging Face model, or .tar/.zip.")],
    model_id: Annotated[str, typer.Argument(help="Its id.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload an external model."""
    if not source.exists():
        fail(f"there is no {str(source)!r}")
    pieces = _pack(source, model_id) if source.is_dir() else _read(source)
    sent = _count("Sending", pieces)
    model = Connection(url).ask("PUT", locate(MODELS, model_id), content=sent, timeout=None)
    show(model, as_json, lambda added: f"added {added['id']}")


@models.command()
def delete(model_id: ModelId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a model that no alias points to and that is not in use."""
    answer = Connection(url).ask("DELETE", locate(MODELS, model_id))
    show(answer, as_json, lambda _: f"deleted {model_id}")


@models.command()
def promote(
    alias: AliasName, model_id: ModelId, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Point an alias to a model."""
    moved = Connection(url).ask("PUT", locate(ALIASES, alias), json={"model": model_id})
    show(moved, as_json, _say_alias)


@models.command()
def rollback(alias: AliasName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Point an alias to its previous model."""
    show(Connection(url).ask("POST", locate(ALIASES, alias, "rollback")), as_json, _say_alias)


@models.command()
def verify(model_id: ModelId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Compare every file of a model with what was published."""
    with notes.status("Reading every file"):
        answer = Connection(url).ask("POST", locate(MODELS, model_id, "verify"), timeout=None)
    show(answer, as_json, lambda _: f"{model_id} is as it was published")


@models.command()
def export(
    model_id: ModelId,
    archive: Annotated[Path, typer.Argument(help="A new .tar or .zip file.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Download a model as one archive."""
    if archive.suffix not in (".tar", ".zip"):
        fail(f"{archive.name!r}: expected a name that ends in .tar or .zip")
    if archive.exists():
        fail(f"{str(archive)!r} is there already; choose another name")
    _fetch(Connection(url), model_id, archive)
    show({"model": model_id, "path": str(archive)}, as_json, lambda _: f"wrote {archive}")


@models.command()
def push(
    model_id: ModelId,
    repository: Annotated[str, typer.Argument(help="owner/name on the Hugging Face hub.")],
    public: Annotated[bool, typer.Option(help="Let everybody see it.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload a model to the Hugging Face hub, with the token of `hf auth login` or HF_TOKEN."""
    connection = Connection(url)
    name = connection.ask("GET", locate(MODELS, model_id))["id"]
    from serving.store.archive import push_to_hub  # slow to import

    with tempfile.TemporaryDirectory(prefix="tuneserve-") as folder:
        archive = Path(folder) / f"{name}.tar"
        _fetch(connection, name, archive)
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        try:
            place = push_to_hub(Path(folder) / name, repository, private=not public)
        except (OSError, ValueError) as exc:  # the hub's refusals are OSErrors
            fail(exc)
    show({"model": name, "url": place}, as_json, lambda pushed: str(pushed["url"]))


def _fetch(connection: Connection, model_id: str, archive: Path) -> None:
    params = {"format": archive.suffix.removeprefix(".")}
    path = locate(MODELS, model_id, "archive")
    with connection.stream("GET", path, params=params) as answer:
        save(_count("Fetching", answer.iter_bytes()), archive)


def _pack(folder: Path, name: str) -> Iterator[bytes]:
    from serving.store.archive import stream_folder  # slow to import

    return stream_folder(folder, name)


def _read(archive: Path) -> Iterator[bytes]:
    with archive.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            yield piece


def _count(what: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces unchanged, and show the number of bytes as progress."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=notes, transient=True) as bar:
        task = bar.add_task(what, total=None)
        for piece in pieces:
            bar.advance(task, len(piece))
            yield piece


def _say_alias(alias: dict[str, Any]) -> str:
    return f"{alias['id']} points to {alias['model']}"


def _render_models(found: list[dict[str, Any]]) -> Rows:
    cells = [
        (
            model["id"],
            show_time(model["created"]),
            "" if model["checkpoint_step"] is None else str(model["checkpoint_step"]),
            ", ".join(model["aliases"]),
            model["run_id"] or "",
        )
        for model in found
    ]
    return Rows(cells, ("model", "made", "step", "aliases", "by job"))


def _render_model(model: dict[str, Any]) -> Rows:
    cells = [
        ("model", model["id"]),
        ("made", show_time(model["created"])),
        ("aliases", ", ".join(model["aliases"]) or "none"),
    ]
    lineage = model["lineage"].items()
    return Rows([*cells, *((name.replace("_", " "), str(value)) for name, value in lineage)])
