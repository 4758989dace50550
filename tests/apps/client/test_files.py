"""The client's requests for rows of files."""

import pytest

from apps.client.client import ApiClient
from apps.client.row_resources import FileRowPage
from tests.apps.stub_api import StubApi, ask
from tests.apps.stub_rows import make_finding

HANDBOOK = "file-handbook"


@pytest.fixture
def rows(api: StubApi) -> StubApi:
    api.rows.rows[HANDBOOK] = [{"text": f"row {number}"} for number in range(1, 6)]
    return api


def test_pages_follow_each_other(rows: StubApi) -> None:
    first = ask(rows, lambda client: client.rows.read_page(HANDBOOK, limit=3))
    assert [row.number for row in first.data] == [1, 2, 3]
    assert (first.has_more, first.last_number, first.columns) == (True, 3, ("text",))
    assert first.data[0].values[0].text == "row 1"
    second = ask(rows, lambda client: client.rows.read_page(HANDBOOK, first.next_after, limit=3))
    assert [row.number for row in second.data] == [4, 5]
    found = ask(rows, lambda client: client.rows.read_page(HANDBOOK, search="row 5"))
    assert [row.number for row in found.data] == [5]


def test_number_of_an_unknown_id_is_zero() -> None:
    assert FileRowPage(next_after="opaque").last_number == 0
    assert FileRowPage().last_number == 0


def test_settings_are_sent_with_statistics(rows: StubApi) -> None:
    settings = {"max_length": 32}
    found = ask(rows, lambda client: client.rows.get_statistics(HANDBOOK, "base", settings))
    assert (found.is_running, found.num_rows, found.lengths) == (False, 5, None)
    assert rows.rows.asked[-1] == {"file": HANDBOOK, "model": "base", "training": settings}


def test_findings_are_listed_and_downloaded(rows: StubApi) -> None:
    rows.rows.faults = [make_finding(number, number, "not JSON", "") for number in range(1, 9)]

    async def read(client: ApiClient) -> tuple[list[int], str]:
        listed = await client.rows.list_findings(HANDBOOK, "base", "faults", limit=3)
        text = await client.rows.download_findings(HANDBOOK, "base", "faults")
        return [row.number for row in listed], text

    numbers, text = ask(rows, read)
    assert numbers == [1, 2, 3]
    assert len(text.splitlines()) == 9
