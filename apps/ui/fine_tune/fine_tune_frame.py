"""The frame of the page "Fine-tune": the menus, the tabs, the bar with Start, and places to fill.

It never changes, so what a visitor chooses and enters in it stays.
"""

from apps.ui import markup
from apps.ui.fine_tune.setting_export import FORMS
from apps.ui.fine_tune.setting_problems import NAME_LABEL
from apps.ui.frame.first_views import Frame

INTRODUCTION = (
    "Choose a model and a file of examples. A fine-tune teaches the model to answer as the "
    "examples do. You can chat with the new model at once."
)
DEMONSTRATION_NOTE = (
    "tuneserve-demo is a small demonstration model, made to try everything out on a laptop. It "
    "learns the handbook in minutes, but it is not an assistant: for real work, add a larger "
    "base model in deploy.yaml."
)
_IMPORT_NOTE = (
    "Settings that it does not name get their defaults. The model and the data stay as they are "
    "chosen above."
)
_TABS = (
    ("tokens", "First rows as tokens"),
    ("rows", "All rows"),
    ("statistics", "Lengths and faults"),
)
_FORMS = "".join(
    f'<label><input type="radio" name="export-form" value="{name}"> {label}</label>'
    for label, name in FORMS
)


def _render_menu(name: str, elem_id: str, *, label: str, has_names: bool = True) -> str:
    names = f' class="{markup.NAMES}"' if has_names else ""
    return (
        f'<div class="ts-field" id="{elem_id}"><label for="{elem_id}-menu">{label}</label>'
        f'<select id="{elem_id}-menu" data-choice="{name}"{names} autocomplete="off"></select>'
        "</div>"
    )


_CHOICES = f"""
{_render_menu("model", "base-model", label="Base model")}
<div id="model-facts" data-part="facts"></div>
{_render_menu("data", "data-file", label="Data")}
<label id="show-all-files" class="ts-check" hidden><input type="checkbox" autocomplete="off">
  <span></span></label>
<div class="ts-actions" id="data-buttons">
  <button type="button" id="upload-button" class="ts-action">Upload a file of rows</button>
  <input type="file" id="upload-file" hidden aria-label="Upload a file of rows">
  <button type="button" id="delete-file" class="ts-action" disabled>Delete this file</button>
</div>
<div id="upload-progress" hidden>
  <progress max="1" class="ts-progress" aria-labelledby="upload-text"></progress>
  <span id="upload-text" role="status"></span>
  <button type="button" id="stop-upload" class="ts-link">Stop</button></div>
{_render_menu("task", "task", label="Task", has_names=False)}"""

_EXPORT = f"""
<details id="settings-export" class="ts-more">
  <summary>Copy, export and import</summary>
  <fieldset id="export-form" class="ts-radios"><legend>These settings as</legend>{_FORMS}</fieldset>
  <div class="ts-field" id="export-text"><label for="export-area">Text to copy</label>
    <textarea id="export-area" rows="8" readonly></textarea></div>
  <button type="button" id="copy-export" class="ts-action">Copy</button>
  <div class="ts-field" id="import-text">
    <label for="import-area">Settings from YAML or JSON</label>
    <p class="ts-muted" id="import-explanation">{_IMPORT_NOTE}</p>
    <textarea id="import-area" rows="4" placeholder="epochs: 3&#10;learning_rate: 0.0001"
      aria-describedby="import-explanation" spellcheck="false"></textarea></div>
  <div id="import-note" role="alert"></div>
  <button type="button" id="import-button" class="ts-action">Fill in these settings</button>
</details>"""

_SETTINGS = f"""
<div id="training-settings">
  <fieldset id="preset" class="ts-radios" hidden><legend>Preset</legend><div></div></fieldset>
  <div id="preset-note" data-part="preset_note"></div>
  <div id="setting-form"></div>
  {_EXPORT}
</div>"""

_TAB_BUTTONS = "".join(
    f'<button type="button" role="tab" id="tab-{name}" aria-controls="panel-{name}" '
    f'data-tab="{name}" aria-selected="{"false" if place else "true"}" '
    f'tabindex="{-1 if place else 0}">{label}</button>'
    for place, (name, label) in enumerate(_TABS)
)
_PANELS = """
<div role="tabpanel" id="panel-tokens" aria-labelledby="tab-tokens" tabindex="0">
  <div id="preview"></div></div>
<div role="tabpanel" id="panel-rows" aria-labelledby="tab-rows" hidden>
  <form id="row-search-bar" role="search"><div class="ts-field" id="row-search">
    <label for="row-search-text">Search the rows</label>
    <input type="search" id="row-search-text" maxlength="200" autocomplete="off"
      placeholder="Text in any part of a row"></div>
    <button type="submit" id="row-find" class="ts-action">Search</button></form>
  <div id="file-rows"></div>
  <div class="ts-actions" id="row-pages">
    <button type="button" id="rows-previous" class="ts-action" disabled>← Previous</button>
    <button type="button" id="rows-next" class="ts-action" disabled>Next →</button></div>
</div>
<div role="tabpanel" id="panel-statistics" aria-labelledby="tab-statistics" tabindex="0" hidden>
  <div id="row-statistics"></div>
  <div class="ts-actions" id="findings-buttons">
    <button type="button" id="save-faults" class="ts-action" hidden
      >Download the faulty rows</button>
    <button type="button" id="save-duplicates" class="ts-action" hidden
      >Download the equal rows</button></div>
</div>"""

_DATA = f"""
<details id="column-mapping" class="ts-more" hidden><summary>Columns</summary>
  <div id="column-note" role="status"></div>
  <div id="column-menus" class="ts-fields"></div></details>
<div id="data-tabs">
  <div role="tablist" aria-label="Data">{_TAB_BUTTONS}</div>{_PANELS}
</div>"""

_START = f"""
<div id="start-bar">
  <div class="ts-field" id="run-name"><label for="run-name-text">{NAME_LABEL}</label>
    <input type="text" id="run-name-text" placeholder="letters, digits, - and _" autocomplete="off"
      spellcheck="false"></div>
  <div id="start-text"><div id="estimate"></div>
    <div role="status"><button type="button" id="start-reason" class="ts-start-reason"
      hidden></button></div></div>
  <button type="button" id="start-button" class="ts-action ts-primary" disabled>Start</button>
</div>"""

_DIALOG = """
<dialog id="delete-file-dialog" aria-labelledby="delete-file-title"><form method="dialog">
  <h2 id="delete-file-title">Delete this file?</h2>
  <p id="delete-file-name" translate="no"></p>
  <p>This cannot be undone. Models and runs that learned from it stay.</p>
  <div class="ts-actions"><button type="button" id="keep-file" class="ts-action">Keep</button>
    <button type="submit" id="confirm-delete" class="ts-action ts-danger">Delete</button></div>
</form></dialog>"""

_TEMPLATE = f"""<div class="ts-runs-page ts-fine-tune-page" data-view="job" aria-busy="true">
<div class="ts-intro"><p>{INTRODUCTION}</p><p class="ts-muted">{DEMONSTRATION_NOTE}</p></div>
<div id="fine-tune-notice" data-part="notice"></div>
<div class="ts-halves"><div class="ts-choices">{_CHOICES}{_SETTINGS}</div>
<div class="ts-data-half">{_DATA}</div></div>{_START}{_DIALOG}</div>"""

FINE_TUNE_FRAME = Frame(
    "fine-tune-page",
    _TEMPLATE,
    ("requests", "setting_form", "data_tabs", "file_upload", "fine_tune"),
)
