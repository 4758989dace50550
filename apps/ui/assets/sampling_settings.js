// The settings of answers on the pages "Chat" and "Compare". The browser keeps them; the server checks
// them (apps/ui/chat/sampling_settings.py).
"use strict";

window.tuneserveSampling = (() => {
  const STORED = "tuneserve-chat-settings";

  function read(input) {
    if (input.type === "checkbox") return input.checked;
    if (input.type !== "number") return input.value;
    return Number.isFinite(input.valueAsNumber) ? input.valueAsNumber : null;
  }

  function write(field, value) {
    for (const input of field.querySelectorAll("input, textarea")) {
      if (input.type === "checkbox") input.checked = value;
      else input.value = value ?? "";
    }
  }

  function readStored() {
    try {
      const stored = JSON.parse(localStorage.getItem(STORED));
      return stored && typeof stored === "object" ? stored : {};
    } catch {
      return {};
    }
  }

  function store(values) {
    try { localStorage.setItem(STORED, JSON.stringify(values)); } catch { /* until the page is left */ }
  }

  // Only what a field can have: the browser may have kept the settings of another version.
  function isPossible(input, value) {
    if (input.type === "checkbox") return typeof value === "boolean";
    return input.type === "number" ? value === null || Number.isFinite(value) : typeof value === "string";
  }

  function start(element, props, watch, changed) {
    const fields = [...element.querySelectorAll("[data-name]")];
    const findInput = (field) => field.querySelector("[data-default]");

    function collect() {
      return Object.fromEntries(fields.map((field) => [field.dataset.name, read(findInput(field))]));
    }

    function send() {
      const values = collect();
      store(values);
      props.value = values;
      countChanged(values);
      changed();
    }

    function restore() {
      const stored = readStored();
      for (const field of fields) {
        const value = stored[field.dataset.name];
        if (value !== undefined && isPossible(findInput(field), value)) write(field, value);
      }
      props.value = collect();
      countChanged(props.value);
    }

    // The panel may be closed while its settings apply.
    function countChanged(values) {
      const isChanged = (field) => values[field.dataset.name] !== JSON.parse(findInput(field).dataset.default);
      const number = fields.filter(isChanged).length;
      element.querySelector(".ts-changed-count").textContent = number ? `${number} changed` : "";
    }

    function showFaults({ sent, messages }) {
      if (JSON.stringify(sent) !== JSON.stringify(collect())) return; // typed since
      for (const field of fields) {
        const note = field.querySelector(".ts-note");
        const fault = messages[field.dataset.name];
        note.textContent = fault ?? note.dataset.info;
        note.setAttribute("role", fault ? "alert" : "note");
        field.classList.toggle("ts-invalid", Boolean(fault));
        findInput(field).toggleAttribute("aria-invalid", Boolean(fault));
      }
    }

    element.addEventListener("input", ({ target }) => {
      const field = target.closest("[data-name]");
      if (!field) return;
      for (const other of field.querySelectorAll("input")) if (other !== target) other.value = target.value;
      send();
    });
    element.querySelector("#reset-settings").addEventListener("click", () => {
      for (const field of fields) write(field, JSON.parse(findInput(field).dataset.default));
      send();
    });
    watch("faults", () => { if (props.faults) showFaults(props.faults); });
    restore();
  }

  return { start };
})();
