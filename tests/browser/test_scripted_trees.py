"""Three lanes, and rounds as trees, in a browser over a scripted host."""

from __future__ import annotations

import itertools
import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import CONTRAST, HARD, PHONE

pytestmark = pytest.mark.browser

NODES = "#sd-tree-view .sd-node"
TITLE = "#sd-tree-title"


@pytest.fixture(autouse=True)
def pace(scripted):
    """A quick host; a test that needs time to look sets its own step."""
    scripted.host.step = 0.005
    yield
    scripted.host.step = 0.005


def open_tree(visitor, pick: str = "round.final.outcome === 'resampled' && round.accepted > 1") -> dict:
    """Opens the first round of the scripted tree that is so; what the page knows of it."""
    return visitor.page.evaluate(
        f"""() => {{
            const rounds = specdemo.page.byLane.speculative;
            const index = rounds.findIndex((round) => round.parents && {pick});
            specdemo.page.tree.open(index);
            return {{...rounds[index], index}};
        }}"""
    )


def test_a_tree_shows_every_node_by_its_fate_and_the_way_that_was_taken(scripted, visit):
    visitor = visit(scripted, "?drafter=tree")
    visitor.run()
    visitor.wait_phase("done")
    round_ = open_tree(visitor)
    for outcome in ("accepted", "rejected", "discarded", "resampled"):
        count = sum(token["outcome"] == outcome for token in round_["tokens"])
        assert visitor.page.locator(f"{NODES} .tok.{outcome}").count() == count > 0
    assert visitor.page.locator(NODES).count() == len(round_["tokens"]) + 1  # and the text's last token
    # The way is drawn over all others, from the text to the token that the target added.
    kinds = visitor.page.locator("#sd-tree-view .edge").evaluate_all("all => all.map((e) => e.classList[1])")
    way = round_["accepted"] + 1
    assert kinds[-way:] == ["accepted"] * round_["accepted"] + ["resampled"]
    widths = visitor.page.locator("#sd-tree-view .edge").evaluate_all(
        "all => all.map((e) => parseFloat(getComputedStyle(e).strokeWidth))"
    )
    assert min(widths[-way:]) > 2 * max(widths[:-way])
    assert f"{round_['draftedCount']} nodes · depth {round_['depth']}" in visitor.page.inner_text(TITLE)
    # A node stands right of its parent, and nodes lie on none of the others.
    boxes = visitor.page.locator(NODES).evaluate_all("all => all.map((n) => n.getBoundingClientRect().toJSON())")
    for child, parent in enumerate(round_["parents"]):
        assert boxes[child + 1]["left"] > boxes[parent + 1]["right"]
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            apart = one["top"] >= other["bottom"] or one["bottom"] <= other["top"]
            assert apart or one["left"] >= other["right"] or one["right"] <= other["left"]


def test_a_chain_is_the_tree_of_width_one(scripted, visit):
    visitor = visit(scripted)
    visitor.run()
    visitor.wait_phase("done")
    visitor.page.evaluate(
        "specdemo.page.tree.open(specdemo.page.byLane.speculative.findIndex((r) => r.tested < r.draftedCount))"
    )
    assert "a chain of 4" in visitor.page.inner_text(TITLE)
    tops = visitor.page.locator(f"{NODES}:not(.root)").evaluate_all("all => all.map((n) => n.style.top)")
    assert len(set(tops[:-1])) == 1 != len(set(tops))
    facts = " ".join(visitor.page.locator(f"{NODES} small").all_inner_texts())
    assert re.search(r"u \S+ ≥ \S+", facts)


