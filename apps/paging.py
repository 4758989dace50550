"""One page of a list, as OpenAI's clients ask for it."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query

from apps.errors import not_found

Limit = Annotated[int, Query(ge=1, le=1000, description="Entries at most.")]
After = Annotated[str | None, Query(description="Id of the last entry of the page before.")]
Item = TypeVar("Item")


def cut_page(
    items: Sequence[Item], get_id: Callable[[Item], str], limit: int, after: str | None
) -> tuple[Sequence[Item], bool]:
    """Cut one page out of a list; returns it and whether there is more.

    Raises `ApiError` 404 if `after` is not the id of an entry.
    """
    start = 0
    if after is not None:
        ids = [get_id(item) for item in items]
        if after not in ids:
            raise not_found("entry", after)
        start = ids.index(after) + 1
    return items[start : start + limit], len(items) > start + limit


def describe_page(data: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Show a page of entries, of which each has an id."""
    ids = [entry["id"] for entry in data]
    return {
        "object": "list",
        "data": list(data),
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }
