"""Tells faults of the machine, which may pass, from those of what was read."""

import errno

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
# What names and kinds of files can cause. Everything else is the machine's: a list of its faults
# would never be complete.
_FAULTS_OF_INPUT = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENOTEMPTY,
        errno.ENAMETOOLONG,
        errno.EILSEQ,
        errno.EINVAL,
        errno.ELOOP,
    }
)
# These kinds may be raised without a number.
_ERRORS_OF_INPUT = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


def is_out_of_room(exc: BaseException) -> bool:
    """Whether a disk, or what somebody may have of it, is full."""
    return isinstance(exc, OSError) and exc.errno in _NO_ROOM


def is_machine_fault(exc: BaseException) -> bool:
    """Whether the same may go well another time, with nothing else asked for.

    Every `OSError` is such a fault unless names that are taken, absent, too long or otherwise
    impossible explain it.
    """
    if isinstance(exc, MemoryError):
        return True
    if not isinstance(exc, OSError) or isinstance(exc, _ERRORS_OF_INPUT):
        return False
    return exc.errno not in _FAULTS_OF_INPUT
