// Updates of a run arrive as JSON {run, deltas}. Each repeats a few deltas before it, since Gradio may show a busy page
// only the newest value. Deltas are applied in order, each once; what is missing after all is asked for.

const ASK_AGAIN = 400; // milliseconds

export class Feed {
  constructor({ begin, apply, refuse, ask }) {
    Object.assign(this, { begin, apply, refuse, ask });
    this.run = null;
    this.gaps = 0; // times a delta had to be asked for, for the tests
  }

  receive(json) {
    if (!json) return;
    const message = JSON.parse(json);
    if (message.refused) return this.refuse(message.refused);
    if (message.run === this.dropped) return;
    if (message.run !== this.run) {
      this.run = message.run;
      this.next = 0;
      this.early = new Map();
      this.begin();
    }
    this.#take(message.deltas);
  }

  // After Clear: what still comes of this run is not wanted.
  drop() {
    this.dropped = this.run;
  }

  // The server's answer to a question about missing deltas.
  recover(json) {
    const message = JSON.parse(json);
    if (message.run === this.run && message.run !== this.dropped) this.#take(message.deltas);
  }

  #take(deltas) {
    for (const delta of deltas) if (delta.seq >= this.next) this.early.set(delta.seq, delta);
    while (this.early.has(this.next)) {
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
    this.asked = now;
    this.gaps += 1;
    this.ask({ ask: "missed", from: this.next });
  }
}
