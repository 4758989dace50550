"""The events of hand-overs: their retention, and the effect of a damaged line."""

from pathlib import Path
from threading import Thread

from serving.store.handover_log import HandoverEvent, HandoverLog

MAX_BYTES = 4_000


def make_event(number: int) -> HandoverEvent:
    return HandoverEvent("latest", "moved", f"m-{number}", None, "it answers", at=number)


def test_log_is_bounded_and_keeps_newest_events(tmp_path: Path) -> None:
    log = HandoverLog(tmp_path / "handovers.jsonl", MAX_BYTES)
    for number in range(500):
        log.add(make_event(number))
    size = sum(path.stat().st_size for path in tmp_path.glob("handovers*.jsonl"))
    assert size < 2.1 * MAX_BYTES
    numbers = [event.at for event in log.read("latest")]
    assert numbers == list(range(500 - len(numbers), 500))
    assert len(numbers) > 20


def test_concurrent_writers_lose_no_event(tmp_path: Path) -> None:
    path = tmp_path / "handovers.jsonl"

    def write(start: int) -> None:
        for number in range(start, start + 20):
            HandoverLog(path, 1_000_000).add(make_event(number))

    threads = [Thread(target=write, args=(20 * start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(event.at for event in HandoverLog(path).read("latest")) == list(range(80))


def test_invalid_line_does_not_hide_other_events(tmp_path: Path) -> None:
    path = tmp_path / "handovers.jsonl"
    log = HandoverLog(path)
    log.add(make_event(1))
    with path.open("a") as file:
        file.write('{"alias": "latest"}\n[1]\nhalf a li\n')
    log.add(make_event(2))
    assert [event.at for event in log.read("latest")] == [1, 2]
