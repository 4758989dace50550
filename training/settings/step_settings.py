"""The part of a spec that says what an optimizer step computes, and how many there are."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from training.settings.source_settings import MAX_INTEGER

_Decay = Annotated[float, Field(ge=0, lt=1)]


class StepSettings(BaseModel):
    """The optimizer, its schedule, the batches and the precision."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: int = Field(3, ge=1, le=1000, description="Passes over the rows.")
    max_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_INTEGER,
        description="Optimizer steps after which training ends, unless 'epochs' passes end before; "
        "the learning rate falls over these steps. Default: as many as the epochs have.",
    )
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Peak learning rate of AdamW.")
    lr_schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="How the learning rate falls after the warm-up; to 0 unless constant."
    )
    warmup_ratio: float = Field(
        0.05, ge=0, lt=1, description="Share of the steps in which the learning rate rises from 0."
    )
    warmup_steps: int | None = Field(
        None,
        ge=0,
        le=MAX_INTEGER,
        description="Steps in which the learning rate rises from 0, in place of 'warmup_ratio', "
        "which is not used then.",
    )
    weight_decay: float = Field(
        0.01, ge=0, le=1, description="Decoupled weight decay; never on norms and biases."
    )
    adam_betas: tuple[_Decay, _Decay] = Field(
        (0.9, 0.95), description="Decay of AdamW's running means of the gradient and its square."
    )
    adam_epsilon: float = Field(
        1e-8, gt=0, description="Added to the root of AdamW's second moment."
    )
    max_grad_norm: float = Field(
        1.0, gt=0, description="Global norm at which gradients are clipped."
    )
    micro_batch_tokens: int = Field(
        1024,
        ge=8,
        le=MAX_INTEGER,
        description="Tokens of one micro batch of one worker, including padding, at most.",
    )
    micro_batch_size: int | None = Field(
        None,
        ge=1,
        le=MAX_INTEGER,
        description="Rows in one micro batch of one worker, at most; default: no limit, or that of "
        "the task.",
    )
    gradient_accumulation_steps: int = Field(
        1, ge=1, le=65536, description="Micro batches of one worker per optimizer step."
    )
    batch_layout: Literal["auto", "padded", "flattened"] = Field(
        "auto",
        description="Rows of a micro batch: 'padded' to the longest, or 'flattened' into one "
        "sequence without padding; 'auto' flattens where attention computes rows separately.",
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto",
        description="Arithmetic of the forward and backward pass; master weights are fp32. 'auto' "
        "takes bf16 on GPUs and on CPUs that compute in it, else fp32.",
    )
    export_dtype: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto", description="Type of the model's weights as published; 'auto': 'precision'."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the order of rows and of dropout.")
