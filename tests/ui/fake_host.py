"""A host without models: it replays a scripted text with seeded verdicts, in the real schema and at a chosen pace."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator

from specdemo.errors import UserError
from specdemo.events import (
    Candidate,
    Draft,
    End,
    EndReason,
    Event,
    GreedyCheck,
    Lane,
    LaneEvent,
    Machine,
    ModelInfo,
    Prefill,
    RaceEnd,
    RaceEvent,
    RaceStart,
    Round,
    Start,
    Token,
    TopLists,
    Trace,
)
from specdemo.settings import BEST, Settings
from specdemo.ui.host import DrafterInfo, PairInfo, Status

SHORT = 30  # tokens that the "short" drafter's model can read
SLOW = 600  # seconds of a pass that lasts until the pace is another
BRANCHES = 3  # children of a scripted tree's node that the target looks at; others have one
WORDS = (" sea", " wrong", "\n", " unbelievably", "ing", " of", " 日本", " calm", " ", "=", ".")
TOP_TEXTS = (" other", " ", " unbelievably", "\n", " internationalisation", ".", " of")
SCRIPT = """Sunlight looks white, but it is a mix of all colours. When it enters the air, it meets molecules far \
smaller than its waves. Blue light has shorter waves, so it is scattered about ten times as much as red light.

```python
def scattered(wavelength):
    \"\"\"Rayleigh: the fourth power.\"\"\"
    if wavelength <= 0:
        return None
\treturn 1 / wavelength ** 4
```

