from pathlib import Path

from training.run.folder import RunFolder
from training.run.run_events import MAX_EVENTS_BYTES


def test_events_of_run_are_bounded_with_warning(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    text = "x" * 300_000
    for _ in range(2 * MAX_EVENTS_BYTES // len(text)):
        run.events.add(text)
    assert run.events.path.stat().st_size < MAX_EVENTS_BYTES + 2 * len(text)
    *_, last = run.events.read()
    assert last["message"].startswith("The events of this job have reached 4 MB; from here on only")


def test_warnings_and_errors_have_separate_bound(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.events.add("x" * MAX_EVENTS_BYTES)
    run.events.add("a worker was lost", level="warn")
    run.events.add("step 3")
    run.events.add("no space left", level="error")
    messages = [event["message"] for event in run.events.read()[2:]]
    assert messages == ["a worker was lost", "no space left"]
    for _ in range(3):
        run.events.add("y" * MAX_EVENTS_BYTES, level="error")
    assert len(run.events.read()) == 5, "warnings and errors are not bounded"


def test_repeated_event_is_added_once(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for _ in range(2):
        run.events.add_once("Interrupted", level="warn", code="queued", data={"step": 1})
    run.events.add_once("Interrupted", level="warn", data={"step": 2})
    run.events.add_once("Queued")
    run.events.add_once("Interrupted", level="warn", data={"step": 2})
    found = [(event["message"], event["data"]) for event in run.events.read()]
    assert found == [
        ("Interrupted", {"step": 1}),
        ("Interrupted", {"step": 2}),
        ("Queued", {}),
        ("Interrupted", {"step": 2}),
    ]
    assert run.events.read()[0]["code"] == "queued"
