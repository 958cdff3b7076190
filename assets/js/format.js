// Numbers as the page writes them. specdemo/ui/format.py writes them the same way into the verdict's sentences; both are
// given the number itself, never one that was rounded before.

const DASH = "–";
export const count = (n) => String(n);
export const rate = (n) => (n == null ? DASH : n.toFixed(n < 100 ? 1 : 0));
export const ratio = (n) => (n == null ? DASH : n.toFixed(2));
export const percent = (n) => (n == null ? DASH : `${(100 * n).toFixed(0)}\u00a0%`);
export const few = (n) => (n == null ? DASH : n.toFixed(n < 10 ? 1 : 0));

export function milliseconds(seconds) {
  if (seconds == null) return DASH;
  if (seconds >= 1) return `${seconds.toFixed(2)}\u00a0s`;
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)}\u00a0ms`;
}

const DIGITS = 3; // of a probability
const MOST_DIGITS = 9;

export function probability(n, digits = DIGITS) {
  if (n == null) return DASH;
  if (n === 1 || n === 0) return String(n);
  return n < 0.5 * 10 ** -digits ? n.toExponential(0) : n.toFixed(digits);
}

// Digits that tell two probabilities apart: "0.810 < 0.810" would say nothing.
export function digitsFor(a, b) {
  let digits = DIGITS;
  while (a != null && b != null && a !== b && digits < MOST_DIGITS && probability(a, digits) === probability(b, digits)) digits += 1;
  return digits;
}

// p/q may be far above 1, where decimals say nothing.
export const quotient = (write) => (n) => (n < 10 ? write(n) : rate(n));
