import asyncio
import json
import threading
from pathlib import Path

import pytest
from rich.console import Console

from apps.cli.jobs import read_settings
from apps.cli.watch import draw_job
from apps.client.client import ApiClient
from apps.client.resources import Event, Job, Metrics, read_resource, read_resources
from apps.fine_tuning.index.run_lookup import find_run
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from apps.http_api.dependencies import Services
from apps.http_api.run_streams import has_ended
from storage import durable
from storage.layout import StorageLayout
from tests.apps.cli.conftest import Call
from tests.apps.conftest import build_services
from tests.apps.fine_tuning.extension.conftest import add_checkpoint
from tests.tiny_vision import build_tiny_vit, write_image_folder
from training.run.folder import RunFolder

ROWS = '{"prompt": "How many loaves?", "completion": "Twelve."}\n' * 3
REST = {"num_steps": 40, "epoch": 1.0, "tokens_per_s": 900.0, "elapsed_s": 1.0, "remaining_s": 65.0}


@pytest.fixture
def services(layout: StorageLayout, queue: RunQueue, request: pytest.FixtureRequest) -> Services:
    """The application's services, with the changes that a test is parametrized with."""
    return build_services(layout, queue, **getattr(request, "param", {}))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    return tmp_path / "rows.jsonl"


@pytest.fixture
def run(call: Call, services: Services, rows: Path) -> RunFolder:
    status, job_id = call("jobs", "create", str(rows), "--epochs", "2")
    assert status == 0, job_id
    return find_run(services.layout, job_id)


def test_succeeded_job_is_extended(call: Call, services: Services, run: RunFolder) -> None:
    job_id = run.path.name
    status, output = call("jobs", "extend", job_id, "--epochs", "3")
    expected = f"job '{job_id}' is queued, expected one that has succeeded; wait until it has"
    assert (status, expected in output) == (1, True)
    add_step(run, 2, 1.0)
    add_checkpoint(run, 2)
    run.update_record(status="succeeded")
    status, output = call("jobs", "extend", job_id, "--epochs", "2")
    message = f"error: epochs is 2, and job '{job_id}' ended with epochs 2: expected at least 3"
    assert (status, output) == (1, message)
    assert call("jobs", "extend", job_id)[0] == 1
    status, extended = call("jobs", "extend", job_id, "--epochs", "3", "--suffix", "longer")
    assert status == 0, extended
    job = describe_job(find_run(services.layout, extended))
    assert (job["training"]["epochs"], job["user_provided_suffix"]) == (3, "longer")
    assert job_id in call("jobs", "show", extended)[1]


def add_step(run: RunFolder, step: int, loss: float, **more: float) -> None:
    run.metrics.add({"step": step, "loss": loss, **REST, **more})


def test_job_is_created_with_settings_paused_resumed_and_cancelled(
    call: Call, services: Services, rows: Path
) -> None:
    file_id = call("files", "upload", str(rows))[1]
    more = ("--validation", str(rows), "--suffix", "ovens", "--priority", "3")
    settings = ("--set", "learning_rate=0.01", "--set", "lr_schedule=linear")
    status, output = call("jobs", "create", file_id, *more, *settings, "--json")
    job = json.loads(output)
    assert (status, job["training_file"], job["priority"]) == (0, file_id, 3)
    assert (job["training"]["learning_rate"], job["training"]["lr_schedule"]) == (0.01, "linear")
    assert job["validation_file"] is not None
    for change, expected in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        assert call("jobs", change, job["id"]) == (0, f"{job['id']} is {expected}")
    status, output = call("jobs", "cancel", job["id"])
    assert (status, output) == (1, f"error: job '{job['id']}' has cancelled already")
    status, cloned = call("jobs", "clone", job["id"], "--set", "learning_rate=0.02")
    assert describe_job(find_run(services.layout, cloned))["training"]["learning_rate"] == 0.02
    status, shown = call("jobs", "list")
    assert (status, job["id"] in shown, cloned in shown) == (0, True, True)
    assert len(json.loads(call("jobs", "list", "--limit", "1", "--json")[1])) == 1
    assert call("jobs", "delete", job["id"]) == (0, f"deleted {job['id']}")
    assert "learning_rate=0.02" in call("jobs", "show", cloned)[1]
    assert call("jobs", "checkpoints", cloned)[0] == 0


def test_loop_that_is_not_allowed_is_refused(call: Call, rows: Path) -> None:
    status, output = call("jobs", "create", str(rows), "--loop", "a.b:c")
    assert status == 1
    assert "training.loop is 'a.b:c', which is not allowed here" in output


