// The page "Runs": asks for the view that the URL names, and puts the changes into the frame.
"use strict";

(() => {
  const TYPING_MS = 300;
  const MAX_COMPARED = 6;
  const MAX_LOG_CHARACTERS = 400_000;
  const VIEWS = ["list", "run", "compare"];

  function describeEarlyStop(patience) {
    return [
      "This run stopped early.",
      Number(patience) === 1
        ? "The new run stops early too, after 1 evaluation without a better one."
        : `The new run stops early too, after ${patience} evaluations without a better one.`,
      "Its model may then equal that of this run.",
      "To train longer, start again with changes.",
    ].join(" ");
  }

  class Page extends TuneserveTab {
    constructor(root, channel, first) {
      super(root, channel, first);
      Object.assign(this, { cursors: [], log: "" });
      this.selected = new Set();
      this.matches = null;
      this.curves = tuneserveCurves.followRun(this.find("[data-curves=run]"));
      this.compared = tuneserveCurves.compare(this.find("[data-curves=compare]"));
      this.listen();
      this.readAddress();
    }

    // ---- what is shown, and the address of it

    readAddress() {
      const query = new URLSearchParams(location.search);
      const compare = (query.get("compare") ?? "").split(",").filter(Boolean).slice(0, MAX_COMPARED);
      const run = query.get("run") ?? "";
      this.view = run ? "run" : compare.length > 1 ? "compare" : "list";
      Object.assign(this, { run, compare, after: "", cursors: [], status: query.get("state") ?? "" });
      this.search = query.get("search") ?? "";
      this.find("#run-search").value = this.search;
      this.find("#run-state").value = this.status;
      this.showView();
    }

    get place() {
      return this.view === "list" ? "list  " : this.view === "run" ? `run ${this.run} ` : `compare  ${this.compare.join(" ")}`;
    }

    buildAddress() {
      const query = new URLSearchParams();
      if (this.view === "run") query.set("run", this.run);
      if (this.view === "compare") return `${location.pathname}?compare=${this.compare.map(encodeURIComponent).join(",")}`;
      if (this.view === "list" && this.status) query.set("state", this.status);
      if (this.view === "list" && this.search) query.set("search", this.search);
      const text = query.toString();
      return location.pathname + (text ? `?${text}` : "");
    }

    go(view, changes = {}) {
      Object.assign(this, { view }, changes);
      history.pushState(null, "", this.buildAddress());
      this.showView();
      window.scrollTo(0, 0);
      this.find(view === "list" ? "#run-search" : `.ts-view-${view} .ts-back`).focus({ preventScroll: true });
    }

    showView() {
      for (const view of VIEWS) this.find(`.ts-view-${view}`).hidden = view !== this.view;
      this.root.dataset.view = this.view;
      this.root.setAttribute("aria-busy", "true");
      Object.assign(this, { matches: null, log: "" });
      this.find("#log-search").value = "";
      this.showTitle("");
      this.request();
    }

    showTitle(name) {
      document.title = name ? `${name} · Tuneserve` : "Runs · Tuneserve";
      document.querySelector("title").translate = !name; // names stay as they are (translate.js)
    }

    // ---- requests and messages

    describe() {
      const { view, run, compare, status, search, after, applied } = this;
      const has_log = view === "run" && this.find("#run-log").open;
      return {
        view, status, search, after, applied, has_log, run: view === "run" ? run : "",
        compare: view === "compare" ? compare : [], log_search: this.find("#log-search").value.trim(),
      };
    }

    endAction(end) {
      if (end.action === "delete" && end.is_done && this.view === "run") this.go("list");
      if (end.action === "extend") this.endExtension(end);
    }

    clearMore() {
      this.curves.clear();
      this.compared.clear();
      this.log = "";
      this.showLog();
    }

    showMoreParts(parts) {
      if ("run-settings" in parts) this.filterSettings();
    }

    showMoreLists() {
      this.showSelection();
    }

    showValues(values) {
      if ("title" in values) this.showTitle(values.title);
      if ("has_more" in values) this.find("#older-runs").hidden = !values.has_more;
      this.find("#newer-runs").hidden = !this.after;
      if ("log_matches" in values) {
        this.matches = values.log_matches;
        this.showLog();
      }
      const curves = Object.entries(values).filter(([name]) => name.startsWith("curve/"));
      for (const [name, run] of curves) this.compared.set(Number(name.slice(6)), run);
      if (curves.length) this.compared.update();
    }

    showAdditions({ curves, log }) {
      if (curves) this.curves.add(curves);
      if (!log) return;
      const isAdded = !log.is_whole && this.log.length < MAX_LOG_CHARACTERS;
      this.log = log.is_whole ? log.text : this.log + log.text;
      if (this.log.length > MAX_LOG_CHARACTERS) this.log = this.log.slice(-MAX_LOG_CHARACTERS / 2).replace(/^[^\n]*\n/, "");
      this.isCut = log.is_cut;
      this.showLog(isAdded ? log.text : null);
    }

    // ---- the list

    showSelection() {
      for (const box of this.root.querySelectorAll("[data-select]")) box.checked = this.selected.has(box.dataset.select);
      const button = this.find("#compare-button");
      const count = this.selected.size;
      button.hidden = count < 2;
      button.textContent = count > MAX_COMPARED ? `Compare at most ${MAX_COMPARED} runs` : `Compare ${count} runs`;
      button.href = `./runs?compare=${[...this.selected].slice(0, MAX_COMPARED).map(encodeURIComponent).join(",")}`;
    }

    filter() {
      Object.assign(this, { search: this.find("#run-search").value.trim(), status: this.find("#run-state").value });
      Object.assign(this, { after: "", cursors: [] });
      history.replaceState(null, "", this.buildAddress());
      this.request();
    }

    turn(isOlder) {
      if (isOlder) this.cursors.push(this.after);
      this.after = isOlder ? this.order.get("runs")?.at(-1) ?? "" : this.cursors.pop() ?? "";
      this.request();
      this.find(".ts-table-scroll").scrollIntoView({ block: "nearest" });
    }

    // ---- settings and log of a run

    filterSettings() {
      const wanted = this.find("#settings-search")?.value.trim().toLowerCase() ?? "";
      const isChangedOnly = this.find("#changed-only")?.checked ?? false;
      for (const table of this.root.querySelectorAll(".ts-settings")) {
        let isAnyShown = false;
        for (const row of table.tBodies[0].rows) {
          const text = `${row.dataset.text} ${row.cells[0].textContent.toLowerCase()}`; // also as translated
          row.hidden = !text.includes(wanted) || (isChangedOnly && !("changed" in row.dataset));
          isAnyShown ||= !row.hidden;
        }
        table.hidden = !isAnyShown;
      }
    }

    showLog(added = null) {
      const [text, note] = [this.find("#log-text"), this.find("#log-note")];
      const wanted = this.find("#log-search").value.trim();
      if (wanted && this.matches !== null) {
        const count = this.matches ? this.matches.trimEnd().split("\n").length : 0;
        note.textContent = count ? `${count} ${count === 1 ? "line" : "lines"}` : "No line has this text.";
        text.replaceChildren(...mark(this.matches, wanted));
      } else {
        note.textContent = this.isCut ? "The end of the log; the search finds older lines." : "";
        if (added !== null && text.dataset.shown === "log") text.append(added);
        else text.textContent = this.log;
      }
      text.dataset.shown = wanted && this.matches !== null ? "matches" : "log";
      if (added === null) this.scrolled = 0;
      if (this.find("#log-follow").checked) text.scrollTop = text.scrollHeight;
    }

    // ---- what a visitor does

    listen() {
      this.root.addEventListener("click", (event) => this.click(event));
      this.root.addEventListener("change", ({ target }) => {
        if (target.dataset.select) {
          if (target.checked) this.selected.add(target.dataset.select);
          else this.selected.delete(target.dataset.select);
          this.showSelection();
        }
        if (target.id === "run-state") this.filter();
        if (target.id === "log-follow") this.showLog();
      });
      this.root.addEventListener("input", ({ target }) => {
        if (target.id === "settings-search" || target.id === "changed-only") this.filterSettings();
        if (target.id !== "run-search" && target.id !== "log-search") return;
        clearTimeout(this.typing);
        this.typing = setTimeout(() => {
          if (target.id === "run-search") this.filter();
          else {
            this.showLog();
            this.request();
          }
        }, TYPING_MS);
      });
      this.find("#run-log").addEventListener("toggle", () => {
        this.showLog();
        this.request();
      });
      const text = this.find("#log-text");
      text.addEventListener("scroll", () => {
        const isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
        if (isAtEnd || text.scrollTop < this.scrolled) this.find("#log-follow").checked = isAtEnd;
        this.scrolled = text.scrollTop; // it only decreases if the visitor scrolls up
      });
      this.find("#publish-dialog form").addEventListener("submit", () => this.publish());
      this.find("#extend-dialog form").addEventListener("submit", (event) => this.extend(event));
      this.find("#delete-dialog form").addEventListener("submit", () => this.change({ action: "delete" }));
      addEventListener("popstate", () => {
        this.find("#extend-dialog").close(); // it is about the run that was shown
        this.readAddress();
      });
    }

    click(event) {
      const { target } = event;
      const link = target.closest("[data-go]");
      const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey && event.button === 0;
      const button = target.closest("button");
      if (link && isPlain) {
        event.preventDefault();
        this.follow(link);
      } else if (button?.dataset.action === "delete") this.find("#delete-dialog").showModal();
      else if (button?.dataset.action === "extend") this.chooseExtension(button.dataset);
      else if (button?.dataset.action) this.change({ action: button.dataset.action });
      else if (button?.dataset.publish) this.choosePublication(button.dataset);
      else if (button?.hasAttribute("data-close")) target.closest("dialog").close();
      else if (button?.id === "older-runs" || button?.id === "newer-runs") this.turn(button.id === "older-runs");
      else if (isPlain && !target.closest("a, button, input, select, label, time")) {
        const row = target.closest("tr[data-run]");
        if (row && !String(getSelection())) this.go("run", { run: row.dataset.run });
      }
    }

    follow(link) {
      if (link.dataset.go === "run") this.go("run", { run: link.dataset.run });
      else if (link.dataset.go === "compare") this.go("compare", { compare: [...this.selected].slice(0, MAX_COMPARED) });
      else this.go("list");
    }

    choosePublication({ publish, model }) {
      this.checkpoint = publish;
      const name = this.find("#publish-name");
      name.value = model;
      this.find("#publish-dialog").showModal();
      name.select();
    }

    publish() {
      const name = this.find("#publish-name").value.trim();
      this.change({ action: "publish", checkpoint: this.checkpoint, name });
    }

    // Proposes half as much again; the number of steps is shown only if the run has a limit of them.
    chooseExtension({ limit, epochs, steps, patience }) {
      const dialog = this.find("#extend-dialog");
      const before = { epochs: Number(epochs), max_steps: steps && Number(steps) };
      for (const label of dialog.querySelectorAll("[data-length]")) {
        const [name, field] = [label.dataset.length, label.querySelector("input")];
        label.hidden = !before[name];
        field.disabled = label.hidden; // a hidden field is not validated
        field.min = before[name] + (name === limit ? 1 : 0);
        field.value = before[name] ? Math.min(before[name] + Math.ceil(before[name] / 2), field.max) : "";
      }
      this.length = this.findLength(limit);
      this.extended = this.run;
      this.find("#extend-hint").textContent = `More than the ${before[limit]} of this run.`;
      this.find("#extend-both").hidden = !steps;
      this.find("#extend-early").hidden = !patience;
      if (patience) this.find("#extend-early").textContent = describeEarlyStop(patience);
      this.find("#extend-name").value = "";
      this.find("#extend-confirm").disabled = false;
      this.showExtensionError("");
      dialog.showModal();
      this.length.select();
    }

    findLength(name) {
      return this.find(`#extend-dialog [data-length=${name}] input`);
    }

    // The dialog stays open until the API has accepted the length.
    extend(event) {
      event.preventDefault();
      this.showExtensionError("");
      this.find("#extend-confirm").disabled = true;
      const [epochs, steps] = [this.findLength("epochs"), this.findLength("max_steps")];
      this.change({
        action: "extend", run: this.extended, name: this.find("#extend-name").value.trim(),
        epochs: epochs.valueAsNumber, max_steps: steps.disabled ? null : steps.valueAsNumber,
      });
    }

    endExtension({ is_done, run, error, is_of_api, param }) {
      this.find("#extend-confirm").disabled = false;
      if (!is_done) {
        this.showExtensionError(error, is_of_api, param);
        return;
      }
      this.find("#extend-dialog").close();
      if (this.view === "run" && this.run === this.extended) this.go("run", { run }); // else the visitor has left
    }

    // Marks the field that a refusal is about, if it is about one.
    showExtensionError(text, isOfApi = false, param = null) {
      const place = this.find("#extend-error");
      place.translate = !isOfApi; // the API's texts are English
      place.textContent = text;
      const fields = {
        epochs: this.findLength("epochs"), max_steps: this.findLength("max_steps"), suffix: this.find("#extend-name"),
      };
      for (const [name, field] of Object.entries(fields)) field.toggleAttribute("aria-invalid", name === param);
      const focused = fields[param] && !fields[param].disabled ? fields[param] : this.find("#extend-confirm");
      if (text) focused.focus();
    }
  }

  // Text as nodes, with what was searched for marked.
  function mark(text, wanted) {
    const [nodes, lower, part] = [[], text.toLowerCase(), wanted.toLowerCase()];
    let begin = 0;
    for (let found = lower.indexOf(part); found >= 0; found = lower.indexOf(part, begin)) {
      const marked = document.createElement("mark");
      marked.textContent = text.slice(found, found + part.length);
      nodes.push(text.slice(begin, found), marked);
      begin = found + part.length;
    }
    return [...nodes, text.slice(begin)];
  }

  tuneserveFrames.define("runs-page", (root, channel, first) => {
    const page = new Page(root, channel, first);
    return { value: (message) => page.receive(message) };
  });
})();