<b>Tags</b> & <script>alert(1)</script> stay text, <|im_end|> too. Emoji: 🌊👩‍🚀, and 日本語も大丈夫。
"""


def pieces(text: str) -> list[str]:
    """Token-like pieces; a character outside the BMP becomes an empty piece and a whole one, as tokenizers do it."""
    found = re.findall(r"\s?\w{1,5}|\s+(?=\s)|\s?\S|\s+", text)
    return [part for piece in found for part in (["", piece] if any(ord(c) > 0xFFFF for c in piece) else [piece])]


def machine() -> Machine:
    return Machine(device="cpu", processor="a processor", threads=2, python="3.11", packages={})


class FakeHost:
    """`step` is a target pass in seconds (0 for tests); a prompt naming an error raises it, NaN in it ends the drafting
    lanes in an error on their way. The drafter "short" falls silent behind SHORT tokens of answer, or in a long prompt.
    """

    def __init__(self, step: float = 0.06, accept: float = 0.72, load_seconds: float = 0.0) -> None:
        self.step, self.accept = step, accept
        self.running = 0
        self.most_running = 0
        self.races = 0
        self.passes = 0  # of all lanes so far
        self.slows_at: int | None = None  # the pass from which on passes take for ever
        self.loading = False  # as if its models were not there yet
        self._load_seconds = load_seconds
        self._loading_since: float | None = None

    def prepare(self, pair: str) -> None:
        if self._loading_since is None:
            self._loading_since = time.monotonic()

    def status(self) -> Status:
        if self.loading:
            return Status(message="Loading SmolLM2-135M", fraction=0.5)
        passed = time.monotonic() - (self._loading_since or time.monotonic())
        if self._loading_since is not None and passed >= self._load_seconds:
            return Status(message="Ready", fraction=1.0, ready=True)
        return Status(message="Loading SmolLM2-135M", fraction=round(passed / (self._load_seconds or 1), 1))

    def pairs(self) -> list[PairInfo]:
        return [
            PairInfo(id="smollm2-135m", label="SmolLM2-135M"),
            PairInfo(
                id="qwen-7b",
                label="Qwen2.5-7B + 0.5B",
                available=False,
                reason="needs 17 GB, 9.0 GB more than are free",
            ),
        ]

    def drafters(self) -> list[DrafterInfo]:
        return [
            DrafterInfo(id="draft-model", label="Draft model (4.8M)"),
            DrafterInfo(id="prompt-lookup", label="Prompt lookup"),
            DrafterInfo(id="tree", label="Scripted tree"),
            DrafterInfo(id="short", label="Short draft"),
            DrafterInfo(id="drawn", label="Drawn tree"),
        ]

    def headline(self) -> str:
        return "target SmolLM2-135M ← draft 4.8M · cpu · fp32"

    def race(self, settings: Settings, stop: threading.Event) -> Iterator[RaceEvent]:
        if "UserError" in settings.prompt:
            raise UserError("The prompt has 9,000 tokens, but the model reads 8,192. Shorten it.")
        self.races += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            yield from self._race(settings, stop)
        finally:
            self.running -= 1

    def _race(self, settings: Settings, stop: threading.Event) -> Iterator[RaceEvent]:
        if settings.drafter == BEST:
            settings = settings.model_copy(update={"drafter": self.drafters()[0].id})
        info = ModelInfo(name="SmolLM2-135M", parameters=135_000_000, dtype="float32")
        head = Trace(created="2026-01-01T00:00:00Z", settings=settings, target=info, draft=info, machine=machine())
        yield RaceStart(trace=head)
        lanes: dict[Lane, Iterator[Event]] = {}
        if settings.mode != "speculative":
            lanes["baseline"] = self._baseline(settings, stop)
        if settings.mode != "baseline":
            lanes["speculative"] = self._speculative(settings, settings.drafter, stop)
            if settings.rival:
                lanes["rival"] = self._speculative(settings, settings.rival, stop)
        clocks = dict.fromkeys(lanes, 0.0)
        started_at = self.step or 1.0  # a test may change the pace during a run, the clocks keep it
        while lanes:
            lane = min(lanes, key=lambda name: clocks[name])
            event = next(lanes[lane], None)
            if event is None:
                del lanes[lane]
                continue
            before, clocks[lane] = clocks[lane], getattr(event, "clock", clocks[lane])
            self._sleep((clocks[lane] - before) / started_at)
            self.passes += isinstance(event, Round)
            yield LaneEvent(lane=lane, event=event)
            if "ZeroDivision" in settings.prompt and clocks[lane] > 1e-4:
                raise ZeroDivisionError("planted")
        yield RaceEnd(check=GreedyCheck(verdict="identical", compared=20, lane="speculative"))

    def _sleep(self, steps: float) -> None:
        """As long as so many target passes take, at the pace that holds in each moment."""
        if self.slows_at is not None and self.passes >= self.slows_at:
            self.step, self.slows_at = SLOW, None
        while steps > 0 and (step := self.step) > 0:
            seconds = min(steps * step, 0.02)
            time.sleep(seconds)
            steps -= seconds / step

    def _script(self, settings: Settings) -> list[str]:
        text = settings.prompt[5:] if settings.prompt.startswith("echo ") else SCRIPT
        parts = pieces(text)
        long = parts * (settings.max_tokens // len(parts) + 1) if settings.max_tokens > 256 else parts
        return long[: settings.max_tokens]

    def _end(self, done: int, settings: Settings, stop: threading.Event, clock: float) -> End:
        reason: EndReason = "stopped" if stop.is_set() else "max_tokens" if done >= settings.max_tokens else "eos"
        return End(reason=reason, tokens=done, clock=clock)

    def _opening(self, clock: float, drafter: str | None, gamma: int, context: int | None = None) -> Iterator[Event]:
        yield Start(prompt_tokens=40, drafter=drafter, gamma=gamma, draft_context=context)
        yield Prefill(done=40, total=40, clock=clock)

    def _baseline(self, settings: Settings, stop: threading.Event) -> Iterator[Event]:
        step = self.step or 1e-3
        clock = 2 * step
        yield from self._opening(clock, None, 0)
        done = 0
        for text in self._script(settings):
            if stop.is_set():
                break
            clock += step
            token = Token(id=done, text=text, outcome="plain", position=done, p=0.6)
            yield self._round(done, [], token, 0.0, step, clock)
            done += 1
        yield self._end(done, settings, stop, clock)

    def _speculative(self, settings: Settings, drafter: str, stop: threading.Event) -> Iterator[Event]:
        step, rng = self.step or 1e-3, random.Random(settings.seed)
        clock, done, number = 2 * step, 0, 0
        reads = None if drafter != "short" else 20 if "long prompt" in settings.prompt else 40 + SHORT
        yield from self._opening(clock, drafter, settings.gamma, reads)
        script = self._script(settings)
        while done < len(script) and not stop.is_set():
            if "NaN" in settings.prompt and done >= SHORT:
                yield End(reason="error", tokens=done, clock=clock, message=f"M failed at {done}.", model="M")
                return
            silent = reads is not None and 40 + done >= reads
            drafts, final = self._verdicts(script, done, 0 if silent else settings.gamma, rng)
            parents = None
            if drafter in ("tree", "drawn") and drafts:
                rule = "typical" if settings.acceptance == "typical" else "chosen" if drafter == "tree" else "drawn"
                drafts, parents = self._tree(drafts, rule, rng)
            seconds = 0.03 * step * len(drafts) if drafter == "prompt-lookup" else 0.05 * step * settings.gamma
            clock += seconds
            if drafts:
                texts = [token.text for token in drafts]
                yield Draft(round=number, start=done, texts=texts, parents=parents, clock=clock)
            clock += 1.3 * step
            decided = self._round(number, drafts, final, seconds, 1.3 * step, clock, parents)
            why = None if drafts else "draft_full" if done < len(script) - 1 else "no_room"
            yield decided.model_copy(update={"no_draft": why})
            done += sum(token.outcome == "accepted" for token in drafts) + (final is not None)
            number += 1
        yield self._end(done, settings, stop, clock)

    def _verdicts(
        self, script: list[str], start: int, gamma: int, rng: random.Random
    ) -> tuple[list[Token], Token | None]:
        wanted = min(gamma, len(script) - start - 1)
        accepted = 0
        while accepted < wanted and rng.random() < self.accept:
            accepted += 1
        drafts = []
        for i in range(wanted):
            where, text = start + i, script[start + i]
            if i < accepted:
                drafts.append(self._token(text, "accepted", where, rng))
            elif i == accepted:
                drafts.append(self._token(" wrong", "rejected", where, rng))
            else:
                drafts.append(Token(id=7, text=" lost", outcome="discarded", position=where, q=0.2))
        outcome = "plain" if not wanted else "bonus" if accepted == wanted else "resampled"
        where = start + accepted
        top = self._top(9, script[where], 0.2, None, outcome)
        return drafts, Token(id=9, text=script[where], outcome=outcome, position=where, p=0.2, top=top)

    def _tree(self, chain: list[Token], rule: str, rng: random.Random) -> tuple[list[Token], list[int]]:
        """A tree in which the target goes the way of a chain: elder siblings of what it accepted were refused, younger
        ones and whole branches never tested. rule: as in assets/js/rule.js."""
        nodes: list[Token] = []
        parents: list[int] = []
        level, way = [-1], -1  # the nodes that grow children, and the one of them that the target stands at
        for link in chain:
            taken = rng.randrange(BRANCHES) if link.outcome == "accepted" else BRANCHES
            grown, entered, left = [], None, 1.0
            for parent in level:
                for rank in range(BRANCHES if parent == way else 1):
                    where, word = link.position, WORDS[(len(nodes) + link.position) % len(WORDS)]
                    if parent != way or rank > taken:
                        token = Token(
                            id=7, text=word, outcome="discarded", position=where, q=0.2 if rule == "drawn" else 1
                        )
                    elif rank < taken:
                        token = self._node(word, "rejected", where, rule, left, rng)
                    else:
                        token = self._node(link.text, link.outcome, where, rule, left, rng)
                        entered = len(nodes)
                    left -= token.p or 0
                    grown.append(len(nodes))
                    nodes.append(token)
                    parents.append(parent)
            way = entered
            level = sorted({*grown[:BRANCHES], *([] if way is None else [way])})
        return nodes, parents

    def _token(self, text: str, outcome: str, position: int, rng: random.Random) -> Token:
        q = rng.uniform(0.2, 0.9)
        p = q * rng.uniform(0.3, 0.9 if outcome == "rejected" else 1.2)
        accept = min(1.0, p / q)
        return Token(
            id=1,
            text=text,
            outcome=outcome,
            position=position,
            p=p,
            q=q,
            accept=accept,
            u=self._uniform(accept, outcome, rng),
            tv=0.25,
            top=self._top(1, text, p, q, outcome),
        )

    def _node(self, text: str, outcome: str, position: int, rule: str, left: float, rng: random.Random) -> Token:
        """A tested node of a tree; left: what its elder siblings left of the target's probability."""
        p = rng.uniform(0.1, 0.25) if outcome != "rejected" or rule != "typical" else rng.uniform(0.01, 0.08)
        q = rng.uniform(0.2, 0.9) if rule == "drawn" else 1.0
        node = {"text": text, "outcome": outcome, "position": position, "id": 1, "p": p, "q": q}
        top = self._top(1, text, p, q if rule == "drawn" else None, outcome)
        if rule == "typical":
            return Token(**node, accept=float(outcome != "rejected"), tv=1 - p, chance=0.5, threshold=0.09, top=top)
        accept = min(1.0, p / left / q)
        return Token(
            **node,
            top=top,
            accept=accept,
            u=self._uniform(accept, outcome, rng),
            tv=1 - p,
            chance=rng.random() if rule == "chosen" else None,
        )

    def _uniform(self, accept: float, outcome: str, rng: random.Random) -> float:
        return accept * rng.random() if outcome != "rejected" else accept + (1 - accept) * rng.random()

    def _top(self, id: int, text: str, p: float, q: float | None, outcome: str) -> TopLists:
        """Lists as long as real ones, with blanks and long words in them; only a refused draft has a residual."""

        def ranked(prob: float | None) -> list[Candidate]:
            candidates = [] if prob is None else [(id, text), *enumerate(TOP_TEXTS, 100)]
            return [Candidate(id=id, text=each, prob=(prob or 0) / (i + 1)) for i, (id, each) in enumerate(candidates)]

        residual = ranked(0.3) if outcome == "rejected" else []
        return TopLists(p=ranked(p), q=ranked(q), residual=residual, plain=ranked(p / 2))

    def _round(
        self,
        number: int,
        drafted: list[Token],
        final: Token | None,
        draft: float,
        verify: float,
        clock: float,
        parents: list[int] | None = None,
    ) -> Round:
        start = drafted[0].position if drafted else final.position if final else 0
        return Round(
            round=number,
            start=start,
            drafted=drafted,
            final=final,
            parents=parents,
            draft_seconds=draft,
            verify_seconds=verify,
            overhead_seconds=0.0,
            clock=clock,
        )


if __name__ == "__main__":
    import os

    from specdemo.ui.page import build, launch_kwargs

    host = FakeHost(step=float(os.environ.get("STEP", "0.06")), load_seconds=float(os.environ.get("LOAD", "3")))
    host.prepare("smollm2-135m")
    build(host).launch(server_port=int(os.environ.get("PORT", "7890")), **launch_kwargs())
