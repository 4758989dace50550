"""The frame of the page "Runs": the places that messages fill, and the controls around them.

It never changes, so what a visitor chooses and enters in it stays.
"""

from apps.ui import markup

_COLUMNS = (
    *("State", "Model", "Data", "Progress", "Training loss", "Validation", "Started", "Duration"),
)
_STATES = "".join(
    f'<option value="{status}">{word}</option>' for status, word in markup.STATUS_WORDS.items()
)
_HEAD = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)

_LIST = f"""
<section id="run-list" class="ts-view-list" aria-labelledby="run-list-title">
  <div class="ts-toolbar">
    <h2 id="run-list-title">Runs</h2>
    <input type="search" id="run-search" maxlength="200" placeholder="Name, model or data"
      aria-label="Search runs by name, model or data">
    <select id="run-state" aria-label="Show runs with this state">
      <option value="">All states</option>{_STATES}
    </select>
    <a id="compare-button" class="ts-action" href="./runs" data-go="compare" hidden>Compare</a>
  </div>
  <div class="ts-table-scroll"><table class="ts-run-table">
    <thead><tr><td></td><th scope="col">Name</th>{_HEAD}</tr></thead>
    <tbody data-list="runs"></tbody>
  </table></div>
  <div data-part="list-empty"></div>
  <nav class="ts-pager" aria-label="Pages of runs">
    <button type="button" id="newer-runs" class="ts-action" hidden>Newer runs</button>
    <button type="button" id="older-runs" class="ts-action" hidden>Older runs</button>
  </nav>
</section>"""

_CURVES = """
<div class="ts-toolbar ts-curve-controls" role="group" aria-label="Curves">
  <h3>Curves</h3>
  <label>Along <select data-curve="axis">
    <option value="step">steps</option><option value="trained_tokens">tokens</option>
    <option value="elapsed_s">time</option>
  </select></label>
  <label class="ts-slider">Smoothing
    <input type="range" data-curve="smoothing" min="0" max="0.99" step="0.01" value="0.9">
    <output></output>
  </label>
  <label><input type="checkbox" data-curve="log"> Log scale</label>
</div>
<div class="ts-charts"></div>"""

_RUN = f"""
<section class="ts-view-run" aria-label="Run">
  <a class="ts-back" href="./runs" data-go="list">← All runs</a>
  <div id="run-detail">
    <div data-part="run"></div>
    <div id="run-buttons" class="ts-actions" data-part="run-buttons"></div>
    <div data-part="run-result"></div>
  </div>
  <section id="run-curves" aria-label="Curves" data-curves="run">{_CURVES}</section>
  <div class="ts-columns">
    <div>
      <section id="run-evaluation" data-part="run-evaluation" aria-label="Evaluation"></section>
      <section id="run-checkpoints" data-part="run-checkpoints" aria-label="Checkpoints"></section>
      <section id="run-events" aria-label="Events"><h3>Events</h3>
        <ol class="ts-events" data-list="events" tabindex="0" aria-label="Events"
          data-empty="None yet."></ol></section>
      <details id="run-log"><summary>Log</summary>
        <div class="ts-toolbar">
          <input type="search" id="log-search" maxlength="200" placeholder="Find in the whole log"
            aria-label="Find in the whole log">
          <label><input type="checkbox" id="log-follow" checked> Follow</label>
          <span id="log-note" class="ts-muted" role="status"></span>
        </div>
        <pre id="log-text" tabindex="0" aria-label="Log"></pre>
      </details>
    </div>
    <section id="run-settings" data-part="run-settings" aria-label="Settings"></section>
  </div>
</section>"""

_COMPARISON = f"""
<section class="ts-view-compare" aria-labelledby="compare-title">
  <a class="ts-back" href="./runs" data-go="list">← All runs</a>
  <h2 id="compare-title">Comparison</h2>
  <div id="compare-figures" data-part="compare-figures"></div>
  <section id="compare-curves" aria-label="Curves" data-curves="compare">{_CURVES}</section>
  <div id="compare-settings" data-part="compare-settings"></div>
</section>"""

_DIALOGS = r"""
<dialog id="publish-dialog" aria-labelledby="publish-title"><form method="dialog">
  <h3 id="publish-title">Publish the checkpoint</h3>
  <p>It becomes a model for chats, downloads and fine-tunes. An event reports when it is ready.</p>
  <label>Name of the model <input id="publish-name" maxlength="128"></label>
  <div class="ts-actions"><button type="button" class="ts-action" data-close>Back</button>
    <button type="submit" class="ts-action ts-primary" id="publish-confirm">Publish</button></div>
</form></dialog>
<dialog id="extend-dialog" aria-labelledby="extend-title"><form>
  <h3 id="extend-title">Extend the training</h3>
  <p>A new run continues from the last checkpoint of this one, which stays as it is.</p>
  <label data-length="epochs">Epochs in all <input type="number" step="1" max="1000" required
    aria-describedby="extend-hint extend-error"></label>
  <label data-length="max_steps" hidden>Steps in all <input type="number" step="1" max="2147483647"
    required aria-describedby="extend-hint extend-error"></label>
  <p id="extend-hint" class="ts-muted"></p>
  <p id="extend-both" class="ts-muted" hidden>The training ends with the first of the two.</p>
  <p id="extend-early" hidden></p>
  <p id="extend-error" class="ts-field-error" role="alert"></p>
  <label>Name of the run <input id="extend-name" maxlength="64" pattern="[A-Za-z0-9][A-Za-z0-9_\-]*"
    placeholder="As before" aria-describedby="extend-error"></label>
  <div class="ts-actions"><button type="button" class="ts-action" data-close>Back</button>
    <button type="submit" class="ts-action ts-primary" id="extend-confirm">Extend</button></div>
</form></dialog>
<dialog id="delete-dialog" aria-labelledby="delete-title"><form method="dialog">
  <h3 id="delete-title">Delete this run?</h3>
  <p>Its checkpoints, events, metrics and log are deleted. Models that were published from it are
    kept.</p>
  <div class="ts-actions"><button type="button" class="ts-action" data-close>Back</button>
    <button type="submit" class="ts-action ts-danger" id="delete-confirm">Delete</button></div>
</form></dialog>"""

FRAME = f"""<div class="ts-runs-page" aria-busy="true">
<div id="runs-notice" data-part="notice"></div>{_LIST}{_RUN}{_COMPARISON}{_DIALOGS}</div>"""
