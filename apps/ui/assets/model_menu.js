// The document of the page "Chat" or "Compare" has the entries of the model menu, and what is chosen at
// first (apps/ui/chat/model_menu.py): Gradio draws it with them. It can be used once the server has
// opened the page too.
"use strict";

(() => {
  const menu = JSON.parse(document.getElementById("first-content").textContent);
  const component = menu && window.gradio_config.components.find(({ props }) => props.elem_id === menu.elem_id);
  if (!component) return;
  const { choices } = menu;
  const kept = menu.kept_in && findKept(menu.kept_in);
  // Of a kept conversation whose model is not listed, the server knows whether there is a checkpoint.
  const value = kept ? choices.find(([, name]) => name === kept)?.[1] ?? null : menu.value;
  Object.assign(component.props, { choices, value, interactive: false });

  // The model of the conversation that the tab has kept (apps/ui/chat/kept_conversation.py).
  function findKept(key) {
    try {
      return JSON.parse(sessionStorage.getItem(key)).asked_model;
    } catch {
      return null; // no conversation is kept
    }
  }
})();
