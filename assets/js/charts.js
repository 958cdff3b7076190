// Three charts, drawn once with plotly.js from this server and afterwards only given new data. A visitor's zoom is kept
// until a double click or a new run, sizes are fixed, and axes grow in steps so that lines do not crawl.

import { count, percent, rate, ratio } from "./format.js";
import { LANES } from "./schema.js";
import { text } from "./words.js";

const EVERY = 100; // milliseconds between redraws, of one chart each
const MOST_POINTS = 160; // drawn per line; longer series are thinned
const RATE_SECONDS = 1.0; // a rate is taken over about this long
const STEPS = [10, 20, 30, 50, 80, 120, 160, 200, 300, 400, 600, 800, 1200, 1600, 2400, 3200, 4800];

const SHARES = [0, 0.25, 0.5, 0.75, 1]; // ticks of an acceptance rate
const byLane = (make) => Object.fromEntries(LANES.map((lane) => [lane, make()]));
const stepUp = (value, steps = STEPS) => steps.find((step) => value <= step) ?? Math.ceil(value / 1000) * 1000;

export class Charts {
  constructor(root, source) {
    this.root = root;
    this.names = ["alpha", "rate", "round"];
    this.waiting = []; // charts with news that are not drawn yet, in the order of their turns
    this.inView = new Set();
    this.clear();
    const script = document.createElement("script");
    script.src = source;
    script.onload = () => this.draw();
    document.head.append(script);
    new ResizeObserver(() => this.drawSoon()).observe(root);
    const watch = new IntersectionObserver((charts) => this.#look(charts));
    for (const name of this.names) watch.observe(this.#node(name));
  }

  clear() {
    this.over = false;
    this.zoomed = {};
    this.rounds = { speculative: [], rival: [] };
    this.totals = byLane(() => ({ tested: 0, accepted: 0, expected: 0, tokens: 0 }));
    this.rates = byLane(() => ({ x: [], y: [] }));
    this.bursts = byLane(() => []);
    this.draw();
  }

  add(rounds) {
    for (const round of rounds) {
      if (this.rounds[round.lane]) this.#addRound(round);
      this.#addRate(round);
    }
    this.drawSoon();
  }

  #addRound(round) {
    const totals = this.totals[round.lane];
    totals.tested += round.positions;
    totals.accepted += round.accepted;
    totals.expected += round.expected;
    totals.tokens += round.emitted.length;
    const x = round.n + 1;
    this.rounds[round.lane].push({
      x,
      own: round.positions ? round.accepted / round.positions : null,
      alpha: totals.tested ? totals.accepted / totals.tested : null,
      expected: totals.tested ? totals.expected / totals.tested : null,
      tokens: round.emitted.length,
      mean: totals.tokens / x,
    });
  }

  #addRate(round) {
    const bursts = this.bursts[round.lane];
    bursts.push({ clock: round.clock, tokens: round.emitted.length });
    while (bursts.length > 3 && round.clock - bursts[1].clock > RATE_SECONDS) bursts.shift();
    if (bursts.length < 3) return;
    const tokens = bursts.slice(1).reduce((sum, burst) => sum + burst.tokens, 0);
    const seconds = round.clock - bursts[0].clock;
    const line = this.rates[round.lane];
    if (seconds > 0) {
      line.x.push(round.clock);
      line.y.push(tokens / seconds);
    }
  }

  // The run is over: every chart is complete from now on, seen or not, for whoever prints the page.
  finish() {
    this.over = true;
    this.drawSoon();
  }

  // One chart at a time, since each takes as long as a frame, and during a run only those that can be seen.
  drawSoon() {
    this.waiting.push(...this.names.filter((name) => !this.waiting.includes(name)));
    this.#next();
  }

