"""The page in a real browser, on a real server with real photographs."""

import base64
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

pytest.importorskip("selenium", reason="the extra `browser` is not installed")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.browser import chromium
from support.page_guards import GUARDS, export_guards
from support.serving import TOKEN, serving

from oodles.deploy.exported import ExportedGuard

pytestmark = [pytest.mark.browser, pytest.mark.realdata]


@pytest.fixture(scope="module")
def guards(data, tmp_path_factory):
    """The folder of the guards that the tests serve."""
    return export_guards(data, tmp_path_factory.mktemp("guards"))


@pytest.fixture(scope="module")
def server(guards):
    with serving(*(guards / f"{name}.zip" for name in GUARDS)) as running:
        yield running


@pytest.fixture(scope="module")
def tab():
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(tab):
    """The browser; at the end, nothing was complained about and no other host was asked for anything."""
    tab.hosts()
    tab.look()
    yield tab
    assert tab.messages() == []
    assert {host.partition(":")[0] for host in tab.hosts()} == {"127.0.0.1"}


@pytest.fixture
def page(browser, server):
    """The page with the shipped guard."""
    browser.open(server.address)
    browser.wait("#about", "Detector: default", "10 classes")
    browser.wait("#effects", "95")
    return browser


@pytest.fixture(scope="module")
def photographs(data, tmp_path_factory):
    """Fifty pictures: CIFAR-10 test images, and ten scenes that are none of its classes."""
    folder = tmp_path_factory.mktemp("photographs")
    with zipfile.ZipFile(data / "cifar10-jpeg.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith("test/") and name.endswith(".jpg")][::250][:40]
        for index, name in enumerate(names):
            (folder / f"{name.split('/')[1]}-{index}.jpg").write_bytes(archive.read(name))
    for path in sorted((data / "places365").rglob("*.png"))[:10]:
        (folder / f"place-{path.name}").write_bytes(path.read_bytes())
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def printed(guards, photographs):
    """What ``oodles score`` says about each of them with the shipped guard."""
    command = [sys.executable, "-m", "oodles", "score", str(guards / "small.zip"), str(photographs[0].parent), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    verdicts = json.loads(done.stdout)["verdicts"]
    return {each["path"].rpartition("/")[2]: each for each in verdicts}


CHOOSE = """
const select = document.querySelector("#guard");
select.value = arguments[0];
select.dispatchEvent(new Event("change"));
"""


def cards(page):
    """Name, tag and details of each recent input, in the order shown."""
    return page.script("""
        return [...document.querySelectorAll("#recent .card")].map((card) =>
          ["name", "tag", "detail"].map((part) => card.querySelector(`.${part}`).textContent))
    """)


def effect(page, name):
    """What the page says that the threshold would do."""
    effects = page.script("""
        return Object.fromEntries([...document.querySelectorAll("#effects div")].map((each) =>
          [...each.children].map((part) => part.textContent.replaceAll("\u00a0", " "))))
    """)
    return effects[name]


def open_tab(page, name):
    page.one(f"#{name}-tab").click()


def threshold(page):
    return float(page.one("#handle").get_attribute("aria-valuenow"))


def test_a_dropped_photograph_gets_the_verdict_of_the_command_line(page, photographs, printed):
    for path in (photographs[0], photographs[-1]):
        page.drop([path])
        said = page.wait("#verdict", path.name, "The score", "Predicted class")
        expected = printed[path.name]
        assert ("Accepted: looks like" in said) == expected["is_id"]
        assert ("Rejected: unlike the training data" in said) == (not expected["is_id"])
        assert expected["class_name"] in said
        assert float(page.one("#verdict data").get_attribute("value")) == pytest.approx(expected["score"], abs=1e-5)
        page.wait("#announcement", path.name, expected["class_name"])
        page.wait("#verdict img")
        assert page.one("#verdict img").get_property("naturalWidth") == 32, "the thumbnail is shown"


def test_a_pasted_picture_and_a_drawing_are_scored(page, photographs):
    paste = """
        const bytes = Uint8Array.from(atob(arguments[0]), (each) => each.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], "pasted.jpg", { type: "image/jpeg" }));
        document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
    """
    page.script(paste, base64.b64encode(photographs[0].read_bytes()).decode())
    page.wait("#verdict", "pasted.jpg", "The score")
    for number, button in enumerate(page.all(".drawing"), start=2):
        button.click()
        said = page.wait("#verdict", f"{button.text} (drawing)", "The score")
        assert ("Accepted: looks like" in said) == (button.text in ("car", "ship", "plane", "truck"))
        assert len(cards(page)) == number


def test_fifty_at_once_are_sorted_by_score(page, photographs, printed):
    page.choose(photographs)
    page.wait("#announcement", "50 inputs")
    found = cards(page)
    assert {name for name, _, _ in found} == {path.name for path in photographs}
    expected = sorted(printed, key=lambda name: printed[name]["score"])
    assert [name for name, _, _ in found] == expected
    assert {name: tag == "accepted" for name, tag, _ in found} == {name: printed[name]["is_id"] for name in printed}
    rejected = sum(not each["is_id"] for each in printed.values())
    assert rejected
    assert effect(page, "Recent inputs flagged") == f"{rejected} of 50"
    assert expected[0] in page.text("#verdict"), "the least usual one is shown"
    page.one("#clear").click()
    assert cards(page) == []
    assert not page.one("#recent-section").is_displayed()


def test_what_cannot_be_scored_says_why_and_does_not_disturb_the_rest(page, photographs, tmp_path):
    contents = {"garbage.jpg": b"no picture" * 100, "empty.png": b"", "cut.jpg": photographs[0].read_bytes()[:400]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    garbage, empty, cut = (tmp_path / name for name in contents)
    page.choose([garbage])
    assert "not an image" in page.wait("#verdict", "Not scored", "garbage.jpg").lower()
    page.choose([empty, *photographs[:3], cut, garbage])
    page.wait("#announcement", "6 inputs", "3 could not be scored")
    found = cards(page)
    assert [tag for _, tag, _ in found[-4:]] == ["not scored"] * 4
    assert all(details for _, _, details in found)
    assert sum(tag != "not scored" for _, tag, _ in found) == 3


def test_a_file_too_large_is_refused_here(page, tmp_path):
    large = tmp_path / "large.png"
    large.write_bytes(bytes(21_000_000))
    page.choose([large])
    page.wait("#verdict", "Not scored", "21 MB", "at most 20 MB")


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>.jpg", "&lt;b&gt; \"quoted\" 'name'.jpg"])
def test_a_file_name_with_html_is_shown_literally(page, photographs, tmp_path, name):
    (tmp_path / name).write_bytes(photographs[0].read_bytes())
    page.choose([tmp_path / name])
    page.wait("#verdict", name, "The score")
    page.wait("#announcement", name)
    assert cards(page)[0][0] == name
    assert page.all("img[src=x]") == []


def test_the_threshold_moves_by_keyboard_and_says_what_would_change(page, guards, photographs, printed):
    page.choose(photographs)
    page.wait("#announcement", "50 inputs")
    open_tab(page, "threshold")
    scores = np.array([each["score"] for each in printed.values()])
    id_scores = ExportedGuard.open(guards / "small.zip").threshold.id_scores
    own, handle = threshold(page), page.one("#handle")
    page_up = [Keys.PAGE_UP]
    for keys in ([Keys.ARROW_RIGHT] * 3, page_up * 2, [Keys.ARROW_DOWN], [Keys.HOME], page_up, [Keys.END]):
        before = threshold(page)
        handle.send_keys(*keys)
        value = threshold(page)
        assert value != before
        kept = float(effect(page, "ID inputs kept").removeprefix("under ").removeprefix("over ").removesuffix(" %"))
        assert kept == pytest.approx(100 * (id_scores >= value).mean(), abs=0.5)
        assert effect(page, "Recent inputs flagged") == f"{(scores < value).sum()} of 50"
        changed = ((scores >= value) != (scores >= own)).sum()
        assert effect(page, "Decisions changed").split()[0] == str(changed)
        assert sum(tag.startswith("would be") for _, tag, _ in cards(page)) == changed
        assert "keeps" in handle.get_attribute("aria-valuetext")
    page.wait("#verdict .trial", "would still be rejected")
    page.one("#reset").click()
    assert threshold(page) == own
    assert not any(tag.startswith("would be") for _, tag, _ in cards(page))


def test_the_threshold_moves_by_mouse_and_by_number(page):
    open_tab(page, "threshold")
    own = threshold(page)
    for offset, sign in ((90, 1), (-40, -1)):
        before = threshold(page)
        ActionChains(page.driver).drag_and_drop_by_offset(page.one("#handle"), offset, 0).perform()
        assert np.sign(threshold(page) - before) == sign
    field = page.one("#value")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("-3.5", Keys.TAB)
    assert threshold(page) == -3.5
    assert not page.one("#save").is_displayed(), "the server has no token"
    assert "without a token" in page.text("#saved")
    page.one("#reset").click()
    assert threshold(page) == own


def test_the_share_that_is_kept_is_that_of_the_calibration_scores(page, guards):
    for name in ("small", "dice", "ensemble"):
        guard = ExportedGuard.open(guards / f"{name}.zip")
        scores = np.asarray(guard.threshold.id_scores, np.float64)
        record = {"calibration": guard.calibration, "threshold": guard.threshold.as_record()}
        tried = np.linspace(scores[0] - 1, scores[-1] + 1, 301)
        shares = page.script(
            "return arguments[1].map((value) => keptShare(arguments[0], value))", record, tried.tolist()
        )
        assert shares == pytest.approx([(scores >= value).mean() for value in tried], abs=0.006)
        value = page.script("return thresholdKeeping(arguments[0], 0.9)", record)
        assert (scores >= value).mean() == pytest.approx(0.9, abs=0.006)


def test_a_threshold_is_saved_with_the_token_only(browser, guards, photographs, tmp_path):
    (tmp_path / "token").write_text("the-token-of-clients")
    (tmp_path / "admin").write_text(TOKEN)
    guard = ExportedGuard.open(guards / "dice.zip")
    tokens = ("--token-file", tmp_path / "token", "--admin-token-file", tmp_path / "admin")
    with serving(guards / "dice.zip", *tokens) as running:
        browser.open(running.address)
        field = browser.one("#token")
        browser.wait("#ask-title", "Token")
        field.send_keys("wrong-token", Keys.ENTER)
        browser.wait("#ask-problem", "did not accept")
        assert browser.violations() == []
        field.send_keys(TOKEN, Keys.ENTER)
        browser.wait("#about", "dice(0.9)")
        browser.choose(photographs[:4])
        browser.wait("#announcement", "4 inputs")
        open_tab(browser, "threshold")
        browser.one("#handle").send_keys(Keys.PAGE_UP)
        value = threshold(browser)
        browser.script("sessionStorage.setItem('oodles-token', 'expired-token')")
        browser.one("#save").click()
        browser.wait("#ask-problem", "did not accept")
        field.send_keys(Keys.ESCAPE)
        browser.wait("#saved", "Not saved")
        assert ExportedGuard.open(guards / "dice.zip").threshold.value == guard.threshold.value
        browser.one("#save").click()
        field.send_keys(TOKEN, Keys.ENTER)
        browser.wait("#saved", "Saved")
        assert ExportedGuard.open(guards / "dice.zip").threshold.value == pytest.approx(value)
        browser.choose([photographs[0]])
        browser.wait("#verdict", photographs[0].name, "The score")
        assert "wrong" not in browser.script("return JSON.stringify({...sessionStorage})")


def test_why_shows_what_dice_keeps_and_what_each_member_says(page, guards, photographs):
    page.script(CHOOSE, "dice")
    page.choose(photographs[:1])
    said = page.wait("#why", "Kept weights add", "The dropped weights would have added")
    assert len(page.all("#why .units li")) == 10
    assert "What adds up to the logit of" in said
    page.script(CHOOSE, "ensemble")
    page.choose(photographs[:1])
    said = page.wait("#why", "Lowest p-value first")
    members = [each for each in ExportedGuard.open(guards / "ensemble.zip").members if not each.startswith("support")]
    assert len(page.all("#why .members li")) == len(members) > 1
    assert all(member in said for member in members)
    values = page.script(
        "return [...document.querySelectorAll('#why .p')].map((p) => Number(p.textContent.match(/[0-9.]+$/)[0]))"
    )
    assert values == sorted(values)


def test_inputs_that_are_no_pictures_are_written_as_json(page):
    page.script(CHOOSE, "vectors")
    assert not page.one("#drop").is_displayed()
    page.one("#written button").click()
    page.wait("#verdict", "row 1", "The score")
    page.script("document.querySelector('#rows').value = '{\"inputs\":'")
    page.one("#written button").click()
    page.wait("#problem", "not valid JSON")
    assert page.violations() == []


def test_the_rate_is_drawn_with_its_limits_and_follows_the_stream(page, photographs):
    page.script(CHOOSE, "ensemble")
    page.wait("#monitor-facts", "Inputs")
    before = int(page.text("#monitor-facts dd").replace(",", ""))
    page.choose(photographs[:20])
    page.wait("#monitor-facts", f"{before + 20:,}")
    page.wait("#rate-caption", "control limits")
    open_tab(page, "monitoring")
    page.wait("#level-words", "Alarm level")
    page.wait("#rate-chart:has(svg)")
    assert page.one("#rate-chart svg .band")
    assert page.one("#rate-chart svg").get_attribute("aria-label").startswith("OOD rate over time")
    page.one("#windows summary").click()
    page.wait("#windows-tables", "Control limits", "Predicted classes")
    assert page.violations() == []


def test_no_state_of_the_page_is_inaccessible_in_either_theme(page, photographs, tmp_path):
    (tmp_path / "garbage.jpg").write_bytes(b"no picture")

    def check(state):
        for width in (390, 1280):
            for dark in (False, True):
                page.look(width, dark=dark)
                assert page.violations() == [], (state, width, dark)
                overflow = page.script("return document.documentElement.scrollWidth - innerWidth")
                assert overflow <= 0, (state, width)

    check("nothing yet")
    page.script(CHOOSE, "dice")
    page.choose(photographs)
    page.wait("#announcement", "50 inputs")
    check("fifty, and why")
    open_tab(page, "threshold")
    page.one("#handle").send_keys(Keys.PAGE_UP)
    check("another threshold")
    open_tab(page, "monitoring")
    check("monitoring")
    page.choose([tmp_path / "garbage.jpg"])
    page.wait("#verdict", "Not scored")
    check("garbage")


def test_everything_is_reached_by_keyboard(page, photographs):
    page.choose(photographs[:2])
    page.wait("#announcement", "2 inputs")
    page.script("document.activeElement.blur()")
    reached = []
    for _ in range(60):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        reached.append(page.script("const e = document.activeElement; return e.id || e.className || e.tagName"))
        if reached[1:].count("BODY") > 1:  # once around, wherever the first step began
            break
    assert {"guard", "check-tab", "files", "drawing", "only-rejected", "clear"} - {*reached} == set()
    assert any(each.startswith("card") for each in reached)
    page.script("document.querySelector('#recent li:last-child button').focus()")
    ActionChains(page.driver).send_keys(Keys.ENTER).perform()
    assert page.one("#recent li:last-child button").get_attribute("aria-pressed") == "true"
    page.script("document.querySelector('#check-tab').focus()")
    for key, shown in ((Keys.ARROW_RIGHT, "threshold"), (Keys.ARROW_RIGHT, "monitoring"), (Keys.HOME, "check")):
        ActionChains(page.driver).send_keys(key).perform()
        assert [each.get_attribute("id") for each in page.all("[role=tabpanel]") if each.is_displayed()] == [shown]


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_verdict_and_its_picture_are_on_the_first_screen(page, photographs, width, height):
    page.look(width)
    page.choose([photographs[-1]])
    page.wait("#verdict", photographs[-1].name, "The score")
    page.wait("#verdict img")
    page.script("scrollTo(0, 0)")
    for part in ("#verdict .headline", "#verdict img"):
        rect = page.script("return document.querySelector(arguments[0]).getBoundingClientRect().bottom", part)
        assert 0 < rect <= height, part


def test_only_what_is_rejected_is_shown_if_asked(page, photographs):
    page.choose(photographs)
    page.wait("#announcement", "50 inputs")
    page.one("#only-rejected").click()
    found = cards(page)
    assert 0 < len(found) < 50
    assert {tag for _, tag, _ in found} == {"rejected"}


def test_no_scripts_but_its_own_can_run(page):
    page.script("document.body.append(make('script', { textContent: 'window.foreign = 1' }))")
    assert page.script("return window.foreign ?? null") is None
    assert any("Content Security Policy" in message for message in page.messages())
