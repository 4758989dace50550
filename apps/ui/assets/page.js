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

// Times: <time datetime="…Z"> shows the browser's zone, in the language of the page (apps/ui/markup.py).
(() => {
  const day = { day: "numeric", month: "short" };
  const minute = { hour: "2-digit", minute: "2-digit" };
  let formats = buildFormats();
  const UNITS = [["year", 31557600], ["month", 2629800], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60]];
  const REFRESH_MS = 20000;

  function buildFormats() {
    const locale = tuneserveLanguage.findLocale(); // translate.js
    return {
      moment: new Intl.DateTimeFormat(locale, { ...day, ...minute }),
      dated: new Intl.DateTimeFormat(locale, { ...day, ...minute, year: "numeric" }),
      clock: new Intl.DateTimeFormat(locale, { ...minute, second: "2-digit" }),
      full: new Intl.DateTimeFormat(locale, { dateStyle: "full", timeStyle: "long" }),
      relative: new Intl.RelativeTimeFormat(locale, { numeric: "auto", style: "short" }),
    };
  }

  function describe(moment, kind) {
    if (kind === "clock") return formats.clock.format(moment);
    if (kind === "relative") {
      const seconds = (moment - Date.now()) / 1000;
      const [unit, length] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
      // A clock that differs by seconds from the server's must not show "in 2 seconds".
      return formats.relative.format(unit === "second" ? 0 : Math.trunc(seconds / length), unit);
    }
    const isThisYear = moment.getFullYear() === new Date().getFullYear();
    return (isThisYear ? formats.moment : formats.dated).format(moment);
  }

  function show(time) {
    const moment = new Date(time.dateTime);
    if (!time.dateTime || Number.isNaN(moment.getTime())) return;
    const text = describe(moment, time.dataset.moment);
    if (time.textContent === text) return; // so our own change does not cause another one
    time.textContent = text;
    time.title = formats.full.format(moment);
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
    formats = buildFormats();
    showAll(document.documentElement);
  });
  setInterval(() => document.querySelectorAll("time[data-moment=relative]").forEach(show), REFRESH_MS);
  showAll(document.documentElement);
})();
