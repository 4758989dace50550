"""The part of the stub API with what runs write: metrics, checkpoints, logs and models."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse

if TYPE_CHECKING:
    from tests.apps.stub_api import StubApi

STEPS = 5


@dataclass
class StubRuns:
    """What runs have written, by the ids of their jobs; metrics are invented without an entry."""

    text: str
    """In every log that the test does not set."""
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    checkpoints: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Models that `GET /v1/models/ID` finds, by their ids."""
    cards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What `GET /v1/models/ID/card` has for models, by their ids."""
    extended: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Job and body of each extension."""
    published: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Job, checkpoint and name of each publication."""


def make_metrics(num_steps: int, num_planned: int = 0) -> list[dict[str, Any]]:
    """Return the metrics of steps whose loss falls from 4, with an evaluation every tenth."""
    return [
        {
            "step": step,
            "num_steps": num_planned or num_steps,
            "loss": round(
                1 + 3 / (1 + step / max(1, num_steps) * 9) + 0.1 * ((step * 7) % 5 - 2), 4
            ),
            "learning_rate": 1e-3 * (1 - step / (num_steps + 1)),
            "grad_norm": 1 + (step * 3 % 7) / 10,
            "tokens_per_s": 1000.0 + step % 50,
            "trained_tokens": step * 512,
            "elapsed_s": step * 0.5,
            "peak_memory_bytes": 1_500_000_000,
            "created_at": 1_700_000_000 + step,
            **({"eval_loss": round(1.2 + 3 / (1 + step), 4)} if step % 10 == 0 else {}),
        }
        for step in range(1, num_steps + 1)
    ]


def make_checkpoint(job_id: str, step: int, valid_loss: float | None = None) -> dict[str, Any]:
    """Return a checkpoint as the API describes it."""
    metrics = {"step": step, "train_loss": 1.5, "valid_loss": valid_loss, "epoch": step / 10}
    return {
        "id": f"{job_id}-step-{step}",
        "object": "fine_tuning.job.checkpoint",
        "created_at": 1_700_000_000 + step,
        "fine_tuning_job_id": job_id,
        "step_number": step,
        "fine_tuned_model_checkpoint": f"base-tuned-step-{step}",
        "metrics": metrics,
    }


def add_run_routes(app: FastAPI, stub: "StubApi", refuse: Callable[..., JSONResponse]) -> None:
    """Add the routes of jobs' lists and outputs, and of single models."""
    _add_lists(app, stub, refuse)
    _add_outputs(app, stub)
    _add_models(app, stub, refuse)


def _add_lists(app: FastAPI, stub: "StubApi", refuse: Callable[..., JSONResponse]) -> None:
    @app.get("/v1/fine_tuning/jobs")
    def list_jobs(limit: int, after: str = "", status: str = "", search: str = "") -> Any:
        found = [
            job
            for job in stub.jobs.values()
            if (not status or job["status"] == status)
            and (
                search.lower()
                in f"{job['id']} {job['user_provided_suffix']} {job['model']}".lower()
            )
        ]
        ids = [job["id"] for job in found]
        begin = ids.index(after) + 1 if after in ids else 0
        page = found[begin : begin + limit]
        return {"object": "list", "data": page, "has_more": len(found) > begin + limit}

    @app.post("/v1/fine_tuning/jobs/{job_id}/extend")
    def extend_job(job_id: str, body: dict[str, Any]) -> Any:
        if job_id not in stub.jobs:
            return refuse(404, f"there is no job {job_id!r}")
        stub.runs.extended.append((job_id, body))
        lengths = {name: body[name] for name in ("epochs", "max_steps") if name in body}
        before = stub.jobs[job_id]
        for name, asked in lengths.items():
            if asked > 500:
                return refuse(400, f"{name} is {asked}: it should be at most 500", name)
        if body.get("suffix") == "taken":
            return refuse(400, "'suffix' is 'taken', expected another one", "suffix")
        if body.get("suffix") == "large":
            return refuse(507, "models have 9 bytes, and 9 more would exceed 10; delete models")
        new_id = f"{job_id}-extended"
        stub.runs.metrics[new_id] = list(stub.runs.metrics.get(job_id, []))
        changes = {
            "extended_from": job_id,
            "training": {**before["training"], **lengths},
            "user_provided_suffix": body.get("suffix", before["user_provided_suffix"]),
        }
        return stub.add_job(new_id, "queued", **{**changes, "progress": before["progress"]})

    @app.delete("/v1/fine_tuning/jobs/{job_id}")
    def delete_job(job_id: str) -> Any:
        if stub.jobs.pop(job_id, None) is None:
            return refuse(404, f"there is no job {job_id!r}")
        return {"id": job_id, "object": "fine_tuning.job", "deleted": True}

    @app.get("/v1/fine_tuning/jobs/{job_id}/checkpoints")
    def list_checkpoints(job_id: str) -> Any:
        return {"object": "list", "data": stub.runs.checkpoints.get(job_id, [])}

    @app.post("/v1/fine_tuning/jobs/{job_id}/checkpoints/{checkpoint_id}/publish", status_code=202)
    def publish_checkpoint(job_id: str, checkpoint_id: str, body: dict[str, str]) -> Any:
        stub.runs.published.append((job_id, checkpoint_id, body.get("model")))
        stub.add_event(job_id, "Publishing a checkpoint")
        return {"id": body.get("model"), "object": "model", "status": "publishing"}


