import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from apps.fine_tuning.index.run_lookup import name_model
from apps.http_api.dependencies import Services
from apps.hub.settings import HubSettings
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.apps.cli.conftest import Call
from tests.apps.conftest import add_job
from tests.apps.hub.conftest import TOKEN, hub
from tests.apps.hub.fake_hub import FakeHub
from tests.peft_adapters import write_adapter

__all__ = ["hub"]


@pytest.fixture
def store(services: Services) -> ModelStore:
    return services.models


def test_model_is_added_promoted_rolled_back_and_deleted(
    call: Call, store: ModelStore, tiny_model: Path
) -> None:
    assert call("models", "add", str(tiny_model), "mine") == (0, "added mine")
    assert call("models", "verify", "mine") == (0, "mine matches what was published")
    assert call("models", "promote", "latest", "mine") == (0, "latest points to mine")
    status, output = call("models", "delete", "mine")
    assert (status, "'mine' is what 'latest' points to" in output) == (1, True)
    assert call("models", "rollback", "latest") == (0, "latest points to tiny")
    assert call("models", "delete", "mine") == (0, "deleted mine")
    assert [model.id for model in store.list_models()] == ["tiny"]
    status, output = call("models", "list")
    assert (status, "tiny" in output, "latest" in output) == (0, True, True)
    assert json.loads(call("models", "show", "latest", "--json")[1])["id"] == "tiny"
    assert call("models", "show", "latest")[0] == 0


def test_failed_export_leaves_no_file(
    call: Call, layout: StorageLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("models", "export", "latest", "tiny.tar") == (0, "wrote tiny.tar")
    with tarfile.open("tiny.tar") as file:
        names = {Path(name).name for name in file.getnames()}
    assert names == {path.name for path in layout.model("tiny").iterdir()}
    status, output = call("models", "export", "tiny", "tiny.tar")
    assert (status, "already exists" in output) == (1, True)
    assert call("models", "export", "nope", "nope.zip")[0] == 1
    assert call("models", "export", "tiny", "tiny.rar")[0] == 1
    assert [path.name for path in tmp_path.glob("*.*")] == ["tiny.tar"]


def test_model_archive_is_imported_like_folder(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("models", "export", "tiny", "tiny.zip")[0] == 0
    assert call("models", "add", "tiny.zip", "again") == (0, "added again")
    assert call("models", "verify", "again")[0] == 0


def test_adapter_is_merged(call: Call, store: ModelStore, tiny_model: Path, tmp_path: Path) -> None:
    store.add(write_adapter(tiny_model, tmp_path / "adapter"), "adapted", base_id="tiny")
    assert call("models", "merge", "adapted", "whole") == (0, "merged adapted into whole")
    assert not store.get("whole").is_adapter
    assert call("models", "verify", "whole")[0] == 0
    status, output = call("models", "merge", "tiny", "other")
    assert (status, "'tiny' is a complete model" in output) == (1, True)


def test_verify_of_damaged_model_names_file(call: Call, layout: StorageLayout) -> None:
    config = layout.model("tiny") / "config.json"
    config.write_text(config.read_text() + " ")
    status, output = call("models", "verify", "tiny")
    assert (status, "'config.json' differs from its manifest" in output) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "/nowhere", "mine"),
        ("delete", "nope"),
        ("promote", "a b", "tiny"),
        ("promote", "tiny", "tiny"),
        ("rollback", "latest"),
        ("verify", "nope"),
        ("push", "nope", "me/nope"),
        ("show", "nope"),
    ],
)
def test_invalid_models_command_prints_error(call: Call, arguments: tuple[str, ...]) -> None:
    status, output = call("models", *arguments)
    assert status == 1
    assert output.startswith("error: ")


def test_alias_cannot_take_model_name_reserved_by_job(call: Call, layout: StorageLayout) -> None:
    record = add_job(layout, "tiny").read_record()
    status, output = call("models", "promote", name_model(record), "tiny")
    assert (status, "is what job 'ftjob-000001' calls its model" in output) == (1, True)


def test_adapter_is_added_with_its_base_and_listed(
    call: Call, layout: StorageLayout, tmp_path: Path
) -> None:
    adapter = write_adapter(layout.model("tiny"), tmp_path / "adapter")
    status, output = call("models", "add", str(adapter), "mine")
    assert (status, "the adapter names no base model" in output) == (1, True), output
    status, output = call("models", "add", str(adapter), "mine", "--base", "latest")
    assert (status, "added mine" in output) == (0, True), output
    _, output = call("models", "list")
    assert "mine adapter" in output
    assert "tiny model" in output
    status, output = call("models", "show", "mine")
    assert status == 0
    assert "kind adapter" in output
    assert "base model tiny" in output
    status, output = call("models", "delete", "tiny")
    assert status == 1


@pytest.fixture
def services(services: Services) -> Services:
    return replace(services, hub=HubSettings(install=("org/*",), push=("me/*",)))


@pytest.mark.usefixtures("preloaded_check")
def test_model_is_installed_from_the_hub_and_pushed_by_the_server(
    call: Call, store: ModelStore, hub: FakeHub, tiny_model: Path
) -> None:
    hub.add("org/small", tiny_model)
    installed = call("models", "install", "org/small", "--id", "mine", "--revision", "v1")
    assert installed == (0, "installed mine from org/small")
    store.get("mine").verify()
    status, output = call("models", "push", "mine", "me/tuned", "--from-server")
    assert (status, output) == (0, f"{hub.url}/me/tuned/commit/{'1' * 40}")
    assert "model.safetensors" in hub.files
    assert hub.tokens == {f"Bearer {TOKEN}"}
    status, output = call("models", "transfers")
    assert status == 0
    assert "push mine me/tuned" in output
    assert "install mine org/small" in output
    listed = json.loads(call("models", "transfers", "--json")[1])
    assert [one["kind"] for one in listed] == ["push", "install"]
    status, output = call("models", "transfers", "--cancel", listed[0]["id"])
    assert (status, "has ended already: it succeeded" in output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("install", "other/x"), "this server does not permit 'other/x'"),
        (("install", "org/gone"), "there is no model 'org/gone' on the hub"),
        (("push", "tiny", "you/x", "--from-server"), "this server does not permit 'you/x'"),
    ],
)
def test_refused_transfer_ends_the_command_with_the_reason(
    call: Call, hub: FakeHub, arguments: tuple[str, ...], message: str
) -> None:
    status, output = call("models", *arguments)
    assert status == 1
    assert output.startswith("error: ")
    assert message in output
    assert TOKEN not in output
