// Figures of one run: accuracy of its edges, flow between clusters, who trained, what edges hold, gaps.

const LEFT = 46;
const BOTTOM = 42;

/** Return the scale of rounds on which a column belongs to each, the same in all figures of one run. */
function columnScale(figure, right = 12) {
  return scale(0.5, lastRound() + 0.5, LEFT, figure.width - right);
}

/** Write the axis of rounds below. */
function drawRounds(figure, sx) {
  for (const round of roundTicks(lastRound(), figure.width / 90)) {
    add(figure.base, "text", { x: sx(round), y: figure.height - BOTTOM + 17, class: "tick", "text-anchor": "middle" }, round);
  }
  add(figure.base, "text", { x: (LEFT + figure.width - 12) / 2, y: figure.height - 8, class: "tick", "text-anchor": "middle" }, "cloud round");
}

/** Frame the column of the chosen round. */
function markColumn(figure, top) {
  const [x, end] = [figure.sx(view.round - 0.5), figure.sx(view.round + 0.5)];
  add(figure.over, "rect", { x, y: top - 2, width: end - x, height: figure.height - BOTTOM - top + 4, class: "frame" });
}

/** Return the round at a place, or null where the run has none. */
function columnAt(figure, x) {
  const round = Math.round(figure.sx.invert(x));
  return x >= LEFT && round >= 1 && round <= runShown().rounds ? round : null;
}

/** Explain colours: a bar from the lowest to the highest. */
function drawKey(parent, width, low, high, y = 0) {
  const [size, end] = [96, width - 6 * high.length - 4];
  const start = end - size - 6;
  for (let i = 0; i < LEVELS; i++) {
    add(parent, "rect", { x: start + (size * i) / LEVELS, y: y + 2, width: size / LEVELS + 0.3, height: 10, style: `fill:${heat((i + 0.5) / LEVELS)}` });
  }
  add(parent, "text", { x: start - 6, y: y + 11, class: "tick", "text-anchor": "end" }, low);
  add(parent, "text", { x: end, y: y + 11, class: "tick" }, high);
}

/** Write numbers beside rows, as many as there is room for. */
function drawRowNumbers(parent, order, at, rowHeight) {
  const every = Math.max(1, Math.ceil(13 / rowHeight));
  order.forEach((number, row) => {
    if (row % every === 0) add(parent, "text", { x: LEFT - 12, y: at(row) + rowHeight / 2 + 4, class: "tick", "text-anchor": "end" }, number);
  });
}

/** Return what an edge is called. */
const edgeName = (run, edge) => (run.names[edge] ? `${run.names[edge]} (edge ${edge})` : `Edge ${edge}`);

/** Return the edges of a run in the order of their clusters in a round. */
function byCluster(run, round) {
  const labels = run.member === "edge" ? run.labels[round - 1] : [];
  return run.edges[0].map((_, edge) => edge).sort((a, b) => (labels[a] ?? 0) - (labels[b] ?? 0) || a - b);
}

const EDGES = {
  name: "edges",
  title: "Accuracy of every edge",
  caption: () =>
    runShown().member === "edge"
      ? "A row is an edge; rows of one cluster at the end of the run are together, and the strip at the left is the cluster in the chosen round. A row in strong colour is served well."
      : "A row is an edge. A row in strong colour is served well.",
  draw(figure) {
    const run = runShown();
    figure.order = byCluster(run, run.rounds);
    figure.cellHeight = Math.min(16, Math.max(3, 330 / figure.order.length));
    figure.top = 24;
    figure.size(figure.top + figure.cellHeight * figure.order.length + BOTTOM);
    const sx = (figure.sx = columnScale(figure));
    const known = run.edges.flat().filter(Number.isFinite);
    const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
    const y = (row) => figure.top + row * figure.cellHeight;
    const gap = figure.cellHeight > 5 ? 1 : 0;
    const cell = (row, column) => [sx(column + 0.5), y(row), sx(column + 1.5) - sx(column + 0.5), figure.cellHeight - gap];
    const level = (value) => (Number.isFinite(value) ? (value - low) / (high - low || 1) : null);
    heatCells(figure.base, figure.order.length, run.rounds, cell, (row, column) => level(run.edges[column][figure.order[row]]));
    drawKey(figure.base, figure.width - 12, percentText(low), percentText(high));
    add(figure.base, "text", { x: LEFT - 12, y: 11, class: "tick", "text-anchor": "end" }, "edge");
    drawRowNumbers(figure.base, figure.order, y, figure.cellHeight);
    drawRounds(figure, sx);
  },
  mark(figure) {
    const run = runShown();
    markColumn(figure, figure.top);
    if (run.member !== "edge") return;
    figure.order.forEach((edge, row) => {
      const style = `fill:${clusterColour(run.labels[roundOf(run) - 1][edge])}`;
      add(figure.over, "rect", { x: LEFT - 8, y: figure.top + row * figure.cellHeight, width: 5, height: figure.cellHeight - (figure.cellHeight > 5 ? 1 : 0), style });
    });
  },
  tipOf(figure, round, row) {
    const run = runShown();
    const edge = figure.order[row];
    if (edge === undefined || !round) return null;
    const lines = [[null, "accuracy", percentText(run.edges[round - 1][edge])]];
    if (run.member === "edge") lines.push([clusterColour(run.labels[round - 1][edge]), "cluster", run.labels[round - 1][edge]]);
    return { title: `${edgeName(run, edge)}, round ${round}`, lines, x: figure.sx(round), y: figure.top + row * figure.cellHeight };
  },
  at: (figure, x, y) => EDGES.tipOf(figure, columnAt(figure, x), Math.floor((y - figure.top) / figure.cellHeight)),
  rows: (figure) => figure.order.length,
  tipByKey: (figure) => EDGES.tipOf(figure, roundOf(runShown()), figure.row),
};

