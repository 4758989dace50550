// Transfers on the page "Models": keeps the focus on a button while the progress is rendered again.
// `element` is the root of the HTML component; models.js handles the buttons.
"use strict";

let focused = ""; // the transfer whose button has the focus

element.addEventListener("focusin", (event) => {
  focused = event.target.dataset.transfer ?? "";
});
element.addEventListener("focusout", (event) => {
  if (event.relatedTarget) focused = ""; // else the button was rendered again
});
document.addEventListener("pointerdown", (event) => {
  if (!element.contains(event.target)) focused = "";
});

watch("value", () => {
  if (!focused || document.activeElement !== document.body) return;
  element.querySelector(`[data-transfer="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
});