def test_training_files_are_mixed_by_weight(
    call: Call, services: Services, rows: Path, tmp_path: Path
) -> None:
    (tmp_path / "c=1.jsonl").write_text(ROWS)
    sent = call("files", "upload", str(rows))[1]
    mix = ("--mix", f"{sent}=0.5", "--mix", str(tmp_path / "c=1.jsonl"))
    status, output = call("jobs", "create", str(rows), *mix, "--json")
    assert status == 0, output
    job = json.loads(output)
    first, second, third = job["training_files"]
    assert first == {"file": job["training_file"], "weight": 1.0}
    assert second == {"file": sent, "weight": 0.5}
    assert services.files.get(third["file"])["filename"] == "c=1.jsonl"
    run = find_run(services.layout, job["id"])
    assert run.read_data_summary()["num_rows"] == 3 + 2 + 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "nowhere.jsonl"), "'nowhere.jsonl' is neither a local file nor a file id"),
        (("create", "file-none"), "there is no file 'file-none'"),
        (("create", "file-none", "--set", "epochs"), "expected NAME=VALUE"),
        (("create", "file-none", "--mix", "a=b"), "the weight is 'b', expected a number, as in"),
        (("show", "ftjob-none"), "there is no job 'ftjob-none'"),
        (("watch", "ftjob-none"), "there is no job 'ftjob-none'"),
        (("logs", "ftjob-none"), "there is no job 'ftjob-none'"),
    ],
)
def test_invalid_jobs_command_prints_error(
    call: Call, arguments: tuple[str, ...], message: str
) -> None:
    status, output = call("jobs", *arguments)
    assert status == 1
    assert output.startswith("error: ")
    assert message in output


def test_unreachable_application_error_has_url(call: Call) -> None:
    status, output = call("jobs", "list", "--url", "http://127.0.0.1:9")
    assert status == 1
    assert "http://127.0.0.1:9 cannot be reached" in output
    assert "tuneserve run" in output


def test_nan_setting_is_sent_as_text(call: Call, rows: Path) -> None:
    assert read_settings(["learning_rate=NaN"]) == {"learning_rate": "NaN"}
    status, output = call("jobs", "create", str(rows), "--set", "learning_rate=NaN")
    assert (status, "learning_rate" in output) == (1, True)


def test_settings_are_parsed_as_json_or_text() -> None:
    given = ["epochs=3", "keep=best", "adam_betas=[0.9, 0.99]", "columns={}", "format=a=b"]
    assert read_settings(given) == {
        "epochs": 3,
        "keep": "best",
        "adam_betas": [0.9, 0.99],
        "columns": {},
        "format": "a=b",
    }


# Watching


