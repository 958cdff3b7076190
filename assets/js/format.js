// Numbers as the page writes them.

const DASH = "–";
export const count = (n) => String(n);
export const rate = (n) => (n == null ? DASH : n.toFixed(n < 100 ? 1 : 0));
export const ratio = (n) => (n == null ? DASH : n.toFixed(2));
export const percent = (n) => (n == null ? DASH : `${(100 * n).toFixed(0)} %`);
export const probability = (n) => (n == null ? DASH : n >= 0.9995 ? "1" : n < 0.0005 && n > 0 ? n.toExponential(0) : n.toFixed(3));

export function milliseconds(seconds) {
  if (seconds == null) return DASH;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}
