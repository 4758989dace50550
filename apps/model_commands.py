"""`tuneserve models`: the model store from the command line of the machine that it is on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from apps.errors import ApiError
from apps.runs import check_new_model, check_unreserved, delete_unneeded_model
from serving.aliases import find_names
from serving.errors import ServingError
from serving.model_store import ModelStore
from storage.layout import DEFAULT_ROOT, open_storage
from storage.scratch import build_in_scratch

models = typer.Typer(help="List, add, delete, promote and export models.", no_args_is_help=True)

_console = Console(stderr=True)

Storage = Annotated[str, typer.Option(help="The storage root, as deploy.yaml has it.")]


@models.command("list")
def list_models(storage: Storage = DEFAULT_ROOT) -> None:
    """Show all models, oldest first, and where the aliases point."""
    store = _open(storage)
    aliases = store.read_aliases()
    table = Table("model", "made", "from", "step", "aliases")
    for model in store.list_models():
        table.add_row(
            model.id,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(model.created_at)),
            model.lineage.base_model or "",
            "" if model.lineage.checkpoint_step is None else str(model.lineage.checkpoint_step),
            ", ".join(find_names(aliases, model.id)),
        )
    Console().print(table)


@models.command()
def add(source: Path, model_id: str, storage: Storage = DEFAULT_ROOT) -> None:
    """Copy the folder of a Hugging Face model into the store."""
    with _say_why(), _console.status(f"Copying {source}"):
        check_new_model(open_storage(storage), model_id)
        _open(storage).add(source, model_id)
    _say(f"added {model_id}")


@models.command()
def delete(model_id: str, storage: Storage = DEFAULT_ROOT) -> None:
    """Delete a model that nothing points to and nobody uses."""
    with _say_why():
        delete_unneeded_model(open_storage(storage), model_id)
    _say(f"deleted {model_id}")


@models.command()
def promote(alias: str, model_id: str, storage: Storage = DEFAULT_ROOT) -> None:
    """Point an alias to a model."""
    with _say_why():
        check_unreserved(open_storage(storage), alias)
        _open(storage).point_alias(alias, model_id)
    _say(f"{alias} points to {model_id}")


@models.command("roll-back")
def roll_back(alias: str, storage: Storage = DEFAULT_ROOT) -> None:
    """Point an alias to the model before."""
    with _say_why():
        moved = _open(storage).roll_back_alias(alias)
    _say(f"{alias} points to {moved.model_id}")


@models.command()
def verify(model_id: str, storage: Storage = DEFAULT_ROOT) -> None:
    """Compare every file of a model with its manifest."""
    with _say_why(), _console.status("Reading every file"):
        _open(storage).get(model_id).verify()
    _say(f"{model_id} is as it was published")


@models.command()
def export(
    model_id: str,
    archive: Annotated[Path, typer.Argument(help="A new .tar or .zip file.")],
    storage: Storage = DEFAULT_ROOT,
) -> None:
    """Write a model into one file."""
    from serving.model_export import stream_archive

    if archive.suffix not in (".tar", ".zip"):
        _fail(f"{archive.name!r}: expected a name that ends in .tar or .zip")
    if archive.exists():
        _fail(f"{str(archive)!r} is there already; choose another name")
    with _say_why():
        model = _open(storage).resolve(model_id)
        pieces = stream_archive(model, "zip" if archive.suffix == ".zip" else "tar")
        with build_in_scratch(archive.resolve().parent, f".{archive.name}.") as folder:
            with (folder / archive.name).open("wb") as file:
                for chunk in track(pieces, "Writing", console=_console, transient=True):
                    file.write(chunk)
            (folder / archive.name).rename(archive)
    _say(f"wrote {archive}")


@models.command()
def push(
    model_id: str,
    repository: Annotated[str, typer.Argument(help="owner/name on the Hugging Face hub.")],
    public: Annotated[bool, typer.Option(help="Let everybody see it.")] = False,
    storage: Storage = DEFAULT_ROOT,
) -> None:
    """Upload a model to the Hugging Face hub, with the token of `hf auth login` or HF_TOKEN."""
    from serving.model_export import push_to_hub

    with _say_why():
        address = push_to_hub(_open(storage).resolve(model_id), repository, private=not public)
    _say(address)


def _open(storage: str) -> ModelStore:
    return ModelStore(open_storage(storage))


@contextmanager
def _say_why() -> Iterator[None]:
    """End with the reason, not with a trace, where the store or the hub refuses."""
    try:
        yield
    except (ApiError, ServingError, ValueError, OSError) as exc:  # the hub's are OSErrors
        _fail(exc)


def _say(message: str) -> None:
    Console().print(message, markup=False, highlight=False)


def _fail(reason: object) -> NoReturn:
    _console.print(f"error: {reason}", markup=False, highlight=False)
    raise typer.Exit(1)
