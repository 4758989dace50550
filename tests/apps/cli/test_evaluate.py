"""`tuneserve evaluate` against a server with the API's format."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from typer.testing import CliRunner

from apps.cli import evaluate
from apps.cli.main import cli
from tests.apps.stub_api import LocalServer
from tests.apps.stub_evaluations import make_evaluated_model

FIGURES = {"num_rows": 12, "num_failed": 1, "exact_match": 0.75, "contains": 0.8, "rouge_l": 0.9}


class Evaluations:
    """A server whose evaluation is queued, runs, and ends with a status."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.states = iter(("running", "running", "succeeded"))
        self.error: dict[str, str] | None = None
        self.app = FastAPI()
        self.app.post("/v1/evaluations")(self.create)
        self.app.get("/v1/evaluations/eval-1")(self.get)

    async def create(self, request: Request) -> dict[str, Any]:
        self.bodies.append(await request.json())
        return self.describe("queued")

    def get(self) -> dict[str, Any]:
        return self.describe(next(self.states))

    def describe(self, status: str) -> dict[str, Any]:
        models = [
            make_evaluated_model("tuned", "latest", **FIGURES, perplexity=1.23456),
            make_evaluated_model("base", num_rows=0),
        ]
        known = {"id": "eval-1", "object": "evaluation", "status": status, "models": models}
        return {**known, "num_rows": 12, "num_done": 5, "error": self.error}


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluations]:
    monkeypatch.setattr(evaluate, "_POLL_S", 0.0)
    found = Evaluations()
    with LocalServer(found.app) as url:
        monkeypatch.setenv("TUNESERVE_URL", url)
        yield found


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["evaluate", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_metrics_of_both_models_are_printed(evaluations: Evaluations) -> None:
    status, output = call(
        *("latest", "base", "--file", "file-1", "--max-rows", "12", "--max-tokens", "9"),
        *("--set", 'columns={"prompt": "question"}'),
    )
    assert status == 0, output
    assert [line.split("\t") for line in output.splitlines()] == [
        ["tuned", "12", "1", "75.0%", "80.0%", "90.0%", "1.235"],
        ["base", "0", "0", "", "", "", ""],
    ]
    assert evaluations.bodies == [
        {
            "models": ["latest", "base"],
            "file": "file-1",
            "max_rows": 12,
            "max_tokens": 9,
            "training": {"columns": {"prompt": "question"}},
        }
    ]


def test_ended_evaluation_is_printed_as_json(evaluations: Evaluations) -> None:
    status, output = call("latest", "--job", "ftjob-1", "--json")
    assert status == 0, output
    assert json.loads(output)["status"] == "succeeded"
    assert evaluations.bodies == [{"models": ["latest"], "job": "ftjob-1"}]


def test_failed_evaluation_ends_with_its_reason(evaluations: Evaluations) -> None:
    evaluations.states = iter(("failed",))
    evaluations.error = {"code": "model_failed", "message": "model 'tuned' cannot be served"}
    status, output = call("latest", "--job", "ftjob-1")
    assert status == 1
    assert "error: model 'tuned' cannot be served" in output


def test_cancelled_evaluation_ends_with_status_1(evaluations: Evaluations) -> None:
    evaluations.states = iter(("cancelled",))
    assert call("latest", "--job", "ftjob-1")[0] == 1


def test_invalid_evaluate_command_prints_error(evaluations: Evaluations, tmp_path: Path) -> None:
    assert "expected either --file or --job" in call("latest")[1]
    assert "expected either --file or --job" in call("m", "--file", "f", "--job", "j")[1]
    status, output = call("m", "--file", str(tmp_path / "gone.jsonl"))
    assert status == 1
    assert "is neither a local file nor a file id" in output
    assert evaluations.bodies == []
