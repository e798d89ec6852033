// Small helpers, and the words for numbers. All that comes from outside enters the page by textContent.

const $ = (selector, root = document) => root.querySelector(selector);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Leaves the page alone where nothing changes: a new text node costs layout, and ends a selection.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// The answer and its text. Of a machine that died nothing comes, not even an end; a large text may take a slow link a while.
const HEAD_PATIENCE_MS = 10e3;
const TEXT_PATIENCE_MS = 60e3;
async function fetchText(where, headers = {}) {
  const control = new AbortController();
  let limit = setTimeout(() => control.abort(), HEAD_PATIENCE_MS);
  try {
    const answer = await fetch(where, { cache: "no-store", headers, signal: control.signal });
    clearTimeout(limit);
    limit = setTimeout(() => control.abort(), TEXT_PATIENCE_MS);
    return [answer, await answer.text()];
  } finally {
    clearTimeout(limit);
  }
}

const isTold = (value) => value !== null && value !== undefined;
const orDash = (value, words) => (isTold(value) ? words(value) : "–");
const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

function count(value) {
  return grouped.format(value);
}

// Three digits that count: "0.00123", "3.25", "41.2 k", "1.3 M".
function short(value) {
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${Number((value / (name === "k" ? 1e3 : unit)).toPrecision(3))} ${name}`;
  }
  return size >= 1000 ? count(value) : String(Number(value.toPrecision(3)));
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; ++unit) value /= 1024;
  return `${value >= 100 || unit === 0 ? Math.round(value) : Number(value.toPrecision(2))} ${units[unit]}`;
}

function ago(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
const many = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

// Of a row of `stragglers_now`: "rank 3 on node1". The link of a whole job is on no host.
const stragglerName = ([kind, rank, host]) => `${kind}${kind === "rank" ? ` ${rank}` : ""}${host ? ` on ${host}` : ""}`;

const MARKS = { good: "●", waits: "◔", warn: "▲", bad: "✖", done: "✔" };

// [name, number, more] of the failures that count for the budget, each of which cost a restart. A failed job had none after its last one.
function restartsOf(job) {
  const [counted, most, all] = job.restarts;
  if (job.phase === "failed" || counted > most) return ["failures", `${all}`, `--max-restarts ${most}`];
  return ["restarts", `${counted}`, `of ${most}` + (all > counted ? ` (${all} in all)` : "")];
}

// The one sentence that a person needs first: {tone, title, advice}. `job`: of /api/jobs or /api/job.
function judge(job) {
  const [inEpoch, all, least, most] = job.nodes;
  const [step, speed] = job.sample;
  const [spent, budget] = job.restarts;
  if (job.phase === "failed") {
    return { tone: "bad", title: "The job failed.", advice: job.failure && `First cause of its last failure: ${job.failure}` };
  }
  if (job.phase === "succeeded") return { tone: "done", title: "The job is done: every worker ended well." };
  if (job.phase === "forming" && job.epoch === 0) {
    return { tone: "waits", title: `Waits for nodes: ${all} of ${least === most ? most : `${least} to ${most}`} are there.`,
      advice: all < least ? "Start `convene run` on the missing nodes, with the same run id and endpoint." : "" };
  }
  if (job.phase === "forming") {
    return { tone: all < least ? "bad" : "waits", title: all < least ? `Stands: ${all} of at least ${least} nodes are there.`
      : "Forms again: the next epoch begins when its nodes are ready.",
    advice: all < least ? "Bring a node back: start `convene run` there again. The job ends when no node comes in time." : "" };
  }
  if (job.phase === "stopping") {
    return { tone: "warn", title: `Epoch ${job.epoch} ends: its workers are being stopped.`, advice: "" };
  }
  const pace = isTold(step) ? `, step ${count(step)}${isTold(speed) ? `, ${short(speed)} steps/s` : ""}` : "";
  const silent = (job.node_rows || []).filter((row) => row[2] >= 0 && row[7] >= 10 && row[3] !== "succeeded" && !row[4].startsWith("succeeded"));
  if (silent.length > 0) {
    return { tone: "warn", title: `Runs, but ${many(silent.length, "node")} did not speak for ${ago(silent[0][7])}: ${silent[0][0]}.`,
      advice: "The daemon gives a node up when its lease ends, and the others start again without it." };
  }
  if (job.stragglers > 0) {
    const first = (job.stragglers_now || [])[0];
    return { tone: "warn", title: first ? `Runs, but ${first[0] === "rank" ? "" : "a "}${stragglerName(first)} holds the others up${pace}.`
      : `Runs, but ${many(job.stragglers, "straggler")} hold the others up${pace}.`, advice: first ? first[4] : "" };
  }
  const newest = (job.failures || [])[0];
  if (newest && newest[2] < 600) {
    return { tone: inEpoch < most ? "warn" : "good", title: `Runs again with ${many(inEpoch, "node")}, ${ago(newest[2])} after a failure${pace}.`,
      advice: spent > 0 ? `${newest[1]} (restart ${spent} of ${budget})` : newest[1] };
  }
  return { tone: "good", title: `Runs well: ${many(inEpoch, "node")}${pace}.`,
    advice: isTold(step) ? "" : "Its workers do not tell their progress yet. convene-train does by itself; a Python script calls tell(step) of `convene.progress`." };
}
