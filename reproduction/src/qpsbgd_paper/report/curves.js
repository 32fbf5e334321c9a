// Draws every <div class="curves"> from the JSON in it: tabs for series and settings, one panel per case, one legend.
(() => {
  const SVG = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "clipPath"]);
  const make = (name, attributes, parent, text = "") => {
    const node = SVG.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return parent.appendChild(Object.assign(node, text && { textContent: text }));
  };
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const look = ({ colour, width, dash }) => ({ stroke: colour, "stroke-width": width, "stroke-dasharray": dash });
  const sorted = (...numbers) => numbers.sort((a, b) => a - b);
  const shown = (value, digits) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential((digits || 3) - 1).replace(/\.?0+e/, "e");
    return String(Number(digits ? value : value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4)));
  };
  // As few digits as keep all ticks apart.
  const tickTexts = (ticks) => {
    for (let digits = 3; digits < 12; digits++) {
      const texts = ticks.map((tick) => shown(Number(tick.toPrecision(digits)), digits));
      if (new Set(texts).size === texts.length) return texts;
    }
    return ticks.map(String);
  };
  const ticks = (low, high, { log = false, count = 5, whole = false }, found = []) => {
    if (log) {
      const decades = Math.log10(high / low), factors = decades > 3 ? [1] : decades > 1.2 ? [1, 3] : [1, 2, 5];
      for (let p = Math.floor(Math.log10(low)); 10 ** p <= high; p += Math.ceil(decades / 6)) found.push(...factors.map((f) => f * 10 ** p));
    } else {
      const raw = Math.max((high - low) / count, whole ? 1 : 0), power = 10 ** Math.floor(Math.log10(raw));
      const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.75);
      for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(Number((k * step).toPrecision(10)));
    }
    return found.filter((tick) => tick >= low && tick <= high);
  };
  let clips = 0;
  class Panel {
    constructor(figure, data, parent) {
      Object.assign(this, { figure, data, window: null, cursor: null, clip: `clip-${clips++}` });
      if (data.title) make("div", { class: "panel-title" }, parent, data.title);
      this.plot = make("div", { class: "plot" }, parent);
      const about = `${data.title} ${figure.series.label} by ${figure.series.x_label}. Arrow keys read values.`.trim();
      this.svg = make("svg", { role: "img", tabindex: 0, "aria-label": about }, this.plot);
      this.tip = make("div", { class: "tip", role: "status", hidden: "" }, this.plot);
      this.grid = sorted(...new Set(data.curves.flatMap((curve) => (curve ? curve.x : []))));
      this.whole = this.grid.every(Number.isInteger);
      const [first, last] = [this.grid[0], this.grid.at(-1)];
      this.full = last > first ? [first, last] : [first - 0.5, first + 0.5];
      this.listen();
      new ResizeObserver(() => this.draw()).observe(this.plot);
    }
    visible() { return this.data.curves.map((curve, i) => [curve, i]).filter(([curve, i]) => curve && !this.figure.hidden.has(i)); }
    yRange(left, right) {
      const [low, high, log] = this.data.y, lines = this.visible();
      const values = lines.flatMap(([curve]) => curve.mean.filter((v, k) => v !== null && curve.x[k] >= left && curve.x[k] <= right));
      let bottom = Math.min(...values), top = Math.max(...values);
      if (!values.length || (!this.window && !this.figure.hidden.size)) return [low, high];
      // A line that explodes is cut off where the whole figure cuts it, unless it is shown alone.
      if (lines.length > 1 && bottom < high && top > low) [bottom, top] = [Math.max(bottom, low), Math.min(top, high)];
      const factor = Math.max(top / bottom, 1.01) ** 0.05, margin = 0.05 * (top - bottom) || 0.05 * Math.abs(top) || 0.5;
      return log ? [bottom / factor, top * factor] : [bottom - margin, top + margin];
    }
    draw() {
      const { svg, figure } = this, style = figure.lines, log = this.data.y[2], scale = log ? Math.log : Number;
      const width = Math.max(this.plot.clientWidth, 120), height = Math.round(clamp(width * 0.62, 190, 380));
      const range = this.window || this.full, [low, high] = this.yRange(...range), yTicks = ticks(low, high, { log });
      const yTexts = tickTexts(yTicks), left = 14 + 7 * Math.max(...yTexts.map((text) => text.length), 2), right = width - 12, top = 10, bottom = height - 40;
      const x = (v) => left + ((v - range[0]) / (range[1] - range[0])) * (right - left);
      const y = (v) => clamp(bottom - ((scale(Math.max(v, log ? low / 1e3 : v)) - scale(low)) / (scale(high) - scale(low))) * (bottom - top), -2e3, 4e3);
      Object.assign(this, { left, right, top, bottom, width, height, x, y, range });
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      make("rect", { x: left, y: top, width: right - left, height: bottom - top }, make("clipPath", { id: this.clip }, svg));
      const label = (at, height, anchor, text) => make("text", { class: "tick", x: at, y: height, "text-anchor": anchor }, svg, text);
      yTicks.forEach((tick, k) => {
        make("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }, svg);
        label(left - 6, y(tick) + 4, "end", yTexts[k]);
      });
      const xTicks = ticks(...range, { count: width < 420 ? 4 : 7, whole: this.whole }), xTexts = tickTexts(xTicks);
      xTicks.forEach((tick, k) => {
        make("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: bottom }, svg);
        label(x(tick), bottom + 16, "middle", xTexts[k]);
      });
      label((left + right) / 2, height - 6, "middle", figure.series.x_label);
      const area = make("g", { "clip-path": `url(#${this.clip})` }, svg);
      const lines = this.visible().sort((a, b) => style[a[1]].width - style[b[1]].width);
      const point = (at, value) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      const arrows = { up: 0, down: 0 };
      for (const [{ x: at, mean, deviation }, i] of lines) {
        // Where a run diverged there is no mean: line and band have gaps.
        const parts = [[]];
        mean.forEach((v, k) => (v === null ? parts.push([]) : parts.at(-1).push([at[k], v, deviation[k] || 0])));
        const whole = parts.filter((part) => part.length), colour = style[i].colour;
        const bands = whole.map((part) => [...part.map(([a, v, d]) => point(a, v + d)), ...part.toReversed().map(([a, v, d]) => point(a, v - d))]);
        if (bands.length) area.prepend(make("path", { class: "band", "data-line": i, d: bands.map((band) => `M${band.join("L")}Z`).join(""), fill: colour }, area));
        make("path", { class: "line", "data-line": i, d: whole.map((part) => `M${part.map(([a, v]) => point(a, v)).join("L")}`).join(""), ...look(style[i]) }, area);
        for (const part of whole) if (part.length === 1) make("circle", { "data-line": i, cx: x(part[0][0]), cy: y(part[0][1]), r: 3, fill: colour }, area);
        this.markExits(whole.flat().filter(([a]) => a >= range[0] && a <= range[1]), { low, high, i, arrows });
      }
      this.marks = make("g", {}, svg);
      this.brush = make("path", { class: "brush" }, svg);
      this.point(this.cursor);
    }
    // An arrow where a line first leaves the scale, and how far it goes; below each other, so that none is hidden.
    markExits(points, { low, high, i, arrows }) {
      const { colour } = this.figure.lines[i];
      for (const [way, beyond] of [["up", (v) => v > high], ["down", (v) => v < low]]) {
        const outside = points.filter(([, v]) => beyond(v)), first = points.indexOf(outside[0]);
        if (!outside.length) continue;
        const [a, v] = outside[0], [b, w] = points[first - 1] || [a, v], edge = way === "up" ? high : low;
        const at = this.x(v === w ? a : b + ((edge - w) / (v - w)) * (a - b)), values = outside.map(([, value]) => value);
        const [tip, sign] = way === "up" ? [this.top, 1] : [this.bottom, -1], before = at > this.width / 2;
        make("path", { class: "exit", "data-line": i, fill: colour, d: `M${at} ${tip}l5 ${9 * sign}h-10Z` }, this.svg);
        const place = { x: at + (before ? -8 : 8), y: tip + sign * (6 + 13 * arrows[way]++) + 4, "text-anchor": before ? "end" : "start" };
        make("text", { class: "exit", "data-line": i, fill: colour, ...place }, this.svg, `to ${shown(Number((way === "up" ? Math.max(...values) : Math.min(...values)).toPrecision(2)))}`);
      }
    }
    at(event) {
      const place = (event.clientX - this.svg.getBoundingClientRect().left - this.left) / (this.right - this.left);
      return this.range[0] + clamp(place, 0, 1) * (this.range[1] - this.range[0]);
    }
    point(value) {
      for (const node of [this.marks, this.tip]) node.replaceChildren();
      [this.tip.hidden, this.cursor] = [value === null, value];
      if (value === null) return;
      const near = (all) => all.reduce((best, v) => (Math.abs(v - value) < Math.abs(best - value) ? v : best), all[0]);
      const inside = this.grid.filter((v) => v >= this.range[0] && v <= this.range[1]), rows = [];
      this.cursor = near(inside.length ? inside : this.grid);
      const px = this.x(this.cursor), style = this.figure.lines;
      make("line", { class: "rule", x1: px, x2: px, y1: this.top, y2: this.bottom }, this.marks);
      for (const [curve, i] of this.visible()) {
        const k = curve.x.indexOf(near(curve.x)), py = this.y(curve.mean[k]);
        if (curve.mean[k] === null) continue;
        rows.push([curve.mean[k], curve.deviation[k], style[i]]);
        if (py >= this.top && py <= this.bottom) make("circle", { cx: this.x(curve.x[k]), cy: py, r: 3.2, fill: style[i].colour }, this.marks);
      }
      make("div", { class: "tip-x" }, this.tip, `${this.figure.series.x_label} ${shown(this.cursor)}`);
      for (const [mean, deviation, { colour, label }] of rows.sort((a, b) => b[0] - a[0])) {
        const row = make("div", { class: "tip-row" }, this.tip);
        make("i", { style: `background:${colour}` }, row);
        make("span", {}, row, label);
        make("b", {}, row, shown(mean) + (deviation ? ` ± ${Number(deviation.toPrecision(2))}` : ""));
      }
      // Where there is no room beside the pointer, the values stand below the panel rather than on the curves.
      const before = px > this.width / 2, below = (before ? px : this.width - px) < 280;
      const [left, right] = below ? ["0", "auto"] : before ? ["auto", `${this.width - px + 12}px`] : [`${px + 12}px`, "auto"];
      Object.assign(this.tip.style, { left, right, top: `${below ? this.height : this.top}px` });
    }
    zoom(window) {
      const [left, right] = (window || this.full).map((end) => clamp(end, ...this.full));
      if (right - left < (this.full[1] - this.full[0]) / 500) return;
      this.window = left <= this.full[0] && right >= this.full[1] ? null : [left, right];
      this.draw();
    }
    listen() {
      const svg = this.svg, on = (name, act) => svg.addEventListener(name, act, { passive: false });
      let start = null;
      on("pointerdown", (event) => {
        this.point(this.at(event));
        start = event.pointerType === "touch" || event.button !== 0 ? null : this.at(event);
        if (start !== null && event.isTrusted) svg.setPointerCapture(event.pointerId);
      });
      on("pointermove", (event) => {
        this.point(this.at(event));
        if (start === null) return;
        const [a, b] = sorted(this.x(start), this.x(this.at(event)));
        this.brush.setAttribute("d", `M${a} ${this.top}H${b}V${this.bottom}H${a}Z`);
      });
      on("pointerup", (event) => {
        const [a, b] = sorted(start ?? 0, start === null ? 0 : this.at(event));
        start = null;
        if (this.x(b) - this.x(a) > 8) this.zoom([a, b]);
        else this.brush.removeAttribute("d");
      });
      on("pointerleave", (event) => event.pointerType === "touch" || this.point(null));
      on("blur", () => this.point(null));
      on("dblclick", () => this.zoom(null));
      on("wheel", (event) => {
        // A plain wheel scrolls the page; with Ctrl, which is also what two fingers on a touchpad send, it zooms.
        if (!event.ctrlKey) return;
        event.preventDefault();
        const at = this.at(event), factor = event.deltaY < 0 ? 0.8 : 1.25;
        this.zoom(this.range.map((end) => at + (end - at) * factor));
      });
      on("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (event.key === "Escape") this.zoom(null);
        if (step) this.point(this.grid[clamp((this.cursor === null ? -1 : this.grid.indexOf(this.cursor)) + step, 0, this.grid.length - 1)]);
      });
    }
  }
  for (const root of document.querySelectorAll(".curves")) {
    const data = JSON.parse(root.querySelector("script").textContent);
    const figure = { lines: data.lines, hidden: new Set(), series: data.series[0], group: 0, panels: [] };
    const tabs = (names, label, choose) => {
      const bar = make("div", { class: "tabs", role: "group", "aria-label": label }, root);
      if (names.length > 1) names.forEach((name, k) => make("button", { type: "button", "aria-pressed": k === 0 }, bar, name).addEventListener("click", () => {
        [...bar.children].forEach((other, j) => other.setAttribute("aria-pressed", j === k));
        choose(k);
        show();
      }));
    };
    root.replaceChildren();
    tabs(data.series.map((series) => series.label), "Curve", (k) => { figure.series = data.series[k]; });
    tabs(figure.series.groups.map((one) => one.name), "Setting", (k) => { figure.group = k; });
    const title = make("div", { class: "axis-title" }, root), body = make("div", { class: "panels" }, root);
    const legend = make("div", { class: "legend", role: "group", "aria-label": "Lines: press to hide or show" }, root);
    const show = () => {
      body.replaceChildren();
      figure.panels = figure.series.groups[figure.group].panels.map((panel) => new Panel(figure, panel, make("div", { class: "panel" }, body)));
      [body.dataset.panels, title.textContent] = [figure.panels.length, figure.series.label];
      [...legend.children].forEach((entry, i) => { entry.hidden = !figure.panels.some((panel) => panel.data.curves[i]); });
    };
    figure.lines.forEach((line, i) => {
      const button = make("button", { type: "button", "aria-pressed": true }, legend);
      const swatch = make("svg", { viewBox: "0 0 28 8", width: 28, height: 8, "aria-hidden": true }, button);
      make("line", { x1: 1, x2: 27, y1: 4, y2: 4, ...look(line) }, swatch);
      make("span", {}, button, line.label);
      const fade = (on) => root.querySelectorAll("[data-line]").forEach((path) => path.classList.toggle("faded", on && path.dataset.line !== String(i)));
      button.addEventListener("click", () => {
        if (!figure.hidden.delete(i)) figure.hidden.add(i);
        button.setAttribute("aria-pressed", !figure.hidden.has(i));
        figure.panels.forEach((panel) => panel.draw());
      });
      button.addEventListener("pointerenter", (event) => fade(event.pointerType === "mouse" && !figure.hidden.has(i)));
      button.addEventListener("pointerleave", () => fade(false));
    });
    show();
  }
})();
