"""Cross-layer sharing (section 3.1 of the paper): the layers draw on fewer sets of parameters than there are layers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sharing:
    """How many distinct copies of each part the layers draw on. One copy means that every layer shares it.

    With L layers the paper's table is: all (1, 1), attention only (1, L), feed-forward only (L, 1), none (L, L);
    groups of layers are (g, g). A layer norm belongs to the part it follows.
    """

    attention: int = 1
    """Distinct attention parts: 1 shares one among all layers, as many as there are layers shares nothing."""
    ffn: int = 1
    """Distinct feed-forward parts, counted in the same way."""


def part_of_layer(layer: int, num_parts: int, num_layers: int) -> int:
    """Which of `num_parts` copies a layer uses: consecutive layers share one, in groups as equal as can be."""
    return layer * num_parts // num_layers
