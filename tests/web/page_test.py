"""The daemon's page as a person sees it, in Debian's Chromium: a kill, a shrink, a growth, 1,000 ranks. CONVENE_PICTURES names a folder for pictures."""

import http.client
import os
import re
import signal
import tempfile
import unittest

from tests.support import side_by_side
from tests.support.chromium import PROGRAM, Chromium
from tests.support.convene_testing import CONVENE, CONVENED, CONVENE_TRAIN, ConveneTestCase, environment_of, find_program, processes_with, wait_until
from tests.web.fake_daemon import FakeDaemon, fake_job

RANKS = 1000
FIRST_PAINT_MS = 1000
UPDATE_MS = 50
# Prints a line each 50 ms until the file named in $0 is there.
CHATTER = 'i=0; while [ ! -e "$0" ]; do i=$((i+1)); echo "<i>rank $RANK</i> line $i"; sleep 0.05; done'
# Texts with less contrast than WCAG asks of small ones (4.5), and controls smaller than 24 pixels. A link within a sentence is as high as that.
FAINT = """(() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => color.slice(0, 3).map((each) => (each / 255 <= 0.03928 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, i) => sum + each * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = numbers(getComputedStyle(element).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')].filter((element) => {
    const hasText = [...element.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    return (hasText || element.placeholder) && element.getBoundingClientRect().width > 0;
  }).map((element) => {
    const isHint = element.placeholder && !element.value;
    const [one, other] = [light(numbers(getComputedStyle(element, isHint ? '::placeholder' : null).color)), light(behind(element))];
    return [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), element.outerHTML.slice(0, 80)];
  }).filter(([contrast]) => contrast < 4.5);
})()"""
SMALL = """[...document.querySelectorAll('header a, main a, button, input:not([type=checkbox])')].filter((each) => each.clientWidth > 0
  && (each.offsetWidth < 24 || each.offsetHeight < 24)).map((each) => each.outerHTML)"""


@unittest.skipUnless(PROGRAM, "SKIPPED: no chromium (tools/install_packages page)")
class PageTestCase(ConveneTestCase):

    def setUp(self):
        super().setUp()
        self.daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        told = wait_until(lambda: re.search(r"serving the rendezvous on 127\.0\.0\.1:(\d+)", self.output(self.daemon)), 20, "the daemon's port")
        self.port = int(told.group(1))
        self.browser = Chromium(tempfile.mkdtemp(dir=self.directory))
        self.addCleanup(self.browser.close)
        self.browser.resize(1280, 900)

    def get(self, path, **headers):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        self.addCleanup(client.close)
        client.request("GET", path, headers=headers)
        answer = client.getresponse()
        return answer, answer.read().decode()

    def picture(self, name, whole=False):
        folder = os.environ.get("CONVENE_PICTURES")
        if folder:
            self.browser.picture(os.path.join(folder, name + ".png"), whole)

    def says(self, words, selector="#verdict", timeout_s=30):
        """Waits until the page says `words` there."""
        self.browser.wait_for(f"(document.querySelector({selector!r}) || {{innerText: ''}}).innerText.includes({words!r})", timeout_s)


