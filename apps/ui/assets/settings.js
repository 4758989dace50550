// The settings on the page "Fine-tune": search, changed settings, problems at their fields, and the
// check that precedes Start. Gradio builds the fields; this script only shows and hides them.
(() => {
  if (window.tuneserveSettings) return;
  const CHECK_DELAY_MS = 400;
  const EARLY_DELAY_MS = 1000; // after a check of fields that were about to change
  const CHECK_PATIENCE_MS = 60000;
  const MOUNT_DELAYS_MS = [0, 60, 200, 600, 1500]; // Gradio builds what an accordion has once it opens
  const search = { text: "", changedOnly: false };
  let version = 0; // of what is entered
  let checked = -1; // the version that was sent
  let isPending = false;
  let problems = []; // of the last check
  let delay;
  let patience;
  const holds = new Map(); // what the next check waits for, each with its time limit

  const find = (id) => document.getElementById(id);
  const place = () => find("training-settings");
  const listFields = () =>
    place() ? [...place().querySelectorAll('[id^="setting-"].block')] : [];
  const findInput = (field) => field.querySelector("input, textarea");

  // Search and changed settings

  function readToolbar(name) {
    const toolbar = find("settings-toolbar");
    return toolbar ? JSON.parse(toolbar.dataset[name]) : {};
  }

  function isChanged(field, value) {
    const input = findInput(field);
    if (!input) return false;
    if (input.type === "checkbox") return input.checked !== value;
    if (typeof value === "number") return input.value === "" || Number(input.value) !== value;
    return input.value.trim() !== String(value);
  }

  function mark() {
    const shown = readToolbar("shown"); // by fields that do not exist before they are opened
    let numChanged = 0;
    for (const [id, value] of Object.entries(readToolbar("defaults"))) {
      const field = find(id);
      const changed = field ? isChanged(field, value) : shown[id] !== value;
      field?.classList.toggle("ts-changed", changed);
      numChanged += changed;
    }
    const count = find("settings-num-changed");
    if (count) count.textContent = numChanged ? `(${numChanged})` : "";
    filter();
  }

  function refresh() {
    mark();
    placeProblems();
  }

  function refreshOnceMounted() {
    for (const ms of MOUNT_DELAYS_MS) setTimeout(refresh, ms);
  }

  function filter() {
    const words = search.text.toLowerCase().split(/\s+/).filter(Boolean);
    const isFiltered = words.length > 0 || search.changedOnly;
    let numShown = 0;
    for (const field of listFields()) {
      const text = `${field.innerText || field.textContent} ${field.id}`.toLowerCase();
      const matches =
        words.every((word) => text.includes(word)) &&
        (!search.changedOnly || field.classList.contains("ts-changed"));
      field.classList.toggle("ts-filtered", !matches);
      numShown += matches;
    }
    for (const group of document.querySelectorAll("#training-settings .ts-group")) {
      const isEmpty = !group.querySelector('[id^="setting-"].block:not(.ts-filtered)');
      group.classList.toggle("ts-filtered", isEmpty);
    }
    const found = find("settings-found");
    if (!found) return;
    if (!isFiltered) found.textContent = "";
    else if (numShown) found.textContent = `${numShown} setting${numShown === 1 ? "" : "s"}`;
    else found.textContent = search.changedOnly && !words.length
      ? "All settings have their defaults." : "No setting matches.";
  }

  function openMore() {
    const button = document.querySelector("#more-settings .label-wrap");
    if (button && !button.classList.contains("open")) button.click();
    refreshOnceMounted();
  }

  function listenToToolbar() {
    const text = find("settings-search");
    const only = find("settings-changed-only");
    if (!text || text.dataset.isReady) return;
    text.dataset.isReady = "1";
    text.value = search.text;
    only.checked = search.changedOnly;
    text.addEventListener("input", () => {
      search.text = text.value;
      if (search.text.trim()) openMore();
      else filter();
    });
    only.addEventListener("change", () => {
      search.changedOnly = only.checked;
      if (search.changedOnly) openMore();
      else mark();
    });
  }

  // The check, its problems, and Start

  function setStart(reason, fieldId, isAllowed) {
    const button = find("start-button");
    const shown = find("start-reason");
    if (!button || !shown) return;
    button.disabled = Boolean(reason) && !isAllowed;
    shown.textContent = reason || "";
    shown.hidden = !reason;
    shown.dataset.field = fieldId || "";
    shown.classList.toggle("ts-pending", isPending);
    const estimate = find("estimate");
    if (estimate) estimate.classList.toggle("ts-outdated", isPending);
  }

  function change() {
    version += 1;
    isPending = true;
    setStart("Checking the settings…");
    mark();
    clearTimeout(delay);
    if (!holds.size) delay = setTimeout(check, CHECK_DELAY_MS);
  }

  // Until a name is released, nothing is checked: chosen data is read first, because its task and its
  // columns change the settings ("data"), and fields are built again ("fields"). A check before that
  // would report faults that disappear once the data is read.
  function hold(name) {
    clearTimeout(holds.get(name));
    holds.set(name, setTimeout(() => release(name), CHECK_PATIENCE_MS));
    change();
  }

  function release(name) {
    if (!holds.has(name)) return;
    clearTimeout(holds.get(name));
    holds.delete(name);
    change();
  }

  function check() {
    const button = find("check-settings");
    if (!button) return;
    checked = version;
    button.click();
    clearTimeout(patience);
    patience = setTimeout(() => { // without an answer, Start itself is the check
      isPending = false;
      setStart("");
    }, CHECK_PATIENCE_MS);
  }

  function show(text) {
    if (!text || checked !== version) return; // a newer check is on its way
    clearTimeout(patience);
    isPending = false;
    const verdict = JSON.parse(text);
    problems = verdict.problems;
    placeProblems();
    setStart(verdict.reason, problems[0]?.id, verdict.isTemporary);
    if (verdict.isEarly) {
      clearTimeout(delay);
      delay = setTimeout(change, EARLY_DELAY_MS);
    }
    const button = find("refresh-export");
    if (button && find("export-text")?.offsetParent) button.click();
  }

  function placeProblems() {
    const messages = new Map(problems.map((problem) => [problem.id, problem.message]));
    for (const old of document.querySelectorAll("#training-settings .ts-field-error")) {
      if (messages.get(old.parentElement.id) === old.dataset.message) messages.delete(old.parentElement.id);
      else removeProblem(old);
    }
    for (const [id, message] of messages) addProblem(id, message);
  }

  function removeProblem(shown) {
    const input = findInput(shown.parentElement);
    input?.removeAttribute("aria-invalid");
    input?.removeAttribute("aria-describedby");
    shown.remove();
  }

  function addProblem(id, message) {
    const field = find(id);
    if (!field) return;
    const shown = document.createElement("p");
    shown.className = "ts-field-error";
    shown.id = `${id}-problem`;
    shown.setAttribute("role", "alert");
    shown.textContent = message;
    shown.dataset.message = message; // what is shown may be translated
    field.append(shown);
    const input = findInput(field);
    input?.setAttribute("aria-invalid", "true");
    input?.setAttribute("aria-describedby", shown.id);
  }

  function goToField() {
    const id = find("start-reason").dataset.field;
    if (!id) return;
    search.text = "";
    search.changedOnly = false;
    const text = find("settings-search");
    if (text) text.value = "";
    const only = find("settings-changed-only");
    if (only) only.checked = false;
    if (!find(id)) openMore();
    for (const ms of MOUNT_DELAYS_MS) setTimeout(() => focusField(id), ms);
  }

  function focusField(id) {
    filter();
    const input = find(id) && findInput(find(id));
    if (!input || document.activeElement === input) return;
    if (!input.offsetParent) openMore();
    input.scrollIntoView({ block: "center" });
    input.focus({ preventScroll: true });
  }

  function begin() {
    listenToToolbar();
    const reason = find("start-reason");
    if (reason) reason.onclick = goToField;
    const more = document.querySelector("#more-settings .label-wrap");
    if (more) more.addEventListener("click", refreshOnceMounted);
    release("fields");
    change();
  }

  // Gradio reports no text that is pasted at once, so the browser's own event counts too.
  document.addEventListener("input", (event) => {
    if (event.target.closest?.('#training-settings [id^="setting-"].block, #run-name')) change();
  });

  window.tuneserveSettings = { begin, change, hold, release, show };
})();
