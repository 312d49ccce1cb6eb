// Figures that compare methods: accuracy by rounds and by cost, fairness, clusters, traffic.

const MOST_LABELS = 10; // at the ends of lines; more are told apart by the switches above
const MOST_TIPS = 14;
const TIERS = [["client", "client–edge"], ["region", "edge–region"], ["country", "region–country"], ["cloud", "edge–cloud"]];
const PURPOSES = TIERS.flatMap(([tier, between]) =>
  ["train", "evaluate", "control"].map((purpose) => [`${tier}-${purpose}`, `${between}: ${purpose}`]),
);

/** Return limits around values that leave them room, within 0 and 1. */
function shareLimits(values) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return [0, 1];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const room = Math.max(0.02, 0.06 * (high - low));
  return [Math.max(0, low - room), Math.min(1, high + room)];
}

const hasSeeds = () => data.groups.some((group) => group.runs.length > 1);

/** Draw curves of groups: bold means, thin seeds, names at the ends where there is room for them. */
function drawCurves(figure, { xs, ys, x, y, height, step = false, ribbon = null, ends = null }) {
  const groups = groupsShown();
  const labelled = figure.width >= 560 && groups.length <= MOST_LABELS;
  const texts = groups.map((group) => `${short(group.label, 22)}${ends ? ` ${ends(group)}` : ""}`);
  const right = labelled ? 24 + 6.6 * Math.max(0, ...texts.map((text) => text.length)) : 12;
  figure.size(height);
  figure.element.classList.toggle("many", groups.length > MOST_LABELS);
  const [sx, sy] = figure.axes({ left: 46, right, top: 10, bottom: 44, x, y });
  const ended = [];
  for (const group of groups) {
    const xMean = meanCurve(group.runs, xs).map(sx);
    if (ribbon) {
      const low = meanCurve(group.runs, ribbon).map(sy);
      const high = meanCurve(group.runs, ys).map(sy);
      add(figure.base, "path", { d: areaPath(xMean, low, high), style: `fill:${group.colour}`, opacity: Math.min(0.13, 0.4 / groups.length) });
    }
    if (group.runs.length > 1) {
      for (const run of group.runs) {
        const points = xs(run).map((value, t) => [sx(value), sy(ys(run)[t])]);
        add(figure.base, "path", { d: linePath(points, step), class: "thin", style: `stroke:${group.colour}` });
      }
    }
  }
  for (const group of groups) {
    const places = meanCurve(group.runs, xs);
    const points = meanCurve(group.runs, ys).map((value, t) => [sx(places[t]), sy(value)]);
    add(figure.base, "path", { d: linePath(points, step), class: "bold", style: `stroke:${group.colour}`, "stroke-dasharray": group.dash });
    const known = points.filter((point) => point.every(Number.isFinite));
    const end = known.at(-1) ?? [sx.from, sy(0)];
    if (known.length && end[0] < figure.width - right - 2) add(figure.base, "circle", { cx: end[0], cy: end[1], r: 3.5, style: `fill:${group.colour}` });
    ended.push(end);
  }
  if (labelled) {
    const places = apart(ended.map(([, at]) => at), 16, 14, figure.height - 48);
    groups.forEach((group, i) => {
      const at = figure.width - right + 8;
      add(figure.base, "line", { x1: at, x2: at + 10, y1: places[i], y2: places[i], class: "bold", style: `stroke:${group.colour}`, "stroke-dasharray": group.dash && "3 2" });
      add(figure.base, "text", { x: at + 14, y: places[i] + 4, class: "name" }, texts[i]);
    });
  }
}

/** Mark the round with a line, and dots at its values. */
function markRound(figure, ys, step = false) {
  if (!figure.sx) return;
  const x = figure.sx(view.round);
  add(figure.over, "line", { x1: x, x2: x, y1: 8, y2: figure.height - 44, class: "cursor" });
  for (const group of groupsShown()) {
    const value = meanCurve(group.runs, ys)[view.round - 1];
    if (Number.isFinite(value)) add(figure.over, "circle", { cx: x, cy: figure.sy(value), r: step ? 3 : 4, class: "dot", style: `fill:${group.colour}` });
  }
}

/** Return what the tip says of all groups in a round. */
function roundTip(round, ys, text, x) {
  if (round === null) return null;
  const lines = groupsShown()
    .map((group) => [group, meanCurve(group.runs, ys)[round - 1]])
    .filter(([, value]) => Number.isFinite(value))
    .sort((a, b) => b[1] - a[1])
    .slice(0, MOST_TIPS)
    .map(([group, value]) => [group.colour, group.label, text(value, group)]);
  return lines.length ? { title: `Round ${round}`, lines, x } : null;
}

