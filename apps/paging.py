"""One page of a list, as OpenAI's clients ask for it."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query

from apps.errors import ApiError
from storage.layout import is_id

Limit = Annotated[int, Query(ge=1, le=1000, description="Entries at most.")]
After = Annotated[str | None, Query(description="Id of the last entry of the page before.")]
Item = TypeVar("Item")


def cut_page(
    items: Sequence[Item],
    get_id: Callable[[Item], str],
    limit: int,
    after: str | None,
    *,
    newest_first: bool | None = None,
) -> tuple[Sequence[Item], bool]:
    """Cut one page out of a list; returns it and whether there is more.

    Where the list is in the order of `new_id`'s ids, `newest_first` or not, a page also goes on
    after an entry that has been deleted. Raises `ApiError` 404 if `after` is no entry's id.
    """
    if after is None:
        start = 0
    else:
        start = _find_next([get_id(item) for item in items], after, newest_first)
    return items[start : start + limit], len(items) > start + limit


def _find_next(ids: Sequence[str], after: str, newest_first: bool | None) -> int:
    if after in ids:
        return ids.index(after) + 1
    if newest_first is None or not is_id(after):
        raise ApiError(404, f"there is no entry {after!r}", param="after", code="not_found")
    beyond = (number for number, one in enumerate(ids) if (one < after) == newest_first)
    return next(beyond, len(ids))


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
