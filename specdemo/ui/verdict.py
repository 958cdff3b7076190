"""The run in one sentence, in both languages, with the reason in numbers."""

from __future__ import annotations

from specdemo.events import GreedyCheck
from specdemo.metrics import LaneMetrics, RaceMetrics

Texts = dict[str, str]
"""The same text by language: {"en": ..., "ja": ...}."""


def verdict(race: RaceMetrics) -> Texts:
    """Measured against predicted speed, and why. Says so plainly where speculation loses."""
    if not race.baseline.rounds or not race.speculative.rounds:
        return _one_lane(race)
    if race.speedup is None:
        return {
            "en": "The run was too short to compare the lanes.",
            "ja": "比較するには実行が短すぎました。",
        }
    speedup, lane = race.speedup, race.speculative
    en, ja = _headline(speedup, race.common_tokens)
    if race.predicted_speedup is not None:
        en += f" The formula predicts {race.predicted_speedup:.2f}×."
        ja += f"公式による予測は {race.predicted_speedup:.2f} 倍。"
    if lane.alpha is not None and race.c is not None and race.v is not None:
        en += (
            f" Why: the target accepted {lane.alpha:.0%} of the tested drafts, which gave {lane.tokens_per_pass:.2f}"
            f" tokens per target pass; a draft step cost {race.c:.2f} and a verification {race.v:.2f} of a plain"
            " target step."
        )
        ja += (
            f"検証した下書きの {lane.alpha:.0%} を採択し、本体モデル 1 回あたり {lane.tokens_per_pass:.2f} トークン。"
            f"下書き 1 歩は通常の 1 歩の {race.c:.2f} 倍、検証は {race.v:.2f} 倍の時間。"
        )
    if speedup < 1:
        cause = _loss(race)
        en, ja = en + cause["en"], ja + cause["ja"]
    return {"en": en, "ja": ja}


def _headline(speedup: float, tokens: int) -> tuple[str, str]:
    if abs(speedup - 1) < 0.02:
        return (
            f"No difference: {speedup:.2f}× over the same {tokens} tokens.",
            f"差はありません: 同じ {tokens} トークンで {speedup:.2f} 倍。",
        )
    if speedup > 1:
        return (
            f"Speculation was {speedup:.2f}× as fast over the same {tokens} tokens.",
            f"投機的デコードは同じ {tokens} トークンで {speedup:.2f} 倍の速さ。",
        )
    return (
        f"Speculation lost: {speedup:.2f}× the speed of plain decoding over the same {tokens} tokens.",
        f"投機的デコードの負け: 同じ {tokens} トークンで通常の {speedup:.2f} 倍の速さ。",
    )


def _loss(race: RaceMetrics) -> Texts:
    """What made a loss: a round has to yield more tokens than it costs target steps."""
    lane = race.speculative
    cost = race.round_cost
    if not lane.tokens_per_pass or cost is None:
        return {"en": "", "ja": ""}
    return {
        "en": f" A round cost {cost:.2f} target steps and yielded {lane.tokens_per_pass:.2f} tokens.",
        "ja": f"1 ラウンドの費用は {cost:.2f} 歩分、得たのは {lane.tokens_per_pass:.2f} トークン。",
    }


def _one_lane(race: RaceMetrics) -> Texts:
    lane: LaneMetrics = race.speculative if race.speculative.rounds else race.baseline
    if not lane.tokens:
        return {"en": "No token was produced.", "ja": "トークンは生成されませんでした。"}
    en, ja = f"{lane.tokens} tokens", f"{lane.tokens} トークン"
    if lane.decode_rate:
        en, ja = f"{en} at {lane.decode_rate:.1f} tokens/s", f"{ja}、{lane.decode_rate:.1f} トークン/秒"
    return {
        "en": f"{en}. One lane ran alone, so there is nothing to compare it with.",
        "ja": f"{ja}。片方のレーンだけなので比較はありません。",
    }


def check_note(check: GreedyCheck, temperature: float, race: RaceMetrics) -> dict[str, str]:
    """The lanes' texts compared: {"kind": ..., "en": ..., "ja": ...}."""
    n, at = check.compared, check.position
    if check.verdict == "identical":
        en, ja = f"Texts identical over {n} tokens.", f"{n} トークンまで完全に一致。"
    elif check.verdict == "near_tie":
        gap = "" if check.gap is None else f" (gap {check.gap:.1g})"
        en = f"Near-tie at token {at}{gap}: the two best logits lie within floating-point noise, so the texts part."
        ja = f"トークン {at} でほぼ同点{gap}: 上位 2 つの差が浮動小数点の誤差以下で、以降の文が分かれます。"
    elif check.verdict == "different":
        en = f"BUG: the texts differ at token {at} with no tie to excuse it."
        ja = f"バグ: トークン {at} で同点でないのに文が異なります。"
    elif not race.baseline.rounds or not race.speculative.rounds:
        return {"kind": "none", "en": "", "ja": ""}
    elif temperature > 0:
        en = "Temperature above 0: both lanes draw from the same distribution with their own dice, so the texts differ."
        ja = "温度が 0 より大きいため、両レーンは同じ分布から別々に抽選し、文は異なります。"
    else:
        en, ja = "The texts were not compared.", "文は比較されていません。"
    return {"kind": check.verdict, "en": en, "ja": ja}
