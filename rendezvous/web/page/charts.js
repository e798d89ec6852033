// Curves on canvases: axes with units, values under the pointer or the arrow keys.

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Round values that divide [low, high] into about `parts`.
function ticks(low, high, parts) {
  const raw = (high - low) / parts || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = power * [1, 2, 5, 10].find((factor) => raw <= factor * power * 1.0001);
  const values = [];
  const first = Math.ceil(low / unit) * unit;
  // By index: beyond 2^53 a sum would stay as it is.
  for (let i = 0; i <= parts + 1 && first + i * unit <= high + unit * 1e-6; ++i) values.push(Number((first + i * unit).toPrecision(12)));
  return values;
}

const TIME_UNITS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800];
function timeTicks(low, high, parts) {
  const unit = TIME_UNITS.find((each) => (high - low) / each <= parts) || Math.ceil((high - low) / parts);
  const shift = new Date(low * 1000).getTimezoneOffset() * 60;
  const values = [];
  for (let value = Math.ceil((low - shift) / unit) * unit + shift; value <= high; value += unit) values.push(value);
  return values;
}

const timeWords = (low, high) => (value) => {
  const date = new Date(value * 1000);
  if (high - low > 2 * 86400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return date.toLocaleTimeString("en-GB", high - low > 600 ? { hour: "2-digit", minute: "2-digit" } : {});
};

// A canvas as large as the page shows it; its context draws in CSS pixels.
function sized(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  return { context, width, height };
}

class Chart {
  // `fromZero`: the axis begins at 0; else it fits the values.
  constructor(parent, { title, unit, tone, fromZero, empty }) {
    Object.assign(this, { title, unit, tone, fromZero, empty, points: [], marks: [], picked: -1 });
    const figure = parent.appendChild(make("figure"));
    const caption = figure.appendChild(make("figcaption"));
    caption.appendChild(make("span")).append(make("b", "", title), ` ${unit}`);
    this.readout = caption.appendChild(make("span", "readout"));
    this.readout.setAttribute("aria-live", "polite");
    this.canvas = figure.appendChild(make("canvas"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.addEventListener("pointermove", (event) => this.pickNear(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.pick(-1));
    this.canvas.addEventListener("blur", () => this.pick(-1));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  // `points`: [[x, y, seconds, step], ..] by x; `marks`: [[x, colour], ..].
  show(points, marks, isTime) {
    Object.assign(this, { points: points.filter((point) => isTold(point[1])), marks, isTime });
    const last = this.points[this.points.length - 1];
    this.canvas.setAttribute("aria-label", last ? `${this.title}, now ${short(last[1])} ${this.unit}; arrow keys read the points` : this.empty);
    this.picked = Math.min(this.picked, this.points.length - 1);
    this.draw();
  }

  scales(width, height) {
    const xs = this.points.map((point) => point[0]);
    const ys = this.points.map((point) => point[1]);
    let low = this.fromZero ? 0 : Math.min(...ys);
    let high = Math.max(...ys);
    const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    if (!this.fromZero) low -= room;
    high += room;
    const [left, right] = [Math.min(...xs), Math.max(...xs)];
    const box = { left: 52, right: width - 8, top: 8, bottom: height - 20 };
    return { box, low, high, left, right,
      x: (value) => box.left + ((value - left) / (right - left || 1)) * (box.right - box.left),
      y: (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top) };
  }

  draw() {
    const { context, width, height } = sized(this.canvas);
    if (this.points.length < 2) {
      this.sayEmpty(context, width, height);
      return;
    }
    const scale = this.scales(width, height);
    this.drawAxes(context, scale);
    context.strokeStyle = color(this.tone);
    context.lineWidth = 1.6;
    context.beginPath();
    for (const point of this.points) context.lineTo(scale.x(point[0]), scale.y(point[1]));
    context.stroke();
    if (this.picked >= 0) this.drawPicked(context, scale);
    setText(this.readout, this.picked >= 0 ? this.wordsOf(this.points[this.picked]) : `now ${short(this.points[this.points.length - 1][1])}`);
  }

  sayEmpty(context, width, height) {
    setText(this.readout, "");
    context.fillStyle = color("--soft");
    context.textAlign = "center";
    const words = this.empty.split(" ");
    const lines = [""];
    for (const word of words) {
      const longer = `${lines[lines.length - 1]} ${word}`;
      if (context.measureText(longer).width > width - 24) lines.push(word);
      else lines[lines.length - 1] = longer;
    }
    lines.forEach((line, i) => context.fillText(line, width / 2, height / 2 + (i - (lines.length - 1) / 2) * 16));
  }

  drawAxes(context, { box, low, high, left, right, x, y }) {
    context.lineWidth = 1;
    context.fillStyle = color("--soft");
    context.strokeStyle = color("--line");
    context.textAlign = "right";
    for (const value of ticks(low, high, 4)) {
      context.fillText(short(value), box.left - 6, y(value) + 4);
      context.beginPath();
      context.moveTo(box.left, y(value));
      context.lineTo(box.right, y(value));
      context.stroke();
    }
    const words = this.isTime ? timeWords(left, right) : short;
    const parts = Math.max(2, Math.floor((box.right - box.left) / 90));
    for (const value of this.isTime ? timeTicks(left, right, parts) : ticks(left, right, parts)) {
      const place = x(value);
      context.textAlign = place > box.right - 24 ? "right" : place < box.left + 16 ? "left" : "center";
      context.fillText(words(value), place, box.bottom + 15);
    }
    for (const [value, tone] of this.marks) {
      if (value < left || value > right) continue;
      context.strokeStyle = color(tone);
      context.setLineDash([2, 3]);
      context.beginPath();
      context.moveTo(x(value), box.top);
      context.lineTo(x(value), box.bottom);
      context.stroke();
      context.setLineDash([]);
    }
  }

  drawPicked(context, { box, x, y }) {
    const point = this.points[this.picked];
    context.strokeStyle = color("--soft");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(point[0]), box.top);
    context.lineTo(x(point[0]), box.bottom);
    context.stroke();
    context.fillStyle = color(this.tone);
    context.beginPath();
    context.arc(x(point[0]), y(point[1]), 3.5, 0, 7);
    context.fill();
  }

  wordsOf([, value, seconds, step]) {
    return `${short(value)} at step ${count(step)}, ${clock(seconds)}`;
  }

  pickNear(offset) {
    if (this.points.length < 2) return;
    const { x } = this.scales(this.canvas.clientWidth, this.canvas.clientHeight);
    let best = 0;
    this.points.forEach((point, i) => {
      if (Math.abs(x(point[0]) - offset) < Math.abs(x(this.points[best][0]) - offset)) best = i;
    });
    this.pick(best);
  }

  pick(index) {
    if (index === this.picked) return;
    this.picked = index;
    this.draw();
  }

  key(event) {
    const last = this.points.length - 1;
    const from = this.picked < 0 ? last + 1 : this.picked;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last, Escape: -1 }[event.key];
    if (to === undefined || last < 1) return;
    event.preventDefault();
    this.pick(to < 0 ? (event.key === "Escape" ? -1 : 0) : Math.min(last, to));
  }
}

const EVENT_TONES = [[/fail|exclu|incident|lost/, "--bad"], [/straggl/, "--warn"], [/join|left|leave|node/, "--wait"], [/epoch|form/, "--good"]];
// Failures last, so that they lie above the epochs that begin in the same moment.
const drawnOrder = (events) => [...events].sort((a, b) => (eventTone(a[2]) === "--bad") - (eventTone(b[2]) === "--bad"));
const eventTone = (kind) => (EVENT_TONES.find(([pattern]) => pattern.test(kind)) || [null, "--soft"])[1];

// The job's life on one line: bands of epochs, a stroke for each event. `events`: [[number, us, kind, text, epoch], ..].
// A browser's clock that is late does not push the newest events off the line.
function drawStrip(canvas, events, now) {
  if (events.length === 0) return;
  const { context, width, height } = sized(canvas);
  const begin = events[0][1] / 1e6;
  const end = Math.max(now, events[events.length - 1][1] / 1e6, begin + 1);
  const x = (seconds) => 1 + ((seconds - begin) / (end - begin)) * (width - 2);
  const starts = [];
  for (const event of events) {
    if (event[4] > 0 && (starts.length === 0 || event[4] > starts[starts.length - 1][0])) starts.push([event[4], event[1] / 1e6]);
  }
  starts.forEach(([epoch, seconds], i) => {
    const from = x(seconds);
    const to = x(i + 1 < starts.length ? starts[i + 1][1] : end);
    context.fillStyle = color(epoch % 2 === 0 ? "--line" : "--hover");
    context.fillRect(from, 4, to - from, height - 20);
    context.fillStyle = color("--soft");
    if (to - from > 16) context.fillText(to - from > 60 ? `epoch ${epoch}` : String(epoch), from + 4, 18);
  });
  for (const [, time, kind] of drawnOrder(events)) {
    const tone = eventTone(kind);
    if (tone === "--soft") continue;
    context.fillStyle = color(tone);
    context.fillRect(x(time / 1e6) - (tone === "--bad" ? 3 : 1), 4, tone === "--bad" ? 3 : 2, height - 20);
  }
  context.fillStyle = color("--soft");
  context.textAlign = "left";
  context.fillText(clock(begin), 0, height - 3);
  context.textAlign = "right";
  context.fillText("now", width, height - 3);
  context.textAlign = "left";
}
