"""The client's requests for evaluations."""

import pytest

from apps.client.client import ApiClient
from apps.client.errors import RequestRefusedError, UnexpectedResponseError
from apps.client.evaluation_resources import Evaluation
from apps.client.resources import read_resource
from tests.apps.stub_api import StubApi, ask
from tests.apps.stub_evaluations import make_evaluated_model, make_row


def test_new_evaluation_has_the_fields_that_were_given(api: StubApi) -> None:
    made = ask(
        api,
        lambda client: client.evaluations.create(
            {"models": ["base", "latest"], "file": "file-1", "job": None, "max_rows": 7}
        ),
    )
    assert api.evaluations_of_models.bodies == [
        {"models": ["base", "latest"], "file": "file-1", "max_rows": 7}
    ]
    assert (made.status, made.file, made.job, made.max_rows) == ("queued", "file-1", None, 7)
    assert [model.requested for model in made.models] == ["base", "latest"]
    assert (made.is_active, made.num_rows, made.models[0].exact_match) == (True, None, None)


def test_refusal_names_the_field(api: StubApi) -> None:
    api.evaluations_of_models.fault = (400, "max_rows is 0: expected 1 to 2000", "max_rows")
    with pytest.raises(RequestRefusedError, match="expected 1 to 2000") as caught:
        ask(api, lambda client: client.evaluations.create({"models": ["base"], "max_rows": 0}))
    assert caught.value.param == "max_rows"


def test_all_pages_are_listed_newest_first_or_those_of_a_model(api: StubApi) -> None:
    for number in range(150):
        names = ("base",) if number % 2 else ("base-tuned", "base")
        models = [make_evaluated_model(name) for name in names]
        api.evaluations_of_models.add(f"eval-{number}", "succeeded", models=models)
    found = ask(api, lambda client: client.evaluations.list_all())
    assert [one.id for one in found] == [f"eval-{number}" for number in reversed(range(150))]
    of_model = ask(api, lambda client: client.evaluations.list_all("base-tuned"))
    assert len(of_model) == 75
    newest = ask(api, lambda client: client.evaluations.list_all(limit=2))
    assert [one.id for one in newest] == ["eval-149", "eval-148"]


def test_evaluation_is_cancelled_then_deleted(api: StubApi) -> None:
    api.evaluations_of_models.add("eval-1", "running", num_rows=9, num_done=3)

    async def run(client: ApiClient) -> tuple[Evaluation, list[Evaluation]]:
        with pytest.raises(RequestRefusedError, match="cancel it first"):
            await client.evaluations.delete("eval-1")
        cancelled = await client.evaluations.cancel("eval-1")
        assert await client.evaluations.get("eval-1") == cancelled
        assert (await client.evaluations.delete("eval-1"))["deleted"] is True
        return cancelled, await client.evaluations.list_all()

    cancelled, left = ask(api, run)
    assert (cancelled.status, cancelled.is_active, cancelled.num_done) == ("cancelled", False, 3)
    assert left == []


def test_rows_follow_each_other_and_are_filtered(api: StubApi) -> None:
    api.evaluations_of_models.add("eval-1", "succeeded")
    api.evaluations_of_models.rows["eval-1"] = [
        make_row(number, "ask", "yes", base="yes", latest="no" if number == 4 else "yes")
        for number in range(1, 6)
    ]
    first = ask(api, lambda client: client.evaluations.list_rows("eval-1", 3))
    assert ([row.number for row in first.rows], first.has_more) == ([1, 2, 3], True)
    after = first.rows[-1].id
    second = ask(api, lambda client: client.evaluations.list_rows("eval-1", 3, after))
    assert ([row.number for row in second.rows], second.has_more) == ([4, 5], False)
    wrong = ask(api, lambda client: client.evaluations.list_rows("eval-1", 3, None, "wrong"))
    assert [answer.exact_match for answer in wrong.rows[0].answers] == [True, False]
    text = ask(api, download_different)
    assert text == b"number,expected\n4,yes"


async def download_different(client: ApiClient) -> bytes:
    async with client.evaluations.download_csv("eval-1", "different") as pieces:
        return b"".join([piece async for piece in pieces])


def test_unknown_fields_are_ignored_and_an_id_is_needed() -> None:
    sent = {"id": "eval-1", "status": "running", "max_rows": "many", "new": [1]}
    found = read_resource(Evaluation, {**sent, "models": [{"model": "base", "bleu": 0.3}]})
    assert (found.max_rows, found.models[0].model, found.raw["new"]) == (0, "base", [1])
    with pytest.raises(UnexpectedResponseError, match=r"Evaluation\.id"):
        read_resource(Evaluation, {"status": "running"})
