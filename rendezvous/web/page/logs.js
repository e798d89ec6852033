// The workers' lines of a job or of one rank: asked for while they are shown, searched here.

const MOST_LINES = 5000;  // kept and searched
const MOST_SHOWN = 1000;  // in the page
const LOG_PAUSE_MS = 1000;
const LAST_LINES_MS = 5000;  // the lines that still come after a run's end

class LogView {
  constructor(root, run) {
    Object.assign(this, { run, lines: [], feed: 0, next: 0, isShown: false, overSince: 0, missed: 0, asked: 0, top: 0 });
    this.box = $("#logs-lines", root);
    this.note = $("#logs-note", root);
    this.button = $("#logs-show", root);
    this.rank = $("#logs-rank", root);
    this.find = $("#logs-find", root);
    this.follow = $("#logs-follow", root);
    this.button.addEventListener("click", () => (this.isShown ? this.hide() : this.show()));
    this.rank.addEventListener("change", () => this.show());
    this.find.addEventListener("input", () => this.render());
    this.follow.addEventListener("change", () => this.render());
    this.box.addEventListener("scroll", () => {
      if (this.box.scrollTop < this.top) this.follow.checked = false;
      this.top = this.box.scrollTop;
    }, { passive: true });
  }

  showRank(rank) {
    this.rank.value = String(rank);
    this.show();
    this.box.scrollIntoView({ block: "center" });
    this.box.focus({ preventScroll: true });
  }

  show() {
    this.isShown = true;
    this.box.hidden = false;
    setText(this.button, "Hide logs");
    Object.assign(this, { lines: [], feed: 0, next: 0, overSince: 0, missed: 0 });
    this.render();
    setText(this.note, "asking the agents for their lines …");
    this.ask();
  }

  hide() {
    this.isShown = false;
    ++this.asked;
    clearTimeout(this.timer);
    this.box.hidden = true;
    setText(this.button, "Show logs");
    setText(this.note, "");
  }

  // Only the newest question counts: an older answer is for another rank.
  async ask() {
    clearTimeout(this.timer);
    const question = ++this.asked;
    const rank = this.rank.value.trim();
    const where = new URLSearchParams({ run: this.run, feed: this.feed, after: this.next });
    if (/^\d+$/.test(rank)) where.set("rank", rank);
    let pause = LOG_PAUSE_MS;
    try {
      const [answer, text] = await fetchText(`api/logs?${where}`);
      if (question !== this.asked) return;
      if (answer.ok) pause = this.take(JSON.parse(text));
      else setText(this.note, text);
      if (answer.status === 404) pause = 5 * LOG_PAUSE_MS;  // a daemon that was restarted may not know the job yet
    } catch {
      if (question !== this.asked) return;
      setText(this.note, "The daemon does not answer; the page asks again.");
      pause = 3 * LOG_PAUSE_MS;
    }
    if (pause >= 0) this.timer = setTimeout(() => this.ask(), document.hidden ? 10 * LOG_PAUSE_MS : pause);
  }

  // Returns the pause until the next question; below 0: none.
  take(answer) {
    if (answer.feed !== this.feed) this.lines = [];
    this.missed += answer.skipped;
    Object.assign(this, { feed: answer.feed, next: answer.next });
    for (const line of answer.lines) this.insert(line);
    if (this.lines.length > MOST_LINES) this.lines.splice(0, this.lines.length - MOST_LINES);
    if (answer.lines.length > 0) this.render();
    const lost = answer.lost + this.missed;
    const none = this.lines.length === 0 ? "No line yet. " : "";
    setText(this.note, answer.over ? `${none}${answer.over}`
      : `${none || `${many(this.lines.length, "line")} here. `}${lost > 0 ? `${many(lost, "line")} came faster than they could be shown. ` : ""}`);
    if (!answer.over) return answer.more ? 0 : LOG_PAUSE_MS;
    this.overSince = this.overSince || Date.now();
    return Date.now() - this.overSince > LAST_LINES_MS ? -1 : LOG_PAUSE_MS;
  }

  // By time: the nodes' batches come one after the other.
  insert(line) {
    let place = this.lines.length;
    while (place > 0 && this.lines[place - 1][0] > line[0]) --place;
    this.lines.splice(place, 0, line);
  }

  render() {
    const wanted = this.find.value.toLowerCase();
    const found = wanted ? this.lines.filter((line) => line[4].toLowerCase().includes(wanted)) : this.lines;
    const fragment = document.createDocumentFragment();
    for (const line of found.slice(-MOST_SHOWN)) fragment.appendChild(this.lineElement(line, wanted));
    if (found.length === 0 && wanted) fragment.appendChild(make("div", "from", "No line has this text."));
    this.box.replaceChildren(fragment);
    if (this.follow.checked) this.box.scrollTop = this.box.scrollHeight;
    this.top = this.box.scrollTop;
  }

  lineElement([time, rank, host, isStderr, text], wanted) {
    const element = make("div");
    element.append(make("span", "from", `${clock(time / 1e6)} ${host} [${rank}] `));
    const body = element.appendChild(make("span", isStderr ? "stderr" : ""));
    let rest = text;
    for (let at; wanted && (at = rest.toLowerCase().indexOf(wanted)) >= 0; rest = rest.slice(at + wanted.length)) {
      body.append(rest.slice(0, at), make("mark", "", rest.slice(at, at + wanted.length)));
    }
    body.append(rest);
    return element;
  }
}
