// Shows the values under the pointer, and opens every fold for printing. The charts themselves need no script.
"use strict";
const page = JSON.parse(document.getElementById("curves").textContent);
const [LEFT, RIGHT, WIDTH] = page.frame;

const axis = () => document.querySelector("input[name=x]:checked").value;
const plain = (value, digits) => value.toLocaleString("en", { maximumSignificantDigits: digits });
function written(value, kind) {
  if (kind === "percent") return plain(100 * value, 4) + " %";
  if (kind === "rate") return value >= 1e6 ? plain(value / 1e6, 4) + " M" : value >= 1e3 ? plain(value / 1e3, 4) + " k" : plain(value, 3);
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(3) : plain(value, 4);
}
function counted(value, unit) {
  if (unit === "minutes") return plain(value, 4) + " min";
  return (value >= 1e6 ? plain(value / 1e6, 4) + " M" : Math.round(value).toLocaleString("en")) + " " + unit;
}
function nearest(places, wanted) {
  let best = -1;
  for (let i = 0; i < places.length; i++)
    if (places[i] !== null && (best < 0 || Math.abs(places[i] - wanted) < Math.abs(places[best] - wanted))) best = i;
  return best;
}
function row(label, value, colour) {
  const line = document.createElement("div");
  const name = document.createElement("span");
  const number = document.createElement("b");
  name.textContent = label;
  number.textContent = value;
  if (colour !== undefined) name.className = "run-" + (colour % page.colours);
  line.append(name, number);
  return line;
}
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const chart = page.charts[Number(figure.dataset.chart)];
  const svg = figure.querySelector("svg");
  const pointer = figure.querySelector("line.pointer");
  const box = document.createElement("div");
  box.className = "values";
  box.hidden = true;
  figure.append(box);
  const hide = () => { box.hidden = true; pointer.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const place = (event.clientX - frame.left) / frame.width * WIDTH;
    if (place < LEFT || place > RIGHT) return hide();
    const unit = axis();
    const wanted = (place - LEFT) / (RIGHT - LEFT) * chart.ends[unit];
    const rows = [];
    for (const curve of chart.curves) {
      const i = nearest(curve[unit], wanted);
      if (i < 0 || curve.y[i] === null) continue;
      // A run that ended before this place has no value here.
      if (i === curve.y.length - 1 && wanted - curve[unit][i] > 0.02 * chart.ends[unit]) continue;
      const name = (page.runs.length > 1 ? page.runs[curve.run] + ", " : "") + (curve.heldOut ? "held out" : "training");
      rows.push(row(name + " at " + counted(curve[unit][i], unit), written(curve.y[i], chart.kind), curve.run));
    }
    box.replaceChildren(...rows);
    box.hidden = rows.length === 0;
    const left = event.clientX - figure.getBoundingClientRect().left;
    box.style.left = Math.max(0, Math.min(left + 14, figure.clientWidth - box.offsetWidth)) + "px";
    box.style.top = (frame.bottom - figure.getBoundingClientRect().top) + "px";
    pointer.setAttribute("x1", place);
    pointer.setAttribute("x2", place);
    pointer.setAttribute("visibility", "visible");
  });
}
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }));
