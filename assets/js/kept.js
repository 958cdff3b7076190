// What a run wrote, as one delta that grows, kept in this tab's session storage while the page is reloaded: by its
// visitor, by Gradio when the server is back, or by a step back to it.

import { LANES, OVER } from "./schema.js";

const KEY = "specdemo-run";
const MOST = 4_000_000; // characters; browsers give a page about five million
const PASSING = ["seq", "phase", "message"]; // said of a moment

export class Kept {
  constructor() {
    this.clear();
  }

  clear() {
    this.whole = {};
    this.mark = null; // key of the sentence that says it is from before
  }

  // Whether there is text that a visitor would miss.
  get wrote() {
    return LANES.some((lane) => this.whole[lane]?.rounds?.length);
  }

  add(delta) {
    for (const [key, news] of Object.entries(delta)) {
      if (LANES.includes(key)) this.#addLane(key, news);
      else if (!PASSING.includes(key)) this.whole[key] = news;
    }
    if (OVER.includes(delta.phase)) this.whole.over = true;
  }

  #addLane(name, { rounds = [], ghost, ...news }) {
    const lane = (this.whole[name] ??= { rounds: [] });
    Object.assign(lane, news);
    lane.rounds.push(...rounds);
  }

  save() {
    const from = location.href; // a step back may lead to another link, which has nothing to do with this run
    const kept = JSON.stringify({ from, whole: this.whole, prompt: promptBox()?.value });
    try {
      sessionStorage.setItem(KEY, kept.length < MOST ? kept : JSON.stringify({ from, tooLong: true }));
    } catch {
      // Storage is forbidden or full.
    }
  }

  // What was there before a reload, marked as such; null where nothing was, or where a link was followed instead.
  load() {
    const { whole = {}, tooLong } = before;
    const lanes = LANES.filter((lane) => whole[lane]);
    this.whole = whole;
    this.mark = tooLong ? "kept_not" : !this.wrote ? null : whole.over ? "kept" : "kept_cut";
    for (const lane of lanes) {
      if (whole[lane].rounds.length) delete whole[lane].prefill;
      if (!whole.over) whole[lane].end ??= { reason: "stopped" };
    }
    return this.wrote ? whole : null;
  }
}

// A typed prompt is in the address, unless it is long or was typed while the server was away.
export function retypePrompt() {
  retype(before.prompt);
}

// Puts a prompt into its box as a hand would, which Gradio hears.
export function retype(prompt) {
  const box = promptBox();
  if (prompt == null || prompt === box.value) return;
  box.value = prompt;
  box.dispatchEvent(new Event("input", { bubbles: true }));
}

const promptBox = () => document.querySelector("#sd-prompt textarea");

function readBefore() {
  const way = performance.getEntriesByType("navigation")[0]?.type;
  if (way !== "reload" && way !== "back_forward") return {};
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEY));
    const own = way === "reload" || kept?.from === location.href; // what is reloaded was kept just now
    return own && kept ? kept : {};
  } catch {
    return {};
  }
}

const before = readBefore(); // at once: the page writes its address anew
