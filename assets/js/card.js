// Pointing at a token (or walking to it with the arrow keys) lights up its round everywhere and shows what decided over
// it. A click, a tap or Enter keeps the card; Escape or a click elsewhere closes it.

import { named } from "./names.js";
import { inSight, placeBeside } from "./place.js";
import { figures, reason, writer } from "./rule.js";
import { spell, untranslated } from "./tokens.js";
import { text } from "./words.js";

const LIST_DELAY = 120; // milliseconds of pointing before the server is asked for the top lists
const TOKEN = ".tok[data-key]";

export class Card {
  // lookup(key) gives a round; ask(question) sends one to the server and gives its id, which the answer to lists() bears.
  constructor(root, card, lookup, ask) {
    Object.assign(this, { root, card, lookup, ask, anchor: null, pinned: false });
    document.body.append(card); // above everything, outside any scrolling box
    root.addEventListener("pointerover", (event) => this.#over(event));
    document.addEventListener("pointermove", ({ clientX, clientY }) => (this.pointer = [clientX, clientY]));
    // A finger leaves as soon as it is lifted; its card stays until the next touch.
    root.addEventListener("pointerout", (event) => event.pointerType !== "touch" && this.#leave(event));
    root.addEventListener("focusin", ({ target }) => this.#focus(target));
    root.addEventListener("focusout", (event) => this.#blur(event));
    root.addEventListener("click", ({ target }) => getSelection().isCollapsed && this.#pin(target.closest(TOKEN)));
    root.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("pointerdown", ({ target }) => target.closest(`${TOKEN}, .sd-card`) || this.hide());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.#dismiss());
    document.addEventListener("scroll", ({ target }) => target !== card && this.#follow(), { capture: true, passive: true });
    addEventListener("resize", () => this.#follow());
  }

  hide() {
    clearTimeout(this.timer);
    this.card.hidden = true;
    this.wanted = null;
    this.anchor?.removeAttribute("aria-describedby");
    this.anchor = null;
    this.#keep(false);
    this.root.querySelectorAll(".lit").forEach((node) => node.classList.remove("lit"));
  }

  // The token that was pointed at may have left the page.
  drop() {
    if (this.anchor && !this.anchor.isConnected) this.hide();
  }

  lists(id, top) {
    if (id !== this.wanted || !top || this.card.hidden) return;
    const lists = document.createElement("div");
    lists.className = "sd-lists";
    const left = { chain: "card_residual", chosen: "card_left", drawn: "card_left" }[this.round.rule]; // typical leaves p as it is
    for (const [name, label] of [["p", "p"], ["q", "q"], ["residual", left && text(left)], ["plain", text("card_plain")]]) {
      if (label && top[name]?.length) lists.append(list(label, top[name], this.token));
    }
    this.card.querySelector(".sd-lists")?.remove();
    this.card.append(lists);
    this.#place();
  }

  // Text that scrolls, or a card that closes, puts something else under a pointer that rests: that is no pointing at it.
  #over({ target, pointerType, clientX, clientY }) {
    const rests = pointerType === "mouse" && clientX === this.pointer?.[0] && clientY === this.pointer[1];
    if (!this.pinned && !rests) this.#point(target);
  }

  #point(target) {
    const row = target.closest(".sd-round, .round, .sd-tree-round");
    const span = target.closest(TOKEN);
    if (!row || (span && span === this.anchor)) return;
    this.hide();
    this.root.querySelectorAll(`[data-round="${row.dataset.round}"]`).forEach((node) => node.classList.add("lit"));
    const round = span && this.lookup(span.dataset.key);
    if (round) this.#show(span, round, Number(span.dataset.index));
  }

  #leave({ target, relatedTarget }) {
    const still = relatedTarget instanceof Element && target.closest(TOKEN) && relatedTarget.closest(TOKEN) === target.closest(TOKEN);
    if (!still) this.#let();
  }

  // Of thousands of tokens the one in focus alone has a role and a name: the others are plain text to a screen reader.
  #focus(target) {
    const round = target.matches(TOKEN) && this.lookup(target.dataset.key);
    if (round) {
      target.role = "button";
      target.ariaLabel = named(round.tokens[target.dataset.index]);
    }
    if (!this.returning) this.#point(target);
  }

  #blur({ target }) {
    if (target.matches(TOKEN)) for (const name of ["role", "aria-label"]) target.removeAttribute(name);
    if (!this.pinned) this.hide();
  }

  #key(event) {
    if ((event.key !== "Enter" && event.key !== " ") || !event.target.matches(TOKEN)) return;
    event.preventDefault();
    event.stopPropagation();
    this.#pin(event.target);
  }

  // A second click lets go.
  #pin(span) {
    if (!span) return;
    if (this.pinned && span === this.anchor) return this.hide();
    this.#point(span);
    if (this.anchor === span) this.#keep(true);
  }

