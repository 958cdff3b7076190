// What a token is called where it is heard and not seen.

import { visible } from "./tokens.js";
import { fate, text } from "./words.js";

export function spoken(piece) {
  if (piece === "") return text("token_empty");
  if (piece.trim()) return visible(piece);
  return text(piece.includes("\n") ? "token_break" : "token_blank");
}

export const named = (token) => text("token", { a: spoken(token.text), b: fate(token.outcome) });
