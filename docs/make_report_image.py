"""Photographs the report of a run for the documentation: `python docs/make_report_image.py RUN_DIR`, with Chromium."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rl_training.reporting.report import write_report

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests"))
from browser import Browser, find_browser  # noqa: E402


def main() -> None:
    program = find_browser()
    assert program is not None, "no browser found"
    browser = Browser(program, width=1100)
    try:
        with tempfile.TemporaryDirectory() as folder:
            browser.open(write_report(Path(sys.argv[1]), Path(folder) / "report.html"))
            browser.run("new Promise(done => setTimeout(done, 1500))")  # the video has begun
            x, y = browser.run(
                "(r => [r.x + r.width / 2, r.y + r.height / 2])"
                "(document.querySelector('figure.chart svg').getBoundingClientRect())"
            )
            browser.hover(x, y)
            (DOCS / "images" / "report.png").write_bytes(browser.screenshot(1500))
    finally:
        browser.close()


if __name__ == "__main__":
    main()
