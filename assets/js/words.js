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

// What the server says comes in every language.
export const said = (sentence) => sentence?.[language];

// A text of the page in that form.
export const everywhere = (key) => Object.fromEntries(Object.keys(texts).map((each) => [each, texts[each][key]]));

// What became of a token.
export const fate = (outcome) => (outcome === "cut" ? text("cut") : text(`legend_${outcome}`));

export function setLanguage(chosen) {
  language = texts[chosen] ? chosen : "en";
  document.documentElement.lang = language;
  document.title = text("title");
  document.querySelectorAll("[data-t]").forEach((node) => (node.textContent = text(node.dataset.t)));
  document.querySelectorAll("[data-hint]").forEach((node) => (node.title = text(node.dataset.hint)));
  document.querySelectorAll("[data-name]").forEach((node) => (node.ariaLabel = text(node.dataset.name)));
  relabel(document.getElementById("sd-controls"));
  renameFooter();
}

// Gradio owns its labels' elements, so only what says exactly a label, in any language, is changed: texts, and the names
// that it gives its inputs. What it mounts later (a folded panel) speaks English until it is relabelled.
export function relabel(element) {
  if (!element) return;
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { data } = walker.currentNode;
    const renamed = data.trim() && labelFor(data.trim());
    if (renamed && renamed !== data.trim()) walker.currentNode.data = renamed;
  }
  for (const node of element.querySelectorAll("[aria-label]")) node.ariaLabel = labelFor(node.ariaLabel) ?? node.ariaLabel;
}

// The label that says the same in the page's language; none for what is no label. Gradio names an input by a sentence
// around its label, which stands as {} in ours.
function labelFor(said) {
  const here = labels[language];
  for (const table of Object.values(labels)) {
    for (const [key, label] of Object.entries(table)) {
      if (label === said) return here[key];
      if (!label.includes("{}")) continue;
      const [before, behind] = label.split("{}");
      const named = said.startsWith(before) && said.endsWith(behind) && labelFor(said.slice(before.length, said.length - behind.length));
      if (named) return here[key].replace("{}", named);
    }
  }
}

// Gradio's footer speaks the browser's language, whatever the page's is.
function renameFooter() {
  const footer = document.querySelector("footer");
  if (!footer) return;
  footer.ariaLabel = text("footer");
  const name = [...footer.querySelector(".show-api").childNodes].find((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  name.data = `${text("api")} `;
  footer.querySelectorAll("img").forEach((image) => (image.alt = "")); // they say nothing beside the words
}
