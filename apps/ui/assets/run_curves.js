// The curves of runs, drawn by uPlot (uplot.js). What a visitor chooses stays when steps are added.
"use strict";

window.tuneserveCurves = (() => {
  const LABELS = {
    loss: "Training loss", eval_loss: "Validation loss", learning_rate: "Learning rate", grad_norm: "Gradient norm",
    tokens_per_s: "Tokens per second", peak_memory_bytes: "Peak memory per worker",
  };
  const AXES = { step: "step", trained_tokens: "tokens", elapsed_s: "time" };
  const ORDER = Object.keys(LABELS);
  const NOISY = new Set(["loss", "grad_norm", "tokens_per_s"]);
  const NUM_COLOURS = 6;
  const HEIGHT = 210;
  const STORED = "tuneserve-curves";
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

  // Fit a line to the points around each one, with weights that decay exponentially on both sides, and
  // take its value there, within the range of the nearest points. Unlike a moving average it does not
  // lag behind a loss that falls; unlike a line through earlier points alone, which a loss that falls
  // ever more slowly pulls down, it stays among the points.
  function smooth(xs, ys, weight) {
    if (!weight || xs.length < 3) return ys.slice();
    const unit = (xs[xs.length - 1] - xs[0]) / (xs.length - 1) || 1;
    const before = sumUp(xs, ys, weight, unit);
    const after = sumUp(xs.toReversed(), ys.toReversed(), weight, unit).toReversed();
    const reach = Math.ceil(1 / (1 - weight));
    return ys.map((y, index) => {
      const [past, next] = [before[index], after[index]];
      const [s0, s1, s2] = [past.s0 + next.s0 - 1, next.s1 - past.s1, past.s2 + next.s2];
      const [t0, t1] = [past.t0 + next.t0 - y, next.t1 - past.t1];
      const spread = s0 * s2 - s1 * s1;
      const value = spread < 1e-9 * s0 * s0 ? t0 / s0 : (s2 * t0 - s1 * t1) / spread;
      const near = ys.slice(Math.max(0, index - reach), index + reach + 1);
      return Math.min(Math.max(value, Math.min(...near)), Math.max(...near));
    });
  }

  // Sums over the points up to each one, weighted by their distance d: 1, d, d², y and d y.
  function sumUp(xs, ys, weight, unit) {
    let [s0, s1, s2, t0, t1] = [0, 0, 0, 0, 0];
    return ys.map((y, index) => {
      const d = index ? Math.abs(xs[index] - xs[index - 1]) / unit : 0;
      const decay = weight ** (2 * d); // the two sides together count as many points as one would
      [s2, t1] = [decay * (s2 + 2 * d * s1 + d * d * s0), decay * (t1 + d * t0)];
      [s1, s0, t0] = [decay * (s1 + d * s0), decay * s0 + 1, decay * t0 + y];
      return { s0, s1, s2, t0, t1 };
    });
  }

  function describeDuration(seconds) {
    const total = Math.round(seconds);
    if (total < 60) return `${Math.round(seconds * 10) / 10} s`;
    if (total < 3600) return `${Math.floor(total / 60)} min ${total % 60 ? `${total % 60} s` : ""}`.trim();
    return `${Math.floor(total / 3600)} h ${Math.floor((total % 3600) / 60)} min`;
  }

  function describeX(axis, value) {
    if (axis === "elapsed_s") return describeDuration(value);
    return axis === "step" ? Math.round(value).toLocaleString("en") : compact.format(value);
  }

  // The first steps are further apart than the ticks of the axis.
  function isBetweenSteps(axis, value) {
    return axis === "step" && !Number.isInteger(value);
  }

  function describeY(key, value) {
    if (value === null || value === undefined) return "–";
    if (key === "peak_memory_bytes") return `${(value / 1e9).toPrecision(3)} GB`;
    if (value !== 0 && Math.abs(value) < 0.001) return Number(value.toPrecision(3)).toExponential();
    if (Math.abs(value) >= 1e6) return compact.format(value);
    return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  }

  function nameFigure(key) {
    const words = key.replace(/^eval_/, "").replaceAll("_", " ");
    const name = words.charAt(0).toUpperCase() + words.slice(1);
    return LABELS[key] ?? (key.startsWith("eval_") ? `Validation: ${words}` : name);
  }

  // The name of a curve: a figure, or a run, whose name is not translated.
  function buildName({ name, isRun }) {
    const shown = document.createElement("span");
    shown.textContent = name;
    shown.translate = !isRun;
    return shown;
  }

  const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim() || "#888";

  // The known points of one column along an axis, without those that cannot be drawn.
  function selectPoints(columns, key, axis, isLog) {
    const along = columns[axis]?.some((value) => value !== null) ? columns[axis] : columns.step ?? [];
    const [xs, ys] = [[], []];
    (columns[key] ?? []).forEach((y, index) => {
      const x = along[index];
      const isAfter = !xs.length || x > xs[xs.length - 1];
      if (y === null || x === null || x === undefined || !isAfter || (isLog && y <= 0)) return;
      xs.push(x);
      ys.push(y);
    });
    return [xs, ys];
  }

  function readChoices() {
    const standard = { axis: "step", smoothing: 0.9, log: false };
    try {
      const kept = { ...standard, ...JSON.parse(localStorage.getItem(STORED) ?? "{}") };
      const isValid = kept.axis in AXES && kept.smoothing >= 0 && kept.smoothing <= 0.99;
      return isValid ? kept : standard;
    } catch {
      return standard;
    }
  }

  // One figure: heading, legend, plot, tooltip and a summary for screen readers.
  class Chart {
    constructor(place, key, choices) {
      Object.assign(this, { key, choices, hidden: new Set(), plot: null, data: null, built: "" });
      this.figure = document.createElement("figure");
      this.figure.className = "ts-chart";
      this.figure.dataset.chart = key;
      this.figure.innerHTML = '<figcaption><b></b><span class="ts-chart-legend"></span></figcaption>'
        + '<div class="ts-plot-area"><div class="ts-tooltip" hidden></div></div><p class="ts-sr"></p>';
      this.title = this.figure.querySelector("b");
      this.legend = this.figure.querySelector(".ts-chart-legend");
      this.area = this.figure.querySelector(".ts-plot-area");
      this.tooltip = this.figure.querySelector(".ts-tooltip");
      this.summary = this.figure.querySelector(".ts-sr");
      place.append(this.figure);
      this.observer = new ResizeObserver(() => this.fit());
      this.observer.observe(this.area);
    }

    remove() {
      this.observer.disconnect();
      this.plot?.destroy();
      this.figure.remove();
    }

    fit() {
      const width = Math.floor(this.area.clientWidth);
      if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
      else if (!this.plot && width && this.data) this.draw();
    }

    // `lines`: {name, colour, key, columns} of each run, or of each figure of one run.
    show(lines) {
      const { axis, log, smoothing } = this.choices;
      this.tables = [];
      this.series = [];
      lines.forEach((line, number) => {
        const [xs, ys] = selectPoints(line.columns, line.key, axis, log);
        if (!xs.length) return;
        const isSmoothed = NOISY.has(line.key) && smoothing > 0 && xs.length > 2;
        const common = { number, line, xs, ys };
        if (isSmoothed) {
          const lowest = Math.min(...ys);
          const smoothed = smooth(xs, ys, smoothing).map((y) => (log ? Math.max(y, lowest) : y));
          this.add(xs, ys, { ...common, isFaint: true });
          this.add(xs, smoothed, { ...common, ys: smoothed, isSmoothed });
        } else this.add(xs, ys, common);
      });
      this.data = this.tables.length ? uPlot.join(this.tables) : null;
      const raw = this.series.find((one) => !one.isSmoothed);
      this.figure.dataset.points = raw ? raw.ys.length : 0;
      this.figure.hidden = !raw;
      const hasBoth = new Set(lines.map((line) => line.key)).size > 1; // only losses share a chart
      const title = hasBoth ? "Training and validation loss" : nameFigure(this.key);
      if (this.title.dataset.title !== title) Object.assign(this.title, { textContent: title }).dataset.title = title;
      if (!raw) return;
      const last = this.series.find((one) => one.isSmoothed) ?? raw;
      Object.assign(this.figure.dataset, {
        last: raw.ys[raw.ys.length - 1], smoothed: last.ys[last.ys.length - 1], axis, scale: log ? "log" : "linear",
      });
      this.describe();
      this.draw();
    }

    add(xs, ys, one) {
      this.tables.push([xs, ys]);
      this.series.push(one);
    }

    describe() {
      const axis = this.choices.axis;
      const shown = this.series.filter((one) => !one.isSmoothed);
      this.summary.replaceChildren(...shown.flatMap(({ line, xs, ys }) => {
        const lowest = ys.reduce((best, y, index) => (y < ys[best] ? index : best), 0);
        const value = (index) => `${describeY(line.key, ys[index])} at ${AXES[axis]} ${describeX(axis, xs[index])}`;
        const text = `: ${ys.length} points, first ${value(0)}, latest ${value(ys.length - 1)}, lowest ${value(lowest)}. `;
        return [buildName(line), text];
      }));
      const state = JSON.stringify([shown.map(({ line, ys }) => [line.name, ys[ys.length - 1]]), [...this.hidden]]);
      if (state === this.legendState) return;
      this.legendState = state;
      const focused = [...this.legend.children].indexOf(document.activeElement);
      this.legend.replaceChildren(...shown.map(({ line, ys }) => this.buildEntry(line, ys)));
      this.legend.children[focused]?.focus();
    }

    buildEntry(line, ys) {
      const entry = document.createElement("button");
      entry.type = "button";
      entry.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
      entry.title = "Show or hide this curve";
      const swatch = document.createElement("i");
      swatch.className = "ts-swatch";
      swatch.style.background = `var(--ts-curve-${line.colour})`;
      const value = document.createElement("span");
      value.textContent = describeY(line.key, ys[ys.length - 1]);
      const isOnly = this.series.every((one) => one.line === line);
      entry.translate = !line.isRun;
      const latest = document.createElement("span");
      latest.textContent = "latest";
      latest.translate = true;
      entry.append(swatch, isOnly ? latest : buildName(line), " ", value);
      entry.setAttribute("aria-label", `${line.name} ${value.textContent}`);
      entry.addEventListener("click", () => {
        if (!this.hidden.delete(line.name)) this.hidden.add(line.name);
        this.series.forEach((one, index) => {
          this.plot?.setSeries(index + 1, { show: !this.hidden.has(one.line.name) });
        });
        this.describe();
      });
      return entry;
    }

    draw() {
      const width = Math.floor(this.area.clientWidth);
      if (!width) return; // drawn once it is visible
      const structure = JSON.stringify([
        this.choices.axis, this.choices.log, this.series.map((one) => [one.line.name, one.isFaint, one.isSmoothed]),
      ]);
      if (this.plot && structure === this.built) {
        const isZoomed = this.isZoomed();
        this.plot.setData(this.data, !isZoomed);
        if (isZoomed) this.plot.redraw();
        return;
      }
      const zoom = this.plot && this.isZoomed() && this.drawnAxis === this.choices.axis
        ? { min: this.plot.scales.x.min, max: this.plot.scales.x.max } : null;
      this.plot?.destroy();
      this.plot = new uPlot(this.buildOptions(width), this.data, this.area);
      if (zoom) this.plot.setScale("x", zoom);
      this.built = structure;
      this.drawnAxis = this.choices.axis;
    }

    isZoomed() {
      const { min, max } = this.plot.scales.x;
      const xs = this.plot.data[0];
      return min > xs[0] || max < xs[xs.length - 1];
    }

    buildOptions(width) {
      const { axis, log } = this.choices;
      const line = () => colour("--border-color-primary");
      const text = () => colour("--body-text-color-subdued");
      const base = { stroke: text, font: "12px system-ui, sans-serif", ticks: { show: false } };
      return {
        width, height: HEIGHT, legend: { show: false },
        cursor: { sync: { key: "tuneserve", setSeries: false }, points: { size: 7 }, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
        axes: [
          { ...base, grid: { show: false }, size: 28, space: 90,
            values: (_, ticks) => ticks.map((value) => isBetweenSteps(axis, value) ? "" : describeX(axis, value)) },
          { ...base, grid: { stroke: line, width: 1 }, size: 62,
            values: (_, ticks) => ticks.map((value) => (value === null ? "" : describeY(this.key, value))) },
        ],
        series: [{}, ...this.series.map((one) => ({
          label: one.line.name,
          show: !this.hidden.has(one.line.name),
          stroke: () => colour(`--ts-curve-${one.line.colour}`) + (one.isFaint ? "55" : ""),
          width: one.isFaint ? 1 : 2,
          spanGaps: true,
          points: { show: !one.isSmoothed && !one.isFaint && one.xs.length < 30, size: 5 },
        }))],
        hooks: {
          setCursor: [() => this.showTooltip()],
          setScale: [(plot, name) => {
            if (name === "x") this.figure.dataset.zoom = `${plot.scales.x.min} ${plot.scales.x.max}`;
          }],
        },
      };
    }

    showTooltip() {
      const { left, idx } = this.plot.cursor;
      const isOver = left >= 0 && idx !== null && idx !== undefined && this.area.matches(":hover");
      this.tooltip.hidden = !isOver;
      if (!isOver) return;
      const x = this.plot.data[0][idx];
      const rows = this.series.flatMap((one) => {
        if (this.hidden.has(one.line.name)) return [];
        const y = findNearest(one.xs, one.ys, x);
        const suffix = one.isSmoothed ? " smoothed" : "";
        return y === undefined ? [] : [[buildName(one.line), `${suffix} ${describeY(one.line.key, y)}`]];
      });
      const axis = this.choices.axis;
      const head = axis === "step" ? `Step ${describeX(axis, x)}` : `${describeX(axis, x)}${axis === "elapsed_s" ? "" : " tokens"}`;
      this.tooltip.replaceChildren(...[[head], ...rows].map((parts) => {
        const row = document.createElement("div");
        row.append(...parts);
        return row;
      }));
      const offset = this.plot.over.offsetLeft + left;
      const isRight = left > this.plot.over.clientWidth / 2;
      this.tooltip.style.left = isRight ? "auto" : `${offset + 12}px`;
      this.tooltip.style.right = isRight ? `${this.area.clientWidth - offset + 12}px` : "auto";
    }
  }

  // The value at x, or at the point before it: validation losses exist only for some steps.
  function findNearest(xs, ys, x) {
    let [low, high] = [0, xs.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return ys[low - 1];
  }

  // All charts of one view, with their controls.
  class Curves {
    constructor(section) {
      this.section = section;
      this.place = section.querySelector(".ts-charts");
      this.choices = readChoices();
      this.charts = new Map();
      this.lines = new Map();
      section.addEventListener("input", (event) => this.choose(event.target));
      this.showChoices();
    }

    control(name) {
      return this.section.querySelector(`[data-curve=${name}]`);
    }

    showChoices() {
      this.control("axis").value = this.choices.axis;
      this.control("smoothing").value = this.choices.smoothing;
      this.control("log").checked = this.choices.log;
      this.section.querySelector("output").textContent = Number(this.choices.smoothing).toFixed(2);
    }

    choose(control) {
      const name = control.dataset.curve;
      if (!name) return;
      this.choices[name] = { axis: control.value, smoothing: Number(control.value), log: control.checked }[name];
      try {
        localStorage.setItem(STORED, JSON.stringify(this.choices));
      } catch { /* a private window may refuse: the choice is kept until the page is closed */ }
      this.showChoices();
      this.redraw();
    }

    // `lines`: {key of chart: [line, …]}
    show(lines) {
      this.lines = new Map(Object.entries(lines));
      for (const [key, chart] of this.charts) {
        if (this.lines.has(key)) continue;
        chart.remove();
        this.charts.delete(key);
      }
      this.redraw();
    }

    redraw() {
      this.section.hidden = !this.lines.size;
      for (const [key, lines] of this.lines) {
        if (!this.charts.has(key)) this.charts.set(key, new Chart(this.findPlace(key), key, this.choices));
        this.charts.get(key).show(lines);
      }
    }

    findPlace(key) {
      if (key !== "loss" || this.section.dataset.curves !== "run") return this.place;
      let place = this.place.querySelector("#loss-plot");
      if (!place) {
        place = document.createElement("div");
        place.id = "loss-plot";
        this.place.prepend(place);
      }
      return place;
    }
  }

  // The charts of one run: each figure has its own, the losses share one.
  class RunCurves extends Curves {
    clear() {
      this.columns = {};
      this.show({});
    }

    add({ is_whole, columns }) {
      if (is_whole || !this.columns) this.columns = columns;
      else {
        const before = this.columns.step?.length ?? 0;
        const added = columns.step.length;
        for (const key of new Set([...Object.keys(this.columns), ...Object.keys(columns)])) {
          const old = this.columns[key] ?? Array(before).fill(null);
          this.columns[key] = old.concat(columns[key] ?? Array(added).fill(null));
        }
      }
      const rank = (key) => (ORDER.indexOf(key) + 1 || ORDER.length + 1) + (key.startsWith("eval_") ? 0.5 : 0);
      const keys = Object.keys(this.columns).filter((key) => !(key in AXES)).sort((a, b) => rank(a) - rank(b));
      const lines = {};
      for (const key of keys) {
        const line = { key, name: nameFigure(key), colour: key === "eval_loss" ? 1 : 0, columns: this.columns };
        (lines[key === "eval_loss" ? "loss" : key] ??= []).push(line);
      }
      this.show(this.columns.step?.length ? lines : {});
    }
  }

  // The curves of several runs over each other.
  class ComparedCurves extends Curves {
    clear() {
      this.runs = [];
      this.show({});
    }

    set(number, run) {
      this.runs ??= [];
      this.runs[number] = run;
    }

    update() {
      const lines = {};
      for (const key of ["loss", "eval_loss", "learning_rate"]) {
        const found = this.runs.flatMap((run, number) => (
          run?.columns[key]?.some((value) => value !== null)
            ? [{ key, name: this.name(number), isRun: true, colour: number % NUM_COLOURS, columns: run.columns }] : []
        ));
        if (found.length) lines[key] = found;
      }
      this.show(lines);
    }

    name(number) { // two runs may have the same name
      const { name } = this.runs[number];
      const isAmbiguous = this.runs.some((run, other) => other !== number && run?.name === name);
      return isAmbiguous ? `${name} (${number + 1})` : name;
    }
  }

  const all = new Set();
  function follow(curves) {
    all.add(curves);
    return curves;
  }
  new MutationObserver(() => { // dark mode was switched
    for (const curves of all) for (const chart of curves.charts.values()) chart.plot?.redraw(false);
  }).observe(document.documentElement, { attributes: true, attributeFilter: ["class"], subtree: false });
  const watchBody = () => new MutationObserver(() => {
    for (const curves of all) for (const chart of curves.charts.values()) chart.plot?.redraw(false);
  }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  watchBody();

  return {
    smooth,
    followRun: (section) => follow(new RunCurves(section)),
    compare: (section) => follow(new ComparedCurves(section)),
  };
})();
