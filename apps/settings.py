"""The settings of the application, as `deploy.yaml` gives them; the one place for them."""

from pydantic import BaseModel, ConfigDict, Field

from apps.bundled import DEMONSTRATION_MODEL
from serving.engine import EngineSettings
from storage.layout import DEFAULT_ROOT

BUNDLED_SOURCE = "bundled"


class ApplicationSettings(BaseModel):
    """Arguments of `apps.api:build_app`; a misspelt key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    storage: str = Field(
        DEFAULT_ROOT, min_length=1, description="Folder for files, runs and models."
    )
    base_models: dict[str, str] = Field(
        default_factory=lambda: {DEMONSTRATION_MODEL: BUNDLED_SOURCE},
        description="Models that may be fine-tuned, by the name that clients use: 'bundled', the "
        "folder of a Hugging Face model, or a model id on the hub.",
    )
    max_upload_bytes: int = Field(
        200_000_000, gt=0, description="Largest file that may be uploaded, in bytes."
    )
    max_model_bytes: int = Field(
        50_000_000_000, gt=0, description="Largest archive of a model that may be sent, in bytes."
    )
    max_concurrent_runs: int = Field(1, ge=1, description="Fine-tunes that compute at once.")
    max_loaded_models: int = Field(3, ge=1, description="Models that a generator keeps in memory.")
    engine: EngineSettings = Field(
        default_factory=EngineSettings, description="How the models generate."
    )
