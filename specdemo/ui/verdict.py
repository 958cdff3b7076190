"""The run in one sentence, in both languages, with the reason in numbers."""

from __future__ import annotations

from collections.abc import Iterator

from specdemo.events import End, GreedyCheck, NoDraft
from specdemo.metrics import COMPARABLE, LaneMetrics, RaceMetrics, common_tokens
from specdemo.settings import Acceptance
from specdemo.ui.copy import TEXTS
from specdemo.ui.format import milliseconds, percent, rate, ratio
from specdemo.ui.japanese import japanese

Texts = dict[str, str]
"""The same text by language: {"en": ..., "ja": ...}."""

_DRAW = 1.02  # below this, speeds differ by no more than the noise of the clocks
_AT_THE_EDGES: set[NoDraft] = {"no_room", "too_early"}  # a first or last token that is nobody's fault
_UNDRAFTED: Texts = {
    "en": "Nothing was drafted in {a} of {b} rounds: {reasons}.",
    "ja": "{b} ラウンド中 {a} ラウンドは下書きなし: {reasons}。",
}
_DUEL: dict[str, Texts] = {
    "en": {
        "won": "{winner} won: {factor}× as fast as {loser} over the same {tokens} tokens.",
        "draw": "A draw: {winner} and {loser} were equally fast over the same {tokens} tokens.",
        "base": " Against the baseline: {winner} {a}×, {loser} {b}×.",
        "both_lost": " Both lost to plain decoding.",
        "why": " Why: {reasons}.",
        "and": "; ",
        "steps": "a round of {name} cost {cost} target steps and yielded {yielded} tokens",
        "seconds": "a round of {name} took {cost} and yielded {yielded} tokens",
        "accepted": " (accepted at {alpha} of the positions tested)",
    },
    "ja": {
        "won": "{winner}の勝ち: 同じ {tokens} トークンで{loser}の {factor} 倍の速さ。",
        "draw": "引き分け: 同じ {tokens} トークンで{winner}と{loser}は同じ速さ。",
        "base": "ベースライン比: {winner}{a} 倍、{loser}{b} 倍。",
        "both_lost": "どちらも通常のデコードに負けました。",
        "why": "理由: {reasons}。",
        "and": "、",
        "steps": "{name}の 1 ラウンドは {cost} 歩分の費用で {yielded} トークン",
        "seconds": "{name}の 1 ラウンドは {cost} で {yielded} トークン",
        "accepted": "（検証した位置の {alpha} で採択）",
    },
}


def verdict(race: RaceMetrics, names: tuple[str, str] = ("", "")) -> Texts:
    """Measured against predicted speed, and why. Says so plainly where speculation loses, or which drafter won, where
    nothing was drafted, and what went wrong; `names` are those of the speculative lane's drafter and of its rival."""
    parts = [_comparison(race, names), *_silences(race, names), *_failures(race)]
    return {"en": " ".join(part["en"] for part in parts), "ja": "".join(part["ja"] for part in parts)}


def _comparison(race: RaceMetrics, names: tuple[str, str]) -> Texts:
    if race.speculative.rounds and race.rival.rounds:
        return _duel(race, names)
    if not race.baseline.rounds or not race.speculative.rounds:
        return _one_lane(race)
    if race.speedup is None or race.common_tokens < COMPARABLE:
        return _too_short(race.common_tokens)
    speedup, lane = race.speedup, race.speculative
    en, ja = _headline(speedup, race.common_tokens)
    if race.predicted_speedup is not None:
        en += f" The formula predicts {ratio(race.predicted_speedup)}×."
        ja += f"公式による予測は {ratio(race.predicted_speedup)} 倍。"
    if lane.alpha is not None and race.c is not None and race.v is not None:
        # Siblings of a tree are tested for one position.
        share = f"{percent(lane.alpha)} of the tested drafts"
        if lane.tree_rounds:
            share = f"a draft at {percent(lane.alpha)} of the positions tested"
        en += (
            f" Why: the target accepted {share}, which gave {ratio(lane.tokens_per_pass)}"
            f" tokens per target pass; a draft step cost {ratio(race.c)} and a verification {ratio(race.v)} of a plain"
            " target step."
        )
        tested = "位置" if lane.tree_rounds else "下書き"
        ja += (
            f"検証した{tested}の {percent(lane.alpha)} で採択され、"
            f"本体モデル 1 回あたり {ratio(lane.tokens_per_pass)} トークン。"
            f"下書き 1 歩は通常の 1 歩の {ratio(race.c)} 倍、検証は {ratio(race.v)} 倍の時間。"
        )
    if speedup < 1:
        cause = _loss(race)
        en, ja = en + cause["en"], ja + cause["ja"]
    return {"en": en, "ja": ja}


