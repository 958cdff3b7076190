// Updates of a run arrive as JSON {run, deltas}. Deltas are numbered and applied in order, each once. Gradio may show a
// busy page only the newest value, and a connection may be cut: what is missing is asked for.

const ASK_AGAIN = 400; // milliseconds until an unanswered question about missing deltas is put again
const SILENCE = 2500; // milliseconds without a word, beats included, after which the page asks of itself
const UNANSWERED = 6; // such questions in a row without a word from the server, or that it does not know the run

export class Feed {
  // ask(question) sends one to the server; lost() is told that the run has no server any more.
  constructor({ apply, refuse, ask, lost }) {
    Object.assign(this, { apply, refuse, ask, lost });
    this.run = null;
    this.gaps = 0; // times a delta had to be asked for, for the tests
  }

  // From now on this run is heard, and no other: after Clear, what still comes of the last one is not wanted.
  expect(run) {
    this.run = run;
    this.next = 0;
    this.early = new Map();
    this.asked = this.silent = 0;
    this.heard = performance.now();
  }

  receive(json) {
    const message = JSON.parse(json);
    if (!this.run || message.run !== this.run) return;
    this.heard = performance.now();
    this.silent = 0;
    if (message.refused) this.refuse(message.refused);
    else this.#take(message.deltas);
  }

  // The server's answer to a question about missing deltas.
  recover({ run, update, unknown }) {
    if (update) this.receive(update);
    else if (unknown && run === this.run && this.next) this.lost(); // else it may still be on its way there
  }

  // Called now and then while a run goes on.
  watch() {
    if (!this.run) return;
    const now = performance.now();
    if (this.early.size) this.#askForMissing();
    else if (now - this.heard > SILENCE && now - this.asked > SILENCE) {
      this.silent += 1;
      if (this.silent > UNANSWERED) this.lost();
      else this.#ask(now);
    }
  }

  #take(deltas) {
    const run = this.run;
    for (const delta of deltas) if (delta.seq >= this.next) this.early.set(delta.seq, delta);
    while (this.run === run && this.early.has(this.next)) {
      const delta = this.early.get(this.next);
      this.early.delete(this.next);
      this.next += 1;
      this.apply(delta);
    }
    if (this.early.size) this.#askForMissing();
  }

  #askForMissing() {
    const now = performance.now();
    if (this.asked && now - this.asked < ASK_AGAIN) return;
    this.gaps += 1;
    this.#ask(now);
  }

  #ask(now) {
    this.asked = now;
    this.ask({ ask: "missed", run: this.run, from: this.next, id: now });
  }
}
