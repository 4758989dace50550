"""The line under an answer: which model gave it, the run it comes from, and the speed."""

from html import escape
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from apps.ui import markup


class AnswerFacts(BaseModel):
    """What is known about an answer; None is unknown."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    model: str | None = None
    run_id: str | None = None
    checkpoint: str | None = None
    num_tokens: int | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None
    is_cut: bool = False
    """Whether it ended at the limit on tokens."""


def render_note(facts: AnswerFacts) -> str:
    """Render the line with links to the model and the run."""
    parts = [f"Answered by {_link_model(facts.model)}"]
    if facts.num_tokens is not None:
        parts.append(f"{facts.num_tokens:,} tokens")
    if facts.tokens_per_s is not None:
        parts.append(f"{facts.tokens_per_s:,.0f} tokens/s")
    if facts.seconds is not None:
        parts.append(f"{facts.seconds:.1f} s")
    if facts.run_id:
        parts.append(f"run {markup.link_run(facts.run_id)}{_name_step(facts)}")
    shown = " · ".join(f"<span>{part}</span>" for part in parts)
    line = f'<p class="ts-answered" translate="yes">{shown}</p>'
    if facts.is_cut:
        line += (
            '<p class="ts-answered ts-cut" translate="yes">Cut at the maximum number of tokens.</p>'
        )
    return line


def _link_model(model: str | None) -> str:
    if not model:
        return "a model without a name"
    return f'<a href="./models?model={quote(model, safe="")}" translate="no">{escape(model)}</a>'


def _name_step(facts: AnswerFacts) -> str:
    """Return the step of the checkpoint, as the end of a sentence; empty if it is not known."""
    step = (facts.checkpoint or "").removeprefix("step-")
    return f", step {escape(step)}" if step else ""
