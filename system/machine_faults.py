"""Distinguishes machine faults, which may be transient, from faults of the input."""

import errno

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors that names and types of files can cause. All other errors count as machine faults, because
# a list of those would never be complete.
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
# These exception types may be raised without an errno.
_ERRORS_OF_INPUT = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


def is_out_of_space(exc: BaseException) -> bool:
    """Return whether an exception means that a disk or a quota is full."""
    return isinstance(exc, OSError) and exc.errno in _NO_ROOM


def is_machine_fault(exc: BaseException) -> bool:
    """Return whether retrying the same operation may succeed.

    Every `OSError` is a machine fault unless names that are taken, absent, too long or otherwise
    invalid explain it.
    """
    if isinstance(exc, MemoryError):
        return True
    if not isinstance(exc, OSError) or isinstance(exc, _ERRORS_OF_INPUT):
        return False
    return exc.errno not in _FAULTS_OF_INPUT