/** Return where every member is in each stretch of rounds without a change: clusters as blocks, near where they were. */
function flowStretches(run, height, top) {
  const count = run.labels[0].length;
  const most = Math.max(...run.clusters);
  const pad = most > 1 ? Math.min(10, (0.35 * height) / (most - 1)) : 0;
  const thick = (height - pad * (most - 1)) / count;
  let place = Array.from({ length: count }, (_, member) => member);
  return run.assignment.map(([round, labels], i) => {
    const clusters = [...new Set(labels)].map((label) => {
      const members = place.map((_, member) => member).filter((member) => labels[member] === label);
      members.sort((a, b) => place[a] - place[b]);
      return { label, members, centre: mean(members.map((member) => place[member])) };
    });
    clusters.sort((a, b) => (i === 0 ? a.label - b.label : a.centre - b.centre));
    let y = top + (height - thick * count - pad * (clusters.length - 1)) / 2;
    place = [...place];
    for (const cluster of clusters) {
      cluster.y = y;
      cluster.height = thick * cluster.members.length;
      cluster.members.forEach((member, j) => (place[member] = y + thick * j));
      y += cluster.height + pad;
    }
    return { from: round, to: (run.assignment[i + 1]?.[0] ?? run.rounds + 1) - 1, labels, clusters, place, thick };
  });
}

