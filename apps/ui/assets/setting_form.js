// The settings on the page "Fine-tune": search, changed settings, problems at their fields, and what
// the fields contain. The server renders the form (apps/ui/fine_tune/setting_form.py).
"use strict";

window.TuneserveSettingForm = class {
  // `root` is the page; `onChange` is called when a field was changed, `onRows` when a setting of rows was.
  constructor(root, onChange, onRows) {
    Object.assign(this, { root, text: "", changedOnly: false, problems: [] });
    this.entered = {}; // by the name of a setting, what a field contains unless it is what was shown at first
    this.typed = new Map(); // by the id of an input, what was entered since another form was asked for
    root.addEventListener("input", ({ target }) => {
      const field = target.closest("#setting-form .ts-setting");
      if (!field) return;
      this.typed.set(target.id, { value: target.value, checked: target.checked });
      this.enter(field);
      onChange();
    });
    root.addEventListener("change", ({ target }) => {
      if (target.closest("#setting-form .ts-setting[data-rows]")) onRows();
    });
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  get exists() {
    return Boolean(this.find("[data-form]"));
  }

  get fields() {
    return [...this.root.querySelectorAll("#setting-form .ts-setting")];
  }

  // ---- what fields contain

  findInput(field) {
    return field.querySelector("input, select, textarea");
  }

  read(field) {
    const input = this.findInput(field);
    if (input.type === "checkbox") return input.checked;
    if (input.tagName === "SELECT") return JSON.parse(input.value);
    if (input.type !== "number") return input.value;
    const number = input.valueAsNumber; // not a number for what the browser cannot read
    return Number.isFinite(number) ? number : null;
  }

  collect() {
    return Object.fromEntries(this.fields.map((field) => [field.dataset.key, this.read(field)]));
  }

  differs(field, content) {
    const value = this.read(field);
    return (typeof value === "string" ? value.trim() : value) !== JSON.parse(content);
  }

  enter(field) {
    const { key, shown } = field.dataset;
    if (this.differs(field, shown)) this.entered[key] = this.read(field);
    else delete this.entered[key];
    this.mark();
  }

  // ---- another form

  // From now on, what is typed is entered into the form that comes.
  startUpdate() {
    this.typed.clear();
  }

  // Shows another form, with what was entered before and what was typed since it was asked for. The
  // focus and what is opened stay.
  show(html, entered) {
    const place = this.find("#setting-form");
    const isOpen = Boolean(this.find("#more-settings")?.open);
    const focused = place.contains(document.activeElement) ? document.activeElement : null;
    const caret = [focused?.selectionStart, focused?.selectionEnd];
    place.innerHTML = html;
    this.entered = { ...entered };
    if (!this.exists) return;
    this.find("#more-settings").open = isOpen;
    this.listenToToolbar();
    for (const [id, content] of this.typed) this.typeAgain(id, content);
    if (focused) this.focusAgain(focused.id, caret);
    this.placeProblems();
    this.mark();
  }

  typeAgain(id, { value, checked }) {
    const input = document.getElementById(id);
    const field = input?.closest("#setting-form .ts-setting");
    if (!field) return;
    if (input.type === "checkbox") input.checked = checked;
    else if (!input.options || [...input.options].some((option) => option.value === value)) input.value = value;
    this.enter(field);
  }

  focusAgain(id, [start, end]) {
    const input = id && document.getElementById(id);
    if (!input) return;
    input.focus({ preventScroll: true });
    if (["text", "search", "textarea"].includes(input.type)) input.setSelectionRange(start, end);
  }

  // ---- search and changed settings

  mark() {
    let numChanged = 0;
    for (const field of this.fields) {
      const isChanged = this.differs(field, field.dataset.default);
      field.classList.toggle("ts-changed", isChanged);
      numChanged += isChanged;
    }
    this.find("#settings-num-changed").textContent = numChanged ? `(${numChanged})` : "";
    this.filter();
  }

  filter() {
    const words = this.text.toLowerCase().split(/\s+/).filter(Boolean);
    let numShown = 0;
    for (const field of this.fields) {
      const parts = [...field.querySelectorAll("label, small")].map((part) => part.textContent);
      const text = `${parts.join(" ")} ${field.id}`.toLowerCase();
      const matches = words.every((word) => text.includes(word)) && (!this.changedOnly || field.classList.contains("ts-changed"));
      field.classList.toggle("ts-filtered", !matches);
      numShown += matches;
    }
    for (const group of this.root.querySelectorAll("#setting-form .ts-group"))
      group.classList.toggle("ts-filtered", !group.querySelector(".ts-setting:not(.ts-filtered)"));
    this.find("#settings-found").textContent = this.describeFound(words.length > 0, numShown);
  }

  describeFound(isSearched, numShown) {
    if (!isSearched && !this.changedOnly) return "";
    if (numShown) return `${numShown} setting${numShown === 1 ? "" : "s"}`;
    return isSearched ? "No setting matches." : "All settings have their defaults.";
  }

  listenToToolbar() {
    const text = this.find("#settings-search");
    const only = this.find("#settings-changed-only");
    text.value = this.text;
    only.checked = this.changedOnly;
    text.addEventListener("input", () => {
      this.text = text.value;
      if (this.text.trim()) this.find("#more-settings").open = true;
      this.filter();
    });
    only.addEventListener("change", () => {
      this.changedOnly = only.checked;
      if (this.changedOnly) this.find("#more-settings").open = true;
      this.filter();
    });
  }

  // ---- problems

  showProblems(problems) {
    this.problems = problems;
    this.placeProblems();
  }

  placeProblems() {
    const messages = new Map(this.problems.map(({ id, message }) => [id, message]));
    for (const old of this.root.querySelectorAll(".ts-field-error")) {
      const { id } = old.parentElement;
      if (messages.get(id) === old.dataset.message) messages.delete(id);
      else this.removeProblem(old);
    }
    for (const [id, message] of messages) this.addProblem(id, message);
  }

  removeProblem(shown) {
    const field = shown.parentElement;
    const input = this.findInput(field);
    input?.removeAttribute("aria-invalid");
    this.describe(input, this.findNote(field.id));
    shown.remove();
  }

  addProblem(id, message) {
    const field = document.getElementById(id);
    if (!field) return;
    const shown = document.createElement("p");
    Object.assign(shown, { className: "ts-field-error", id: `${id}-problem`, textContent: message });
    shown.setAttribute("role", "alert");
    shown.dataset.message = message; // what is shown may be translated
    field.append(shown);
    const input = this.findInput(field);
    input?.setAttribute("aria-invalid", "true");
    this.describe(input, shown.id, this.findNote(id));
  }

  findNote(id) {
    return document.getElementById(`${id}-note`)?.id;
  }

  describe(input, ...ids) {
    const known = ids.filter(Boolean).join(" ");
    if (known) input?.setAttribute("aria-describedby", known);
    else input?.removeAttribute("aria-describedby");
  }

  goToField(id) {
    const field = id && document.getElementById(id);
    if (!field) return;
    Object.assign(this, { text: "", changedOnly: false });
    this.find("#settings-search").value = "";
    this.find("#settings-changed-only").checked = false;
    this.filter();
    if (field.closest("#more-settings")) this.find("#more-settings").open = true;
    const input = this.findInput(field);
    input.scrollIntoView({ block: "center" });
    input.focus({ preventScroll: true });
  }
};
