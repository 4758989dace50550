// The page "Fine-tune": the choice of a model, data and a task, what belongs to it, and Start. The
// browser has what is chosen and entered; each request contains it (apps/ui/fine_tune/fine_tune_page.py).
"use strict";

(() => {
  const COOKIE = "tuneserve-choice";
  const ENTRIES = "tuneserve-entries"; // in the storage of the tab
  const MAX_COOKIE_CHARACTERS = 3500; // browsers keep 4096 bytes
  const COOKIE_AGE_S = 31_536_000;
  const CHECK_DELAY_MS = 400;
  const CHECKING = "Checking the settings…";
  const CHECKING_FILE = "The file is still being checked…";
  const NO_SETTINGS = "The settings for this choice could not be read. Try again";
  const COLUMNS_FIELD = "setting-columns";
  const FILE_CHECK_INTERVAL_MS = 2000;

  class Page {
    constructor(root, channel) {
      Object.assign(this, { root, menus: {}, fitted: "", changes: new Set(), version: 0, hasChoice: false, isStarting: false, hasChosenTask: false });
      const showTab = (tab) => new TuneserveRequests(channel, "show", (message) => this.data.receive(tab, message));
      this.requests = {
        choice: new TuneserveRequests(channel, "choose", (message) => this.showChoice(message)),
        tokens: showTab("tokens"),
        rows: showTab("rows"),
        statistics: showTab("statistics"),
        verdict: new TuneserveRequests(channel, "check", (message) => this.showCheck(message)),
        outcome: new TuneserveRequests(channel, "act", (message, asked) => this.endAction(message, asked), { allCount: true }),
      };
      this.form = new TuneserveSettingForm(this.root, () => this.change(), () => this.data.refresh({ isOtherData: false }));
      this.data = new TuneserveDataTabs(
        this.root,
        (tab) => this.requests[tab].ask(() => ({ ...this.describe(), ...this.data.describe(tab) })),
        (findings) => this.act({ action: "save", findings }),
      );
      this.upload = new TuneserveFileUpload(this.root, (path) => this.act({ action: "add", path }));
      this.listen();
    }

    // ---- what is chosen and entered

    find(selector) {
      return this.root.querySelector(selector);
    }

    menu(name) {
      return this.find(`[data-choice=${name}]`);
    }

    // A menu that is not filled yet has what was asked for.
    chosen(name) {
      return this.menu(name).value || this.menus[name] || "";
    }

    get preset() {
      return this.find("#preset input:checked")?.value ?? "balanced";
    }

    describe() {
      const [model, task, data] = ["model", "task", "data"].map((name) => this.chosen(name));
      return { model, task, data, fields: this.form.collect(), name: this.find("#run-name-text").value };
    }

    describeChoice() {
      const { model, task, data } = this.describe();
      const { preset, fitted, run, kept } = this;
      const columns = kept?.columns ?? Object.fromEntries(this.columnMenus.map((menu) => [menu.dataset.part, menu.value]));
      const shows_all = this.find("#show-all-files input").checked;
      this.form.startUpdate();
      return {
        model, data, preset, fitted, columns, run, shows_all, changes: [...this.changes], recalls: Boolean(kept?.columns),
        task: kept?.task ?? task,
        entered: JSON.stringify(this.form.entered), // as text: the page refuses objects with a path
      };
    }

    get columnMenus() {
      return [...this.root.querySelectorAll("#column-menus select")];
    }

    // ---- the address and the cookie

    readAddress() {
      const query = new URLSearchParams(location.search);
      let kept = null;
      try {
        const cookie = document.cookie.split("; ").find((one) => one.startsWith(`${COOKIE}=`)) ?? "";
        kept = JSON.parse(decodeURIComponent(cookie.slice(COOKIE.length + 1)));
      } catch { /* nothing is kept */ }
      const data = query.get("data") || (typeof kept?.data === "string" ? kept.data : "");
      this.kept = kept?.data === data ? kept : null;
      this.menus = { data };
      this.run = query.get("from") ?? "";
    }

    keepChoice() {
      const data = this.chosen("data");
      const columns = Object.fromEntries(this.columnMenus.filter((menu) => menu.value).map((menu) => [menu.dataset.part, menu.value]));
      const whole = { data, ...(this.hasMapping && { task: this.chosen("task"), columns }) };
      const [long, short] = [whole, { data }].map((choice) => encodeURIComponent(JSON.stringify(choice)));
      const path = new URL(".", document.baseURI).pathname;
      document.cookie = `${COOKIE}=${long.length > MAX_COOKIE_CHARACTERS ? short : long}; path=${path}; max-age=${COOKIE_AGE_S}; samesite=lax`;
    }

    // ---- the choice

    choose(...changes) {
      for (const change of changes) this.changes.add(change);
      this.root.setAttribute("aria-busy", "true");
      this.requests.choice.ask(() => this.describeChoice());
      this.change();
    }

    // `tokens` is what the tab shows, if it is known already.
    showChoice(message, tokens) {
      this.root.setAttribute("aria-busy", "false");
      this.hasChoice = Boolean(message && "form" in message);
      if (message) this.find("[data-part=notice]").innerHTML = message.notice;
      if (!this.hasChoice) {
        this.setStart(NO_SETTINGS);
        return;
      }
      const isOtherData = message.data !== this.fitted || ["page", "data"].some((one) => this.changes.has(one));
      const isOther = isOtherData || this.changes.has("model");
      const isMapped = this.changes.has("columns");
      this.changes.clear();
      this.showMenus(message);
      for (const name of ["facts", "preset_note"])
        if (name in message) this.find(`[data-part=${name}]`).innerHTML = message[name];
      if (message.name !== undefined) this.find("#run-name-text").value = message.name;
      this.showPresets(message);
      this.showColumns(message.columns, isOther);
      if (isMapped) this.keepChoice(); // without what contradicted the last choice of columns
      this.form.show(message.form, message.entered);
      this.fitted = message.data ?? "";
      Object.assign(this, { kept: null, run: "", menus: {}, waitsForFile: message.is_being_checked });
      if (isOtherData) this.data.startOver();
      if (tokens) this.data.show("tokens", tokens);
      else this.data.refresh({ isOtherData });
      this.change();
    }

    showMenus(message) {
      for (const [name, entries] of [["model", message.models], ["data", message.files], ["task", message.tasks]])
        if (entries) this.menu(name).replaceChildren(...entries.map(([label, value]) => new Option(label, value)));
      for (const name of ["model", "data", "task"]) this.menu(name).value = message[name] ?? "";
      this.menu("task").disabled = message.tasks.length < 2;
      this.find("#delete-file").disabled = !message.data;
      if (!message.files) return;
      const all = this.find("#show-all-files");
      all.hidden = !message.num_unusable;
      all.querySelector("span").textContent = `Also list files that cannot be used (${message.num_unusable})`;
    }

    showPresets({ presets, preset }) {
      const place = this.find("#preset");
      const focused = place.contains(document.activeElement);
      place.hidden = presets.length < 2;
      place.querySelector("div").replaceChildren(...presets.map(([label, value]) => {
        const choice = document.createElement("label");
        choice.append(Object.assign(document.createElement("input"), { type: "radio", name: "preset", value, checked: value === preset }), ` ${label}`);
        return choice;
      }));
      if (focused) place.querySelector("input:checked")?.focus({ preventScroll: true });
    }

    showColumns({ menus, columns, note, is_open }, isOther) {
      const place = this.find("#column-mapping");
      const focused = place.contains(document.activeElement) ? document.activeElement.dataset.part : "";
      place.hidden = !menus.length;
      if (isOther || is_open) place.open = is_open;
      this.hasMapping = menus.some(({ value }) => value);
      tuneserveSetText(this.find("#column-note"), note); // page.js
      this.find("#column-note").className = note ? "ts-notice ts-info" : "";
      this.find("#column-menus").replaceChildren(...menus.map(({ part, label, value }, place) => {
        const menu = document.createElement("select");
        Object.assign(menu, { id: `column-${place}-menu`, className: "ts-names" });
        menu.dataset.part = part;
        menu.append(new Option("by its name", ""), ...columns.map((name) => new Option(name, name)));
        menu.value = value;
        const field = Object.assign(document.createElement("div"), { id: `column-${place}`, className: "ts-field" });
        field.append(Object.assign(document.createElement("label"), { htmlFor: menu.id, textContent: label }), menu);
        return field;
      }));
      if (focused) this.find(`#column-menus [data-part=${focused}]`)?.focus({ preventScroll: true });
    }

    // ---- the check, and Start

    change() {
      this.version += 1; // of what is chosen and entered
      this.setStart(CHECKING);
      clearTimeout(this.delay);
      if (!this.requests.choice.isIdle) return; // its answer is a change too
      if (!this.hasChoice) this.setStart(NO_SETTINGS);
      else this.delay = setTimeout(() => this.check(), CHECK_DELAY_MS);
    }

    check() {
      this.requests.verdict.ask(() => this.describeChecked());
    }

    describeChecked() {
      this.checked = this.version;
      return { ...this.describe(), waits_for_file: this.waitsForFile };
    }

    // Without an answer, Start itself is the check.
    showCheck(message) {
      if (this.checked !== this.version) return;
      // A problem with the columns may be gone once they are known.
      const isOfColumns = ({ id }) => id === COLUMNS_FIELD;
      const isEarly = Boolean(message?.is_being_checked && message.reason && message.problems.every(isOfColumns));
      this.showVerdict(isEarly ? { problems: [], reason: CHECKING_FILE } : message ?? { problems: [], reason: "" });
      if (message) this.find("#estimate").innerHTML = message.estimate;
      if (this.find("#settings-export").open) this.write();
      if (this.waitsForFile) this.watchFile(message ?? { is_being_checked: true });
    }

    // The task, the columns and the number of rows are known when the server has checked the file. A
    // task that the visitor has chosen stays.
    watchFile({ is_being_checked }) {
      if (is_being_checked) this.delay = setTimeout(() => this.check(), FILE_CHECK_INTERVAL_MS);
      else this.choose(this.hasChosenTask ? "files" : "check");
    }

    showVerdict({ problems, reason, is_temporary }) {
      this.form.showProblems(problems);
      this.setStart(reason, problems[0]?.id, is_temporary);
    }

    setStart(reason, field = "", isAllowed = false) {
      const shown = this.find("#start-reason");
      const isPending = [CHECKING, CHECKING_FILE].includes(reason);
      this.find("#start-button").disabled = this.isStarting || (Boolean(reason) && !isAllowed);
      tuneserveSetText(shown, reason);
      shown.hidden = !reason;
      shown.dataset.field = field;
      shown.classList.toggle("ts-link", reason === NO_SETTINGS);
      shown.classList.toggle("ts-pending", isPending);
      this.find("#estimate").classList.toggle("ts-outdated", isPending);
    }

    start() {
      this.isStarting = true;
      this.started = this.version;
      const button = this.find("#start-button");
      Object.assign(button, { disabled: true, textContent: "Starting…" });
      this.act({ action: "start" });
    }

    endStart(end, { isAnswer = false } = {}) {
      if (end?.is_done) {
        this.keepChoice();
        location.href = `./runs?run=${encodeURIComponent(end.run)}`;
        return;
      }
      this.isStarting = false;
      this.find("#start-button").textContent = "Start";
      if (end?.verdict && this.started === this.version) this.showVerdict(end.verdict);
      else this.change();
      if (isAnswer && document.activeElement === document.body) this.focusStart();
    }

    // The button lost the focus when it was disabled.
    focusStart() {
      const places = [this.find("#start-button"), this.find("#start-reason")];
      places.find((one) => !one.disabled && !one.hidden)?.focus({ preventScroll: true });
    }

    // ---- actions

    // What is chosen and entered now counts, also if the action is sent later.
    act(action) {
      const asked = { ...this.describe(), ...action };
      this.requests.outcome.ask(() => asked);
    }

    endAction(end, { action, data }) {
      if (action === "start") this.endStart(end, { isAnswer: true });
      else if (action === "add") this.endUpload(end);
      else if (action === "fill_in") this.endFillIn(end);
      else if (!end?.is_done) return;
      else if (action === "delete") this.endDelete(data);
      else if (action === "write") this.find("#export-area").value = end.text;
      else if (action === "save") this.data.saveFile(end);
    }

    endDelete(data) {
      if (this.chosen("data") === data) this.menu("data").value = "";
      this.choose("files", "data");
    }

    write() {
      const form = this.find("#export-form input:checked").value;
      this.act({ action: "write", form, origin: location.origin });
    }

    endFillIn(end) {
      const note = this.find("#import-note");
      note.textContent = end?.is_done ? "" : end?.problem ?? "";
      note.className = note.textContent ? "ts-notice ts-error" : "";
      if (!end?.is_done) return;
      this.form.entered = end.entered;
      const first = this.find("#preset input[value=balanced]");
      if (first) first.checked = true;
      this.choose("preset");
    }

    // ---- uploads

    endUpload(end) {
      this.upload.end(end);
      if (!end?.is_done) return;
      this.menu("data").append(new Option(this.upload.name, end.data));
      this.menu("data").value = end.data;
      this.chooseData();
    }

    // ---- what a visitor does

    chooseData() {
      this.hasChosenTask = false;
      this.choose("data");
      this.hasMapping = false;
      this.keepChoice();
    }

    listen() {
      this.root.addEventListener("click", ({ target }) => this.click(target));
      this.root.addEventListener("change", ({ target }) => this.changeMenu(target));
      this.find("#run-name-text").addEventListener("input", () => this.change());
      this.find("#settings-export").addEventListener("toggle", ({ target }) => { if (target.open) this.write(); });
      addEventListener("pageshow", ({ persisted }) => { if (persisted) this.endStart(null); }); // the visitor went back
      this.find("#delete-file-dialog form").addEventListener("submit", () => this.act({ action: "delete", data: this.deleted }));
    }

    changeMenu(target) {
      if (target.dataset.choice === "task") this.hasChosenTask = true;
      if (target.dataset.choice === "data") this.chooseData();
      else if (target.dataset.choice) this.choose(target.dataset.choice);
      else if (target.closest("#column-menus")) this.choose("columns");
      else if (target.name === "preset") this.choose("preset");
      else if (target.name === "export-form") this.write();
      else if (target.closest("#show-all-files")) this.choose("files");
    }

    click(target) {
      const button = target.closest("button");
      if (button?.id === "start-button") this.start();
      else if (button?.id === "start-reason") this.goToReason(button.dataset.field);
      else if (button?.id === "delete-file") this.askToDelete();
      else if (button?.id === "keep-file") this.find("#delete-file-dialog").close();
      else if (button?.id === "import-button") this.act({ action: "fill_in", text: this.find("#import-area").value });
      else if (button?.id === "copy-export") tuneserveCopy(this.find("#export-area"), button); // page.js
    }

    goToReason(field) {
      if (field) this.form.goToField(field);
      else if (!this.hasChoice) this.choose("page");
    }

    askToDelete() {
      const [shown] = this.menu("data").selectedOptions;
      this.deleted = shown.value; // another file may be chosen while the dialog is open
      this.find("#delete-file-name").textContent = shown.textContent;
      this.find("#delete-file-dialog").showModal();
    }

    // ---- the beginning

    // What was entered is kept for the tab that is loaded again, as after a lost connection.
    keepEntries() {
      const { model, data, name } = this.describe();
      const kept = { model, data, name, preset: this.preset, entered: this.form.entered };
      sessionStorage.setItem(ENTRIES, JSON.stringify(kept));
    }

    restoreEntries() {
      const kept = JSON.parse(sessionStorage.getItem(ENTRIES) ?? "null");
      sessionStorage.removeItem(ENTRIES);
      const [{ type } = {}] = performance.getEntriesByType("navigation");
      if (type !== "reload" || !kept || !this.hasChoice || kept.data !== this.chosen("data")) return;
      this.find("#run-name-text").value = kept.name;
      const isOtherModel = kept.model !== this.chosen("model");
      const isOther = isOtherModel || kept.preset !== this.preset || JSON.stringify(kept.entered) !== JSON.stringify(this.form.entered);
      if (!isOther) return;
      const preset = [...this.find("#preset").querySelectorAll("input")].find(({ value }) => value === kept.preset);
      if (preset) preset.checked = true;
      this.menu("model").value = kept.model;
      this.form.entered = kept.entered;
      this.choose(isOtherModel ? "model" : "preset");
    }

    begin(first) {
      // Not in the frame: when Gradio draws its copy, a browser would move the mark there.
      this.find("#export-form input").checked = true;
      this.readAddress();
      this.changes.add("page");
      if (first?.choice) this.showChoice(first.choice, first.tokens);
      else this.choose("page");
      this.restoreEntries();
      addEventListener("pagehide", () => this.keepEntries());
    }
  }

  tuneserveFrames.define("fine-tune-page", (root, channel, first) => {
    const page = new Page(root, channel);
    page.begin(first);
    return Object.fromEntries(Object.entries(page.requests).map(([name, request]) => [name, (message) => request.answer(message)]));
  });
})();
