// Pointing at a token (or walking to it with the arrow keys) lights up its round everywhere and shows its numbers.

import { probability } from "./format.js";
import { spell, untranslated } from "./tokens.js";
import { noDraft, text } from "./words.js";

const LIST_DELAY = 120; // milliseconds of pointing before the server is asked for the top lists

export class Card {
  // lookup(key) gives a round; ask(question) sends one to the server, answered through lists().
  constructor(root, card, lookup, ask) {
    Object.assign(this, { root, card, lookup, ask });
    document.body.append(card); // above everything, outside any scrolling box
    for (const event of ["pointerover", "focusin"]) root.addEventListener(event, (e) => this.#point(e));
    root.addEventListener("focusout", () => this.hide());
    // A finger leaves as soon as it is lifted; its card stays until the next touch.
    root.addEventListener("pointerout", (e) => e.pointerType !== "touch" && this.hide());
    document.addEventListener("pointerdown", (e) => e.target.closest(".tok") || this.hide());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
  }

  hide() {
    clearTimeout(this.timer);
    this.card.hidden = true;
    this.wanted = null;
    this.root.querySelectorAll(".lit").forEach((node) => node.classList.remove("lit"));
  }

  // The token that was pointed at may have left the page.
  drop() {
    if (!this.card.hidden && !this.anchor.isConnected) this.hide();
  }

  lists(id, top) {
    if (id !== this.wanted || !top || this.card.hidden) return;
    const lists = document.createElement("div");
    lists.className = "sd-lists";
    for (const [name, label] of [["p", "p"], ["q", "q"], ["residual", text("card_residual")], ["plain", text("card_plain")]]) {
      if (top[name]?.length) lists.append(this.#list(label, top[name]));
    }
    this.card.querySelector(".sd-lists")?.remove();
    this.card.append(lists);
    this.#place();
  }

  #point(event) {
    const row = event.target.closest(".sd-round, .round, .sd-tree-round");
    const span = event.target.closest(".tok[data-key]");
    if (!row) return;
    this.hide();
    this.root.querySelectorAll(`[data-round="${row.dataset.round}"]`).forEach((node) => node.classList.add("lit"));
    const round = span && this.lookup(span.dataset.key);
    if (round) this.#show(span, round, Number(span.dataset.index));
  }

  #show(span, round, index) {
    const token = round.tokens[index];
    this.anchor = span;
    const title = document.createElement("p");
    title.className = "sd-card-title";
    const word = spell(untranslated(document.createElement("code")), token.text || "∅");
    title.append(word, ` ${text("card_round", { a: round.n + 1, b: token.position })}`);
    const verdict = document.createElement("p");
    verdict.className = `sd-card-verdict ${token.outcome}`;
    verdict.textContent = round.why ? noDraft(round.why, round.draftContext) : text(`v_${token.outcome}`);
    this.card.replaceChildren(title, verdict, this.#facts(token));
    this.card.hidden = false;
    this.#place();
    this.wanted = `${round.key}-${index}`;
    const question = { ask: "token", id: this.wanted, lane: round.lane, round: round.n, index };
    this.timer = setTimeout(() => this.ask(question), LIST_DELAY);
  }

  #facts(token) {
    const facts = document.createElement("dl");
    const chosen = token.chance != null; // and not drawn: then q is 1, and elder siblings have a part in the test
    const quotient = !chosen && token.p != null && token.q ? token.p / token.q : null;
    const rows = [
      ["p", token.p],
      ["q", chosen ? null : token.q],
      [text("card_chance"), token.chance],
      ["p/q", quotient],
      [text(chosen ? "card_accept_chosen" : "card_accept"), token.accept],
      [text("card_u"), token.u],
      ["1 − TV", chosen || token.tv == null ? null : 1 - token.tv],
    ];
    for (const [name, value] of rows) {
      if (value == null) continue;
      const term = document.createElement("dt");
      term.textContent = name;
      const number = document.createElement("dd");
      number.textContent = name === "p/q" && value > 1 ? value.toFixed(2) : probability(value);
      facts.append(term, number);
    }
    return facts;
  }

  #list(label, candidates) {
    const list = document.createElement("ol");
    list.dataset.label = label;
    for (const { text: piece, prob } of candidates) {
      const item = document.createElement("li");
      item.style.setProperty("--prob", prob);
      item.append(spell(untranslated(document.createElement("code")), piece || "∅"), probability(prob));
      list.append(item);
    }
    return list;
  }

  #place() {
    const at = this.anchor.getClientRects()[0] ?? this.anchor.getBoundingClientRect();
    const { width, height } = this.card.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left, innerWidth - width - 8));
    const below = at.bottom + 8;
    const top = below + height < innerHeight ? below : Math.max(8, at.top - height - 8);
    this.card.style.transform = `translate(${left}px, ${top}px)`;
  }
}