const FLOW = {
  name: "flow",
  title: "Flow between clusters",
  wide: true,
  caption: () => `A block is a cluster with its number, as thick as it has ${runShown().member}s. A ribbon that changes its block is ${runShown().member === "edge" ? "an edge" : "a client"} that moves.`,
  shows: () => Math.max(...runShown().clusters) > 1,
  draw(figure) {
    const run = runShown();
    figure.top = 10;
    const inner = Math.min(440, Math.max(180, 15 * run.labels[0].length));
    figure.size(figure.top + inner + BOTTOM);
    const sx = (figure.sx = columnScale(figure));
    const stretches = (figure.stretches = flowStretches(run, inner, figure.top));
    const column = sx(2) - sx(1);
    const bend = Math.min(36, 0.9 * column); // how wide ribbons are between two blocks
    const paths = new Map();
    const last = stretches.length - 1;
    const drawn = stretches.map(({ from, to }, i) => [sx(from - 0.5) + (i && bend / 2), sx(to + 0.5) - (i < last && bend / 2)]);
    const put = (colour, opacity, d) => paths.set(`${opacity}|${colour}`, (paths.get(`${opacity}|${colour}`) ?? "") + d);
    stretches.forEach((stretch, i) => {
      const [start, end] = drawn[i];
      for (const cluster of stretch.clusters) {
        put(clusterColour(cluster.label), 1, `M${start.toFixed(1)} ${cluster.y.toFixed(1)}H${end.toFixed(1)}v${cluster.height.toFixed(1)}H${start.toFixed(1)}z`);
      }
      const next = stretches[i + 1];
      if (!next) return;
      const [x1, x2] = [end, drawn[i + 1][0]];
      const middle = ((x1 + x2) / 2).toFixed(1);
      stretch.labels.forEach((label, member) => {
        const [a, b, h] = [stretch.place[member], next.place[member], stretch.thick];
        const d = `M${x1.toFixed(1)} ${a.toFixed(1)}C${middle} ${a.toFixed(1)} ${middle} ${b.toFixed(1)} ${x2.toFixed(1)} ${b.toFixed(1)}v${h.toFixed(1)}C${middle} ${(b + h).toFixed(1)} ${middle} ${(a + h).toFixed(1)} ${x1.toFixed(1)} ${(a + h).toFixed(1)}z`;
        put(clusterColour(next.labels[member]), label === next.labels[member] ? 0.3 : 0.75, d);
      });
    });
    for (const [key, d] of [...paths].sort(([a], [b]) => parseFloat(a) - parseFloat(b))) {
      const [opacity, colour] = key.split("|");
      add(figure.base, "path", { d, opacity, style: `fill:${colour}` });
    }
    for (const [i, stretch] of stretches.entries()) {
      const [start, end] = drawn[i];
      for (const { label, y, height } of stretch.clusters) {
        const small = height < 11;
        if (end - start > 18 && height >= 8) add(figure.base, "text", { x: start + 6, y: y + height / 2 + (small ? 3 : 4), class: small ? "on-colour small" : "on-colour" }, label);
      }
    }
    drawRounds(figure, sx);
  },
  mark: (figure) => markColumn(figure, figure.top),
  tipOf(figure, round, cluster) {
    if (!cluster) return null;
    const stretch = figure.stretches.findLast((one) => one.from <= round);
    const before = figure.stretches[figure.stretches.indexOf(stretch) - 1];
    const lines = [[clusterColour(cluster.label), `${runShown().member}s`, short([...cluster.members].sort((a, b) => a - b).join(", "), 60)]];
    if (before) {
      const came = cluster.members.filter((member) => before.labels[member] !== cluster.label);
      if (came.length) lines.push([null, `came in round ${stretch.from}`, short(came.sort((a, b) => a - b).join(", "), 60)]);
    }
    return { title: `Cluster ${cluster.label}, round ${round}`, lines, x: figure.sx(round), y: cluster.y };
  },
  clustersIn: (figure, round) => figure.stretches.findLast((stretch) => stretch.from <= round).clusters,
  at(figure, x, y) {
    const round = columnAt(figure, x);
    return round && FLOW.tipOf(figure, round, FLOW.clustersIn(figure, round).find((one) => y >= one.y && y <= one.y + one.height));
  },
  rows: (figure) => FLOW.clustersIn(figure, roundOf(runShown())).length,
  tipByKey(figure) {
    const clusters = FLOW.clustersIn(figure, roundOf(runShown()));
    return FLOW.tipOf(figure, roundOf(runShown()), clusters[Math.min(figure.row, clusters.length - 1)]);
  },
};

const CLIENTS = {
  name: "clients",
  title: "Who trained",
  wide: true,
  caption: () =>
    runShown().beliefs
      ? "A row is a client, rows of an edge are together. Full cells trained in that round, thin ones did not; the stronger the colour, the more selection expects of the client after the round."
      : "A row is a client, rows of an edge are together. Marked cells trained in that round.",
  shows: () => runShown().picked !== null && runShown().clients > 0,
  draw(figure) {
    const run = runShown();
    figure.top = 24;
    const separated = run.sites.length <= 60 ? 3 : 0;
    figure.cellHeight = Math.min(9, Math.max(1.5, 500 / run.clients));
    figure.starts = [];
    let y = figure.top;
    run.sites.forEach((count) => {
      for (let i = 0; i < count; i++) figure.starts.push(y + i * figure.cellHeight);
      y += count * figure.cellHeight + separated;
    });
    figure.size(y + BOTTOM);
    const sx = (figure.sx = columnScale(figure));
    const gap = figure.cellHeight > 6 ? 1 : figure.cellHeight > 3 ? 0.5 : 0;
    const [width, height] = [sx(2) - sx(1), figure.cellHeight - gap];
    const cell = (share) => (row, column) => [sx(column + 0.5), figure.starts[row] + (1 - share) * 0.5 * height, width, share * height];
    const level = (wanted) => (row, column) => (run.picked[column][row] === wanted ? (belief(run, column + 1, row) ?? (wanted ? 0.75 : null)) : null);
    heatCells(figure.base, run.clients, run.rounds, cell(0.22), level(0));
    heatCells(figure.base, run.clients, run.rounds, cell(1), level(1));
    if (run.beliefs) drawKey(figure.base, figure.width - 12, "expects 0", "1");
    add(figure.base, "text", { x: LEFT - 12, y: 11, class: "tick", "text-anchor": "end" }, "edge");
    let [client, written] = [0, -20];
    run.sites.forEach((count, edge) => {
      const middle = figure.starts[client] + (count * figure.cellHeight) / 2 + 4;
      if (middle - written >= 13) {
        add(figure.base, "text", { x: LEFT - 12, y: middle, class: "tick", "text-anchor": "end" }, edge);
        written = middle;
      }
      client += count;
    });
    drawRounds(figure, sx);
  },
  mark: (figure) => markColumn(figure, figure.top),
  tipOf(figure, round, client) {
    const run = runShown();
    if (!round || client < 0 || client >= run.clients) return null;
    const expected = belief(run, round, client);
    const lines = [[null, run.picked[round - 1][client] ? "trained" : "did not train", ""]];
    if (expected !== null) lines.push([heat(expected), "expected of it", expected.toFixed(2)]);
    let edge = 0;
    for (let last = run.sites[0]; client >= last; last += run.sites[edge]) edge += 1;
    return { title: `Client ${client}, ${edgeName(run, edge)}, round ${round}`, lines, x: figure.sx(round), y: figure.starts[client] };
  },
  at: (figure, x, y) => CLIENTS.tipOf(figure, columnAt(figure, x), figure.starts.findLastIndex((start) => start <= y)),
  rows: () => runShown().clients,
  tipByKey: (figure) => CLIENTS.tipOf(figure, roundOf(runShown()), figure.row),
};

