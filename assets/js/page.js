// The page's script. Gradio mounts four components (specdemo/ui/page.py) and hands each to a function here: the stage
// that is drawn into, and three that carry JSON: the run's updates, answers to questions, and what is loading.

import { arrivedPrompt, asked, followedPrompt, forget, writeAddress } from "./address.js";
import { Card } from "./card.js";
import { Charts } from "./charts.js";
import { copy } from "./clipboard.js";
import { bringIntoView, Fold } from "./fold.js";
import { count, ratio } from "./format.js";
import { retype, retypePrompt } from "./kept.js";
import { Lane } from "./lane.js";
import { Ledger } from "./ledger.js";
import { isDark, isProjector, remember, remembered, setDark, setProjector } from "./prefs.js";
import { Run } from "./run.js";
import { unpackRound } from "./tokens.js";
import { TreeView, undecided } from "./tree.js";
import { language, relabel, said, setLanguage, setTexts, text } from "./words.js";

const here = new URL(".", import.meta.url);
const DRAFTING = ["speculative", "rival"];
const THEMES = new Set(["dark", "light"]);
// chosen: the settings in the controls; raced: those of the run on the page; watched: the lane whose rounds are listed.
const page = { rounds: new Map(), status: {}, verdict: null, watched: "speculative" };
const early = [];
let send = (...event) => early.push(event); // triggers a Gradio event of the feed, once it is there: begin, halt or ask
const run = new Run({ send: (event, data) => send(event, data), began: look, refused: () => page.fold.set(false), clear, apply, show: redraw });
Object.defineProperties(page, { phase: { get: () => run.phase }, feed: { get: () => run.feed }, run: { value: run } });

export function mountStage({ element, props }) {
  setTexts(props.texts, props.labels);
  page.defaults = props.defaults;
  page.chosen ??= props.defaults;
  page.drafters = props.drafters;
  page.status.headline ??= props.headline;
  page.byLane = { speculative: [], rival: [] };
  page.stage = element.querySelector("#sd-stage");
  page.lanes = Object.fromEntries([...page.stage.querySelectorAll(".sd-lane")].map((node) => [node.dataset.lane, new Lane(node)]));
  page.ledger = new Ledger(page.stage.querySelector("#sd-rows"), openRound);
  page.charts = new Charts(page.stage, new URL("../plotly.min.js", here).href);
  page.card = new Card(page.stage, page.stage.querySelector("#sd-card"), (key) => page.rounds.get(key), ask);
  page.tree = new TreeView(page.stage.querySelector("#sd-tree"), {
    looked: (key) => page.ledger.mark(key),
    redrawn: () => page.card.drop(),
  });
  if (matchMedia("(max-width: 700px)").matches) page.stage.querySelectorAll("details").forEach((folded) => (folded.open = false));
  page.stage.querySelector("#sd-watch").addEventListener("change", (event) => watchLane(event.target.value));
  page.stage.querySelector("#sd-dropped").addEventListener("change", (event) => {
    page.stage.classList.toggle("hide-dropped", !event.target.checked);
    Object.values(page.lanes).forEach((lane) => lane.roving.release());
  });
  document.querySelector("#sd-prompt textarea").dir = "auto"; // Gradio offers one direction for all languages
  groupExamples(document.getElementById("sd-examples"));
  document.addEventListener("click", onClick);
  const controls = document.getElementById("sd-controls");
  page.fold = new Fold(controls, shortly);
  new MutationObserver(() => relabel(controls)).observe(controls, { subtree: true, childList: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run.press();
  });
  addEventListener("hashchange", follow);
  applyPreferences();
  arrange();
  run.restore();
  page.fold.set(looking());
}

// Whether the page is there to be looked at, and not to be set up: it shows a run, or shows it from afar.
const looking = () => run.busy || Boolean(page.raced) || isProjector();

function look() {
  page.fold.set(true);
  bringIntoView(page.stage, page.stage.querySelector(".sd-charts"));
}

