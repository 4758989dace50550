"""The content of a model over HTTP: README, files, parameters and architecture."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors import safe_open

from apps.http_api.dependencies import Services
from apps.http_api.routes import model_cards
from apps.http_api.routes.model_cards import MAX_TEXT_BYTES
from model_files.weight_headers import read_file_header
from storage.lineage_file import LINEAGE_NAME
from tests.model_chain import write_chain

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def read_card(client: httpx.AsyncClient, model_id: str = "tiny") -> dict[str, object]:
    answer = await client.get(f"/v1/models/{model_id}/card")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def count_parameters(file: Path) -> int:
    with safe_open(file, framework="numpy") as weights:
        return sum(weights.get_tensor(name).size for name in weights.keys())  # noqa: SIM118


async def test_card_describes_files_and_weights(
    client: httpx.AsyncClient, services: Services
) -> None:
    folder = services.layout.model("tiny")
    (folder / "README.md").write_text("# A model\n")
    card = await read_card(client, "latest")
    config = json.loads((folder / "config.json").read_text())
    assert (card["id"], card["text"], card["fault"]) == ("tiny", "# A model\n", None)
    assert card["architecture"] == config["architectures"][0]
    assert card["context_length"] == config["max_position_embeddings"]
    assert card["num_parameters"] == count_parameters(folder / "model.safetensors")
    files = {file["name"]: file["bytes"] for file in card["files"]}  # type: ignore[attr-defined]
    assert files["model.safetensors"] == (folder / "model.safetensors").stat().st_size
    (listed,) = (await client.get("/v1/models")).json()["data"]
    assert listed["bytes"] == sum(files.values())


@pytest.mark.parametrize(
    ("readme", "expected"),
    [
        ("---\nlicense: apache-2.0\ntags: [a]\n---\n# A", "apache-2.0"),
        ('---\ntags:\n- b\nlicense: "mit"\n---\n', "mit"),
        ("---\ntags: [a]\n---\nlicense: mit\n", None),
        ("# license\nlicense: mit\n", None),
        ("---\nlicense: [mit]\n---\n", None),
        ("---\n" + "\n" * 99_000, None),
    ],
)
async def test_license_is_that_of_the_front_matter(
    client: httpx.AsyncClient, services: Services, readme: str, expected: str | None
) -> None:
    (services.layout.model("tiny") / "README.md").write_text(readme)
    assert (await read_card(client))["license"] == expected


async def test_headers_of_weights_are_read_once_until_they_change(
    client: httpx.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def read_counted(path: Path) -> Any:
        read.append(path)
        return read_file_header(path)

    monkeypatch.setattr(model_cards, "read_file_header", read_counted)
    first = await read_card(client)
    assert await read_card(client) == first
    assert len(read) == 1
    os.utime(read[0], (1, 1))
    assert await read_card(client) == first
    assert len(read) == 2


async def test_half_a_character_in_a_config_is_replaced(
    client: httpx.AsyncClient, services: Services
) -> None:
    config = services.layout.model("tiny") / "config.json"
    config.write_text('{"architectures": ["A\\ud800"]}')
    assert (await read_card(client))["architecture"] == "A?"


async def test_unknown_parts_of_damaged_model_are_null(
    client: httpx.AsyncClient, services: Services
) -> None:
    folder = services.layout.model("tiny")
    (folder / "config.json").write_text("[]")
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    card = await read_card(client)
    assert [card[key] for key in ("text", "num_parameters", "dtype", "architecture")] == [None] * 4
    (folder / "manifest.json").write_text("{}")
    assert "manifest.json" in str((await read_card(client))["fault"])
    assert (await client.get("/v1/models/none/card")).status_code == 404


async def test_only_beginning_of_regular_readme_is_sent(
    client: httpx.AsyncClient, services: Services
) -> None:
    readme = services.layout.model("tiny") / "README.md"
    readme.write_text("x" * (MAX_TEXT_BYTES + 1))
    assert (await read_card(client))["text"] == "x" * MAX_TEXT_BYTES
    readme.unlink()
    readme.symlink_to("/etc/hostname")
    assert (await read_card(client))["text"] is None
    readme.unlink()
    os.mkfifo(readme)
    assert (await read_card(client))["text"] is None


async def test_model_list_has_origin_and_metrics(
    client: httpx.AsyncClient, services: Services
) -> None:
    (name,) = write_chain(services.layout, "tiny", 1)
    file = services.layout.model(name) / LINEAGE_NAME
    metrics = {"loss": 1.5, "eval_loss": 2, "eval_f1/a": 1.0, "step": 4, "eval_x": "y"}
    lineage = {**json.loads(file.read_text()), "metrics": metrics, "data": {"name": "rows.jsonl"}}
    file.write_text(json.dumps(lineage))
    listed = (await client.get(f"/v1/models/{name}")).json()
    assert (listed["tuned_from"], listed["data"]) == ("tiny", "rows.jsonl")
    assert listed["metrics"] == {"loss": 1.5, "eval_loss": 2.0}
    file.write_text(json.dumps({**lineage, "metrics": [1], "data": {"name": 5}}))
    listed = (await client.get(f"/v1/models/{name}")).json()
    assert (listed["data"], listed["metrics"]) == (None, {})
