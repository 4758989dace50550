"""Models of the hub are installed and pushed over HTTP, by processes that use a small real hub."""

import json
import logging
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.fine_tuning.index.run_lookup import check_new_model
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.hub import transfer_notes, transfers
from apps.hub.settings import HubSettings
from apps.hub.transfer_notes import TransferNote, begin_transfer, write_transfer
from apps.settings import UsageLimits
from serving.errors import ModelInUseError
from serving.store import model_store
from serving.store.model_names import ModelNames
from serving.store.stored_model import StoredModel
from storage.layout import StorageLayout
from storage.versioned_json import NewerFormatError
from tests.apps.conftest import AppClient
from tests.apps.hub.conftest import TOKEN, hub, use_hub
from tests.apps.hub.fake_hub import COMMIT, FakeHub
from tests.damage import damage
from tests.peft_adapters import write_adapter

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("preloaded_check")]
__all__ = ["hub"]

TRANSFERS = "/v1/hub/transfers"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def services(services: Services) -> Services:
    permitted = HubSettings(install=("org/*", "plain", "old/name"), push=("me/*",))
    return replace(services, hub=permitted)


@pytest.fixture(autouse=True)
def no_secrets(services: Services, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that the token is in no log, and in no file of the storage."""
    caplog.set_level(logging.INFO)
    yield
    assert TOKEN not in caplog.text
    for path in services.layout.root.rglob("*.json"):
        assert TOKEN not in path.read_text(), path


def serve(services: Services) -> AppClient:
    return AppClient(build_http(services, api_key=None), "http://127.0.0.1:8000")


async def install(client: httpx.AsyncClient, source: str, **more: str) -> httpx.Response:
    return await client.post("/v1/models/install", json={"source": source, **more})


async def wait_for_end(client: httpx.AsyncClient, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    with anyio.fail_after(60):
        while True:
            response = await client.get(f"{TRANSFERS}/{answer.json()['id']}")
            assert TOKEN not in response.text
            found: dict[str, Any] = response.json()
            if found["status"] != "running":
                return found
            await anyio.sleep(0.05)


async def wait_for_bytes(
    client: httpx.AsyncClient, transfer_id: str, num_bytes: float = 1
) -> dict[str, Any]:
    with anyio.fail_after(30):
        while True:
            found: dict[str, Any] = (await client.get(f"{TRANSFERS}/{transfer_id}")).json()
            if found["bytes"] >= num_bytes or found["status"] != "running":
                return found
            await anyio.sleep(0.05)


def get_error(found: dict[str, Any]) -> tuple[int, str, str]:
    assert found["status"] == "failed", found
    error = found["error"]
    return error["status"], error["code"], error["message"]


async def test_model_is_installed_as_a_base(
    services: Services, client: AppClient, hub: FakeHub, tiny_model: Path
) -> None:
    repository = hub.add("org/Small-1", tiny_model)
    repository.files |= {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"}
    answer = await install(client, "org/Small-1", revision="v1")
    begun = answer.json()
    assert (begun["object"], begun["kind"], begun["model"]) == (
        "hub.transfer",
        "install",
        "Small-1",
    )
    assert (begun["status"], begun["repository"], begun["revision"]) == (
        *("running", "org/Small-1"),
        "v1",
    )
    ended = await wait_for_end(client, answer)
    assert (ended["status"], ended["error"], ended["commit"]) == ("succeeded", None, COMMIT)
    assert ended["bytes"] == ended["total_bytes"] > 100_000
    shown = (await client.get("/v1/models/Small-1")).json()
    assert (shown["base"], shown["kind"]) == (True, "model")
    model = services.models.get("Small-1")
    model.verify()
    names = {path.name for path in model.path.iterdir()}
    assert "model.safetensors" in names
    assert not names & {"modeling.py", "pytorch_model.bin", ".cache", ".log"}
    assert not [one for one in hub.requested if "modeling.py" in one or ".bin" in one]
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert list(services.layout.models.glob(".hub*")) == []
    listed = (await client.get(TRANSFERS)).json()["data"]
    assert [one["id"] for one in listed] == [begun["id"]]


async def test_adapter_is_installed_for_its_base(
    services: Services, client: AppClient, hub: FakeHub, tiny_model: Path, tmp_path: Path
) -> None:
    hub.add("org/tone", write_adapter(tiny_model, tmp_path / "a"))
    ended = await wait_for_end(client, await install(client, "org/tone", base_model="tiny"))
    assert ended["status"] == "succeeded", ended
    assert services.models.get_base(services.models.get("tone")).id == "tiny"


@pytest.mark.parametrize(
    ("body", "status", "param", "code", "message"),
    [
        ({"source": "other/x"}, 403, "source", "hub_not_permitted", "'other/x': its operator perm"),
        ({"source": "Org/x"}, 403, "source", "hub_not_permitted", "(hub.install in deploy.yaml)"),
        ({"source": "org"}, 403, "source", "hub_not_permitted", "'org/*', 'plain', 'old/name'"),
        ({"source": "../org/x"}, 400, "source", "invalid_value", "'../org/x' is no id of a model"),
        ({"source": "org/.."}, 400, "source", "invalid_value", "is no id of a model on the hub"),
        ({"source": "/tmp"}, 400, "source", "invalid_value", "is no id of a model on the hub"),
        ({"source": "~/x"}, 400, "source", "invalid_value", "is no id of a model on the hub"),
        (
            {"source": "org/x", "revision": "refs/pr/1"},
            400,
            "revision",
            "invalid_value",
            "'refs/pr",
        ),
        ({"source": "org/x", "revision": "../.."}, 400, "revision", "invalid_value", "'../..' is"),
        ({"source": "org/x", "id": "tiny"}, 409, "id", None, "'tiny' is published already"),
        ({"source": "org/tiny"}, 409, "id", None, "'tiny' is published already"),
        ({"source": "org/x", "id": "../x"}, 400, "id", None, "'../x' is not a valid id"),
        ({"source": "org/x", "id": "latest"}, 400, "id", None, "'latest' is the name of an alias"),
        ({"source": "org/x", "base_model": "nope"}, 400, "base_model", "model_not_found", "nope"),
        ({"source": "org/x", "token": "t"}, 400, "token", None, "token"),
        ({}, 400, "source", None, "source"),
    ],
)
async def test_invalid_installations_are_refused(
    services: Services,
    client: AppClient,
    hub: FakeHub,
    body: dict[str, str],
    status: int,
    param: str,
    code: str | None,
    message: str,
) -> None:
    answer = await client.post("/v1/models/install", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert message in error["message"]
    if code is not None:
        assert error["code"] == code
    assert hub.requested == []
    assert (await client.get(TRANSFERS)).json()["data"] == []
    assert list(services.layout.models.glob(".hub*")) == []


async def test_folder_in_the_working_directory_is_not_read(
    client: AppClient,
    hub: FakeHub,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org/local").symlink_to(tiny_model)
    monkeypatch.chdir(tmp_path)
    ended = await wait_for_end(client, await install(client, "org/local"))
    assert get_error(ended)[:2] == (404, "hub_model_not_found")


async def test_nothing_is_permitted_by_default(
    services: Services, hub: FakeHub, tiny_model: Path
) -> None:
    hub.add("org/x", tiny_model)
    async with serve(replace(services, hub=HubSettings())) as client:
        shown = (await client.get("/v1/hub")).json()
        assert shown == {"object": "hub", "install": [], "push": []}
        answer = await install(client, "org/x")
        pushed = await client.post("/v1/models/tiny/push", json={"repository": "me/x"})
    for answered, setting in ((answer, "hub.install"), (pushed, "hub.push")):
        message = answered.json()["error"]["message"]
        assert answered.status_code == 403
        assert f"its operator permits none ({setting} in deploy.yaml)" in message
    assert hub.requested == []


async def test_only_administrators_install_push_and_cancel(
    services: Services, client: AppClient, hub: FakeHub
) -> None:
    key = KeyStore(services.layout).create("trainer", Role.TRAIN).text
    headers = {"authorization": f"Bearer {key}"}
    for path, body in (
        ("/v1/models/install", {"source": "org/x"}),
        ("/v1/models/tiny/push", {"repository": "me/x"}),
        (f"{TRANSFERS}/transfer-{'0' * 24}/cancel", {}),
    ):
        answer = await client.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            403,
            "insufficient_permission",
        )
    for path in ("/v1/hub", TRANSFERS, f"{TRANSFERS}/transfer-{'0' * 24}"):
        shown = await client.get(path, headers=headers)
        assert (shown.status_code, shown.json()["error"]["code"]) == (
            403,
            "insufficient_permission",
        )


def _hold_only_pickles(hub: FakeHub, tiny_model: Path) -> None:
    repository = hub.add("org/x", tiny_model)
    repository.files["pytorch_model.bin"] = repository.files.pop("model.safetensors")


def _gate(hub: FakeHub, tiny_model: Path) -> None:
    hub.add("org/x", tiny_model, is_gated=True)


def _add_code(hub: FakeHub, tiny_model: Path) -> None:
    repository = hub.add("org/x", tiny_model)
    config = json.loads(repository.files["config.json"])
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Model"}
    repository.files["config.json"] = json.dumps(config).encode()


def _damage(hub: FakeHub, tiny_model: Path) -> None:
    repository = hub.add("org/x", tiny_model)
    content = bytearray(repository.files["model.safetensors"])
    content[-1] ^= 1
    repository.sent = {"model.safetensors": bytes(content)}


def _cut(hub: FakeHub, tiny_model: Path) -> None:
    repository = hub.add("org/x", tiny_model)
    repository.sent = {"model.safetensors": repository.files["model.safetensors"][:-9]}


def _move(hub: FakeHub, tiny_model: Path) -> None:
    hub.add("stranger/x", tiny_model)
    hub.redirects["org/x"] = "stranger/x"


def _list_nothing(hub: FakeHub, tiny_model: Path) -> None:
    hub.add("org/y", tiny_model)


@pytest.mark.parametrize(
    ("prepare", "status", "code", "message"),
    [
        (_list_nothing, 404, "hub_model_not_found", "there is no model 'org/x' on the hub, or"),
        (_gate, 403, "hub_refused", "'org/x' is gated, and the server's token has no access"),
        (_hold_only_pickles, 400, "not_installable", "only pickled ones: 'pytorch_model.bin'"),
        (_add_code, 400, "invalid_value", "auto_map"),
        (_damage, 502, "download_damaged", "its SHA-256 is not the one that the hub lists"),
        (_cut, 502, "download_damaged", "was damaged during the download"),
        (_move, 403, "hub_not_permitted", "this server does not permit 'stranger/x': its operator"),
    ],
)
async def test_failed_installation_has_the_reason_and_publishes_nothing(
    services: Services,
    client: AppClient,
    hub: FakeHub,
    tiny_model: Path,
    prepare: Any,
    status: int,
    code: str,
    message: str,
) -> None:
    prepare(hub, tiny_model)
    ended = await wait_for_end(client, await install(client, "org/x"))
    found = get_error(ended)
    assert found[:2] == (status, code), found
    assert message in found[2]
    assert str(services.layout.root) not in found[2]
    assert [model.id for model in services.models.list_models()] == ["tiny"]
    await wait_for_removal(services)


async def wait_for_removal(services: Services) -> None:
    """Wait until no transfer has a folder any more."""
    with anyio.fail_after(30):
        while list(services.layout.models.glob(".hub*")):
            await anyio.sleep(0.02)


async def test_renamed_repository_is_installed_under_the_id_that_is_asked_for(
    services: Services, client: AppClient, hub: FakeHub, tiny_model: Path
) -> None:
    hub.add("plain", tiny_model)
    hub.redirects["old/name"] = "plain"  # whose new name is permitted too
    ended = await wait_for_end(client, await install(client, "old/name", id="mine"))
    assert (ended["status"], ended["model"]) == ("succeeded", "mine")
    assert services.models.find("name") is None
    services.models.get("mine").verify()


async def test_unknown_revision_is_named(client: AppClient, hub: FakeHub, tiny_model: Path) -> None:
    hub.add("org/x", tiny_model)
    ended = await wait_for_end(client, await install(client, "org/x", revision="v2"))
    assert get_error(ended) == (
        *(404, "revision_not_found"),
        "'org/x' has no revision 'v2' on the hub",
    )


async def test_large_models_are_refused_before_their_download(
    services: Services, hub: FakeHub, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = hub.add("org/x", tiny_model)
    repository.sizes = {"model.safetensors": 60_000_000}
    async with serve(services) as client:
        ended = await wait_for_end(client, await install(client, "org/x"))
    status, code, message = get_error(ended)
    assert (status, code) == (413, "model_too_large")
    assert "bytes, and max_model_bytes is 10,000,000; choose a smaller model" in message

    stored = services.model_sizes.measure()
    limits = UsageLimits(max_model_store_bytes=stored + 1000)
    async with serve(replace(services, limits=limits, max_model_bytes=10**9)) as client:
        ended = await wait_for_end(client, await install(client, "org/x"))
    assert get_error(ended)[:2] == (507, "model_store_full")

    monkeypatch.setattr(transfers, "measure_free_disk", lambda _: 50_000_000)
    async with serve(replace(services, max_model_bytes=10**9)) as client:
        ended = await wait_for_end(client, await install(client, "org/x"))
    status, code, message = get_error(ended)
    assert (status, code) == (507, "disk_full")
    assert "the server's disk has 50,000,000 left for it" in message
    assert not [one for one in hub.requested if "/resolve/" in one]


async def test_hub_that_sends_more_than_it_lists_is_cut_off(
    client: AppClient,
    services: Services,
    hub: FakeHub,
    tiny_model: Path,
    release: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfers, "_EXTRA_BYTES", -1_000)  # as if it had sent as much
    repository = hub.add("org/x", tiny_model, hold=release)
    repository.sizes = {"model.safetensors": 2_000}
    ended = await wait_for_end(client, await install(client, "org/x"))
    status, code, message = get_error(ended)
    assert (status, code) == (502, "download_damaged")
    assert message.startswith("the hub sends more than the ")
    release.set()


async def test_disk_that_fills_up_is_reported(
    client: AppClient, hub: FakeHub, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> str:
        raise OSError(28, "No space left on device")

    hub.add("org/x", tiny_model)
    monkeypatch.setattr(transfers, "run_transfer", fill)
    ended = await wait_for_end(client, await install(client, "org/x"))
    assert get_error(ended)[:2] == (507, "disk_full")


async def test_unreachable_and_disabled_hubs_are_reported(
    client: AppClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hub(monkeypatch, "http://me:password@127.0.0.1:9")
    ended = await wait_for_end(client, await install(client, "org/x"))
    status, code, message = get_error(ended)
    assert (status, code) == (502, "hub_unreachable")
    assert "password" not in message
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ended = await wait_for_end(client, await install(client, "org/x"))
    assert get_error(ended)[:2] == (409, "hub_offline")


async def test_interrupted_download_fails_and_can_be_repeated(
    services: Services, client: AppClient, hub: FakeHub, tiny_model: Path
) -> None:
    repository = hub.add("org/x", tiny_model, breaks_after=1_000)
    ended = await wait_for_end(client, await install(client, "org/x"))
    assert get_error(ended)[0] == 502
    assert services.models.find("x") is None
    repository.breaks_after = None
    ended = await wait_for_end(client, await install(client, "org/x"))
    assert ended["status"] == "succeeded"


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_download_reserves_an_id_shows_its_progress_and_is_cancelled(
    services: Services,
    client: AppClient,
    hub: FakeHub,
    tiny_model: Path,
    release: threading.Event,
) -> None:
    hub.add("org/x", tiny_model, hold=release)
    answer = await install(client, "org/x")
    found = await wait_for_bytes(client, answer.json()["id"])
    assert found["step"] == "downloading"
    assert 0 < found["bytes"] < found["total_bytes"]
    again = await install(client, "org/y", id="x")
    assert again.status_code == 409
    assert again.json()["error"]["message"] == "'x' is being installed from the hub"
    with pytest.raises(Exception, match="^'x' is being installed from the hub$"):
        check_new_model(services.layout, services.runs, "x")  # as publish_checkpoint does
    assert (await client.put("/v1/aliases/x", json={"model": "tiny"})).status_code == 409
    assert (await client.get("/v1/models/x")).status_code == 404
    path = f"{TRANSFERS}/{answer.json()['id']}/cancel"
    assert (await client.post(path)).status_code == 200
    ended = await wait_for_end(client, answer)
    assert (ended["status"], ended["error"]) == ("cancelled", None)
    await wait_for_removal(services)
    assert services.models.find("x") is None
    refused = await client.post(path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "transfer_ended")
    assert list(services.layout.store.transfers.glob("*.cancel")) == []
    check_new_model(services.layout, services.runs, "x")
    for wrong in ("nope", "..%2fx", f"transfer-{'0' * 24}"):
        assert (await client.post(f"{TRANSFERS}/{wrong}/cancel")).status_code == 404
        assert (await client.get(f"{TRANSFERS}/{wrong}")).status_code == 404


async def test_number_of_transfers_is_bounded(
    services: Services,
    client: AppClient,
    hub: FakeHub,
    tiny_model: Path,
    release: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfers, "run_transfer", lambda *_: release.wait(60) and None)
    for number in range(4):
        assert (await install(client, "org/x", id=f"m{number}")).status_code == 202
    answer = await install(client, "org/x", id="m4")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    pushed = await client.post("/v1/models/tiny/push", json={"repository": "me/x"})
    assert pushed.status_code == 429
    release.set()
    await wait_for_removal(services)


async def test_transfer_of_a_killed_server_is_reported_as_failed(
    services: Services, client: AppClient, hub: FakeHub, tiny_model: Path
) -> None:
    hub.add("org/x", tiny_model)
    answer = await install(client, "org/x")
    await wait_for_end(client, answer)
    await wait_for_removal(services)
    note = services.layout.store.transfers / f"{answer.json()['id']}.json"
    lost = {**json.loads(note.read_text()), "status": "running"}
    note.write_text(json.dumps(lost))
    found = (await client.get(TRANSFERS)).json()["data"][0]
    assert (found["status"], found["error"]["code"]) == ("failed", "transfer_lost")
    check_new_model(services.layout, services.runs, "other")
    note.write_text("{")
    assert (await client.get(TRANSFERS)).json()["data"] == []


async def test_notes_of_running_transfers_are_kept(
    services: Services,
    client: AppClient,
    hub: FakeHub,
    tiny_model: Path,
    release: threading.Event,
) -> None:
    hub.add("org/x", tiny_model, hold=release)
    answer = await install(client, "org/x")
    await wait_for_bytes(client, answer.json()["id"])
    for number in range(101):
        later = begin_transfer("push", "tiny", "me/x")
        changes = {"id": f"transfer-9{number:023}", "status": "failed"}
        write_transfer(services.layout, later.model_copy(update=changes))
    assert (await client.get(f"{TRANSFERS}/{answer.json()['id']}")).status_code == 200
    assert (await client.get(f"{TRANSFERS}/transfer-9{0:023}")).status_code == 404
    assert (await install(client, "org/x")).status_code == 409
    release.set()
    assert (await wait_for_end(client, answer))["status"] == "succeeded"


async def test_downloads_in_progress_count_as_stored(
    services: Services, hub: FakeHub, tiny_model: Path, release: threading.Event, tmp_path: Path
) -> None:
    for name in ("org/a", "org/b"):
        hub.add(name, tiny_model, hold=release)
    size = sum(path.stat().st_size for path in tiny_model.rglob("*") if path.is_file())
    limits = UsageLimits(max_model_store_bytes=services.model_sizes.measure() + int(1.95 * size))
    async with serve(replace(services, limits=limits)) as client:
        first = await install(client, "org/a")
        found = await wait_for_bytes(client, first.json()["id"], 0.1 * size)
        assert found["status"] == "running"
        second = await wait_for_end(client, await install(client, "org/b"))
        assert get_error(second)[:2] == (507, "model_store_full")
        with tarfile.open(tmp_path / "model.tar", "w") as archive:
            archive.add(tiny_model, "model")
        content = (tmp_path / "model.tar").read_bytes()
        sent = await client.put("/v1/models/sent", content=content)
        assert (sent.status_code, sent.json()["error"]["code"]) == (507, "model_store_full")
        release.set()
        assert (await wait_for_end(client, first))["status"] == "succeeded"


async def test_model_that_is_cancelled_while_it_is_checked_is_not_installed(
    services: Services,
    client: AppClient,
    hub: FakeHub,
    tiny_model: Path,
    release: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = threading.Event()

    def wait(*_: object, **__: object) -> None:
        begun.set()
        assert release.wait(60)

    hub.add("org/x", tiny_model)
    with monkeypatch.context() as patch:
        patch.setattr(model_store, "check_import", wait)
        answer = await install(client, "org/x")
        assert await anyio.to_thread.run_sync(begun.wait, 60)
        path = f"{TRANSFERS}/{answer.json()['id']}/cancel"
        assert (await client.post(path)).status_code == 200
        release.set()
        assert (await wait_for_end(client, answer))["status"] == "cancelled"
    assert services.models.find("x") is None


async def test_model_that_is_being_moved_in_cannot_be_cancelled(
    services: Services,
    client: AppClient,
    hub: FakeHub,
    tiny_model: Path,
    release: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, move_in = threading.Event(), ModelNames.move_in

    def wait(*arguments: Any) -> None:
        begun.set()
        assert release.wait(60)
        move_in(*arguments)

    monkeypatch.setattr(ModelNames, "move_in", wait)
    hub.add("org/x", tiny_model)
    answer = await install(client, "org/x")
    assert await anyio.to_thread.run_sync(begun.wait, 60)
    refused = await client.post(f"{TRANSFERS}/{answer.json()['id']}/cancel")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "transfer_ended")
    assert refused.json()["error"]["message"].endswith("complete, and 'x' is being installed")
    release.set()
    ended = await wait_for_end(client, answer)
    assert (ended["status"], ended["step"]) == ("succeeded", "installing")
    services.models.get("x").verify()


async def test_end_is_written_after_the_download_that_filled_the_disk_is_removed(
    services: Services,
    client: AppClient,
    hub: FakeHub,
    tiny_model: Path,
    release: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill(layout: StorageLayout, note: TransferNote) -> None:
        if list(layout.models.glob(".hub*/content/x/*")):
            raise OSError(28, "No space left on device")
        write_transfer(layout, note)

    hub.add("org/x", tiny_model, hold=release)
    answer = await install(client, "org/x")
    await wait_for_bytes(client, answer.json()["id"])
    monkeypatch.setattr(transfers, "write_transfer", fill)
    monkeypatch.setattr(transfer_notes, "write_transfer", fill)
    release.set()
    assert get_error(await wait_for_end(client, answer))[:2] == (507, "disk_full")


async def test_end_that_cannot_be_written_is_logged(
    services: Services,
    client: AppClient,
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfers, "end_transfer", fail)
    answer = await install(client, "org/x")
    assert get_error(await wait_for_end(client, answer))[1] == "transfer_lost"
    assert f"the end of transfer {answer.json()['id']} could not be written" in caplog.text
    await wait_for_removal(services)


async def push(client: httpx.AsyncClient, repository: str, **more: Any) -> httpx.Response:
    return await client.post("/v1/models/latest/push", json={"repository": repository, **more})


async def test_model_is_pushed(services: Services, client: AppClient, hub: FakeHub) -> None:
    answer = await push(client, "me/tuned")
    assert answer.json()["model"] == "tiny"
    ended = await wait_for_end(client, answer)
    assert ended["status"] == "succeeded", ended
    assert ended["url"] == f"{hub.url}/me/tuned/commit/{'1' * 40}"
    assert ended["bytes"] == ended["total_bytes"] > 100_000
    model = services.models.get("tiny")
    assert hub.files == {path.name: path.read_bytes() for path in model.path.iterdir()}
    assert hub.created[0]["visibility"] == "private"
    assert hub.tokens == {f"Bearer {TOKEN}"}
    audited = list(map(json.loads, services.layout.access.audit.read_text().splitlines()))
    assert [(one["path"], one["created"]) for one in audited] == [
        ("/v1/models/latest/push", "me/tuned")
    ]
    await wait_for_end(client, await push(client, "me/tuned", private=False))
    assert hub.created[1]["visibility"] != "private"


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"repository": "you/x"}, 403, "repository", "permits 'me/*' (hub.push in deploy.yaml)"),
        ({"repository": "org/x"}, 403, "repository", "hub.push in deploy.yaml"),
        (
            {"repository": "x"},
            400,
            "repository",
            "'x' is no id of a model on the hub: expected own",
        ),
        ({"repository": "me/../x"}, 400, "repository", "is no id of a model on the hub"),
        ({"repository": "me/x", "token": "t"}, 400, "token", "token"),
        ({"repository": "me/x", "private": "no"}, 400, "private", "private"),
    ],
)
async def test_invalid_pushes_are_refused(
    client: AppClient,
    hub: FakeHub,
    body: dict[str, Any],
    status: int,
    param: str,
    message: str,
) -> None:
    answer = await client.post("/v1/models/tiny/push", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert message in error["message"]
    assert hub.requested == []


async def test_unknown_model_is_not_pushed(client: AppClient, hub: FakeHub) -> None:
    answer = await client.post("/v1/models/nope/push", json={"repository": "me/x"})
    assert answer.status_code == 404


async def test_refused_push_names_the_token_without_its_value(
    client: AppClient, hub: FakeHub
) -> None:
    hub.refuses_writes = True
    ended = await wait_for_end(client, await push(client, "me/tuned"))
    assert get_error(ended) == (
        *(403, "hub_refused"),
        "the hub does not let the server's token (HF_TOKEN) write to 'me/tuned': You don't have "
        "the rights",
    )
    hub.refusal = f"{TOKEN} has no room: {'x' * 500}"
    message = get_error(await wait_for_end(client, await push(client, "me/tuned")))[2]
    assert message.endswith("write to 'me/tuned': <hidden> has no room: " + "x" * 278)


async def test_push_to_a_renamed_repository_needs_a_permitted_name(
    client: AppClient, hub: FakeHub, tiny_model: Path
) -> None:
    hub.redirects["me/old"] = "stranger/x"
    hub.add("stranger/x", tiny_model)
    ended = await wait_for_end(client, await push(client, "me/old", private=False))
    status, code, message = get_error(ended)
    assert (status, code) == (403, "hub_not_permitted")
    assert "does not permit 'stranger/x': its operator permits 'me/*'" in message
    assert (hub.files, hub.blobs) == ({}, {})

    hub.redirects["me/old"] = "me/tuned"
    ended = await wait_for_end(client, await push(client, "me/old", private=False))
    assert ended["status"] == "succeeded", ended
    assert not [one for one in hub.requested if one.startswith("POST") and "me/old" in one]
    assert hub.files


async def test_redirected_uploads_are_refused(client: AppClient, hub: FakeHub) -> None:
    hub.moved_writes["me/tuned"] = "stranger/x"
    ended = await wait_for_end(client, await push(client, "me/tuned"))
    assert get_error(ended) == (
        *(409, "repository_moved"),
        "the hub redirects uploads to 'me/tuned'; push to its present id",
    )
    assert not [one for one in hub.requested if "stranger" in one]
    assert (hub.files, hub.blobs) == ({}, {})


async def test_private_push_to_a_public_repository_is_refused(
    client: AppClient, hub: FakeHub
) -> None:
    hub.is_public = True
    status, code, message = get_error(await wait_for_end(client, await push(client, "me/tuned")))
    assert (status, code) == (409, "repository_public")
    assert message.startswith("'me/tuned' is public on the hub, and the push is private: ")
    assert (hub.files, hub.blobs) == ({}, {})
    ended = await wait_for_end(client, await push(client, "me/tuned", private=False))
    assert ended["status"] == "succeeded"


async def test_push_deletes_the_files_of_another_model(
    services: Services, client: AppClient, hub: FakeHub
) -> None:
    others = ["adapter_config.json", "model-00001-of-00002.safetensors", "pytorch_model.bin"]
    others += ["model.safetensors.index.json"]
    kept = ["notes.md", "training/model.safetensors", "training_args.bin", "pytorch_model.md"]
    hub.files = dict.fromkeys([*others, *kept, "model.safetensors"], b"old")
    ended = await wait_for_end(client, await push(client, "me/tuned"))
    assert ended["status"] == "succeeded", ended
    model = {path.name: path.read_bytes() for path in services.models.get("tiny").path.iterdir()}
    assert hub.files == {**model, **dict.fromkeys(kept, b"old")}


async def test_silent_hub_ends_transfers_in_every_step(
    client: AppClient, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "STALLED_S", 0.6)
    hub.is_silent.set()
    answers = [await install(client, "org/x"), await push(client, "me/tuned")]
    errors = [get_error(await wait_for_end(client, one)) for one in answers]
    hub.is_silent.clear()
    for (status, code, message), moved in zip(errors, ("received", "sent"), strict=True):
        assert (status, code) == (504, "hub_unreachable")
        assert message == f"no byte was {moved} for 0.01 minutes; try again"


async def test_model_of_a_newer_version_is_not_pushed(
    services: Services, client: AppClient, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: StoredModel) -> None:
        raise NewerFormatError(services.layout.models / "x.json", "its format is 9")

    monkeypatch.setattr(StoredModel, "verify", refuse)
    status, code, message = get_error(await wait_for_end(client, await push(client, "me/tuned")))
    assert (status, code) == (409, "newer_format")
    assert message == "model 'tiny' needs a newer version of Tuneserve: its format is 9"


async def test_damaged_model_is_not_pushed(
    services: Services, client: AppClient, hub: FakeHub
) -> None:
    damage(services.models.get("tiny").path / "model.safetensors", "flipped")
    ended = await wait_for_end(client, await push(client, "me/tuned"))
    assert get_error(ended)[:2] == (409, "model_damaged")
    assert hub.files == {}


async def test_model_cannot_be_deleted_while_it_is_pushed(
    services: Services,
    client: AppClient,
    release: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfers, "run_transfer", lambda *_: release.wait(60) and "url")
    await client.delete("/v1/aliases/latest")
    answer = await client.post("/v1/models/tiny/push", json={"repository": "me/x"})
    with pytest.raises(ModelInUseError):
        services.models.delete("tiny")
    release.set()
    assert (await wait_for_end(client, answer))["status"] == "succeeded"
    await wait_for_removal(services)
    services.models.delete("tiny")
