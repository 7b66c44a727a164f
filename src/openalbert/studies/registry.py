"""The studies by name. A new one is a file in `tables/` and a word here."""

from openalbert.errors import UserError, suggestion
from openalbert.studies.study import Study
from openalbert.studies.tables import (
    data,
    deeper,
    depth,
    dropout,
    embedding,
    layers,
    masking,
    optimizer,
    sentence,
    sharing,
    sizes,
    time,
    width,
)

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        sizes,
        embedding,
        sharing,
        sentence,
        time,
        data,
        dropout,
        depth,
        width,
        deeper,
        layers,
        masking,
        optimizer,
    )
}


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise UserError(f"'{name}' is not a study: {suggestion(name, STUDIES)}")
    return STUDIES[name]


def list_studies() -> str:
    """A line for each study."""
    rows = [f"  {study.name:11s}{study.source or 'ours':10s}{study.title}" for study in STUDIES.values()]
    return "\n".join(["Studies: `openalbert study NAME --budget tiny|small|paper --data shards`", "", *rows])
