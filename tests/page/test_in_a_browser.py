"""The page in a real browser: Chromium, without a window. One start of it for all tests."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus
import pytest
import runner
from serving import served

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed (scripts/test --everything)"
)

PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
if not all(PROGRAMS.values()):
    pytest.skip(
        "Chromium is not installed (apt-get install chromium chromium-driver)", allow_module_level=True
    )

EVIL = "<script>window.evil=1</script><img src=x onerror=window.evil=1>\u202eevil</span></script>{{7*7}} "
HOSTS = ("a-host-whose-name-is-longer-than-a-telephone-is-wide.example", "h1.example")
SIZE = ("--tokenizer", "gpt2", "--shard-tokens", "2000", "--val-tokens", "0", "--workers", "1")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415  # it may be missing

    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS["chromium"]
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(PROGRAMS["chromedriver"]))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser-run")
    for number in range(3):
        texts = [*corpus.documents(100 * number, 60), "w" * 1_000_000 if number == 1 else "short"]
        texts.insert(3, EVIL * 3)
        corpus.write_columns(
            folder / "source" / f"{number}.parquet",
            text=texts,
            url=[
                f"https://{EVIL.strip()}.example/{row}" if row > 55 else f"https://{HOSTS[row % 2]}/"
                for row in range(62)
            ],
            score=[2 + row % 30 / 10 for row in range(62)],
        )
    line = ("--source", folder / "source", "--out", folder / "<b>run", *SIZE)
    assert runner.command_line(*line, capture_output=True).returncode == 0
    return folder / "<b>run"


@pytest.fixture(scope="module")
def report(out: Path) -> str:
    page = out.parent / "report.html"
    assert runner.command_line("report", out, "-o", page, capture_output=True).returncode == 0
    return page.as_uri()


@pytest.fixture(scope="module")
def address(out: Path) -> Iterator[str]:
    with served(out) as (port, _):
        yield f"http://127.0.0.1:{port}/"


def wait_for(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := true()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def looked_at(browser: Any, address: str, *, width: int = 1200, scheme: str = "light") -> None:
    """Open a page at a width and in a colour scheme; forget what was logged before."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(address)


def assert_calm(browser: Any, *allowed: str) -> None:
    """Fail if the console has anything, or if something was asked of anybody else than `allowed`."""
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert [url for url in asked if not url.startswith((*allowed, "data:,"))] == []
    assert browser.execute_script("return window.evil") is None


def text_of(browser: Any, name: str) -> str:
    text: str = browser.execute_script("return document.getElementById(arguments[0]).textContent", name)
    return text


def drawn(browser: Any, name: str) -> list[list[Any]]:
    found: list[list[Any]] = browser.execute_script(f"return charts['{name}'].data.map((one) => [...one])")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_is_calm_and_fits_and_its_charts_are_drawn(
    browser: Any, report: str, width: int, scheme: str
) -> None:
    looked_at(browser, report, width=width, scheme=scheme)

    for name in ("sources", "bytes", "speed", "lengths", "scores"):
        # Something of more than one colour stands in each chart.
        colours = browser.execute_script(
            "const { ctx } = charts[arguments[0]], { width, height } = ctx.canvas;"
            "return new Set(new Uint32Array(ctx.getImageData(0, 0, width, height).data.buffer)).size",
            name,
        )
        assert colours > 2, name
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert_calm(browser, report)
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    dark = sum(map(int, paper.removeprefix("rgb(").rstrip(")").split(","))) < 300
    assert dark == (scheme == "dark")


def test_charts_and_their_tables_have_the_right_numbers(browser: Any, report: str, out: Path) -> None:
    looked_at(browser, report)
    manifest = json.loads((out / "manifest.json").read_text())

    tokens = [job["tokens"] for job in manifest["jobs"]]
    assert drawn(browser, "sources")[1] == tokens
    cells = browser.execute_script(
        "const cells = document.querySelectorAll('#table-sources tbody td:nth-child(2)');"
        "return [...cells].map((one) => one.textContent)"
    )
    assert cells == [f"{count:,}" for count in tokens]
    assert sum(drawn(browser, "lengths")[1]) == manifest["headline"]["documents"] == 186
    assert sum(drawn(browser, "scores")[1]) == 186
    xs, rates = drawn(browser, "speed")[:2]
    assert xs == sorted(xs)
    assert max(rates) > 0


