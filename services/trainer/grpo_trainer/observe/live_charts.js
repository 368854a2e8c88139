"use strict";
// Small SVG charts: lines over steps, or stacked bars. Everything is made with createElementNS and textContent.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 20;
const MAX_POINTS = 300;  // as the trainer keeps them

function make(name, attributes = {}, children = []) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") node.textContent = value; else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function draw(name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

function selectionIsIn(node) {
  const selection = document.getSelection();
  return !selection.isCollapsed && (node.contains(selection.anchorNode) || node.contains(selection.focusNode));
}

// A curve thins itself as the trainer does: when it has too many points, neighbours are merged.
class Curve {
  constructor({ x = [], y = [], per = 1, last = 0, latest = null, at = null, merge = "mean" } = {}) {
    Object.assign(this, { x, y, per, latest, at, merge });  // latest: by itself, the last point may stand for several steps
    this.counts = x.map((_, index) => index === x.length - 1 ? last : per);
  }

  add(step, value) {
    [this.latest, this.at] = [value, step];
    const end = this.x.length - 1;
    if (end >= 0 && this.counts[end] < this.per) {
      [this.x[end], this.y[end], this.counts[end]] = this.merged(end, step, value, 1);
      return;
    }
    if (this.x.length >= MAX_POINTS) this.halve();
    this.x.push(step); this.y.push(value); this.counts.push(1);
  }

  merged(index, step, value, count) {
    const before = this.counts[index], all = before + count;
    const mean = (this.y[index] * before + value * count) / all;
    const merged = this.merge === "mean" ? mean : Math[this.merge](this.y[index], value);
    return [(this.x[index] * before + step * count) / all, merged, all];
  }

  halve() {
    const points = [];
    for (let i = 0; i < this.x.length; i += 2) {
      points.push(i + 1 < this.x.length ? this.merged(i, this.x[i + 1], this.y[i + 1], this.counts[i + 1])
        : [this.x[i], this.y[i], this.counts[i]]);
    }
    this.x = points.map((point) => point[0]);
    this.y = points.map((point) => point[1]);
    this.counts = points.map((point) => point[2]);
    this.per *= 2;
  }

  // The point nearest to a step: its number, -1 when there is none.
  nearest(step) {
    let best = -1;
    for (let i = 0; i < this.x.length; i++) {
      if (best < 0 || Math.abs(this.x[i] - step) < Math.abs(this.x[best] - step)) best = i;
    }
    return best;
  }

  smooth() {
    const window = Math.max(5, Math.round(this.y.length / 40));
    let total = 0;
    return this.y.map((value, index) => {
      total += value - (index >= window ? this.y[index - window] : 0);
      return total / Math.min(index + 1, window);
    });
  }
}

// Round numbers between low and high, about `count` of them.
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw * 0.999);
  const found = [];
  for (let n = Math.ceil(low / unit - 1e-9); n * unit <= high + unit * 1e-9; n++) found.push(n * unit);
  return found;
}

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  if (size >= 1000) return value.toFixed(0);
  return String(Number(value.toPrecision(3)));
}

const percent = (value) => value === null || value === undefined ? "–" : `${Number((value * 100).toPrecision(3))}\u00a0%`;

const MERGED = { mean: "mean", max: "largest", min: "smallest" };

// One chart: `lines(curves)` gives [{curve, name, color, noisy, dash, dots}], `stacked` puts them on top of each other,
// `apart` gives each a scale of its own: their sizes have nothing to do with each other.
class Chart {
  constructor(title, note, lines, { format = short, low = null, high = null, least = null, stacked = false, apart = false } = {}) {
    Object.assign(this, { title, note, lines, format, low, high, least, stacked, apart, step: null });
    this.svg = draw("svg", { role: "img" });
    this.legend = make("ul", { class: "legend" });
    this.where = make("span", { class: "soft" });
    this.empty = make("p", { class: "empty", text: "nothing measured yet" });
    const head = make("div", { class: "title" }, [make("h2", { text: title }), this.where]);
    this.node = make("section", { class: "card chart", "aria-label": title }, [head, this.legend, this.svg, this.empty]);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    // A finger that is lifted leaves, too: what it has pointed at stays until the next tap elsewhere.
    this.svg.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") this.leave(); });
    document.addEventListener("pointerdown", (event) => { if (!this.svg.contains(event.target)) this.leave(); });
    this.known = null;
  }