@pytest.fixture
def was_polled(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set whenever a stream of events or log lines reads its job."""
    was_polled = threading.Event()

    def report(run: RunFolder) -> bool:
        was_polled.set()
        return has_ended(run)

    monkeypatch.setattr("apps.http_api.run_streams.has_ended", report)
    monkeypatch.setattr("apps.http_api.run_streams.POLL_S", 0.01)
    return was_polled


def take_step(run: RunFolder, step: int) -> None:
    """Add a step to a job, with an event and a log line."""
    add_step(run, step, 2.0 / step)
    run.events.add(f"step {step}")
    with run.log_file.open("a") as log:
        log.write(f"line {step}\n")


def simulate_run(run: RunFolder, status: str, was_polled: threading.Event) -> threading.Thread:
    """Start a thread that takes three steps of a job and ends it.

    Before each step it waits until a stream has read the job since the step before.
    """

    def simulate() -> None:
        try:
            for step in range(1, 4):
                was_polled.clear()
                assert was_polled.wait(10), "no stream reads the job"
                take_step(run, step)
        finally:  # otherwise the stream never ends
            run.update_record(status=status, model_id="tiny")

    thread = threading.Thread(target=simulate)
    thread.start()
    return thread


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_watch_without_terminal_prints_events(
    call: Call, run: RunFolder, was_polled: threading.Event, status: str, code: int
) -> None:
    simulation = simulate_run(run, status, was_polled)
    exit_code, output = call("jobs", "watch", run.path.name)
    simulation.join()
    assert exit_code == code
    assert [f"step {step}" in output for step in (1, 2, 3)] == [True] * 3
    assert ("tiny is ready" in output) == (status == "succeeded")


@pytest.mark.parametrize(
    ("model", "task", "told"),
    [
        ("tiny", "causal_lm", "tiny is ready; try it with: tuneserve chat"),
        ("tiny", "image_classification", "try it with: tuneserve classify --model tiny"),
        (None, "causal_lm", "has succeeded; it has left no model"),
    ],
)
def test_watch_says_how_to_try_the_model(
    call: Call, run: RunFolder, model: str | None, task: str, told: str
) -> None:
    durable.write_json(run.spec_file, {**durable.read_json(run.spec_file), "task": task})
    run.update_record(status="succeeded", model_id=model)
    exit_code, output = call("jobs", "watch", run.path.name)
    assert exit_code == 0
    assert told in " ".join(output.split())


def test_watch_with_json_option_prints_events_as_json(call: Call, run: RunFolder) -> None:
    take_step(run, 1)
    run.update_record(status="succeeded", model_id="tiny")
    exit_code, output = call("jobs", "watch", run.path.name, "--json")
    decoder, events = json.JSONDecoder(), []
    while output:
        event, end = decoder.raw_decode(output)
        events.append(event)
        output = output[end:].strip()
    assert exit_code == 0
    assert [event["id"] for event in events] == [event["id"] for event in run.events.read()]


def test_followed_log_is_printed_until_job_ends(
    call: Call, run: RunFolder, was_polled: threading.Event
) -> None:
    simulation = simulate_run(run, "succeeded", was_polled)
    assert call("jobs", "logs", run.path.name, "--follow") == (0, "line 1 line 2 line 3")
    simulation.join()
    assert call("jobs", "logs", run.path.name, "--tail", "7") == (0, "line 3")


@pytest.mark.parametrize("services", [{"max_stream_age_s": 0.0}], indirect=True)
def test_followed_log_resumes_after_maximum_stream_age(
    call: Call, run: RunFolder, was_polled: threading.Event
) -> None:
    simulation = simulate_run(run, "succeeded", was_polled)
    assert call("jobs", "logs", run.path.name, "--follow") == (0, "line 1 line 2 line 3")
    simulation.join()


def test_events_are_followed_until_job_ends(
    url: str, run: RunFolder, was_polled: threading.Event
) -> None:
    async def follow() -> list[str]:
        async with ApiClient(url) as api:
            events = api.job_outputs.follow_events(run.path.name)
            found = [(await anext(events)).id]
            await asyncio.to_thread(lambda: simulate_run(run, "succeeded", was_polled).join())
            return [*found, *[event.id async for event in events]]

    assert asyncio.run(follow()) == [event["id"] for event in run.events.read()]


def test_metrics_update_reads_only_changed_steps(url: str, run: RunFolder) -> None:
    def update(known: list[Metrics]) -> list[Metrics]:
        async def read() -> list[Metrics]:
            async with ApiClient(url) as api:
                return await api.job_outputs.update_metrics(run.path.name, known)

        found = asyncio.run(read())
        assert [entry.raw for entry in found] == run.metrics.read()
        return found

    known = update([])
    for step in (1, 2, 3):
        add_step(run, step, 3.0)
    known = update(known)
    add_step(run, 4, 3.0)
    known = update(known)
    run.metrics.drop_after(2)
    known = update(known)
    add_step(run, 3, 2.5)
    update(known)


def test_drawn_job_has_progress_bar_curve_and_queue_position(run: RunFolder) -> None:
    for step in range(1, 31):
        add_step(run, step, 4.0 / step, **({"eval_loss": 3.0 / step} if step % 10 == 0 else {}))
    run.update_record(status="running")
    job = read_resource(Job, {**describe_job(run), "waiting_for": "number 2 in the queue"})
    metrics = read_resources(Metrics, run.metrics.read())
    events = read_resources(Event, run.events.read()[:1])
    console = Console(width=90, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(draw_job(job, metrics, events, 90))
    console.file.close()
    drawn = console.export_text()
    for part in ("running", "number 2 in the queue", "30/40", "1:05 left", "loss by step"):
        assert part in drawn
    assert "training loss" in drawn
    assert "validation loss" in drawn
    assert sum("│" in line for line in drawn.splitlines()) >= 10
    assert max(map(len, drawn.splitlines())) <= 90


@pytest.mark.usefixtures("preloaded_check")
def test_folder_of_images_is_sent_as_an_archive(
    call: Call, services: Services, tmp_path: Path
) -> None:
    services.models.install(build_tiny_vit(tmp_path / "vit"), "vit")
    folder = write_image_folder(tmp_path / "shapes", 2)
    (folder / ".hidden").write_text("x")
    model = ("--model", "vit", "--task", "image_classification")
    status, job_id = call("jobs", "create", str(folder), *model, "--set", "num_workers=1")
    assert status == 0, job_id
    run = find_run(services.layout, job_id)
    summary = run.read_data_summary()
    assert summary["name"] == "shapes.zip"
    assert summary["label_counts"] == {"blue": 2, "green": 2, "red": 2}
    (folder / "red" / "link.png").symlink_to("000.png")
    status, output = call("jobs", "create", str(folder), *model)
    assert (status, "is a link" in output) == (1, True)
    (tmp_path / "empty").mkdir()
    status, output = call("jobs", "create", str(tmp_path / "empty"), *model)
    assert (status, "has no files" in output) == (1, True)