def lane_names(names: tuple[str, str]) -> tuple[Texts, Texts]:
    """What to call the two lanes that draft: by their drafters, and where those are the same, by their place too."""
    # In quotes: a label like "Lookup, retrieval, draft" would fall apart in a sentence.
    one, other = ({"en": f"“{name}”", "ja": f"「{japanese(name)}」"} for name in names)
    if one == other:
        other = {"en": f"{other['en']} (third lane)", "ja": f"{other['ja']}（第 3 レーン）"}
    return one, other


def _duel(race: RaceMetrics, names: tuple[str, str]) -> Texts:
    """Which of two drafters won, by how much, and why: tokens a round against what a round costs."""
    tokens = common_tokens(race.rival, race.speculative)
    if race.lead is None or tokens < COMPARABLE:
        return _too_short(tokens)
    sides = list(zip((race, race.of_rival), lane_names(names), strict=True))
    first, second = sides if race.lead < 1 else sides[::-1]
    factor = max(race.lead, 1 / race.lead)
    told = {}
    for language, words in _DUEL.items():
        winner, loser = first[1][language], second[1][language]
        key = "draw" if factor < _DRAW else "won"
        text = words[key].format(winner=winner, loser=loser, factor=ratio(factor), tokens=tokens)
        speeds = [side.speedup if side.common_tokens >= COMPARABLE else None for side, _ in (first, second)]
        if None not in speeds:
            text += words["base"].format(winner=winner, loser=loser, a=ratio(speeds[0]), b=ratio(speeds[1]))
            text += words["both_lost"] if max(speeds) < 1 else ""
        reasons = [_reason(side, name[language], words) for side, name in (first, second)]
        told[language] = text + words["why"].format(reasons=words["and"].join(reasons))
    return told


def _reason(side: RaceMetrics, name: str, words: Texts) -> str:
    """What a round of a side yielded and cost: in target steps, or in seconds where no baseline says what a step is."""
    lane = side.speculative
    if side.round_cost is None:
        seconds = lane.draft_seconds + lane.verify_seconds + lane.overhead_seconds
        key, cost = "seconds", milliseconds(seconds / lane.rounds)
    else:
        key, cost = "steps", ratio(side.round_cost)
    accepted = "" if lane.alpha is None else words["accepted"].format(alpha=percent(lane.alpha))
    return words[key].format(name=name, yielded=ratio(lane.tokens_per_pass), cost=cost) + accepted


def _headline(speedup: float, tokens: int) -> tuple[str, str]:
    if abs(speedup - 1) < _DRAW - 1:
        return (
            f"No difference: {ratio(speedup)}× over the same {tokens} tokens.",
            f"差はありません: 同じ {tokens} トークンで {ratio(speedup)} 倍。",
        )
    if speedup > 1:
        return (
            f"Speculation was {ratio(speedup)}× as fast over the same {tokens} tokens.",
            f"投機的デコードは同じ {tokens} トークンで {ratio(speedup)} 倍の速さ。",
        )
    return (
        f"Speculation lost: {ratio(speedup)}× the speed of plain decoding over the same {tokens} tokens.",
        f"投機的デコードの負け: 同じ {tokens} トークンで通常の {ratio(speedup)} 倍の速さ。",
    )


def _loss(race: RaceMetrics) -> Texts:
    """What made a loss: a round has to yield more tokens than it costs target steps."""
    lane = race.speculative
    cost = race.round_cost
    if not lane.tokens_per_pass or cost is None:
        return {"en": "", "ja": ""}
    return {
        "en": f" A round cost {ratio(cost)} target steps and yielded {ratio(lane.tokens_per_pass)} tokens.",
        "ja": f"1 ラウンドの費用は {ratio(cost)} 歩分、得たのは {ratio(lane.tokens_per_pass)} トークン。",
    }


def _one_lane(race: RaceMetrics) -> Texts:
    lane: LaneMetrics = race.speculative if race.speculative.rounds else race.baseline
    if not lane.tokens:
        return {"en": "No token was produced.", "ja": "トークンは生成されませんでした。"}
    en, ja = f"{lane.tokens} tokens", f"{lane.tokens} トークン"
    if lane.decode_rate:
        en, ja = f"{en} at {rate(lane.decode_rate)} tokens/s", f"{ja}、{rate(lane.decode_rate)} トークン/秒"
    if sum(bool(each.rounds or each.end) for each in (race.baseline, race.speculative, race.rival)) > 1:
        return {
            "en": f"{en}. Nothing came from another lane to compare it with.",
            "ja": f"{ja}。他のレーンの出力がないため比較はありません。",
        }
    return {
        "en": f"{en}. One lane ran alone, so there is nothing to compare it with.",
        "ja": f"{ja}。片方のレーンだけなので比較はありません。",
    }


def _too_short(common: int) -> Texts:
    return {
        "en": f"The run was too short to compare the lanes: both have {_tokens(common) if common else 'no token'}.",
        "ja": f"比較するには実行が短すぎました: 両方にあるのは {common} トークンだけです。",
    }


def _tokens(n: int) -> str:
    return f"{n} token" if n == 1 else f"{n} tokens"


