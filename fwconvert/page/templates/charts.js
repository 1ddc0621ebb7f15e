// Draws the charts of a page from the numbers that stand in it. Colours are those of the page, so it is drawn
// again in dark mode and for print. `charts` is there for tests, and for who looks at the page's numbers.
"use strict";
var charts = {};
(function () {
  const binsPerDoubling = 8;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const limitColours = { network: "#c26a00", "--limit": "#8a63c9", join: "#2f9c6a", check: "#8d97a3", copy: "#8d97a3" };

  function short(value) {
    if (value === null || value === undefined) return "–";
    for (const [power, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= power) return +(value / power).toPrecision(3) + letter;
    }
    return String(+value.toPrecision(3));
  }
  const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
  function clock(seconds) {
    if (seconds < 60) return +seconds.toFixed(1) + " s";
    const hours = Math.floor(seconds / 3600), minutes = Math.floor((seconds % 3600) / 60);
    return hours ? hours + " h " + minutes + " min" : minutes + " min " + Math.round(seconds % 60) + " s";
  }

  function axis(more) {
    return Object.assign({
      stroke: css("--quiet"), font: "12px system-ui, sans-serif", size: 46, gap: 4,
      grid: { stroke: css("--line"), width: 1 }, ticks: { show: false },
    }, more);
  }

  // Lines at some values of x, with their names, below the points or above them.
  function marks(list, colourOf) {
    return (u) => {
      const { ctx } = u, ratio = devicePixelRatio;
      ctx.save();
      ctx.font = 11 * ratio + "px system-ui, sans-serif";
      ctx.textBaseline = "top";
      ctx.textAlign = "left";
      let room = -Infinity;
      for (const { x, label, kind } of list) {
        const at = u.valToPos(x, "x", true);
        if (at < u.bbox.left - 1 || at > u.bbox.left + u.bbox.width + 1) continue;
        ctx.strokeStyle = ctx.fillStyle = colourOf(kind);
        ctx.lineWidth = ratio;
        ctx.setLineDash(kind === "session" ? [] : [3 * ratio, 3 * ratio]);
        ctx.beginPath();
        ctx.moveTo(at, u.bbox.top);
        ctx.lineTo(at, u.bbox.top + u.bbox.height);
        ctx.stroke();
        const width = ctx.measureText(label).width;
        if (label && at > room && at + width < u.bbox.left + u.bbox.width + 20 * ratio) {
          ctx.fillText(label, at + 3 * ratio, u.bbox.top + 2 * ratio);
          room = at + width + 8 * ratio;
        }
      }
      ctx.restore();
    };
  }

  function draw(name, options, data, reading) {
    const figure = document.getElementById("chart-" + name);
    if (!figure) return;
    const place = figure.querySelector(".plot"), told = figure.querySelector(".reading");
    if (charts[name]) charts[name].destroy();
    place.replaceChildren();
    const width = Math.max(240, Math.floor(figure.clientWidth));
    options = Object.assign({
      width, height: Math.min(260, Math.max(180, Math.floor(width * 0.36))), legend: { show: false },
      padding: [14, 10, 0, 0], cursor: { y: false, drag: { setScale: false, x: false } },
    }, options);
    options.hooks = Object.assign({}, options.hooks, {
      setCursor: [(u) => { told.textContent = u.cursor.idx === null || u.cursor.idx === undefined ? "" : reading(u.cursor.idx); }],
    });
    charts[name] = new uPlot(options, data, place);
  }

  const bars = () => uPlot.paths.bars({ size: [0.92, 80], gap: 0 });

  function drawSources(sources) {
    if (!sources.length) return;
    const xs = sources.map((one) => one[0]), tokens = sources.map((one) => one[2]);
    const edge = [xs[0] - 0.6, xs[xs.length - 1] + 0.6];
    const names = (u, values) => values.map((value) => (value % 1 ? "" : String(value + 1)));
    const x = axis({ values: names, grid: { show: false }, size: 26 });
    const scales = { x: { time: false, range: () => edge }, y: { range: (u, low, high) => [0, (high || 1) * 1.1] } };
    draw("sources", {
      scales, axes: [x, axis({ values: (u, values) => values.map(short) })],
      series: [{}, { fill: css("--bars"), stroke: css("--bars"), width: 0, paths: bars(), points: { show: false } }],
    }, [xs, tokens], (at) => "source " + (xs[at] + 1) + ", " + sources[at][1] + ": " + (tokens[at] === null ? "not converted yet" : whole(tokens[at]) + " tokens"));

    const plain = sources.map((one) => (one[4] ? null : one[3])), odd = sources.map((one) => (one[4] ? one[3] : null));
    const known = sources.map((one) => one[3]).filter((one) => one !== null);
    if (!known.length) return;
    const least = Math.min(...known), most = Math.max(...known), room = Math.max((most - least) * 0.25, most * 0.02);
    const points = (colour, size) => ({ stroke: colour, paths: () => null, points: { show: true, size, stroke: colour, fill: colour } });
    draw("bytes", {
      scales: { x: { time: false, range: () => edge }, y: { range: () => [least - room, most + room] } },
      axes: [x, axis({ values: (u, values) => values.map((value) => value.toFixed(2)) })],
      series: [{}, points(css("--bars"), xs.length > 200 ? 4 : 8), points(css("--bad"), 10)],
    }, [xs, plain, odd], (at) => "source " + (xs[at] + 1) + ", " + sources[at][1] + ": " + (sources[at][3] === null ? "–" : sources[at][3].toFixed(3)) + " bytes a token" + (sources[at][4] ? " – stands out" : ""));
  }

  function drawSpeed(speed) {
    if (!speed || !speed.points.length) return;
    const points = [[0, ...speed.points[0].slice(1)], ...speed.points], xs = points.map((one) => one[0]);
    const tokens = points.map((one) => one[1]), fetched = points.map((one) => one[2]);
    const fetches = fetched.some((one) => one !== null);
    const colours = { session: css("--quiet"), crash: css("--bad"), lost: css("--bad"), retry: css("--second") };
    let session = 0;
    // Where a session was cut off the next one begins: one line, and one name.
    const lines = speed.marks.map((mark, at) => {
      const next = speed.marks[at + 1], crashed = mark.kind === "crash";
      const label = mark.kind === "session" && speed.sessions > 1 ? "session " + ++session : "";
      return { x: mark.x, kind: mark.kind, label: crashed ? "cut off" + (next ? " · session " + (session + 1) : "") : label };
    });
    const strip = (u) => {
      const { ctx } = u, height = 6 * devicePixelRatio;
      ctx.save();
      points.forEach((one, at) => {
        const begin = u.valToPos(at ? xs[at - 1] : 0, "x", true), end = u.valToPos(xs[at], "x", true);
        ctx.fillStyle = limitColours[one[3]] || css("--bars");
        ctx.fillRect(begin, u.bbox.top + u.bbox.height - height, Math.max(1, end - begin + 0.5), height);
      });
      ctx.restore();
    };
    const stepped = uPlot.paths.stepped({ align: -1 });
    const axes = [
      axis({ values: (u, values) => values.map(clock), grid: { show: false }, size: 26, space: 90 }),
      axis({ values: (u, values) => values.map(short), label: "tokens/s", labelSize: 16, labelFont: "12px system-ui, sans-serif" }),
    ];
    const series = [{}, { stroke: css("--accent"), fill: css("--accent") + "22", width: 2, paths: stepped, points: { show: false } }];
    const scales = { x: { time: false, range: () => [0, xs[xs.length - 1]] }, y: { range: (u, low, high) => [0, (high || 1) * 1.18] } };
    const data = [xs, tokens];
    if (fetches) {
      axes.push(axis({ scale: "bytes", side: 1, grid: { show: false }, values: (u, values) => values.map((one) => short(one)), label: "bytes/s", labelSize: 16, labelFont: "12px system-ui, sans-serif" }));
      series.push({ scale: "bytes", stroke: css("--second"), width: 1.5, paths: stepped, points: { show: false } });
      scales.bytes = { range: (u, low, high) => [0, (high || 1) * 1.18] };
      data.push(fetched);
    }
    draw("speed", { scales, axes, series, hooks: { draw: [strip, marks(lines, (kind) => colours[kind] || css("--quiet"))] } }, data,
      (at) => clock(xs[at]) + ": " + whole(tokens[at]) + " tokens/s" + (fetched[at] === null ? "" : ", " + short(fetched[at]) + "B/s fetched") + ", limited by " + (points[at][3] === "workers" ? "processors" : points[at][3]));
  }

  function drawLengths(lengths) {
    if (!lengths) return;
    // Every bin, also the empty ones between: bars are as wide as the step between two values.
    const first = lengths.bins[0][0], last = lengths.bins[lengths.bins.length - 1][0];
    const counts = new Map(lengths.bins), xs = [], ys = [];
    for (let bin = first; bin <= last; bin++) { xs.push(bin + 0.5); ys.push(counts.get(bin) || 0); }
    const begins = (bin) => Math.pow(2, bin / binsPerDoubling);
    const ticks = (u, at, low, high) => {
      const found = [];
      for (let power = 0; power < 15; power++) {
        const bin = binsPerDoubling * Math.log2(Math.pow(10, power));
        if (bin >= low && bin <= high) found.push(bin);
      }
      return found;
    };
    const lines = lengths.percentiles.map(([name, value]) => ({ x: binsPerDoubling * Math.log2(Math.max(1, value)), label: name, kind: name }));
    draw("lengths", {
      scales: { x: { time: false, range: () => [first - 1, last + 2] }, y: { range: (u, low, high) => [0, (high || 1) * 1.15] } },
      axes: [
        axis({ splits: ticks, values: (u, values) => values.map((bin) => short(Math.round(begins(bin)))), size: 26 }),
        axis({ values: (u, values) => values.map(short) }),
      ],
      series: [{}, { fill: css("--bars"), stroke: css("--bars"), width: 0, paths: bars(), points: { show: false } }],
      hooks: { draw: [marks(lines, () => css("--second"))] },
    }, [xs, ys], (at) => whole(ys[at]) + " documents of " + whole(Math.ceil(begins(first + at))) + " to " + whole(begins(first + at + 1)) + " tokens");
  }

  function drawScores(scores) {
    if (!scores) return;
    const first = scores.bins[0][0], last = scores.bins[scores.bins.length - 1][0], counts = new Map(scores.bins);
    const xs = [], ys = [];
    for (let bin = first; bin <= last && xs.length < 5000; bin++) { xs.push((bin + 0.5) * scores.width); ys.push(counts.get(bin) || 0); }
    draw("scores", {
      scales: { x: { time: false, range: () => [first * scores.width, (last + 1) * scores.width] }, y: { range: (u, low, high) => [0, (high || 1) * 1.1] } },
      axes: [axis({ grid: { show: false }, size: 26 }), axis({ values: (u, values) => values.map(short) })],
      series: [{}, { fill: css("--bars"), stroke: css("--bars"), width: 0, paths: bars(), points: { show: false } }],
    }, [xs, ys], (at) => whole(ys[at]) + " documents with a score from " + +((first + at) * scores.width).toPrecision(6));
  }

  function drawAll() {
    const data = JSON.parse(document.getElementById("data").textContent);
    drawSources(data.sources);
    drawSpeed(data.speed);
    drawLengths(data.lengths);
    drawScores(data.scores);
  }
  charts.drawAll = drawAll;
  Object.defineProperty(charts, "drawAll", { enumerable: false });
  Object.defineProperty(charts, "drawSpeed", { value: drawSpeed, enumerable: false });

  drawAll();
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 120); });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", drawAll);
  }
})();
