// One round as a tree: the text's last token at the left, drafts behind it by depth, the way that the target took drawn
// thick, and at its end the token that the target added. A chain is the tree of width one. The newest round is followed
// until a visitor steps back. Where a node stands depends on the draft's shape alone, never on its fate: a ghost turns
// into its verdict without moving.

import { Roving } from "./rove.js";
import { comparison, figures } from "./rule.js";
import { spell, tokenSpan, untranslated, visible } from "./tokens.js";
import { spoken } from "./names.js";
import { fate, noDraft, text } from "./words.js";

const LEFT = 14; // pixels before the first column
const COLUMN = 116; // from one depth to the next, at least; where there is room, the lane's deepest tree fills it
const FEWEST = 5; // columns that there is always room for, the text's last token and the target's own included
const BEND = 26; // of a column, these pixels belong to the edges
const ROW = { least: matchMedia("(pointer: coarse)").matches ? 40 : 22, most: 72, facts: 40, test: 56 }; // from these heights on there is room for p and q, for u too
const OFF_PATH = new Set(["rejected", "discarded", "ghost"]);
const SVG = "http://www.w3.org/2000/svg";

export class TreeView {
  // looked(key) is told which round a visitor stepped to (none when live); redrawn() that nodes have left the page.
  constructor(element, { looked, redrawn }) {
    this.view = element.querySelector(".sd-tree-view");
    this.title = element.querySelector("#sd-tree-title");
    this.empty = this.view.firstElementChild;
    this.buttons = Object.fromEntries([...element.querySelectorAll("[data-step]")].map((button) => [button.dataset.step, button]));
    Object.assign(this, { element, looked, redrawn });
    element.addEventListener("click", (event) => this.#click(event));
    element.addEventListener("toggle", () => this.draw());
    this.roving = new Roving(this.view, ".tok[data-key]", ["ArrowUp", "ArrowDown"]);
    this.view.addEventListener("keydown", (event) => this.#key(event));
    for (const left of ["pointerout", "focusout"]) this.view.addEventListener(left, () => setTimeout(() => this.late && this.draw()));
    this.watch([]);
  }

  // Follow a lane: `rounds` is its list, which grows unless the lane is over.
  watch(rounds, over = false) {
    Object.assign(this, { rounds, over, ghost: null });
    this.live();
  }

  live() {
    this.at = null;
    this.draw();
    this.looked(null);
  }

  // Look at one round, wherever the run is.
  open(index) {
    this.at = Math.max(0, Math.min(index, this.rounds.length - 1));
    this.element.open = true;
    this.draw();
    this.looked(this.rounds[this.at]?.key);
  }

  step(by) {
    if (this.rounds.length) this.open((this.at ?? this.#newest()) + by);
  }

  // The lane has got further: a draft that waits for its verdict, or (without one) new rounds. `over`: they were the last.
  advance(ghost = null, over = false) {
    Object.assign(this, { ghost, over });
    if (this.at !== null) return this.#buttons();
    if (this.#pointedAt()) this.late = true; // what a visitor reads stays until they leave it
    else this.draw();
  }

  draw() {
    this.late = false;
    this.#buttons();
    if (!this.element.open) return;
    const at = this.at ?? (this.ghost ? this.rounds.length : this.#newest());
    const round = this.rounds[at] ?? this.ghost;
    const before = this.rounds[at - 1];
    this.title.ariaLive = this.at === null ? "off" : "polite"; // a screen reader need not hear twelve rounds a second
    this.title.textContent = round ? headline(round) : "";
    const focused = this.view.contains(document.activeElement);
    this.view.replaceChildren(round ? this.#picture(round, before?.emitted.at(-1)) : this.empty);
    this.roving.release();
    if (focused) this.view.focus({ preventScroll: true });
    this.redrawn();
  }

  // Text often ends with a round that drafted nothing, which is no picture to end with.
  #newest() {
    const drafted = this.over ? this.rounds.findLastIndex((round) => round.draftedCount) : -1;
    return drafted >= 0 ? drafted : this.rounds.length - 1;
  }

  #pointedAt() {
    return this.view.querySelector(".tok:is(:hover, :focus)") !== null;
  }

  #buttons() {
    const at = this.at ?? this.#newest();
    this.buttons["-1"].disabled = at <= 0;
    this.buttons["1"].disabled = at >= this.rounds.length - 1;
    this.buttons.live.setAttribute("aria-pressed", this.at === null);
  }

  #click(event) {
    const step = event.target.closest("[data-step]")?.dataset.step;
    if (step === "live") this.live();
    else if (step) this.step(Number(step));
  }

  #key(event) {
    if (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1), End: () => this.live() }[event.key];
    if (!act) return;
    act();
    event.preventDefault();
  }

  #picture(round, before) {
    const height = this.view.clientHeight;
    const { nodes, edges, rows } = arrange(round, before);
    const columns = columnsOf(round);
    const row = Math.max(ROW.least, Math.min(ROW.most, (height - 8) / rows));
    const top = Math.max(4, (height - rows * row) / 2);
    // As many as the deepest round so far has: columns that followed each round's depth would jump.
    const most = this.rounds.reduce((most, round) => Math.max(most, columnsOf(round)), Math.max(FEWEST, columns));
    const column = Math.max(COLUMN, (this.view.clientWidth - LEFT) / most);
    const x = (place) => LEFT + place.column * column;
    const y = (place) => top + (place.row + 0.5) * row;

    const picture = document.createElement("div");
    picture.className = `sd-tree-round${row >= ROW.test ? " roomy" : ""}`;
    picture.dataset.round = round.key ?? "";
    picture.setAttribute("role", "list");
    picture.setAttribute("aria-label", headline(round));
    picture.style.width = `${LEFT + columns * column}px`;
    picture.style.height = `${Math.max(height, 8 + rows * row)}px`;
    const lines = document.createElementNS(SVG, "svg");
    lines.setAttribute("aria-hidden", "true");
    for (const { from, to, kind } of edges) {
      const line = document.createElementNS(SVG, "path");
      const bend = x(to) - BEND;
      // From behind its parent's token, whose end the line then leaves.
      line.setAttribute("d", `M${x(from) + 8} ${y(from)}H${bend}C${bend + BEND * 0.6} ${y(from)} ${bend + BEND * 0.4} ${y(to)} ${x(to)} ${y(to)}`);
      line.setAttribute("class", `edge ${kind}`);
      lines.append(line);
    }
    picture.append(lines);
    for (const node of nodes) {
      const place = spot(node, round, x(node), y(node), row);
      place.style.setProperty("--widest", `${column * reach(node, nodes, columns) - BEND}px`);
      picture.append(place);
    }
    return picture;
  }
}

