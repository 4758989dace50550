"""The model that came of a run, and what can be done with it."""

from typing import Any

import pytest

from apps.client.model_resources import Model
from apps.client.resources import Access, Job
from apps.ui.runs.merging import Merge
from apps.ui.runs.run_result import find_result, render_result
from tests.apps.stub_api import StubApi, ask
from tests.apps.ui.hostile import HOSTILE, assert_escaped

ALL = ("models.write", "models.weights", "files.read")
ADMINISTRATOR = Access(key=None, permissions=ALL)


def make_job(**changes: Any) -> Job:
    values = {"id": "ftjob-1", "status": "succeeded", "fine_tuned_model": "base/tuned 1"}
    return Job.model_validate({**values, **changes})


def render(job: Job, access: Access = ADMINISTRATOR, merge: Merge | None = None) -> str:
    return render_result(job, Model(id=job.fine_tuned_model or ""), access, merge)


def test_result_links_to_chat_and_downloads() -> None:
    html = render(make_job(result_files=["file-m"]))
    assert 'id="chat-with-it" class="ts-button" href="./chat?model=base/tuned%201"' in html
    assert 'href="/v1/models/base/tuned%201/archive?format=zip" download>' in html
    assert 'href="/v1/files/file-m/content" download>' in html
    assert "Bearer" not in html


def test_result_is_evaluated_against_its_base_on_held_out_rows() -> None:
    html = render(make_job(model="base", training={"validation_fraction": 0.1}))
    query = "models=base%2Ftuned%201,base&amp;rows=job:ftjob-1"
    assert f'href="./evaluate?{query}"' in html
    assert "rows=job" not in render(make_job(model="base"))
    assert "./evaluate" not in render(make_job(training={"task": "image_classification"}))


def test_with_a_key_the_downloads_are_commands() -> None:
    html = render(make_job(), Access(key="ann", permissions=ALL))
    assert 'class="ts-link"' not in html
    assert 'curl -OJ -H "authorization: Bearer $KEY"' in html


def test_result_of_other_tasks_is_tried_on_their_page() -> None:
    html = render(make_job(training={"task": "image_classification"}))
    assert 'id="classify-with-it"' in html
    assert "promote" not in html  # `latest` is always a language model


@pytest.mark.parametrize(
    ("aliases", "permissions", "is_offered"),
    [((), ALL, True), (("latest",), ALL, False), ((), ("models.weights",), False)],
)
def test_result_is_promoted_by_those_who_may(
    aliases: tuple[str, ...], permissions: tuple[str, ...], is_offered: bool
) -> None:
    model = Model(id="tuned", aliases=aliases)
    html = render_result(make_job(), model, Access(key="x", permissions=permissions), None)
    assert ('data-action="promote"' in html) == is_offered
    assert all(f">{alias}</span>" in html for alias in aliases)


def test_merged_model_is_linked_once_it_exists() -> None:
    assert "merged" not in render(make_job(), merge=Merge("a-merged"))
    html = render(make_job(), merge=Merge("a-merged", exists=True))
    assert 'id="chat-with-merged" class="ts-button" href="./chat?model=a-merged"' in html


def test_deleted_model_is_reported(api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded", fine_tuned_model="tuned")
    found = ask(api, lambda client: find_result(client, make_job(fine_tuned_model="tuned")))
    assert found is not None
    assert ask(api, lambda client: find_result(client, make_job(fine_tuned_model="gone"))) is None
    html = render_result(make_job(fine_tuned_model="gone"), None, ADMINISTRATOR, None)
    assert "was deleted" in html


def test_unfinished_run_has_no_result(api: StubApi) -> None:
    job = make_job(status="running")
    assert render_result(job, None, ADMINISTRATOR, None) == ""
    assert ask(api, lambda client: find_result(client, job)) is None


def test_hostile_values_are_escaped() -> None:
    job = make_job(fine_tuned_model=HOSTILE, result_files=[HOSTILE])
    model = Model(id=HOSTILE, aliases=(HOSTILE,))
    assert_escaped(render_result(job, model, ADMINISTRATOR, Merge(HOSTILE, exists=True)))
    assert_escaped(render_result(job, None, ADMINISTRATOR, None))


def test_result_that_chats_links_to_comparison_with_its_base() -> None:
    html = render(make_job(model="base/1", fine_tuned_model="tuned"))
    assert 'href="./compare?models=base%2F1,tuned">Compare with base/1</a>' in html
    assert "compare" not in render(make_job(training={"task": "sequence_classification"}))
