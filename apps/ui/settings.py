"""The settings of the page, as `deploy.yaml` gives them."""

from pydantic import BaseModel, ConfigDict, Field

from apps.middleware.auth import read_api_key
from apps.middleware.body_limit import DEFAULT_MAX_UPLOAD_BYTES


class UiSettings(BaseModel):
    """Arguments of `apps.ui:build_app`; a misspelt key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    api_url: str = Field(
        "http://127.0.0.1:8000",
        pattern=r"^https?://[^/]",
        description="Where this process finds the HTTP API, without '/v1'.",
    )
    api_key: str | None = Field(
        None,
        min_length=1,
        description="Sent to the API, and asked of whoever opens the page; default: the "
        "environment variable TUNESERVE_API_KEY.",
    )
    max_upload_bytes: int = Field(
        DEFAULT_MAX_UPLOAD_BYTES,
        gt=0,
        description="Largest file that may be uploaded on the page, in bytes; the API has its own "
        "limit.",
    )

    def find_api_key(self) -> str | None:
        """Return the key to use, if there is one."""
        return self.api_key or read_api_key()
