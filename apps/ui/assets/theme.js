// Runs before anything is drawn, so that a page never appears in the wrong theme first.
(() => {
  const KEY = "tuneserve-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const asked = new URLSearchParams(location.search).get("__theme");
  let chosen = "system";

  function keep(theme) {
    if (!["system", "light", "dark"].includes(theme)) return;
    chosen = theme;
    try { localStorage.setItem(KEY, theme); } catch { /* kept until the page is left */ }
  }

  function apply() {
    const isDark = chosen === "dark" || (chosen === "system" && system.matches);
    document.documentElement.dataset.theme = chosen;
    document.documentElement.classList.toggle("dark", isDark);
    document.body?.classList.toggle("dark", isDark); // where Gradio has it
    for (const button of document.querySelectorAll("button[data-theme]"))
      button.setAttribute("aria-pressed", String(button.dataset.theme === chosen));
  }

  try { keep(localStorage.getItem(KEY)); } catch { /* the system's theme */ }
  keep(asked);
  apply();
  system.addEventListener("change", apply);
  addEventListener("storage", (event) => {
    if (event.key === KEY) { chosen = event.newValue ?? "system"; apply(); }
  });

  // Gradio would choose a theme by itself, and follow the system's later.
  addEventListener("click", (event) => {
    const button = event.target.closest?.("button[data-theme]");
    if (!button) return;
    const url = new URL(location.href);
    if (url.searchParams.has("__theme")) { // else the next reload would choose it again
      url.searchParams.delete("__theme");
      history.replaceState(history.state, "", url);
    }
    keep(button.dataset.theme);
    apply();
  });
  window.startTheme = (app) => {
    apply();
    app?.setAttribute("theme_mode", document.documentElement.classList.contains("dark") ? "dark" : "light");
  };
})();