class FakeJobTest(PageTestCase):
    """With made-up jobs of any size, in the daemon's own page."""

    def fake(self, job):
        page, text = self.get("/", Accept="text/html")
        daemon = FakeDaemon(text, page.headers["Content-Security-Policy"], job)
        self.addCleanup(daemon.close)
        return daemon

    def test_a_thousand_ranks_stay_smooth(self):
        browser = self.browser
        daemon = self.fake(fake_job(125, 8, 1000))
        # Other programs take turns of the processor, too: the least of some times is the page's own.
        paints = []
        for _ in range(3):
            browser.open("about:blank")
            browser.open(daemon.url + "#llama-70b")
            browser.wait_for("updates.length >= 1")
            browser.wait_for("performance.getEntriesByName('first-contentful-paint').length")  # the script may be ahead of the paint
            paints.append(browser.look("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        for step in range(1001, 1010):  # each is another state to show
            daemon.job = fake_job(125, 8, step)
            browser.look("ask()")
        self.says("41.3 %", "#tiles")  # the MFU
        updates = browser.look("updates")
        print(f"{RANKS} ranks: first paint {[round(each) for each in paints]} ms; updates {[round(each, 1) for each in updates]} ms of script")
        self.assertLess(min(paints), FIRST_PAINT_MS)
        self.assertLess(min(updates[1:]), UPDATE_MS)
        self.assertLess(browser.look("document.querySelectorAll('#rank-table .row').length"), 100)
        browser.look("document.querySelector('#rank-table').scrollTop = 1e6")
        self.says("999", "#rank-table .body")
        # The slowest first, by the keyboard.
        browser.look("document.querySelector('#rank-table').scrollTop = 0")
        browser.look("[...document.querySelectorAll('.head button')].find((each) => each.textContent === 'a step').focus()")
        browser.press("Enter")
        self.assertEqual(browser.wait_for("[...document.querySelectorAll('.row')].find((row) => row.style.transform === 'translateY(0px)').innerText"
                                          ".split('\\n')[0]"), "3")
        browser.look("document.querySelector('#rank-filter').focus()")
        browser.type("node0007")
        browser.wait_for("document.querySelector('#rank-table .body').clientHeight === 8 * ROW_HEIGHT")
        self.assertEqual(browser.complaints, [])
        self.picture("ranks")

    def test_light_dark_and_phone(self):
        browser = self.browser
        daemon = self.fake(fake_job(2, 8, 12345))
        browser.prefer("light")
        browser.open(daemon.url + "#llama-70b")
        self.says("Runs, but rank 3 on node0000.cluster.example holds the others up")
        self.says("31 % slower", "#stragglers")
        self.says("verdict: kill", ".events")
        brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b) / 3"
        self.assertGreater(browser.look(brightness), 200)
        self.picture("light", whole=True)
        browser.prefer("dark")
        self.assertLess(browser.look(brightness), 60)
        self.picture("dark")
        for width in (390, 320):
            browser.resize(width, 844, phone=True)
            self.assertEqual(browser.look("document.documentElement.scrollWidth"), width)
        self.picture("phone", whole=True)
        # Values under the keyboard's cursor.
        browser.look("document.querySelector('figure canvas').focus()")
        browser.press("Home")
        self.says("at step 0,", "figure .readout")
        browser.press("Escape")
        self.says("now 1.", "figure .readout")
        browser.look("document.querySelector('[data-axis=step]').click()")
        self.assertEqual(browser.look("document.querySelector('[data-axis=step]').getAttribute('aria-pressed')"), "true")
        self.assertEqual(browser.complaints, [])

    def test_a_telephone_by_the_keyboard_alone(self):
        browser = self.browser
        job = fake_job(125, 8, 1000)
        job["node_rows"][0][4] = "cooling down for 30 s"
        daemon = self.fake(job)
        daemon.lines = [[1, 0, "node0000", True, "a line"]]
        browser.resize(360, 800, phone=True)
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            browser.open(daemon.url)
            self.says("llama-70b", "#jobs")
            self.assertEqual(browser.look(FAINT), [])
            browser.look("document.querySelector('#jobs a').focus()")
            browser.press("Enter")
            self.says("node0001", "#rank-table .body")
            browser.look("document.querySelector('#logs-show').click()")
            self.says("a line", "#logs-lines")
            self.assertEqual(browser.look(FAINT), [])
            self.assertEqual(browser.look(SMALL), [])
            self.assertEqual(browser.look("document.documentElement.scrollWidth"), 360)
            self.picture("telephone_" + scheme, whole=True)
        # Names of nodes that differ are readable; what is not in sight can be reached.
        hosts = "[...document.querySelectorAll('.row:not([hidden]) > :nth-child(2)')]"
        self.assertTrue(browser.look(hosts + ".every((each) => each.scrollWidth <= each.clientWidth)"))
        self.says("cooling down", "#rank-table .why")
        browser.look("document.querySelector('#rank-table').scrollLeft = 1e6")
        self.assertGreater(browser.look("document.querySelector('#rank-table').scrollLeft"), 300)
        # The whole table is one stop of the Tab key. Its outline lies within the cell, which would cut it off.
        browser.look("document.querySelector('#rank-table .head').lastChild.focus()")
        browser.press("Tab")
        focused = "document.activeElement.textContent"
        self.assertEqual(browser.look(focused), "0")
        outline = "(({ outlineStyle, outlineOffset }) => outlineStyle + outlineOffset)(getComputedStyle(document.activeElement))"
        self.assertEqual(browser.look(outline), "solid-2px")
        for _ in range(40):
            browser.press("ArrowDown")
        self.assertEqual(browser.look(focused), "40")
        browser.press("End")
        self.assertEqual(browser.look(focused), "999")
        sight = "(({ top, bottom }, { top: first, bottom: last }) => top >= first && bottom <= last)" \
                "(document.activeElement.getBoundingClientRect(), document.querySelector('#rank-table').getBoundingClientRect())"
        self.assertTrue(browser.look(sight))
        browser.press("Tab")
        self.assertEqual(browser.look("document.activeElement.id"), "logs-show")
        # A finger that scrolls takes no row's focus to another row for long, and an update leaves it where it is.
        browser.look("[...document.querySelectorAll('.row button')].find((each) => each.tabIndex === 0).focus()")
        browser.look("ask()")
        self.assertEqual(browser.look(focused), "999")
        self.assertEqual(browser.complaints, [])

    def test_a_page_that_was_left_draws_no_more(self):
        browser = self.browser
        daemon = self.fake(fake_job(2, 2, 5))
        browser.open(daemon.url + "#llama-70b")
        self.says("Runs, but rank 3")
        browser.look("location.hash = ''")
        self.says("llama-70b", "#jobs")
        browser.resize(900, 700)
        browser.look("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.assertEqual(browser.complaints, [])

    def test_a_daemon_that_hangs_is_not_live(self):
        browser = self.browser
        daemon = self.fake(fake_job(2, 2, 5))
        self.addCleanup(daemon.may_answer.set)
        browser.open(daemon.url + "#llama-70b")
        self.says("live", "#link")
        browser.look("document.querySelector('#logs-show').click()")
        self.says("No line yet", "#logs-note")
        daemon.may_answer.clear()  # as on a machine that died: its connections stay open
        self.says("The daemon does not answer since", "#link")
        self.says("The daemon does not answer", "#logs-note")
        daemon.may_answer.set()
        self.says("live", "#link")
        self.says("No line yet", "#logs-note")

    def test_lines_come_again_when_the_daemon_knows_the_job_again(self):
        browser = self.browser
        daemon = self.fake(fake_job(2, 2, 5))
        daemon.lines = [[1, 0, "node0000", True, "a line"]]
        daemon.knows_job = False
        browser.open(daemon.url + "#llama-70b")
        self.says("live", "#link")
        browser.look("document.querySelector('#logs-show').click()")
        self.says("knows no such job", "#logs-note")
        daemon.knows_job = True
        self.says("a line", "#logs-lines")

    def test_an_error_of_the_page_is_no_silent_daemon(self):
        browser = self.browser
        job = fake_job(2, 2, 5)
        daemon = self.fake({**job, "rank_rows": None})
        browser.open(daemon.url + "#llama-70b")
        self.says("an error of its own", "#link")
        browser.look("new Promise((done) => setTimeout(done, 100))")  # the browser tells of a promise's error a task later
        self.assertIn("TypeError", " ".join(browser.complaints))
        daemon.job = job
        self.says("live", "#link")

    def test_many_ranks_and_a_browser_whose_clock_is_late(self):
        browser = self.browser
        daemon = self.fake(fake_job(2, 2, 5))
        browser.open(daemon.url + "#llama-70b")
        self.says("live", "#link")
        # In one go: the next answer of the daemon brings its own rows.
        longest = "(state.page.table.show(Array.from({ length: 200000 }, (_, rank) => ({ rank, label: String(rank), host: 'a', state: 'running'," \
                  " compute: rank, wait: 0, data: 0, save: 0, peak: rank }))), state.page.table.longest)"
        self.assertEqual(browser.look(longest), 199999)
        # The straggler's stroke, the newest one, stands at the end of the line, not beyond it.
        color = "(() => { const strip = document.querySelector('.strip'); drawStrip(strip, state.page.job.events, 0); const at = strip.width;" \
                " return [...strip.getContext('2d').getImageData(at - 4, 20, 4, 1).data].join(); })()"
        empty = "(() => { const strip = document.querySelector('.strip'); const events = state.page.job.events.slice(0, 1);" \
                " drawStrip(strip, events, 0); return [...strip.getContext('2d').getImageData(strip.width - 4, 20, 4, 1).data].join(); })()"
        self.assertNotEqual(browser.look(color), browser.look(empty))

    def test_names_from_outside_stay_texts(self):
        browser = self.browser
        evil = "<img src=x onerror='document.title=1'><script>document.title=2</script>"
        job = fake_job(2, 2, 5, run=evil)
        job.update(why=evil, failure=evil)
        for row in job["node_rows"]:
            row[0] = row[4] = evil
        for event in job["events"]:
            event[2] = event[3] = evil
        job["stragglers_now"][0][2] = job["stragglers_now"][0][4] = evil
        daemon = self.fake(job)
        daemon.lines = [[1, 0, evil, False, evil]]
        browser.open(daemon.url)
        self.says(evil, "#jobs")
        browser.look("document.querySelector('#jobs a').click()")
        self.says(evil)
        browser.look("document.querySelector('#logs-show').click()")
        self.says(evil, "#logs-lines")
        self.assertEqual(browser.look("document.querySelectorAll('main img, main script').length"), 0)
        self.assertTrue(browser.look("document.title").startswith(evil))
        self.assertEqual(browser.complaints, [])

    def test_words_for_each_state(self):
        browser = self.browser
        job = {**fake_job(2, 1, 5), "rank_rows": [], "events": [], "curve": [], "stragglers": 0, "stragglers_now": [], "failures": [],
               "sample": [None, None, None, None], "incidents": []}
        daemon = self.fake(job)
        browser.open(daemon.url + "#llama-70b")
        self.says("Runs well: 2 nodes.")
        self.says("do not tell their progress yet")
        self.says("Nothing happened yet", ".events")
        self.assertIn("No loss is told yet", browser.look("document.querySelector('figure canvas').getAttribute('aria-label')"))
        for changes, words in (
                ({"phase": "failed", "failure": "rank 1: exit code 1"}, "First cause of its last failure: rank 1: exit code 1"),
                ({"phase": "succeeded"}, "The job is done"),
                ({"phase": "forming", "epoch": 0, "nodes": [0, 1, 2, 4]}, "Waits for nodes: 1 of 2 to 4"),
                ({"phase": "forming", "nodes": [0, 1, 2, 2]}, "Stands: 1 of at least 2"),
                ({"phase": "stopping"}, "its workers are being stopped"),
                ({"node_rows": [job["node_rows"][0][:7] + [14] + job["node_rows"][0][8:]]}, "did not speak for 14 s"),
                ({"node_rows": [job["node_rows"][0][:3] + ["away", "succeeded; its connection closed"] + job["node_rows"][0][5:7] + [14]
                                + job["node_rows"][0][8:]]}, "Runs well"),
                ({"failures": [[1, "rank 5: exit code 1", 30]], "nodes": [2, 2, 1, 2]}, "Runs again with 2 nodes, 30 s after a failure")):
            daemon.job = {**job, **changes}
            self.says(words)
        daemon.close()
        self.says("The daemon does not answer", "#link")


class RealJobTest(PageTestCase):

    def agent(self, rank, *program, nodes="1:3", workers=1, run="run1"):
        return self.start(CONVENE, "run", "--nnodes", nodes, "--node-rank", rank, "--rdzv-id", run, "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                          "--local-addr", f"127.0.0.{rank + 1}", "--rdzv-conf", "is_host=0,last_call_timeout=1", "--max-restarts", 5,
                          "--nproc-per-node", workers, *program, log=f"agent{rank}.log")

    def test_a_kill_a_shrink_a_growth_and_the_end(self):
        browser = self.browser
        end = self.path("end")
        browser.open(f"http://127.0.0.1:{self.port}/")
        self.says("This daemon knows no job yet", "main")
        agents = [self.agent(rank, "sh", "-c", CHATTER, end) for rank in range(3)]
        self.says("Runs well: 3 nodes", "#jobs")
        browser.look("document.querySelector('#jobs a').click()")
        self.says("Runs well: 3 nodes.")
        browser.look("document.querySelector('#logs-show').focus()")
        browser.press("Enter")
        self.says("<i>rank 2</i> line", "#logs-lines")
        self.picture("logs", whole=True)
        browser.look("const find = document.querySelector('#logs-find'); find.value = 'RANK 1'; find.dispatchEvent(new Event('input'))")
        browser.wait_for("document.querySelectorAll('#logs-lines mark').length > 3")
        self.assertNotIn("rank 2", browser.text("#logs-lines"))
        victim = next(pid for pid in processes_with(self.marker) if environment_of(pid).get("RANK") == "1")
        os.kill(victim, signal.SIGKILL)
        self.says("after a failure")
        self.says("SIGKILL")
        self.says("SIGKILL", ".events")
        self.says("Runs again with 3 nodes")
        epoch = "[...document.querySelectorAll('#tiles > div')].find((tile) => tile.querySelector('dt').textContent === 'epoch')"
        self.assertEqual(browser.look(f"{epoch}.querySelector('dd').innerText.trim()"), "2")
        self.picture("killed", whole=True)
        agents[2].terminate()
        self.says("Runs again with 2 nodes")
        browser.wait_for("rowsOf(state.page.job).length === 2")
        agents[2].wait(20)
        agents[2] = self.agent(2, "sh", "-c", CHATTER, end)
        self.says("Runs again with 3 nodes")
        with open(end, "w", encoding="ascii"):
            pass
        for agent in agents:
            self.finish(agent, 30)
        self.says("The job is done")
        self.says("the run is over", "#logs-note")
        self.assertEqual(browser.complaints, [])
        self.daemon.kill()
        self.says("The daemon does not answer since", "#link")

    def test_the_trainer_tells_its_curves(self):
        browser = self.browser
        job = self.agent(0, find_program(CONVENE_TRAIN), *self.train_arguments(steps=100000), nodes="1", workers=2)
        browser.open(f"http://127.0.0.1:{self.port}/#run1")
        self.says("steps/s.")
        browser.wait_for("state.page.job.curve.length >= 3 && state.page.job.rank_rows.length === 2")
        self.says("now ", "figure .readout")
        self.assertGreater(browser.look("state.page.job.sample[2]"), 0)  # the loss
        self.assertGreater(browser.look("state.page.job.sample[3]"), 1)  # tokens/s
        self.assertGreater(browser.look("state.page.job.rank_rows[1][5]"), 0)  # compute
        browser.wait_for("state.page.job.goodput > 0")
        self.picture("trainer", whole=True)
        self.assertEqual(browser.complaints, [])
        job.terminate()
        job.wait(30)


if __name__ == "__main__":
    side_by_side.main(at_once=2)