/** Return which round is at a place of the horizontal axis, or null beside it. */
function roundAt(figure, x) {
  if (!figure.sx || x < 30 || x > figure.sx(figure.sx.to) + 12) return null;
  return Math.min(Math.max(Math.round(figure.sx.invert(x)), 1), lastRound());
}

function roundAxis(figure) {
  const last = lastRound();
  const [from, to] = last > 1 ? [1, last] : [0.5, 1.5];
  return { from, to, ticks: roundTicks(last, figure.width / 90), text: String, label: "cloud round" };
}

const percentAxis = ([from, to], height) => ({ from, to, ticks: ticks(from, to, height / 60), text: (value) => `${+(100 * value).toFixed(1)}` });

const roundNumbers = (run) => run.accuracy.map((_, t) => t + 1);
const accuracyOf = (run) => run.accuracy;
const worstOf = (run) => run.worst;

const ACCURACY = {
  name: "accuracy",
  title: "Accuracy (%)",
  wide: true,
  caption: () =>
    "Mean over the edges after every round; the shade reaches down to the worst edge." +
    (hasSeeds() ? " Thin lines are single seeds." : "") +
    " Labels give the last round. Look at how far apart the lines end, and who gets there first.",
  draw(figure) {
    const runs = groupsShown().flatMap((group) => group.runs);
    const height = figure.width < 560 ? 300 : 380;
    const y = percentAxis(shareLimits(runs.flatMap((run) => [...run.accuracy, ...run.worst])), height);
    const ends = (group) => percentText(meanCurve(group.runs, accuracyOf).at(-1));
    drawCurves(figure, { xs: roundNumbers, ys: accuracyOf, ribbon: worstOf, height, x: roundAxis(figure), y, ends });
  },
  mark: (figure) => markRound(figure, accuracyOf),
  at: (figure, x) => ACCURACY.tipOf(figure, roundAt(figure, x)),
  tipByKey: (figure) => ACCURACY.tipOf(figure, view.round),
  tipOf(figure, round) {
    const worst = (group) => percentText(meanCurve(group.runs, worstOf)[round - 1]);
    return roundTip(round, accuracyOf, (value, group) => `${percentText(value)}, worst ${worst(group)}`, figure.sx(round));
  },
};

/** Return the scale of costs: bytes or simulated seconds, in one unit for all. */
function costUnit(highest) {
  const units = view.cost === "bytes" ? [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]] : [["days", 86400], ["hours", 3600], ["minutes", 60], ["seconds", 1]];
  return units.find(([, size]) => highest >= size) ?? units.at(-1);
}

const costOf = (run) => (view.cost === "bytes" ? run.bytes : (run.seconds ?? run.accuracy.map(() => NaN)));
const costText = (value) => (view.cost === "bytes" ? bytesText(value) : timeText(value));

const COST = {
  name: "cost",
  title: "Accuracy (%) for what it costs",
  caption: () =>
    `Dots are at the chosen round. Higher is better for the same ${view.cost === "bytes" ? "bytes" : "simulated time"}.`,
  controls: html("div", { className: "choice", role: "radiogroup", ariaLabel: "What accuracy is set against" }),
  draw(figure) {
    const runs = groupsShown().flatMap((group) => group.runs);
    this.offer();
    const highest = Math.max(0, ...runs.flatMap((run) => costOf(run)).filter(Number.isFinite));
    const [unit, size] = costUnit(highest);
    const [text, label] = [(value) => `${+(value / size).toPrecision(3)}`, view.cost === "bytes" ? "sent so far" : "simulated time"];
    const x = { from: 0, to: highest || 1, ticks: ticks(0, highest || 1, figure.width / 110), text, label: `${label} (${unit})` };
    const y = percentAxis(shareLimits(runs.flatMap(accuracyOf)), 300);
    drawCurves(figure, { xs: costOf, ys: accuracyOf, height: 300, x, y });
  },
  /** Let a reader choose between bytes and seconds, where runs have both. */
  offer() {
    const both = data.runs.some((run) => run.seconds);
    if (!both) view.cost = "bytes";
    this.controls.hidden = !both;
    if (this.controls.childElementCount || !both) return;
    for (const [value, text] of [["bytes", "Bytes"], ["seconds", "Simulated time"]]) {
      const input = html("input", { type: "radio", name: "cost", value, checked: view.cost === value });
      input.addEventListener("change", () => {
        view.cost = value;
        redrawAll();
      });
      this.controls.append(html("label", { className: "chip" }, input, text));
    }
  },
  points: () =>
    groupsShown().flatMap((group) => {
      const costs = meanCurve(group.runs, costOf);
      return meanCurve(group.runs, accuracyOf).map((accuracy, t) => ({ group, round: t + 1, cost: costs[t], accuracy }));
    }),
  mark(figure) {
    for (const { group, cost, accuracy } of this.points().filter((point) => point.round === view.round)) {
      if (Number.isFinite(cost + accuracy)) add(figure.over, "circle", { cx: figure.sx(cost), cy: figure.sy(accuracy), r: 4.5, class: "dot", style: `fill:${group.colour}` });
    }
  },
  at(figure, x, y) {
    let best = null;
    let least = 40 ** 2;
    for (const point of this.points()) {
      const distance = (figure.sx(point.cost) - x) ** 2 + (figure.sy(point.accuracy) - y) ** 2;
      if (distance < least) [best, least] = [point, distance];
    }
    return best && { title: best.group.label, lines: [[best.group.colour, `round ${best.round}`, `${percentText(best.accuracy)} for ${costText(best.cost)}`]] };
  },
  tipByKey(figure) {
    const points = this.points().filter((point) => point.round === view.round && Number.isFinite(point.cost));
    const lines = points.slice(0, MOST_TIPS).map(({ group, cost, accuracy }) => [group.colour, group.label, `${percentText(accuracy)} for ${costText(cost)}`]);
    return lines.length ? { title: `Round ${view.round}`, lines, x: figure.sx(points[0].cost) } : null;
  },
};