// The settings in one line.
function shortly() {
  const { drafter, auto_gamma: live, gamma, temperature, max_tokens: most, mode } = page.chosen;
  const drafts = drafter === "best" ? text("best") : said(page.drafters[drafter]);
  const sizes = text("short", { a: temperature, b: count(most) });
  if (mode === "baseline") return [text("baseline"), sizes].join(" · ");
  return [drafts, `γ ${live ? text("short_live") : gamma}`, sizes].join(" · ");
}

// Gradio makes of every example a group of its own, and so a stop of the Tab key, whenever it draws one anew.
function groupExamples(element) {
  element.role = "radiogroup";
  element.ariaLabel = element.querySelector('[data-testid="block-info"]').textContent.trim();
  const group = () => element.querySelectorAll(`input:not([name="${element.id}"])`).forEach((example) => (example.name = element.id));
  new MutationObserver(group).observe(element, { subtree: true, attributeFilter: ["name"] });
  group();
}

// Another link with a prompt, opened in this tab.
async function follow() {
  try {
    retype(await followedPrompt());
  } catch {
    run.say("link_damaged");
  }
}

// The question's id, which its answer bears. No two are alike, since Gradio passes on only what differs.
let questions = 0;
function ask(question) {
  questions += 1;
  send("ask", { ...question, id: questions, run: run.shown });
  return questions;
}

// This script may arrive later than the first value, which is not told again.
function listen({ props, watch }, hear) {
  const tell = () => props.value && hear(props.value);
  watch("value", tell);
  tell();
}

export function mountFeed({ element, trigger, ...channel }) {
  send = trigger;
  early.splice(0).forEach((event) => send(...event));
  listen(channel, (value) => page.feed.receive(value));
  // Gradio tells of its work in English, to screen readers alone, and the page says all of it itself.
  (element.closest(".block") ?? element.parentElement).inert = true;
}

export function mountReply(channel) {
  listen(channel, (value) => {
    const answer = JSON.parse(value);
    if (answer.ask === "there") run.answered(answer.id);
    if (answer.ask === "missed") page.feed.recover(answer);
    if (answer.ask === "token") page.card.lists(answer.id, answer.top);
    if (answer.ask === "trace") save(answer.trace);
  });
}

export function mountStatus(channel) {
  listen(channel, (value) => {
    page.status = JSON.parse(value);
    show();
  });
}

window.specdemo = {
  page,
  // The prompt to begin with: the one behind the address's #, else the given one. The address is left alone until then.
  async arrive(prompt) {
    try {
      return (await arrivedPrompt()) ?? prompt;
    } catch {
      run.say("link_damaged");
      return prompt;
    } finally {
      page.arrived = true;
    }
  },
  remember(names, values) {
    page.chosen = Object.fromEntries(names.map((name, index) => [name, values[index]]));
    if (!page.opened) setTimeout(retypePrompt); // behind Gradio's own writing of what the address says
    page.opened = true;
    if (!page.defaults) return;
    page.keep = () => writeAddress(names, values, page.defaults);
    if (page.arrived) page.keep();
    arrange();
  },
};

function clear() {
  page.rounds.clear();
  page.verdict = page.check = page.speed = page.raced = null;
  Object.values(page.lanes).forEach((lane) => lane.clear());
  for (const lane of DRAFTING) page.byLane[lane] = [];
  page.ledger.clear();
  page.tree.watch(page.byLane[page.watched]);
  page.charts.clear();
  page.card.drop();
  arrange();
  showSpeed();
  showVerdict();
}

function apply(delta) {
  if (delta.start) {
    const { mode, rival } = (page.raced = delta.start);
    const runs = { baseline: mode !== "speculative", speculative: mode !== "baseline", rival: Boolean(rival) };
    for (const [name, lane] of Object.entries(page.lanes)) {
      if (runs[name]) lane.start(delta.start.max_tokens);
      else if (name !== "rival") lane.clear("not_run");
    }
    arrange();
  }
  for (const [name, lane] of Object.entries(page.lanes)) if (delta[name]) applyLane(lane, delta[name]);
  if (delta.numbers) {
    for (const [name, lane] of Object.entries(page.lanes)) if (lane.maximum) lane.numbers(delta.numbers[name]);
    page.speed = delta.numbers;
    showSpeed();
  }
  if (delta.check) page.check = delta.check;
  if (delta.verdict) {
    page.verdict = delta.verdict;
    page.charts.finish();
    showVerdict();
  }
}

