// Frames: elements of pages, which the page's scripts fill. A document has the frame of its page, so that
// a visitor sees and uses it before Gradio has started. The component of Gradio that stands for the frame
// then gets this element (apps/ui/frame/page_element.py).
"use strict";

window.tuneserveFrames = (() => {
  // What a page sends to the server by Gradio's events, kept until Gradio has started.
  class Channel {
    constructor() {
      this.trigger = null;
      this.kept = [];
      this.listeners = [];
    }

    get isOpen() {
      return this.trigger !== null;
    }

    send(event, data) {
      if (this.isOpen) this.trigger(event, data);
      else this.kept.push([event, data]);
    }

    // As `send`, for an event of which only the newest matters.
    sendNewest(event, data) {
      this.kept = this.kept.filter(([name]) => name !== event);
      this.send(event, data);
    }

    // For a page that prefers to wait over having its requests kept.
    whenOpen(listener) {
      this.listeners.push(listener);
    }

    open(trigger) {
      this.trigger = trigger;
      for (const [event, data] of this.kept.splice(0)) trigger(event, data);
      for (const listener of this.listeners) listener();
    }
  }

  const starts = new Map(); // by the id of the component's element
  let first; // the frame of the document, once its script has started

  function findFirst(id) {
    return document.querySelector(`.ts-first-view #${id}`)?.firstElementChild ?? null;
  }

  // The content is also the value of the component, so that an equal one changes nothing later.
  function readContent(id) {
    const content = JSON.parse(document.getElementById("first-content").textContent);
    const component = window.gradio_config.components.find(({ props }) => props.elem_id === id);
    if (component) component.props.value = content;
    return content;
  }

  // `start` gets the frame, a channel, and the first content. It returns functions by the properties of
  // the component whose later values they get. It runs at once if the document has the frame.
  function define(id, start) {
    starts.set(id, start);
    const root = findFirst(id);
    if (root) first = begin(id, root, readContent(id));
  }

  function begin(id, root, content) {
    const channel = new Channel();
    return { id, channel, receivers: starts.get(id)(root, channel, content) ?? {} };
  }

  // For `js_on_load` of the component.
  function connect(id, { element, props, watch, trigger }) {
    const root = findFirst(id);
    if (root) moveInto(element, root);
    const isStarted = root && first?.id === id;
    const frame = isStarted ? first : begin(id, element.firstElementChild, props.value);
    for (const [name, receive] of Object.entries(frame.receivers)) watch(name, () => receive(props[name]));
    frame.channel.open(trigger);
  }

  // ---- the move

  function moveInto(element, root) {
    const place = root.closest(".ts-first-view");
    const isMainFocused = document.activeElement === root.closest("main");
    const restore = element.moveBefore ? () => {} : keepState(root);
    element.replaceChildren();
    if (element.moveBefore) element.moveBefore(root, null); // keeps the state
    else element.append(root);
    place.remove(); // what Gradio has drawn is visible now
    restore();
    if (isMainFocused) focusMain(element.closest("main"));
  }

  // Returns a function that restores what a browser forgets of an element that is inserted again.
  function keepState(root) {
    const { activeElement } = document;
    const isFocused = root.contains(activeElement);
    const inside = [...root.querySelectorAll("*")];
    const scrolled = inside.filter((one) => one.scrollTop || one.scrollLeft).map((one) => [one, one.scrollLeft, one.scrollTop]);
    const dialogs = inside.filter((one) => one.matches("dialog:modal"));
    return () => {
      for (const dialog of dialogs) {
        dialog.removeAttribute("open"); // without the event of `close`
        dialog.showModal();
      }
      for (const [one, left, top] of scrolled) one.scrollTo({ left, top, behavior: "instant" });
      if (isFocused) activeElement.focus({ preventScroll: true });
    };
  }

  function focusMain(main) {
    main?.setAttribute("tabindex", "-1");
    main?.focus({ preventScroll: true });
  }

  return { define, connect };
})();
