// The playground page: controls, state in the address, and a worker that runs the book's package.

import { draw, nameOf } from "./draw.js";
import { Stepper } from "./steps.js";

const PAUSE = 120; // milliseconds without a change before a simulation starts
const at = (id) => document.getElementById(`pg-${id}`);
const folder = new URL(".", import.meta.url);

let page = null; // page.json: the controls, from the package itself
let state = {}; // every setting by name, and where the stepper is: side and step
let worker = null;
let stepper = null;
let shown = null; // the last answer that is on the page
let cursor = () => {};
let ready = false;
let busy = false;
let stale = false; // something changed while the worker was busy
let timer = null;
let addressTimer = null;
const waiting = new Map(); // questions that the worker has not answered yet
let lastId = 0;

// -- the worker ---------------------------------------------------------------------------------

function ask(asked) {
  return new Promise((resolve, reject) => {
    lastId += 1;
    waiting.set(lastId, { resolve, reject });
    worker.postMessage({ id: lastId, asked });
  });
}

function startWorker() {
  return new Promise((resolve, reject) => {
    worker = new Worker(new URL("worker.js", folder), { type: "module" });
    worker.onerror = (event) => reject(new Error(event.message || "the worker could not be started"));
    worker.onmessage = ({ data }) => {
      if (data.status) say(data.status);
      else if (data.ready) resolve();
      else if (!data.id) reject(new Error(data.failed));
      else {
        const { resolve: answered, reject: failed } = waiting.get(data.id);
        waiting.delete(data.id);
        if (data.failed) failed(new Error(data.failed));
        else answered(JSON.parse(data.text));
      }
    };
    worker.postMessage({ load: page.pyodide });
  });
}

// -- settings -----------------------------------------------------------------------------------

const sides = () => Object.keys(page.sides);
const policyOf = (side) => `policy_${side.toLowerCase()}`;

function defaults() {
  const values = Object.fromEntries(page.controls.map((control) => [control.name, control.default]));
  for (const side of sides()) values[policyOf(side)] = page.sides[side];
  return { ...values, side: "A", step: 0 };
}

function settings() {
  const { side, step, ...rest } = state;
  return rest;
}

/** A text of the address as a number where it is one; what is not, the package itself refuses. */
function read(name, text) {
  if (name === "side" || name.startsWith("policy_")) return text;
  return text.trim() === "" || Number.isNaN(Number(text)) ? text : Number(text);
}

function fromAddress() {
  state = defaults();
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (name in state) state[name] = read(name, text);
  }
  if (!(state.side in page.sides)) state.side = "A";
}

/** Soon, not at once: some browsers refuse more than a few changes of the address a second. */
function toAddress() {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(writeAddress, PAUSE);
}

