// What all pages share. It runs when the document is complete, before Gradio's scripts.
"use strict";

startTheme(document.querySelector("gradio-app")); // theme.js

// The address of the API, as the browser sees it.
for (const place of document.querySelectorAll("[data-origin]")) place.textContent = location.origin;

// The base of the document would make this link leave the page.
document.querySelector(".ts-skip")?.addEventListener("click", (event) => {
  event.preventDefault();
  const main = document.querySelector("main");
  main?.setAttribute("tabindex", "-1");
  main?.focus();
});

// Gradio's dropdown opens again after Tab has left it: it must not see that key.
addEventListener("keydown", (event) => {
  if (event.key === "Tab" && event.target.getAttribute?.("role") === "combobox") event.stopPropagation();
}, { capture: true });

// Copies what a text field contains, and shows "Copied" on the button "Copy" for a moment.
window.tuneserveCopy = async (field, button) => {
  const SHOWN_MS = 2000;
  try {
    await navigator.clipboard.writeText(field.value);
  } catch { // browsers have no clipboard for pages without TLS, unless they are of this machine
    field.select();
    if (!document.execCommand("copy")) return; // the text is selected
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, SHOWN_MS);
};

// Sets the text of an element. An equal one is left as it is: a screen reader would read it again. What
// is shown may be translated, so the English text is remembered.
window.tuneserveSetText = (() => {
  const texts = new WeakMap(); // by element
  return (element, text) => {
    if (texts.get(element) === text) return;
    texts.set(element, text);
    element.textContent = text;
  };
})();

// Times: <time datetime="…Z"> shows the browser's zone, in the language of the page (apps/ui/markup.py).
(() => {
  const day = { day: "numeric", month: "short" };
  const minute = { hour: "2-digit", minute: "2-digit" };
  const UNITS = [["year", 31557600], ["month", 2629800], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60]];
  const REFRESH_MS = 20000;
  const BUILDERS = {
    moment: (locale) => new Intl.DateTimeFormat(locale, { ...day, ...minute }),
    dated: (locale) => new Intl.DateTimeFormat(locale, { ...day, ...minute, year: "numeric" }),
    clock: (locale) => new Intl.DateTimeFormat(locale, { ...minute, second: "2-digit" }),
    full: (locale) => new Intl.DateTimeFormat(locale, { dateStyle: "full", timeStyle: "long" }),
    relative: (locale) => new Intl.RelativeTimeFormat(locale, { numeric: "auto", style: "short" }),
  };
  let formats = {}; // built when they are needed, because each takes 10 to 20 ms

  function findFormat(name) {
    formats[name] ??= BUILDERS[name](tuneserveLanguage.findLocale()); // translate.js
    return formats[name];
  }

  function describe(moment, kind) {
    if (kind === "clock") return findFormat("clock").format(moment);
    if (kind === "relative") {
      const seconds = (moment - Date.now()) / 1000;
      const [unit, length] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
      // A clock that differs by seconds from the server's must not show "in 2 seconds".
      return findFormat("relative").format(unit === "second" ? 0 : Math.trunc(seconds / length), unit);
    }
    const isThisYear = moment.getFullYear() === new Date().getFullYear();
    return findFormat(isThisYear ? "moment" : "dated").format(moment);
  }

  function show(time) {
    const moment = new Date(time.dateTime);
    if (!time.dateTime || Number.isNaN(moment.getTime())) return;
    const text = describe(moment, time.dataset.moment);
    if (time.textContent === text) return; // so our own change does not cause another one
    time.textContent = text;
    time.title = findFormat("full").format(moment);
  }

  function showAll(root) {
    if (root.nodeType !== Node.ELEMENT_NODE) return;
    if (root.localName === "time") show(root);
    for (const time of root.getElementsByTagName("time")) show(time);
  }

  // Gradio adds elements, or changes the text of those that exist.
  new MutationObserver((records) => {
    if (!document.getElementById("content")) // Gradio has drawn the main part
      document.querySelector("main")?.setAttribute("id", "content");
    for (const { type, target, addedNodes } of records) {
      const element = type === "characterData" ? target.parentElement : target;
      if (element?.localName === "time") show(element);
      else addedNodes.forEach(showAll);
    }
  }).observe(document.documentElement, { childList: true, characterData: true, subtree: true });
  document.addEventListener("tuneserve-language", () => {
    formats = {};
    showAll(document.documentElement);
  });
  setInterval(() => document.querySelectorAll("time[data-moment=relative]").forEach(show), REFRESH_MS);
  showAll(document.documentElement);
})();

// What the document has of the page is visible now (frame.css): translated, and with local times.
tuneserveLanguage.ready.then(() => { document.documentElement.dataset.ready = ""; });
