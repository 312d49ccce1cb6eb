// Drawing: elements, scales, ticks, lines, cells, and the one tip that shows values. It knows nothing of runs.

const SVG = "http://www.w3.org/2000/svg";
const TEXT = 12; // pixels, whatever the width: a figure is drawn anew when its place changes
const LEVELS = 12;

/** Make an HTML element; children are elements or text, which is never read as HTML. */
function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in node && name !== "list" && name !== "style") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Make an SVG element and add it to its parent. */
function add(parent, tag, attributes = {}, text = "") {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== "") node.textContent = text;
  parent.append(node);
  return node;
}

/** Map a range of values onto a range of pixels. */
function scale(from, to, start, end) {
  const factor = to > from ? (end - start) / (to - from) : 0;
  const map = (value) => start + (value - from) * factor;
  const invert = (pixel) => (factor ? from + (pixel - start) / factor : from);
  return Object.assign(map, { invert, from, to });
}

/** Return about as many round numbers between two values, both included if they are round. */
function ticks(from, to, about, whole = false) {
  const rough = (to - from) / Math.max(about, 1);
  if (!(rough > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) ?? 10);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
  return found;
}

/** Return ticks of rounds: the first, round numbers, and none that would touch. */
function roundTicks(last, about) {
  const found = ticks(0, last, about, true).filter((round) => round >= 1);
  return found.length && found[0] > 2 ? [1, ...found] : found.length ? found : [1];
}

/** Return the path of points, in pieces where one is missing. */
function linePath(points, step = false) {
  let before = false;
  const pieces = points.map(([x, y]) => {
    const [known, there, h, v] = [Number.isFinite(x + y), before, x.toFixed(1), y.toFixed(1)];
    before = known;
    return known ? (!there ? `M${h} ${v}` : step ? `H${h}V${v}` : `L${h} ${v}`) : "";
  });
  return pieces.join("");
}

/** Return the path of the area between two lines of the same places. */
function areaPath(xs, lows, highs) {
  const known = xs.map((x, i) => [x, lows[i], highs[i]]).filter((point) => point.every(Number.isFinite));
  if (known.length < 2) return "";
  const there = known.map(([x, , high]) => `${x.toFixed(1)} ${high.toFixed(1)}`);
  const back = known.reverse().map(([x, low]) => `${x.toFixed(1)} ${low.toFixed(1)}`);
  return `M${[...there, ...back].join("L")}Z`;
}

/** Move places apart, near to where they want to be, within limits. */
function apart(wanted, gap, low, high) {
  const order = wanted.map((place, i) => [place, i]).sort((a, b) => a[0] - b[0]);
  const placed = [];
  let floor = low;
  for (const [place, i] of order) {
    placed.push([Math.max(place, floor), i]);
    floor = placed.at(-1)[0] + gap;
  }
  let ceiling = Math.max(high, low + gap * (order.length - 1));
  for (const entry of placed.reverse()) {
    entry[0] = Math.min(entry[0], ceiling);
    ceiling = entry[0] - gap;
  }
  return placed.sort((a, b) => a[1] - b[1]).map(([place]) => place);
}

/** Shorten a text to a number of characters. */
const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/** Write bytes in decimal units with three digits. */
function bytesText(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : +value.toPrecision(3)} ${units[unit]}`;
}

/** Write a time in the largest unit of which there is at least one. */
function timeText(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size) return `${+(seconds / size).toPrecision(3)} ${unit}`;
  }
  return `${+seconds.toPrecision(3)} s`;
}

const percentText = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–");

/** Return the colour of a level of heat, or of a share from 0 to 1. */
const heat = (share) => `color-mix(in oklab, var(--heat) ${Math.round(100 * share)}%, var(--cold))`;

/** Return the colour of a cluster: nine, then darker ones, told apart by their numbers. */
function clusterColour(cluster) {
  const shade = Math.round(100 * 0.82 ** Math.floor(cluster / 9));
  return `color-mix(in oklab, var(--c${cluster % 9}) ${shade}%, #333)`;
}

/** Draw rows of cells as few paths: one for each level of heat; ``level`` returns a share from 0 to 1, or null. */
function heatCells(parent, rows, columns, cell, level) {
  const paths = Array.from({ length: LEVELS }, () => "");
  for (let row = 0; row < rows; row++) {
    let start = 0;
    let current = null;
    for (let column = 0; column <= columns; column++) {
      const share = column < columns ? level(row, column) : null;
      const found = share === null ? null : Math.min(LEVELS - 1, Math.floor(Math.max(share, 0) * LEVELS));
      if (found === current && column < columns) continue;
      if (current !== null) {
        const [x, y, , height] = cell(row, start);
        const [lastX, , width] = cell(row, column - 1);
        paths[current] += `M${x.toFixed(2)} ${y.toFixed(2)}H${(lastX + width).toFixed(2)}v${height.toFixed(2)}H${x.toFixed(2)}z`;
      }
      start = column;
      current = found;
    }
  }
  paths.forEach((d, i) => d && add(parent, "path", { d, style: `fill:${heat((i + 0.5) / LEVELS)}` }));
}

