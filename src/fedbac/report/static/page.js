// The page: switches, the round, the choice of a run, and new data while runs are running.

const place = document.getElementById("figures");
const methodFigures = [ACCURACY, COST, FAIRNESS, CLUSTERS, TRAFFIC].map((spec) => new Figure(spec));
const runFigures = [FLOW, EDGES, MIX, CLIENTS, GAPS].map((spec) => new Figure(spec));
const figures = [...methodFigures, ...runFigures];

const slider = html("input", { type: "range", id: "round", min: 1, step: 1 });
const roundText = html("output", { htmlFor: "round" });
const methodChips = html("div", { className: "chips" });
const seedChips = html("div", { className: "chips" });
const runChoice = html("select", { id: "run" });
const live = document.getElementById("live"); // only where there is a server to follow

/** Put together what does not change; parts that depend on the runs are filled in later. */
function build() {
  const button = (text, on) => html("button", { type: "button", onclick: () => switchAll(on) }, text);
  slider.addEventListener("input", () => setRound(+slider.value));
  runChoice.addEventListener("change", () => {
    view.run = +runChoice.value;
    for (const figure of runFigures) figure.row = 0;
    redraw(runFigures);
  });
  place.replaceChildren(
    html("h2", {}, "Figures"),
    html("div", { id: "controls" }, html("label", { htmlFor: "round" }, "Round"), slider, roundText),
    html("fieldset", { id: "methods" }, html("legend", {}, "Methods"), methodChips, html("div", { className: "both" }, button("All", true), button("None", false))),
    html("fieldset", { id: "seeds" }, html("legend", {}, "Seeds"), seedChips),
    html("div", { className: "grid" }, ...methodFigures.map((figure) => figure.element)),
    html("div", { id: "choice" }, html("h2", {}, "One run in detail"), html("label", { htmlFor: "run" }, "Run "), runChoice),
    html("div", { className: "grid" }, ...runFigures.map((figure) => figure.element)),
  );
  document.body.append(tip.node);
  document.addEventListener("keydown", onKey);
  let width = 0;
  new ResizeObserver(() => {
    if (place.clientWidth !== width) {
      width = place.clientWidth;
      redrawAll();
    }
  }).observe(place);
}

/** Move by the keyboard in the figure that has the focus: the round sideways, rows up and down. */
function onKey(event) {
  if (event.key === "Escape") tip.hide();
  const figure = figures.find((one) => one.svg === document.activeElement);
  if (!figure || event.ctrlKey || event.altKey || event.metaKey) return;
  const rounds = { ArrowLeft: view.round - 1, ArrowRight: view.round + 1, Home: 1, End: lastRound() };
  const rows = { ArrowUp: -1, ArrowDown: 1 };
  if (event.key in rounds) setRound(rounds[event.key]);
  else if (event.key in rows && figure.rows) figure.row = Math.min(Math.max(figure.row + rows[event.key], 0), figure.rows(figure) - 1);
  else return;
  event.preventDefault();
  figure.tell();
}

/** Show another round in all figures. */
function setRound(round) {
  view.round = Math.min(Math.max(round, 1), lastRound());
  showRound();
  for (const figure of figures) figure.remark();
}

function showRound() {
  slider.max = lastRound();
  slider.value = view.round;
  slider.disabled = lastRound() === 1;
  slider.setAttribute("aria-valuetext", `round ${view.round} of ${lastRound()}`);
  roundText.textContent = `${view.round} of ${lastRound()}`;
}

function switchAll(on) {
  view.off = new Set(on ? [] : data.groups.map((group) => group.label));
  fillControls();
  redrawAll();
}

/** Make a switch with a name and a colour. */
function chip(name, on, colour, dash, change) {
  const input = html("input", { type: "checkbox", checked: on });
  input.addEventListener("change", () => {
    change(input.checked);
    redrawAll();
  });
  const mark = html("span", { className: dash ? "swatch dashed" : "swatch", style: `--of:${colour}` });
  return html("label", { className: "chip" }, input, ...(colour ? [mark] : []), name);
}

const flip = (set, value) => (on) => (on ? set.delete(value) : set.add(value));

function fillControls() {
  const seed = seeds();
  methodChips.replaceChildren(...data.groups.map(({ label, colour, dash }) => chip(label, !view.off.has(label), colour, dash, (on) => flip(view.off, label)(on))));
  seedChips.replaceChildren(...seed.map((one) => chip(String(one), !view.seedsOff.has(one), "", "", flip(view.seedsOff, one))));
  seedChips.parentElement.hidden = seed.length < 2;
  methodChips.parentElement.hidden = data.groups.length < 2;
  runChoice.replaceChildren(...data.runs.map((run, i) => html("option", { value: i }, run.label)));
  runChoice.value = view.run;
}

function redraw(some) {
  if (data.runs.length) for (const figure of some) figure.redraw();
}

const redrawAll = () => redraw(figures);

/** Show a document, the first or a newer one. */
function show(document) {
  const choices = () => JSON.stringify([data.groups.map((group) => group.label), data.runs.map((run) => run.label), seeds()]);
  const before = choices();
  take(document);
  place.hidden = !data.runs.length;
  if (before !== choices()) fillControls();
  showRound();
  redrawAll();
}

/** Follow the server: parts of text and figures change when runs have new rounds. */
function follow() {
  live.textContent = data.status;
  const events = new EventSource(`events?after=${data.version}`);
  events.addEventListener("message", (event) => {
    const { parts, document: fresh } = JSON.parse(event.data);
    for (const [name, text] of Object.entries(parts)) replacePart(name, text);
    show(fresh);
    live.textContent = fresh.status;
    live.classList.remove("lost");
  });
  events.addEventListener("error", () => {
    live.textContent = "Not connected: the server has ended. This page keeps what it showed last.";
    live.classList.add("lost");
  });
}

const shownText = new Map();

/** Replace a part of text, if it is another; what a reader has opened stays open. */
function replacePart(name, text) {
  const part = document.querySelector(`[data-part="${name}"]`);
  if (shownText.get(name) === text) return;
  const open = [...part.querySelectorAll("details")].map((details) => details.open);
  part.innerHTML = text; // made by the server, which escapes names; the page's policy lets no script in it run
  shownText.set(name, text);
  [...part.querySelectorAll("details")].forEach((details, i) => (details.open = open[i] ?? false));
}

build();
show(JSON.parse(document.getElementById("document").textContent));
if (live) follow();