  #keep(pinned) {
    this.pinned = pinned;
    this.card.classList.toggle("pinned", pinned);
    this.card.tabIndex = pinned ? 0 : -1; // where a window is low it scrolls, by keys too
    const hint = this.card.querySelector(".sd-card-hint");
    if (hint) hint.textContent = text(pinned ? "card_close" : "card_keep");
  }

  #dismiss() {
    const token = this.pinned && this.anchor;
    this.hide();
    this.returning = true;
    if (token) token.focus({ preventScroll: true });
    this.returning = false;
  }

  #show(span, round, index) {
    const token = round.tokens[index];
    this.anchor = span;
    span.setAttribute("aria-describedby", this.card.id);
    if (!span.hasAttribute("tabindex")) span.tabIndex = -1; // a click takes the focus there, and Escape gives it back
    Object.assign(this, { token, round });
    this.card.replaceChildren(title(token, round), verdict(token, round), facts(token, round));
    this.card.hidden = false;
    this.#keep(false);
    this.#place();
    const question = { ask: "token", lane: round.lane, round: round.n, index };
    this.timer = setTimeout(() => (this.wanted = this.ask(question)), LIST_DELAY);
  }

  // Its token is scrolled, or the window has another size: the card goes along as long as the token is in sight.
  #follow() {
    if (!this.anchor) return;
    if (inSight(this.anchor, this.anchor.closest(".sd-text, .sd-rows, .sd-tree-view"))) this.#place();
    else this.#let();
  }

  // What the keys have reached keeps its card: a page that is still scrolling to it takes it out of sight, and moves other
  // things from under a pointer that rests.
  #let() {
    if (!this.pinned && !this.anchor?.matches(":focus-visible")) this.hide();
  }

  #place() {
    const numbers = [...this.root.querySelectorAll(".sd-hero b, .sd-versus b")].map((node) => node.getBoundingClientRect());
    placeBeside(this.card, this.anchor, numbers.filter((box) => box.width));
  }
}

function title(token, round) {
  const element = document.createElement("p");
  element.className = "sd-card-title";
  const word = spell(untranslated(document.createElement("code")), token.text || "∅");
  const hint = document.createElement("small");
  hint.className = "sd-card-hint";
  element.append(word, ` ${text("card_round", { a: round.n + 1, b: token.position })}`, hint);
  return element;
}

function verdict(token, round) {
  const element = document.createElement("p");
  element.className = `sd-card-verdict ${token.outcome}`;
  element.textContent = reason(token, round);
  return element;
}

function facts(token, round) {
  const element = document.createElement("dl");
  for (const [name, value] of figures(token, round)) {
    const pair = document.createElement("div");
    const term = document.createElement("dt");
    term.textContent = name;
    const number = document.createElement("dd");
    number.textContent = value;
    pair.append(term, number);
    element.append(pair);
  }
  return element;
}

// The most probable tokens; the one that the card is about stands out among them.
function list(label, candidates, token) {
  const write = writer(token);
  const element = document.createElement("ol");
  element.dataset.label = label;
  for (const { id, text: piece, prob } of candidates) {
    const item = document.createElement("li");
    item.classList.toggle("own", id === token.id);
    item.style.setProperty("--prob", prob);
    item.append(spell(untranslated(document.createElement("code")), piece || "∅"), write(prob));
    element.append(item);
  }
  return element;
}