// Rows and columns of a round's nodes. In a column nodes stand in the order of their parents, so that no two edges
// cross, the first child level with its parent where there is room. One row more than the fullest column needs is left
// for the target's own token.
function arrange(round, before) {
  const drafted = round.tokens.slice(0, round.draftedCount);
  const parents = round.parents ?? drafted.map((_, index) => index - 1);
  const root = { column: 0, row: 0, root: true, token: before };
  const places = [];
  const columns = [];
  parents.forEach((parent, index) => {
    const above = places[parent] ?? root;
    places.push({ column: above.column + 1, row: 0, above, index, token: drafted[index] });
    (columns[above.column] ??= []).push(places[index]);
  });
  const fullest = Math.max(1, ...columns.map((column) => column.length));
  for (const column of columns) {
    column.sort((a, b) => a.above.row - b.above.row || a.index - b.index);
    column.forEach((place, i) => (place.row = Math.max(place.above.row, i ? column[i - 1].row + 1 : 0)));
    column.forEach((place, i) => (place.row = Math.min(place.row, fullest - column.length + i)));
  }
  const nodes = [root, ...places];
  if (round.final) nodes.push(ending(round, places, root, columns, fullest));
  // The way that was taken is drawn last, over all others.
  const edges = nodes
    .filter((node) => node.above)
    .map((node) => ({ from: node.above, to: node, kind: node.token.outcome }))
    .sort((a, b) => OFF_PATH.has(b.kind) - OFF_PATH.has(a.kind));
  return { nodes, edges, rows: fullest + 1 };
}

