"""The report of a run: what is on the page, what is refused in one line, and the page in a real browser."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, find_browser
from runs import KINDS, RUNS
from test_cli import cli, refused
from test_compare import bad_runs, make_bad_runs, write_run

from rl_training.registry import ALGORITHMS
from rl_training.reporting import policy_pictures, report
from rl_training.reporting.page import MOST_POINTS, Page, Series, thinned
from rl_training.reporting.records import read_run

# One run of every kind of algorithm that is there: on-policy, off-policy, recurrent, search, world model.
SHOWN = [
    *KINDS,
    *(name for name, run in RUNS.items() if run["algo"] == "dreamer" and "dreamer" in ALGORITHMS),
][:6]


def charts_of(page: str) -> dict[str, list[dict]]:
    """Title -> series of every chart of a page."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    return {chart["title"]: chart["series"] for chart in json.loads(data)}


@pytest.fixture(scope="module")
def page(trained_run, tmp_path_factory):
    """The report of the small PPO run, as text."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.write_report(trained_run("ppo-cartpole"), path)
    return path.read_text("utf-8")


def test_the_page_says_what_was_trained_and_how_it_ended(page, trained_run):
    record = read_run(trained_run("ppo-cartpole"))
    last = record.curve("eval/mean_return").values[-1]
    assert "<h1>ppo on CartPole-v1, seed 3</h1>" in page
    assert f"Trained for {record.steps:,} environment steps in" in page and ", to its end." in page
    assert f"The last evaluation returned {last:.4g}"[:38] in page
    for heading in (
        "Learning curves",
        "The policy",
        "Knobs",
        "Learning",
        "Time",
        "Config",
        "Checkpoints",
        "Made with",
    ):
        assert f"<h2>{heading}</h2>" in page


def test_every_number_that_was_logged_is_drawn_or_written(page, trained_run):
    record = read_run(trained_run("ppo-cartpole"))
    charts = charts_of(page)
    logged = {name for name in record.metrics.names if not name.startswith("eval/")}
    moving = {"learning_rate", "ent_coef", "clip_coef"}
    constant = set(report.knob_names(record.config)) - moving
    returns = {"step", "episodes", "episode_return", "episode_return_std", "episode_length"}
    assert (
        charts.keys() - {"evaluation", "training", "length of episodes", "steps per second"}
        == logged - returns - constant
    )
    for name in constant:
        assert f"<td>{name}</td>" in page, name
    (drawn,) = charts["learning_rate"]
    assert drawn["x"] == record.curve("learning_rate").steps.tolist()
    assert drawn["y"] == pytest.approx(record.curve("learning_rate").values.tolist(), rel=1e-5)
    (training,) = charts["training"]
    spread = record.curve("episode_return_std").values
    assert np.array(training["high"]) - training["y"] == pytest.approx(spread, rel=1e-3, abs=1e-3)


def test_the_config_stands_beside_the_shipped_one(page):
    assert "It differs from ppo/cartpole in:" in page
    assert re.search(
        r"<td>num_envs</td><td class=\"number\">4</td>|<td>num_envs</td><td>4</td><td>8</td>", page
    )
    assert "<summary>config.yaml</summary>" in page and "<td>torch</td>" in page


def test_the_page_is_one_small_file_that_asks_for_nothing(page):
    assert len(page) < 1_000_000
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    assert '<video src="data:video/mp4;base64,' in page


def test_what_a_run_says_is_text_and_never_markup(tmp_path):
    run = write_run(tmp_path / "run", [1.0, 2.0], env_id="</script><img src=x onerror=alert(1)>-v0")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    evil = json.dumps({"step": 300, "</script><script>alert(1)</script>": 1.0, "<!--": 2.0})
    (run / "metrics.jsonl").write_text("\n".join([*lines, evil]) + "\n")
    report.write_report(run, video=False)
    page = (run / "report.html").read_text("utf-8")
    assert page.count("<script") == 2 and page.count("</script>") == 2 and "<img" not in page
    assert "<!--" not in page
    assert "</script><script>alert(1)</script>" in charts_of(page)


def test_a_run_that_is_not_finished_was_resumed_or_never_evaluated_has_its_page(tmp_path):
    run = write_run(tmp_path / "run", [1.0, 2.0], total_timesteps=1000)
    timing = [(100, 1.0, 60.0), (200, 2.0, 80.0), (300, 0.5, 20.0)]
    (run / "timing.jsonl").write_text(
        "".join(
            json.dumps(
                {"step": step, "wall_seconds": wall, "steps_per_second": speed, "learn_seconds": wall / 2}
            )
            + "\n"
            for step, wall, speed in timing
        )
    )
    report.write_report(run, video=False)
    page = (run / "report.html").read_text("utf-8")
    assert "Not finished: 200 of 1,000 environment steps (20 %) in 2 s." in page
    assert "Trained by 2 processes" in page and "learning 50 % (1 s)" in page
    (speed,) = charts_of(page)["steps per second"]
    assert (speed["x"], speed["y"]) == ([100, 200, 300], [60, 100, 20])
    (run / "metrics.jsonl").write_text('{"step": 100, "episodes": 0}\n')
    report.write_report(run, video=False)
    assert "It has not been evaluated yet." in (run / "report.html").read_text("utf-8")


@pytest.mark.parametrize("what", [what for what, (arguments, _) in bad_runs().items() if len(arguments) == 1])
def test_bad_input_is_one_line(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_bad_runs()
    (arguments, expected) = bad_runs()[what]
    expected = "not a run directory" if what == "no runs inside" else expected
    refused(cli("report", *arguments), expected)
    assert not list(tmp_path.rglob("report.html"))


def test_a_page_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("good"), [1.0])
    refused(
        cli("report", "good", "--no-video", "--out", "no/such/r.html"), "no/such/r.html: cannot be written"
    )


def test_an_environment_that_cannot_be_drawn(trained_run, tmp_path, monkeypatch):
    """With --video that is an error; without, the page says why there is none."""
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(trained_run("recurrent-masked"), Path("run"))
    refused(cli("report", run, "--video"), "probe/Masked-v0 cannot be shown: it draws nothing")
    assert not (run / "report.html").exists()
    done = cli("report", run)
    assert done.exit_code == 0 and done.stdout == "written  run/report.html\n"
    assert "No video: probe/Masked-v0 cannot be shown" in (run / "report.html").read_text("utf-8")


def test_a_module_is_imported_only_on_trust(tmp_path, monkeypatch, trained_run):
    monkeypatch.chdir(tmp_path)
    from rl_training.state import checkpoints

    run = shutil.copytree(trained_run("ppo-cartpole"), Path("run"))
    tree = checkpoints.load_checkpoint(max((run / "checkpoints").iterdir()))
    tree["policy"]["config"]["env_id"] = "planted:CartPole-v1"
    checkpoints.save_checkpoint(run / "checkpoints", 5000, tree, 2)
    refused(cli("report", run, "--video"), "add --trust (trust=True)")
    assert cli("report", run).exit_code == 0
    assert "add --trust (trust=True)" in (run / "report.html").read_text("utf-8")


def test_open_shows_the_page(trained_run, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    out = tmp_path / "r.html"
    done = cli("report", trained_run("ppo-cartpole"), "--open", "--no-video", "--out", out, "--json")
    assert json.loads(done.stdout) == {"report": str(out)}
    assert opened == [out.as_uri()]


def test_long_curves_are_thinned_and_keep_their_means_and_outermost_bands():
    x = np.arange(10_000.0)
    series = thinned(Series("x", x, x * 2, x - 1, x + 1))
    assert len(series.x) == len(series.y) == MOST_POINTS
    assert series.y.mean() == pytest.approx((x * 2).mean(), rel=1e-3)
    assert series.low[0] == -1 and series.high[-1] == 10_000
    assert thinned(Series("short", x[:9], x[:9])).x is not None


def test_a_world_model_is_shown_beside_what_happened():
    page = Page("test")
    truth = np.zeros((12, 16, 16, 3), np.uint8)
    truth[:, 4:8] = 200
    strip = policy_pictures.filmstrip(truth, truth.astype(np.float32) + 10)
    assert strip.shape == (48, 160, 3) and strip.dtype == np.uint8
    assert (strip[:16, :16] == truth[0]).all() and (strip[32:] == 10).all()
    assert policy_pictures.filmstrip(truth[..., 0], truth[..., 0]).shape == (48, 160, 3)
    assert policy_pictures.filmstrip(truth.transpose(0, 3, 1, 2), truth.transpose(0, 3, 1, 2)).shape == (
        48,
        160,
        3,
    )
    larger = policy_pictures.enlarged(strip, 100)
    assert larger.shape == (144, 480, 3) and np.array_equal(larger[1::3, 2::3], strip)
    assert np.array_equal(policy_pictures.enlarged(strip, 48), strip)
    data = policy_pictures.png(strip)
    matplotlib_image = pytest.importorskip("matplotlib.image")
    import io

    read = (matplotlib_image.imread(io.BytesIO(data)) * 255).round().astype(np.uint8)
    assert np.array_equal(read[..., :3], strip)
    page.picture("x", "image/png", data, "y")
    charts = policy_pictures.prediction_curves("observation", np.ones((5, 9)), np.zeros((5, 9)))
    assert len(charts) == 8 and [series.name for series in charts[0].series] == [
        "what happened",
        "what was expected",
    ]


@pytest.fixture(scope="module")
def browser():
    program = find_browser()
    if program is None:
        pytest.skip("no browser found: pages are not looked at (apt-get install chromium)")
    browser = Browser(program)
    yield browser
    browser.close()


def middle_of(browser: Browser, selector: str) -> list[float]:
    place = f"document.querySelector({json.dumps(selector)})"
    browser.run(f"{place}.scrollIntoView({{block: 'center'}})")
    return browser.run(f"(r => [r.x + r.width * 0.55, r.y + r.height / 2])({place}.getBoundingClientRect())")


def test_in_a_browser_the_page_draws_says_values_and_has_nothing_to_complain_of(
    browser, trained_run, tmp_path
):
    path = report.write_report(trained_run("ppo-cartpole"), tmp_path / "report.html")
    browser.prefer("light")
    browser.open(path)
    assert browser.errors == [] and browser.requests == []
    charts = charts_of(path.read_text("utf-8"))
    drawn = browser.run(
        "[...document.querySelectorAll('figure.chart')].map(figure => [figure.querySelector('h3').textContent,"
        "[...figure.querySelectorAll('path.line')].map(path => path.getTotalLength())])"
    )
    assert [title for title, _ in drawn] == list(charts)
    for title, lengths in drawn:
        assert len(lengths) == len(charts[title]) and all(length > 50 for length in lengths), title
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out at the side"

    # Hovering shows the step nearest to the pointer, and the value there.
    browser.hover(*middle_of(browser, "figure.chart[data-chart='0'] svg"))
    step, value = browser.run("document.querySelector('figure.chart .tip').innerText").split("\n")
    (series,) = charts["evaluation"]
    index = series["x"].index(int(step.removeprefix("step ").replace(",", "")))
    low, mean, high = (float(f"{series[name][index]:.4g}") for name in ("low", "y", "high"))
    assert [float(text) for text in re.findall(r"-?[\d.]+", value)] == [mean, low, high]
    assert browser.run("document.querySelector('figure.chart .tip').hidden") is False
    browser.hover(2, 2)
    assert browser.run("document.querySelector('figure.chart .tip').hidden") is True

    # A click on a name hides its curve, another one brings it back.
    lengths = (
        "[...document.querySelectorAll('figure.chart')].find(f => f.innerText.includes('length of episodes'))"
    )
    click = (
        f"{lengths}.querySelector('.legend button').click(); {lengths}.querySelectorAll('path.line').length"
    )
    assert [browser.run(click), browser.run(click)] == [1, 2]

    # Light and dark, on narrow screens too; the video is one that plays.
    light = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.prefer("dark")
    assert light == "rgb(255, 255, 255)" != browser.run("getComputedStyle(document.body).backgroundColor")
    assert browser.run(
        "document.querySelector('video').videoWidth > 0 || document.querySelector('video').error === null"
    )
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False
    )
    browser.run("new Promise(done => setTimeout(done, 400))")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "nor on a telephone"
    browser.call("Emulation.clearDeviceMetricsOverride")
    assert browser.errors == []
    assert len(browser.screenshot(800)) > 10_000


@pytest.mark.parametrize("name", SHOWN)
def test_in_a_browser_reports_of_every_kind_of_algorithm_are_whole(name, browser, trained_run, tmp_path):
    browser.open(report.write_report(trained_run(name), tmp_path / "report.html"))
    assert browser.errors == [] and browser.requests == []
    empty = "[...document.querySelectorAll('figure.chart')].filter(f => !f.querySelector('path.line')).length"
    assert browser.run("document.querySelectorAll('figure.chart').length") > 8 and browser.run(empty) == 0


def test_in_a_browser_a_comparison_is_whole(browser, trained_run, tmp_path):
    done = cli("compare", *map(trained_run, KINDS), "--html", tmp_path / "c.html")
    assert done.exit_code == 0, done.output
    browser.open(tmp_path / "c.html")
    assert browser.errors == [] and browser.requests == []
    assert browser.run("document.querySelectorAll('path.line').length") >= 8


def test_a_page_with_a_fault_is_found_out(browser, page, tmp_path):
    """The browser's complaints reach the tests: they can fail."""
    broken = page.replace("JSON.parse(document", "JSON.parse('{' + document").replace(
        "</body>", '<img src="http://localhost:9/x.png"></body>'
    )
    (tmp_path / "broken.html").write_text(broken)
    browser.open(tmp_path / "broken.html")
    assert any("SyntaxError" in error for error in browser.errors)
    assert browser.requests == ["http://localhost:9/x.png"]
