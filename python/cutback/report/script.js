// Makes the pictures of a page interactive: zoom, a card at the pointer, search, links between
// chart and table. Without it the pictures are complete, but still. Nothing is loaded, and names
// from the graph reach the page as text only.
"use strict";
(() => {
  const [WIDTH, LEFT, RIGHT] = FRAME; // chart.py puts in the numbers of plot.py
  const SVG = "http://www.w3.org/2000/svg";

  function bytes(n) {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (Math.abs(n) < 1024) return unit === "B" ? `${n} B` : `${n.toFixed(2)} ${unit}`;
      n /= 1024;
    }
    return `${n.toFixed(2)} TiB`;
  }

  function roundTicks(low, high, about) {
    const raw = (high - low) / about, unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((f) => f * unit >= raw) * unit, found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
    return found;
  }

  function make(name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  // Titles become data: the card shows them, and the browser would show them a second time.
  function takeTitles(svg) {
    for (const title of svg.querySelectorAll("title")) {
      title.parentNode.dataset.t = title.textContent;
      title.remove();
    }
  }

  const card = document.createElement("div");
  card.className = "cb card";
  card.hidden = true;
  card.setAttribute("role", "status");
  document.body.append(card);

  function showCard(lines, x, y) {
    card.replaceChildren(...lines.map(([name, what, css]) => {
      const line = document.createElement("div");
      if (css) line.className = css;
      const label = document.createElement(what === undefined ? "b" : "span");
      label.textContent = name;
      line.append(label);
      if (what !== undefined) {
        const value = document.createElement("span");
        value.textContent = what;
        line.append(value);
      }
      return line;
    }));
    card.hidden = false;
    const box = card.getBoundingClientRect(), wide = document.documentElement.clientWidth;
    const left = x + 16 + box.width > wide ? x - 16 - box.width : x + 16;
    card.style.left = `${Math.max(4, Math.min(left, wide - box.width - 4))}px`;
    card.style.top = `${Math.max(4, Math.min(y + 16, innerHeight - box.height - 4))}px`;
  }

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.svg = figure.querySelector("svg");
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.n = this.data.edges[this.data.edges.length - 1] || 1;
      this.byTime = false;
      this.low = 0;
      this.high = 1;
      takeTitles(this.svg);
      this.remember();
      this.cursor = make("line", {class: "cursor", y1: this.top, y2: this.bottom, visibility: "hidden"});
      this.brush = make("rect", {class: "brush", y: this.top, height: this.bottom - this.top, visibility: "hidden"});
      this.svg.append(this.brush, this.cursor);
      this.listen();
      this.draw();
      new ResizeObserver(() => this.draw()).observe(figure);
    }

    // Keeps the coordinates of everything, as drawn.
    remember() {
      this.height = this.svg.viewBox.baseVal.height;
      this.plots = [...this.svg.querySelectorAll("svg.over")];
      this.top = Math.min(...this.plots.map((p) => p.viewBox.baseVal.y));
      this.bottom = Math.max(...this.plots.map((p) => p.viewBox.baseVal.y + p.viewBox.baseVal.height));
      this.items = [];
      for (const e of this.svg.querySelectorAll("polygon,polyline,rect,line,circle,text")) {
        if (e.closest("g.ticks")) continue;
        const moves = Boolean(e.closest("svg.over,g.along")), item = {e, moves};
        if (e.points) item.points = e.getAttribute("points").split(" ").map((p) => p.split(","));
        else {
          item.keys = {rect: ["x", "width"], line: ["x1", "x2"], circle: ["cx"], text: ["x"]}[e.tagName];
          item.at = item.keys.map((key) => Number(e.getAttribute(key)));
          if (e.tagName === "rect") item.at[1] += item.at[0];
        }
        const anchor = e.closest("g.along")?.dataset.x;
        if (anchor !== undefined) item.anchor = Number(anchor);
        if (e.classList.contains("name")) item.name = e.previousElementSibling.dataset.t;
        this.items.push(item);
      }
      this.ticks = this.svg.querySelector("g.ticks");
      this.ticksY = this.ticks ? Number(this.ticks.querySelector("text").getAttribute("y")) : 0;
      this.base = this.plots[0].viewBox.baseVal.y + this.plots[0].viewBox.baseVal.height;
    }

    // The share of the x axis, all of it, that lies before a step; and back.
    share(step) {
      const {edges, ps} = this.data;
      if (!this.byTime) return step / this.n;
      let k = this.column(step), width = edges[k + 1] - edges[k] || 1;
      return (ps[k] + (ps[k + 1] - ps[k]) * (step - edges[k]) / width) / (ps[ps.length - 1] || 1);
    }
    stepAt(share) {
      let low = 0, high = this.n;
      for (let i = 0; i < 40; i++) {
        const middle = (low + high) / 2;
        if (this.share(middle) <= share) low = middle; else high = middle;
      }
      return low;
    }
    column(step) {
      const edges = this.data.edges;
      let low = 0, high = edges.length - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (edges[middle] <= step) low = middle; else high = middle;
      }
      return low;
    }
    get right() { return this.wide - RIGHT; }
    place(share) { return LEFT + (this.right - LEFT) * (share - this.low) / (this.high - this.low); }
    x(step) { return this.place(this.share(step)); }
    // Where something drawn at x belongs now.
    moved(x, moves) {
      if (x >= WIDTH - RIGHT && !moves) return x + this.wide - WIDTH;
      if (!moves) return x;
      return this.x((x - LEFT) / (WIDTH - LEFT - RIGHT) * this.n);
    }

    draw() {
      this.wide = Math.max(300, Math.min(1600, this.figure.clientWidth));
      this.svg.setAttribute("viewBox", `0 0 ${this.wide} ${this.height}`);
      this.svg.setAttribute("width", this.wide);
      for (const plot of this.plots) {
        const box = plot.viewBox.baseVal;
        plot.setAttribute("width", this.right - LEFT);
        plot.setAttribute("viewBox", `${LEFT} ${box.y} ${this.right - LEFT} ${box.height}`);
      }
      for (const item of this.items) this.move(item);
      this.drawTicks();
    }

    move({e, moves, points, keys, at, name, anchor}) {
      if (points) {
        const moved = points.map(([x, y]) => `${this.moved(Number(x), moves).toFixed(1)},${y}`);
        e.setAttribute("points", moved.join(" "));
        return;
      }
      const away = anchor === undefined ? 0 : this.moved(anchor, true) - anchor;
      let xs = at.map((x) => (anchor === undefined ? this.moved(x, moves) : x + away));
      if (e.tagName === "rect") {
        if (e.classList.contains("layer")) xs = xs.map((x) => Math.max(LEFT, Math.min(this.right, x)));
        if (moves || at[1] >= WIDTH - RIGHT) e.setAttribute("width", Math.max(0.5, xs[1] - xs[0]));
        xs = [xs[0]];
      }
      if (name !== undefined) return this.placeName(e, name);
      if (e.tagName === "text" && e.closest("g.peak")) this.placePeak(e, xs, anchor + away);
      const empty = e.classList.contains("layer") && Number(e.getAttribute("width")) <= 0.5;
      xs.forEach((x, i) => e.setAttribute(keys[i], x.toFixed(1)));
      if (e.closest("g.along")) {
        const seen = !empty && xs.some((x) => x >= LEFT - 1 && x <= this.right + 1);
        e.setAttribute("visibility", seen ? "visible" : "hidden");
      }
    }

    // The name of a layer, shortened to its box.
    placeName(e, name) {
      const box = e.previousElementSibling, x = Number(box.getAttribute("x"));
      const wide = Number(box.getAttribute("width")), parts = name.split(".");
      let label = "";
      for (let i = 0; i < parts.length && !label; i++) {
        const rest = parts.slice(i).join(".");
        if (6.4 * rest.length <= wide - 4) label = rest;
      }
      e.textContent = label;
      e.setAttribute("x", (x + wide / 2).toFixed(1));
    }

    // The label of the peak stays inside of the picture.
    placePeak(e, xs, dot) {
      const end = dot > (LEFT + this.right) / 2;
      e.dataset.full ??= e.textContent;
      e.textContent = this.wide < 560 ? e.dataset.full.split(" at ")[0] : e.dataset.full;
      e.setAttribute("text-anchor", end ? "end" : "start");
      xs[0] = dot + (end ? -8 : 8);
    }

    drawTicks() {
      if (!this.ticks) return;
      const y = this.ticksY, about = Math.max(2, this.wide / 130);
      const label = (what, at) => make("text", {class: "note", x: LEFT - 8, y: at, "text-anchor": "end"}, what);
      const body = [label(this.data.unit || "step", y)];
      const put = (step, what, at) => {
        const x = this.x(step).toFixed(1);
        body.push(make("line", {class: "axis", x1: x, x2: x, y1: this.base, y2: this.base + 4}));
        body.push(make("text", {class: "note", x, y: at, "text-anchor": "middle"}, what));
      };
      const first = this.stepAt(this.low), last = this.stepAt(this.high);
      let right = -1e9;
      for (const step of roundTicks(first, last, about)) {
        if (step !== Math.round(step) || this.x(step) < right + 44) continue;
        right = this.x(step);
        put(step, String(step), y);
      }
      const ps = this.data.ps, total = ps ? ps[ps.length - 1] : 0;
      if (total > 0) this.timeTicks(first, last, total, put, () => body.push(label("ms", y + 15)));
      this.ticks.replaceChildren(...body);
    }

    timeTicks(first, last, total, put, begin) {
      begin();
      const was = this.byTime;
      this.byTime = true;
      const shares = [this.share(first), this.share(last)];
      const marks = roundTicks(shares[0] * total / 1e9, shares[1] * total / 1e9, Math.max(2, this.wide / 130))
        .map((ms) => [ms, this.stepAt(ms * 1e9 / total)]);
      this.byTime = was;
      let right = -1e9;
      for (const [ms, step] of marks) {
        if (this.x(step) < right + 44) continue;
        right = this.x(step);
        put(step, String(Number(ms.toPrecision(6))), this.ticksY + 15);
      }
    }

    // Shows the shares low .. high of the x axis.
    show(low, high) {
      const wide = Math.min(1, Math.max(high - low, 4 / this.n));
      this.low = Math.max(0, Math.min(low, 1 - wide));
      this.high = this.low + wide;
      this.figure.dataset.zoom = (1 / wide).toFixed(2);
      this.draw();
    }
    zoom(factor, at = (this.low + this.high) / 2) {
      this.show(at - (at - this.low) * factor, at + (this.high - at) * factor);
    }
    shareOf(event) {
      const box = this.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * this.wide / box.width;
      return this.low + (this.high - this.low) * (x - LEFT) / (this.right - LEFT);
    }

    listen() {
      const {svg, figure} = this;
      figure.querySelector(".tools").hidden = false;
      const on = (name, act) => {
        for (const button of figure.querySelectorAll(`[data-do=${name}]`)) button.addEventListener("click", act);
      };
      on("in", () => this.zoom(0.5));
      on("out", () => this.zoom(2));
      on("all", () => this.show(0, 1));
      const axis = figure.querySelector("select");
      if (axis) axis.addEventListener("change", () => {
        const steps = [this.stepAt(this.low), this.stepAt(this.high)];
        this.byTime = axis.value === "time";
        this.show(this.share(steps[0]), this.share(steps[1]));
      });
      svg.addEventListener("pointermove", (event) => this.point(event));
      svg.addEventListener("pointerleave", () => { if (this.from === undefined) this.leave(); });
      svg.addEventListener("pointerdown", (event) => {
        if (event.button === 0 && event.pointerType === "mouse") this.from = this.shareOf(event);
      });
      addEventListener("pointerup", (event) => this.release(event));
      svg.addEventListener("dblclick", () => this.show(0, 1));
      svg.addEventListener("click", (event) => {
        if (event.target.dataset.s !== undefined && !this.dragged) follow(event.target.dataset.s);
      });
      svg.addEventListener("keydown", (event) => this.key(event));
      svg.addEventListener("blur", () => this.leave());
    }

    leave() {
      card.hidden = true;
      this.cursor.setAttribute("visibility", "hidden");
    }

    point(event) {
      const share = this.shareOf(event);
      if (this.from !== undefined) {
        const [low, high] = [this.from, share].sort((a, b) => a - b);
        this.brush.setAttribute("x", this.place(low));
        this.brush.setAttribute("width", this.place(high) - this.place(low));
        this.brush.setAttribute("visibility", "visible");
      }
      if (share < this.low || share > this.high) return this.leave();
      this.tell(this.stepAt(share), event.clientX, event.clientY, event.target.dataset.t);
    }

    // Ends a selection: it is what to show, unless it is only a click.
    release(event) {
      if (this.from === undefined) return;
      const [low, high] = [this.from, this.shareOf(event)].sort((a, b) => a - b);
      this.from = undefined;
      this.brush.setAttribute("visibility", "hidden");
      this.dragged = (high - low) / (this.high - this.low) > 0.01;
      if (this.dragged) this.show(Math.max(0, low), Math.min(1, high));
      setTimeout(() => { this.dragged = false; });
    }

    // The card about a step.
    tell(step, x, y, title) {
      const k = this.column(Math.min(step, this.n - 1e-6)), {text, series, at, ps} = this.data;
      this.here = k;
      const lines = [];
      if (title && title.includes("steps")) lines.push([title]);
      const [name, kind, location, layer, phase] = text[k];
      lines.push([name], [`${this.data.unit || "step"} ${at[k]}`, phase], [kind, location]);
      if (layer && layer !== location) lines.push(["layer", layer]);
      if (ps) lines.push(["starts at", `${(ps[k] / 1e9).toFixed(3)} ms`]);
      for (const [label, css, values] of series) if (values[k]) lines.push([label, bytes(values[k]), css]);
      const where = this.x((this.data.edges[k] + this.data.edges[k + 1]) / 2).toFixed(1);
      this.cursor.setAttribute("x1", where);
      this.cursor.setAttribute("x2", where);
      this.cursor.setAttribute("visibility", "visible");
      showCard(lines, x, y);
    }

    key(event) {
      const last = this.data.text.length - 1, here = this.here ?? -1;
      const move = {ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10}[event.key];
      if (event.key === "+" || event.key === "=") this.zoom(0.5);
      else if (event.key === "-") this.zoom(2);
      else if (event.key === "0" || event.key === "Escape") { this.show(0, 1); this.leave(); }
      else if (move) {
        const k = Math.max(0, Math.min(last, here + move)), box = this.svg.getBoundingClientRect();
        const share = this.share(this.data.edges[k] + 0.5);
        if (share < this.low || share > this.high) this.show(share - (this.high - this.low) / 2, share + (this.high - this.low) / 2);
        this.tell(this.data.edges[k] + 0.5, box.left + this.place(share), box.top + 80);
      } else return;
      event.preventDefault();
    }
  }

  const charts = [...document.querySelectorAll("figure.chart")].filter((f) => f.querySelector("script")).map((f) => new Chart(f));
  const rows = [...document.querySelectorAll("tr[data-s]")];

  function mark(storage) {
    for (const e of document.querySelectorAll("[data-s].chosen")) e.classList.remove("chosen");
    const found = [...document.querySelectorAll(`[data-s="${CSS.escape(storage)}"]`)];
    for (const e of found) e.classList.add("chosen");
    for (const chart of charts) chart.svg.classList.toggle("choosing", found.some((e) => chart.svg.contains(e)));
    return found;
  }

  // From a box of the chart to its row.
  function follow(storage) {
    const row = mark(storage).find((e) => e.tagName === "TR");
    if (!row) return;
    row.hidden = false;
    const details = row.closest("details");
    if (details) details.open = true;
    row.scrollIntoView({block: "center"});
    row.focus({preventScroll: true});
  }

  function whenChosen(row, act) {
    row.tabIndex = 0;
    row.addEventListener("click", act);
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") act(); });
  }
  for (const row of rows) whenChosen(row, () => mark(row.dataset.s));

  // From a layer to its place in the charts.
  for (const row of document.querySelectorAll("tr[data-layers]")) whenChosen(row, () => {
    const names = new Set(JSON.parse(row.dataset.layers)), wasChosen = row.classList.contains("chosen");
    for (const e of document.querySelectorAll("tr[data-layers].chosen, .layer.chosen")) e.classList.remove("chosen");
    if (wasChosen) return;
    row.classList.add("chosen");
    for (const box of document.querySelectorAll("rect.layer")) box.classList.toggle("chosen", names.has(box.dataset.t));
  });

  // Rows that contain the text, and boxes of what they are about.
  function search(text) {
    const wanted = text.trim().toLowerCase();
    const found = new Set();
    let n = 0;
    for (const row of rows) {
      row.hidden = Boolean(wanted) && !row.textContent.toLowerCase().includes(wanted);
      n += !row.hidden;
      if (wanted && !row.hidden) found.add(row.dataset.s);
    }
    let boxes = 0;
    for (const chart of charts) {
      for (const box of chart.svg.querySelectorAll("rect[data-s]")) {
        const hit = Boolean(wanted) && (found.has(box.dataset.s) || box.dataset.t.toLowerCase().includes(wanted));
        box.classList.toggle("chosen", hit);
        boxes += hit;
      }
      chart.svg.classList.toggle("choosing", Boolean(wanted));
    }
    for (const row of wanted ? rows : []) if (!row.hidden && row.closest("details")) row.closest("details").open = true;
    return wanted ? `${n} values, ${boxes} boxes` : "";
  }
  for (const input of document.querySelectorAll("input[type=search]")) input.addEventListener("input", () => {
    input.parentNode.querySelector("output").textContent = search(input.value);
  });
})();
