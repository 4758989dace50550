"""`/v1/classify`: classify texts, or pairs of texts, with a fine-tuned classifier."""

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from apps.access.exchange import count_tokens
from apps.access.roles import Permission, requires
from apps.http_api.completion_responses import describe_origin_headers
from apps.http_api.json_body import JsonBody
from apps.http_api.publish_on_demand import ensure_model
from apps.http_api.routes import PrincipalOf, ServicesOf, describe_body
from serving.classification.request import ClassifyRequest, parse_classify_request
from serving.classification.wire import Classification
from storage.layout import new_id

router = APIRouter(prefix="/v1")


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


@router.post("/classify", openapi_extra=describe_body(ClassifyRequest))
@requires(Permission.GENERATE)
async def classify_texts(
    services: ServicesOf, principal: PrincipalOf, body: JsonBody
) -> JSONResponse:
    """Classify texts; headers contain the model's origin. An extension of OpenAI's API."""
    request = await body.check(parse_classify_request)
    await ensure_model(services, principal, request.model)
    answer = await services.classifier.classify(request, body.value, new_id("clsf"))
    count_tokens(answer.num_prompt_tokens, is_exact=True)
    num_tokens = answer.num_prompt_tokens
    content: Mapping[str, object] = {
        "object": "list",
        "model": answer.origin.model_id,
        "data": [_describe(index, result) for index, result in enumerate(answer.results)],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return JSONResponse(content, headers=describe_origin_headers(answer.origin))


def _describe(index: int, result: Classification) -> ClassificationObject:
    if result.value is not None:
        return {"object": "classification", "index": index, "value": result.value}
    labels: list[LabelObject] = [{"label": label, "score": score} for label, score in result.labels]
    return {"object": "classification", "index": index, "labels": labels}
