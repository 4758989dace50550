"""The part of the stub API with evaluations of models."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse

Evaluation = dict[str, Any]


@dataclass
class StubEvaluations:
    """Evaluations by their ids, newest first, and the rows of each."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests for new ones."""
    asked: list[dict[str, str]] = field(default_factory=list)
    """Queries of the requests for rows."""
    are_rows_refused: bool = False
    fault: tuple[int, str, str | None] | None = None
    """Status, message and field with which new ones are refused."""

    def add(self, evaluation_id: str, status: str, **changes: Any) -> Evaluation:
        """Add an evaluation to the front of the list, which is newest first."""
        evaluation = {
            "id": evaluation_id,
            "object": "evaluation",
            "status": status,
            "created_at": int(time.time()) + len(self.evaluations),
            "finished_at": None,
            "file": "file-handbook",
            "job": None,
            "max_rows": 100,
            "max_tokens": 256,
            "num_rows": None,
            "num_done": 0,
            "error": None,
            "models": [make_evaluated_model("base-tuned", "latest")],
            **changes,
        }
        self.evaluations = {evaluation_id: evaluation, **self.evaluations}
        return evaluation


def make_evaluated_model(model: str, requested: str = "", **changes: Any) -> dict[str, Any]:
    """Return a model of an evaluation, of which no row is done."""
    metrics = dict.fromkeys(("exact_match", "contains", "rouge_l", "perplexity"))
    counts = {"num_rows": 0, "num_failed": 0}
    return {"model": model, "requested": requested or model, **counts, **metrics, **changes}


def make_row(number: int, prompt: str, expected: str, **answers: str) -> dict[str, Any]:
    """Return a row with the answers of models by their names."""
    return {
        "id": f"row-{number}",
        "object": "evaluation.row",
        "number": number,
        "prompt": prompt,
        "expected": expected,
        "answers": [
            {
                "model": model.replace("_", "-"),
                "text": text,
                "finish_reason": "stop",
                "exact_match": text == expected,
                "contains": expected.lower() in text.lower(),
                "rouge_l": 1.0 if text == expected else 0.4,
                "perplexity": 1.5,
                "error": None,
            }
            for model, text in answers.items()
        ],
    }


def add_evaluation_routes(
    app: FastAPI, stub: StubEvaluations, refuse: Callable[..., JSONResponse]
) -> None:
    """Add the routes of evaluations."""

    def find(evaluation_id: str) -> Evaluation | JSONResponse:
        found = stub.evaluations.get(evaluation_id)
        return found or refuse(404, f"there is no evaluation {evaluation_id!r}")

    @app.post("/v1/evaluations", response_model=None)
    async def create_evaluation(request: Request) -> Any:
        body = await request.json()
        stub.bodies.append(body)
        if stub.fault is not None:
            return refuse(*stub.fault)
        models = [make_evaluated_model(name) for name in body["models"]]
        kept = {name: body[name] for name in ("max_rows", "max_tokens") if name in body}
        rows = {"file": body.get("file"), "job": body.get("job")}
        number = len(stub.evaluations) + 1
        return stub.add(f"eval-new{number}", "queued", models=models, **kept, **rows)

    @app.get("/v1/evaluations")
    def list_evaluations(limit: int, after: str = "", model: str = "") -> Any:
        found = [
            evaluation
            for evaluation in stub.evaluations.values()
            if not model or any(model in one.values() for one in evaluation["models"])
        ]
        return _make_page(found, limit, after)

    @app.get("/v1/evaluations/{evaluation_id}", response_model=None)
    def get_evaluation(evaluation_id: str) -> Any:
        return find(evaluation_id)

    @app.post("/v1/evaluations/{evaluation_id}/cancel", response_model=None)
    def cancel_evaluation(evaluation_id: str) -> Any:
        stub.evaluations[evaluation_id] |= {
            "status": "cancelled",
            "finished_at": int(time.time()),
        }
        return stub.evaluations[evaluation_id]

    @app.delete("/v1/evaluations/{evaluation_id}", response_model=None)
    def delete_evaluation(evaluation_id: str) -> Any:
        if isinstance(found := find(evaluation_id), JSONResponse):
            return found
        if found["status"] in ("queued", "running"):
            return refuse(409, f"evaluation {evaluation_id!r} is running: cancel it first")
        del stub.evaluations[evaluation_id]
        return {"id": evaluation_id, "object": "evaluation", "deleted": True}

    @app.get("/v1/evaluations/{evaluation_id}/rows", response_model=None)
    def list_rows_of_evaluation(
        request: Request, evaluation_id: str, limit: int = 20, after: str = ""
    ) -> Any:
        query = dict(request.query_params)
        stub.asked.append(query)
        if stub.are_rows_refused:
            return refuse(403, "the role 'read' of this key does not allow 'files.read'")
        rows = stub.rows.get(evaluation_id, [])
        found = [row for row in rows if _is_kept(row, query.get("filter", "all"))]
        if query.get("format") == "csv":
            lines = [f"{row['number']},{row['expected']}" for row in found]
            return PlainTextResponse("\n".join(["number,expected", *lines]))
        return _make_page(found, limit, after)


def _is_kept(row: dict[str, Any], chosen: str) -> bool:
    are_exact = [answer["exact_match"] for answer in row["answers"]]
    texts = {answer["text"] for answer in row["answers"]}
    if chosen == "wrong" or (chosen == "different" and len(are_exact) == 1):
        return not all(are_exact)
    return chosen == "all" or len(texts) > 1


def _make_page(found: list[dict[str, Any]], limit: int, after: str) -> dict[str, Any]:
    ids = [one["id"] for one in found]
    begin = ids.index(after) + 1 if after in ids else 0
    page = found[begin : begin + limit]
    return {"object": "list", "data": page, "has_more": len(found) > begin + limit}


def add_sample_evaluations(stub: StubEvaluations) -> None:
    """Add a finished, a running and a failed evaluation: the finished one is `eval-1`."""
    tuned: dict[str, Any] = {
        "exact_match": 0.76,
        "contains": 0.84,
        "rouge_l": 0.912,
        "perplexity": 1.63,
    }
    base: dict[str, Any] = {
        "exact_match": 0.02,
        "contains": 0.06,
        "rouge_l": 0.173,
        "perplexity": 41.8,
    }
    models = [
        make_evaluated_model("base-tuned", "latest", num_rows=45, **tuned),
        make_evaluated_model("base", num_rows=45, num_failed=1, **base),
    ]
    ended = {"num_rows": 45, "num_done": 45, "finished_at": int(time.time()) + 70}
    error = {"code": "model_not_loaded", "message": "the model 'base' does not fit into memory"}
    alone = [make_evaluated_model("base")]
    stub.add("eval-0", "failed", models=alone, error=error, finished_at=int(time.time()) + 2)
    stub.add("eval-1", "succeeded", models=models, **ended)
    partly = [make_evaluated_model("base-tuned", num_rows=12, **tuned)]
    stub.add("eval-2", "running", models=partly, num_rows=45, num_done=12)
    stub.rows["eval-1"] = [
        make_row(
            number,
            "When does the workshop open on Saturdays?",
            "The workshop opens at nine o'clock.",
            base_tuned="The workshop opens at nine o'clock.",
            base="The shop opens at ten o'clock, except in winter.",
        )
        for number in range(1, 26)
    ]
    stub.rows["eval-2"] = [
        make_row(number, "Who has the key?", "Ask Ines.", base_tuned="Ask Ines or Tom.")
        for number in range(1, 13)
    ]
    failed = stub.rows["eval-1"][1]["answers"][1]
    failed |= {"text": "", "perplexity": None, "rouge_l": 0.0}
    failed["error"] = "the prompt has 5,120 tokens, and the model takes 4,096"
