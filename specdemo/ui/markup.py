"""The page's own HTML: what stands still while JavaScript fills it.

gr.HTML runs its templates through Handlebars and a JavaScript template string, so no text here may hold a backtick,
a backslash, a dollar sign before a brace, or double braces.
"""

from __future__ import annotations

import html
from collections.abc import Collection

from specdemo.ui.copy import TEXTS, span

OUTCOMES = ("accepted", "resampled", "bonus", "rejected", "discarded", "plain", "ghost")


def header(headline: str) -> str:
    return f"""
<header class="sd-top">
  <h1>specdemo</h1>
  <p class="sd-tagline">{span("tagline")}</p>
  <p class="sd-headline notranslate" id="sd-headline" translate="no">{html.escape(headline)}</p>
  <nav class="sd-tools">
    <button type="button" data-do="link">{span("link")}</button>
    <button type="button" data-do="lang" lang="ja">{span("lang")}</button>
    <button type="button" data-do="theme">{span("theme")}</button>
    <button type="button" data-do="projector" aria-pressed="false">{span("projector")}</button>
  </nav>
</header>"""


def fold() -> str:
    """The button that folds prompt and settings into one row, and says them in short."""
    return (
        '<button type="button" id="sd-fold" aria-expanded="true" aria-controls="sd-controls">'
        f"{span('settings')} <small></small></button>"
    )


def _label(key: str) -> str:
    """What assistive technology calls an element; the language switch finds it by its key."""
    return f'data-name="{key}" aria-label="{TEXTS["en"][key]}"'


def _number(key: str) -> str:
    """A small labelled figure; its value is filled in by data-n."""
    hint = TEXTS["en"][key + "_hint"]
    return (
        f'<div class="sd-num" data-hint="{key}_hint" title="{hint}"><dt>{span(key)}</dt><dd data-n="{key}">–</dd></div>'
    )


_NUMBERS = ("ttft", "tpot", "end_to_end")
_DRAFTING_NUMBERS = (*_NUMBERS, "per_pass", "alpha", "expected_alpha", "draft_acceptance", "nodes")


def _lane(lane: str) -> str:
    drafts = lane != "baseline"
    # Beside two others a lane says itself how fast it is against the baseline.
    versus = "<b>–×</b> <span></span> <small></small>" if drafts else f"<b>1×</b> {span('reference')}"
    note = "" if lane == "rival" else f'<small class="sd-note">{span(lane + "_note")}</small>'
    drafter = f'<small class="sd-drafter" data-of="{lane}"></small>' if drafts else ""
    return f"""
<article class="sd-lane sd-{lane}{" sd-drafting" if drafts else ""}" data-lane="{lane}">
  <p class="sd-versus">{versus}</p>
  <div class="sd-lane-head">
    <h2>{span(lane)} {note}{drafter}</h2>
    <p class="sd-rate"><b data-n="rate">–</b> {span("rate")}</p>
  </div>
  <div class="sd-progress" role="progressbar" aria-valuemin="0" aria-valuenow="0" {
        _label("progress_of_" + lane)
    }><i></i></div>
  <p class="sd-count"><span data-n="count">0</span><span data-n="ending"></span>
    <button type="button" class="sd-copy" data-do="copy" data-copy="{lane}">{span("copy")}</button></p>
  <div class="sd-text" tabindex="0" role="region" {_label("text_of_" + lane)}><p class="sd-empty" data-t="empty_{
        lane
    }">{TEXTS["en"]["empty_" + lane]}</p></div>
  <dl class="sd-nums">{"".join(_number(key) for key in (_DRAFTING_NUMBERS if drafts else _NUMBERS))}</dl>
</article>"""


def legend() -> str:
    items = "".join(
        f'<li data-hint="legend_{name}_hint" title="{TEXTS["en"][f"legend_{name}_hint"]}">'
        f'<span class="tok {name}"><i class="mark"></i>{span("legend_" + name)}</span></li>'
        for name in OUTCOMES
    )
    return f"""
<div class="sd-legend"><ul>{items}</ul>
  <label><input type="checkbox" id="sd-dropped" checked> {span("show_dropped")}</label>
</div>"""


