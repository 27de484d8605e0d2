// The two slot timelines and the queue, as one SVG on one time axis.

const LEFT = 34;
const RIGHT = 10;
const TITLE = 24;
const QUEUE = 70; // height of the queue's panel
const KINDS = ["zombie", "decode", "prefill"]; // drawn in this order: a short prompt stays visible

/** Draw a result into `box`; `pick(side, time)` is called where the reader clicks. */
export function draw(box, result, colors, pick) {
  const width = Math.max(280, box.clientWidth);
  const x = (time) => LEFT + (time / result.until) * (width - LEFT - RIGHT);
  const sides = Object.keys(result.runs);
  const slots = result.settings.slots;
  const lane = slots > 8 ? 12 : 17;
  const panels = sides.map((side, at) => ({ side, top: at * (TITLE + slots * lane + 12), height: TITLE + slots * lane }));
  const queueTop = panels.at(-1).top + panels.at(-1).height + 12;
  const bottom = queueTop + TITLE + QUEUE;
  const parts = panels.map((panel) => timeline(panel, result, colors, x, lane));
  parts.push(queue(result, colors, x, queueTop, width), axis(result.until, x, bottom, width));
  parts.push(`<line class="pg-cursor" y1="0" y2="${bottom}" x1="-9" x2="-9"/>`);
  box.innerHTML =
    `<svg role="img" aria-label="${label(result)}" width="${width}" height="${bottom + 40}">` +
    `<defs><pattern id="pg-hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
    `<line class="pg-hatch" y2="5"/></pattern></defs>${parts.join("")}</svg>`;
  const svg = box.firstChild;
  svg.addEventListener("click", (event) => {
    const from = svg.getBoundingClientRect();
    const y = event.clientY - from.top;
    const panel = panels.find((one) => y >= one.top && y < one.top + one.height);
    const time = ((event.clientX - from.left - LEFT) / (width - LEFT - RIGHT)) * result.until;
    if (panel && time >= 0) pick(panel.side, time);
  });
  return (time) => moveCursor(svg, x(time));
}

export const nameOf = (run) => run.policy.split("(")[0];

function label(result) {
  const told = Object.entries(result.runs).map(
    ([side, run]) => `${side}, ${nameOf(run)}: ${percent(run)} of the rows useful`,
  );
  return `What each slot computed over ${result.until.toFixed(1)} seconds. ${told.join("; ")}. The numbers are in the table below.`;
}

const percent = (run) => `${Math.round(100 * run.metrics.slot_efficiency)}%`;

function moveCursor(svg, at) {
  const line = svg.querySelector(".pg-cursor");
  line.setAttribute("x1", at);
  line.setAttribute("x2", at);
}

function timeline(panel, result, colors, x, lane) {
  const run = result.runs[panel.side];
  const top = panel.top + TITLE;
  const paths = Object.fromEntries(KINDS.map((kind) => [kind, ""]));
  for (const [slot, start, end, , kind] of run.spans) {
    const y = top + slot * lane + 1;
    const [from, to] = [x(start).toFixed(2), x(end).toFixed(2)];
    paths[kind] += `M${from} ${y}H${to}V${y + lane - 2}H${from}Z`;
  }
  const color = colors[nameOf(run)];
  const shapes = KINDS.map((kind) => {
    const fill = kind === "decode" ? `fill="${color}"` : "";
    return `<path class="pg-${kind}" ${fill} d="${paths[kind]}"/>`;
  });
  const last = result.settings.slots - 1;
  const names = [0, last].map(
    (slot) => `<text x="${LEFT - 6}" y="${top + slot * lane + lane - 4}" text-anchor="end">${slot}</text>`,
  );
  return (
    `<text class="pg-title" x="0" y="${panel.top + 16}">${panel.side}: ${nameOf(run)}, ` +
    `${percent(run)} of the rows useful</text>${names.slice(0, last ? 2 : 1).join("")}${shapes.join("")}`
  );
}

function queue(result, colors, x, top, width) {
  const runs = Object.values(result.runs);
  const most = Math.max(1, ...runs.flatMap((run) => run.queue.map(([, waiting]) => waiting)));
  const y = (waiting) => top + TITLE + QUEUE * (1 - waiting / most);
  const lines = runs.map((run, at) => {
    const points = run.queue.map(([time, waiting]) => `H${x(time).toFixed(2)}V${y(waiting).toFixed(2)}`);
    const dashes = at ? "" : 'stroke-dasharray="5 3"'; // A and B can be the same policy
    return `<path class="pg-queue" stroke="${colors[nameOf(run)]}" ${dashes} d="M${x(0)} ${y(0)}${points.join("")}"/>`;
  });
  return (
    `<text class="pg-title" x="0" y="${top + 16}">Requests waiting (A dashed, B solid)</text>` +
    `<text x="${LEFT - 6}" y="${y(most) + 8}" text-anchor="end">${most}</text>` +
    `<text x="${LEFT - 6}" y="${y(0)}" text-anchor="end">0</text>` +
    `<line class="pg-axis" x1="${LEFT}" x2="${width - RIGHT}" y1="${y(0)}" y2="${y(0)}"/>${lines.join("")}`
  );
}

function axis(until, x, top, width) {
  const rough = until / Math.max(3, width / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((by) => by * power).find((one) => one >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  let ticks = "";
  for (let at = 0; at * step <= until; at += 1) {
    const time = at * step;
    ticks += `<line class="pg-axis" x1="${x(time)}" x2="${x(time)}" y1="${top}" y2="${top + 4}"/>`;
    ticks += `<text x="${x(time)}" y="${top + 18}" text-anchor="middle">${time.toFixed(digits)}</text>`;
  }
  return `${ticks}<text x="${width - RIGHT}" y="${top + 34}" text-anchor="end">time (s)</text>`;
}