const MIX = {
  name: "mix",
  title: "What every edge holds",
  caption: () =>
    runShown().member === "edge"
      ? "Share of each class in an edge's data. Edges are ordered by their cluster in the chosen round: rows of one cluster should look alike."
      : "Share of each class in an edge's data.",
  shows: () => runShown().mix !== null && data.mixes[runShown().mix].length === runShown().edges[0].length,
  draw: () => {},
  mark(figure) {
    const run = runShown();
    const mix = data.mixes[run.mix];
    const clustered = run.member === "edge";
    figure.order = byCluster(run, roundOf(run));
    figure.cellHeight = Math.min(16, Math.max(4, 330 / mix.length));
    figure.top = 24;
    figure.size(figure.top + figure.cellHeight * mix.length + BOTTOM);
    const sx = (figure.classes = scale(0, mix[0].length, LEFT + (clustered ? 30 : 0), figure.width - 12));
    const share = mix.map((row) => row.map((count) => count / Math.max(1, row.reduce((a, b) => a + b, 0))));
    const highest = Math.max(...share.flat());
    const y = (row) => figure.top + row * figure.cellHeight;
    const cell = (row, column) => [sx(column), y(row), sx(1) - sx(0), figure.cellHeight - 1];
    heatCells(figure.over, mix.length, mix[0].length, cell, (row, column) => share[figure.order[row]][column] / highest);
    drawKey(figure.over, figure.width - 12, "0 %", percentText(highest));
    add(figure.over, "text", { x: LEFT - 12, y: 11, class: "tick", "text-anchor": "end" }, "edge");
    drawRowNumbers(figure.over, figure.order, y, figure.cellHeight);
    if (clustered) {
      const labels = run.labels[roundOf(run) - 1];
      figure.order.forEach((edge, row) => {
        add(figure.over, "rect", { x: LEFT - 8, y: y(row), width: 28, height: figure.cellHeight - 1, style: `fill:${clusterColour(labels[edge])}` });
        const first = row === 0 || labels[figure.order[row - 1]] !== labels[edge];
        if (first && figure.cellHeight >= 11) add(figure.over, "text", { x: LEFT + 6, y: y(row) + figure.cellHeight / 2 + 4, class: "on-colour", "text-anchor": "middle" }, labels[edge]);
      });
    }
    const every = Math.ceil(mix[0].length / Math.max(4, figure.width / 45));
    mix[0].forEach((_, i) => i % every || add(figure.over, "text", { x: sx(i + 0.5), y: figure.height - BOTTOM + 17, class: "tick", "text-anchor": "middle" }, i));
    add(figure.over, "text", { x: (sx(0) + sx(mix[0].length)) / 2, y: figure.height - 8, class: "tick", "text-anchor": "middle" }, "class");
  },
  tipOf(figure, row) {
    const run = runShown();
    const edge = figure.order[row];
    if (edge === undefined) return null;
    const counts = data.mixes[run.mix][edge];
    const total = counts.reduce((a, b) => a + b, 0);
    const most = counts.map((count, i) => [count, i]).sort((a, b) => b[0] - a[0]).slice(0, 5).filter(([count]) => count);
    const where = run.member === "edge" ? `, cluster ${run.labels[roundOf(run) - 1][edge]}` : "";
    return {
      title: `${edgeName(run, edge)}${where}: ${total} examples`,
      lines: most.map(([count, i]) => [null, `class ${i}`, `${count} (${percentText(count / total)})`]),
      x: LEFT + 60,
      y: figure.top + row * figure.cellHeight,
    };
  },
  at: (figure, x, y) => MIX.tipOf(figure, Math.floor((y - figure.top) / figure.cellHeight)),
  rows: (figure) => figure.order.length,
  tipByKey: (figure) => MIX.tipOf(figure, figure.row),
};

