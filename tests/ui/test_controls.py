"""Links, texts and the layer rule."""

import subprocess
import sys

from specdemo.ui import markup
from specdemo.ui.controls import FIELDS, from_address
from specdemo.ui.copy import TEXTS
from specdemo.ui.examples import EXAMPLES
from specdemo.ui.labels import LABELS
from tests.ui.fake_host import FakeHost


def test_settings_come_back_from_an_address():
    query = {"prompt": "a & b\n<c>", "chat": "false", "gamma": "7", "temperature": "0.5", "mode": "baseline"}
    expected = {"prompt": "a & b\n<c>", "chat": False, "gamma": 7, "temperature": 0.5, "mode": "baseline"}
    expected["auto_gamma"] = False  # a link that names a gamma means that one
    assert from_address(query, FakeHost()) == expected


def test_a_bad_value_in_an_address_is_left_out():
    query = {"gamma": "99", "temperature": "hot", "mode": "x", "seed": "3", "other": "1", "pair": "?", "drafter": "?"}
    assert from_address(query, FakeHost()) == {"seed": 3}


def test_a_rival_comes_from_the_address_if_there_is_such_a_drafter():
    assert from_address({"rival": "prompt-lookup"}, FakeHost()) == {"rival": "prompt-lookup"}
    assert from_address({"rival": "crystal-ball"}, FakeHost()) == {}


def test_both_languages_have_every_text():
    assert TEXTS["en"].keys() == TEXTS["ja"].keys()
    assert LABELS["en"].keys() == LABELS["ja"].keys()


def test_templates_hold_nothing_that_gradio_would_interpret():
    for template in (markup.stage(), markup.header("a ← b"), markup.select([("a", "b", "c")], "d", "a")):
        assert not any(sign in template for sign in ("`", "\\", "${", "{{"))


def test_an_unavailable_pair_is_disabled_with_its_reason():
    html = markup.select([("a", "A", ""), ("b", "B <b>", "needs a GPU")], "Pair", "a")
    assert '<option value="b" disabled>B &lt;b&gt; — needs a GPU</option>' in html
    assert '<option value="a" selected>A</option>' in html


def test_there_is_an_example_for_each_task():
    assert set(EXAMPLES) == {"question", "code", "summary", "translate", "maths", "story"}
    assert len(FIELDS) == 18


def test_the_page_does_not_import_torch():
    code = "import sys, specdemo.ui.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
