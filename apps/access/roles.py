"""Roles of keys, and the permission that each route requires.

A route declares its permission beside its path, with `@requires(...)`. `apps/middleware/auth.py`
refuses a route that declares none, so a new route whose permission was forgotten is inaccessible
instead of public. `docs/security.md` contains the table of roles for users.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

_ATTRIBUTE = "required_permission"
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Permission(StrEnum):
    """What a route requires of a key."""

    ANY_KEY = "any key"
    """Every valid key: the response contains nothing that depends on the role."""
    READ_MODELS = "models.read"
    """List and show models, their lineage, and aliases."""
    READ_JOBS = "jobs.read"
    """Show jobs, their events, metrics, logs and checkpoints, evaluations, and records of files."""
    GENERATE = "text.generate"
    """Chat and text completions."""
    READ_FILES = "files.read"
    """The content of files: training data, previews of it, and answers to its rows."""
    WRITE_FILES = "files.write"
    """Upload and delete files."""
    WRITE_JOBS = "jobs.write"
    """Create, change and delete jobs and evaluations; publish checkpoints."""
    READ_WEIGHTS = "models.weights"
    """Download a model, or compare all its files with what was published."""
    ADMINISTER = "models.write"
    """Import and delete models; move and remove aliases."""


class Role(StrEnum):
    """The role of a key."""

    READ = "read"
    CHAT = "chat"
    TRAIN = "train"
    ADMIN = "admin"


_READ = {Permission.ANY_KEY, Permission.READ_MODELS, Permission.READ_JOBS}
_CHAT = {Permission.ANY_KEY, Permission.READ_MODELS, Permission.GENERATE}
_TRAIN = {
    *_READ,
    *_CHAT,
    Permission.READ_FILES,
    Permission.WRITE_FILES,
    Permission.WRITE_JOBS,
    Permission.READ_WEIGHTS,
}
ROLE_PERMISSIONS: Mapping[Role, frozenset[Permission]] = {
    Role.READ: frozenset(_READ),
    Role.CHAT: frozenset(_CHAT),
    Role.TRAIN: frozenset(_TRAIN),
    Role.ADMIN: frozenset(Permission),
}


class RouteMatch(NamedTuple):
    """The route that a request is for."""

    permission: Permission | None
    """None if the route declares none."""
    subject: str | None
    """The id in its path, if it has one."""


def requires(permission: Permission) -> Callable[[Endpoint], Endpoint]:
    """Declare the permission that a route requires."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ATTRIBUTE, permission)
        return endpoint

    return declare


def find_permission(route: BaseRoute) -> Permission | None:
    """Return the permission that a route declares, or None."""
    return getattr(getattr(route, "endpoint", None), _ATTRIBUTE, None)


def match_route(routes: Iterable[BaseRoute], scope: Scope) -> RouteMatch | None:
    """Find the route of a request; None if no route has its path and method."""
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.FULL:
            identifiers = "/".join(map(str, child.get("path_params", {}).values()))
            return RouteMatch(find_permission(route), identifiers or None)
    return None


def list_roles(permission: Permission) -> list[str]:
    """Return the names of the roles that have a permission."""
    return [role.value for role, allowed in ROLE_PERMISSIONS.items() if permission in allowed]