/** Return the edges of a group from the worst to the best: sorted within each seed, then the mean by rank. */
function ranked(group) {
  const sorted = group.runs.map((run) => edgeMeans(run, roundOf(run)).filter(Number.isFinite).sort((a, b) => a - b));
  const length = Math.min(...sorted.map((edges) => edges.length));
  return { sorted, mean: Array.from({ length }, (_, rank) => mean(sorted.map((edges) => edges[rank]))) };
}

const FAIRNESS = {
  name: "fairness",
  title: "Fairness: edges from worst to best (%)",
  caption: () =>
    "Every dot is an edge, its accuracy the mean over the last rounds up to the chosen one. A flat line is fair; look at the dots on the left." +
    (hasSeeds() ? " Edges are ranked within each seed (thin), then the ranks are averaged." : ""),
  draw: (figure) => figure.size(300),
  mark(figure) {
    figure.base.replaceChildren();
    const groups = groupsShown().map((group) => ({ ...group, ...ranked(group) }));
    figure.ranks = groups;
    const most = Math.max(1, ...groups.map((group) => group.mean.length));
    const rank = (i, count) => (count > 1 ? i / (count - 1) : 0.5);
    const x = { from: -0.02, to: 1.02, ticks: [0, 1], text: () => "", label: "" };
    const y = percentAxis(shareLimits(groups.flatMap((group) => group.sorted.flat())), 300);
    const [sx, sy] = figure.axes({ left: 46, right: 14, top: 10, bottom: 44, x, y });
    add(figure.base, "text", { x: sx(0), y: 274, class: "tick" }, "worst edge");
    add(figure.base, "text", { x: sx(1), y: 274, class: "tick", "text-anchor": "end" }, "best edge");
    for (const group of groups) {
      if (group.runs.length > 1) {
        for (const edges of group.sorted) {
          add(figure.over, "path", { d: linePath(edges.map((value, i) => [sx(rank(i, edges.length)), sy(value)])), class: "thin", style: `stroke:${group.colour}` });
        }
      }
      const points = group.mean.map((value, i) => [sx(rank(i, group.mean.length)), sy(value)]);
      add(figure.over, "path", { d: linePath(points), class: "line", style: `stroke:${group.colour}`, "stroke-dasharray": group.dash });
      if (most <= 60) for (const [cx, cy] of points) add(figure.over, "circle", { cx, cy, r: 3.2, style: `fill:${group.colour}` });
    }
  },
  tipOf(figure, share) {
    const lines = figure.ranks
      .filter((group) => group.mean.length)
      .map((group) => [group, Math.round(share * (group.mean.length - 1))])
      .sort((a, b) => b[0].mean[b[1]] - a[0].mean[a[1]])
      .slice(0, MOST_TIPS)
      .map(([group, i]) => [group.colour, group.label, percentText(group.mean[i])]);
    const most = Math.max(1, ...figure.ranks.map((group) => group.mean.length));
    const place = Math.round(share * (most - 1)) + 1;
    return lines.length ? { title: `Edge ${place} of ${most}, from the worst`, lines, x: figure.sx(share) } : null;
  },
  at: (figure, x) => FAIRNESS.tipOf(figure, Math.min(Math.max(figure.sx.invert(x), 0), 1)),
  tipByKey: (figure) => FAIRNESS.tipOf(figure, 0),
};

