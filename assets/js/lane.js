// One lane: exact text, its tokens in colour, the ghost of the draft being verified, and its figures.

import { Roving } from "./rove.js";
import { firstChain, spell, tokenSpan, untranslated } from "./tokens.js";
import { count, few, milliseconds, percent, rate, ratio } from "./format.js";
import { language, noDraft, text } from "./words.js";

const SILENT = 3; // rounds in a row without a draft before the lane says why: a lookup pauses all the time
const NEAR_END = 48; // pixels from the bottom that still count as reading along

export class Lane {
  constructor(element) {
    this.name = element.dataset.lane;
    this.element = element;
    this.box = element.querySelector(".sd-text");
    this.progress = element.querySelector(".sd-progress");
    this.empty = this.box.firstElementChild;
    this.box.addEventListener("copy", (event) => this.#copySelection(event));
    this.roving = new Roving(this.box, ".round .tok", ["ArrowLeft", "ArrowRight"]);
    this.clear();
  }

  clear(message = `empty_${this.name}`) {
    this.parts = [];
    this.maximum = 0;
    this.tokens = 0;
    this.ghostSpan = this.paragraph = null;
    this.reason = this.message = this.why = this.draftContext = null;
    this.silent = 0; // newest rounds without a draft
    this.box.replaceChildren(this.empty);
    this.roving.release();
    untranslated(this.box, false);
    this.#say(message);
    this.element.classList.toggle("off", message === "not_run");
    this.element.classList.remove("trees");
    for (const figure of this.element.querySelectorAll("[data-n]")) figure.textContent = "–";
    this.retranslate();
    this.#setProgress();
  }

  // What the lane's decoder says first. A draft that cannot even read the prompt is told at once.
  open({ prompt_tokens: prompt, draft_context: context }) {
    this.draftContext = context;
    if (context != null && prompt >= context) [this.why, this.silent] = ["draft_full", SILENT];
    this.retranslate();
  }

  start(maximum) {
    this.maximum = maximum;
    this.#setProgress();
  }

  get text() {
    return this.parts.join("");
  }

  reading(done, total) {
    if (!this.parts.length) this.#say("reading", { a: count(done), b: count(total) });
  }

  ghost({ texts, parents }) {
    this.#append(() => {
      this.ghostSpan = document.createElement("span");
      this.ghostSpan.className = "ghosts";
      this.ghostSpan.setAttribute("aria-hidden", "true");
      firstChain(texts.length, parents).forEach((node) => {
        const span = document.createElement("span");
        span.className = "tok ghost dropped";
        this.ghostSpan.append(spell(span, texts[node]));
      });
      this.#open().append(this.ghostSpan);
    });
  }

  rounds(list) {
    this.#append(() => list.forEach((round) => this.#write(round)));
    // The last token never has a draft: that says nothing of the rounds before it.
    for (const { why } of list.filter((round) => round.why !== "no_room")) {
      this.silent = why ? this.silent + 1 : 0;
      this.why = why;
    }
    this.retranslate();
    this.#setProgress();
  }

  end({ reason, message }) {
    this.#dropGhost();
    if (!this.parts.length) this.box.replaceChildren();
    this.reason = reason;
    this.message = message;
    this.retranslate();
  }

  retranslate() {
    const remark = this.message?.[language] ?? (this.silent >= SILENT ? noDraft(this.why, this.draftContext) : null);
    const parts = [this.reason && text(`end_${this.reason}`), remark].filter(Boolean);
    const ending = this.element.querySelector('[data-n="ending"]');
    ending.textContent = parts.map((part) => ` · ${part}`).join("");
    ending.title = remark ?? ""; // where the line is too short for it
  }

  numbers(n) {
    const shown = {
      rate: rate(n.rate),
      ttft: milliseconds(n.ttft),
      tpot: milliseconds(n.tpot),
      end_to_end: rate(n.end_to_end),
      per_pass: ratio(n.per_pass),
      alpha: percent(n.alpha),
      expected_alpha: percent(n.expected_alpha),
      draft_acceptance: percent(n.draft_acceptance),
      nodes: n.nodes == null ? "–" : `${few(n.nodes)} · ${few(n.depth)}`,
    };
    this.element.classList.toggle("trees", n.nodes != null);
    for (const figure of this.element.querySelectorAll("[data-n]")) {
      const value = shown[figure.dataset.n];
      if (value !== undefined && figure.textContent !== value) figure.textContent = value;
    }
  }

  // How fast the lane is against the baseline, where each lane says it for itself.
  versus(speedup, word, over) {
    const [number, label, small] = this.element.querySelector(".sd-versus").children;
    number.textContent = `${ratio(speedup)}×`;
    label.textContent = word;
    small.textContent = over;
  }

  #say(key, values = {}) {
    this.empty.dataset.t = key;
    this.empty.textContent = text(key, values);
  }

  #setProgress() {
    const share = this.maximum ? this.tokens / this.maximum : 0;
    this.progress.firstElementChild.style.transform = `scaleX(${share})`;
    this.progress.setAttribute("aria-valuenow", this.tokens);
    this.progress.setAttribute("aria-valuemax", this.maximum);
    this.element.querySelector('[data-n="count"]').textContent = this.maximum
      ? `${count(this.tokens)} / ${count(this.maximum)}`
      : "–";
  }

  #dropGhost() {
    this.ghostSpan?.remove();
    this.ghostSpan = null;
  }

  #write(round) {
    this.parts.push(...round.emitted.map((token) => token.text));
    this.tokens += round.emitted.length;
    let group = this.#group(round);
    for (const index of round.inLine) {
      const token = round.tokens[index];
      group ??= this.#group(round, true);
      group.append(tokenSpan(token, round.key, index));
      if (round.emitted.includes(token) && token.text.endsWith("\n")) group = this.paragraph = null;
    }
  }

  // The tokens of a round, or of its rest where a paragraph ended within it.
  #group(round, rest = false) {
    const group = document.createElement("span");
    group.className = "round";
    group.classList.toggle("rest", rest);
    group.dataset.round = round.key;
    this.#open().append(group);
    return group;
  }

  // The paragraph that is written in. Each is a block of its own: a browser lays out anew only the block that grows, so
  // that an update takes as long at the end of a long text as at its beginning.
  #open() {
    if (!this.paragraph) {
      this.paragraph = document.createElement("div");
      this.box.append(this.paragraph);
    }
    return this.paragraph;
  }

  // Follows the text down unless the visitor has scrolled up.
  #append(write) {
    const follows = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR_END;
    this.#dropGhost();
    this.empty.remove();
    untranslated(this.box);
    write();
    if (follows) this.box.scrollTop = this.box.scrollHeight;
  }

  // A copied selection is the emitted text: no dropped drafts, no markers, line breaks as they are.
  #copySelection(event) {
    const selection = document.getSelection();
    if (!selection.rangeCount || selection.isCollapsed) return;
    const fragment = selection.getRangeAt(0).cloneContents();
    fragment.querySelectorAll(".dropped").forEach((node) => node.remove());
    event.clipboardData.setData("text/plain", fragment.textContent);
    event.preventDefault();
  }
}
