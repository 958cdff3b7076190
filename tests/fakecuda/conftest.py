"""The cases change torch for good, so the suite runs them in processes of their own, see test_fakecuda.py."""

from __future__ import annotations

from tests.fakecuda.install import installed

collect_ignore = [] if installed() else ["cases"]
