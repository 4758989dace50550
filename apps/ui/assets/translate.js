// The page in other languages. Its texts are written in English; this script translates them where they
// are shown, as docs/translations.md describes. In English it loads and observes nothing.
"use strict";

window.tuneserveLanguage = (() => {
  const STORED = "tuneserve-language";
  const ENGLISH = "en";
  const ATTRIBUTES = ["placeholder", "title", "aria-label", "alt", "data-label", "data-empty", "label"];
  // What is inside of these is not ours, or is for programs; an element in it may have translate=yes.
  const KEPT = "[translate=no], script, style, pre, code, textarea, time, #model-card h3 ~ *, .example, [data-testid=user], [data-testid=bot]";
  // Entries of menus that begin with a name: only what follows it is translated, and these texts.
  const NAMES = ".ts-names :is([role=option], [role=combobox], .token, option)";
  const OWN_NAMES = new Set(["The bundled handbook", "by its name", "No other model"]);
  const PLACEHOLDER = /\{\w*\}/g;
  // A number in a text, with its unit: 12, 1,024, 3.5 GB, 40%, 2 min 5 s. It is {} in the catalogue.
  const UNIT = "(?: ?%| (?:bytes|[kMGT]B|[KMB]|h|min|s)(?![\\w/]))?";
  const NUMBER = `(?<![\\w.-])-?\\d+(?:[.,]\\d+)*(?:e[-+]?\\d+|[KMBT])?(?!\\w)${UNIT}(?: \\d+ (?:h|min|s)(?![\\w/]))*`;
  const NUMBERS = new RegExp(NUMBER, "g");
  const UNITS = /([\d.,]+) (h|min|s|bytes)(?![\w/])/g;
  const SENTENCE_END = /(?<=[.!?…]) (?=\p{Lu})/u;
  const WORD = /\p{L}/u;
  const menu = document.getElementById("language");
  const languages = new Map([...(menu?.options ?? [])].map((option) => [option.value, option.dataset.texts]));

  let chosen = null; // by the visitor
  let language = ENGLISH;
  let texts = new Map(); // by the English text
  let patterns = []; // of texts with names, the most particular first
  let maxCharacters = 0;
  let pending = new Set(); // nodes that were added or changed since the last frame
  const shown = new WeakMap(); // by node, what was translated: {source, text}
  const attributes = new WeakMap(); // by element, the same by the name of the attribute
  const fields = new WeakSet();

  // ---- the choice

  function choose() {
    if (languages.has(chosen)) return chosen;
    for (const tag of navigator.languages ?? []) {
      const [primary] = tag.toLowerCase().split("-");
      for (const wanted of [tag, primary]) if (languages.has(wanted)) return wanted;
    }
    return ENGLISH;
  }

  // The language of dates: the browser's own variant of the chosen one.
  function findLocale() {
    const own = (navigator.languages ?? []).find((tag) => tag.toLowerCase().split("-")[0] === language);
    return own ?? (languages.has(chosen) ? language : undefined);
  }

  // ---- the catalogue

  function read(catalogue) {
    texts = new Map(Object.entries(catalogue));
    patterns = [];
    for (const [source, translation] of texts) {
      maxCharacters = Math.max(maxCharacters, source.length);
      const names = (source.match(PLACEHOLDER) ?? []).map((name) => name.slice(1, -1));
      if (!names.some(Boolean)) continue;
      const literals = source.split(PLACEHOLDER);
      const parts = literals.map((text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
      const expression = parts.map((part, place) => part + (place < names.length ? (names[place] ? "(.+?)" : `(${NUMBER})`) : ""));
      patterns.push({ expression: new RegExp(`^${expression.join("")}$`, "s"), names, translation, length: literals.join("").length });
    }
    patterns.sort((a, b) => b.length - a.length);
  }

  // {} is the next number, {2} the second one, {name} the name; what {text} stands for is translated too.
  function fill(translation, numbers, names = {}) {
    let next = 0;
    return translation.replace(PLACEHOLDER, (placeholder) => {
      const name = placeholder.slice(1, -1);
      if (name in names) return name.startsWith("text") ? lookUp(names[name]) ?? names[name] : names[name];
      const number = numbers[name ? Number(name) - 1 : next++];
      return number === undefined ? placeholder : translateUnits(number);
    });
  }

  function translateUnits(number) {
    return number.replace(UNITS, (all, value, unit) => (texts.get(`{} ${unit}`) ?? all).replace("{}", value));
  }

  function lookUpExactly(text) {
    if (texts.has(text)) return texts.get(text);
    const numbers = [];
    const source = text.replace(NUMBERS, (number) => { numbers.push(number); return "{}"; });
    if (source === "{}") return translateUnits(text);
    return numbers.length && texts.has(source) ? fill(texts.get(source), numbers) : null;
  }

  function lookUpPattern(text) {
    for (const { expression, names, translation } of patterns) {
      const found = expression.exec(text);
      if (!found) continue;
      const values = found.slice(1);
      const named = Object.fromEntries(names.map((name, place) => [name, values[place]]).filter(([name]) => name));
      return fill(translation, values.filter((_, place) => !names[place]), named);
    }
    return null;
  }

  // The parts of a text, translated where they are in the catalogue.
  function lookUpParts(parts, separator, isEach) {
    if (parts.length < 2) return null;
    const found = parts.map((part) => lookUpExactly(part) ?? lookUpPattern(part));
    if (isEach ? found.includes(null) : found.every((part) => part === null)) return null;
    return parts.map((part, place) => found[place] ?? part).reduce((text, part) => text + (/[。！？]$/.test(text) ? "" : separator) + part);
  }

  // A text, or the sentences or items that it consists of; null if none is in the catalogue.
  function lookUp(text) {
    const [sentences, items] = [text.split(SENTENCE_END), text.split(" · ")];
    return lookUpExactly(text) ?? lookUpParts(sentences, " ", true) ?? lookUpPattern(text)
      ?? lookUpParts(items, " · ", false) ?? lookUpParts(sentences, " ", false);
  }

  // An entry of a menu that begins with a name.
  function lookUpName(text) {
    const [name, ...others] = text.split(" · ");
    const first = OWN_NAMES.has(name) ? texts.get(name) : lookUpPattern(name);
    return [first ?? name, ...others.map((part) => lookUpExactly(part) ?? part)].join(" · ");
  }

  function translate(source, isName) {
    if (language === ENGLISH || source.length > 3 * maxCharacters || !WORD.test(source)) return source;
    const text = source.trim().replace(/\s+/g, " ");
    const found = isName ? lookUpName(text) : lookUp(text);
    if (found === null || found === text) return source;
    const space = /^[.,;:，。；：]/.test(found) ? "" : source.match(/^\s*/)[0];
    return space + found + source.match(/\s*$/)[0];
  }

  // ---- what is shown

  function isKept(element) {
    const nearest = element.closest(`[translate=yes], ${KEPT}`);
    return nearest !== null && nearest.getAttribute("translate") !== "yes";
  }

  function translateText(node) {
    const known = shown.get(node);
    const source = known?.text === node.data ? known.source : node.data;
    const text = translate(source, node.parentElement.closest(NAMES) !== null);
    if (text === node.data) return;
    shown.set(node, { source, text });
    node.data = text;
  }

  function translateAttributes(element) {
    for (const name of ATTRIBUTES) {
      const value = element.getAttribute(name);
      if (!value) continue;
      const known = attributes.get(element)?.[name];
      const source = known?.text === value ? known.source : value;
      const text = translate(source, element.matches(NAMES));
      if (text === value) continue;
      attributes.set(element, { ...attributes.get(element), [name]: { source, text } });
      element.setAttribute(name, text);
    }
    if (element.localName === "input" && element.getAttribute("role") === "combobox") translateField(element);
  }

  // A menu of Gradio shows its choice in a text field. Scripts still find the English text in it.
  function translateField(input) {
    const { get, set } = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
    if (!fields.has(input)) {
      fields.add(input);
      let [source, text] = ["", ""];
      const isName = input.matches(NAMES);
      Object.defineProperty(input, "value", {
        configurable: true,
        get() {
          const value = get.call(input);
          return value === text ? source : value;
        },
        set(value) {
          source = String(value ?? "");
          text = translate(source, isName);
          set.call(input, text);
        },
      });
    }
    const { value } = input;
    if (get.call(input) !== translate(value, input.matches(NAMES))) input.value = value;
  }

  function translateTree(node) {
    if (node.nodeType === Node.TEXT_NODE) translateText(node);
    if (node.nodeType !== Node.ELEMENT_NODE) return;
    if (node.matches(KEPT)) {
      if (node.getAttribute("translate") !== "no") translateAttributes(node);
      for (const inner of node.querySelectorAll("[translate=yes]")) translateTree(inner);
      return;
    }
    translateAttributes(node);
    for (let child = node.firstChild; child; child = child.nextSibling) translateTree(child);
  }

  function translateChanges() {
    const nodes = pending;
    pending = new Set();
    for (const node of nodes) {
      if (!node.isConnected) continue;
      const place = node.nodeType === Node.TEXT_NODE ? node.parentElement : node.parentElement ?? node;
      if (!place) continue;
      if (!isKept(place)) translateTree(node);
      else if (node.nodeType === Node.ELEMENT_NODE)
        for (const inner of node.querySelectorAll("[translate=yes]")) translateTree(inner);
    }
    observer.takeRecords(); // of our own changes
  }

  // What changes is translated with the next frame, before it is painted.
  const observer = new MutationObserver((records) => {
    if (!pending.size) requestAnimationFrame(translateChanges);
    for (const { type, target, addedNodes } of records) {
      if (type === "childList") addedNodes.forEach((node) => pending.add(node));
      else pending.add(target);
    }
  });

  // Gradio names the language of the browser once it has started.
  const tagObserver = new MutationObserver(showTag);

  function showTag() {
    if (document.documentElement.lang !== language) document.documentElement.lang = language;
  }

  // ---- the language

  async function show(wanted) {
    const address = languages.get(wanted);
    let catalogue = {};
    if (wanted !== ENGLISH) {
      try {
        const response = await fetch(address);
        if (!response.ok) throw new Error(`status ${response.status}`);
        catalogue = await response.json();
      } catch (error) {
        console.warn(`The texts in the language ${wanted} cannot be read: ${error}`);
        return;
      }
    }
    if (wanted !== choose()) return; // another one was chosen meanwhile
    language = wanted;
    read(catalogue);
    showTag();
    observer.disconnect();
    translateTree(document.documentElement);
    if (language !== ENGLISH)
      observer.observe(document.documentElement, {
        childList: true, characterData: true, subtree: true, attributes: true, attributeFilter: ATTRIBUTES,
      });
    document.dispatchEvent(new Event("tuneserve-language"));
  }

  try { chosen = localStorage.getItem(STORED); } catch { /* the browser's language */ }
  const first = choose();
  if (menu) {
    menu.value = first;
    menu.addEventListener("change", () => {
      chosen = menu.value;
      try { localStorage.setItem(STORED, chosen); } catch { /* kept until the page is left */ }
      show(chosen);
    });
    addEventListener("storage", (event) => {
      if (event.key !== STORED) return;
      chosen = event.newValue;
      menu.value = choose();
      show(menu.value);
    });
  }
  const ready = first === ENGLISH ? Promise.resolve() : show(first);
  if (first !== ENGLISH || !navigator.language?.startsWith(ENGLISH))
    tagObserver.observe(document.documentElement, { attributeFilter: ["lang"] });

  // Whether what is shown is translated, or the same in this language; for tests.
  function isTranslated(node, attribute) {
    const text = attribute ? node.getAttribute(attribute) : node.data;
    const known = attribute ? attributes.get(node)?.[attribute] : shown.get(node);
    return known?.text === text || !WORD.test(text) || lookUp(text.trim().replace(/\s+/g, " ")) !== null;
  }

  return { ready, findLocale, isTranslated, wanted: choose, attributes: ATTRIBUTES, kept: KEPT, names: NAMES };
})();
