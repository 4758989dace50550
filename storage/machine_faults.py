"""Tells faults of the machine, which may pass, from those of what was read."""

import errno

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAULTS = _NO_ROOM | {errno.EIO, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


def is_out_of_room(exc: BaseException) -> bool:
    """Whether a disk, or what somebody may have of it, is full."""
    return isinstance(exc, OSError) and exc.errno in _NO_ROOM


def is_machine_fault(exc: BaseException) -> bool:
    """Whether the same may go well another time, with nothing else asked for."""
    return isinstance(exc, MemoryError) or (isinstance(exc, OSError) and exc.errno in _FAULTS)
