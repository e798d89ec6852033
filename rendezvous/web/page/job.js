// One job's page, and the list of all jobs. Each takes the daemon's answer and changes what differs.

const EVENTS_SHOWN = 100;

class JobPage {
  constructor(root, run) {
    root.replaceChildren($("#job-page").content.cloneNode(true));
    this.axis = "time";
    this.root = root;
    this.logs = new LogView(root, run);
    this.table = new RankTable($("#rank-table", root), (rank) => this.logs.showRank(rank));
    $("#rank-filter", root).addEventListener("input", (event) => this.table.setFilter(event.target.value));
    for (const button of root.querySelectorAll(".choice button")) button.addEventListener("click", () => this.setAxis(button));
    const charts = $(".charts", root);
    const untold = "Convene's trainer does by itself; a Python script calls tell(step, …) of convene.progress.";
    this.charts = [
      [2, new Chart(charts, { title: "loss", unit: "", tone: "--wait", fromZero: false, empty: `No loss is told yet. ${untold}` })],
      [3, new Chart(charts, { title: "tokens", unit: "per second, all ranks", tone: "--good", fromZero: true, empty: `No tokens are told yet. ${untold}` })],
      [4, new Chart(charts, { title: "steps", unit: "per second", tone: "--compute", fromZero: true, empty: `No step is told yet. ${untold}` })],
    ];
    this.resized = new ResizeObserver(() => this.job && this.draw());
    this.resized.observe(root);
  }

  setAxis(pressed) {
    this.axis = pressed.dataset.axis;
    for (const button of pressed.parentElement.children) button.setAttribute("aria-pressed", String(button === pressed));
    if (this.job) this.draw();
  }

  // `root` stays, and belongs to the next page.
  leave() {
    this.resized.disconnect();
    this.logs.hide();
  }

  // `now`: the browser's clock, in seconds since 1970. It may differ from the daemon's, which gave the events their times.
  show(job, now) {
    Object.assign(this, { job, now });
    showVerdict($("#verdict", this.root), job);
    this.showTiles(job);
    this.showStragglers(job);
    this.showEvents(job);
    this.draw();
  }

  draw() {
    const isTime = this.axis === "time";
    const place = (point) => (isTime ? point[0] : point[1]);
    const marks = isTime ? drawnOrder(this.job.events).filter((event) => ["--bad", "--good"].includes(eventTone(event[2])))
      .map((event) => [event[1] / 1e6, eventTone(event[2])]) : [];
    for (const [column, chart] of this.charts) {
      chart.show(this.job.curve.map((point) => [place(point), point[column], point[0], point[1]]), marks, isTime);
    }
    for (const part of [".strip", "#story .legend"]) $(part, this.root).hidden = this.job.events.length === 0;
    drawStrip($(".strip", this.root), this.job.events, this.now);
    const rows = rowsOf(this.job);
    $("#bar-legend", this.root).hidden = !rows.some((row) => row.compute > 0);
    this.table.show(rows);
  }

  showTiles(job) {
    const [step, speed, loss, tokens] = job.sample;
    const peak = job.rank_rows.reduce((most, row) => Math.max(most, row[12]), 0);
    const tiles = [
      ["step", orDash(step, count), ""],
      ["steps/s", orDash(speed, short), ""],
      ["loss", orDash(loss, short), ""],
      ["tokens/s", orDash(tokens, short), ""],
      ["MFU", orDash(job.mfu, (share) => `${(100 * share).toFixed(1)} %`), "", "model FLOPs utilization: the model's arithmetic of the last step, as a share of the devices' peak"],
      ["goodput", orDash(job.goodput, (share) => `${Math.round(100 * share)} %`), "", "the share of the time in which the job made steps that it keeps"],
      ["nodes", `${job.nodes[0]}`, job.nodes[1] > job.nodes[0] ? `+ ${job.nodes[1] - job.nodes[0]} beside` : `of ${job.nodes[3]}`],
      ["epoch", `${job.epoch}`, ""],
      restartsOf(job),
      ["memory peak", peak > 0 ? bytes(peak) : "–", ""],
    ];
    const list = $("#tiles", this.root);
    tiles.forEach(([name, value, more, title], i) => {
      let tile = list.children[i];
      if (!tile) {
        tile = list.appendChild(make("div"));
        tile.append(make("dt"), make("dd"));
        tile.children[1].append(make("span"), " ", make("small"));
      }
      tile.title = title || "";
      setText(tile.children[0], name);
      setText($("span", tile), value);
      setText($("small", tile), more);
    });
  }

