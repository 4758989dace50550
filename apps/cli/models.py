"""`tuneserve models`: the models and aliases of an application."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from apps.cli.archives.model_export import export, show_progress, unpack_model
from apps.cli.connection import DEFAULT_URL, AsJson, Url, run_with_api
from apps.cli.output import Rows, escape_controls, fail, notes, show, show_size, show_time
from apps.client.client import ApiClient
from apps.client.model_resources import HubTransfer, Model, ModelAlias

models = typer.Typer(help="List, add, promote, export and delete models.", no_args_is_help=True)

_CHUNK_BYTES = 1 << 20
_INTERRUPTED = 130  # the shells' exit status for Ctrl-C
ModelId = Annotated[str, typer.Argument(help="Id or alias of a model.")]
AliasName = Annotated[str, typer.Argument(help="An alias, as in 'latest'.")]


@models.command("list")
def list_models(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show all models with their aliases, newest first."""
    found = run_with_api(url, lambda api: api.models.list_all())
    show([model.raw for model in found], as_json, lambda: _render_models(found))


@models.command("show")
def show_model(model_id: ModelId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a model and its lineage."""

    async def read(api: ApiClient) -> tuple[Model, Mapping[str, object]]:
        return await api.models.get(model_id), await api.models.get_lineage(model_id)

    model, lineage = run_with_api(url, read)
    show({**model.raw, "lineage": lineage}, as_json, lambda: _render_model(model, lineage))


@models.command()
def add(
    source: Annotated[
        Path, typer.Argument(help="Folder of a Hugging Face model or a PEFT adapter, or .tar/.zip.")
    ],
    model_id: Annotated[str, typer.Argument(help="Its id.")],
    base: Annotated[
        str | None, typer.Option(help="Id or alias of an adapter's base model.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload an external model, or an adapter of a model that is there."""
    if not source.exists():
        fail(f"{str(source)!r} does not exist")
    pieces = _pack(source, model_id) if source.is_dir() else _read(source)
    sent = show_progress("Sending", _iterate(pieces))
    model = run_with_api(url, lambda api: api.models.add(model_id, sent, base))
    show(model.raw, as_json, lambda: f"added {model.id}")


@models.command()
def delete(model_id: ModelId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a model that no alias points to and that is not in use."""
    answer = run_with_api(url, lambda api: api.models.delete(model_id))
    show(answer, as_json, lambda: f"deleted {model_id}")


@models.command()
def promote(
    alias: AliasName, model_id: ModelId, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Point an alias to a model."""
    moved = run_with_api(url, lambda api: api.aliases.point(alias, model_id))
    show(moved.raw, as_json, lambda: _describe_alias(moved))


@models.command()
def rollback(alias: AliasName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Point an alias to its previous model."""
    moved = run_with_api(url, lambda api: api.aliases.roll_back(alias))
    show(moved.raw, as_json, lambda: _describe_alias(moved))


@models.command()
def verify(model_id: ModelId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Compare every file of a model with what was published."""
    with notes.status("Reading every file"):
        answer = run_with_api(url, lambda api: api.models.verify(model_id))
    show(answer, as_json, lambda: f"{model_id} matches what was published")


@models.command()
def merge(
    adapter: Annotated[str, typer.Argument(help="Id of an adapter, or an alias.")],
    model_id: Annotated[str, typer.Argument(help="Id of the new model.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Merge an adapter into its base model: a complete model, of which every tensor is verified."""
    with notes.status("Merging and verifying"):
        model = run_with_api(url, lambda api: api.models.merge(adapter, model_id))
    show(model.raw, as_json, lambda: f"merged {adapter} into {model.id}")


models.command()(export)


@models.command()
def install(
    source: Annotated[str, typer.Argument(help="Id on the Hugging Face hub: owner/name.")],
    model_id: Annotated[
        str | None, typer.Option("--id", help="Its id here; default: the last part of SOURCE.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="A branch, a tag, or the hash of a commit.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Id or alias of an adapter's base model.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Have the server install a model of the hub, if its operator permits the model.

    Waits until it is installed. Ctrl-C stops waiting, not the installation.
    """
    ended = _transfer(
        url,
        lambda api: api.hub.install(source, revision=revision, model_id=model_id, base_model=base),
    )
    show(ended.raw, as_json, lambda: f"installed {ended.model} from {ended.repository}")


@models.command()
def push(
    model_id: ModelId,
    repository: Annotated[str, typer.Argument(help="owner/name on the Hugging Face hub.")],
    public: Annotated[bool, typer.Option(help="Make the repository public.")] = False,
    from_server: Annotated[
        bool,
        typer.Option(
            "--from-server",
            help="Let the server upload, with its token, if its operator permits the repository.",
        ),
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload a model to the Hugging Face hub, with the token of `hf auth login` or HF_TOKEN."""
    if from_server:
        ended = _transfer(url, lambda api: api.hub.push(model_id, repository, private=not public))
        show(ended.raw, as_json, lambda: ended.url or "")
        return
    name = run_with_api(url, lambda api: api.models.get(model_id)).id
    from serving.store.export import push_to_hub  # slow to import

    with tempfile.TemporaryDirectory(prefix="tuneserve-") as folder:
        directory = unpack_model(url, name, Path(folder))
        try:
            place = push_to_hub(directory, repository, private=not public)
        except (OSError, ValueError) as exc:  # the hub's refusals are OSErrors
            fail(exc)
    show({"model": name, "url": place}, as_json, lambda: place)


@models.command()
def transfers(
    cancel: Annotated[
        str | None, typer.Option(metavar="ID", help="Cancel the transfer with this id.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List what the server has installed from the hub and pushed to it, newest first."""
    if cancel is not None:
        transfer = run_with_api(url, lambda api: api.hub.cancel(cancel))
        show(transfer.raw, as_json, lambda: f"cancelled {transfer.id}")
        return
    found = run_with_api(url, lambda api: api.hub.list_transfers())
    show([one.raw for one in found], as_json, lambda: _render_transfers(found))


def _transfer(url: str, begin: Callable[[ApiClient], Awaitable[HubTransfer]]) -> HubTransfer:
    """Begin a transfer, and wait until it has ended; a failure ends the command."""
    begun: list[str] = []

    async def work(api: ApiClient) -> HubTransfer:
        transfer = await begin(api)
        begun.append(transfer.id)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(
            *columns, console=notes, transient=True, disable=not notes.is_terminal
        ) as bar:
            task = bar.add_task(transfer.step, total=None)

            def report(now: HubTransfer) -> None:
                step = escape_controls(now.step.capitalize())
                bar.update(task, description=step, total=now.total_bytes, completed=now.bytes)

            return await api.hub.wait(transfer, report)

    try:
        ended = run_with_api(url, work)
    except KeyboardInterrupt:
        if begun:
            name = escape_controls(begun[0])
            notes.print(
                f"stopped waiting; {name} continues: 'tuneserve models transfers' shows it, and "
                f"'--cancel {name}' cancels it"
            )
        raise typer.Exit(_INTERRUPTED) from None
    if ended.status != "succeeded":
        fail(f"{ended.id} was cancelled")
    return ended


def _render_transfers(found: list[HubTransfer]) -> Rows:
    cells = [
        (
            one.id,
            one.kind,
            one.model,
            one.repository,
            show_time(one.created),
            one.step if one.is_running else one.status,
            show_size(one.bytes),
            one.error.message if one.error is not None else one.url or "",
        )
        for one in found
    ]
    names = ("transfer", "kind", "model", "on the hub", "begun", "state", "size", "")
    return Rows(cells, names)


def _pack(folder: Path, name: str) -> Iterator[bytes]:
    from serving.store.export import stream_folder  # slow to import

    return stream_folder(folder, name)


def _read(archive: Path) -> Iterator[bytes]:
    with archive.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            yield piece


async def _iterate(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _describe_alias(alias: ModelAlias) -> str:
    return f"{alias.id} points to {alias.model}"


def _render_models(found: list[Model]) -> Rows:
    cells = [
        (
            model.id,
            model.kind,
            show_time(model.created),
            "" if model.checkpoint_step is None else str(model.checkpoint_step),
            ", ".join(model.aliases),
            model.run_id or "",
        )
        for model in found
    ]
    return Rows(cells, ("model", "kind", "made", "step", "aliases", "by job"))


def _render_model(model: Model, lineage: Mapping[str, object]) -> Rows:
    cells = [
        ("model", model.id),
        ("kind", model.kind),
        ("made", show_time(model.created)),
        ("aliases", ", ".join(model.aliases) or "none"),
    ]
    origin = [(name.replace("_", " "), str(value)) for name, value in lineage.items()]
    return Rows([*cells, *origin])
