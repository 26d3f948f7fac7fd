"""The page of `agentloop view` in a real Chromium."""

import re
import shutil
import threading

import pytest
import uvicorn
from playwright.sync_api import expect, sync_playwright

from agentloop.tools.serving.http.listening import address_of, listen
from agentloop.trainer.run.lock import locked
from agentloop.trainer.viewer.app import application
from agentloop.trainer.viewer.runs import Runs

pytestmark = pytest.mark.slow
expect.set_options(timeout=30_000)  # milliseconds, for a busy machine


@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "chromium is not installed: scripts/system-packages PYTHON test installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Call as open_page(*folders): a page that shows these runs. The page must not log errors.

    A test that expects errors clears `page.errors`.
    """
    errors, ends = [], []

    def open_runs_at(*folders, place=""):
        listener = listen("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(application(Runs(folders)), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        context = chromium.new_context(base_url=address_of(listener))
        ends.append((context, server, thread))
        page = context.new_page()
        page.errors = errors
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"/{place}")
        return page

    yield open_runs_at
    for context, server, thread in ends:
        context.close()
        server.should_exit = True
        thread.join()
    assert errors == []


@pytest.fixture
def many(run_folder, trajectory_of):
    """A run with episodes of several rewards, failures and tasks in step 1."""
    folder = run_folder("many")
    episodes = [
        trajectory_of("a", name="1-0-0", asked="What is 2 + 3?", reward=1.0),
        trajectory_of("b", name="1-0-1", asked="What is 2 + 3?", reward=0.5, failures={"tool": 2}),
        trajectory_of("c", name="1-1-0", asked="Name a river.", reward=0.0, stop_reason="max_turns"),
        trajectory_of("d", name="1-1-1", asked="Name a river.", reward=None, failures={"judge": 1}),
    ]
    folder.write_trajectories("step_000001", episodes)
    return folder


STEP = "#/episodes?run=many&file=step_000001"


def expect_rows(page, *names):
    expect(page.locator("tbody td:first-child")).to_have_text(list(names))


def test_curves_of_runs_lie_over_each_other(open_page, run_folder):
    first, second = run_folder("first", learner={"lr": 1}), run_folder("second", learner={"lr": 2})
    for step in range(2, 5):
        second.append_metrics({"step": step, "reward/mean": 0.1 * step})
    page = open_page(first.root, second.root)
    chart = page.locator("[data-metric='reward/mean']").first
    expect(chart.locator(".smooth")).to_have_count(2)
    expect(chart.locator(".values")).to_have_text("0.5000.400")
    chart.locator("svg").hover()
    expect(chart.locator(".values")).to_contain_text("step ")
    page.get_by_role("button", name="first").click()
    expect(chart.locator(".smooth")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"#/curves\?run=second$"))
    page.reload()
    expect(chart.locator(".smooth")).to_have_count(1)
    page.get_by_role("link", name="config").click()
    page.get_by_role("button", name="first").click()
    expect(page.locator("tbody th")).to_have_text(["learner.lr"])  # only what differs


def test_a_run_that_is_hidden_while_a_page_loads_is_hidden_there(open_page, run_folder):
    page = open_page(run_folder("first").root, run_folder("second").root)
    page.route("**/api/config*", lambda request: None)  # no answer
    page.get_by_role("link", name="config").click()
    page.get_by_role("button", name="first").click()
    expect(page).to_have_url(re.compile(r"#/config\?run=second$"))
    page.unroute("**/api/config*")  # the requests go on
    expect(page.locator("thead th")).to_have_count(2)  # the key, and the run that is left


def test_a_page_whose_requests_failed_is_loaded_when_the_server_answers_again(open_page, run_folder):
    page = open_page(run_folder("run").root, place="#/config")
    page.errors.clear()
    expect(page.get_by_role("cell", name="2", exact=True)).to_be_visible()
    offline = page.get_by_text("agentloop view does not answer", exact=True)
    page.route("**/api/**", lambda request: request.abort())
    page.reload()
    expect(offline).to_be_visible()
    page.unroute("**/api/**")
    expect(page.get_by_role("cell", name="2", exact=True)).to_be_visible()
    page.route("**/api/**", lambda request: request.abort())
    page.get_by_role("link", name="episodes").click()
    page.get_by_role("link", name="step_000001").click()
    expect(page.get_by_text("Is it still running?")).to_be_visible()
    expect(offline).to_be_visible()
    page.unroute("**/api/**")
    expect(page.locator("td.task")).to_have_text("question")
    page.errors.clear()


def test_an_error_of_the_server_is_not_called_invalid_json(open_page, run_folder):
    page = open_page(run_folder("run").root, place="#/files")
    page.route("**/api/episodes*", lambda request: request.fulfill(status=500, body="Internal Server Error"))
    page.get_by_role("link", name="step_000001").click()
    expect(page.locator("main")).to_have_text("agentloop view answered with status 500. Its terminal shows why.")
    page.errors.clear()


def test_a_file_that_a_resumed_run_removed_is_missed_on_its_page(open_page, run_folder):
    folder = run_folder("run")
    page = open_page(folder.root, place="#/episodes?run=run&file=step_000001")
    expect(page.locator("td.task")).to_have_text("question")
    folder.forget_after(0)
    expect(page.locator("main")).to_have_text("there is no trajectory file 'step_000001'")
    expect(page.get_by_text("agentloop view does not answer")).to_be_hidden()
    page.errors.clear()


def test_a_link_to_a_run_that_is_not_shown_says_so(open_page, run_folder):
    page = open_page(run_folder("run").root, place="#/curves?run=gone")
    expect(page.locator("main")).to_have_text("There is no run gone here.")


def test_the_button_of_a_run_keeps_the_focus(open_page, run_folder):
    page = open_page(run_folder("first").root, run_folder("second").root)
    page.get_by_role("button", name="second").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="second")).to_have_attribute("aria-pressed", "false")
    expect(page.get_by_role("button", name="second")).to_be_focused()


def test_values_of_many_runs_stay_in_their_chart(open_page, run_folder):
    page = open_page(*(run_folder(f"run-{number}").root for number in range(20)))
    chart = page.locator("[data-metric='reward/mean']").first
    expect(chart.locator(".values b")).to_have_count(20)
    right = chart.bounding_box()["x"] + chart.bounding_box()["width"]
    values = chart.locator(".values").bounding_box()
    assert values["x"] + values["width"] <= right
    assert chart.get_by_text("reward/mean").bounding_box()["width"] > 60


def test_a_stage_has_the_same_colour_in_all_runs(open_page, run_folder):
    first, second = run_folder("first"), run_folder("second")
    first.append_metrics({"step": 2, "time/rollout": 1.0, "time/train": 2.0})
    second.append_metrics({"step": 2, "time/train": 2.0})
    page = open_page(first.root, second.root, place="#/time")
    columns = page.locator("rect", has_text="train")
    expect(columns).to_have_count(2)
    assert len({columns.nth(number).get_attribute("fill") for number in range(2)}) == 1


def test_episodes_have_their_task_and_can_be_filtered(open_page, many):
    page = open_page(many.root)
    page.get_by_role("link", name="episodes").click()
    page.get_by_role("link", name="step_000001").click()
    expect(page.get_by_role("status").first).to_have_text("4 of 4 episodes, mean reward 0.500")
    expect(page.locator("td.task")).to_have_text(["What is 2 + 3?"] * 2 + ["Name a river."] * 2)
    page.get_by_label("lowest reward").fill("0.5")
    expect_rows(page, "1-0-0", "1-0-1")
    page.get_by_label("failures").select_option("none")
    expect_rows(page, "1-0-0")
    page.reload()
    expect(page.get_by_label("lowest reward")).to_have_value("0.5")
    expect_rows(page, "1-0-0")
    page.goto(f"/{STEP}&failure=judge")
    expect_rows(page, "1-1-1")
    page.goto(f"/{STEP}&ended=max_turns")
    expect_rows(page, "1-1-0")
    page.get_by_label("ended by").select_option("anything")
    page.get_by_label("search tasks").fill("RIVER")
    expect_rows(page, "1-1-0", "1-1-1")


def test_columns_sort_with_mouse_and_keyboard(open_page, many):
    page = open_page(many.root, place=STEP)
    page.get_by_role("button", name="reward").click()
    expect_rows(page, "1-1-0", "1-0-1", "1-0-0", "1-1-1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="reward")).to_have_attribute("aria-sort", "descending")
    expect_rows(page, "1-1-1", "1-0-0", "1-0-1", "1-1-0")


def test_a_running_run_grows_without_a_reload(open_page, run_folder, trajectory_of):
    folder = run_folder("going")
    with locked(folder.root):
        page = open_page(folder.root)
        page.evaluate("window.mark = 1")
        chip = page.locator(".chip")
        expect(chip).to_have_text("goingrunning, step 1 of 2")
        folder.append_metrics({"step": 2, "reward/mean": 0.75})
        expect(chip).to_have_text("goingrunning, step 2 of 2")
        expect(page.locator("[data-metric='reward/mean'] .values").first).to_have_text("0.750")
        page.get_by_role("link", name="episodes").click()
        expect(page.get_by_role("link", name="step_000002")).to_have_count(0)
        folder.write_trajectories("step_000002", [trajectory_of("new")])
        expect(page.get_by_role("link", name="step_000002")).to_have_count(1)
        page.get_by_role("link", name="curves").click()
        folder.forget_after(1)  # the run was killed and resumed
        expect(page.locator("[data-metric='reward/mean'] .values").first).to_have_text("0.500")
        assert page.evaluate("window.mark") == 1


def test_a_link_leads_to_one_episode(open_page, many):
    page = open_page(many.root, place="#/episode?run=many&file=step_000001&episode=2")
    expect(page.locator(".segment .text")).to_have_text(["Name a river.", "c", "seen"])
    expect(page.locator(".path")).to_have_text("step_000001 / 1-1-0")
    expect(page.locator(".facts")).to_contain_text("max_turns")
    page.get_by_role("link", name="next").click()
    expect(page.locator(".sampled .text")).to_have_text("d")
    assert page.url.endswith("episode=3")
    expect(page.locator("[data-key=n]")).to_have_attribute("aria-disabled", "true")


def test_the_token_streams_of_players_have_their_seat_and_reward(open_page, run_folder, trajectory_of):
    black, white = trajectory_of("a", reward=1.0, role="black"), trajectory_of("b", reward=-1.0, role="white")
    black.branches = [white]
    program = trajectory_of("c")
    program.branches = [trajectory_of("d")]
    folder = run_folder("run")
    folder.write_trajectories("step_000001", [black, program])
    page = open_page(folder.root, place="#/episode?run=run&file=step_000001&episode=0")
    headings = page.locator("main h2:not(.path)")
    expect(headings).to_have_text(["black, reward 1", "white, reward -1"])
    page.get_by_role("link", name="next").click()
    expect(headings).to_have_text(["branch 1"])


def test_everything_can_be_done_with_keys(open_page, many):
    page = open_page(many.root)
    expect(page.locator(".chart").first).to_be_visible()
    page.keyboard.press("3")
    expect(page.locator("a.row")).to_have_count(2)
    page.keyboard.press("j")
    expect(page.locator("a.row:focus")).to_have_text("step_000001")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(4)
    page.keyboard.press("/")
    page.keyboard.type("river")
    page.keyboard.press("Escape")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".sampled .text")).to_have_text("c")
    page.keyboard.press("n")
    expect(page.locator(".sampled .text")).to_have_text("d")
    page.keyboard.press("p")
    expect(page.locator(".sampled .text")).to_have_text("c")
    page.keyboard.press("u")
    expect(page.locator("tbody tr")).to_have_count(2)  # the filter is still there
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_text_of_a_model_stays_text(open_page, run_folder, trajectory_of):
    attack = "<img src=x onerror='window.attacked = 1'><script>window.attacked = 1</script>"
    folder = run_folder("hostile")
    folder.write_trajectories("step_000001", [trajectory_of(attack, asked=attack, name=attack)])
    page = open_page(folder.root, place="#/episodes?run=hostile&file=step_000001")
    expect(page.locator("td.task")).to_have_text(attack)
    page.locator("a.row").click()
    expect(page.locator(".sampled .text")).to_have_text(attack)
    assert page.evaluate("window.attacked") is None


def test_an_unknown_address_shows_a_message(open_page, folder):
    page = open_page(folder.root, place="#/nowhere")
    expect(page.locator("main")).to_have_text("There is no page nowhere.")
    expect(page).to_have_title(re.compile("agentloop view"))


def test_any_number_of_runs_have_colours_of_their_own(many, open_page):
    colours = open_page(many.root).evaluate(
        "async () => { const { colour } = await import('./live.js'); return [...Array(40).keys()].map(colour); }"
    )
    assert len(set(colours)) == 40


def test_long_runs_and_long_turns_are_drawn(open_page, run_folder, trajectory_of):
    """An argument for each of 140,000 values is more than a call of a function may have."""
    folders = [run_folder(f"run-{number}") for number in range(7)]
    lines = "".join(f'{{"step": {step}, "reward/mean": {step / 20_000}}}\n' for step in range(1, 20_001))
    for folder in folders:
        folder.metrics_file.write_text(lines)
    folders[0].write_trajectories("step_000001", [trajectory_of("a " * 70_000)])
    page = open_page(*(folder.root for folder in folders))
    expect(page.locator("[data-metric='reward/mean'] .smooth")).to_have_count(2 * len(folders))
    page.goto("#/episode?run=run-0&file=step_000001&episode=0")
    expect(page.locator(".segment .text")).to_have_count(3)
