// Tokens as they come over the wire (specdemo/ui/deltas.py packs them) and as spans on the page.

import { ruleOf } from "./rule.js";

const OUTCOMES = { a: "accepted", x: "rejected", d: "discarded", r: "resampled", b: "bonus", p: "plain", c: "cut" };
const MARKED = new Set(["resampled", "bonus"]);
const DROPPED = new Set(["rejected", "discarded", "cut"]);

export function unpackToken([text, code, position, p, q, accept, u, tv, id, chance, threshold]) {
  return { text, outcome: OUTCOMES[code], position, p, q, accept, u, tv, id, chance, threshold };
}

// draftContext: tokens that the lane's draft can read, where they are too few.
export function unpackRound(lane, packed, draftContext) {
  const drafted = packed.drafted.map(unpackToken);
  const final = packed.final && unpackToken(packed.final);
  const tokens = final ? [...drafted, final] : drafted;
  const emitted = tokens.filter((token) => !DROPPED.has(token.outcome));
  const tested = drafted.filter((token) => token.outcome !== "discarded");
  return {
    lane,
    n: packed.n,
    key: `${lane}-${packed.n}`,
    tokens,
    final,
    parents: packed.parents, // of a tree; none for a chain
    depth: packed.depth,
    rule: ruleOf(drafted, packed.parents),
    why: packed.why, // of no draft
    draftContext,
    inLine: packed.parents ? besideText(tokens, final) : tokens.map((_, index) => index),
    emitted,
    draftedCount: drafted.length,
    tested: tested.length,
    accepted: tested.filter((token) => token.outcome !== "rejected").length,
    positions: packed.positions ?? 0, // at which drafts were tested: siblings of a tree share one
    expected: packed.expected ?? 0, // of them accepted
    draft: packed.draft,
    verify: packed.verify,
    clock: packed.clock,
  };
}

// Of a tree a line of text can show what was accepted, the first draft that was refused where the target's own token
// stands, and that token: the others stood beside the text. Indices, as for all tokens of a round.
function besideText(tokens, final) {
  const refused = tokens.findIndex((token) => token.outcome === "rejected" && token.position === final?.position);
  return tokens.flatMap((token, index) =>
    token === final || token.outcome === "accepted" || token.outcome === "cut" || index === refused ? [index] : [],
  );
}

// A draft's first nodes from the text outwards: all of a chain; of a tree the way of the drafter's first choices.
export function firstChain(count, parents) {
  if (!parents) return [...Array(count).keys()];
  const chain = [];
  for (let node = parents.indexOf(-1); node >= 0; node = parents.indexOf(node)) chain.push(node);
  return chain;
}

// A token that stands apart from the text: a line break in it must not break the line, a sign that joins the letter
// before it has none to join, and what cannot be seen at all is named.
const SIGNS = { "\n": "↵", "\r": "␍", "\t": "⇥" };
const unseen = (sign) => `U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
export function visible(text) {
  const signs = text.replace(/[\n\r\t]/g, (sign) => SIGNS[sign]).replace(/^\p{M}/u, "◌$&");
  return /^[\p{Cc}\p{Cf}]+$/u.test(signs) ? Array.from(signs, unseen).join(" ") : signs;
}

// The same as nodes: blanks stay blanks, with a dot painted on each (see tokens.css).
export function spell(element, text) {
  element.append(...dotted(visible(text)));
  return element;
}

const dotted = (text) => text.split(/(\p{Zs}+)/u).filter(Boolean).map((piece) => (/\p{Zs}/u.test(piece) ? painted(piece) : piece));

function painted(blanks) {
  const element = document.createElement("i");
  element.className = blanks === "\t" ? "blank tab" : "blank";
  element.textContent = blanks;
  return element;
}

// What a model wrote (or was asked) is shown as it is: a browser's translator would rewrite it on its way.
export function untranslated(element, as = true) {
  element.translate = !as;
  element.classList.toggle("notranslate", as);
  return element;
}

// Text only ever goes in through textContent or text nodes: what a model writes is never markup. In a lane the spans of
// kept tokens are looks alone (see tokens.css): their letters join and cluster as in one text.
export function tokenSpan(token, key, index, { chip = false } = {}) {
  const span = document.createElement("span");
  const dropped = DROPPED.has(token.outcome);
  span.className = `tok ${token.outcome}`;
  if (dropped) span.classList.add("dropped");
  if (dropped || (chip && MARKED.has(token.outcome))) span.append(mark());
  if (token.text === "") span.classList.add("partial");
  else if (chip || dropped) spell(span, token.text);
  else span.append(...asWritten(token.text));
  span.dataset.key = key;
  span.dataset.index = index;
  return untranslated(span);
}

function mark() {
  const icon = document.createElement("i");
  icon.className = "mark";
  return icon;
}

// A token of the text itself. A line break has no width to colour, so a sign of it gets the colour; a token of blanks
// alone would be an underline without anything above it, so its blanks are painted on.
function asWritten(text) {
  const bare = !text.trim();
  return text.split(/(\n|\t)/).filter(Boolean).flatMap((piece) => {
    if (piece === "\n") return [breakSign(), "\n"];
    return bare ? painted(piece) : piece;
  });
}

function breakSign() {
  const sign = document.createElement("i");
  sign.className = "break";
  return sign;
}
