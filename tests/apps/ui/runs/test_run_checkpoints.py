"""The checkpoints of a run."""

from apps.client.resources import Access, Job, JobCheckpoint, read_resources
from apps.ui.runs.run_checkpoints import find_published, render_checkpoints
from tests.apps.stub_api import StubApi, ask
from tests.apps.stub_runs import make_checkpoint
from tests.apps.ui.hostile import HOSTILE, assert_escaped

JOB = Job(id="ftjob-1", status="running")
CHECKPOINTS = read_resources(
    JobCheckpoint, [make_checkpoint("ftjob-1", 1200, 1.5), make_checkpoint("ftjob-1", 800, 1.25)]
)
MAY_PUBLISH = Access(key=None, permissions=("jobs.write", "models.weights"))


def test_checkpoints_are_shown_with_losses_and_links() -> None:
    html = render_checkpoints(JOB, CHECKPOINTS, {}, MAY_PUBLISH)
    newest, older = html.split("<tr>")[2:]
    for part in ("1,200", "1.5000", "120.00", 'href="./chat?model=base-tuned-step-1200"'):
        assert part in newest
    assert 'datetime="2023-11-14T22:33:20Z" data-moment="relative"' in newest
    assert 'data-publish="ftjob-1-step-1200" data-model="base-tuned-step-1200"' in newest
    assert "best" not in newest
    assert "best" in older


def test_published_checkpoint_links_to_its_model() -> None:
    html = render_checkpoints(JOB, CHECKPOINTS, {1200: "early"}, MAY_PUBLISH)
    assert 'href="./chat?model=early"' in html
    assert 'href="/v1/models/early/archive?format=zip" download>' in html
    assert html.count("data-publish") == 1
    assert html.count("download>") == 1


def test_reader_cannot_publish() -> None:
    assert "data-publish" not in render_checkpoints(
        JOB, CHECKPOINTS, {}, Access(key=None, permissions=("jobs.read",))
    )


def test_checkpoints_of_classifiers_are_tried_on_their_page() -> None:
    job = Job(id="ftjob-1", status="running", training={"task": "sequence_classification"})
    html = render_checkpoints(job, CHECKPOINTS, {}, MAY_PUBLISH)
    assert 'href="./classify?model=' in html


def test_published_checkpoints_are_found_by_run_and_step(api: StubApi) -> None:
    step = {"run_id": "ftjob-1", "checkpoint_step": 3}
    api.runs.models = {"mine": step, "other": {**step, "run_id": "ftjob-2"}, "plain": {}}
    assert ask(api, lambda client: find_published(client, "ftjob-1")) == {3: "mine"}


def test_nothing_is_shown_without_checkpoints() -> None:
    assert render_checkpoints(JOB, [], {}, MAY_PUBLISH) == ""


def test_hostile_values_are_escaped() -> None:
    entry = {"id": HOSTILE, "fine_tuned_model_checkpoint": HOSTILE}
    found = read_resources(JobCheckpoint, [entry])
    assert_escaped(render_checkpoints(JOB, found, {0: HOSTILE}, MAY_PUBLISH))
    assert_escaped(render_checkpoints(JOB, found, {}, MAY_PUBLISH))
