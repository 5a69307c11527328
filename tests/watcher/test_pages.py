"""The pages in a real Chromium: what a user sees, types and clicks; no script error, no refused content, no request out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from .conftest import Tree, age, write

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium, which .ci/run installs")

MANY = 320
ODD = '"><img src=x onerror=alert(1)>\u202e<script>alert(1)</script>{{7*7}}'
WIDE = {"width": 1280, "height": 800}
VIEWS = {
    "light": {"viewport": WIDE, "color_scheme": "light"},
    "dark": {"viewport": WIDE, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 320, "height": 700}, "color_scheme": "light"},
}


@dataclass
class Site:
    tree: Tree
    server: subprocess.Popen[str]
    address: str

    def update(self) -> None:
        self.tree.update()


def serve(tree: Tree) -> tuple[subprocess.Popen[str], str]:
    words = [sys.executable, "-m", "primebeaker.watcher", "serve", f"--database={tree.database}", "--port=0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    line = server.stderr.readline()
    found = re.fullmatch(r"Watcher: (http://127\.0\.0\.1:\d+)/\n", line)
    assert found, line
    return server, found[1]


def fill(tree: Tree) -> None:
    for index in range(MANY):
        tree.rl(f"many-{index:03d}", "Qwen/Qwen3-0.6B")
    tree.sft("chat-sft")
    sft = tree.checkpoint("chat-sft", 20)
    tree.rl("math-rl", str(sft))
    last = tree.checkpoint("math-rl", 10)
    tree.rl("odd", str(sft))
    tree.train(
        "odd", f"output_dir = {json.dumps(str(tree.runs / ODD.replace('/', '')))}\n[data]\ntype='sft'\nname='d'\n"
    )
    tree.checkpoint(ODD.replace("/", ""), 3)
    rows = [
        {"step": step, "time": 1_760_000_000 + 60 * step, "optim/grad_norm": 1 / step, "inference/queue": step % 7}
        for step in range(1, 60)
    ]
    write(tree.runs / "math-rl/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    tree.evaluation("full", str(last), more="  datasets: [a, b]\n  runs: 3\n")
    tree.averages("full", a=0.5, b=0.7)
    tree.evaluation("part", str(sft), more="  datasets: [a, b]\n")
    tree.averages("part", a=0.4)
    write(tree.repo / "examples/configs/train/broken.toml", "[x\n")
    age(tree.root, time.time() - 7200)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    tree = Tree(tmp_path_factory.mktemp("pages"))
    for folder in ("repo/examples/configs/train", "repo/examples/configs/eval", "runs", "results"):
        (tree.root / folder).mkdir(parents=True)
    fill(tree)
    tree.update()
    server, address = serve(tree)
    made = Site(tree, server, address)
    try:
        yield made
    finally:
        server.terminate()
        server.wait(timeout=30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield made
        made.close()


@pytest.fixture
def page(request: pytest.FixtureRequest, site: Site, browser: Browser) -> Iterator[Page]:
    """A page of a fresh visitor; whatever the console complains of fails the test."""
    problems: list[str] = []
    options: dict[str, Any] = VIEWS[getattr(request, "param", "light")]
    context = browser.new_context(**options, reduced_motion="reduce", base_url=site.address)
    context.set_default_timeout(60_000)
    made = context.new_page()
    made.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
    made.on("request", lambda asked: None if asked.url.startswith(site.address) else problems.append(asked.url))
    yield made
    context.close()
    offline = ("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING", "net::ERR_CONNECTION_RESET")
    expected = offline if "server" in request.node.name else ()
    assert [text for text in problems if not any(word in text for word in expected)] == []


expect.set_options(timeout=60_000)


def until(page: Page, expression: str) -> None:
    """Wait for a condition; the pages' policy forbids the evaluation that Playwright's own waiting does."""
    deadline = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def names(page: Page) -> list[str]:
    return page.locator("table.rows tbody tr th a").all_text_contents()


def key_of(page: Page, name: str) -> str:
    found = page.request.get(f"/api/runs?q={name}").json()["items"]
    return str(next(row["key"] for row in found if row["name"] == name))


@pytest.mark.parametrize("page", list(VIEWS), indirect=True)
def test_every_page_fits_and_has_one_heading(page: Page) -> None:
    key = key_of(page, "math-rl")
    run = page.request.get(f"/api/runs/{key}").json()
    checkpoint = run["checkpoints"][0]
    paths = ["/", "/runs", f"/runs/{key}", f"/checkpoints/{checkpoint['key']}", "/evaluations", "/issues", "/compare"]
    paths += [f"/evaluations/{checkpoint['evaluations'][0]['key']}", f"/lineage/{key}"]
    paths += [f"/compare?ref={key}&ref={key_of(page, 'chat-sft')}"]
    for path in paths:
        page.goto(path)
        expect(page.locator("h1")).to_have_count(1)
        if "/runs/" in path:
            page.wait_for_selector(".curves canvas")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 1, path
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in re.findall(r"\d+", paper)[:3]) < 380) == dark


def test_search_and_sorting_live_in_the_address(page: Page) -> None:
    page.goto("/runs")
    page.get_by_label("Search").type("chat")
    expect(page.locator("table.rows tbody tr")).to_have_count(1)
    assert "q=chat" in page.url
    page.reload()
    assert names(page) == ["chat-sft"]
    assert page.get_by_label("Search").input_value() == "chat"
    page.goto("/runs?q=-rl")
    page.goto("/runs?q=many-00")
    page.locator("thead th", has_text="Run").locator("a").click()
    page.wait_for_url("**sort=name*order=desc*")
    assert names(page)[0] == "many-009"
    assert page.locator("thead th", has_text="Run").get_attribute("aria-sort") == "descending"
    page.go_back()
    page.go_back()
    assert names(page) == ["math-rl"]
    page.goto("/runs?q=%25_no")
    expect(page.locator(".empty")).to_contain_text("The filter matches no run")


def test_a_long_table_is_loaded_page_by_page_and_far_rows_are_taken_out(page: Page) -> None:
    page.goto("/runs")
    for loaded in (200, 300, MANY + 3):
        page.get_by_text("Load more").click()
        until(page, f"watcherTables.count() === {loaded}")
    expect(page.locator("#more")).to_contain_text("in all")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_selector("tbody.chunk tr.space", state="attached")
    assert page.locator("table.rows tbody tr").count() < MANY
    expect(page.get_by_role("link", name="odd-none")).to_have_count(0)
    page.evaluate("scrollTo(0, 0)")
    until(page, "!document.querySelector('tbody.chunk').querySelector('tr.space')")
    shown = names(page)
    assert len(shown) == len(set(shown))
    assert "chat-sft" in shown


def test_picked_rows_outlive_a_filter_and_are_compared(page: Page) -> None:
    page.goto("/runs?q=chat-sft")
    page.get_by_label("Select chat-sft").check()
    page.get_by_label("Search").fill("math-rl")
    page.get_by_label("Select math-rl").check()
    page.get_by_role("button", name="Compare 2").click()
    page.wait_for_url("**/compare?ref=*&ref=*")
    expect(page.locator("main")).to_contain_text("chat-sft")
    expect(page.locator("main")).to_contain_text("math-rl")
    page.wait_for_selector(".curves canvas")
    page.goto("/runs?q=many-0")
    for index in range(10):
        page.get_by_label(f"Select many-{index:03d}").check()
    expect(page.get_by_label("Select many-011")).to_be_disabled()
    page.get_by_text("clear selection").click()
    expect(page.get_by_label("Select many-011")).to_be_enabled()


def test_columns_are_chosen_and_the_choice_is_kept(page: Page) -> None:
    page.goto("/runs")
    head = page.locator("thead th", has_text="Checkpoints")
    expect(head).to_be_visible()
    page.get_by_text("Columns").click()
    page.locator(".chooser").get_by_label("Checkpoints").uncheck()
    expect(head).to_be_hidden()
    page.reload()
    expect(head).to_be_hidden()
    expect(page.locator("thead th", has_text="Stage")).to_be_visible()


def test_everything_is_reached_by_keyboard(page: Page) -> None:
    page.goto("/runs?q=math-rl")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "math-rl":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    page.goto(f"/lineage/{key_of(page, 'math-rl')}")
    node = page.locator("svg a, svg [tabindex]").first
    node.focus()
    assert page.evaluate("document.activeElement.closest('svg') !== null")


def test_curves_have_values_and_serving_metrics_are_drawn_over_time(page: Page) -> None:
    page.goto(f"/runs/{key_of(page, 'math-rl')}")
    page.wait_for_selector(".curves canvas")
    expect(page.locator(".chart h3").first).to_contain_text("optim/grad_norm")
    page.get_by_label("Metric").fill("inference/queue")
    page.get_by_label("Metric").press("Enter")
    chart = page.locator(".chart", has_text="inference/queue")
    chart.locator("summary").click()
    expect(chart.locator("details thead th").first).to_have_text("time")
    expect(chart.locator("details tbody td").first).to_contain_text("2025")
    page.get_by_label("Smoothing").fill("0.6")
    page.get_by_label("log y").check()
    expect(page.locator(".chart").first).to_contain_text("smoothed")


def test_odd_names_are_only_text(page: Page) -> None:
    name = ODD.replace("/", "")
    page.goto("/runs?q=onerror")
    assert names(page) == [name]
    page.locator("table.rows tbody th a").click()
    page.wait_for_url("**/runs/*")
    assert page.locator("h1").text_content() == name
    assert page.locator("main img").count() == 0
    page.goto(f"/lineage/{key_of(page, name)}")
    expect(page.locator("svg.hidden, .graph svg")).not_to_have_count(0)
    assert page.evaluate("document.querySelectorAll('main script').length") == 0


def test_a_change_of_the_index_appears_and_disturbs_nothing(page: Page, site: Site) -> None:
    page.goto("/runs?q=new")
    expect(page.locator(".connection")).to_contain_text("live")
    site.tree.sft("new-one")
    site.update()
    expect(page.locator("table.rows tbody tr")).to_have_count(1)
    page.get_by_label("Select new-one").check()
    site.tree.sft("new-two")
    site.update()
    expect(page.locator("table.rows tbody tr")).to_have_count(2)
    expect(page.get_by_label("Select new-one")).to_be_checked()
    page.goto(f"/runs/{key_of(page, 'chat-sft')}")
    expect(page.locator(".charts")).not_to_contain_text("Reading")
    page.locator("details#config summary").click()
    page.locator("details#config summary").focus()
    page.evaluate("scrollTo(0, 200)")
    place = "document.querySelector('.charts').getBoundingClientRect().top"
    before = page.evaluate(place)
    site.tree.checkpoint("chat-sft", 25)
    site.update()
    expect(page.locator(".matrix")).to_contain_text("25")
    assert page.evaluate("document.getElementById('config').open")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert abs(page.evaluate(place) - before) <= 2


def test_a_long_table_is_patched_where_it_stands(page: Page, site: Site) -> None:
    page.goto("/runs?q=many")
    page.get_by_text("Load more").click()
    until(page, "watcherTables.count() === 200")
    site.tree.checkpoint("many-150", 7)
    site.update()
    expect(page.locator("table.rows tr", has_text="many-150")).to_contain_text("7 / 20")
    assert page.evaluate("watcherTables.count()") == 200


def test_a_lost_server_is_said_and_its_return_noticed(page: Page, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    (tree.repo / "examples/configs/train").mkdir(parents=True)
    tree.sft("only")
    tree.update()
    server, address = serve(tree)
    try:
        own = page.context.browser
        assert own is not None
        visitor = own.new_page()
        visitor.goto(address + "/runs")
        expect(visitor.locator(".connection")).to_contain_text("live", timeout=60_000)
        server.kill()
        server.wait(timeout=30)
        expect(visitor.locator(".connection")).to_contain_text("offline, last update", timeout=60_000)
        visitor.close()
    finally:
        server.kill()
        server.wait(timeout=30)
