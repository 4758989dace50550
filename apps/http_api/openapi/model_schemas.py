"""Schemas in `/openapi.json` of models, their merges and transfers, and of aliases."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class Model(_Answer):
    """A model of the store."""

    id: str
    object: Literal["model"]
    created: int = Field(description="Unix seconds.")
    owned_by: str
    aliases: list[str]
    task: str = Field(
        description="What it does: 'causal_lm' generates text, 'sequence_classification' and "
        "'image_classification' classify, 'embedding' makes vectors of texts."
    )
    base: bool
    demonstration: bool
    run_id: str | None
    checkpoint_step: int | None
    kind: Literal["model", "adapter"] = Field(
        description="'adapter' for weights that are added to those of `base_model`."
    )
    base_model: str | None = Field(None, description="Id of an adapter's base model.")
    bytes: int = Field(description="Size of its files.")
    tuned_from: str | None = Field(description="Id of the model that it was fine-tuned from.")
    data: str | None = Field(description="Name of the data that it was fine-tuned on.")
    metrics: Mapping[str, float] = Field(
        description="Training loss and evaluation ('eval_loss', 'eval_accuracy', …), if known."
    )


class CardFile(_Answer):
    """A file of a model as it was published."""

    name: str
    bytes: int
    sha256: str


class ModelCard(_Answer):
    """The content of a model: README, files, size and architecture; null for what is unknown."""

    object: Literal["model.card"]
    id: str
    text: str | None = Field(description="Its README.md in Markdown, at most 100,000 bytes of it.")
    license: str | None = Field(description="The license that the README's front matter names.")
    files: list[CardFile]
    fault: str | None = Field(description="Why its files cannot be listed.")
    num_parameters: int | None = Field(description="Parameters of all tensors in its files.")
    dtype: str | None = Field(description="Data type of most of them, as in 'bf16'.")
    architecture: str | None
    context_length: int | None = Field(description="Tokens.")
    rank: int | None = Field(description="Rank of an adapter.")


class ModelList(_Answer):
    """All models."""

    object: Literal["list"]
    data: list[Model]


class MergeError(_Answer):
    """Why a merge failed: `message` and `code` of an error with this status."""

    status: int
    message: str
    code: str | None


class ModelMerge(_Answer):
    """A merge of an adapter into the new model `id`."""

    id: str
    object: Literal["model.merge"]
    adapter: str
    created: int = Field(description="Unix seconds.")
    status: Literal["merging", "succeeded", "failed"]
    error: MergeError | None


class ModelMergeList(_Answer):
    """The merges of an adapter, newest first."""

    object: Literal["list"]
    data: list[ModelMerge]


class Hub(_Answer):
    """What the operator permits clients to transfer from and to the Hugging Face hub."""

    object: Literal["hub"]
    install: list[str] = Field(description="Patterns of models that may be installed.")
    push: list[str] = Field(description="Patterns of repositories that models may be pushed to.")


class TransferError(_Answer):
    """Why a transfer failed: `message` and `code` of an error with this status."""

    status: int
    message: str
    code: str | None


class HubTransfer(_Answer):
    """An installation of a model from the hub, or a push of one to it."""

    id: str
    object: Literal["hub.transfer"]
    kind: Literal["install", "push"]
    model: str = Field(description="Id of the new model, or of the pushed one.")
    repository: str
    revision: str | None
    commit: str | None = Field(description="The commit of the hub that is installed.")
    created: int = Field(description="Unix seconds.")
    step: Literal["listing", "downloading", "checking", "installing", "uploading"]
    bytes: int = Field(description="Bytes received, or sent in whole files.")
    total_bytes: int | None
    status: Literal["running", "succeeded", "failed", "cancelled"]
    url: str | None = Field(description="Where a pushed model is.")
    error: TransferError | None


class HubTransferList(_Answer):
    """Transfers, newest first."""

    object: Literal["list"]
    data: list[HubTransfer]


class ModelVerification(_Answer):
    """All files of a model are as they were published."""

    id: str
    object: Literal["model.verification"]
    verified: Literal[True]


class AliasMove(_Answer):
    """A move of an alias; `model` is null if the alias was removed."""

    model: str | None
    at: int = Field(description="Unix seconds.")
    rollback: bool


class ModelAlias(_Answer):
    """A name that points to a model."""

    id: str
    object: Literal["alias"]
    model: str
    rollback_to: str | None = Field(description="The model that a rollback would point it to.")
    history: list[AliasMove]


class AliasList(_Answer):
    """All aliases."""

    object: Literal["list"]
    data: list[ModelAlias]


class AliasEvent(_Answer):
    """What one replica of the generator did when an alias moved."""

    object: Literal["alias.event"]
    alias: str
    outcome: str
    model: str
    before: str | None
    message: str
    at: int = Field(description="Unix seconds.")


class AliasEventList(_Answer):
    """The events of an alias."""

    object: Literal["list"]
    data: list[AliasEvent]