/** Return the last comparison of clusters up to the chosen round, or the first there is. */
const lastLook = (run) => run.gaps.findLast((look) => look.round <= roundOf(run)) ?? run.gaps[0];

const GAPS = {
  name: "gaps",
  title: "Gaps between clusters",
  caption: () => {
    const look = lastLook(runShown());
    const limit = look.limit === null ? "–" : look.limit.toFixed(2);
    return `As clusters were compared in round ${look.round}. A gap is what the edges of two clusters would lose with each other's network. Framed: below ${limit}, so that merging is expected to pay.`;
  },
  shows: () => runShown().gaps.length > 0,
  draw: () => {},
  mark(figure) {
    const { clusters, gap, limit } = lastLook(runShown());
    figure.words.textContent = this.caption();
    const count = clusters.length;
    const size = Math.min(46, (figure.width - LEFT - 12) / count, 360 / count);
    figure.look = { clusters, gap, limit, cellSize: size };
    figure.top = 24;
    figure.size(figure.top + size * count + 34);
    const highest = Math.max(limit ?? 0, 1e-9, ...gap.flat().filter(Number.isFinite));
    const shade = (value) => (value === null ? 1 : Math.sqrt(Math.max(value, 0) / highest)); // so that small ones differ
    const at = (i) => LEFT + size * i;
    heatCells(figure.over, count, count, (a, b) => [at(b), figure.top + size * a, size - 1, size - 1], (a, b) => (a === b ? null : shade(gap[a][b])));
    drawKey(figure.over, figure.width - 12, "0", `${+highest.toPrecision(2)}`);
    add(figure.over, "text", { x: 0, y: 11, class: "tick" }, "cluster");
    clusters.forEach((label, i) => {
      if (size < 13 && i % Math.ceil(13 / size)) return;
      add(figure.over, "text", { x: LEFT - 12, y: figure.top + size * (i + 0.5) + 4, class: "tick", "text-anchor": "end" }, label);
      add(figure.over, "text", { x: at(i + 0.5), y: figure.top + size * count + 16, class: "tick", "text-anchor": "middle" }, label);
    });
    gap.forEach((row, a) =>
      row.forEach((value, b) => {
        if (a === b) return;
        if (value !== null && limit !== null && value < limit) add(figure.over, "rect", { x: at(b) + 1, y: figure.top + size * a + 1, width: size - 3, height: size - 3, class: "below" });
        if (size >= 34) add(figure.over, "text", { x: at(b) + size / 2, y: figure.top + size * (a + 0.5) + 4, class: "tick", "text-anchor": "middle", style: `fill:var(--${shade(value) > 0.5 ? "surface" : "ink"})` }, value === null ? "∞" : value.toFixed(2));
      }),
    );
  },
  tipOf(figure, a, b) {
    const { clusters, gap, limit } = figure.look;
    if (clusters[a] === undefined || clusters[b] === undefined || a === b) return null;
    const value = gap[a][b];
    const near = value !== null && limit !== null && value < limit;
    return {
      title: `Clusters ${clusters[a]} and ${clusters[b]}`,
      lines: [[null, near ? "may merge" : "stay apart", value === null ? "∞" : value.toFixed(3)]],
      x: LEFT + figure.look.cellSize * (b + 0.5),
      y: figure.top + figure.look.cellSize * a,
    };
  },
  at: (figure, x, y) => GAPS.tipOf(figure, Math.floor((y - figure.top) / figure.look.cellSize), Math.floor((x - LEFT) / figure.look.cellSize)),
  rows: (figure) => figure.look.clusters.length,
  tipByKey: (figure) => GAPS.tipOf(figure, figure.row, figure.row ? 0 : 1),
};
