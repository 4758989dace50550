"""Settings of generation; the application's settings include them."""

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serving.store.handover_log import MAX_BYTES as MAX_HANDOVER_LOG_BYTES


class EngineSettings(BaseModel):
    """The resource limits of one engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_threads: int = Field(
        default=1, ge=1, description="Threads of torch, for the whole process: cores really free."
    )
    page_size: int = Field(
        default=32, ge=4, description="Tokens per page of the cache; whole pages are shared."
    )
    num_cache_blocks: int = Field(
        default=512,
        ge=1,
        description="Pages of cache for all requests together; no request can be longer.",
    )
    max_batch_tokens: int = Field(
        default=512, ge=1, description="Most tokens in one forward pass, prompts included."
    )
    max_running_requests: int = Field(
        default=16, ge=1, description="Most requests in one forward pass."
    )
    max_queued_requests: int = Field(
        default=32, ge=0, description="Requests that may wait beyond those; more are refused."
    )
    cuda_graphs: bool | None = Field(
        default=None,
        description="Whether passes on a GPU are captured and replayed as CUDA graphs; by default "
        "they are if flash attention is installed, except those with adapters.",
    )
    default_max_new_tokens: int = Field(
        default=256, ge=1, description="Tokens of an answer when the request names no limit."
    )
    request_timeout_s: float = Field(
        default=120.0, gt=0, description="Seconds from a request's arrival to its last token."
    )

    @property
    def capacity(self) -> int:
        """Most requests that may be running or queued at once."""
        return self.max_running_requests + self.max_queued_requests


class ClassifierSettings(BaseModel):
    """The replicas that classify texts, and the models that each of them loads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: int = Field(
        default=0, ge=0, description="Fewest replicas; at 0 the first request waits for one."
    )
    max_replicas: int = Field(default=1, ge=1, description="Most replicas.")
    max_loaded_models: int = Field(
        default=3, ge=1, description="Classifiers held in memory; one more while an alias moves."
    )
    max_loaded_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Bytes that the loaded classifiers of a replica may take; by default a quarter "
        "of the memory that is free when a replica starts, divided by max_replicas.",
    )
    request_timeout_s: float = Field(
        default=120.0, gt=0, description="Seconds from a request's arrival to its answer."
    )

    @model_validator(mode="after")
    def _check_order(self) -> "ClassifierSettings":
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas ({self.max_replicas}) is less than min_replicas "
                f"({self.min_replicas})"
            )
        return self


class GenerationSettings(BaseModel):
    """The settings of loaded models and generation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineSettings = Field(
        default_factory=EngineSettings, description="How each model's engine uses the machine."
    )
    max_loaded_models: int = Field(
        default=3, ge=1, description="Models held in memory; one more while an alias moves."
    )
    max_loaded_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Bytes that the weights and caches of all loaded models may take; by default "
        "half of the memory that is free when a replica starts, divided by how many replicas there "
        "may be; on a GPU 85 %.",
    )
    max_handover_log_bytes: int = Field(
        default=MAX_HANDOVER_LOG_BYTES,
        gt=0,
        description="Bytes after which the events of alias moves begin a new file; the one before "
        "is kept, older ones are removed.",
    )
    log_texts: bool = Field(
        default=False,
        description="Write requests for text and their answers into the log, as they are.",
    )
