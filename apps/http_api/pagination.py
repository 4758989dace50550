"""Pagination of lists, as OpenAI's clients expect it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from fastapi import Query

from apps.errors import ApiError
from storage.layout import is_id

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries.")]
After = Annotated[str | None, Query(description="Id of the last entry of the previous page.")]
Item = TypeVar("Item")
Entry = Mapping[str, object]
"""An entry of a list as the API shows it."""


def read_made_id(entry_id: str) -> str | None:
    """Return the sort key of an id of `new_id`, which sorts by time; None for any other id."""
    return entry_id if is_id(entry_id) else None


def cut_page(
    items: Sequence[Item],
    get_id: Callable[[Item], str],
    limit: int,
    after: str | None,
    *,
    descending: bool | None = None,
    read_place: Callable[[str], Any] = read_made_id,
) -> tuple[Sequence[Item], bool]:
    """Return one page of a list, and whether there are more entries.

    If the list is known to ascend or descend by what `read_place` reads from ids, which need not
    work for every id, a page can also start after an entry that has been deleted meanwhile. Raises
    `ApiError` 404 if `after` can never have been an entry's id.
    """
    if after is None:
        start = 0
    else:
        start = _find_next([get_id(item) for item in items], after, descending, read_place)
    return items[start : start + limit], len(items) > start + limit


def _find_next(
    ids: Sequence[str], after: str, descending: bool | None, read_place: Callable[[str], Any]
) -> int:
    if after in ids:
        return ids.index(after) + 1
    place = None if descending is None else read_place(after)
    if place is None:
        raise ApiError(404, f"there is no entry {after!r}", param="after", code="not_found")
    before = [
        number
        for number, one in enumerate(map(read_place, ids))
        if one is not None and (one > place) == descending
    ]
    return before[-1] + 1 if before else 0


class PageObject(TypedDict):
    """A page of a list as the API shows it."""

    object: Literal["list"]
    data: list[Entry]
    first_id: str | None
    last_id: str | None
    has_more: bool


def describe_page(data: Sequence[Entry], *, has_more: bool) -> PageObject:
    """Describe a page of entries, each of which has an id."""
    ids = [str(entry["id"]) for entry in data]
    return {
        "object": "list",
        "data": list(data),
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }
