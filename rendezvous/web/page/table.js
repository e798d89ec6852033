// The nodes and ranks: a table of any length of which only the rows in sight exist.

const ROW_HEIGHT = 26;
const STATE_TONES = { running: "good", succeeded: "done", ready: "waits", joining: "waits", spare: "waits", waiting: "waits", away: "bad", "cooling down": "bad" };
const COLUMNS = [
  { name: "rank", key: (row) => row.rank },
  { name: "host", key: (row) => row.host },
  { name: "state", key: (row) => row.state },
  { name: "step", key: (row) => row.step, number: true },
  { name: "steps/s", key: (row) => row.speed, number: true, wide: true },
  { name: "a step", key: (row) => row.compute },
  { name: "memory", key: (row) => row.memory, wide: true },
  { name: "why", key: (row) => row.why, wide: true },
];

// What all names have behind their first point: ".cluster.example". Addresses have none.
function commonDomain(hosts) {
  const domain = hosts.length > 1 ? (/^[^.:]+(\..*[a-z].*)$/i.exec(hosts[0]) || ["", ""])[1] : "";
  return hosts.every((host) => host.endsWith(domain) && host.indexOf(".") === host.length - domain.length) ? domain : "";
}

// The rows of a job: one a rank that tells its progress, else one a node.
function rowsOf(job) {
  const domain = commonDomain(job.node_rows.map(([host]) => host));
  const told = new Map();
  for (const row of job.rank_rows) {
    if (!told.has(row[0])) told.set(row[0], []);
    told.get(row[0]).push(row);
  }
  const rows = [];
  job.node_rows.forEach(([host, , group, state, why, workers, first, silent, step, speed, phase], index) => {
    const node = { host, name: host.slice(0, host.length - domain.length), why: silent > 0 ? `not heard for ${ago(silent)}${why ? `; ${why}` : ""}` : why };
    for (const [, rank, ...rest] of told.get(index) || []) {
      const [rankStep, rankSpeed, rankPhase, compute, wait, data, save, , , memory, peak] = rest;
      rows.push({ ...node, rank, label: rank < 0 ? "?" : String(rank), state, phase: rankPhase, step: rankStep, speed: rankSpeed,
        compute, wait, data, save, memory, peak, isRank: rank >= 0 });
    }
    if (told.has(index)) return;
    const label = group < 0 || first < 0 ? "–" : workers === 1 ? String(first) : `${first}–${first + workers - 1}`;
    rows.push({ ...node, rank: group < 0 || first < 0 ? Infinity : first, label, state, phase, step, speed, isRank: group >= 0 && workers === 1 });
  });
  return rows;
}

class RankTable {
  // `onRank(rank)`: the person wants that rank's logs.
  constructor(element, onRank) {
    Object.assign(this, { element, onRank, rows: [], shown: [], pool: [], filter: "", column: 0, down: false, at: 0 });
    element.setAttribute("role", "table");
    this.head = element.appendChild(make("div", "head"));
    this.head.setAttribute("role", "row");
    COLUMNS.forEach((column, index) => {
      const button = make("button", `${column.wide ? "wide" : ""} ${column.number ? "right" : ""}`, column.name);
      button.type = "button";
      button.addEventListener("click", () => this.sortBy(index));
      this.head.appendChild(button);
    });
    this.body = element.appendChild(make("div", "body"));
    this.body.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("scroll", () => this.draw(), { passive: true });
  }

  sortBy(index) {
    this.down = this.column === index ? !this.down : COLUMNS[index].number || index === 5;
    this.column = index;
    this.show(this.rows);
  }

  setFilter(text) {
    this.filter = text.trim().toLowerCase();
    this.element.scrollTop = 0;
    this.show(this.rows);
  }

  show(rows) {
    this.rows = rows;
    const { key } = COLUMNS[this.column];
    const sign = this.down ? -1 : 1;
    const missing = this.down ? -Infinity : Infinity;
    this.shown = rows.filter((row) => !this.filter || row.label === this.filter
      || `${row.host} ${row.state} ${row.phase || ""}`.toLowerCase().includes(this.filter));
    this.shown.sort((a, b) => {
      const [left, right] = [key(a) ?? missing, key(b) ?? missing];
      return sign * (typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right || 0) || a.rank - b.rank || 0;
    });
    [...this.head.children].forEach((button, index) => {
      if (index === this.column) button.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else button.removeAttribute("aria-sort");
    });
    // No Math.max(...rows): a call takes no more than about 100,000 arguments.
    this.longest = rows.reduce((most, row) => Math.max(most, row.compute + row.wait + row.data + row.save || 0), 0);
    this.largest = rows.reduce((most, row) => Math.max(most, row.peak || 0), 0);
    this.body.style.height = `${this.shown.length * ROW_HEIGHT}px`;
    this.draw();
  }

