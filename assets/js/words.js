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

export function setLanguage(chosen) {
  const before = labels[language];
  language = texts[chosen] ? chosen : "en";
  document.documentElement.lang = language;
  document.querySelectorAll("[data-t]").forEach((node) => (node.textContent = text(node.dataset.t)));
  document.querySelectorAll("[data-hint]").forEach((node) => (node.title = text(node.dataset.hint)));
  for (const [id, label] of Object.entries(labels[language])) relabel(document.getElementById(id), before[id], label);
}

// Gradio owns its labels' elements; only the text node is changed, and only where it is the label.
function relabel(element, from, to) {
  if (!element || from === to) return;
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    if (walker.currentNode.data.trim() === from) walker.currentNode.data = to;
  }
}
