"""Every block of Python in the README, the tour and the guides is run by a test, or marked as one that cannot be."""

import functools
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.docs import (
    test_add_a_task,
    test_find_entities_guide,
    test_glue_squad_race,
    test_guides,
    test_own_file_guide,
    test_search_guide,
    test_serve_guide,
    test_small_and_fast,
    test_studies_guides,
    test_use_your_model,
)
from tests.docs.test_guides import ROOT, commands, run
from tests.finetuning.made_lessons import lesson

import openalbert

GUIDES = Path("docs/guides")
PAGES = ("README.md", "docs/tour.md", *(str(GUIDES / path.name) for path in sorted((ROOT / GUIDES).glob("*.md"))))
NOT_RUN = "python not-run"  # what stands behind the ``` of a block that cannot be run
MARKED: dict[str, int] = {}  # how many such blocks a page has


def test_the_python_of_the_readme_fills_embeds_fine_tunes_and_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lesson("classification", tmp_path, 24).rename(tmp_path / "mails.csv")
    # The recipe's steps of ALBERT-base take minutes on a CPU.
    quick = {"steps": 1, "batch_size": 2, "trainable": "all"}
    monkeypatch.setattr(openalbert, "finetune", functools.partial(openalbert.finetune, **quick), False)
    [block] = [block for kind, block in commands("README.md") if kind == "python"]
    done = run("python", block, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FillPrediction(door" in done.stdout
    assert "(2, 768)" in done.stdout
    assert "'accuracy'" in done.stdout
    assert done.stdout.count("ClassPrediction(") == 2


RUN_BY = {
    "README.md": test_the_python_of_the_readme_fills_embeds_fine_tunes_and_predicts,
    "docs/guides/add-a-task.md": test_add_a_task.test_the_task_of_the_guide_is_read_scored_and_known_by_name,
    "docs/guides/compare-your-own-variants.md": (
        test_studies_guides.test_the_guide_on_own_variants_compares_masking_rates_and_fine_tunes_on_a_file
    ),
    "docs/guides/fine-tune-your-own-file.md": (
        test_own_file_guide.test_the_commands_of_the_guide_make_the_models_it_speaks_of
    ),
    "docs/guides/find-entities.md": (
        test_find_entities_guide.test_the_commands_of_the_guide_find_the_entities_it_speaks_of
    ),
    "docs/guides/glue-squad-race.md": (
        test_glue_squad_race.test_the_commands_of_the_guide_tune_score_and_write_what_it_speaks_of
    ),
    "docs/guides/pretrain.md": (
        test_guides.test_the_commands_of_the_guides_on_pretraining_make_the_models_they_speak_of
    ),
    "docs/guides/python.md": test_guides.test_the_python_guide_runs_from_text_to_a_fine_tuned_model,
    "docs/guides/search-your-texts.md": test_search_guide.test_the_commands_of_the_guide_search_embed_and_train,
    "docs/guides/serve-your-model.md": test_serve_guide.test_the_server_of_the_guide_answers_its_requests,
    "docs/guides/small-and-fast.md": test_small_and_fast.test_the_commands_of_the_guide_export_and_predict,
    "docs/guides/use-your-model.md": test_use_your_model.test_the_commands_and_the_python_of_the_guide_predict,
    "docs/guides/your-own-text.md": test_guides.test_the_commands_of_your_own_text_make_the_shards_it_speaks_of,
}


def test_every_page_with_python_has_a_test_that_runs_it() -> None:
    assert {page for page in PAGES if any(kind == "python" for kind, _ in commands(page))} == RUN_BY.keys()


def test_a_block_of_python_is_marked_as_such_or_as_not_run_and_those_are_counted() -> None:
    marked: Counter[str] = Counter()
    for page in PAGES:
        fences = re.findall(r"^ *(`{3,}|~{3,})[ \t]*(.*)$", (ROOT / page).read_text(), re.MULTILINE)
        opened = [word for _, word in fences[::2]]
        assert all(not word for _, word in fences[1::2]), page  # every second one ends a block
        python = [word for word in opened if word.lower().startswith("py")]
        assert set(python) <= {"python", NOT_RUN}, page
        assert python.count("python") == sum(kind == "python" for kind, _ in commands(page)), page
        marked.update({page: python.count(NOT_RUN)})
    assert {page: count for page, count in marked.items() if count} == MARKED
