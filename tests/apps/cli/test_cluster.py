"""`tuneserve cluster` against a server with the API's format."""

import json

from fastapi import FastAPI
from typer.testing import CliRunner

from apps.cli.main import cli
from tests.apps.stub_api import LocalServer

STATE = {
    "object": "cluster",
    "nodes": [
        {
            "name": "node 1",
            "is_head": True,
            "cpu": {"share": 0.5},
            "memory": {"used": 8_000_000_000, "total": 16_000_000_000},
            "gpus": [{"index": 0, "share": 0.75}],
        }
    ],
    "cpus": {"total": 2, "training": 1, "serving": 0.8, "free": 0.2},
    "models": [{"id": "tuned", "deployment": "Generator", "memory_bytes": 300_000_000}],
    "queue": [{"id": "ftjob-1", "status": "queued", "waiting_for": "number 1 in the queue"}],
}


def test_cluster_is_shown_as_text_and_as_json() -> None:
    app = FastAPI()
    app.get("/v1/cluster")(lambda: STATE)
    with LocalServer(app) as url:
        shown = CliRunner().invoke(cli, ["cluster", "--url", url])
        as_json = CliRunner().invoke(cli, ["cluster", "--url", url, "--json"])
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    for part in (
        "1 training, 0.8 serving, 0.2 of 2 free",
        "node 1 (head) processors 50%, memory 8.0 of 16.0 GB, disk unknown, GPU 0 75%",
        "model tuned Generator, 0.30 GB",
        "queued: number 1 in the queue",
    ):
        assert part in text
    assert "reserved GPUs" not in text
    assert json.loads(as_json.output) == STATE
