"""The pictures of a study: learning curves of all variants, and the distances of Figure 1, as PNG and as SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from openalbert.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, look, scale_for, ticks
from openalbert.report.html import Markup, element
from openalbert.studies.results import Results

CURVES, LAYERS = "curves.png", "layers.png"
LAYER_TITLES = {"distance": ("L2 distance", ""), "angle": ("Angle", "degrees")}


def draw_curves(results: Results, folder: Path) -> bool:
    """Held-out MLM accuracy of every variant over its tokens, the first seed each; returns whether there is any."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for row in results.rows:
        for run in row.runs[:1]:
            if run.evaluation.has("mlm_acc"):
                tokens, accuracy = run.evaluation.columns["tokens"], run.evaluation.columns["mlm_acc"]
                axis.plot(tokens / 1e6, 100 * accuracy, marker=".", label=row.variant.name)
    if not axis.lines:
        return False
    axis.set(xlabel="million tokens", ylabel="held-out MLM accuracy, %", title=results.study.title)
    axis.set_ylim(bottom=0)
    axis.legend(fontsize="small")
    figure.savefig(folder / CURVES, dpi=100)
    return True


def draw_layers(results: Results, folder: Path) -> bool:
    """Distance and angle between the input and the output of each layer; returns whether there are any."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, (name, (title, unit)) in zip(axes, LAYER_TITLES.items(), strict=True):
        for row in results.rows:
            if values := row.layers.get(name):
                axis.plot(range(1, len(values) + 1), values, marker="o", label=row.variant.name)
        axis.set(xlabel="layer", ylabel=unit, title=f"{title} between input and output")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize="small")
    if not axes[0].lines:
        return False
    figure.savefig(folder / LAYERS, dpi=100)
    return True


def layer_charts(results: Results) -> list[Markup]:
    """The same as SVG, for the page."""
    found = []
    for name, (title, unit) in LAYER_TITLES.items():
        lines = {number: row.layers[name] for number, row in enumerate(results.rows) if row.layers}
        if lines:
            names = [row.variant.name for row in results.rows]
            found.append(_chart(f"{title} between input and output", unit, lines, names))
    return found


def _chart(title: str, unit: str, lines: Mapping[int, Sequence[float]], names: Sequence[str]) -> Markup:
    """Lines over the number of the layer."""
    deepest = max(map(len, lines.values()))
    values = np.concatenate([np.array(line, np.float64) for line in lines.values()])
    x, y = Scale(0.5, deepest + 0.5, LEFT, RIGHT), scale_for(values, BOTTOM, TOP, from_zero=True)
    axis = [element("line", class_="base", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM)]
    for value in ticks(y):
        place = round(y.place(value), 1)
        axis.append(element("line", x1=LEFT, x2=RIGHT, y1=place, y2=place))
        axis.append(element("text", f"{value:,.6g}", x=LEFT - 6, y=place + 4, text_anchor="end"))
    for layer in ticks(x, 8, whole=True):
        place = round(x.place(layer), 1)
        axis.append(element("text", f"{layer:.0f}", x=place, y=BOTTOM + 17, text_anchor="middle"))
    axis.append(element("text", "layer", x=(LEFT + RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle"))
    paths = []
    for number, line in lines.items():
        places = [f"{x.place(float(layer)):.1f} {y.place(value):.1f}" for layer, value in enumerate(line, 1)]
        paths.append(element("path", class_=f"{look(number)} held-out", d="M" + "L".join(places)))
        paths.append(element("path", class_=f"{look(number)} dots", d="".join(f"M{place}h0" for place in places)))
    ends = "; ".join(f"{names[number]}, from {line[0]:.3g} to {line[-1]:.3g}" for number, line in lines.items())
    svg = element(
        "svg",
        element("g", *axis, class_="axis"),
        *paths,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=f"{title}: {ends}.",
    )
    return element("figure", element("figcaption", element("b", title), f" {unit}" if unit else ""), svg)
