"""The page behind a reverse proxy that strips a sub-path, the one that GRADIO_ROOT_PATH names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from gradio_client import Client

from specdemo.events import Trace
from specdemo.ui.page import build
from tests.browser.conftest import Site
from tests.proxy import proxied
from tests.serving import launched
from tests.ui.fake_host import FakeHost

pytestmark = pytest.mark.browser

ROOTS = ["/sub", "/sub/", "SITE/sub", "SITE/sub/", "/specdemo"]  # as GRADIO_ROOT_PATH; SITE is the proxy's address


@pytest.fixture(scope="module")
def sites() -> Iterator[dict[str, Site]]:
    """For each of ROOTS the page as the proxy serves it, without the last slash."""
    found = {}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for root in ROOTS:
            prefix = root.removeprefix("SITE").rstrip("/")
            proxy = stack.enter_context(proxied(prefix))
            patch.setenv("GRADIO_ROOT_PATH", root.replace("SITE", proxy.address))
            host = FakeHost(step=0.002)
            host.prepare("smollm2-135m")
            proxy.behind = stack.enter_context(launched(build(host)))
            found[root] = Site(proxy.address + prefix, host=host)
        yield found


@pytest.mark.parametrize("slash", ["/", ""])
@pytest.mark.parametrize("root", ["/sub", "SITE/sub/", "/specdemo"])
def test_a_run_works_through_a_proxy_that_strips_a_sub_path(sites, visit, root, slash):
    visitor = visit(sites[root], f"{slash}?max_tokens=40")
    rules = "[...document.styleSheets].filter((s) => s.href?.includes('page-files')).map((s) => s.cssRules.length)"
    assert all(visitor.page.evaluate(rules))
    visitor.run("Why is the sky blue?")
    visitor.wait_phase("done")
    assert visitor.text("baseline") == visitor.text("speculative") != ""
    visitor.page.wait_for_function("window.Plotly && document.querySelector('#sd-chart-rate .main-svg')")
    ours = {request for request in visitor.requests if "page-files" in request}
    assert {httpx.get(each).status_code for each in ours} == {200}
    visitor.page.reload()
    visitor.page.wait_for_function("window.specdemo?.page.opened && document.querySelector('.sd-speculative .tok')")


@pytest.mark.parametrize("root", ROOTS)
def test_the_api_and_what_gradio_asks_for_work_through_the_proxy(sites, root):
    site = f"{sites[root].address}/"
    trace = Client(site, verbose=False).predict("Hello", max_tokens=8, api_name="/run")
    assert Trace.model_validate(trace).text("baseline")
    assert httpx.get(f"{site}gradio_api/mcp/schema").status_code == 300
    assert httpx.get(f"{site}page-files/plotly.min.js").status_code == 200