const clustersOf = (run) => run.clusters;

const CLUSTERS = {
  name: "clusters",
  title: "Clusters in use",
  caption: () => "How many clusters have at least one member. Edges may still move while this number is constant: the flow below shows who does.",
  shows: () => data.runs.some((run) => Math.max(...run.clusters) > 1),
  draw(figure) {
    const highest = Math.max(1, ...groupsShown().flatMap((group) => group.runs.flatMap(clustersOf)));
    const y = { from: 0, to: 1.08 * highest, ticks: ticks(0, highest, 5, true), text: String };
    drawCurves(figure, { xs: roundNumbers, ys: clustersOf, height: 260, step: true, x: roundAxis(figure), y });
  },
  mark: (figure) => markRound(figure, clustersOf, true),
  at: (figure, x) => CLUSTERS.tipOf(figure, roundAt(figure, x)),
  tipByKey: (figure) => CLUSTERS.tipOf(figure, view.round),
  tipOf: (figure, round) => roundTip(round, clustersOf, (value) => `${+value.toFixed(1)}`, figure.sx(round)),
};

/** Return the bytes of a group up to the chosen round: by purpose, the mean over its runs. */
function spent(group) {
  return PURPOSES.map(([key]) => mean(group.runs.map((run) => run.traffic[key]?.[roundOf(run) - 1] ?? 0)));
}

/** Return what a kind of traffic is called; with regions, it is these that the cloud talks to. */
function trafficName([, name]) {
  const below = data.runs.map((run) => ["country", "region"].find((tier) => run.traffic[`${tier}-train`]) ?? "edge");
  return name.replace("edge–cloud", `${[...new Set(below)].join("/")}–cloud`);
}

const TRAFFIC = {
  name: "traffic",
  title: "Traffic",
  caption: () => "Everything sent up to the chosen round. Look at what goes into measuring rather than training (paler).",
  draw: () => {},
  mark(figure) {
    const groups = groupsShown().map((group) => ({ ...group, spent: spent(group) }));
    const used = PURPOSES.map((_, i) => i).filter((i) => groups.some((group) => group.spent[i] > 0));
    const columns = Math.max(1, Math.floor(figure.width / 170));
    const keyHeight = 20 * Math.ceil(used.length / columns) + 12;
    const row = groups.length > 12 ? 30 : 46;
    figure.size(keyHeight + row * groups.length + 6);
    figure.rowAt = (y) => groups[Math.floor((y - keyHeight) / row)];
    figure.groups = groups;
    used.forEach((i, place) => {
      const [x, y] = [(place % columns) * (figure.width / columns), 20 * Math.floor(place / columns)];
      add(figure.over, "rect", { x, y: y + 3, width: 11, height: 11, rx: 2, style: `fill:var(--${PURPOSES[i][0]})` });
      add(figure.over, "text", { x: x + 17, y: y + 13, class: "tick" }, trafficName(PURPOSES[i]));
    });
    const longest = Math.max(1, ...groups.map((group) => group.spent.reduce((a, b) => a + b, 0)));
    groups.forEach((group, place) => {
      const top = keyHeight + row * place;
      const total = group.spent.reduce((a, b) => a + b, 0);
      add(figure.over, "circle", { cx: 5, cy: top + 8, r: 4.5, style: `fill:${group.colour}` });
      add(figure.over, "text", { x: 16, y: top + 12, class: "name" }, short(group.label, Math.floor(figure.width / 9)));
      add(figure.over, "text", { x: figure.width, y: top + 12, class: "name", "text-anchor": "end" }, bytesText(total));
      let x = 0;
      for (const i of used) {
        const width = (figure.width * group.spent[i]) / longest;
        if (width > 0) add(figure.over, "rect", { x, y: top + 18, width: Math.max(0, width - 1), height: row - 28, style: `fill:var(--${PURPOSES[i][0]})` });
        x += width;
      }
    });
  },
  tipOf(group) {
    const lines = PURPOSES.map((kind, i) => [`var(--${kind[0]})`, trafficName(kind), bytesText(group?.spent[i])]);
    return group ? { title: group.label, lines: lines.filter((_, i) => group.spent[i] > 0), x: 40 } : null;
  },
  at: (figure, x, y) => TRAFFIC.tipOf(figure.rowAt(y)),
  rows: (figure) => figure.groups.length,
  tipByKey: (figure) => TRAFFIC.tipOf(figure.groups[figure.row]),
};
