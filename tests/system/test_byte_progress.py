import io

from rich.console import Console

from system.byte_progress import ByteMeter, show_bytes


def test_progress_is_the_sum_of_all_sources_and_reported_rarely() -> None:
    reports: list[tuple[int, int]] = []
    meter = ByteMeter(100, lambda done, total: reports.append((done, total)))
    for position in range(1, 41):
        meter.report(position)
    meter.finish_source(40)
    meter.report(10)  # too soon after the last report
    meter.finish_source(60)
    assert reports == [(1, 100), (40, 100), (100, 100)]


def test_without_a_receiver_nothing_is_reported() -> None:
    meter = ByteMeter(10, None)
    meter.report(5)
    meter.finish_source(10)


def test_a_bar_shows_the_bytes_and_is_removed() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80)
    with show_bytes(console, "Copying") as on_bytes:
        on_bytes(500_000, 1_000_000)
    assert "Copying" in output.getvalue()
    assert "0.5/1.0 MB" in output.getvalue()
    assert output.getvalue().endswith("\x1b[2K")
