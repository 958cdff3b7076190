// A run's life on the page: pressed, waiting, decoding, stopped or done, cut off; and what was written stays until the
// next run writes. There is one at a time: the page names it, and hears no other.

import { Feed } from "./feed.js";
import { Kept } from "./kept.js";
import { LANES, OVER } from "./schema.js";
import { everywhere, said, text } from "./words.js";

const BUSY = new Set(["queued", "loading", "running", "stopping"]);
const TICK = 250; // milliseconds between looks at Gradio's toasts and at how long nothing was heard
const CALL = 2000; // milliseconds between calls to a server that is away
const GONE = /connection|server stopped/i; // what Gradio says of a server that does not answer

const news = (delta, kind) => LANES.map((lane) => delta[lane]?.[kind]).find(Boolean);
const writes = (delta) => news(delta, "rounds") || news(delta, "ghost") || delta.phase === "done";

export class Run {
  // send(event, data) triggers a Gradio event of the feed. clear() empties the page, apply(delta) draws into it, show()
  // draws the phase; began() and refused() are told what became of a press.
  constructor({ send, began, refused, clear, apply, show }) {
    Object.assign(this, { send, began, clear, apply, show });
    this.feed = new Feed({
      apply: (delta) => this.#take(delta),
      refuse: (message) => {
        this.#fail(message);
        refused();
      },
      ask: (question) => send("ask", question),
      lost: () => this.#lose(),
    });
    this.kept = new Kept();
    this.phase = "idle";
    this.details = {};
    this.note = null; // key of a remark about what was pressed last
    this.lost = false; // the server is away
    setInterval(() => this.#tick(), TICK);
    addEventListener("pagehide", () => this.kept.save());
    // A page out of the browser's history has lost its session.
    addEventListener("pageshow", (event) => event.persisted && location.reload());
  }

  get busy() {
    return BUSY.has(this.phase);
  }

  press() {
    if (this.busy) return;
    if (this.lost) return this.#lose();
    // Of what stands on the page, nothing is lost by a run that never writes.
    this.held = this.kept.wrote ? [] : null; // its news until then
    if (!this.held) this.#empty();
    this.feed.expect(`${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`);
    // The stop of the run before may be overtaken on its way.
    this.send("begin", { run: this.feed.run, after: this.halted });
    this.#set("queued");
    this.began();
  }

  stop() {
    if (!this.busy) return this.lost ? this.#lose() : this.say("nothing");
    this.#halt();
    if (this.phase !== "queued") return this.#set("stopping");
    this.feed.expect(null);
    this.#set("left", this.details);
  }

  reset() {
    if (this.busy) this.#halt();
    this.feed.expect(null);
    this.#empty();
    this.#set("idle");
  }

  // After a reload the page shows what it showed before.
  restore() {
    const whole = this.kept.load();
    if (whole) this.apply(whole);
    this.show();
  }

  say(key) {
    this.note = key;
    this.show();
  }

  // What the status line says; null where that is up to the models.
  sentence() {
    const { phase, details } = this;
    if (this.note) return text(this.note);
    if (phase === "error") return said(details.message);
    if (phase === "queued") return details.a ? text("queued", details) : text("starting");
    if (phase === "loading") return text("waits") + said(details.message);
    if (phase === "left" && !details.a) return text("unbegun");
    const [done, total] = (phase === "running" && this.held?.map((delta) => news(delta, "prefill")).findLast(Boolean)) || [];
    if (total) return text("reading", { a: done, b: total });
    return phase === "idle" ? null : text(phase);
  }

  #halt() {
    this.halted = this.feed.run;
    this.send("halt", { run: this.halted });
  }

  #empty() {
    this.kept.clear();
    this.shown = null;
    this.clear();
  }

  // While another result stands on the page, a run's news is held back until its first token.
  #take(delta) {
    if (this.held) {
      this.held.push(delta);
      if (writes(delta)) {
        const all = this.held;
        this.held = null;
        this.#empty();
        all.forEach((one) => this.#draw(one));
      }
    } else this.#draw(delta);
    if (delta.phase) this.#hear(delta);
    else if (this.held) this.show();
  }

  #draw(delta) {
    this.kept.add(delta);
    this.shown = this.feed.run;
    this.apply(delta);
  }

  #hear({ phase, ...details }) {
    if (this.phase === "stopping" && !OVER.includes(phase)) return; // the last updates before a stop takes effect
    this.#set(phase, details);
  }

  #set(phase, details = {}) {
    if (!BUSY.has(phase)) this.held = null;
    Object.assign(this, { phase, details, note: null });
    this.show();
  }

  #fail(message) {
    this.#set("error", { message });
    this.feed.expect(null);
  }

  #lose() {
    if (!this.lost) this.since = performance.now();
    this.lost = true;
    this.#fail(everywhere("lost"));
  }

  // A call was answered: the server is back, everything begins anew, and what is on the page is kept. An answer to a call
  // from before it went away says nothing.
  answered(call) {
    if (this.lost && call >= this.since) location.reload();
  }

  // A lost server is known to Gradio alone, which says it in a toast. Here it stands in the status line,
  // where it covers nothing.
  #hearToasts() {
    for (const line of document.querySelectorAll(".toast-body.error [data-testid='toast-text']:not([data-heard])")) {
      line.dataset.heard = "";
      line.closest(".toast-body").querySelector("[data-testid='toast-close']")?.click();
      if (GONE.test(line.textContent)) return this.#lose();
      if (this.busy) this.#halt();
      const told = line.textContent.trim();
      this.#fail({ en: told, ja: told });
    }
  }

  #tick() {
    if (this.busy) this.feed.watch();
    this.#hearToasts();
    const now = performance.now();
    if (!this.lost || now - (this.called ?? 0) < CALL) return;
    this.called = now;
    this.send("ask", { ask: "there", id: now }); // and Gradio, too, notices
  }
}
