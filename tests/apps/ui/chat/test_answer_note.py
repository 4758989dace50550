"""The line under an answer."""

from apps.ui.chat.answer_note import AnswerFacts, render_note

HOSTILE = '"><img src=x onerror=alert(1)>'


def test_note_links_to_model_and_run() -> None:
    facts = AnswerFacts(
        model="tuned",
        run_id="ftjob-1",
        checkpoint="step-40",
        num_tokens=1200,
        seconds=2.04,
        tokens_per_s=588.4,
    )
    assert render_note(facts) == (
        '<p class="ts-answered" translate="yes"><span>Answered by '
        '<a href="./models?model=tuned" translate="no">tuned</a></span> · '
        "<span>1,200 tokens</span> · <span>588 tokens/s</span> · <span>2.0 s</span> · "
        '<span>run <a href="./runs?run=ftjob-1" title="ftjob-1" translate="no">ftjob-1</a>, step 40'
        "</span></p>"
    )


def test_unknown_facts_are_omitted() -> None:
    assert render_note(AnswerFacts()).count("·") == 0
    assert "a model without a name" in render_note(AnswerFacts())


def test_cut_answer_is_marked() -> None:
    assert "Cut at the maximum number of tokens" in render_note(AnswerFacts(is_cut=True))
    assert "Cut" not in render_note(AnswerFacts())


def test_names_are_escaped() -> None:
    note = render_note(AnswerFacts(model=HOSTILE, run_id=HOSTILE, checkpoint=HOSTILE))
    assert "<img" not in note
    assert note.count('"') == 14  # of the line, and of two links