function applyLane(lane, news) {
  if (news.start) lane.open(news.start);
  if (news.prefill) lane.reading(...news.prefill);
  if (news.rounds) {
    const rounds = news.rounds.map((packed) => unpackRound(lane.name, packed, lane.draftContext));
    rounds.forEach((round) => page.rounds.set(round.key, round));
    lane.rounds(rounds);
    page.charts.add(rounds);
    page.byLane[lane.name]?.push(...rounds);
    if (lane.name === page.watched) page.ledger.add(rounds);
  }
  if (news.ghost) lane.ghost(news.ghost);
  if (lane.name === page.watched && (news.rounds || news.ghost || news.end)) {
    page.tree.advance(news.ghost ? undecided(news.ghost) : null, Boolean(news.end));
  }
  if (news.end) lane.end(news.end);
}

// How the lanes stand: "pair" (baseline and speculative), "three", or "rivals" (two drafters without a baseline). The
// run on the page decides; where it had no rival and one is chosen now, the new lane shows up beside it.
function arrange() {
  page.fold?.show();
  const kind = ({ mode, rival }) => (!rival || mode === "baseline" ? "pair" : mode === "race" ? "three" : "rivals");
  let shown = kind(page.raced ?? page.chosen);
  if (shown === "pair" && page.raced && !run.busy && kind(page.chosen) !== "pair") {
    shown = page.raced.mode === "speculative" ? kind(page.chosen) : "three";
  }
  const before = page.stage.dataset.lanes;
  page.stage.dataset.lanes = shown;
  page.stage.toggleAttribute("data-greedy", !(page.raced ?? page.chosen).temperature);
  page.stage.toggleAttribute("data-raced", Boolean(page.raced)); // its drafter is named from then on
  document.body.dataset.sdLive = page.chosen.auto_gamma;
  const drafters = { speculative: (page.raced ?? page.chosen).drafter, rival: page.raced?.rival || page.chosen.rival };
  for (const node of page.stage.querySelectorAll(".sd-drafter")) {
    const id = drafters[node.dataset.of];
    node.textContent = id === "best" ? "" : (said(page.drafters[id]) ?? id); // the race will know which one that is
  }
  if (shown === "pair" && page.watched !== "speculative") watchLane("speculative");
  if (before !== shown) {
    showSpeed();
    page.charts.drawSoon();
  }
}

// Ledger and tree show one lane's rounds.
function watchLane(name) {
  page.watched = name;
  page.stage.querySelector(`#sd-watch [value="${name}"]`).checked = true;
  page.ledger.clear();
  page.ledger.add(page.byLane[name]);
  page.tree.watch(page.byLane[name], page.lanes[name].reason !== null);
}

function openRound(key) {
  page.tree.open(page.byLane[page.watched].findIndex((round) => round.key === key));
  page.tree.view.scrollIntoView({ block: "nearest" });
}

function redraw() {
  if (!page.stage) return; // not mounted yet
  arrange();
  show();
}

function show() {
  if (!page.stage) return; // not mounted yet
  page.stage.dataset.phase = page.phase;
  document.body.dataset.sdPhase = page.phase;
  document.getElementById("sd-run")?.setAttribute("aria-disabled", run.busy);
  const bar = page.stage.querySelector("#sd-status-bar");
  const loading = page.phase === "loading" ? run.details : !page.status.ready ? page.status : null;
  document.getElementById("sd-headline").textContent = said(page.status.headline);
  announce(page.stage.querySelector("#sd-status-text"), run.sentence() ?? sentence(page.status));
  page.stage.querySelector("#sd-kept").textContent = run.kept.mark ? text(run.kept.mark) : "";
  bar.style.transform = `scaleX(${loading?.fraction ?? 0})`;
  bar.classList.toggle("unknown", Boolean(loading?.message) && loading.fraction == null);
}

