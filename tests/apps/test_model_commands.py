"""`tuneserve models` as somebody types it."""

import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apps.cli import cli
from apps.runs import name_model
from serving.model_store import ModelStore
from storage.layout import StorageLayout
from tests.apps.conftest import add_job


def call(layout: StorageLayout, *arguments: str) -> tuple[int, str]:
    """Run a command; returns its exit status and what it said."""
    done = CliRunner().invoke(cli, ["models", *arguments, "--storage", str(layout.root)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


def test_a_model_is_added_promoted_rolled_back_and_deleted(
    layout: StorageLayout, tiny_model: Path
) -> None:
    store = ModelStore(layout)
    assert call(layout, "add", str(tiny_model), "mine") == (0, "added mine")
    assert call(layout, "verify", "mine") == (0, "mine is as it was published")
    assert call(layout, "promote", "latest", "mine") == (0, "latest points to mine")
    status, said = call(layout, "delete", "mine")
    assert (status, "'mine' is what 'latest' points to" in said) == (1, True)
    assert call(layout, "roll-back", "latest") == (0, "latest points to tiny")
    assert call(layout, "delete", "mine") == (0, "deleted mine")
    assert [model.id for model in store.list_models()] == ["tiny"]
    status, said = call(layout, "list")
    assert (status, "tiny" in said, "latest" in said) == (0, True, True)


def test_an_export_is_whole_or_not_there(
    layout: StorageLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archive = tmp_path / "tiny.tar"
    assert call(layout, "export", "tiny", "tiny.tar") == (0, "wrote tiny.tar")
    with tarfile.open(archive) as file:
        names = {Path(name).name for name in file.getnames()}
    assert names == {path.name for path in layout.model("tiny").iterdir()}
    status, said = call(layout, "export", "tiny", "tiny.tar")
    assert (status, "is there already" in said) == (1, True)
    assert call(layout, "export", "nope", "nope.zip")[0] == 1
    assert call(layout, "export", "tiny", "tiny.rar")[0] == 1
    assert [path.name for path in tmp_path.glob("*.*")] == ["tiny.tar"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "/nowhere", "mine"),
        ("add", "/nowhere", "../mine"),
        ("delete", "nope"),
        ("promote", "a b", "tiny"),
        ("promote", "tiny", "tiny"),
        ("roll-back", "latest"),
        ("verify", "nope"),
        ("push", "nope", "me/nope"),
    ],
)
def test_what_cannot_be_done_is_said(layout: StorageLayout, arguments: tuple[str, ...]) -> None:
    status, said = call(layout, *arguments)
    assert status == 1
    assert said.startswith("error: ")


def test_an_alias_takes_no_name_that_a_job_needs(layout: StorageLayout) -> None:
    record = add_job(layout, "tiny").read_record()
    status, said = call(layout, "promote", name_model(record), "tiny")
    assert (status, "is what job 'ftjob-000001' calls its model" in said) == (1, True)
