// Step by step: play, pause, next and back through the steps of one of the two runs.

const PACE = 500; // milliseconds a step while playing

const button = (id, text) => `<button type="button" id="${id}">${text}</button>`;

export class Stepper {
  /** `ask(side, step)` gives a step in words; `moved(side, step)` is told where the reader is. */
  constructor(box, ask, moved) {
    Object.assign(this, { ask, moved, side: "A", step: 0, counts: {}, timer: null, asked: 0 });
    box.innerHTML =
      `<div class="pg-buttons"><label for="pg-side">Steps of</label><select id="pg-side"></select>` +
      button("pg-back", "Back") + button("pg-play", "Play") + button("pg-next", "Next") + `</div>` +
      `<div class="pg-control"><label for="pg-step">Step</label>` +
      `<input type="range" id="pg-step" min="1" max="1" value="1"><output for="pg-step">1</output></div>` +
      `<div id="pg-told" aria-live="polite"></div>`;
    this.at = (id) => box.querySelector(`#pg-${id}`);
    this.at("back").addEventListener("click", () => this.go(this.side, this.step - 1));
    this.at("next").addEventListener("click", () => this.go(this.side, this.step + 1));
    this.at("play").addEventListener("click", () => this.play(this.timer === null));
    this.at("step").addEventListener("input", (event) => this.go(this.side, Number(event.target.value) - 1));
    this.at("side").addEventListener("change", (event) => this.go(event.target.value, this.step));
  }

  /** A new result: how many steps each side has, and the names of the policies. */
  show(counts, names) {
    this.counts = counts;
    const options = Object.keys(counts).map((side) => `<option value="${side}">${side}: ${names[side]}</option>`);
    this.at("side").innerHTML = options.join("");
    return this.go(this.side, this.step);
  }

  async go(side, step) {
    if (!(this.side in this.counts)) return; // nothing is simulated yet
    this.side = side in this.counts ? side : Object.keys(this.counts)[0];
    const last = this.counts[this.side] - 1;
    this.step = Math.min(Math.max(0, Math.trunc(step) || 0), last);
    if (this.step === last) this.play(false);
    this.reflect(last);
    this.moved(this.side, this.step);
    const turn = (this.asked += 1);
    const told = await this.ask(this.side, this.step);
    if (told && turn === this.asked) this.tell(told); // else the reader has gone on meanwhile
  }

  reflect(last) {
    this.at("side").value = this.side;
    const slider = this.at("step");
    slider.max = last + 1;
    slider.value = this.step + 1;
    slider.nextElementSibling.textContent = `${this.step + 1} of ${last + 1}`;
    // Not `disabled`: that would take the keyboard's focus away at the ends.
    this.at("back").setAttribute("aria-disabled", this.step === 0);
    this.at("next").setAttribute("aria-disabled", this.step === last);
  }

  play(on) {
    clearInterval(this.timer);
    this.timer = on ? setInterval(() => this.go(this.side, this.step + 1), PACE) : null;
    this.at("play").textContent = on ? "Pause" : "Play";
    this.at("told").setAttribute("aria-live", on ? "off" : "polite"); // twice a second is too much to hear
  }

  tell(told) {
    const rows = told.slots.map(
      ([slot, request, kind, words]) =>
        `<tr class="pg-is-${kind}"><td>${slot}</td><td>${request}</td><td>${words}</td></tr>`,
    );
    this.at("told").innerHTML =
      `<p><strong>${told.title}.</strong> ${told.work}</p><div class="pg-scroll"><table class="pg-slots">` +
      `<thead><tr><th>slot</th><th>request</th><th>what it does in this step</th></tr></thead>` +
      `<tbody>${rows.join("")}</tbody></table></div>` +
      `<p><strong>Queue (${told.queue.length}):</strong> ${told.queue.join(", ") || "empty"}</p>`;
  }
}
