"""The frame of the page "Evaluate": the form, and the places that messages fill.

It never changes, so what a visitor chooses and enters in it stays.
"""

from apps.ui import markup
from apps.ui.evaluate.metric_cards import METRICS
from apps.ui.evaluate.start_form import DEFAULT_ROWS, DEFAULT_TOKENS, MAX_ROWS, MAX_TOKENS

_COLUMNS = ("Models", "State", "Rows", *(metric.label for metric in METRICS), "Created")
_HEAD = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)


_ROWS_NOTE = (
    "A file whose columns have names of their own is listed once a run has learned from it; its "
    "columns are those of the run."
)


def _render_menu(name: str, label: str, none: str = "", note: str = "") -> str:
    """Render the menu of a field; `none` is the entry for nothing."""
    described = f"note-{name} problem-{name}" if note else f"problem-{name}"
    shown = f'<p class="ts-note" id="note-{name}">{note}</p>' if note else ""
    option = f'<option value="">{none}</option>' if none else ""
    return (
        f'<div class="ts-field"><label for="field-{name}">{label}</label>'
        f'<select id="field-{name}" class="{markup.NAMES}" data-field="{name}" '
        f'aria-describedby="{described}">{option}'
        f'</select>{shown}<p class="ts-problem" id="problem-{name}"></p></div>'
    )


def _render_number(name: str, label: str, value: int, note: str) -> str:
    return (
        f'<div class="ts-field"><label for="field-{name}">{label}</label>'
        f'<input id="field-{name}" data-field="{name}" inputmode="numeric" maxlength="8" '
        f'value="{value}" autocomplete="off" aria-describedby="note-{name} problem-{name}">'
        f'<p class="ts-note" id="note-{name}">{note}</p>'
        f'<p class="ts-problem" id="problem-{name}"></p></div>'
    )


_ROWS = _render_number(
    "max_rows", "Number of rows", DEFAULT_ROWS, f"The first ones, up to {MAX_ROWS:,}"
)
_TOKENS = _render_number(
    "max_tokens", "Maximum tokens of an answer", DEFAULT_TOKENS, f"Up to {MAX_TOKENS:,}"
)
_FORM = f"""
<form id="evaluate-form" novalidate aria-labelledby="evaluate-title">
  <h2 id="evaluate-title">New evaluation</h2>
  <p class="ts-muted">Models answer the questions of rows, and each answer is compared with the
    expected one.</p>
  <div class="ts-eval-fields">
    {_render_menu("models", "Model")}
    {_render_menu("second_model", "Compared with", "No other model")}
    {_render_menu("rows", "Rows", note=_ROWS_NOTE)}
    {_ROWS}
    {_TOKENS}
    <div class="ts-actions">
      <button type="submit" id="start-evaluation" class="ts-action ts-primary" data-action="start"
        data-busy="Starting…">Start</button>
    </div>
  </div>
  <p class="ts-problem" id="problem-start" role="alert"></p>
</form>"""

_LIST = f"""
<section class="ts-view-list" aria-label="Evaluations">
  {_FORM}
  <div class="ts-toolbar"><h2 id="evaluations-title" tabindex="-1">Evaluations</h2>
    <p data-part="list-model"></p></div>
  <div class="ts-table-scroll"><table class="ts-eval-table" aria-labelledby="evaluations-title">
    <thead><tr>{_HEAD}</tr></thead>
    <tbody data-list="evaluations"></tbody>
  </table></div>
  <div data-part="list-empty"></div>
  <nav class="ts-pager" aria-label="More evaluations">
    <button type="button" id="older-evaluations" class="ts-action" hidden>Older evaluations</button>
  </nav>
</section>"""

_VIEW = """
<section class="ts-view-evaluation" aria-label="Evaluation">
  <a class="ts-back" href="./evaluate" data-go="list">← All evaluations</a>
  <div id="evaluation-detail">
    <div data-part="evaluation"></div>
    <p class="ts-muted" data-part="evaluation-source"></p>
    <div data-part="evaluation-progress"></div>
    <div class="ts-actions" data-part="evaluation-buttons"></div>
  </div>
  <section id="evaluation-cards" data-part="evaluation-cards" aria-label="Metrics"></section>
  <section aria-labelledby="rows-title">
    <div class="ts-toolbar"><h3 id="rows-title" tabindex="-1">Rows</h3>
      <label>Show <select id="row-filter">
        <option value="all">all rows</option>
        <option value="different">different answers</option>
        <option value="wrong">wrong answers</option>
      </select></label>
      <span data-part="rows-download"></span>
    </div>
    <ol class="ts-eval-rows" data-list="rows"></ol>
    <div data-part="rows-empty"></div>
    <nav class="ts-pager" aria-label="Pages of rows">
      <button type="button" id="previous-rows" class="ts-action" hidden>Previous rows</button>
      <button type="button" id="next-rows" class="ts-action" hidden>Next rows</button>
    </nav>
  </section>
</section>"""

_DIALOG = """
<dialog id="delete-evaluation-dialog" aria-labelledby="delete-evaluation-title">
  <form method="dialog">
    <h3 id="delete-evaluation-title">Delete this evaluation?</h3>
    <p>Its answers and metrics are deleted. The models and the rows are kept.</p>
    <div class="ts-actions"><button type="button" class="ts-action" data-close>Back</button>
      <button type="submit" class="ts-action ts-danger" id="confirm-delete">Delete</button></div>
  </form>
</dialog>"""

EVALUATE_FRAME = f"""<div class="ts-runs-page ts-evaluate-page" aria-busy="true">
<div id="evaluate-notice" data-part="notice"></div>{_LIST}{_VIEW}{_DIALOG}</div>"""
