// A page whose script asks for a view at intervals, and puts the changes in a message into its frame
// (apps/ui/tab_state.py). A page of its own extends it.
"use strict";

window.TuneserveTab = class {
  // `root` has aria-busy until the first message, which the document may have; `channel` sends requests
  // to the server (frames.js).
  constructor(root, channel, first) {
    Object.assign(this, { root, channel, first, applied: 0, interval: 2, clock: 0, waitsUntil: 0, isDue: false });
    this.html = new Map(); // by the name of its place
    this.order = new Map(); // the ids of each list
    setInterval(() => this.showDurations(), 1000);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.request(); });
  }

  // ---- what a page of its own has

  get place() { return ""; } // as the `place` of its requests
  describe() { return {}; } // the request
  clearMore() {} // what the base class does not know, before a whole message
  showMoreParts() {}
  showMoreLists() {}
  showValues() {}
  showAdditions() {}
  endAction() {} // `end` is that of an action

  // ---- requests and messages

  find(selector) {
    return this.root.querySelector(selector);
  }

  // One request at a time: the answer to each builds on the one before.
  request() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.request(), this.interval * 1000);
    if (typeof this.first === "object" && this.first) {
      const first = this.first;
      this.first = null;
      const { responseEnd } = performance.getEntriesByType("navigation")[0] ?? {};
      if (responseEnd) first.now += (performance.now() - responseEnd) / 1000; // since the document came
      this.receive(first);
      return;
    }
    this.isDue = document.hidden || (this.channel.isOpen && Date.now() < this.waitsUntil);
    if (this.isDue) return;
    this.waitsUntil = Date.now() + 15_000;
    this.channel.sendNewest("ask", this.describe());
  }

  // Sends what a visitor does.
  change(asked) {
    this.waitFor(asked.action);
    this.channel.send("act", { ...this.describe(), ...asked });
  }

  receive(message) {
    if (!message || typeof message !== "object") return;
    const end = message.additions.end;
    if (!end) this.waitsUntil = 0;
    else this.endAction(end);
    if (message.place !== this.place || (message.base && message.base !== this.applied)) {
      this.applied = 0; // for another view, or one before it was lost: the next message is complete
      this.request();
      return;
    }
    this.applied = message.serial;
    this.clock = message.now - Date.now() / 1000;
    if (!message.base) this.clear(message);
    this.showParts(message.parts);
    this.showLists(message);
    this.showInterval(message.values);
    this.showValues(message.values);
    this.showAdditions(message.additions);
    if (end) this.renewButtons();
    this.showDurations();
    this.root.setAttribute("aria-busy", "false");
    if (!end && this.isDue) this.request();
  }

  clear({ parts }) {
    this.html.clear();
    this.order.clear();
    for (const place of this.root.querySelectorAll("[data-part]")) {
      if (!(place.dataset.part in parts)) place.replaceChildren();
    }
    for (const list of this.root.querySelectorAll("[data-list]")) list.replaceChildren();
    this.clearMore();
  }

  showParts(parts) {
    for (const [name, html] of Object.entries(parts)) {
      this.html.set(name, html);
      const place = this.find(`[data-part="${name}"]`);
      if (place) this.keepFocus(place, () => { place.innerHTML = html; });
    }
    this.showMoreParts(parts);
    for (const origin of this.root.querySelectorAll("[data-origin]")) origin.textContent = location.origin;
  }

  // A button that waits for its change shows its own text again.
  renewButtons() {
    for (const name of this.html.keys()) {
      const place = this.find(`[data-part="${name}"]`);
      if (place?.querySelector("[data-action]:disabled")) this.showParts({ [name]: this.html.get(name) });
    }
  }

  waitFor(action) {
    for (const button of this.root.querySelectorAll(`[data-action=${action}]`)) {
      button.disabled = true;
      button.textContent = button.dataset.busy;
    }
  }

  keepFocus(place, change) {
    const focused = place.contains(document.activeElement) ? document.activeElement : null;
    const { id, dataset, tagName } = focused ?? {};
    change();
    if (!focused || place.contains(focused)) return;
    const same = [...place.querySelectorAll("a, button, input, [tabindex]")].find((one) => (
      id ? one.id === id : one.tagName === tagName && JSON.stringify(one.dataset) === JSON.stringify(dataset)
    ));
    same?.focus({ preventScroll: true });
  }

  showLists({ parts, lists }) {
    for (const [name, ids] of Object.entries(lists)) this.order.set(name, ids);
    for (const [name, ids] of this.order) {
      const list = this.find(`[data-list="${name}"]`);
      this.keepFocus(list, () => this.arrange(list, name, ids, parts));
    }
    this.showMoreLists();
  }

  arrange(list, name, ids, parts) {
    const nodes = new Map([...list.children].map((node) => [node.dataset.key, node]));
    let next = list.firstElementChild;
    for (const id of ids) {
      let node = nodes.get(id);
      const html = parts[`${name}/${id}`];
      if (!node || html !== undefined) {
        const template = document.createElement("template");
        template.innerHTML = this.html.get(`${name}/${id}`) ?? "";
        const made = template.content.firstElementChild;
        if (!made) continue;
        made.dataset.key = id;
        if (node === next && node) next = made;
        node?.replaceWith(made);
        node = made;
      }
      if (node === next) next = next.nextElementSibling;
      else list.insertBefore(node, next);
    }
    while (next) {
      const rest = next.nextElementSibling;
      next.remove();
      next = rest;
    }
  }

  showInterval(values) {
    if (!("interval_s" in values)) return;
    this.interval = values.interval_s;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.request(), this.interval * 1000);
  }

  showDurations() {
    const now = Date.now() / 1000 + this.clock;
    for (const place of this.root.querySelectorAll("[data-since]")) {
      const total = Math.max(0, Math.floor(now - Number(place.dataset.since)));
      const [hours, minutes, seconds] = [Math.floor(total / 3600), Math.floor((total % 3600) / 60), total % 60];
      const text = hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min ${seconds} s` : `${seconds} s`;
      if (place.textContent !== text) place.textContent = text;
    }
  }
};
