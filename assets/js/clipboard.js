// Copying, for every button that copies. The browser's own way needs a secure page (https, or this machine); over plain
// http from another machine the old command works still. Where neither may be used, the text is shown, selected, to be
// copied by hand.

import { text } from "./words.js";

const SAID = 1500; // milliseconds that a button says "Copied"

export async function copy(content, button) {
  if (!content) return say(button, "copy_nothing");
  if ((await byInterface(content)) || byCommand(content, button)) return say(button, "copied");
  byHand(content, button);
}

async function byInterface(content) {
  try {
    await navigator.clipboard.writeText(content);
    return true;
  } catch {
    return false; // not there, or not allowed
  }
}

// The command takes a selection, which a field unseen has. Fields change line breaks, so what it takes is replaced.
function byCommand(content, button) {
  const field = selected(content, page(button));
  field.style.cssText = "position: fixed; top: 0; opacity: 0";
  const give = (event) => {
    event.clipboardData.setData("text/plain", content);
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  document.addEventListener("copy", give, { capture: true });
  const done = document.execCommand?.("copy") ?? false;
  document.removeEventListener("copy", give, { capture: true });
  field.remove();
  button.focus({ preventScroll: true });
  return done;
}

function byHand(content, button) {
  const dialog = document.createElement("dialog");
  dialog.className = "sd-by-hand";
  const why = document.createElement("p");
  why.id = "sd-by-hand-why";
  why.textContent = text("copy_by_hand");
  dialog.setAttribute("aria-labelledby", why.id);
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = text("close");
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.append(why, close);
  page(button).append(dialog);
  dialog.showModal();
  const field = selected(content, dialog);
  field.setAttribute("aria-labelledby", why.id);
  close.before(field);
  field.select();
}

const page = (button) => button.closest(".gradio-container");

function selected(content, parent) {
  const field = document.createElement("textarea");
  field.readOnly = true; // so that no keyboard opens on a phone
  field.value = content;
  parent.append(field);
  field.focus({ preventScroll: true });
  field.select();
  return field;
}

// On the button, which keeps its width meanwhile.
function say(button, key) {
  const label = button.querySelector("[data-t]");
  button.style.minWidth = `${button.offsetWidth}px`;
  label.textContent = text(key);
  clearTimeout(button.saying);
  button.saying = setTimeout(() => {
    label.textContent = text(label.dataset.t);
    button.style.minWidth = "";
  }, SAID);
}
