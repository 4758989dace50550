// The settings on the page "Fine-tune": search, changed settings, problems at their fields, what the
// fields contain, and the check that precedes Start. The server renders the form.
(() => {
  if (window.tuneserveSettings) return;
  const CHECK_DELAY_MS = 400;
  const EARLY_DELAY_MS = 1000; // after a check of fields that were about to change
  const CHECK_PATIENCE_MS = 60000;
  const search = { text: "", changedOnly: false };
  let version = 0; // of what is entered
  let checked = -1; // the version that was sent
  let isPending = false;
  let problems = []; // of the last check
  let delay;
  let patience;
  const holds = new Map(); // what the next check waits for, each with its time limit
  const typed = new Map(); // by the id of an input, since the form was asked for

  const find = (id) => document.getElementById(id);
  const findForm = () => document.querySelector("#setting-form [data-form]");
  const listFields = () => [...document.querySelectorAll("#setting-form .ts-setting")];
  const findInput = (field) => field.querySelector("input, select, textarea");

  // What fields contain

  function read(field) {
    const input = findInput(field);
    if (input.type === "checkbox") return input.checked;
    if (input.tagName === "SELECT") return JSON.parse(input.value);
    if (input.type !== "number") return input.value;
    const number = input.valueAsNumber; // not a number for what the browser cannot read
    return Number.isFinite(number) ? number : null;
  }

  function collect() {
    const form = findForm();
    const fields = Object.fromEntries(listFields().map((field) => [field.dataset.key, read(field)]));
    return JSON.stringify({ form: form?.dataset.form ?? "", fields });
  }

  function keep() {
    find("keep-settings")?.click();
  }

  // Search and changed settings

  function isChanged(field) {
    const value = read(field);
    return (typeof value === "string" ? value.trim() : value) !== JSON.parse(field.dataset.default);
  }

  function mark() {
    let numChanged = 0;
    for (const field of listFields()) {
      const changed = isChanged(field);
      field.classList.toggle("ts-changed", changed);
      numChanged += changed;
    }
    const count = find("settings-num-changed");
    if (count) count.textContent = numChanged ? `(${numChanged})` : "";
    filter();
  }

  function filter() {
    const words = search.text.toLowerCase().split(/\s+/).filter(Boolean);
    const isFiltered = words.length > 0 || search.changedOnly;
    let numShown = 0;
    for (const field of listFields()) {
      const parts = [...field.querySelectorAll("label, small")].map((part) => part.textContent);
      const text = `${parts.join(" ")} ${field.id}`.toLowerCase();
      const matches =
        words.every((word) => text.includes(word)) &&
        (!search.changedOnly || field.classList.contains("ts-changed"));
      field.classList.toggle("ts-filtered", !matches);
      numShown += matches;
    }
    for (const group of document.querySelectorAll("#setting-form .ts-group")) {
      const isEmpty = !group.querySelector(".ts-setting:not(.ts-filtered)");
      group.classList.toggle("ts-filtered", isEmpty);
    }
    const found = find("settings-found");
    if (!found) return;
    if (!isFiltered) found.textContent = "";
    else if (numShown) found.textContent = `${numShown} setting${numShown === 1 ? "" : "s"}`;
    else found.textContent = search.changedOnly && !words.length
      ? "All settings have their defaults." : "No setting matches.";
  }

  function listenToToolbar() {
    const text = find("settings-search");
    const only = find("settings-changed-only");
    text.value = search.text;
    only.checked = search.changedOnly;
    text.addEventListener("input", () => {
      search.text = text.value;
      if (search.text.trim()) find("more-settings").open = true;
      filter();
    });
    only.addEventListener("change", () => {
      search.changedOnly = only.checked;
      if (search.changedOnly) find("more-settings").open = true;
      mark();
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
  // columns change the settings ("data"), and the form is asked for ("form"). A check before that
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
    describe(input, findNote(shown.parentElement.id));
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
    describe(input, shown.id, findNote(id));
  }

  function findNote(id) {
    return find(`${id}-note`)?.id;
  }

  function describe(input, ...ids) {
    const known = ids.filter(Boolean).join(" ");
    if (known) input?.setAttribute("aria-describedby", known);
    else input?.removeAttribute("aria-describedby");
  }

  function goToField() {
    const id = find("start-reason").dataset.field;
    const field = id && find(id);
    if (!field) return;
    search.text = "";
    search.changedOnly = false;
    find("settings-search").value = "";
    find("settings-changed-only").checked = false;
    filter();
    if (field.closest("#more-settings")) find("more-settings").open = true;
    const input = findInput(field);
    input.scrollIntoView({ block: "center" });
    input.focus({ preventScroll: true });
  }

  // The form is replaced

  function startUpdate() {
    if (!holds.has("form")) typed.clear();
    hold("form");
  }

  function endUpdate() {
    release("form");
  }

  // Show another form. What was typed since it was asked for, the focus, and what is opened stay.
  function showForm(html) {
    const place = find("setting-form");
    if (!place) return; // Gradio has not built it yet: `begin` follows
    const isOpen = Boolean(find("more-settings")?.open);
    const focused = place.contains(document.activeElement) ? document.activeElement : null;
    const caret = [focused?.selectionStart, focused?.selectionEnd];
    place.innerHTML = html;
    if (!findForm()) return;
    find("more-settings").open = isOpen;
    listenToToolbar();
    find("start-reason").onclick = goToField;
    for (const [id, entry] of typed) enter(id, entry);
    if (typed.size) keep();
    if (focused) focusAgain(find(focused.id), caret);
    placeProblems();
    if (holds.has("form")) release("form"); // which is a change
    else change();
  }

  function enter(id, { value, checked }) {
    const input = find(id);
    if (!input) return;
    if (input.type === "checkbox") input.checked = checked;
    else if (!input.options || [...input.options].some((option) => option.value === value)) input.value = value;
  }

  function focusAgain(input, [start, end]) {
    input?.focus({ preventScroll: true });
    if (["text", "search", "textarea"].includes(input?.type)) input.setSelectionRange(start, end);
  }

  function begin() {
    if (!find("setting-form")) return;
    hold("form");
    showForm(find("rendered-form")?.querySelector("input, textarea")?.value ?? "");
  }

  document.addEventListener("input", ({ target }) => {
    const field = target.closest?.("#setting-form .ts-setting");
    if (field) {
      if (holds.has("form")) typed.set(target.id, { value: target.value, checked: target.checked });
      keep();
    }
    if (field || target.closest?.("#run-name")) change();
  });
  document.addEventListener("change", ({ target }) => {
    const field = target.closest?.("#setting-form .ts-setting");
    if (field && "rows" in field.dataset) find("refresh-preview")?.click();
  });

  window.tuneserveSettings = { begin, change, collect, endUpdate, hold, release, show, showForm, startUpdate };
  begin();
})();
