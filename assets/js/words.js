// The page's texts (specdemo/ui/copy.py) in the chosen language.

let texts = { en: {} };
let labels = { en: {} };
export let language = "en";

export function setTexts(all, allLabels) {
  texts = all;
  labels = allLabels;
}

export function text(key, values = {}) {
  const template = texts[language]?.[key] ?? texts.en[key] ?? key;
  return template.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

// Why a round had no draft; n: tokens that the draft can read, which one of the reasons names.
export const noDraft = (why, n) => text("no_draft", { why: text(`why_${why}`, { n }) });

// What became of a token.
export const fate = (outcome) => (outcome === "cut" ? text("cut") : text(`legend_${outcome}`));

export function setLanguage(chosen) {
  const before = labels[language];
  language = texts[chosen] ? chosen : "en";
  document.documentElement.lang = language;
  document.querySelectorAll("[data-t]").forEach((node) => (node.textContent = text(node.dataset.t)));
  document.querySelectorAll("[data-hint]").forEach((node) => (node.title = text(node.dataset.hint)));
  relabel(document.getElementById("sd-controls"), before);
}

// Gradio owns its labels' elements, so only the text nodes that say exactly a label are changed. What it mounts later
// (a folded panel) still speaks English.
export function relabel(element, before = labels.en) {
  if (!element || before === labels[language]) return;
  const keys = new Map(Object.entries(before).map(([key, label]) => [label, key]));
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const key = keys.get(walker.currentNode.data.trim());
    if (key) walker.currentNode.data = labels[language][key];
  }
}