function writeAddress() {
  const first = defaults();
  const changed = Object.entries(state).filter(([name, value]) => value !== first[name]);
  const hash = new URLSearchParams(changed).toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

// -- controls -----------------------------------------------------------------------------------

function buildControls() {
  const choices = page.policies.map((name) => `<option>${name}</option>`).join("");
  const selects = sides().map(
    (side) =>
      `<div class="pg-control"><label for="pg-${policyOf(side)}">Policy ${side}</label>` +
      `<select id="pg-${policyOf(side)}" data-name="${policyOf(side)}">${choices}</select></div>`,
  );
  at("controls").innerHTML =
    `<fieldset><legend>Policies and requests</legend>${selects.join("")}${page.controls.map(slider).join("")}` +
    `<button type="button" id="pg-reset">Back to the first settings</button></fieldset>`;
  at("controls").addEventListener("input", ({ target }) => {
    state[target.dataset.name] = read(target.dataset.name, target.value);
    changed();
  });
  at("reset").addEventListener("click", () => {
    state = defaults();
    changed();
  });
}

function slider({ name, label, low, high, step, note, whole }) {
  const type = whole && high > 1000 ? "number" : "range"; // nobody finds one of 10000 with a slider
  return (
    `<div class="pg-control"><label for="pg-${name}">${label}</label>` +
    `<input type="${type}" id="pg-${name}" data-name="${name}" min="${low}" max="${high}" step="${step}" ` +
    `aria-describedby="pg-${name}-note"><output for="pg-${name}"></output>` +
    `<small id="pg-${name}-note">${note}</small></div>`
  );
}

/** Make the controls show the state; one that is being typed in is left alone. */
function reflect() {
  for (const input of at("controls").querySelectorAll("[data-name]")) {
    const value = state[input.dataset.name];
    if (input.type !== "number" || input !== document.activeElement) input.value = value;
    const output = input.nextElementSibling;
    if (output?.tagName === "OUTPUT" && input.type === "range") output.textContent = value;
  }
  const chosen = sides().map((side) => state[policyOf(side)]);
  at("budget").disabled = !chosen.includes("Chunked");
  at("max_wait").disabled = !chosen.includes("Dynamic");
}

// -- simulating and showing ---------------------------------------------------------------------

function say(text) {
  at("status").textContent = text;
}

function changed() {
  reflect();
  toAddress();
  clearTimeout(timer);
  timer = setTimeout(simulate, PAUSE);
}

async function simulate() {
  if (busy || !ready) {
    stale = busy;
    return;
  }
  busy = true;
  say("Simulating …");
  const started = performance.now();
  try {
    show(await ask({ settings: settings() }), started);
  } catch (error) {
    show({ error: error.message }, started);
  }
  busy = false;
  if (stale) {
    stale = false;
    simulate();
  }
}

function show(answer, started) {
  at("error").textContent = answer.error ?? "";
  at("results").classList.toggle("pg-old", Boolean(answer.error));
  if (answer.error) {
    say("Not simulated: the picture still shows the settings before.");
    return;
  }
  shown = answer;
  redraw();
  at("numbers").innerHTML = numbers(answer);
  const { runs } = answer.result;
  stepper.side = state.side;
  stepper.step = state.step;
  stepper.show(byside((side) => runs[side].steps.length), byside((side) => nameOf(runs[side])));
  say(`Simulated in ${((performance.now() - started) / 1000).toFixed(1)} s.`);
  at("results").result = answer.result; // for the tests
}

const byside = (of) => Object.fromEntries(sides().map((side) => [side, of(side)]));

function redraw() {
  if (!shown) return;
  const { runs } = shown.result;
  cursor = draw(at("picture"), shown.result, page.colors, (side, time) => {
    const next = runs[side].steps.findIndex((step) => step.start > time);
    stepper.go(side, (next < 0 ? runs[side].steps.length : next) - 1);
  });
  const both = sides().map((side) => page.colors[nameOf(runs[side])]);
  at("key").style.background = `linear-gradient(90deg, ${both[0]} 50%, ${both[1]} 50%)`;
  mark(state.side, state.step);
}

/** Draw again when the room for the picture changes. Its height does at every drawing, so it is not asked. */
function watchWidth() {
  let width = at("picture").clientWidth;
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    requestAnimationFrame(redraw);
  }).observe(at("picture"));
}

function mark(side, step) {
  const steps = shown.result.runs[side]?.steps ?? [];
  if (steps[step]) cursor(steps[step].start);
}

function numbers({ result, table, sentences }) {
  const heads = sides().map((side) => `<th scope="col">${side}: ${nameOf(result.runs[side])}</th>`);
  const rows = table.map(
    ([what, ...cells]) => `<tr><th scope="row">${what}</th>${cells.map((cell) => `<td>${cell}</td>`).join("")}</tr>`,
  );
  return (
    `<table class="pg-numbers"><caption>Simulated</caption><thead><tr><td></td>${heads.join("")}</tr></thead>` +
    `<tbody>${rows.join("")}</tbody></table>${sentences.map((one) => `<p>${escape(one)}</p>`).join("")}`
  );
}

const escape = (text) => text.replace(/[&<]/g, (sign) => (sign === "&" ? "&amp;" : "&lt;"));

// -- the start ----------------------------------------------------------------------------------

async function start() {
  const told = await fetch(new URL("page.json", folder));
  if (!told.ok) throw new Error("this book was built without its program; build it with make html");
  page = await told.json();
  fromAddress();
  buildControls();
  reflect();
  stepper = new Stepper(
    at("steps"),
    async (side, step) => (await ask({ settings: shown.result.settings, side, step })).step,
    (side, step) => {
      Object.assign(state, { side, step });
      toAddress();
      mark(side, step);
    },
  );
  watchWidth();
  addEventListener("hashchange", () => {
    fromAddress();
    changed();
  });
  if (page.pyodide.startsWith("http")) at("cdn").hidden = false;
  await startWorker();
  ready = true;
  await simulate();
}

start().catch((error) => {
  const away = page?.pyodide.startsWith("http") ? " It needs the network, or a book that was built with npm." : "";
  say("The playground could not be started.");
  at("error").textContent = error.message + away;
});
