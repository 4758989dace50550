// The data on the page "Fine-tune" in three tabs: first rows as tokens, all rows, lengths and faults.
"use strict";

window.TuneserveDataTabs = class {
  // `ask` requests what a tab shows by its name; `save` requests a file of rows with faults, or of equal ones.
  constructor(root, ask, save) {
    Object.assign(this, { root, ask, save, tab: "tokens", version: 0, asked: {}, html: {} });
    this.startOver();
    root.addEventListener("click", ({ target }) => this.click(target));
    root.querySelector("[role=tablist]").addEventListener("keydown", (event) => this.press(event));
    this.find("#row-search-bar").addEventListener("submit", (event) => {
      event.preventDefault();
      this.showRows({ search: this.find("#row-search-text").value, starts: [""] });
    });
  }

  static PLACES = { tokens: "#preview", rows: "#file-rows", statistics: "#row-statistics" };
  static INTERVAL_MS = 2000; // while rows are read

  find(selector) {
    return this.root.querySelector(selector);
  }

  findPlace(tab) {
    return this.find(this.constructor.PLACES[tab]);
  }

  // Of other data, the first rows are shown, and no search.
  startOver() {
    Object.assign(this, { search: "", starts: [""], shownStarts: [""], next: null, known: new Set() });
    this.find("#row-search-text").value = "";
  }

  describe(tab) {
    this.asked[tab] = this.version;
    return { tab, search: this.search, after: this.starts.at(-1) };
  }

  // Other data, another model or settings of rows make outdated what the tabs show. The rows
  // themselves depend on the data only.
  refresh({ isOtherData }) {
    const keepsRows = !isOtherData && this.known.has("rows");
    this.version += 1;
    this.known = new Set(keepsRows ? ["rows"] : []);
    if (!this.known.has(this.tab)) this.request();
  }

  request() {
    clearTimeout(this.timer);
    this.findPlace(this.tab).setAttribute("aria-busy", "true");
    this.ask(this.tab);
  }

  // No message: there was no answer. An answer about other data is not shown.
  receive(tab, message) {
    this.findPlace(tab).setAttribute("aria-busy", "false");
    if (tab === "rows" && !message) this.starts = this.shownStarts;
    if (message && this.asked[tab] === this.version) this.show(tab, message);
  }

  show(tab, message) {
    const place = this.findPlace(tab);
    if (!message.is_running && !message.is_failed) this.known.add(tab);
    if (this.html[tab] !== message.html) place.innerHTML = message.html; // an equal one would be read out again
    this.html[tab] = message.html;
    if (tab === "rows") this.showPages(message.next ?? null);
    if (tab === "statistics") this.showStatistics(message);
  }

  showPages(next) {
    const buttons = ["previous", "next"].map((name) => this.find(`#rows-${name}`));
    const focused = buttons.find((one) => one === document.activeElement);
    Object.assign(this, { next, shownStarts: this.starts });
    buttons[0].disabled = this.starts.length < 2;
    buttons[1].disabled = next === null;
    if (focused?.disabled) buttons.find((one) => !one.disabled)?.focus({ preventScroll: true });
  }

  showStatistics({ is_running, num_faults, num_duplicates }) {
    this.find("#save-faults").hidden = !num_faults || is_running;
    this.find("#save-duplicates").hidden = !num_duplicates || is_running;
    if (is_running && this.tab === "statistics") this.timer = setTimeout(() => this.request(), this.constructor.INTERVAL_MS);
  }

  showRows(changes) {
    Object.assign(this, changes);
    this.known.delete("rows");
    this.request();
  }

  // Until the answer, nobody knows which page is the next one. The button stays enabled, for its focus.
  turnPage(step) {
    if (this.findPlace("rows").getAttribute("aria-busy") === "true") return;
    this.showRows({ starts: step > 0 ? [...this.starts, this.next] : this.starts.slice(0, -1) });
  }

  choose(tab) {
    clearTimeout(this.timer);
    this.tab = tab;
    for (const button of this.root.querySelectorAll("[data-tab]")) {
      const isChosen = button.dataset.tab === tab;
      button.setAttribute("aria-selected", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
      this.find(`#panel-${button.dataset.tab}`).hidden = !isChosen;
    }
    if (!this.known.has(tab)) this.request();
  }

  click(target) {
    const button = target.closest("button");
    if (button?.dataset.tab) this.choose(button.dataset.tab);
    else if (button?.id === "rows-next") this.turnPage(1);
    else if (button?.id === "rows-previous") this.turnPage(-1);
    else if (button?.id === "save-faults") this.save("faults");
    else if (button?.id === "save-duplicates") this.save("duplicates");
  }

  press(event) {
    const buttons = [...this.root.querySelectorAll("[data-tab]")];
    const place = buttons.findIndex((button) => button.dataset.tab === this.tab);
    const wanted = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: -1 }[event.key];
    if (wanted === undefined) return;
    const next = buttons.at(wanted % buttons.length);
    event.preventDefault();
    this.choose(next.dataset.tab);
    next.focus();
  }

  saveFile({ name, text }) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
};