// A screen reader hears every sentence once, an error at once; of how far something is it hears no more than that it is.
function announce(line, told) {
  if (line.textContent === told) return;
  const wording = (sentence) => sentence.replace(/\d+/g, "");
  const counts = page.phase !== "queued" && wording(told) === wording(line.textContent);
  line.parentElement.ariaLive = counts ? "off" : page.phase === "error" ? "assertive" : "polite";
  line.textContent = told;
}

function sentence({ error, ready, message }) {
  return said(error) || (ready ? text("ready") : (said(message) ?? text("starting")));
}

function showSpeed() {
  const numbers = page.speed ?? {};
  const duel = page.stage.dataset.lanes === "rivals";
  const { speedup, common } = (duel ? numbers.lead : numbers.speculative) ?? {};
  const word = comparison(speedup);
  const over = ({ speedup, common } = {}) => (speedup == null ? "" : text("over", { n: common }));
  document.getElementById("sd-speedup").textContent = `${ratio(speedup)}×`;
  document.getElementById("sd-speedup-word").textContent = text(duel && (word === "faster" || word === "slower") ? `rival_${word}` : word);
  document.getElementById("sd-speedup-over").textContent = over({ speedup, common });
  for (const name of DRAFTING) page.lanes[name].versus(numbers[name]?.speedup, text(comparison(numbers[name]?.speedup)), over(numbers[name]));
}

const comparison = (speedup) => (speedup == null ? "speedup" : speedup >= 1.02 ? "faster" : speedup <= 0.98 ? "slower" : "equal");

function showVerdict() {
  document.getElementById("sd-verdict").classList.toggle("empty", !page.verdict);
  document.getElementById("sd-verdict-text").textContent = page.verdict?.[language] ?? text("verdict_empty");
  const check = document.getElementById("sd-check-text");
  check.textContent = page.check?.[language] ?? "";
  check.dataset.kind = page.check?.kind ?? "";
}

function save(trace) {
  if (!trace) return run.say(run.kept.mark ? "no_trace_kept" : "no_trace");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([trace], { type: "application/json" }));
  link.download = `specdemo-trace-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function applyPreferences() {
  // What the address asks for goes before what this browser remembers; Gradio knows more themes than these two.
  const theme = THEMES.has(asked("__theme")) ? asked("__theme") : remembered("theme");
  if (theme) setDark(theme === "dark");
  setProjector(remembered("projector") === "true");
  speak(remembered("language") ?? "en");
}

function speak(chosen) {
  setLanguage(chosen);
  page.card.hide();
  document.querySelector('[data-do="theme"] span').textContent = text(isDark() ? "theme_light" : "theme");
  Object.values(page.lanes).forEach((lane) => lane.retranslate());
  arrange();
  show();
  showSpeed();
  showVerdict();
  page.ledger.retranslate();
  page.tree.draw();
  page.charts.draw();
}

const ACTIONS = {
  theme() {
    setDark(!isDark());
    remember("theme", isDark() ? "dark" : "light");
    forget("__theme");
    speak(language);
  },
  projector() {
    const on = !isProjector();
    setProjector(on);
    remember("projector", on);
    page.fold.set(looking());
    page.charts.drawSoon();
  },
  lang() {
    const next = language === "en" ? "ja" : "en";
    remember("language", next);
    speak(next);
  },
  async link(button) {
    if ((await page.keep?.()) === false) run.say("link_without_prompt");
    copy(location.href, button);
  },
  copy(button) {
    copy(page.lanes[button.dataset.copy].text, button);
  },
  download() {
    ask({ ask: "trace" });
  },
};

function clearAll() {
  run.reset();
  page.fold.set(looking());
}

// Not Gradio's own handlers of its buttons: those are silent while its server is away.
const PRESSED = { "#sd-run": () => run.press(), "#sd-stop": () => run.stop(), "#sd-clear": clearAll };

function onClick(event) {
  const button = event.target.closest("[data-do]");
  if (button) ACTIONS[button.dataset.do]?.(button);
  for (const [id, act] of Object.entries(PRESSED)) if (event.target.closest(id)) act();
  if (event.target.closest(".api-docs")) setTimeout(() => page.keep?.()); // Gradio drops what stands behind the #
}
