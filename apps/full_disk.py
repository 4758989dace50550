"""What is said of a disk that has no room for what comes in."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from apps.errors import ApiError


@contextmanager
def refuse_full_disk() -> Iterator[None]:
    """Raise `ApiError` 507 where there is no room for what the body writes."""
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ApiError(507, "the server's disk has no room for it") from exc
        raise
