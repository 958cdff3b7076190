import pytest

from tests.ui.fake_host import FakeHost


@pytest.fixture
def host() -> FakeHost:
    """A host that does not sleep between model calls."""
    return FakeHost(step=0)
