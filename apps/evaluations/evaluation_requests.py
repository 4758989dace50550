"""The body of a request for an evaluation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from apps.errors import ApiError
from apps.fine_tuning.job_requests import MAX_SETTINGS
from serving.errors import ServingError
from serving.openai.protocol import MAX_MODEL_CHARACTERS, RequestPart, limit_items, parse_part
from storage.layout import MAX_ID_CHARACTERS

MAX_MODELS = 2
MAX_ROWS = 2000
MAX_NEW_TOKENS = 4096

_ModelName = Annotated[str, Field(min_length=1, max_length=MAX_MODEL_CHARACTERS)]


class EvaluationRequest(RequestPart):
    """Body of `POST /v1/evaluations`."""

    models: Annotated[list[_ModelName], limit_items(MAX_MODELS, "models", 1)] = Field(
        min_length=1,
        max_length=MAX_MODELS,
        description="Ids or aliases of one or two language models.",
    )
    file: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_ID_CHARACTERS,
        description="Id of an uploaded file of rows with answers; or use `job`.",
    )
    job: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_ID_CHARACTERS,
        description="Id of a fine-tuning job, whose validation rows are used; or use `file`.",
    )
    max_rows: int = Field(100, ge=1, le=MAX_ROWS, description="Most rows: the first ones are used.")
    max_tokens: int = Field(256, ge=1, le=MAX_NEW_TOKENS, description="Most tokens of one answer.")
    training: Annotated[dict[str, Any], limit_items(MAX_SETTINGS, "settings")] = Field(
        default_factory=dict,
        max_length=MAX_SETTINGS,
        description="Settings that affect how rows are read, as in `training` of a job.",
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema with an example, as it cannot say that one of two fields is needed."""
        schema = handler(core_schema)
        handler.resolve_ref_schema(schema)["examples"] = [{"models": ["MODEL"], "file": "FILE"}]
        return schema

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if self.file is not None and self.job is not None:
            raise ValueError("file and job are both given: name the rows by one of them")
        if self.file is None and self.job is None:
            raise ValueError(
                "neither file nor job is given: name a file of rows, or a job with validation rows"
            )
        return self


def parse_evaluation(body: Any) -> EvaluationRequest:
    """Validate the body of a request for an evaluation; raises `InvalidRequestError`."""
    return parse_part(EvaluationRequest, body)


@contextmanager
def name_model_field(place: int) -> Iterator[None]:
    """Name the model at `place` of `models` as the field at fault of errors about a model."""
    try:
        yield
    except (ApiError, ServingError) as exc:
        if exc.param == "model":
            exc.param = f"models.{place}"
        raise