def _rounds() -> str:
    """One round as a tree, all of them as a list, and whose they are where two lanes draft."""
    lanes = "".join(
        f'<label><input type="radio" name="sd-watched" value="{lane}"{" checked" if lane == "speculative" else ""}> '
        f'{span(lane)} <small class="sd-drafter" data-of="{lane}"></small></label>'
        for lane in ("speculative", "rival")
    )
    return f"""
  <div class="sd-watch" id="sd-watch" role="radiogroup" aria-labelledby="sd-watch-word">
    <span id="sd-watch-word">{span("watch")}</span>{lanes}</div>
  <details class="sd-tree" id="sd-tree" open>
    <summary>{span("tree")} <small>{span("tree_note")}</small></summary>
    <div class="sd-tree-bar">
      <button type="button" data-step="-1" disabled>‹ {span("tree_previous")}</button>
      <button type="button" data-step="1" disabled>{span("tree_next")} ›</button>
      <button type="button" data-step="live" aria-pressed="true" data-hint="tree_live_hint" title="{
        TEXTS["en"]["tree_live_hint"]
    }">● {span("tree_live")}</button>
      <p id="sd-tree-title" role="status" aria-live="off"></p>
    </div>
    <div class="sd-tree-view" id="sd-tree-view" tabindex="0" role="group" aria-describedby="sd-tree-keys">
      <p class="sd-empty">{span("tree_empty")}</p></div>
    <p class="sd-unseen" id="sd-tree-keys">{span("tree_keys")}</p>
  </details>
  <details class="sd-ledger" id="sd-ledger" open>
    <summary>{span("ledger")} <small>{span("ledger_note")}</small></summary>
    <div class="sd-rows" id="sd-rows" tabindex="0" role="region" {_label("ledger")}>
      <p class="sd-empty">{span("ledger_empty")}</p></div>
  </details>"""


def stage() -> str:
    """Status, the lanes, the number between two of them, legend, verdict, charts and rounds."""
    charts = "".join(
        f"<figure><figcaption>{span('chart_' + name)}{note}</figcaption>"
        f'<div class="sd-chart" id="sd-chart-{name}"></div></figure>'
        for name, note in (("alpha", " " + span("chart_alpha_note", "small")), ("rate", ""), ("round", ""))
    )
    return f"""
<div class="sd-stage" id="sd-stage" data-phase="idle" data-lanes="pair">
  <div class="sd-status" role="status"><span id="sd-status-text"></span> <small id="sd-kept"></small>
    <i id="sd-status-bar"></i></div>
  <div class="sd-lanes">
    {_lane("baseline")}
    <div class="sd-hero" aria-live="off"><b id="sd-speedup">–×</b><span id="sd-speedup-word">{
        TEXTS["en"]["speedup"]
    }</span><small id="sd-speedup-over"></small></div>
    {_lane("speculative")}
    {_lane("rival")}
  </div>
  {legend()}
  <div class="sd-verdict" id="sd-verdict"><p id="sd-verdict-text"></p><p id="sd-check-text"></p></div>
  <div class="sd-charts">{charts}</div>
  {_rounds()}
  <p class="sd-end"><button type="button" data-do="download">{span("download")}</button></p>
  <div class="sd-card" id="sd-card" role="tooltip" hidden></div>
</div>"""


def option(text: str, reason: str = "") -> str:
    """What an option says."""
    return f"{text} — {reason}" if reason else text


def select(choices: list[tuple[str, str, str]], label: str, chosen: str, trees: Collection[str] = ()) -> str:
    """A native drop-down of (value, label, why not): a choice with a reason is shown disabled. `trees` are marked for
    the style sheet, which dims what does not bound them."""
    options = "".join(
        f'<option value="{html.escape(value)}"{" selected" if value == chosen else ""}'
        f"{' disabled' if reason else ''}{' data-tree' if value in trees else ''}>"
        f"{html.escape(option(text, reason))}</option>"
        for value, text, reason in choices
    )
    return f'<label class="sd-select"><span data-testid="block-info">{label}</span><select>{options}</select></label>'
