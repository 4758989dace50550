"""The line of an estimate: what is exact, what is measured, and what will not fit."""

from apps.client.resources import Estimate, EstimatedDisk, EstimatedMemory
from apps.ui.fine_tune.start_bar import render_estimate

MEMORY = EstimatedMemory(num_workers=2, worker_bytes=880_000_000, total_bytes=23_500_000_000)


def test_exact_estimate_has_figures_with_their_sources() -> None:
    html = render_estimate(
        Estimate(
            num_steps=120,
            num_tokens=239_000,
            is_exact=True,
            tokens_per_s=200,
            training_s=200,
            measured_by="ftjob-<old>",
            memory=MEMORY,
            disk=EstimatedDisk(needed_bytes=300_000_000, free_bytes=50_000_000_000),
        )
    )
    assert ">120 steps, 239,000 tokens<" in html
    assert ">about 3 min 20 s of training<" in html
    assert "As fast as ftjob-&lt;old&gt;: 200 tokens per second." in html
    assert ">2 × 880 MB of 23.5 GB memory<" in html
    assert ">300 MB of disk<" in html
    assert "ts-tight" not in html


def test_unmeasured_time_and_uncounted_rows_are_not_invented() -> None:
    html = render_estimate(Estimate())
    assert "steps are known once the data has been counted" in html
    assert "time measured after the first steps" in html
    assert "memory unknown" in html
    assert "about 5 steps" in render_estimate(Estimate(num_steps=5))


def test_few_steps_are_said() -> None:
    hint = "a small file may need more epochs"
    assert [hint in render_estimate(Estimate(num_steps=number)) for number in (1, 49, 50)] == [
        True,
        True,
        False,
    ]


def test_memory_and_disk_that_do_not_suffice_are_marked() -> None:
    small = EstimatedMemory(num_workers=2, worker_bytes=880_000_000, total_bytes=1_800_000_000)
    assert render_estimate(Estimate(memory=small)).count("ts-tight") == 1
    gpu = EstimatedMemory(
        device="gpu", num_workers=2, worker_bytes=880_000_000, total_bytes=1_800_000_000
    )
    assert "ts-tight" not in render_estimate(Estimate(memory=gpu))  # each worker has its own
    full = EstimatedDisk(needed_bytes=100, free_bytes=100)
    assert render_estimate(Estimate(disk=full)).count("ts-tight") == 1
