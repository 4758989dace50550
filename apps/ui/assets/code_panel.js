// The last question on the page "Chat" as a request, for a program (apps/ui/chat/code_panel.py).
"use strict";

window.tuneserveCode = {
  // `report` tells the server whether the panel is open, also after another language was chosen.
  start(element, props, watch, report) {
    const find = (selector) => element.querySelector(selector);
    const panel = find("details");
    find("input").checked = true;
    panel.addEventListener("toggle", () => report(panel.open));
    element.addEventListener("change", ({ target }) => {
      props.value = target.value;
      report(true);
    });
    find("button").addEventListener("click", ({ currentTarget }) => tuneserveCopy(find("textarea"), currentTarget)); // page.js
    watch("code", () => { find("textarea").value = props.code; });
  },
};
