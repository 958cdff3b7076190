// The rounds, newest first: what was drafted, what the target put there, and what it cost.

import { tokenSpan } from "./tokens.js";
import { milliseconds } from "./format.js";
import { text } from "./words.js";

const KEPT = 200; // rows on the page; the trace keeps them all

export class Ledger {
  constructor(element) {
    this.box = element;
    this.empty = element.firstElementChild;
    this.clear();
  }

  clear() {
    this.longest = 0;
    this.box.replaceChildren(this.empty);
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
    if (stays) this.box.scrollTop += this.box.scrollHeight - stays;
  }
}

function row(round) {
  const element = document.createElement("div");
  element.className = "sd-round";
  element.dataset.round = round.key;
  element.append(cell("sd-round-n", round.n + 1));
  const chips = cell("sd-chips");
  round.tokens.forEach((token, index) => {
    if (token === round.final && round.draftedCount) {
      const arrow = document.createElement("i");
      arrow.textContent = "→";
      chips.append(arrow);
    }
    chips.append(tokenSpan(token, round.key, index, { chip: true }));
  });
  element.append(chips, cost(round));
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
