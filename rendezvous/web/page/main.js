// The page that is shown (by the part of the address behind #), and the questions to the daemon.

// A larger answer is asked for more rarely, so that many pages cost the daemon little.
const PAUSES = [[100e3, 1000], [400e3, 2000], [Infinity, 5000]];
const LOST_PAUSE_MS = 2000;

const state = { page: null, run: "", tag: "", timer: 0, asked: 0, heard: 0, pause: 1000 };
// Milliseconds of script of the newest updates, for a test.
const updates = [];

function route() {
  let run = "";
  try {
    run = decodeURIComponent(location.hash.slice(1));
  } catch {
    run = location.hash.slice(1);
  }
  if (state.page) state.page.leave();
  Object.assign(state, { run, tag: "", pause: 1000 });
  state.page = run ? new JobPage($("#main"), run) : new JobsPage($("#main"));
  document.title = run ? `${run} – Convene` : "Convene";
  setText($("#crumb"), run ? ` › ${run}` : "");
  ask();
}

function tell(text, isLost) {
  const link = $("#link");
  setText(link, text);
  link.className = isLost ? "lost" : "";
  document.body.className = isLost ? "lost" : "";
}

// Only the newest question counts.
async function ask() {
  clearTimeout(state.timer);
  const question = ++state.asked;
  const where = state.run ? `api/job?${new URLSearchParams({ run: state.run })}` : "api/jobs";
  let answer = null;
  let text = "";
  try {
    [answer, text] = await fetchText(where, state.tag ? { "If-None-Match": state.tag } : {});
  } catch {
    answer = null;
  }
  if (question !== state.asked) return;
  try {
    if (answer) hear(answer, text);
    else lose();
  } catch (error) {
    tell("This page has an error of its own; the browser's console names it.", true);
    throw error;
  } finally {
    // A page that nobody looks at asks for nothing; it asks at once when it is looked at again.
    if (!document.hidden) state.timer = setTimeout(ask, state.pause);
  }
}

function hear(answer, text) {
  state.heard = Date.now();
  if (answer.status === 401) return location.reload(); // The daemon has begun anew, and asks for its password.
  if (answer.ok) take(answer, text);
  if (answer.ok || answer.status === 304) tell("live", false);
  else tell(text.trim(), true);
}

function lose() {
  tell(state.heard ? `The daemon does not answer since ${clock(state.heard / 1000)}; this is what it said last.` : "The daemon does not answer.", true);
  state.pause = LOST_PAUSE_MS;
}

function take(answer, text) {
  const begin = performance.now();
  state.pause = PAUSES.find(([size]) => text.length < size)[1];
  state.page.show(JSON.parse(text), Date.now() / 1000);
  // Behind `show`: an answer that could not be shown is asked for again.
  state.tag = answer.headers.get("ETag") || "";
  updates.push(performance.now() - begin);
  if (updates.length > 100) updates.shift();
}

addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (state.page && state.page.job) state.page.draw(); });
route();
