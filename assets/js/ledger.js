// The rounds, newest first: what was drafted, what the target put there, and what it cost.

import { milliseconds } from "./format.js";
import { Roving } from "./rove.js";
import { tokenSpan } from "./tokens.js";
import { headline } from "./tree.js";
import { noDraft, text } from "./words.js";

const KEPT = 200; // rows on the page; the trace keeps them all

export class Ledger {
  // open(key) is told which row was clicked; its number is a button, for the keyboard.
  constructor(element, open) {
    this.box = element;
    this.empty = element.firstElementChild;
    this.roving = new Roving(element, ".sd-round-n", ["ArrowUp", "ArrowDown"]);
    element.addEventListener("click", (event) => {
      const row = event.target.closest(".sd-round");
      if (row) open(row.dataset.round);
    });
    this.clear();
  }

  clear() {
    this.longest = 0;
    this.box.replaceChildren(this.empty);
    this.roving.release();
  }

  add(rounds) {
    if (!rounds.length) return;
    this.empty.remove();
    const latest = rounds.slice(-KEPT);
    // The time bars share one scale: the slowest round so far, with room so that it rarely changes.
    const slowest = Math.max(...latest.map((round) => round.draft + round.verify));
    if (slowest > this.longest) {
      this.longest = slowest * 1.25;
      this.box.style.setProperty("--longest", this.longest);
    }
    const stays = this.box.scrollTop > 4 && this.box.scrollHeight;
    this.box.prepend(...latest.map(row).reverse());
    while (this.box.childElementCount > KEPT) this.box.lastElementChild.remove();
    this.roving.release();
    if (stays) this.box.scrollTop += this.box.scrollHeight - stays;
  }

  // Rows drawn before the page changed its language.
  retranslate() {
    for (const old of this.box.querySelectorAll(".sd-round")) {
      const now = row(old.round);
      now.classList.toggle("marked", old.classList.contains("marked"));
      old.replaceWith(now);
    }
    this.roving.release();
  }

  // Marks the row of a round that is looked at, and brings it into the list's window; no key marks none.
  mark(key) {
    this.box.querySelector(".marked")?.classList.remove("marked");
    const row = key && this.box.querySelector(`[data-round="${key}"]`);
    if (!row) return;
    row.classList.add("marked");
    const { top, bottom } = this.box.getBoundingClientRect();
    const at = row.getBoundingClientRect();
    if (at.top < top || at.bottom > bottom) this.box.scrollTop += at.top - top;
  }
}

function row(round) {
  const element = document.createElement("div");
  element.className = "sd-round";
  element.dataset.round = round.key;
  element.round = round;
  const number = document.createElement("button");
  number.className = "sd-round-n";
  number.textContent = round.n + 1;
  number.ariaLabel = headline(round);
  number.tabIndex = -1; // the list is one stop of the Tab key (rove.js)
  element.append(number);
  element.title = text("open_round");
  const chips = cell("sd-chips");
  if (round.parents) chips.append(note(text("tree_shape", { a: round.draftedCount, b: round.depth })));
  for (const index of asTested(round)) chips.append(tokenSpan(round.tokens[index], round.key, index, { chip: true }));
  if (round.final) {
    if (round.draftedCount) chips.append(note("→"));
    chips.append(tokenSpan(round.final, round.key, round.draftedCount, { chip: true }));
  }
  if (round.why) chips.append(note(noDraft(round.why, round.draftContext)));
  const untested = round.draftedCount - round.tested;
  if (round.parents && untested) chips.append(note(text("more_discarded", { a: untested })));
  element.append(chips, cost(round));
  return element;
}

// A chain's drafts as they stand; of a tree those that were tested, in that order. Its others are many and say little:
// they are counted here and shown by the tree.
function asTested(round) {
  const indices = [...Array(round.draftedCount).keys()];
  if (!round.parents) return indices;
  const tested = indices.filter((index) => round.tokens[index].outcome !== "discarded");
  return tested.sort((a, b) => round.tokens[a].position - round.tokens[b].position || a - b);
}

function note(content) {
  const element = document.createElement("i");
  element.textContent = content;
  return element;
}

// Draft and verification as one bar of two parts, all rounds on one scale.
function cost({ draft, verify }) {
  const element = cell("sd-cost");
  const bar = cell("sd-bar");
  for (const [kind, seconds] of [["draft", draft], ["verify", verify]]) {
    const part = document.createElement("i");
    part.className = kind;
    part.style.setProperty("--seconds", seconds);
    bar.append(part);
  }
  const label = cell("", `${milliseconds(draft)} + ${milliseconds(verify)}`);
  element.title = `${text("draft_time")} ${milliseconds(draft)}, ${text("verify_time")} ${milliseconds(verify)}`;
  element.append(bar, label);
  return element;
}

function cell(className, content = "") {
  const element = document.createElement("span");
  element.className = className;
  element.textContent = content;
  return element;
}
