"""The page as a server: its API, its queue, its own files."""

import gzip
import json
import threading

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from specdemo.events import Trace
from specdemo.ui.assets import STYLES
from specdemo.ui.page import build
from tests.serving import launched
from tests.ui.fake_host import FakeHost
from tests.ui.test_stream import wait_until


@pytest.fixture(scope="module")
def served():
    host = FakeHost(step=0.005)
    with launched(build(host)) as address:
        yield host, address


@pytest.fixture
def client(served):
    return Client(served[1], verbose=False)


def test_the_api_returns_a_trace(client):
    result = client.predict("Hello", max_tokens=12, seed=5, api_name="/run")
    trace = Trace.model_validate(result)
    assert trace.text("baseline") == trace.text("speculative") != ""
    assert trace.settings.seed == 5


def test_the_api_races_a_rival(client):
    job = client.submit("Hello", max_tokens=40, rival="prompt-lookup", api_name="/run")
    trace = Trace.model_validate(job.result(60))
    assert trace.text("rival") == trace.text("baseline") != ""
    assert trace.settings.rival == "prompt-lookup"


def test_the_api_tells_a_mistake_in_a_sentence(client):
    with pytest.raises(AppError, match="Gamma is 99"):
        client.predict("Hello", gamma=99, api_name="/run")
    with pytest.raises(AppError, match="Shorten it"):
        client.predict("UserError", api_name="/run")


@pytest.mark.parametrize(("escaped", "read"), [(r"\ud83d", "\ufffd"), (r"a\u0000b", "a\0b"), (r"\ud83d\ude00", "😀")])
def test_the_api_takes_any_text(served, escaped, read):
    # By hand: Python's client refuses to send half a character, JavaScript's and curl do not.
    calls = f"{served[1]}gradio_api/call/v2/run"
    body = f'{{"prompt": "{escaped}", "max_tokens": 4}}'
    called = httpx.post(calls, content=body, headers={"content-type": "application/json"})
    said = httpx.get(f"{calls.replace('/v2', '')}/{called.json()['event_id']}", timeout=60).text
    assert "event: complete" in said
    (trace,) = json.loads(said.rsplit("data: ", 1)[1])
    assert Trace.model_validate(trace).settings.prompt == read


def test_only_one_endpoint_is_public(client):
    assert list(client.view_api(return_format="dict")["named_endpoints"]) == ["/run"]


def test_runs_take_turns(served):
    host, address = served
    results = []

    def one():
        results.append(Client(address, verbose=False).predict("Hello", max_tokens=30, api_name="/run"))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 3
    assert host.most_running == 1


def test_the_api_tells_the_place_in_line(served):
    _, address = served
    first = Client(address, verbose=False).submit("Hello", max_tokens=600, api_name="/run")
    wait_until(lambda: first.outputs())
    second = Client(address, verbose=False).submit("Hello", max_tokens=8, api_name="/run")
    assert Trace.model_validate(second.result(120)).text("baseline")
    assert {"waiting": {"place": 1, "of": 1}} in second.outputs()


def test_what_is_no_page_is_answered_as_it_is(served):
    """The page's address gets a line of script; a probe with another method has to get what was announced."""
    _, address = served
    for method in ("POST", "OPTIONS", "HEAD", "DELETE"):
        answer = httpx.request(method, address)
        assert method == "HEAD" or int(answer.headers["content-length"]) == len(answer.content)
    page = httpx.get(address)
    assert "createElement('base')" in page.text
    assert int(page.headers["content-length"]) == len(page.content)


def test_scripts_come_from_this_server(served):
    _, address = served
    response = httpx.get(f"{address}page-files/plotly.min.js")
    assert response.headers["content-encoding"] == "gzip"
    assert len(gzip.compress(response.content)) > 100_000
    assert "export function mountStage" in httpx.get(f"{address}page-files/js/page.js").text
    for style in STYLES:
        assert f"page-files/css/{style}.css" in httpx.get(address).text
        assert httpx.get(f"{address}page-files/css/{style}.css").status_code == 200
    assert httpx.get(f"{address}page-files/js/%2e%2e/css/base.css").status_code == 404