  #next() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      const name = this.waiting.find((name) => this.over || this.inView.has(name));
      if (!name || !window.Plotly) return;
      this.#draw(name);
      this.#next();
    }, EVERY);
  }

  #look(charts) {
    for (const { target, isIntersecting } of charts) {
      const name = this.names.find((name) => this.#node(name) === target);
      if (isIntersecting) this.inView.add(name);
      else this.inView.delete(name);
    }
    this.#next();
  }

  #node(name) {
    return this.root.querySelector(`#sd-chart-${name}`);
  }

  draw() {
    this.names.forEach((name) => this.#draw(name));
  }

  #draw(name) {
    if (!window.Plotly) return;
    this.waiting = this.waiting.filter((other) => other !== name);
    const style = getComputedStyle(this.root);
    const colour = (name) => style.getPropertyValue(`--sd-${name}`).trim();
    const { data, layout } = this[`_${name}`](colour);
    const node = this.#node(name);
    for (const axis of ["xaxis", "yaxis"]) if (this.zoomed[name]) layout[axis].range = this.zoomed[name][axis];
    const first = !node.data;
    if (node._dragging) return; // a redraw would tear the zoom box out of the visitor's hand
    // Measured here: plotly would take an enlarged page's size for its own.
    const sized = { ...this.#layout(colour, layout), width: node.clientWidth, height: node.clientHeight };
    Plotly.react(node, data, sized, { displayModeBar: false, doubleClick: false });
    if (first) this.#watchZoom(node, name);
  }

  // plotly's own uirevision gives a zoom up as soon as the page moves an axis, and here axes grow during a run.
  #watchZoom(node, name) {
    node.on("plotly_relayout", (change) => {
      if (!Object.keys(change).some((key) => key.includes(".range"))) return;
      this.zoomed[name] = { xaxis: [...node.layout.xaxis.range], yaxis: [...node.layout.yaxis.range] };
    });
    node.on("plotly_doubleclick", () => {
      delete this.zoomed[name];
      this.draw();
    });
  }

  _alpha(colour) {
    const points = thin(this.rounds.speculative);
    const x = points.map((point) => point.x);
    const line = (key) => series(x, points.map((point) => point[key]), percent);
    return {
      data: [
        { ...line("own"), name: text("line_round"), mode: "markers", marker: { size: 5, color: colour("muted"), opacity: 0.55 } },
        { ...line("alpha"), name: text("line_alpha"), mode: "lines", line: { color: colour("accepted"), width: 2.5 } },
        { ...line("expected"), name: text("line_expected"), mode: "lines", line: { color: colour("ink"), width: 1.5, dash: "dash" } },
        ...this.#rivalLine("alpha", percent, text("line_rival_alpha"), colour),
      ],
      layout: {
        xaxis: { range: [0.5, this.#lastRound() + 0.5], title: text("axis_round") },
        yaxis: { range: [-0.04, 1.04], tickvals: SHARES, ticktext: SHARES.map(percent) },
      },
    };
  }

  _rate(colour) {
    const { baseline, speculative, rival } = this.rates;
    const longest = Math.max(...LANES.map((lane) => this.rates[lane].x.at(-1) ?? 0));
    const fastest = Math.max(0, ...LANES.flatMap((lane) => this.rates[lane].y));
    const line = (rates, name, options) => ({ ...series(...thinned(rates), rate), name, mode: "lines", line: { width: 2.5, ...options } });
    return {
      data: [
        line(baseline, text("baseline"), { color: colour("muted"), dash: "dot" }),
        line(speculative, text("speculative"), { color: colour("accepted") }),
        ...(this.#hasRival() ? [line(rival, text("rival"), { color: colour("rival"), dash: "dashdot" })] : []),
      ],
      layout: {
        xaxis: { range: [0, stepUp(longest, [2, 5, ...STEPS])], title: text("axis_seconds") },
        yaxis: { range: [0, stepUp(fastest * 1.1)] },
      },
    };
  }

  _round(colour) {
    const points = thin(this.rounds.speculative);
    const x = points.map((point) => point.x);
    const line = (key, write) => series(x, points.map((point) => point[key]), write);
    const most = Math.max(4, ...points.map((point) => point.tokens), ...this.rounds.rival.map((point) => point.mean));
    return {
      data: [
        { ...line("tokens", count), name: text("line_round"), type: "bar", marker: { color: colour("bonus"), opacity: 0.6 } },
        { ...line("mean", ratio), name: text("line_mean"), mode: "lines", line: { color: colour("ink"), width: 2 } },
        ...this.#rivalLine("mean", ratio, text("line_rival_mean"), colour),
      ],
      layout: {
        xaxis: { range: [0.5, this.#lastRound() + 0.5], title: text("axis_round") },
        yaxis: { range: [0, most + 0.6], dtick: most > 8 ? 4 : 1 },
        bargap: 0.25,
      },
    };
  }

  // Known before its first round, so that legends do not grow during a run.
  #hasRival() {
    return this.root.dataset.lanes !== "pair";
  }

  // The rival's line in a chart of the speculative lane's rounds; none without a rival.
  #rivalLine(key, write, name, colour) {
    if (!this.#hasRival()) return [];
    const points = thin(this.rounds.rival);
    const line = { color: colour("rival"), width: 2.5, dash: "dashdot" };
    return [{ ...series(points.map((point) => point.x), points.map((point) => point[key]), write), name, mode: "lines", line }];
  }

  #lastRound() {
    return stepUp(Math.max(this.rounds.speculative.length, this.rounds.rival.length));
  }

  #layout(colour, layout) {
    const axis = { color: colour("muted"), gridcolor: colour("line"), zeroline: false, fixedrange: false };
    const font = { family: getComputedStyle(this.root).fontFamily, size: 11, color: colour("muted") };
    return {
      ...layout,
      xaxis: { ...axis, ...layout.xaxis, title: { text: layout.xaxis.title, standoff: 4, font } },
      yaxis: { ...axis, ...layout.yaxis },
      margin: { l: 42, r: 8, t: 4, b: 32 },
      font,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", itemclick: false, itemdoubleclick: false },
      hovermode: "x unified",
      hoverlabel: { bgcolor: colour("paper"), font: { color: colour("ink") } },
    };
  }
}

function thin(points) {
  const stride = Math.ceil(points.length / MOST_POINTS);
  return stride <= 1 ? points : points.filter((_, index) => index % stride === 0 || index === points.length - 1);
}

function thinned({ x, y }) {
  const kept = thin(x.map((value, index) => [value, y[index]]));
  return [kept.map((point) => point[0]), kept.map((point) => point[1])];
}

// A line's points, which say their numbers as tiles and verdict do.
const series = (x, y, write) => ({ x, y, customdata: y.map(write), hovertemplate: "%{customdata}" });
