// The page "Models" (apps/ui/models/models_page.py): shows `html` in its frame at first.
"use strict";

tuneserveFrames.define("models-view", (element, channel, html) => {
  const state = { filter: "", column: null, isDescending: false, focusesHeading: false, entered: {} };

  // Actions are sent one after another, the first one when the server knows of this tab: Gradio drops those
  // that come while it handles another.
  const waiting = [];
  let isBusy = true;
  let submitted = null; // the last form that was sent

  function send(action) {
    waiting.push(action);
    if (!isBusy) sendNext();
  }

  function sendNext() {
    isBusy = waiting.length > 0;
    if (isBusy) channel.send("click", waiting.shift());
  }

  document.addEventListener("models-ready", sendNext);

  function applyFilter() {
    const rows = [...element.querySelectorAll(".ts-models tbody tr")];
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = `${row.dataset.text} ${row.cells[0].textContent.toLowerCase()}`; // also as translated
      row.hidden = !words.every((word) => text.includes(word));
    }
    const count = element.querySelector("#models-count");
    if (!count) return;
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = words.length ? shown + " of " + rows.length + " models" : rows.length + " models";
  }

  function compare(first, second) {
    const [a, b] = [first, second].map((row) => row.cells[state.column].dataset.value);
    if (!a || !b) return (a ? 0 : 1) - (b ? 0 : 1); // rows without a value come last
    const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
    return state.isDescending ? -order : order;
  }

  function applyOrder() {
    if (state.column === null) return;
    const body = element.querySelector(".ts-models tbody");
    if (!body) return;
    body.append(...[...body.rows].sort(compare));
    element.querySelectorAll(".ts-models th").forEach((head, place) => {
      const isSorted = place === state.column;
      head.setAttribute("aria-sort", isSorted ? (state.isDescending ? "descending" : "ascending") : "none");
    });
  }

  function showState() {
    for (const origin of element.querySelectorAll(".ts-origin")) origin.textContent = location.origin;
    const field = element.querySelector("#models-filter");
    if (field && field.value !== state.filter) field.value = state.filter;
    for (const [id, text] of Object.entries(state.entered)) {
      const entered = document.getElementById(id);
      if (entered && element.contains(entered)) entered.value = text; // the HTML was rendered again
    }
    applyFilter();
    applyOrder();
  }

  function nameShown() {
    return element.querySelector(".ts-models-view")?.dataset.shown ?? "";
  }

  function open(model) {
    state.entered = {};
    state.focusesHeading = true;
    send({ action: "open", model });
  }

  function act(event) {
    const link = event.target.closest("a[data-open]");
    const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    if (link && isPlain && event.button === 0) {
      event.preventDefault();
      history.pushState(null, "", link.href);
      open(new URL(link.href).searchParams.get("model") ?? "");
      return;
    }
    const head = event.target.closest("button[data-sort]");
    if (head) {
      const column = Number(head.dataset.sort);
      state.isDescending = state.column === column && !state.isDescending;
      state.column = column;
      applyOrder();
      return;
    }
    const button = event.target.closest("button[data-action]");
    if (button) {
      button.disabled = true;
      button.setAttribute("aria-busy", "true");
      send({ ...button.dataset });
    }
  }

  element.addEventListener("click", act);
  // Transfers are beside this component, so that their progress does not draw its forms again.
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("#hub-transfers")) act(event);
  });

  // Escape, or a click elsewhere, withdraws a confirmation.
  function closeConfirmations(except) {
    for (const open of element.querySelectorAll(".ts-confirm[open]")) if (open !== except) open.open = false;
  }

  // The box of an opened confirmation may be below the window.
  element.addEventListener("toggle", ({ target }) => {
    if (target.open && target.matches(".ts-confirm"))
      target.querySelector(".ts-confirm-box").scrollIntoView({ block: "nearest", inline: "nearest" });
  }, true); // the event does not bubble
  document.addEventListener("click", (event) => closeConfirmations(event.target.closest?.(".ts-confirm")));
  element.addEventListener("keydown", (event) => {
    const confirmation = event.key === "Escape" && event.target.closest(".ts-confirm[open]");
    if (!confirmation) return;
    confirmation.open = false;
    confirmation.querySelector("summary").focus();
  });

  element.addEventListener("submit", (event) => {
    event.preventDefault();
    const form = event.target;
    form.querySelector("button").disabled = true;
    for (const field of form.elements) delete state.entered[field.id];
    submitted = form;
    send({ ...form.dataset, ...Object.fromEntries(new FormData(form)) });
  });

  element.addEventListener("input", (event) => {
    if (event.target.closest(".ts-model-form") && event.target.type !== "checkbox")
      state.entered[event.target.id] = event.target.value;
    if (event.target.id !== "models-filter") return;
    state.filter = event.target.value;
    applyFilter();
  });

  // After each action, also one that failed.
  document.addEventListener("models-done", () => {
    sendNext();
    if (isBusy) return; // the last answer counts
    submitted?.reset(); // to what the server has rendered: nothing, unless the form was refused
    submitted = null;
    const transfers = document.querySelectorAll("#hub-transfers [aria-busy]");
    for (const button of [...element.querySelectorAll("[aria-busy], form button"), ...transfers]) {
      button.disabled = false;
      button.removeAttribute("aria-busy");
    }
    const shown = nameShown();
    const isNamed = (new URLSearchParams(location.search).get("model") ?? "") === shown;
    if (!isNamed) {
      const query = shown ? "?model=" + encodeURIComponent(shown) : "";
      history.replaceState(null, "", location.pathname + query);
    }
    element.querySelector(".ts-model-form [aria-invalid]")?.focus();
    if (!state.focusesHeading) return;
    state.focusesHeading = false;
    window.scrollTo(0, 0);
    element.querySelector("h2")?.focus({ preventScroll: true });
  });

  window.addEventListener("popstate", () => {
    open(new URLSearchParams(location.search).get("model") ?? "");
  });

  element.innerHTML = html;
  showState();
  return { value: showState };
});
