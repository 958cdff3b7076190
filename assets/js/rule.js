// The rule that decided over a round's drafts, told from what was recorded of them (Token in specdemo/events.py), and what
// it says of one of them, in words and numbers.
//
//   chain    one draft a position, drawn from q: accept with min(1, p/q), else draw from norm(max(0, p - q))
//   drawn    siblings of a tree, each drawn from a q: the same, one after the other, against r, which is p at first and
//            norm(max(0, r - q)) behind each that was refused
//   chosen   siblings that a drafter picked without drawing, so q is 1: accept x with r(x), else strike it out of r
//   typical  Medusa's: keep what is likely enough, whatever u would say

import { digitsFor, probability, quotient } from "./format.js";
import { fate, noDraft, text } from "./words.js";

export function ruleOf(drafted, parents) {
  const tested = drafted.filter((token) => token.accept != null);
  if (tested.some((token) => token.u == null)) return "typical";
  if (!parents) return "chain";
  return drafted.every((token) => token.chance != null || token.q === 1) ? "chosen" : "drawn";
}

// Why a token has its fate.
export function reason({ outcome }, { rule, why, draftContext }) {
  if (why) return noDraft(why, draftContext);
  return `${fate(outcome)}: ${text(`rule_${sentence(outcome, rule)}`)}`;
}

function sentence(outcome, rule) {
  if (outcome === "bonus" || outcome === "plain") return outcome;
  if (outcome === "discarded" && (rule === "chosen" || rule === "drawn")) return "tree_discarded";
  return `${rule}_${outcome === "cut" ? "accepted" : outcome}`;
}

// Writes a probability in what is said of one token: all of them have the same digits, as many as it takes to see on
// which side the test fell.
export function writer({ p, accept, u, threshold }) {
  const digits = threshold == null ? digitsFor(u, accept) : digitsFor(p, threshold);
  return (value) => probability(value, digits);
}

// The test itself: u against the acceptance probability or, of typical acceptance, p against its threshold.
export function comparison(token) {
  const { p, u, accept, threshold } = token;
  const write = writer(token);
  if (threshold != null) return `p ${write(p)} ${p > threshold ? ">" : "≤"} ${write(threshold)}`;
  return u == null || accept == null ? null : `u ${write(u)} ${u < accept ? "<" : "≥"} ${write(accept)}`;
}

// The numbers that went into the decision, as [name, written] in the order of the rule.
export function figures(token, { rule, tokens }) {
  const { p, q, accept, u, tv, chance, threshold } = token;
  const write = writer(token);
  const tested = accept != null;
  const drawn = rule === "chain" || rule === "drawn";
  const rows = [["p", p, write]];
  if (drawn) rows.push(["q", q, write]);
  // Below 1 this is the acceptance probability, to the last digit.
  if (rule === "chain" && tested) rows.push(["p/q", accept < 1 ? accept : Math.max(1, p / q), quotient(write)]);
  if (rule === "chain") rows.push(["min(1, p/q)", accept, write]);
  if (rule === "drawn") rows.push(["r", tested && accept < 1 ? accept * q : null, write], ["min(1, r/q)", accept, write]);
  if (rule === "chosen") rows.push(["r", token.outcome === "resampled" ? withoutRefused(token, tokens) : accept, write]);
  rows.push([text("card_u"), u, write], [text("card_threshold"), threshold, write]);
  if (rule === "chain") rows.push(["1 − TV", tv == null ? null : 1 - tv, write]);
  rows.push([text("card_chance"), chance, write]);
  return rows.filter(([, value]) => value != null).map(([name, value, write]) => [name, write(value)]);
}

// A token's share of what its refused siblings left of p: those stand where it stands.
function withoutRefused({ p, position }, tokens) {
  const refused = tokens.filter((token) => token.outcome === "rejected" && token.position === position);
  return Math.min(1, p / (1 - refused.reduce((sum, token) => sum + token.p, 0)));
}