def test_what_documents_say_is_inert_and_shown(browser: Any, report: str) -> None:
    looked_at(browser, report)

    text = browser.execute_script("return document.body.textContent")
    assert (
        browser.execute_script(
            "return document.querySelectorAll('main img, main script:not(#data), main b').length"
        )
        == 0
    )
    assert "49" not in text.partition("{{7*7}}")[2][:3]
    assert "\u202e" not in text
    assert browser.execute_script("return document.querySelector('h1').textContent") == "<b>run"


def test_the_reader_works_by_keyboard(browser: Any, address: str) -> None:
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415

    looked_at(browser, address)

    def title() -> str:
        return text_of(browser, "shown-title")

    def shown() -> str:
        return text_of(browser, "shown-text")

    # The first document is there before anybody has asked for it.
    wait_for(lambda: title().startswith("Document 1 of"))
    assert shown() == "end of text" + corpus.document(0)
    press = browser.switch_to.active_element.send_keys
    press("j")
    wait_for(lambda: title().startswith("Document 2 of"))
    press("k")
    wait_for(lambda: title().startswith("Document 1 of"))
    # Find, from the place that is shown.
    press("/")
    press = browser.switch_to.active_element.send_keys
    press("window.evil" + Keys.ENTER)
    wait_for(lambda: "<script>window.evil" in shown())
    assert browser.execute_script("return document.querySelector('#shown-text .here').textContent").strip()
    assert "\ufffdevil</span>" in shown()
    # A number, by the form.
    browser.find_element("id", "document").send_keys("63" + Keys.ENTER)
    wait_for(lambda: "63 of the run" in title())
    command = browser.execute_script("return document.getElementById('command').textContent")
    assert "--document 63" in command
    assert "'" in command, "a path with odd signs is quoted"
    hover = browser.execute_script("return document.querySelector('#shown-text .t:nth-child(2)').title")
    assert hover.split()[0].isdecimal()
    assert_calm(browser, address)


def test_a_document_of_a_megabyte_is_shown_in_parts(browser: Any, address: str) -> None:
    looked_at(browser, address)
    browser.find_element("id", "document").send_keys("124\n")
    wait_for(lambda: browser.execute_script("return !document.getElementById('shown').hidden"))
    browser.execute_script("document.getElementById('shard').value = ''")
    wait_for(
        lambda: (
            "124 of the run"
            in browser.execute_script("return document.getElementById('shown-title').textContent")
        )
    )

    assert browser.execute_script("return document.documentElement.scrollWidth") <= 1200
    assert_calm(browser, address)


def test_its_link_leads_to_a_token_and_the_row_is_looked_up(browser: Any, address: str, out: Path) -> None:
    shard = min(path.name for path in out.glob("*.bin"))
    looked_at(browser, f"{address}#token={shard}:9")

    here = wait_for(
        lambda: browser.execute_script("return document.querySelector('#shown-text .here')?.title")
    )
    assert " at 9" in here
    browser.find_element("id", "trace").click()
    rows = wait_for(
        lambda: browser.execute_script(
            "const t = document.getElementById('traced'); return t.hidden ? '' : t.textContent"
        )
    )
    assert "0.parquet" in rows
    assert "https://h1.example/" in rows
    assert_calm(browser, address)


def test_another_page_cannot_read_it(browser: Any, address: str) -> None:
    other = address.replace("127.0.0.1", "localhost")
    looked_at(browser, other)
    said = browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "fetch(arguments[0] + 'api/document?document=1').then((a) => a.text())"
        ".then(done, (e) => done('refused: ' + e))",
        address,
    )

    assert said.startswith("refused: ")