def test_rounds_are_stepped_through_by_button_key_and_row_and_the_live_one_is_found_again(scripted, visit):
    visitor = visit(scripted, "?drafter=tree")
    visitor.run()
    visitor.wait_phase("done")
    last = visitor.page.evaluate("specdemo.page.byLane.speculative.length")
    title = visitor.page.locator(TITLE)
    live = visitor.page.locator('[data-step="live"]')
    visitor.page.click(".sd-round >> nth=4")
    expect(title).to_contain_text(f"round {last - 4} ")
    expect(live).to_have_attribute("aria-pressed", "false")
    visitor.page.click('[data-step="-1"]')
    expect(title).to_contain_text(f"round {last - 5} ")
    visitor.page.click('[data-step="1"]')
    visitor.page.click('[data-step="1"]')
    expect(title).to_contain_text(f"round {last - 3} ")
    assert visitor.page.locator(".sd-round.marked .sd-round-n").inner_text() == str(last - 3)
    visitor.page.focus("#sd-tree-view")
    for _ in range(20):
        visitor.page.keyboard.press("ArrowLeft")
    expect(title).to_contain_text(f"round {last - 23} ")
    visitor.page.keyboard.press("ArrowRight")
    expect(title).to_contain_text(f"round {last - 22} ")
    assert visitor.page.evaluate("document.activeElement.id") == "sd-tree-view"
    row, rows = (visitor.page.locator(s).bounding_box() for s in (".sd-round.marked", "#sd-rows"))
    assert rows["y"] <= row["y"] + 1 <= row["y"] + row["height"] <= rows["y"] + rows["height"] + 1
    live.click()
    expect(live).to_have_attribute("aria-pressed", "true")
    assert visitor.page.locator(".sd-round.marked").count() == 0
    visitor.page.evaluate("specdemo.page.tree.open(0)")
    expect(visitor.page.locator('[data-step="-1"]')).to_be_disabled()
    expect(visitor.page.locator(f"{NODES}.root")).to_have_text("prompt")


def test_the_tree_follows_the_run_until_a_visitor_steps_back(scripted, visit):
    visitor = visit(scripted, "?drafter=tree")
    scripted.host.step = 0.1
    visitor.run()
    visitor.page.wait_for_function("specdemo.page.tree.ghost?.n > 3")
    visitor.page.wait_for_selector(f"{NODES} .tok.ghost")
    visitor.page.wait_for_function("document.getElementById('sd-tree-title').textContent.includes('being verified')")
    visitor.page.wait_for_selector(f"{NODES} .tok:is(.resampled, .bonus)")
    visitor.page.click('[data-step="-1"]')
    shown = visitor.page.inner_text(TITLE)
    seen = visitor.page.evaluate("specdemo.page.byLane.speculative.length")
    visitor.page.wait_for_function(f"specdemo.page.byLane.speculative.length > {seen + 3}")
    assert visitor.page.inner_text(TITLE) == shown
    visitor.page.click('[data-step="live"]')
    assert visitor.page.inner_text(TITLE) != shown


def test_a_draft_becomes_its_verdict_where_it_stands(scripted, visit):
    visitor = visit(scripted, "?drafter=tree")
    visitor.run()
    visitor.wait_phase("done")
    at = "[...document.querySelectorAll('#sd-tree-view .sd-node')].map((node) => [node.style.left, node.style.top])"
    round_ = open_tree(visitor)
    decided = visitor.page.evaluate(at)
    visitor.page.evaluate(
        """async ({n, parents, tokens, draftedCount}) => {
            const {undecided} = await import(new URL('./page-files/js/tree.js', document.baseURI).href);
            const texts = tokens.slice(0, draftedCount).map((token) => token.text);
            specdemo.page.tree.live();
            specdemo.page.tree.advance(undecided({n, parents, texts}));
        }""",
        round_,
    )
    assert visitor.page.locator(f"{NODES} .tok.ghost").count() == round_["draftedCount"]
    assert visitor.page.evaluate(at) == decided[:-1]  # all but the token that the target adds