  leave() {
    if (this.step === null) return;
    this.step = null;
    this.render();
  }

  point(event) {
    if (!this.scale) return;
    const { first, last, width } = this.scale;
    const share = (event.clientX - this.svg.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT);
    this.step = Math.round(first + Math.min(1, Math.max(0, share)) * (last - first));
    this.render();
  }

  render(curves = this.known) {
    if (!curves) return;
    this.known = curves;
    const lines = this.lines(curves).filter((line) => line.curve && line.curve.x.length);
    this.empty.hidden = lines.length > 0;
    this.svg.toggleAttribute("hidden", lines.length === 0);
    this.svg.replaceChildren();
    this.legend.replaceChildren(...lines.map((line) => this.entry(line)));
    const merged = mergedWords(lines);
    this.where.textContent = this.note + (merged && `, each point the ${merged}`);
    if (!lines.length) { this.scale = null; return; }
    const words = lines.map((line) => `${line.name} ${this.format(line.curve.latest)}${age(line.curve, this.known)}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.title} over the steps; last values: ${words}`);
    this.frame(lines);
    if (this.stacked) this.stack(lines); else for (const line of lines) this.line(line);
    if (this.scale.cut) this.where.textContent += ", the tallest cut off";
    if (this.step !== null) {
      this.where.textContent = merged ? `around step ${this.step}: ${merged}` : `step ${this.step}`;
      const x = this.x(Math.min(this.scale.last, Math.max(this.scale.first, this.step)));
      this.svg.append(draw("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: this.scale.height - BOTTOM }));
    }
  }

  entry(line) {
    const mark = make("i");
    mark.style.color = line.color;
    return make("li", {}, [mark, document.createTextNode(line.name), make("b", { text: this.reading(line.curve) })]);
  }

  // The latest value, or the one pointed at; what was measured at another step says at which.
  reading(curve) {
    if (this.step === null) return this.format(curve.latest) + age(curve, this.known);
    const index = curve.nearest(this.step), step = curve.x[index];
    const there = Math.abs(step - this.step) <= Math.max(0.5, curve.per / 2);
    return this.format(curve.y[index]) + (there ? "" : ` (step ${Math.round(step)})`);
  }

  frame(lines) {
    const box = this.svg.getBoundingClientRect(), width = Math.max(200, box.width), height = Math.max(120, box.height);
    const steps = lines.flatMap((line) => [line.curve.x[0], line.curve.x[line.curve.x.length - 1]]);
    const values = this.stacked ? sums(lines) : lines.flatMap((line) => line.curve.y);
    let low = this.low ?? Math.min(...values), high = this.high ?? Math.max(...values, this.least ?? -Infinity);
    // An evaluation every few steps must not make the other bars flat.
    const most = this.stacked ? 3 * median(values) : Infinity, cut = high > most;
    if (cut) high = most;
    if (this.apart) [low, high] = [0, 1];
    // Equal values that were merged differ in their last digit: no range, and `ticks` would count from it for ever.
    if (high - low < Math.max(Math.abs(low), Math.abs(high)) * 1e-9) high = low;
    if (this.high === null) high += (high - low || Math.abs(high) || 1) * 0.06;
    if (this.low === null) low -= (high - low || Math.abs(low) || 1) * 0.06;
    if (high <= low) high = low + 1;
    const edge = this.stacked ? lines[0].curve.per / 2 : 0;
    const first = Math.min(...steps) - edge, last = Math.max(Math.max(...steps) + edge, first + 1);
    this.scale = { first, last, low, high, cut, width, height };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const value of ticks(low, high, 4)) {
      const y = this.y(value);
      this.svg.append(draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
      if (!this.apart) this.svg.append(draw("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, this.format(value)));
    }
    for (const step of ticks(first, last, Math.max(2, width / 90)).filter(Number.isInteger)) {
      this.svg.append(draw("text", { x: this.x(step), y: height - 4, "text-anchor": "middle" }, String(step)));
    }
    this.svg.append(draw("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM }));
  }

  x(step) { const s = this.scale; return LEFT + (step - s.first) / (s.last - s.first) * (s.width - LEFT - RIGHT); }

  y(value) {
    const s = this.scale, share = Math.min(1, Math.max(0, (value - s.low) / (s.high - s.low)));
    return s.height - BOTTOM - share * (s.height - TOP - BOTTOM);
  }

  line({ curve, color, noisy, dots, dash }) {
    const many = noisy && curve.x.length >= 30, placed = this.apart ? onOwnScale(curve.y) : (values) => values;
    if (curve.x.length > 1) {
      this.path(curve.x, placed(curve.y), { color, width: many ? 1 : 2, opacity: many ? 0.35 : 1, dash });
      if (many) this.path(curve.x, placed(curve.smooth()), { color, width: 2.2, opacity: 1 });
    }
    if (dots || curve.x.length === 1) {
      const values = placed(curve.y);
      curve.x.forEach((step, index) => {
        const circle = draw("circle", { cx: this.x(step), cy: this.y(values[index]), r: 3.5 });
        circle.style.fill = color;
        this.svg.append(circle);
      });
    }
  }

  path(steps, values, { color, width, opacity, dash }) {
    const d = steps.map((step, i) => `${i ? "L" : "M"}${this.x(step).toFixed(1)} ${this.y(values[i]).toFixed(1)}`).join("");
    const path = draw("path", { d, fill: "none", "stroke-width": width, opacity, "stroke-linejoin": "round" });
    path.style.stroke = color;
    if (dash) path.setAttribute("stroke-dasharray", "2 4");
    this.svg.append(path);
  }

  stack(lines) {
    const tops = new Map();
    for (const { curve, color } of lines) {
      const room = this.x(curve.per) - this.x(0);
      const d = curve.x.map((step, i) => {
        const from = tops.get(i) ?? 0, to = from + curve.y[i];
        tops.set(i, to);
        const center = this.x(step), half = Math.max(0.5, room * (room > 6 ? 0.42 : 0.5));
        return `M${(center - half).toFixed(1)} ${this.y(from).toFixed(1)}H${(center + half).toFixed(1)}V${this.y(to).toFixed(1)}H${(center - half).toFixed(1)}Z`;
      }).join("");
      const path = draw("path", { d });
      path.style.fill = color;
      this.svg.append(path);
    }
  }
}

// Where the last step did not measure it.
function age(curve, curves) {
  const newest = Object.values(curves).reduce((step, one) => Math.max(step, one.at), 0);
  return curve.at < newest ? ` (step ${curve.at})` : "";
}

// "mean of 4 steps" or "mean or largest of 4 steps", when points stand for several; else nothing. Of evaluations there are
// too few for that.
function mergedWords(lines) {
  const merged = lines.filter(({ curve, dots }) => curve.per > 1 && !dots).map(({ curve }) => curve);
  if (!merged.length) return "";
  const words = [...new Set(merged.map((curve) => MERGED[curve.merge]))].join(" or ");
  return `${words} of ${Math.max(...merged.map((curve) => curve.per))} steps`;
}

// From 0 to 1 between their extremes; a hundredth of their size apart at least, or rounding looks like a movement.
function onOwnScale(values) {
  const low = Math.min(...values), high = Math.max(...values);
  const room = Math.max(high - low, Math.max(Math.abs(low), Math.abs(high)) / 100) || 1, middle = (low + high) / 2;
  return (others) => others.map((value) => 0.5 + (value - middle) / room);
}

function sums(lines) {
  const length = Math.max(...lines.map((line) => line.curve.y.length));
  return Array.from({ length }, (_, i) => lines.reduce((sum, line) => sum + (line.curve.y[i] ?? 0), 0));
}

function median(values) {
  return [...values].sort((left, right) => left - right)[Math.floor(values.length / 2)];
}
