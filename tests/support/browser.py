"""A real browser without a window: Debian's chromium, driven by playwright; the fixture is in tests/eval/view."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start the browser for the time of a `with` block. Without one, skip the test, or fail it where CI is set."""
    program = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if program is None:
        reason = "needs the browser chromium (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as driver:
        # Root, as in a container, may not use the browser's sandbox.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        # The browser puts a socket into its temporary folder, and the address of a socket is at most 108 bytes long.
        environment = {**os.environ, "TMPDIR": "/tmp"}
        browser = driver.chromium.launch(executable_path=program, args=arguments, env=environment)
        try:
            yield browser
        finally:
            browser.close()