// The text's last token, the drafts by depth, and the target's own token.
const columnsOf = ({ parents, depth, draftedCount }) => 2 + (parents ? depth : draftedCount);

// Columns that a node's label may take: its own and, where no edge leaves it, those up to the next node of its row.
function reach(node, nodes, columns) {
  if (nodes.some((other) => other.above === node)) return 1;
  const behind = nodes.filter((other) => other.row === node.row && other.column > node.column);
  return Math.min(columns, ...behind.map((other) => other.column)) - node.column;
}

// The target's own token stands behind the last accepted draft, below those that were refused there, or in the nearest
// free place.
function ending(round, places, root, columns, fullest) {
  const above = places.findLast((place) => place.token.outcome === "accepted") ?? root;
  const siblings = places.filter((place) => place.above === above);
  const wanted = siblings.length ? siblings.at(-1).row + 1 : above.row;
  const taken = new Set((columns[above.column] ?? []).map((place) => place.row));
  const free = [...Array(fullest + 1).keys()].filter((row) => !taken.has(row));
  const row = free.reduce((best, row) => (Math.abs(row - wanted) < Math.abs(best - wanted) ? row : best));
  return { column: above.column + 1, row, above, index: round.draftedCount, token: round.final };
}

function spot(node, round, x, y, room) {
  const place = document.createElement("span");
  place.className = "sd-node";
  place.style.left = `${x}px`;
  place.style.top = `${y}px`;
  place.setAttribute("role", "listitem");
  if (node.root) {
    place.classList.add("root");
    const word = node.token ? visible(node.token.text) || "∅" : text("tree_prompt");
    const span = document.createElement("span");
    span.className = "tok";
    place.append(node.token ? spell(untranslated(span), word) : span);
    if (!node.token) span.textContent = word;
    place.setAttribute("aria-label", text("tree_root", { a: word }));
    return place;
  }
  const { token } = node;
  const span = tokenSpan(token, round.key, node.index, { chip: true });
  if (token.outcome === "ghost") delete span.dataset.key; // nothing is known of it yet
  place.append(span);
  const mark = span.querySelector(".mark");
  if (mark && OFF_PATH.has(token.outcome)) place.append(mark);
  place.setAttribute("aria-label", label(node));
  if (room >= ROW.facts) place.append(facts(token, round, room >= ROW.test));
  return place;
}

// What decided over a token, as far as there is room: its probabilities, and u against what it had to stay below.
function facts(token, round, withTest) {
  const element = document.createElement("small");
  const known = Object.fromEntries(figures(token, round));
  const lines = [["p", "q"].flatMap((name) => (name in known ? `${name} ${known[name]}` : [])).join("  ")];
  if (withTest) lines.push(comparison(token) ?? "");
  element.textContent = lines.join("\n");
  return element;
}

function label({ token, column, above }) {
  const behind = above.token ? spoken(above.token.text) : text("tree_prompt");
  return text("tree_node", { a: spoken(token.text), b: fate(token.outcome), c: column, d: behind });
}

export function headline(round) {
  const shape = !round.draftedCount
    ? round.why ? noDraft(round.why, round.draftContext) : text("tree_plain")
    : round.parents
      ? text("tree_shape", { a: round.draftedCount, b: round.depth })
      : text("tree_chain", { a: round.draftedCount });
  const fate = round.final === undefined ? text("tree_verifying") : round.draftedCount ? text("tree_kept", { a: round.accepted }) : null;
  return [text("tree_round", { a: round.n + 1 }), shape, fate].filter(Boolean).join(" · ");
}

// A draft before its verdict (a ghost of the feed), as a round whose tokens have no fate yet.
export function undecided({ n, texts, parents }) {
  const depths = [];
  (parents ?? []).forEach((parent) => depths.push((depths[parent] ?? 0) + 1));
  return {
    n,
    parents,
    depth: Math.max(0, ...depths),
    draftedCount: texts.length,
    tokens: texts.map((piece) => ({ text: piece, outcome: "ghost" })),
  };
}
