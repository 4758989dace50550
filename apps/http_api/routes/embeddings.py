"""`/v1/embeddings`: vectors of texts, in OpenAI's format."""

import asyncio
import base64
import struct
from typing import Literal, TypedDict

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from apps.access.exchange import count_tokens
from apps.access.roles import Permission, requires
from apps.http_api.completion_responses import describe_origin_headers
from apps.http_api.json_body import JsonBody
from apps.http_api.publish_on_demand import ensure_model
from apps.http_api.routes import PrincipalOf, ServicesOf, describe_body
from serving.classification.embedding_request import EmbeddingRequest, parse_embedding_request
from serving.classification.wire import EmbedAnswer
from storage.layout import new_id

router = APIRouter(prefix="/v1")

EncodingFormat = Literal["float", "base64"]


class EmbeddingObject(TypedDict):
    """The vector of one input, as numbers or as base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


@router.post("/embeddings", openapi_extra=describe_body(EmbeddingRequest))
@requires(Permission.GENERATE)
async def embed_texts(services: ServicesOf, principal: PrincipalOf, body: JsonBody) -> JSONResponse:
    """Return the vectors of texts; headers contain the model's origin."""
    request = await body.check(parse_embedding_request)
    await ensure_model(services, principal, request.model)
    answer = await services.classifier.embed(request, body.value, new_id("embd"))
    count_tokens(answer.num_prompt_tokens, is_exact=True)
    # Numbers of many dimensions take long to write.
    return await asyncio.to_thread(_write_response, answer, request.encoding_format)


def _write_response(answer: EmbedAnswer, encoding_format: EncodingFormat) -> JSONResponse:
    num_tokens = answer.num_prompt_tokens
    content = {
        "object": "list",
        "model": answer.origin.model_id,
        "data": [
            _describe(index, vector, encoding_format) for index, vector in enumerate(answer.vectors)
        ],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return JSONResponse(content, headers=describe_origin_headers(answer.origin))


def _describe(index: int, vector: bytes, encoding_format: EncodingFormat) -> EmbeddingObject:
    if encoding_format == "base64":
        coded = base64.b64encode(vector).decode()
        return {"object": "embedding", "index": index, "embedding": coded}
    numbers = list(struct.unpack(f"<{len(vector) // 4}f", vector))
    return {"object": "embedding", "index": index, "embedding": numbers}