def test_labels_are_whole_beside_empty_space_and_columns_stay_where_they_are(scripted, visit):
    visitor = visit(scripted, "?drafter=tree")
    visitor.run()
    visitor.wait_phase("done")
    places = []
    for at in visitor.page.evaluate("specdemo.page.byLane.speculative.flatMap((r, i) => (r.depth > 2 ? [i] : []))")[:6]:
        visitor.page.evaluate(f"specdemo.page.tree.open({at})")
        labels = visitor.page.locator("#sd-tree-view .tok")
        assert labels.filter(has_text="unbelievably").count() > 0 or at
        assert (
            labels.evaluate_all("all => all.filter((label) => label.scrollWidth > label.clientWidth + 1).length") == 0
        )
        lefts = visitor.page.locator(NODES).evaluate_all("all => all.map((node) => parseFloat(node.style.left))")
        places.append(sorted(set(lefts)))
    assert all(place == max(places, key=len)[: len(place)] for place in places)


def test_the_label_of_a_node_without_children_may_be_as_long_as_there_is_room(scripted, visit):
    """In a tree so deep that columns are narrow."""
    visitor = visit(scripted)
    visitor.page.evaluate(
        """async () => {
            const {undecided} = await import(new URL('./page-files/js/tree.js', document.baseURI).href);
            const parents = [-1, -1, ...Array(9).keys()].map((at, i) => (i < 2 ? -1 : at === 0 ? 0 : i - 1));
            const texts = parents.map((_, i) => (i === 1 ? ' internationalisation' : ' unbelievably'));
            specdemo.page.tree.advance(undecided({n: 0, parents, texts}));
        }"""
    )
    whole = visitor.page.locator("#sd-tree-view .tok").evaluate_all(
        "all => all.map((l) => l.scrollWidth <= l.clientWidth + 1)"
    )
    assert whole[2]  # of the second node, whose row is empty behind it
    assert not whole[3]  # an edge has to be seen behind it


def test_a_nodes_numbers_come_to_the_pointer_and_to_the_keyboard(scripted, visit):
    visitor = visit(scripted, "?drafter=tree")
    visitor.run()
    visitor.wait_phase("done")
    round_ = open_tree(visitor)
    card = visitor.page.locator("#sd-card")
    visitor.page.hover(f"{NODES} .tok.rejected >> nth=0")
    for fact in ("rejected", "u (drawn)", "left of p", f"round {round_['n'] + 1}"):
        assert fact in card.inner_text()
    assert visitor.page.locator(f'.sd-text .round.lit[data-round="{round_["key"]}"]').count() == 1
    visitor.page.mouse.move(2, 2)
    expect(card).to_be_hidden()
    visitor.page.focus("#sd-tree-view")
    visitor.page.keyboard.press("ArrowDown")
    visitor.page.keyboard.press("ArrowDown")
    expect(card).to_be_visible()
    index = visitor.page.evaluate("Number(document.activeElement.dataset.index)")
    assert index == 1
    visitor.page.keyboard.press("ArrowLeft")
    expect(card).to_be_hidden()


def test_nodes_tell_a_screen_reader_what_they_are(scripted, visit):
    visitor = visit(scripted, "?drafter=tree")
    visitor.run()
    visitor.wait_phase("done")
    round_ = open_tree(visitor)
    label = visitor.page.locator(f"{NODES}:has(.resampled)").get_attribute("aria-label")
    behind = [token["text"] for token in round_["tokens"] if token["outcome"] == "accepted"][-1]
    assert f"resampled, depth {round_['accepted'] + 1}, behind {behind}" in label
    visitor.page.click('[data-do="lang"]')
    assert "再抽選" in visitor.page.locator(f"{NODES}:has(.resampled)").get_attribute("aria-label")
    assert "ノード" in visitor.page.inner_text(TITLE)


def test_in_the_line_of_text_a_tree_is_what_was_kept_and_one_refusal(scripted, visit):
    visitor = visit(scripted, "?drafter=tree", permissions=["clipboard-read", "clipboard-write"])
    visitor.run("echo " + HARD)
    visitor.wait_phase("done")
    assert visitor.text("speculative") == HARD
    refused = visitor.page.evaluate(
        "[...document.querySelectorAll('.sd-speculative .round')].map((r) => r.querySelectorAll('.dropped').length)"
    )
    assert set(refused) <= {0, 1}
    assert 1 in refused
    visitor.page.click('[data-copy="speculative"]')
    assert visitor.page.evaluate("navigator.clipboard.readText()") == HARD
    row = visitor.page.locator(".sd-round", has_text="nodes · depth 4").first.inner_text()
    assert re.search(r"\+ \d+ discarded", row)
    assert re.fullmatch(r"\d+ · [\d.]+", visitor.page.inner_text('.sd-speculative [data-n="nodes"]'))


