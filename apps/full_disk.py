"""A full disk as an error of ours, where it has to cross between replicas or is one of several."""

from collections.abc import Iterator
from contextlib import contextmanager

from apps.errors import FULL_DISK, ApiError
from storage.machine_faults import is_out_of_room


@contextmanager
def refuse_full_disk() -> Iterator[None]:
    """Raise `ApiError` 507 where there is no room for what the body writes."""
    try:
        yield
    except OSError as exc:
        if is_out_of_room(exc):
            raise ApiError(507, FULL_DISK, code="disk_full") from exc
        raise
