"""`/openapi.json`: FastAPI's generated description, completed.

FastAPI generates paths and parameters. Bodies are validated by the routes, responses are
dictionaries, and all errors have our own format, so all three are described here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from apps.evaluations.evaluation_requests import EvaluationRequest
from apps.fine_tuning.extension.extension_request import ExtensionRequest
from apps.fine_tuning.job_requests import FineTuneRequest
from apps.http_api.openapi import (
    cluster_schemas,
    evaluation_schemas,
    model_schemas,
    response_schemas,
    row_schemas,
    text_schemas,
)
from apps.http_api.routes.aliases import Promotion
from apps.http_api.routes.job_events import Publication
from apps.http_api.routes.models import Merging
from apps.hub.hub_routes import HubInstallation, HubPush
from serving.classification.embedding_request import EmbeddingRequest
from serving.classification.request import ClassifyRequest
from serving.openai.chat import ChatCompletionRequest
from serving.openai.completion import CompletionRequest
from serving.store.lineage import Lineage

_REFERENCE = "#/components/schemas/"
_REQUESTS = (
    ChatCompletionRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingRequest,
    EvaluationRequest,
    ExtensionRequest,
    FineTuneRequest,
    HubInstallation,
    HubPush,
    Merging,
    Promotion,
    Publication,
)
_CLONE_CHANGES = "FineTuneChanges"
_EVALUATION = "/v1/evaluations/{evaluation_id}"
_TRANSFERS = "/v1/hub/transfers"
_JOB = "/v1/fine_tuning/jobs/{job_id}"
_BINARY = {"type": "string", "format": "binary"}
_EVENTS = {"type": "string", "description": "Server-sent events."}

Schema = Mapping[str, object]
Content = Mapping[str, type[BaseModel] | Schema]


def _json(model: type[BaseModel]) -> Content:
    return {"application/json": model}


_FINDINGS: Content = {
    "application/json": row_schemas.RowFindingPage,
    "application/x-ndjson": {"type": "string"},
    "text/csv": {"type": "string"},
}
_ANSWERS: Mapping[tuple[str, str], Content] = {
    ("get", "/livez"): _json(response_schemas.Liveness),
    ("get", "/readyz"): _json(response_schemas.Readiness),
    ("get", "/v1/access"): _json(response_schemas.Access),
    ("post", "/v1/files"): _json(response_schemas.File),
    ("get", "/v1/files"): _json(response_schemas.FilePage),
    ("get", "/v1/files/{file_id}"): _json(response_schemas.File),
    ("get", "/v1/files/{file_id}/content"): {"application/octet-stream": _BINARY},
    ("get", "/v1/files/{file_id}/preview"): _json(response_schemas.FilePreview),
    ("get", "/v1/files/{file_id}/rows"): _json(row_schemas.FileRowPage),
    ("get", "/v1/files/{file_id}/statistics"): _json(row_schemas.FileStatistics),
    ("get", "/v1/files/{file_id}/faults"): _FINDINGS,
    ("get", "/v1/files/{file_id}/duplicates"): _FINDINGS,
    ("delete", "/v1/files/{file_id}"): _json(response_schemas.Deletion),
    ("get", "/v1/fine_tuning/defaults"): _json(response_schemas.JobDefaults),
    ("post", "/v1/fine_tuning/jobs"): _json(response_schemas.FineTuningJob),
    ("post", "/v1/fine_tuning/jobs/estimate"): _json(response_schemas.JobEstimate),
    ("get", "/v1/fine_tuning/jobs"): _json(response_schemas.JobPage),
    ("get", _JOB): _json(response_schemas.FineTuningJob),
    ("delete", _JOB): _json(response_schemas.Deletion),
    ("post", f"{_JOB}/cancel"): _json(response_schemas.FineTuningJob),
    ("post", f"{_JOB}/pause"): _json(response_schemas.FineTuningJob),
    ("post", f"{_JOB}/resume"): _json(response_schemas.FineTuningJob),
    ("post", f"{_JOB}/clone"): _json(response_schemas.FineTuningJob),
    ("post", f"{_JOB}/extend"): _json(response_schemas.FineTuningJob),
    ("get", f"{_JOB}/events"): {
        "application/json": response_schemas.JobEventPage,
        "text/event-stream": {**_EVENTS, "description": "Events whose data is a `JobEvent`."},
    },
    ("get", f"{_JOB}/checkpoints"): _json(response_schemas.JobCheckpointPage),
    ("post", f"{_JOB}/checkpoints/{{checkpoint_id}}/publish"): _json(
        response_schemas.PublishingModel
    ),
    ("get", f"{_JOB}/metrics"): _json(response_schemas.JobMetrics),
    ("get", f"{_JOB}/evaluations"): _json(response_schemas.JobEvaluations),
    ("get", f"{_JOB}/logs"): {"text/plain": {"type": "string"}},
    ("get", "/v1/models"): _json(model_schemas.ModelList),
    ("get", "/v1/models/{model_id}"): _json(model_schemas.Model),
    ("put", "/v1/models/{model_id}"): _json(model_schemas.Model),
    ("delete", "/v1/models/{model_id}"): _json(response_schemas.Deletion),
    ("get", "/v1/models/{model_id}/lineage"): _json(Lineage),
    ("get", "/v1/models/{model_id}/card"): _json(model_schemas.ModelCard),
    ("post", "/v1/models/{model_id}/verify"): _json(model_schemas.ModelVerification),
    ("post", "/v1/models/{model_id}/merge"): _json(model_schemas.ModelMerge),
    ("get", "/v1/models/{model_id}/merges"): _json(model_schemas.ModelMergeList),
    ("get", "/v1/models/{model_id}/archive"): {
        "application/x-tar": _BINARY,
        "application/zip": _BINARY,
    },
    ("post", "/v1/models/install"): _json(model_schemas.HubTransfer),
    ("post", "/v1/models/{model_id}/push"): _json(model_schemas.HubTransfer),
    ("get", "/v1/hub"): _json(model_schemas.Hub),
    ("get", _TRANSFERS): _json(model_schemas.HubTransferList),
    ("get", f"{_TRANSFERS}/{{transfer_id}}"): _json(model_schemas.HubTransfer),
    ("post", f"{_TRANSFERS}/{{transfer_id}}/cancel"): _json(model_schemas.HubTransfer),
    ("get", "/v1/aliases"): _json(model_schemas.AliasList),
    ("get", "/v1/aliases/{name}"): _json(model_schemas.ModelAlias),
    ("put", "/v1/aliases/{name}"): _json(model_schemas.ModelAlias),
    ("delete", "/v1/aliases/{name}"): _json(response_schemas.Deletion),
    ("get", "/v1/aliases/{name}/events"): _json(model_schemas.AliasEventList),
    ("post", "/v1/aliases/{name}/rollback"): _json(model_schemas.ModelAlias),
    ("post", "/v1/evaluations"): _json(evaluation_schemas.Evaluation),
    ("get", "/v1/evaluations"): _json(evaluation_schemas.EvaluationPage),
    ("get", _EVALUATION): _json(evaluation_schemas.Evaluation),
    ("delete", _EVALUATION): _json(response_schemas.Deletion),
    ("post", f"{_EVALUATION}/cancel"): _json(evaluation_schemas.Evaluation),
    ("get", f"{_EVALUATION}/rows"): {
        "application/json": evaluation_schemas.EvaluationRowPage,
        "text/csv": {"type": "string"},
    },
    ("get", "/v1/cluster"): _json(cluster_schemas.Cluster),
    ("post", "/v1/classify"): _json(text_schemas.ClassificationList),
    ("post", "/v1/embeddings"): _json(text_schemas.EmbeddingList),
    ("post", "/v1/chat/completions"): {
        "application/json": text_schemas.ChatCompletion,
        "text/event-stream": {**_EVENTS, "description": "Data: `ChatCompletionChunk`, `[DONE]`."},
    },
    ("post", "/v1/completions"): {
        "application/json": text_schemas.Completion,
        "text/event-stream": {**_EVENTS, "description": "Data: `Completion`, then `[DONE]`."},
    },
}
_ALSO = (response_schemas.Error, text_schemas.ChatCompletionChunk, response_schemas.JobEvent)
_ERRORS = {
    "4XX": "The request was refused.",
    "5XX": "The request failed, or no part of the application can answer it now.",
}


def install_description(app: FastAPI) -> None:
    """Make an application return a complete description, built at the first request."""
    build = app.openapi

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(build())
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign] # FastAPI's documented way


def _complete(description: dict[str, Any]) -> dict[str, Any]:
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            _describe_responses(operation, _ANSWERS.get((method, path), {}))
            if path.startswith("/v1/"):
                operation["tags"] = [path.split("/")[2]]
            if (method, path) == ("get", f"{_JOB}/events"):
                text = "The stream has no events left to send."
                operation["responses"]["204"] = {"description": text}
            if path in ("/livez", "/readyz"):
                operation["security"] = []
            if path == "/readyz":
                content = {"application/json": {"schema": _refer(response_schemas.Readiness)}}
                text = "A part of the application cannot work; `checks` names it."
                operation["responses"]["503"] = {"description": text, "content": content}
    components = description.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)  # of FastAPI's own errors, which we do not return
    schemas.update(_build_schemas())
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "The API key; not required if the server has no keys.",
        }
    }
    description["security"] = [{"bearer": []}, {}]
    return description


def _describe_responses(operation: dict[str, Any], content: Content) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    if content:
        success = next(code for code in responses if code.startswith("2"))
        responses[success]["content"] = {
            kind: {"schema": _refer(schema)} for kind, schema in content.items()
        }
    error = {"application/json": {"schema": _refer(response_schemas.Error)}}
    for code, text in _ERRORS.items():
        responses.setdefault(code, {"description": text, "content": error})


def _refer(schema: type[BaseModel] | Schema) -> Schema:
    return schema if isinstance(schema, Mapping) else {"$ref": f"{_REFERENCE}{schema.__name__}"}


def _build_schemas() -> Mapping[str, Schema]:
    found = [
        *_build_part(_REQUESTS, "validation"),
        *_build_part(_list_answers(), "serialization"),
    ]
    schemas = dict(found)
    changes = dict(schemas[FineTuneRequest.__name__])
    del changes["required"]
    schemas[_CLONE_CHANGES] = {**changes, "title": _CLONE_CHANGES}
    return schemas


def _list_answers() -> list[type[BaseModel]]:
    described = [schema for content in _ANSWERS.values() for schema in content.values()]
    models = [schema for schema in described if isinstance(schema, type)]
    return list(dict.fromkeys([*models, *_ALSO]))


def _build_part(
    models: Iterable[type[BaseModel]], mode: JsonSchemaMode
) -> Iterable[tuple[str, Schema]]:
    _, built = models_json_schema(
        [(model, mode) for model in models], ref_template=f"{_REFERENCE}{{model}}"
    )
    schemas: Mapping[str, Schema] = built["$defs"]
    return schemas.items()
