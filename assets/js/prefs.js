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

export function setProjector(on) {
  document.documentElement.classList.toggle("sd-projector", on);
  document.querySelector('[data-do="projector"]')?.setAttribute("aria-pressed", on);
}

// The address holds what differs from the defaults, so that a link opens the page with the same settings.
const LONGEST_PROMPT = 1500;

export function address(names, values, defaults) {
  const query = new URLSearchParams();
  names.forEach((name, index) => {
    const value = values[index];
    if (name === "gamma" && values[names.indexOf("auto_gamma")]) return; // a link that names a gamma fixes it
    const long = name === "prompt" && String(value).length > LONGEST_PROMPT;
    if (value !== null && value !== defaults[name] && !long) query.set(name, value);
  });
  const search = query.toString();
  return location.pathname + (search ? `?${search}` : "");
}
