"""Translation of a full disk to `ApiError`.

It is used where the error crosses from one replica to another, or has to be distinguished from
other `OSError`s.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from apps.errors import FULL_DISK, ApiError
from system.machine_faults import is_out_of_room


@contextmanager
def refuse_full_disk() -> Iterator[None]:
    """Raise `ApiError` 507 if the disk has no room for what the body writes."""
    try:
        yield
    except OSError as exc:
        if is_out_of_room(exc):
            raise ApiError(507, FULL_DISK, code="disk_full") from exc
        raise