def _add_outputs(app: FastAPI, stub: "StubApi") -> None:
    @app.get("/v1/fine_tuning/jobs/{job_id}/metrics")
    def list_metrics(request: Request, job_id: str) -> dict[str, Any]:
        query = dict(request.query_params)
        stub.queries.append(("metrics", query))
        after, most = int(query.get("after_step", 0)), int(query["max_points"])
        if job_id in stub.runs.metrics:
            lines = stub.runs.metrics[job_id]
            # Steps are numbered from 1, unless the test removed some.
            found = lines[after:] if lines and lines[-1]["step"] == len(lines) else lines
            found = found if found is not lines else [one for one in lines if one["step"] > after]
        else:
            progress = stub.jobs[job_id]["progress"] or {}
            steps, num_steps = progress.get("step", 0), progress.get("num_steps", STEPS)
            found = [
                {"step": step + 1, "num_steps": num_steps, "loss": 4.0 - step / 10}
                for step in range(after, steps)
            ]
        stride = max(1, -(-len(found) // most))
        return {"object": "list", "data": found[::-1][::stride][::-1]}

    @app.get("/v1/fine_tuning/jobs/{job_id}/logs")
    def get_log(request: Request, job_id: str) -> PlainTextResponse:
        query = dict(request.query_params)
        stub.queries.append(("logs", query))
        content = stub.runs.logs.get(job_id, f"log of {job_id}: {stub.runs.text}\n".encode())
        if wanted := query.get("search", "").lower():
            lines = [line for line in content.decode().splitlines() if wanted in line.lower()]
            content = "".join(f"{line}\n" for line in lines).encode()
        tail = content[-int(query["tail"]) :]
        return PlainTextResponse(tail, headers={"x-log-offset": str(len(content) - len(tail))})


def _add_models(app: FastAPI, stub: "StubApi", refuse: Callable[..., JSONResponse]) -> None:
    @app.get("/v1/models/{model_id}")
    def get_model(model_id: str) -> Any:
        made = [job["fine_tuned_model"] for job in stub.jobs.values()]
        if model_id not in (*stub.merged, *stub.runs.models, *made):
            return refuse(404, f"no model has the id {model_id!r}")
        aliases = ["latest"] if model_id == stub.latest else []
        model = {"id": model_id, "object": "model", "aliases": aliases}
        return {**model, **stub.runs.models.get(model_id, {})}

    @app.get("/v1/models/{model_id}/card")
    def get_card(model_id: str) -> Any:
        card = stub.runs.cards.get(model_id)
        if card is None:
            return refuse(404, f"no model has the id {model_id!r}")
        return {"object": "model.card", "id": model_id, "files": [], **card}

    @app.get("/v1/aliases")
    def list_aliases() -> Any:
        latest = {"id": "latest", "object": "alias", "model": stub.latest}
        return {"object": "list", "data": [latest]}

    @app.get("/v1/aliases/{alias}/events")
    def list_alias_events(alias: str) -> Any:
        return {"object": "list", "data": []}

    @app.get("/v1/cluster")
    def show_cluster() -> Any:
        node = {
            "name": "node 1",
            "id": "a",
            "is_head": True,
            "num_cpus": 2.0,
            "cpu": {"share": 0.5, "uses": {"training": 0.4, "serving": 0.1}},
            "memory": {"used": 3 << 30, "total": 8 << 30, "uses": {"serving": 1 << 30}},
            "disk": {"used": 30 << 30, "total": 80 << 30, "uses": {"models": 1 << 30}},
            "history": {"at": [1_000, 1_010], "cpu": [0.1, 0.5], "memory": [0.3, 0.4]},
        }
        cpus = {"total": 2.0, "training": 1.0, "serving": 0.5, "free": 0.5}
        loaded = {"id": "base", "deployment": "Generator", "memory_bytes": 1 << 28}
        queued = {"id": "ftjob-1", "status": "queued", "waiting_for": "number 2 in the queue"}
        return {
            "object": "cluster",
            "nodes": [node],
            "cpus": cpus,
            "models": [loaded],
            "queue": [queued],
        }

    @app.put("/v1/aliases/{alias}")
    def point_alias(alias: str, body: dict[str, str]) -> Any:
        if alias == "latest":
            stub.latest = body["model"]
        return {"id": alias, "object": "alias", "model": body["model"]}
