// How a visitor likes the page: theme, size, language. Kept in this browser only.

const key = (name) => `specdemo-${name}`;

export function remembered(name) {
  try {
    return localStorage.getItem(key(name));
  } catch {
    return null; // storage may be forbidden, as in an embedded page
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(key(name), value);
  } catch {
    // Not remembered, then.
  }
}

export function setDark(dark) {
  document.body.classList.toggle("dark", dark);
}

export const isDark = () => document.body.classList.contains("dark");

export const isProjector = () => document.documentElement.classList.contains("sd-projector");

export function setProjector(on) {
  document.documentElement.classList.toggle("sd-projector", on);
  document.querySelector('[data-do="projector"]')?.setAttribute("aria-pressed", on);
}
