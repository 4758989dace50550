"""The access settings, a part of the application's settings."""

from pydantic import BaseModel, ConfigDict, Field

from apps.access.audit import DEFAULT_MAX_BYTES, DEFAULT_NUM_OLD


class AccessSettings(BaseModel):
    """Settings of authentication and of the audit log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    require_key: bool = Field(
        False,
        description="Whether every request needs a key, also while none exists; set it where a "
        "proxy on this machine forwards requests.",
    )
    audit_max_bytes: int = Field(
        DEFAULT_MAX_BYTES,
        ge=10_000,
        description="Size of the audit log, in bytes, at which a new file is begun.",
    )
    audit_num_old: int = Field(
        DEFAULT_NUM_OLD, ge=0, description="Older files of the audit log that are kept."
    )
