from pathlib import Path

from training.run.folder import MAX_EVENTS_BYTES, RunFolder


def test_the_events_of_a_run_are_bounded_and_say_so(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    text = "x" * 300_000
    for _ in range(2 * MAX_EVENTS_BYTES // len(text)):
        run.add_event(text)
    assert run.events_file.stat().st_size < MAX_EVENTS_BYTES + 2 * len(text)
    *_, last = run.read_events()
    assert last["message"].startswith("The events of this job have reached 4 MB; from here on only")


def test_warnings_and_errors_are_added_beyond_the_bound_of_other_events(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.add_event("x" * MAX_EVENTS_BYTES)
    run.add_event("a worker was lost", level="warn")
    run.add_event("step 3")
    run.add_event("no space left", level="error")
    messages = [event["message"] for event in run.read_events()[2:]]
    assert messages == ["a worker was lost", "no space left"]
    for _ in range(3):
        run.add_event("y" * MAX_EVENTS_BYTES, level="error")
    assert len(run.read_events()) == 5, "these are bounded too"
