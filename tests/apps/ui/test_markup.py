"""HTML that is generated from data, with hostile values escaped."""

import re
import time
from typing import Any

import pytest

from apps.client.resources import Event, Job, Preview, Progress, Row, Token
from apps.ui import markup

HOSTILE = "<img src=x onerror=alert(1)>\"'"


def make_job(**changes: Any) -> Job:
    values = {"id": "ftjob-1", "status": "running", "model": "base", "training_file": "file-1"}
    values["training_filename"] = "rows.jsonl"
    return Job.model_validate({**values, "created_at": 1_700_000_000, **changes})


def make_preview(tokens: list[Token], **changes: Any) -> Preview:
    return Preview(
        **changes,
        format="chat",
        num_rows=1200,
        num_tokens=4000,
        num_learned_tokens=1000,
        num_dropped_rows=0,
        num_truncated_rows=2,
        max_length=512,
        rows=(Row(line=7, tokens=tuple(tokens)),),
    )


def find_tags(html: str) -> set[str]:
    return set(re.findall(r"<([a-z]\w*)", html))


def test_preview_shows_counts_and_marks_learned_tokens() -> None:
    html = markup.render_preview(
        make_preview([Token(text="<|im_start|>", learned=False), Token(text="yes", learned=True)])
    )
    assert "1,200" in html
    assert "25%" in html
    assert "Row 7" in html
    assert '<mark class="ts-token ts-learned">yes</mark>' in html
    assert '<span class="ts-token ts-context ts-special">&lt;|im_start|&gt;</span>' in html


def test_long_row_is_truncated_with_note() -> None:
    html = markup.render_preview(make_preview([Token(text="a", learned=True)] * 200))
    assert html.count("<mark") == markup.MAX_SHOWN_TOKENS + 1  # plus one in the legend
    assert "40 more tokens" in html


def test_preview_lists_ignored_keys() -> None:
    counts = {"id": 3, "source": 1200, HOSTILE: 1, **{f"key{place:02}": 2 for place in range(20)}}
    html = markup.render_preview(make_preview([], ignored_keys=counts))
    assert "with the number of rows that have them: source (1,200), id (3), key00 (2)" in html
    assert "and 3 more." in html
    assert "Ignored keys" not in markup.render_preview(make_preview([]))


@pytest.mark.parametrize(
    "html",
    [
        markup.render_preview(make_preview([], ignored_keys={HOSTILE: 1})),
        markup.render_preview(make_preview([Token(text=HOSTILE, learned=True)])),
        markup.render_notice(HOSTILE, "error"),
        markup.render_badge(HOSTILE),
        markup.render_events([Event(id="1", created_at=0, level=HOSTILE, message=HOSTILE)]),
        markup.render_run_list(
            [make_job(id=HOSTILE, model=HOSTILE, training_filename=HOSTILE)], ""
        ),
        markup.render_run(
            make_job(
                id=HOSTILE,
                status="succeeded",
                fine_tuned_model=HOSTILE,
                user_provided_suffix=HOSTILE,
                training_filename=HOSTILE,
                error={"message": HOSTILE},
            ),
            HOSTILE,
        ),
    ],
)
def test_hostile_content_is_escaped(html: str) -> None:
    assert "img" not in find_tags(html)
    assert HOSTILE not in html
    assert not re.search(r'="[^"]*onerror=alert\(1\)&gt;"\w', html)


def test_active_run_shows_progress() -> None:
    progress = Progress(step=3, num_steps=12, loss=1.23456, tokens_per_s=1234.5, remaining_s=75)
    html = markup.render_run(make_job(progress=progress), "Training")
    for part in ("3 of 12", "1.235", "1,234", "1 min 15 s", 'value="0.2500"', "rows.jsonl"):
        assert part in html
    assert 'id="run-status" class="ts-badge ts-running">Running' in html
    assert "chat-with-it" not in html


def test_run_of_a_loop_without_a_number_of_steps_shows_its_figures() -> None:
    html = markup.render_run(make_job(progress=Progress(step=3, loss=1.5)), "Training")
    assert "1.500" in html
    assert "3 of" not in html
    assert "<progress" not in html
    assert "Tokens/s" not in html


def test_run_before_first_step_shows_its_stage() -> None:
    html = markup.render_run(make_job(status="queued"), "Starting workers")
    assert '<p id="run-stage" class="ts-stage">Starting workers</p>' in html
    assert "<progress" not in html


def test_succeeded_run_links_to_chat() -> None:
    job = make_job(status="succeeded", fine_tuned_model="base/tuned 1")
    assert 'href="./chat?model=base/tuned%201"' in markup.render_run(job, "")


def test_run_list_links_to_each_run_and_marks_selected_run() -> None:
    jobs = [make_job(id="ftjob-2"), make_job(id="ftjob-1", status="failed")]
    html = markup.render_run_list(jobs, "ftjob-1")
    assert 'href="./runs?run=ftjob-2"' in html
    assert 'data-run="ftjob-1" aria-current=true' in html
    assert html.count("aria-current") == 1


def test_metrics_events_are_not_shown() -> None:
    events = [
        Event(id="1", created_at=0, message="Training started"),
        Event(id="2", created_at=0, message="step 1", type="metrics"),
    ]
    html = markup.render_events(events)
    assert "Training started" in html
    assert "step 1" not in html


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_are_formatted(seconds: float, words: str) -> None:
    assert markup.format_duration(seconds) == words


def test_duration_ends_with_run() -> None:
    assert markup.measure_duration(make_job(started_at=100, finished_at=160)) == 60
    assert markup.measure_duration(make_job(status="queued")) == 0
    assert 4 < markup.measure_duration(make_job(started_at=int(time.time()) - 5)) < 8


def test_labelled_rows_are_shown_with_their_labels() -> None:
    row = Row(line=3, tokens=(), texts=("good film", HOSTILE), labels=("positive",))
    preview = make_preview([], label_counts={"positive": 1, "x": 2})
    html = markup.render_preview(preview.model_copy(update={"rows": (row,)}))
    assert "good film / " in html
    assert '<mark class="ts-learned">positive</mark>' in html
    assert HOSTILE not in html
    assert "Tokens" not in html
