"""`/v1/classify`: classify texts, pairs of texts or images with a fine-tuned classifier."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import FormData, UploadFile

from apps.access.exchange import count_tokens
from apps.access.roles import Permission, requires
from apps.errors import InvalidInputError
from apps.http_api.completion_responses import describe_origin_headers
from apps.http_api.json_body import read_json_object
from apps.http_api.publish_on_demand import ensure_model
from apps.http_api.routes import PrincipalOf, ServicesOf, describe_body
from serving.classification.request import (
    MAX_INPUTS,
    ClassifyRequest,
    ImageInput,
    parse_classify_request,
)
from serving.classification.wire import Classification
from serving.openai.validation_messages import shorten
from storage.layout import new_id

router = APIRouter(prefix="/v1")

_FORM_TYPE = "multipart/form-data"
_IMAGES = "images"
_FIELDS = ("model", "top_k")
_FORM = {
    "schema": {
        "type": "object",
        "required": ["model", _IMAGES],
        "additionalProperties": False,
        "properties": {
            "model": {"type": "string"},
            "top_k": {"type": "integer"},
            _IMAGES: {"type": "array", "items": {"type": "string", "format": "binary"}},
        },
    }
}


class LabelObject(TypedDict):
    """A label, and its score from 0 to 1."""

    label: str
    score: float


class ClassificationObject(TypedDict):
    """The labels of one input, highest score first; or its value."""

    object: Literal["classification"]
    index: int
    labels: NotRequired[list[LabelObject]]
    value: NotRequired[float]


class _Asked(NamedTuple):
    """A request, and what the request log contains of its body."""

    request: ClassifyRequest
    logged: Mapping[str, object]


def _describe_bodies() -> Mapping[str, Any]:
    described = describe_body(ClassifyRequest)
    described["requestBody"]["content"][_FORM_TYPE] = _FORM
    return described


@router.post("/classify", openapi_extra=dict(_describe_bodies()))
@requires(Permission.GENERATE)
async def classify_inputs(
    services: ServicesOf, principal: PrincipalOf, incoming: Request
) -> JSONResponse:
    """Classify texts or images; headers contain the model's origin. Not in OpenAI's API."""
    request, logged = await _read_request(incoming)
    await ensure_model(services, principal, request.model)
    answer = await services.classifier.classify(request, logged, new_id("clsf"))
    count_tokens(answer.num_prompt_tokens, is_exact=True)
    num_tokens = answer.num_prompt_tokens
    content: Mapping[str, object] = {
        "object": "list",
        "model": answer.origin.model_id,
        "data": [_describe(index, result) for index, result in enumerate(answer.results)],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return JSONResponse(content, headers=describe_origin_headers(answer.origin))


async def _read_request(incoming: Request) -> _Asked:
    """Read a JSON body, or a form with files."""
    kind = incoming.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _FORM_TYPE:
        async with incoming.form(max_files=MAX_INPUTS, max_fields=len(_FIELDS)) as form:
            request = parse_classify_request(await _read_form(form))
    else:
        body = await read_json_object(incoming)
        request = await body.check(parse_classify_request)
        if request.images is None:
            return _Asked(request, body.value)
    names = [image.name for image in request.images or ()]
    return _Asked(request, {"model": request.model, "images": names, "top_k": request.top_k})


async def _read_form(form: FormData) -> Mapping[str, object]:
    """Return the fields of a form as the body of a request; raises `InvalidInputError`."""
    body: dict[str, object] = {}
    images = []
    for name, value in form.multi_items():
        if name == _IMAGES and isinstance(value, UploadFile):
            images.append(ImageInput(shorten(value.filename), await value.read()))
        elif name in _FIELDS and isinstance(value, str) and name not in body:
            body[name] = value
        else:
            raise InvalidInputError(
                f"the form has an unexpected part {shorten(name)}; expected files {_IMAGES!r}, and "
                f"once each the fields {', '.join(map(repr, _FIELDS))}",
                param=name,
            )
    if not images:
        raise InvalidInputError(f"the form has no files {_IMAGES!r}", param=_IMAGES)
    return {**body, _IMAGES: images}


def _describe(index: int, result: Classification) -> ClassificationObject:
    if result.value is not None:
        return {"object": "classification", "index": index, "value": result.value}
    labels: list[LabelObject] = [{"label": label, "score": score} for label, score in result.labels]
    return {"object": "classification", "index": index, "labels": labels}
