"""The settings of the hub: which models clients may have the server install and push."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from apps.hub.hub_ids import check_pattern, matches_pattern


class HubSettings(BaseModel):
    """Which models of the Hugging Face hub clients may install and push; by default none.

    The server uses its own token, `HF_TOKEN`. In a pattern, '*' is any text and '?' any character
    of one part of an id, so 'Qwen/*' matches all models of Qwen, and '*/*' those of all owners.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    install: tuple[str, ...] = Field(
        (), description="Patterns of hub ids that may be installed as models, as in 'Qwen/*'."
    )
    push: tuple[str, ...] = Field(
        (),
        description="Patterns of repositories that models may be pushed to, as in 'my-org/*'.",
    )

    @field_validator("install", "push")
    @classmethod
    def _check_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_pattern(pattern) for pattern in patterns)

    @field_validator("push")
    @classmethod
    def _check_owners(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if "/" not in pattern:
                raise ValueError(f"{pattern!r} names no owner; expected owner/name, as in 'me/*'")
        return patterns

    def permits_install(self, hub_id: str) -> bool:
        """Return whether clients may install a model of the hub."""
        return any(matches_pattern(hub_id, pattern) for pattern in self.install)

    def permits_push(self, repository: str) -> bool:
        """Return whether clients may push models to a repository."""
        return any(matches_pattern(repository, pattern) for pattern in self.push)
