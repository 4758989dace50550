import errno
import os

import pytest

from system.machine_faults import is_machine_fault, is_out_of_space

MACHINE = [
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ETIMEDOUT,
    errno.EBUSY,
    errno.ENODEV,
    errno.EFBIG,
    errno.EAGAIN,
]
INPUT = [
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.ELOOP,
]


def make(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "exc",
    [
        *map(make, MACHINE),
        MemoryError(),
        OSError("the process that renders has ended"),
        TimeoutError(),
        ConnectionError("the hub does not answer"),
    ],
    ids=repr,
)
def test_what_names_do_not_explain_is_a_fault_of_the_machine(exc: BaseException) -> None:
    assert is_machine_fault(exc)


@pytest.mark.parametrize(
    "exc",
    [
        *map(make, INPUT),
        FileNotFoundError("the file has been deleted"),
        ValueError("row 3 has no text"),
        RuntimeError("a bug"),
    ],
    ids=repr,
)
def test_names_and_content_are_no_fault_of_the_machine(exc: BaseException) -> None:
    assert not is_machine_fault(exc)


def test_only_a_full_disk_has_no_room() -> None:
    assert [is_out_of_space(make(n)) for n in (errno.ENOSPC, errno.EDQUOT)] == [True, True]
    assert not is_out_of_space(make(errno.EROFS))
