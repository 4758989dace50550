"""Paths of the page's requests, and which of them are files."""

import re

from starlette.types import Scope

_FILES = re.compile(r"/(assets|static|page-assets)/.*|/theme\.css|/favicon\.ico")


def find_route(scope: Scope) -> str:
    """Return the path of a request relative to the page's prefix."""
    path = str(scope.get("path", ""))
    return path.removeprefix(scope.get("root_path", "").rstrip("/"))


def is_file(route: str) -> bool:
    """Return whether a route is a file of the page's own: the same for all visitors."""
    return _FILES.fullmatch(route) is not None