def undrafted(lane: LaneMetrics) -> Texts | None:
    """In how many rounds nothing was drafted, and why; None where there is nothing to tell."""
    counts, total = lane.undrafted, lane.undrafted.total()
    if not total or (set(counts) <= _AT_THE_EDGES and total < lane.rounds):
        return None
    told = {}
    for language, template in _UNDRAFTED.items():
        reasons = [
            TEXTS[language][f"why_{why}"].format(n=lane.draft_context) + (f" ({count})" if len(counts) > 1 else "")
            for why, count in counts.most_common()
        ]
        told[language] = template.format(a=total, b=lane.rounds, reasons="; ".join(reasons))
    return told


def _silences(race: RaceMetrics, names: tuple[str, str]) -> Iterator[Texts]:
    """What each lane that drafts has to say of the rounds in which it did not."""
    for lane, name in zip((race.speculative, race.rival), lane_names(names), strict=True):
        if told := undrafted(lane):
            yield {each: f"{name[each]}: {told[each]}" if race.rival.rounds else told[each] for each in told}


def failure(end: End) -> Texts:
    """The sentence of a lane that ended in an error."""
    ja = (
        f"{end.model} はトークン {end.tokens} の確率を計算できませんでした（ロジットが NaN か無限大）。"
        "文はそこで終わります。重みが壊れているか、16 ビットでは桁があふれています。"
        "読み込み直すか、--dtype fp32 で起動してください。"
    )
    return {"en": end.message, "ja": ja if end.model else japanese(end.message)}


def _failures(race: RaceMetrics) -> Iterator[Texts]:
    """Errors that lanes ended in, each once, with the lanes that it ended where those are not all."""
    ends = {name: end for name in ("baseline", "speculative", "rival") if (end := getattr(race, name).end)}
    failed = {name: failure(end) for name, end in ends.items() if end.reason == "error"}
    for told in {told["en"]: told for told in failed.values()}.values():
        lanes = [name for name in failed if failed[name] == told]
        if len(lanes) == len(ends):
            yield told
        else:
            yield {each: f"{', '.join(TEXTS[each][name] for name in lanes)}: {told[each]}" for each in told}


def check_note(
    check: GreedyCheck,
    temperature: float,
    race: RaceMetrics,
    names: tuple[str, str] = ("", ""),
    acceptance: Acceptance = "exact",
) -> dict[str, str]:
    """The lanes' texts compared: {"kind": ..., "en": ..., "ja": ...}. With a rival, a text that parts is named."""
    n, at = check.compared, check.position
    ends = {lane.end.reason for lane in (race.baseline, race.speculative, race.rival) if lane.end}
    if check.verdict == "identical":
        en, ja = f"Texts identical over {_tokens(n)}.", f"{n} トークンまで完全に一致。"
        if "error" in ends:
            en, ja = f"{en[:-1]}, as far as both came.", f"出力された {ja}"
    elif check.verdict == "near_tie":
        gap = "" if check.gap is None else f" (gap {check.gap:.1g})"
        en = f"Near-tie at token {at}{gap}: the two best logits lie within floating-point noise, so the texts part."
        ja = f"トークン {at} でほぼ同点{gap}: 上位 2 つの差が浮動小数点の誤差以下で、以降の文が分かれます。"
    elif check.verdict == "different":
        en = f"BUG: the texts differ at token {at} with no tie to excuse it."
        ja = f"バグ: トークン {at} で同点でないのに文が異なります。"
    elif sum(lane.rounds > 0 for lane in (race.baseline, race.speculative, race.rival)) < 2:
        return {"kind": "none", "en": "", "ja": ""}
    elif temperature > 0 and acceptance == "typical":
        en = "Typical acceptance keeps drafts that are likely enough: the text is NOT distributed as the target's."
        ja = "typical 採択: もっともらしい下書きを残すため、出力の分布は本体モデルのものとは異なります。"
    elif temperature > 0:
        en = "Temperature above 0: the lanes draw from the same distribution with their own dice, so the texts differ."
        ja = "温度が 0 より大きいため、各レーンは同じ分布から別々に抽選し、文は異なります。"
    elif "stopped" in ends:
        en, ja = "Stopped before the end: the texts were not compared.", "途中で停止したため、文は比較されていません。"
    elif at is not None:
        en = f"The texts part at token {at}, where the target computes no probabilities: they cannot be compared."
        ja = f"文はトークン {at} で分かれますが、本体モデルの確率が計算できないため比較できません。"
    elif "error" in ends:
        en, ja = (
            "A lane ended in an error: there is no token to compare.",
            "エラーのため比較できるトークンがありません。",
        )
    else:
        en, ja = "The texts were not compared.", "文は比較されていません。"
    if race.rival.rounds and check.verdict in ("near_tie", "different"):
        name = lane_names(names)[check.lane == "rival"]
        en, ja = f"{name['en']}: {en}", f"{name['ja']}: {ja}"
    return {"kind": check.verdict, "en": en, "ja": ja}