  // The Tab key stops at one row; the arrow keys go on from it, also to rows that do not exist yet.
  key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW_HEIGHT) - 2);
    const last = this.shown.length - 1;
    const to = { ArrowUp: this.at - 1, ArrowDown: this.at + 1, PageUp: this.at - page, PageDown: this.at + page, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.at = Math.min(Math.max(to, 0), last);
    const top = this.at * ROW_HEIGHT;
    // The head covers the height of a row.
    this.element.scrollTop = Math.min(top, Math.max(this.element.scrollTop, top + 2 * ROW_HEIGHT - this.element.clientHeight));
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW_HEIGHT) - 4);
    const count = Math.min(this.shown.length - first, Math.ceil(this.element.clientHeight / ROW_HEIGHT) + 8);
    const hasFocus = this.body.contains(document.activeElement);
    this.at = Math.max(first, Math.min(this.at, first + count - 1));
    while (this.pool.length < count) this.pool.push(this.makeRow());
    this.pool.forEach((row, i) => {
      row.element.hidden = i >= count;
      if (i >= count) return;
      row.index = first + i;
      row.button.tabIndex = row.index === this.at ? 0 : -1;
      row.element.style.transform = `translateY(${row.index * ROW_HEIGHT}px)`;
      this.fill(row, this.shown[row.index]);
    });
    // A row's element shows another row after a scroll; the focus stays with the row.
    if (hasFocus && count > 0) this.pool[this.at - first].button.focus({ preventScroll: true });
  }

  makeRow() {
    const element = this.body.appendChild(make("div", "row"));
    element.setAttribute("role", "row");
    const cells = COLUMNS.map((column) => {
      const cell = element.appendChild(make("span", column.wide ? "wide" : ""));
      cell.setAttribute("role", "cell");
      return cell;
    });
    const button = cells[0].appendChild(make("button"));
    button.type = "button";
    button.addEventListener("click", () => button.ariaDisabled || this.onRank(Number(button.textContent)));
    for (const index of [3, 4]) cells[index].classList.add("number");
    cells[6].classList.add("short");
    cells[7].classList.add("why");
    const row = { element, cells, button, step: this.makeMeter(cells[5], ["compute", "wait", "data", "checkpoint"]), memory: this.makeMeter(cells[6], ["memory"]) };
    button.addEventListener("focus", () => { this.at = row.index; });
    return row;
  }

  makeMeter(cell, kinds) {
    cell.classList.add("meter");
    const words = make("span", "number");
    const bar = make("span", "bar");
    const parts = kinds.map((kind) => bar.appendChild(make("span", `part ${kind}`)));
    cell.append(words, bar);
    return { words, bar, parts };
  }

  fill({ cells, button, step, memory }, row) {
    setText(button, row.label);
    button.ariaDisabled = row.isRank ? null : "true";
    button.title = row.isRank ? `logs of rank ${row.label}` : "";
    setText(cells[1], row.name);
    cells[1].title = row.host;
    setText(cells[2], row.state === "running" && row.phase ? row.phase : row.state);
    cells[2].className = `state ${STATE_TONES[row.state] || ""}`;
    setText(cells[3], orDash(row.step, count));
    setText(cells[4], orDash(row.speed, short));
    const times = [row.compute, row.wait, row.data, row.save].map((each) => each || 0);
    const sum = times.reduce((a, b) => a + b, 0);
    this.fillMeter(step, times, this.longest, sum > 0 ? `${short(row.compute)} + ${short(sum - row.compute)} ms` : "–");
    step.bar.title = sum > 0 ? `compute ${short(times[0])} ms, wait for others ${short(times[1])} ms, data ${short(times[2])} ms, checkpoint ${short(times[3])} ms` : "";
    this.fillMeter(memory, [row.memory || 0], this.largest, row.memory ? bytes(row.memory) : "–");
    memory.bar.title = row.peak ? `peak ${bytes(row.peak)}` : "";
    setText(cells[7], row.why || "");
    cells[7].title = row.why || "";
  }

  fillMeter({ words, bar, parts }, values, whole, text) {
    setText(words, text);
    bar.style.visibility = whole > 0 && values.some((value) => value > 0) ? "" : "hidden";
    parts.forEach((part, i) => { part.style.width = `${whole > 0 ? (100 * values[i]) / whole : 0}%`; });
  }
}