@pytest.mark.parametrize("dark", [False, True])
def test_nodes_and_the_rivals_numbers_have_enough_contrast(scripted, visit, dark):
    visitor = visit(scripted, "?drafter=tree&rival=draft-model", color_scheme="dark" if dark else "light")
    visitor.run()
    visitor.wait_phase("done")
    open_tree(visitor)
    for outcome in ("accepted", "resampled", "rejected", "discarded"):
        assert visitor.page.evaluate(CONTRAST, f"{NODES} .tok.{outcome}") >= 4.5, outcome
    for selector in (".sd-rival .sd-rate b", ".sd-rival .tok.accepted", ".sd-versus small", TITLE):
        assert visitor.page.evaluate(CONTRAST, selector) >= 4.5, selector


# --- The third lane ---


def test_a_third_lane_streams_beside_the_two_and_has_its_own_number(scripted, visit):
    visitor = visit(scripted, "?rival=tree")
    visitor.page.wait_for_selector(".sd-rival .sd-text")
    scripted.host.step = 0.05
    visitor.run()
    tokens = "Object.values(specdemo.page.lanes).map((lane) => lane.tokens)"
    visitor.page.wait_for_function(f"Math.min(...{tokens}) > 14")
    assert visitor.phase() == "running"
    assert visitor.page.locator(".sd-rival .tok.accepted").count() > 2
    scripted.host.step = 0.005
    visitor.wait_phase("done")
    assert visitor.text("rival") == visitor.text("speculative") == visitor.text("baseline") != ""
    numbers = visitor.page.locator(".sd-versus b").all_inner_texts()
    assert numbers[0] == "1×"
    assert all(re.fullmatch(r"1\.\d\d×", number) for number in numbers[1:])
    assert not visitor.page.locator(".sd-hero").is_visible()
    assert "Scripted tree" in visitor.page.inner_text(".sd-rival h2")
    assert "won" in visitor.page.inner_text("#sd-verdict-text")
    left = visitor.page.locator(".sd-lane").evaluate_all("all => all.map((lane) => lane.getBoundingClientRect().left)")
    assert left == sorted(left)
    assert len({round(b - a) for a, b in itertools.pairwise(left)}) == 1


def test_without_a_rival_there_is_no_trace_of_one(scripted, visit):
    visitor = visit(scripted)
    visitor.run()
    visitor.wait_phase("done")
    for selector in (".sd-rival", ".sd-versus >> nth=0", "#sd-watch"):
        assert not visitor.page.locator(selector).is_visible()
    assert visitor.page.inner_text(".sd-speculative h2").split("\n")[-1].endswith("Draft model (4.8M)")
    assert visitor.page.locator(".sd-hero").is_visible()
    names = visitor.page.evaluate("document.getElementById('sd-chart-rate').data.map((line) => line.name)")
    assert names == ["Baseline", "Speculative"]


def test_choosing_a_rival_answers_at_once_and_goes_into_the_address(scripted, visit):
    visitor = visit(scripted)
    visitor.page.select_option("#sd-rival select", "prompt-lookup")
    expect(visitor.page.locator(".sd-rival")).to_be_visible()
    visitor.page.wait_for_function("location.search.includes('rival=prompt-lookup')")
    assert "Prompt lookup" in visitor.page.inner_text(".sd-rival h2")
    visitor.page.select_option("#sd-rival select", "")
    expect(visitor.page.locator(".sd-rival")).to_be_hidden()
    visitor.page.wait_for_function("!location.search.includes('rival')")