  showStragglers(job) {
    const section = $("#stragglers", this.root);
    section.hidden = job.stragglers_now.length === 0;
    $("ul", section).replaceChildren(...job.stragglers_now.map((straggler) => {
      const [, , , slower, why, since] = straggler;
      const item = make("li");
      item.append(make("b", "", stragglerName(straggler)),
        `: ${Math.round(100 * slower)} % slower, for ${ago(since)}. ${why}`);
      return item;
    }));
  }

  // The newest first; a job whose daemon keeps no events has at least its failures.
  showEvents(job) {
    const incidents = new Map(job.incidents.map((incident) => [incident[1], incident]));
    const rows = job.events.length > 0
      ? job.events.slice(-EVENTS_SHOWN).reverse().map(([number, time, kind, text, epoch]) => [number, clock(time / 1e6), epoch, kind, text])
      : job.failures.map(([epoch, what, seconds]) => [`${epoch} ${what}`, clock(this.now - seconds), epoch, "failure", what]);
    const list = $(".events", this.root);
    const key = JSON.stringify([rows.map((row) => row[0]), [...incidents.keys()]]);
    if (key === this.eventsKey) return;
    this.eventsKey = key;
    list.replaceChildren(...rows.map(([, time, epoch, kind, text]) => this.eventElement(time, epoch, kind, text, incidents.get(epoch))));
    if (rows.length === 0) list.append(make("li", "empty", "Nothing happened yet."));
  }

  eventElement(time, epoch, kind, text, incident) {
    const item = make("li");
    const tone = { "--bad": "bad", "--warn": "warn", "--wait": "waits", "--good": "good" }[eventTone(kind)] || "";
    item.append(make("span", "time", time), make("span", "epoch", epoch > 0 ? `epoch ${epoch}` : ""), make("span", `kind ${tone}`, kind));
    const verdict = tone === "bad" && incident ? ` — verdict: ${incident[2]} (convene incidents ${this.job.id} ${incident[0]})` : "";
    item.append(make("span", "text", text + verdict));
    return item;
  }
}

function showVerdict(section, job) {
  const { tone, title, advice } = judge(job);
  section.className = `verdict ${tone}`;
  setText($(".mark", section), MARKS[tone]);
  setText($("h2", section), title);
  setText($(".why", section), job.why);
  setText($(".advice", section), advice || "");
}

class JobsPage {
  constructor(root) {
    root.replaceChildren($("#jobs-page").content.cloneNode(true));
    this.root = root;
    this.items = new Map();
  }

  leave() {}

  show({ jobs }) {
    $("#no-jobs", this.root).hidden = jobs.length > 0;
    const list = $("#jobs", this.root);
    for (const job of jobs) {
      if (!this.items.has(job.id)) this.items.set(job.id, list.appendChild(this.makeItem(job)));
      this.fill(this.items.get(job.id), job);
    }
    const known = new Set(jobs.map((job) => job.id));
    for (const [id, item] of this.items) {
      if (known.has(id)) continue;
      item.remove();
      this.items.delete(id);
    }
  }

  makeItem(job) {
    const item = make("li");
    const link = item.appendChild(make("a"));
    link.href = `#${encodeURIComponent(job.id)}`;
    link.append(make("span", "mark"), make("span", "name", job.id), make("span", "said"), make("span", "numbers number"));
    return item;
  }

  fill(item, job) {
    const { tone, title } = judge(job);
    item.className = tone;
    setText($(".mark", item), MARKS[tone]);
    setText($(".said", item), title);
    const [, , loss, tokens] = job.sample;
    const parts = [isTold(loss) && `loss ${short(loss)}`, isTold(tokens) && `${short(tokens)} tokens/s`,
      isTold(job.goodput) && `goodput ${Math.round(100 * job.goodput)} %`, `epoch ${job.epoch}`, restartsOf(job).join(" ")];
    setText($(".numbers", item), parts.filter(Boolean).join(" · "));
  }
}
