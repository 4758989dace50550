// The page "Evaluate": the form, and the view that the URL names, which changes as messages arrive.
"use strict";

(() => {
  const VIEWS = ["list", "evaluation"];
  const NUM_LISTED = 20;
  const FIELDS = ["models", "second_model", "rows", "max_rows", "max_tokens"];
  const NUMBERS = ["max_rows", "max_tokens"];

  class Page extends TuneserveTab {
    constructor(root, channel, first) {
      super(root, channel, first);
      Object.assign(this, { readsMenus: true, wanted: {} });
      this.listen();
      this.readAddress();
    }

    // ---- what is shown, and the address of it

    readAddress() {
      const query = new URLSearchParams(location.search);
      this.evaluation = query.get("evaluation") ?? "";
      this.view = this.evaluation ? "evaluation" : "list";
      Object.assign(this, { model: query.get("model") ?? "", numListed: NUM_LISTED, filter: query.get("filter") ?? "all" });
      if (this.view === "list") this.fillForm(query);
      this.showView();
    }

    // What the address names is chosen once the menus have arrived.
    fillForm(query) {
      const [first, second] = [...(query.get("models") ?? "").split(",").filter(Boolean), this.model].filter(Boolean);
      const rows = query.get("rows");
      this.wanted = { models: first, second_model: second === first ? undefined : second, rows };
      if (first && !second) this.wanted.second_model = "";
      for (const name of NUMBERS) if (query.get(name)) this.field(name).value = query.get(name);
      if (this.menus) this.showMenus();
    }

    get place() {
      return `${this.view} ${this.view === "evaluation" ? this.evaluation : ""}`;
    }

    buildAddress() {
      const query = new URLSearchParams();
      if (this.view === "evaluation") query.set("evaluation", this.evaluation);
      if (this.view === "evaluation" && this.filter !== "all") query.set("filter", this.filter);
      if (this.view === "list" && this.model) query.set("model", this.model);
      const text = query.toString();
      return location.pathname + (text ? `?${text}` : "");
    }

    go(view, changes = {}) {
      Object.assign(this, { view, filter: "all" }, changes);
      history.pushState(null, "", this.buildAddress());
      this.showView();
      window.scrollTo(0, 0);
      this.find(view === "list" ? "#evaluations-title" : ".ts-view-evaluation .ts-back").focus({ preventScroll: true });
    }

    showView() {
      for (const view of VIEWS) this.find(`.ts-view-${view}`).hidden = view !== this.view;
      this.root.dataset.view = this.view;
      this.root.setAttribute("aria-busy", "true");
      Object.assign(this, { after: "", cursors: [] });
      const filter = this.find("#row-filter");
      filter.value = this.filter;
      if (!filter.value) filter.value = this.filter = "all"; // the address names another one
      this.showTitle("");
      this.request();
    }

    showTitle(name) {
      document.title = `${name || "Evaluate"} · Tuneserve`;
      document.querySelector("title").translate = !name; // names stay as they are (translate.js)
    }

    // ---- requests and messages

    describe() {
      const { view, model, filter, after, applied, numListed, readsMenus } = this;
      return {
        view, model, filter, after, applied, num_listed: numListed,
        reads_menus: view === "list" && readsMenus, evaluation: view === "evaluation" ? this.evaluation : "",
      };
    }

    showValues(values) {
      if ("title" in values) this.showTitle(values.title);
      if ("menus" in values) {
        this.menus = values.menus;
        this.readsMenus = false;
        this.showMenus();
      }
      if ("has_more" in values) {
        this.find("#older-evaluations").hidden = this.view !== "list" || !values.has_more;
        this.find("#next-rows").hidden = this.view !== "evaluation" || !values.has_more;
      }
      this.find("#previous-rows").hidden = !this.after;
    }

    endAction(end) {
      if (end.action === "start") this.endStart(end);
      if (end.action === "delete" && end.is_done && this.view === "evaluation") this.go("list");
    }

    // ---- the form

    field(name) {
      return this.find(`[data-field=${name}]`);
    }

    // Of a model that the address names without rows, those of its run are chosen.
    showMenus() {
      const { models: model } = this.wanted;
      if (model) this.wanted.rows ??= this.menus.models.find(({ value }) => value === model)?.rows;
      this.showMenu("models", this.menus.models);
      this.showMenu("second_model", this.menus.models);
      this.showMenu("rows", this.menus.rows);
      this.wanted = {};
    }

    showMenu(name, entries) {
      const menu = this.field(name);
      const none = menu.querySelector(":scope > option[value='']");
      const chosen = this.wanted[name] ?? menu.value;
      const groups = new Map();
      for (const { group, label, value } of entries) {
        if (!groups.has(group)) groups.set(group, Object.assign(document.createElement("optgroup"), { label: group }));
        groups.get(group).append(new Option(label, value));
      }
      menu.replaceChildren(...(none ? [none] : []), ...groups.values());
      if (chosen && !entries.some(({ value }) => value === chosen)) menu.append(new Option(chosen.replace(/^(file|job):/, ""), chosen));
      if (chosen || none) menu.value = chosen;
    }

    start() {
      this.showProblems({});
      const [first, second, rows, max_rows, max_tokens] = FIELDS.map((name) => this.field(name).value);
      this.change({ action: "start", models: [first, second].filter(Boolean), rows, max_rows, max_tokens });
    }

    endStart({ is_done, evaluation, problems }) {
      const button = this.find("#start-evaluation");
      button.disabled = false;
      button.textContent = "Start";
      if (is_done) this.go("evaluation", { evaluation });
      else this.showProblems(problems);
    }

    showProblems(problems) {
      for (const name of [...FIELDS, "start"]) {
        this.find(`#problem-${name}`).textContent = problems[name] ?? "";
        this.field(name)?.toggleAttribute("aria-invalid", name in problems);
      }
      const first = FIELDS.find((name) => name in problems);
      if (first) this.field(first).focus();
      else if ("start" in problems) this.find("#start-evaluation").focus();
    }

    // ---- the rows of an evaluation

    showRows(changes) {
      Object.assign(this, changes);
      history.replaceState(null, "", this.buildAddress());
      this.request();
    }

    turn(isNext) {
      if (isNext) this.cursors.push(this.after);
      this.showRows({ after: isNext ? this.order.get("rows")?.at(-1) ?? "" : this.cursors.pop() ?? "" });
      this.find("#rows-title").scrollIntoView({ block: "start" });
      this.find("#rows-title").focus({ preventScroll: true }); // the button may be hidden
    }

    // ---- what a visitor does

    listen() {
      this.root.addEventListener("click", (event) => this.click(event));
      this.find("#evaluate-form").addEventListener("submit", (event) => {
        event.preventDefault();
        this.start();
      });
      this.find("#row-filter").addEventListener("change", ({ target }) => {
        this.showRows({ filter: target.value, after: "", cursors: [] });
      });
      this.root.addEventListener("input", ({ target }) => {
        if (!target.dataset.field) return;
        target.removeAttribute("aria-invalid");
        this.find(`#problem-${target.dataset.field}`).textContent = "";
      });
      this.find("#delete-evaluation-dialog form").addEventListener("submit", () => this.change({ action: "delete" }));
      addEventListener("popstate", () => this.readAddress());
      // A model or a file may have been added in another tab.
      document.addEventListener("visibilitychange", () => { if (document.hidden) this.readsMenus = true; });
    }

    click(event) {
      const { target } = event;
      const link = target.closest("[data-go]");
      const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey && event.button === 0;
      const button = target.closest("button");
      if (link && isPlain) {
        event.preventDefault();
        this.follow(link.dataset);
      } else if (button?.dataset.action === "delete") this.find("#delete-evaluation-dialog").showModal();
      else if (button?.dataset.action === "cancel") this.change({ action: "cancel" });
      else if (button?.hasAttribute("data-close")) target.closest("dialog").close();
      else if (button?.id === "older-evaluations") this.showRows({ numListed: this.numListed + NUM_LISTED });
      else if (button?.id === "next-rows" || button?.id === "previous-rows") this.turn(button.id === "next-rows");
      else if (isPlain && !target.closest("a, button, input, select, label, time")) {
        const row = target.closest("tr[data-evaluation]");
        if (row && !String(getSelection())) this.go("evaluation", { evaluation: row.dataset.evaluation });
      }
    }

    follow({ go, evaluation }) {
      if (go === "evaluation") this.go("evaluation", { evaluation });
      else if (go === "all") this.showRows({ model: "" });
      else this.go("list");
    }
  }

  tuneserveFrames.define("evaluate-page", (root, channel, first) => {
    const page = new Page(root, channel, first);
    return { value: (message) => page.receive(message) };
  });
})();