def test_what_a_rival_wrote_stays_when_none_is_chosen_for_the_next_run(scripted, visit):
    visitor = visit(scripted, "?rival=prompt-lookup")
    visitor.page.wait_for_selector(".sd-rival .sd-text")
    visitor.run()
    visitor.wait_phase("done")
    visitor.unfold()
    visitor.page.select_option("#sd-rival select", "")
    visitor.page.wait_for_function("!location.search.includes('rival')")
    assert visitor.page.locator(".sd-rival").is_visible()
    visitor.run()
    expect(visitor.page.locator(".sd-rival")).to_be_hidden()
    visitor.wait_phase("done")


def test_two_drafters_race_without_a_baseline(scripted, visit):
    visitor = visit(scripted, "?mode=speculative&rival=tree&max_tokens=128")
    visitor.page.wait_for_selector(".sd-rival .sd-text")
    visitor.run()
    visitor.wait_phase("done")
    assert not visitor.page.locator(".sd-baseline").is_visible()
    lead = visitor.page.inner_text("#sd-speedup")
    assert re.fullmatch(r"\d\.\d\d×", lead)
    assert visitor.page.inner_text("#sd-speedup-word") == f"rival {'faster' if float(lead[:-1]) > 1 else 'slower'}"
    assert visitor.text("rival") == visitor.text("speculative") != ""


def test_ledger_and_tree_show_the_lane_that_a_visitor_watches(scripted, visit):
    visitor = visit(scripted, "?rival=tree")
    visitor.page.wait_for_selector(".sd-rival .sd-text")
    visitor.run()
    visitor.wait_phase("done")
    lanes = "[...new Set([...document.querySelectorAll('.sd-round')].map((row) => row.dataset.round.split('-')[0]))]"
    assert visitor.page.evaluate(lanes) == ["speculative"]
    assert "chain" in visitor.page.inner_text(TITLE)
    visitor.page.check('#sd-watch [value="rival"]')
    assert visitor.page.evaluate(lanes) == ["rival"]
    assert "nodes" in visitor.page.inner_text(TITLE)
    visitor.page.locator(".sd-rival .sd-text .tok.rejected").nth(1).hover()
    assert visitor.page.locator(".sd-round.lit").count() == 1
    visitor.page.click("#sd-clear")
    assert visitor.page.locator(".sd-round").count() == 0
    assert "Each round" in visitor.page.inner_text("#sd-tree-view")


def test_on_a_phone_lanes_stack_and_the_tree_is_folded(scripted, visit):
    visitor = visit(scripted, "?drafter=tree&rival=draft-model", viewport=PHONE, has_touch=True)
    visitor.page.wait_for_selector(".sd-rival .sd-text")
    visitor.run()
    visitor.wait_phase("done")
    assert not visitor.page.locator("#sd-tree-view").is_visible()
    visitor.page.click("#sd-tree summary")
    visitor.page.wait_for_selector(f"{NODES} .tok:is(.resampled, .bonus)", state="attached")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert visitor.page.evaluate(
        "(() => { const v = specdemo.page.tree.view; return v.scrollWidth > v.clientWidth })()"
    )
    top = "document.querySelector('.sd-{}').getBoundingClientRect().top"
    tops = [visitor.page.evaluate(top.format(lane)) for lane in ("speculative", "rival", "baseline")]
    assert tops == sorted(tops)
    visitor.screenshot("scripted-phone-three-lanes")


def test_the_projector_keeps_three_lanes_apart(scripted, visit):
    visitor = visit(scripted, "?drafter=tree&rival=draft-model", viewport={"width": 1440, "height": 900})
    visitor.page.wait_for_selector(".sd-rival .sd-text")
    visitor.page.click('[data-do="projector"]')
    visitor.run()
    visitor.wait_phase("done")
    open_tree(visitor)
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 1440
    boxes = visitor.page.locator(".sd-versus").evaluate_all("all => all.map((v) => [v.scrollWidth, v.clientWidth])")
    assert all(inner <= outer for inner, outer in boxes)
    visitor.screenshot("scripted-projector-three-lanes")
