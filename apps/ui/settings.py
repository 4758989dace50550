"""The settings of the page in `deploy.yaml`."""

from pydantic import BaseModel, ConfigDict, Field

from apps.access.gate import read_api_key
from apps.middleware.body_limit import DEFAULT_MAX_UPLOAD_BYTES


class UiSettings(BaseModel):
    """Arguments of `apps.ui:build_app`; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    api_url: str = Field(
        "http://127.0.0.1:8000",
        pattern=r"^https?://[^/]",
        description="URL of the HTTP API, without '/v1'.",
    )
    require_key: bool = Field(
        False,
        description="Whether a visitor needs a key even while none exists; set it like the "
        "setting of the API with this name.",
    )
    max_upload_bytes: int = Field(
        DEFAULT_MAX_UPLOAD_BYTES,
        gt=0,
        description="Largest file that may be uploaded on the page, in bytes; the API has its own "
        "limit.",
    )

    def needs_key(self) -> bool:
        """Return whether this process knows, without asking the API, that a key is required."""
        return self.require_key or read_api_key() is not None