/** A figure that is drawn again when its width or what it shows changes. */
class Figure {
  /** ``spec``: name, title, caption, wide, draw(figure), mark(figure), tips by place (at) and by the keyboard (tipByKey),
   * and optionally shows(), rows(), controls. */
  constructor(spec) {
    Object.assign(this, spec);
    this.row = 0;
    this.svg = add(html("div", { className: "canvas" }), "svg", { tabindex: "0", role: "img" });
    this.words = html("p");
    this.element = html(
      "figure",
      { id: `figure-${this.name}`, className: this.wide ? "wide" : "" },
      html("figcaption", {}, html("h3", {}, this.title), this.words),
      ...(this.controls ? [this.controls] : []),
      this.svg.parentElement,
    );
    for (const kind of ["pointermove", "pointerdown"]) this.svg.addEventListener(kind, (event) => this.hover(event));
    for (const kind of ["pointerleave", "blur"]) this.svg.addEventListener(kind, () => tip.hide());
    this.svg.addEventListener("focus", () => this.svg.matches(":focus-visible") && this.tell());
  }

  /** Draw all of it, at the width it has now. */
  redraw() {
    this.element.hidden = this.shows ? !this.shows() : false;
    if (this.element.hidden) return;
    this.width = Math.max(260, Math.floor(this.svg.parentElement.clientWidth));
    this.words.textContent = this.caption();
    this.svg.replaceChildren();
    this.svg.setAttribute("aria-label", `${this.title}. Arrow keys move through it.`);
    this.base = add(this.svg, "g");
    this.over = add(this.svg, "g");
    this.draw(this);
    this.remark();
  }

  /** Draw what depends on the round. */
  remark() {
    if (this.element.hidden || !this.over) return;
    this.over.replaceChildren();
    this.mark(this);
    if (document.activeElement === this.svg && tip.shown) this.tell();
  }

  /** Set the height that is drawn in. */
  size(height) {
    this.height = Math.ceil(height);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
  }

  /** Draw axes with grid lines; return their scales. ``x`` and ``y``: from, to, ticks, text, label. */
  axes({ left, right, top, bottom, x, y }) {
    const sx = scale(x.from, x.to, left, this.width - right);
    const sy = scale(y.from, y.to, this.height - bottom, top);
    for (const value of y.ticks) {
      add(this.base, "line", { x1: left, x2: this.width - right, y1: sy(value), y2: sy(value), class: "grid" });
      add(this.base, "text", { x: left - 7, y: sy(value) + 4, class: "tick", "text-anchor": "end" }, y.text(value));
    }
    for (const value of x.ticks) {
      add(this.base, "text", { x: sx(value), y: this.height - bottom + 17, class: "tick", "text-anchor": "middle" }, x.text(value));
    }
    const middle = (left + this.width - right) / 2;
    add(this.base, "text", { x: middle, y: this.height - bottom + 34, class: "tick", "text-anchor": "middle" }, x.label);
    add(this.base, "line", { x1: left, x2: this.width - right, y1: this.height - bottom, y2: this.height - bottom, class: "axis" });
    return ([this.sx, this.sy] = [sx, sy]);
  }

  hover(event) {
    const box = this.svg.getBoundingClientRect();
    const factor = this.width / box.width;
    const found = this.at(this, (event.clientX - box.left) * factor, (event.clientY - box.top) * factor);
    if (found) tip.show(found, event.clientX, event.clientY);
    else tip.hide();
  }

  /** Show the values of the round by the keyboard; where there are rows, of one of them. */
  tell() {
    const found = this.tipByKey(this);
    if (!found) return;
    const box = this.svg.getBoundingClientRect();
    const factor = box.width / this.width;
    tip.show(found, box.left + found.x * factor, box.top + (found.y ?? this.height / 3) * factor);
  }
}

/** The one tip: a title, and lines of a colour, a name and a value. */
const tip = {
  node: html("div", { id: "tip", role: "status" }),
  shown: false,
  show({ title, lines }, x, y) {
    this.node.replaceChildren(
      html("strong", {}, title),
      ...lines.map(([colour, name, value]) =>
        html("div", {}, html("span", { className: "swatch", style: `background:${colour ?? "transparent"}` }), html("span", {}, name), html("b", {}, value)),
      ),
    );
    this.node.style.display = "block";
    const { width, height } = this.node.getBoundingClientRect();
    const left = x + 16 + width > innerWidth - 4 ? x - 16 - width : x + 16;
    this.node.style.left = `${Math.max(4, left)}px`;
    this.node.style.top = `${Math.min(Math.max(4, y - height / 2), innerHeight - height - 4)}px`;
    this.shown = true;
  },
  hide() {
    this.node.style.display = "none";
    this.shown = false;
  },
};
