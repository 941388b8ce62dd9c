"use strict";
// Draws the charts of a page: each <figure class="chart" data-chart="N"> from the N-th entry of #data.
// A chart is {title, x, y, series: [{name, x, y, low, high}]}; a null in y is a gap.
(() => {
  const charts = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = 8, HEIGHT = 210, TOP = 8, BOTTOM = 22, RIGHT = 10;

  const svg = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(element);
    return element;
  };
  const html = (name, className, text, parent) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  };
  const colour = index => `var(--c${index % COLOURS})`;

  const trim = text => text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  // Four significant digits, and k, M, G where numbers are long.
  const short = value => {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e15 || size < 1e-4) return value.toExponential(2).replace(/\.?0+e/, "e");
    for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= unit * 10 || (unit > 1e3 && size >= unit)) return trim((value / unit).toPrecision(4)) + letter;
    return trim(value.toPrecision(4));
  };
  const exact = value => value === null ? "off" : Math.abs(value) >= 1e4 && Number.isInteger(value)
    ? value.toLocaleString("en") : short(value);

  const ticks = (low, high, count) => {
    const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map(factor => factor * power).find(size => size >= raw * 0.999);
    const marks = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) marks.push(index * step);
    return marks;
  };
  const range = values => {
    let low = Infinity, high = -Infinity;
    for (const value of values) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low > high) return [0, 1];
    return [low, high];
  };
  const padded = ([low, high]) => {
    if (low === high) { const room = Math.abs(low) * 0.1 || 1; return [low - room, high + room]; }
    return [low - 0.04 * (high - low), high + 0.04 * (high - low)];
  };

  const draw = (figure, chart, hidden) => {
    figure.querySelectorAll("svg, .tip").forEach(old => old.remove());
    const shown = chart.series.filter((_, index) => !hidden.has(index));
    const width = Math.max(200, figure.clientWidth - 26);
    const [left, right] = range(chart.series.flatMap(series => series.x));
    const [bottom, top] = padded(range(shown.flatMap(series => [...series.y, ...(series.low || []), ...(series.high || [])])));
    const marks = ticks(bottom, top, 4);
    const margin = 10 + 6.4 * Math.max(...marks.map(mark => short(mark).length), 2);
    const x = value => margin + (right === left ? 0.5 : (value - left) / (right - left)) * (width - margin - RIGHT);
    const y = value => TOP + (top - value) / (top - bottom) * (HEIGHT - TOP - BOTTOM);

    const picture = svg("svg", {viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": chart.title});
    for (const mark of marks) {
      svg("line", {class: "grid", x1: margin, x2: width - RIGHT, y1: y(mark), y2: y(mark)}, picture);
      svg("text", {class: "axis", x: margin - 6, y: y(mark) + 4, "text-anchor": "end"}, picture).textContent = short(mark);
    }
    const along = right === left ? [left] : ticks(left, right, Math.max(2, Math.floor(width / 75)));
    for (const mark of along)
      svg("text", {class: "axis", x: Math.min(x(mark), width - 14), y: HEIGHT - 5, "text-anchor": "middle"}, picture).textContent = short(mark);

    chart.series.forEach((series, index) => {
      if (hidden.has(index)) return;
      const points = (values, order) => order.map(i => `${x(series.x[i]).toFixed(1)},${y(values[i]).toFixed(1)}`);
      const all = series.x.map((_, i) => i);
      if (series.low) {
        const outline = [...points(series.high, all), ...points(series.low, all.slice().reverse())];
        svg("path", {class: "band", fill: colour(index), d: "M" + outline.join("L") + "Z"}, picture);
      }
      let pen = "M", path = "";
      all.forEach(i => {
        if (series.y[i] === null) { pen = "M"; return; }
        path += pen + points(series.y, [i])[0];
        pen = "L";
      });
      svg("path", {class: "line", stroke: colour(index), d: path}, picture);
      if (series.x.length <= 30) all.forEach(i => {
        if (series.y[i] !== null) svg("circle", {cx: x(series.x[i]), cy: y(series.y[i]), r: 2.4, fill: colour(index)}, picture);
      });
    });
    figure.insertBefore(picture, figure.querySelector(".legend, figcaption"));

    const tip = html("div", "tip", undefined, figure);
    tip.hidden = true;
    const cursor = svg("g", {visibility: "hidden"}, picture);
    const hover = event => {
      const box = picture.getBoundingClientRect();
      const at = left + (event.clientX - box.left - margin) / (width - margin - RIGHT) * (right - left);
      const nearest = series => series.x.reduce((best, value, i) => Math.abs(value - at) < Math.abs(series.x[best] - at) ? i : best, 0);
      cursor.replaceChildren();
      tip.replaceChildren();
      let place = null;
      chart.series.forEach((series, index) => {
        if (hidden.has(index) || !series.x.length) return;
        const i = nearest(series);
        // Where curves have different steps, those far from the pointer say nothing about it.
        if (place === null) {
          place = shown.map(other => other.x[nearest(other)]).reduce((a, b) => Math.abs(b - at) < Math.abs(a - at) ? b : a);
          html("div", "soft", `${chart.x} ${exact(place)}`, tip);
          svg("line", {class: "cursor", x1: x(place), x2: x(place), y1: TOP, y2: HEIGHT - BOTTOM}, cursor);
        }
        const value = series.y[i], row = html("div", "", undefined, tip);
        html("span", "swatch", undefined, row).style.background = colour(index);
        const spread = series.low ? `  (${exact(series.low[i])} to ${exact(series.high[i])})` : "";
        const elsewhere = series.x[i] === place ? "" : `  at ${exact(series.x[i])}`;
        html("span", "", `${series.name}  ${exact(value)}${spread}${elsewhere}`, row);
        if (value !== null) svg("circle", {cx: x(series.x[i]), cy: y(value), r: 4, fill: colour(index)}, cursor);
      });
      if (place === null) return;
      cursor.setAttribute("visibility", "visible");
      tip.hidden = false;
      const middle = picture.offsetLeft || 0, room = figure.clientWidth - tip.offsetWidth - 6;
      const beside = x(place) + 26 + middle;
      tip.style.left = Math.max(4, beside > room ? x(place) - tip.offsetWidth : beside) + "px";
      // Out of the way of the curves: below where they are high, above where they are low.
      const highest = Math.min(...[...cursor.querySelectorAll("circle")].map(dot => Number(dot.getAttribute("cy"))), HEIGHT);
      const offset = picture.getBoundingClientRect().top - figure.getBoundingClientRect().top;
      tip.style.top = offset + (highest < HEIGHT / 2 ? HEIGHT - BOTTOM - tip.offsetHeight - 6 : 4) + "px";
    };
    const leave = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); };
    picture.addEventListener("pointermove", hover);
    picture.addEventListener("pointerdown", hover);
    picture.addEventListener("pointerleave", leave);
  };

  const redraws = [];
  document.querySelectorAll("figure.chart").forEach(figure => {
    const chart = charts[Number(figure.dataset.chart)], hidden = new Set();
    html("h3", "", chart.title, figure);
    const again = () => draw(figure, chart, hidden);
    if (chart.series.length > 1) {
      const legend = html("div", "legend", undefined, figure);
      chart.series.forEach((series, index) => {
        const button = html("button", "", undefined, legend);
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        html("span", "swatch", undefined, button).style.background = colour(index);
        html("span", "", series.name, button);
        button.addEventListener("click", () => {
          hidden.has(index) ? hidden.delete(index) : hidden.add(index);
          button.setAttribute("aria-pressed", String(!hidden.has(index)));
          again();
        });
      });
    }
    if (chart.note) html("figcaption", "", chart.note, figure);
    again();
    redraws.push(again);
  });
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => redraws.forEach(again => again()), 100); });
})();
