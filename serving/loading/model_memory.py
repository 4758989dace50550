"""The memory that a loaded model needs, as measured by its inspection."""

from pydantic import BaseModel, ConfigDict, Field


class ModelMemory(BaseModel):
    """Bytes by component; crosses process boundaries as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight_bytes: int = Field(
        ge=0, description="Parameters and buffers once, in the dtype that they are loaded in."
    )
    tied_head_bytes: int = Field(
        ge=0, description="The output head if it is tied to the embedding, else 0."
    )
    cache_token_bytes: int = Field(
        ge=0,
        description="Keys and values of one token in all layers of the cache; 0 for a model that "
        "generates no text.",
    )
    tokenizer_bytes: int = Field(
        0, ge=0, description="The tokenizer, with what finds control tokens in messages."
    )
