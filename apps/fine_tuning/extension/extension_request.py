"""The body of a request to extend a job, and the settings of the job that follows from it."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from apps.errors import InvalidInputError, invalid_input
from serving.openai.protocol import MAX_INTEGER, RequestPart, parse_part
from training.run.folder import RunFolder
from training.run.reopen import find_limit
from training.spec import TrainingSpec

_NAMES = ("epochs", "max_steps")
_Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]


class ExtensionRequest(RequestPart):
    """Body of `POST /v1/fine_tuning/jobs/{job_id}/extend`: how long the training is in all."""

    epochs: _Count | None = Field(
        None, description="Passes over the rows in all, those of the extended job included."
    )
    max_steps: _Count | None = Field(
        None, description="Optimizer steps in all; only for a job that has max_steps."
    )
    suffix: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$",
        description="Becomes part of the new model's id; default: that of the extended job.",
    )

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.epochs is None and self.max_steps is None:
            raise ValueError("expected 'epochs', how many passes over the rows there are in all")
        return self


def parse_extension(body: Any) -> ExtensionRequest:
    """Validate the body of a request for an extension; raises `InvalidRequestError`."""
    return parse_part(ExtensionRequest, body)


def extend_settings(run: RunFolder, request: ExtensionRequest) -> TrainingSpec:
    """Return the settings of a succeeded run with the requested length.

    Raises `InvalidInputError` if the training would not become longer.
    """
    before = run.read_spec()
    limit = find_limit(run, before)
    changes = {}
    for name in _NAMES:
        was, asked = getattr(before, name), getattr(request, name)
        if asked is None and name != limit:
            continue
        ended = f"job {run.path.name!r} ended with {name} {was}"
        if was is None:
            raise InvalidInputError(
                f"{name} is {asked}, and job {run.path.name!r} was not limited by it: leave it "
                "out, and set epochs",
                param=name,
            )
        least = was + 1 if name == limit else was
        if asked is None:
            raise InvalidInputError(f"{ended}: set {name} to at least {least}", param=name)
        if asked < least:
            raise InvalidInputError(
                f"{name} is {asked}, and {ended}: expected at least {least}", param=name
            )
        changes[name] = asked
    with invalid_input(limit):
        return TrainingSpec.model_validate({**before.model_dump(), **changes})


def extend_request(asked: Mapping[str, Any], request: ExtensionRequest) -> dict[str, object]:
    """Return the request that an extended job was created with, changed as its extension is."""
    lengths = {name: value for name in _NAMES if (value := getattr(request, name)) is not None}
    training = asked.get("training")
    before = training if isinstance(training, Mapping) else {}
    changed: dict[str, object] = {"training": {**before, **lengths}}
    if request.suffix is not None:
        changed["suffix"] = request.suffix
    return {**asked, **changed}
