"""README.md of a model folder: what the model is and how to load it, from facts alone."""

from openalbert.interop.names import family_of
from openalbert.model.albert import AlbertModel


def model_card(model: AlbertModel) -> str:
    """A plain card for a model of which nothing is known but itself."""
    family = family_of(model.config)
    theirs = (
        f'It loads in Hugging Face `transformers` too, as it is: `AutoModel.from_pretrained("this folder")` ({family}).'
        if family
        else "Hugging Face `transformers` cannot express it: attention and feed-forward parts are shared differently."
    )
    return f"""---
library_name: openalbert
tags: [albert]
---

# A model in openalbert's format

{size_table(model)}

```python
import openalbert

model = openalbert.load("this folder")
```

{theirs}
"""


def size_table(model: AlbertModel) -> str:
    """The sizes of a model as a Markdown table."""
    config = model.config
    heads = ", ".join(head.kind for head in model.head_list) or "none"
    return f"""| | |
|---|---|
| parameters | {model.num_parameters():,} |
| layers, width, heads | {config.num_layers}, {config.hidden_size}, {config.num_heads} |
| embedding | {config.vocab_size:,} pieces, {config.embedding_size} wide |
| distinct attention and feed-forward parts | {config.sharing.attention} and {config.sharing.ffn} |
| longest input | {config.max_positions} tokens |
| heads | {heads} |"""
