"""Pages of lists that change between two requests."""

import pytest

from apps.errors import ApiError
from apps.fine_tuning.publishing import name_checkpoint, read_checkpoint_step
from apps.http_api.pagination import cut_page
from storage.layout import new_id

JOB = "ftjob-0001"


def page(ids: list[str], after: str | None, descending: bool | None = None) -> list[str]:
    return list(cut_page(ids, str, 2, after, descending=descending)[0])


def test_pages_follow_cursor() -> None:
    ids = ["a", "b", "c"]
    assert cut_page(ids, str, 2, None) == (["a", "b"], True)
    assert cut_page(ids, str, 2, "b") == (["c"], False)
    assert cut_page(ids, str, 2, "c") == ([], False)
    with pytest.raises(ApiError, match=r"^there is no entry 'd'"):
        cut_page(ids, str, 2, "d")


@pytest.mark.parametrize("descending", [False, True])
def test_page_continues_after_deleted_entry(descending: bool) -> None:
    ids = sorted((new_id("file") for _ in range(5)), reverse=descending)
    for number in range(5):
        left = [one for one in ids if one != ids[number]]
        assert page(left, ids[number], descending) == ids[number + 1 : number + 3]


def test_entry_with_foreign_id_is_not_skipped_after_deleted_entry() -> None:
    first, deleted, last = (new_id("file") for _ in range(3))
    assert page([first, "file-ftjob-x", last], deleted, descending=False) == ["file-ftjob-x", last]
    with pytest.raises(ApiError, match=r"^there is no entry 'file-ftjob-y'"):
        page([first, last], "file-ftjob-y", descending=False)


def test_page_continues_after_superseded_checkpoint() -> None:
    ids = [name_checkpoint(JOB, step) for step in (100, 90, 8)]

    def ask(after: str) -> list[str]:
        def read_step(checkpoint_id: str) -> int | None:
            return read_checkpoint_step(JOB, checkpoint_id)

        return list(cut_page(ids, str, 2, after, descending=True, read_place=read_step)[0])

    assert ask(name_checkpoint(JOB, 95)) == ids[1:]
    assert ask(name_checkpoint(JOB, 9)) == ids[2:]  # compared as a number, not as text
    assert ask(name_checkpoint(JOB, 1)) == []
    for strange in ("ftjob-0002-step-95", f"{JOB}-step-", f"{JOB}-step--5", "95", JOB):
        with pytest.raises(ApiError, match=r"^there is no entry"):
            ask(strange)
