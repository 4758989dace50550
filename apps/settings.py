"""The settings of the application in `deploy.yaml`, defined only here."""

from typing import Any, NotRequired, TypedDict
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from apps.access.settings import AccessSettings
from apps.bundled import DEMONSTRATION_MODEL
from apps.hub.settings import HubSettings
from apps.middleware.body_limit import DEFAULT_MAX_UPLOAD_BYTES
from serving.settings import ClassifierSettings, GenerationSettings
from storage.layout import DEFAULT_ROOT
from storage.local_paths import check_local_path
from training.data.token_cache import MAX_CACHE_BYTES
from training.settings.loop_settings import check_loop_name

BUNDLED_SOURCE = "bundled"
_BEYOND_CAPACITY = 64


class ReplicaOptions(TypedDict):
    """Options of a Serve deployment."""

    max_ongoing_requests: int
    max_queued_requests: int
    num_replicas: NotRequired[int]
    autoscaling_config: NotRequired[dict[str, float]]


class ReplicaSettings(BaseModel):
    """The number of generator replicas; each has its own copy of the models that it serves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min: int = Field(
        1, ge=0, description="Fewest replicas; at 0 the first request waits for one to start."
    )
    max: int = Field(1, ge=1, description="Most replicas.")
    target_ongoing_requests: float = Field(
        8.0, gt=0, description="Requests per replica beyond which one more is started."
    )

    @model_validator(mode="after")
    def _check_order(self) -> "ReplicaSettings":
        if self.max < self.min:
            raise ValueError(f"max ({self.max}) is less than min ({self.min})")
        return self

    def to_options(self, capacity: int) -> ReplicaOptions:
        """Convert to options of a Serve deployment; `capacity` is that of one replica.

        A single replica may get more requests than its capacity: it refuses the excess itself and
        reports when to retry. One of several replicas must get no more than its capacity, so that
        the others get the rest.
        """
        limit = capacity if self.max > 1 else capacity + _BEYOND_CAPACITY
        limits: ReplicaOptions = {"max_ongoing_requests": limit, "max_queued_requests": limit}
        if self.min == self.max:
            return {**limits, "num_replicas": self.max}
        scaling: dict[str, float] = {
            "min_replicas": self.min,
            "max_replicas": self.max,
            "target_ongoing_requests": self.target_ongoing_requests,
        }
        return {**limits, "autoscaling_config": scaling}


class UpstreamSettings(BaseModel):
    """An OpenAI-compatible server for text requests; a URL alone is accepted as a short form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(description="Where it is, without '/v1'.")
    key_variable: str | None = Field(
        None,
        min_length=1,
        description="The environment variable with its key; ours, for a server on this machine, if "
        "absent.",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_url(cls, given: Any) -> Any:
        return {"url": given} if isinstance(given, str) else given

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if "@" in url:  # logs would contain it
            raise ValueError("expected no user or password; name the key's variable: key_variable")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected http://HOST[:PORT][/PATH] or the same with https")
        return url


class UsageLimits(BaseModel):
    """Limits on what clients may store and request; requests beyond a limit are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_jobs: int = Field(
        10_000, ge=1, le=1_000_000, description="Fine-tuning jobs on record, ended ones included."
    )
    max_unfinished_jobs: int = Field(
        100, ge=1, le=10_000, description="Fine-tuning jobs that are queued, paused or running."
    )
    max_files: int = Field(
        20_000, ge=1, le=1_000_000, description="Files on record: uploads and results of jobs."
    )
    max_stored_bytes: int = Field(
        100_000_000_000, gt=0, description="Bytes of all files together; models do not count."
    )
    max_model_store_bytes: int = Field(
        1_000_000_000_000,
        gt=0,
        description="Bytes of all models and of the checkpoints of all jobs together, beyond which "
        "no job is created, no checkpoint published and no model imported.",
    )
    max_workers_per_job: int = Field(
        256, ge=1, le=4096, description="Highest 'num_workers' of a fine-tuning job."
    )
    max_threads_per_worker: int = Field(
        64, ge=1, le=256, description="Highest 'threads_per_worker' of a fine-tuning job."
    )
    max_kept_checkpoints: int = Field(
        20, ge=1, le=1000, description="Highest 'keep_checkpoints' of a fine-tuning job."
    )


class ApplicationSettings(GenerationSettings, UsageLimits, AccessSettings):
    """Arguments of `apps.deployments:build_app`; an unknown key is refused."""

    storage: str = Field(
        DEFAULT_ROOT, min_length=1, description="Folder for files, runs and models."
    )
    base_models: dict[str, str] = Field(
        default_factory=lambda: {DEMONSTRATION_MODEL: BUNDLED_SOURCE},
        description="Models that may be fine-tuned, by the name that clients use: 'bundled', the "
        "folder of a Hugging Face model, or a model id on the hub.",
    )
    max_upload_bytes: int = Field(
        DEFAULT_MAX_UPLOAD_BYTES, gt=0, description="Largest file that may be uploaded, in bytes."
    )
    max_model_bytes: int = Field(
        50_000_000_000,
        gt=0,
        description="Largest archive of a model that may be sent, and largest model that may be "
        "installed from the hub, in bytes.",
    )
    max_token_cache_bytes: int = Field(
        MAX_CACHE_BYTES,
        ge=0,
        description="Bytes of tokenised rows that are kept for later jobs; the longest unused are "
        "removed first.",
    )
    min_free_bytes: int = Field(
        100_000_000,
        ge=0,
        description="Free space of the storage folder, in bytes, below which '/readyz' is 503.",
    )
    max_streams: int = Field(
        256,
        ge=1,
        description="Streams of events and followed logs that one replica of the API has open at "
        "once, of which one key has three quarters; one more is answered with 429.",
    )
    max_stream_age_s: float = Field(
        3600.0,
        gt=0,
        description="Seconds after which a stream of events or a followed log ends; its client "
        "connects again with the id of the last event, or the offset.",
    )
    max_concurrent_runs: int = Field(1, ge=1, description="Fine-tunes that compute at once.")
    max_restarts: int = Field(
        3,
        ge=0,
        description="How often a fine-tune whose process was lost is restarted without having "
        "completed a step in between.",
    )
    allowed_loops: tuple[str, ...] = Field(
        (),
        description="Training functions that a job may name as its 'loop', each as "
        "'package.module:function'; their modules must be installed beside Tuneserve.",
    )
    hub: HubSettings = Field(
        default_factory=HubSettings,
        description="Models of the Hugging Face hub that clients may install and push; by default "
        "none.",
    )
    replicas: ReplicaSettings = Field(
        default_factory=ReplicaSettings, description="How many generators there are."
    )
    classifier: ClassifierSettings = Field(
        default_factory=ClassifierSettings, description="How texts are classified."
    )
    upstreams: tuple[UpstreamSettings, ...] = Field(
        (),
        description="Servers of OpenAI's API that answer requests for text in place of generators; "
        "each request goes to the first that lists its model.",
    )
    reserved_cpus: float = Field(
        0.0,
        ge=0,
        description="Logical CPUs that other applications of the cluster reserve permanently.",
    )
    reserved_gpus: float = Field(
        0.0, ge=0, description="GPUs that other applications of the cluster reserve permanently."
    )

    @field_validator("storage")
    @classmethod
    def _check_storage(cls, root: str) -> str:
        check_local_path("storage", root)
        return root

    @field_validator("allowed_loops")
    @classmethod
    def _check_loops(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_loop_name(name) for name in names)

    @field_validator("base_models")
    @classmethod
    def _check_base_models(cls, sources: dict[str, str]) -> dict[str, str]:
        for name, source in sources.items():
            check_local_path(f"base_models.{name}", source, "a folder or a model id on the hub")
        return sources

    def to_limits(self) -> UsageLimits:
        """Return only the usage limits."""
        return UsageLimits(**self.model_dump(include=set(UsageLimits.model_fields)))

    def read_access(self) -> AccessSettings:
        """Return only the access settings."""
        return AccessSettings(**{name: getattr(self, name) for name in AccessSettings.model_fields})
