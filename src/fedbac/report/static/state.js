// What is shown: the runs, and what a reader has chosen of them.

const view = { off: new Set(), seedsOff: new Set(), round: 1, run: 0, cost: "bytes" };
let data = { groups: [], runs: [], mixes: [] };

const DASHES = ["", "7 4", "2 3", "8 3 2 3"];

/** Take a document; keep what was chosen as far as it still exists. A reader at the last round stays at the last. */
function take(document) {
  const followed = view.round >= lastRound();
  const chosen = data.runs[view.run]?.label;
  for (const run of document.runs) decode(run, document);
  document.groups.forEach((group, index) => {
    group.colour = `var(--s${group.look % 8})`;
    group.dash = DASHES[Math.floor(group.look / 8) % 4];
    group.runs = document.runs.filter((run) => run.group === index);
  });
  data = document;
  view.run = Math.max(0, data.runs.findIndex((run) => run.label === chosen));
  if (followed) view.round = lastRound();
  view.round = Math.min(Math.max(view.round, 1), lastRound());
  if (chosen === undefined) view.run = mostTelling();
}

/** Turn the short forms of a document into numbers. */
function decode(run, document) {
  const share = (value) => (value === null ? NaN : value / document.scale);
  run.rounds = run.accuracy.length;
  run.accuracy = run.accuracy.map(share);
  run.worst = run.worst.map(share);
  run.edges = run.edges.map((edges) => edges.map(share));
  run.bytes = run.accuracy.map((_, t) => Object.values(run.traffic).reduce((sum, totals) => sum + totals[t], 0));
  run.labels = run.accuracy.map((_, t) => run.assignment.findLast(([round]) => round <= t + 1)[1]);
  run.clusters = run.labels.map((labels) => new Set(labels).size);
  run.clients = run.sites.reduce((sum, count) => sum + count, 0);
  run.picked = run.selected?.map((hex) => pickedIn(hex, run.clients)) ?? null;
  run.member = run.labels.length && run.labels[0].length === run.edges[0].length ? "edge" : "client";
}

/** Return for each client whether it was selected, from a hexadecimal number with bit i for client i. */
function pickedIn(hex, clients) {
  return Uint8Array.from({ length: clients }, (_, i) => (parseInt(hex.at(-1 - (i >> 2)) ?? "0", 16) >> (i & 3)) & 1);
}

/** Return what was expected of a client after a round, from 0 to 1; null where nothing was. */
function belief(run, round, client) {
  const code = run.beliefs?.[round - 1]?.charCodeAt(client);
  return Number.isFinite(code) ? (code - 35) / 56 : null;
}

const lastRound = () => Math.max(1, ...data.runs.map((run) => run.rounds));

const seeds = () => [...new Set(data.runs.map((run) => run.seed))].sort((a, b) => a - b);

/** Return the groups that are switched on, each with its runs that are. */
function groupsShown() {
  return data.groups
    .map((group, index) => ({ ...group, index, runs: group.runs.filter((run) => !view.seedsOff.has(run.seed)) }))
    .filter((group) => !view.off.has(group.label) && group.runs.length);
}

/** Return the run looked at in detail. */
const runShown = () => data.runs[view.run];

/** Return the round that a run is shown in: the one chosen, or its last if it ended before. */
const roundOf = (run) => Math.min(view.round, run.rounds);

/** Return which run to look at first: the one whose clusters change most often. */
function mostTelling() {
  const changes = data.runs.map((run) => run.assignment.length);
  return Math.max(0, changes.indexOf(Math.max(...changes)));
}

/** Return the mean over runs, for the rounds that all of them have. */
function meanCurve(runs, values) {
  const length = Math.min(...runs.map((run) => run.rounds));
  return Array.from({ length }, (_, t) => mean(runs.map((run) => values(run)[t])));
}

/** Return the mean of the numbers that are finite. */
function mean(numbers) {
  const known = numbers.filter(Number.isFinite);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : NaN;
}

/** Return the accuracy of every edge of a run, the mean over the last rounds up to one. */
function edgeMeans(run, round) {
  const rows = run.edges.slice(Math.max(0, round - run.last), round);
  return rows[0].map((_, edge) => mean(rows.map((row) => row[edge])));
}
