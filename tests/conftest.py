"""What all tests stand on: shapes in signatures are checked; real data is used where it lies beside the checkout."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

# Two workers share two cores, and tests are small: threads would only wait for each other. Set before torch starts.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

if TYPE_CHECKING:
    from openalbert.text.tokenizer import Tokenizer

# Every shape written in a signature of openalbert is checked in every test; at run time they cost nothing. Files
# without shapes have their types checked by mypy alone: to check each of their calls again takes a third of the time.
ROOT = Path(__file__).resolve().parents[1]
SHAPED = [path for path in (ROOT / "src" / "openalbert").rglob("*.py") if "jaxtyping" in path.read_text()]
assert SHAPED
install_import_hook(
    [".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in SHAPED], "beartype.beartype"
)

# Property tests draw the same examples each time, so that a failure is due to a change; `make test-full` draws others.
settings.register_profile("same", derandomize=True)
settings.register_profile("others", derandomize=False, print_blob=True)
settings.load_profile("same")

# A shell ignores SIGINT in the background jobs of a script, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REAL_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real corpora and task data. A user's machine does not have them; small made-up data covers the same path."""
    if not REAL_DATA.is_dir():
        pytest.skip("no folder of real data beside the checkout")
    return REAL_DATA


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> "Tokenizer":
    """A small vocabulary, trained for the tests."""
    from tests.text.varied_lines import trained_tokenizer

    return trained_tokenizer(tmp_path_factory.mktemp("small"), vocab_size=1000)


@pytest.fixture(scope="session")
def cased(tmp_path_factory: pytest.TempPathFactory) -> "Tokenizer":
    """One with capitals, accents and bytes."""
    from tests.text.varied_lines import trained_tokenizer

    folder = tmp_path_factory.mktemp("cased")
    return trained_tokenizer(folder, vocab_size=700, cased=True, keep_accents=True, byte_fallback=True)


@pytest.fixture(scope="session")
def easy_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of a text that is easily learned, with a held-out split."""
    from tests.pretraining.made_shards import easy_text, made_shards

    return made_shards(tmp_path_factory.mktemp("easy"), easy_text(150), heldout=easy_text(40, seed=1))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, small: "Tokenizer") -> Path:
    """The folder of a tiny model."""
    from tests.finetuning.made_lessons import made_model

    return made_model(tmp_path_factory.mktemp("tiny") / "model", small)


@pytest.fixture(scope="session")
def quick_runs(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> dict[str, Path]:
    """A short run of every kind of task, with its data next to it as `data`. Tests do not write into it."""
    from tests.finetuning.made_lessons import KINDS, learn, lesson

    runs = {}
    for kind in (*KINDS, "some_without_answer"):
        folder = tmp_path_factory.mktemp(kind)
        name = "question_answering" if kind == "some_without_answer" else kind
        file = lesson(name, folder / "data", 120, may_have_no_answer=kind == "some_without_answer")
        learn(tiny, name, file, folder / "run", "--steps 30 --evaluate-every 10")
        runs[kind] = folder / "run"
    return runs
