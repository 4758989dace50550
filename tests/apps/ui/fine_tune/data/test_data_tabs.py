"""What the tabs with data show, and the files of rows with faults."""

from typing import Any

import pytest

from apps.ui.fine_tune.data.data_tabs import download_findings, read_tab
from apps.ui.fine_tune.fine_tune_request import read_data_request
from tests.apps.stub_api import StubApi, ask
from tests.apps.stub_rows import make_finding

CHOICE = {"model": "base", "task": "causal_lm", "data": "file-handbook"}


@pytest.fixture(autouse=True)
def rows(api: StubApi) -> None:
    api.rows.rows["file-handbook"] = [{"text": f"row {number}."} for number in range(1, 46)]
    api.rows.faults = [make_finding(4, 5, "not JSON", "")]


def read(api: StubApi, tab: str = "tokens", **more: Any) -> Any:
    asked = read_data_request({**CHOICE, "tab": tab, **more})
    return ask(api, lambda client: read_tab(client, asked))


def test_first_rows_are_those_of_the_settings_in_the_fields(api: StubApi) -> None:
    assert "ts-learned" in read(api)["html"]
    assert api.previews[-1] == {}
    read(api, task="sequence_classification", fields={"max_length": "64", "epochs": 9})
    assert api.previews[-1] == {"max_length": 64, "task": "sequence_classification"}


def test_rows_are_paged_and_searched(api: StubApi) -> None:
    first = read(api, "rows", model="")
    assert "Rows 1 to 20" in first["html"]
    assert "Rows 21 to 40" in read(api, "rows", after=first["next"])["html"]
    found = read(api, "rows", search=" ROW 33. ")
    assert "<mark>row 33.</mark>" in found["html"]
    assert found["next"] is None


def test_statistics_have_the_numbers_of_findings(api: StubApi) -> None:
    api.rows.num_running = 1
    assert read(api, "statistics")["is_running"]
    found = read(api, "statistics")
    assert (found["is_running"], found["num_faults"], found["num_duplicates"]) == (False, 1, 0)


@pytest.mark.parametrize(
    ("tab", "asked", "shown"),
    [
        ("tokens", {"model": ""}, "Choose a model and data to see the first rows here."),
        ("rows", {"data": ""}, "Choose data to see its rows here."),
        ("statistics", {"data": ""}, "Choose a model and data to see the lengths"),
        ("tokens", {"data": "file-gone"}, "Line 2: not JSON"),
        ("rows", {"after": "broken"}, "ts-error"),
        ("statistics", {"fields": {"columns": "{'a': 'b'}"}}, "Columns is not JSON"),
    ],
)
def test_missing_choice_and_faults_are_explained(
    api: StubApi, tab: str, asked: dict[str, Any], shown: str
) -> None:
    assert shown in read(api, tab, **asked)["html"]


def test_faulty_rows_are_downloaded_as_csv(api: StubApi) -> None:
    asked = read_data_request(CHOICE)
    saved = ask(api, lambda client: download_findings(client, asked, "faults"))
    assert saved == {
        "name": "file-handbook-faults.csv",
        "text": "number,line,reason\n4,5,not JSON",
    }
    faulty = read_data_request({**CHOICE, "fields": {"columns": "{'a': 'b'}"}})
    with pytest.raises(ValueError, match="Columns is not JSON"):
        ask(api, lambda client: download_findings(client, faulty, "faults"))
