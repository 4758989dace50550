"""Ids and revisions of models on the Hugging Face hub, and patterns of ids; none is ever a path."""

import re
from fnmatch import fnmatchcase

MAX_HUB_CHARACTERS = 200
_EXPECTED_PART = (
    "1 to 96 letters, digits, '.', '_' or '-' that begin and end with a letter, a digit or '_'"
)
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_PATTERN_PART = re.compile(r"[A-Za-z0-9._*?-]{1,96}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9_])?", re.ASCII)


def check_hub_id(hub_id: str, *, needs_owner: bool = False) -> str:
    """Return a hub id of the form 'name' or 'owner/name'; raise `ValueError` for anything else."""
    form = "owner/name" if needs_owner else "name or owner/name"
    parts = hub_id.split("/")
    has_parts = len(parts) == 2 or (len(parts) == 1 and not needs_owner)
    if not has_parts or not all(map(_is_part, parts)):
        raise ValueError(
            f"{hub_id[:MAX_HUB_CHARACTERS]!r} is no id of a model on the hub: expected {form}, "
            f"each {_EXPECTED_PART}, without '..' and '--'"
        )
    return hub_id


def _is_part(part: str) -> bool:
    has_refused = ".." in part or "--" in part or part.endswith(".git")
    return _PART.fullmatch(part) is not None and not has_refused


def check_revision(revision: str) -> str:
    """Return the name of a branch or tag, or a commit's hash; raise `ValueError` for others.

    References such as 'refs/pr/1' are refused: anybody may propose content under them.
    """
    names_others = revision.lower().startswith("refs/")
    is_name = _REVISION.fullmatch(revision) and ".." not in revision and "//" not in revision
    if not is_name or names_others:
        raise ValueError(
            f"{revision[:MAX_HUB_CHARACTERS]!r} is no revision: expected the name of a branch or a "
            "tag, or the hash of a commit; pull requests ('refs/pr/…') are not installed"
        )
    return revision


def check_pattern(pattern: str) -> str:
    """Return a pattern of hub ids; raise `ValueError` for one that can match no id."""
    parts = pattern.split("/")
    if len(parts) > 2 or not all(map(_PATTERN_PART.fullmatch, parts)):
        raise ValueError(
            f"{pattern!r} is no pattern of hub ids: expected owner/name or name, in which '*' is "
            "any text and '?' any character, but never '/', as in 'Qwen/*'"
        )
    return pattern


def matches_pattern(hub_id: str, pattern: str) -> bool:
    """Return whether a hub id matches a pattern; letters of another case differ."""
    ids, patterns = hub_id.split("/"), pattern.split("/")
    return len(ids) == len(patterns) and all(map(fnmatchcase, ids, patterns))
