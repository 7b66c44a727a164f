"""The command line: a verb names a settings class and the function that carries it out.

Nothing of a verb is imported before it is asked for, so that `openalbert --help` answers at once.
"""

import contextlib
import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from openalbert.errors import InputWarning, UserError, suggestion


@dataclass(frozen=True)
class Verb:
    """What a verb does, in one line, and where its settings and its function are."""

    summary: str
    module: str
    settings: str
    function: str
    recipes: str = ""
    """The module whose `defaults_for` gives the settings that a recipe's name, or none, stands for."""
    named_by: str = ""
    """The option whose value is the recipe's name; not given: the first word after the verb is."""


NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
VERBS = {
    "tokenizer train": Verb(
        "a vocabulary from text", "openalbert.text.train_tokenizer", "TrainVocabulary", "train_vocabulary"
    ),
    "tokenizer encode": Verb("lines of text to ids", "openalbert.text.tokenize", "Encode", "encode"),
    "tokenizer decode": Verb("ids to lines of text", "openalbert.text.tokenize", "Decode", "decode"),
    "prepare": Verb("text to token shards", "openalbert.text.prepare", "Prepare", "prepare"),
    "verify": Verb("every bit of some shards checked", "openalbert.text.prepare", "Verify", "verify"),
    "inspect": Verb("what a model will read, shown", "openalbert.pretraining.inspect", "Inspect", "inspect"),
    "pretrain": Verb(
        "a model from shards: masked LM, sentence order, LAMB",
        "openalbert.pretraining.run",
        "Pretrain",
        "pretrain",
        recipes="openalbert.recipes.pretraining",
    ),
    "finetune": Verb(
        "a model learns a task: GLUE, SQuAD, RACE, your own files",
        "openalbert.finetuning.finetune",
        "Finetune",
        "finetune",
        recipes="openalbert.recipes.finetuning",
        named_by="--task",
    ),
    "evaluate": Verb(
        "scores of a model, or of several together, on a task",
        "openalbert.finetuning.evaluate",
        "Evaluate",
        "evaluate",
    ),
    "report": Verb("curves and facts of runs, as one page", "openalbert.report.report", "Report", "report"),
    "show": Verb(
        "parameters, FLOPs and memory of a model",
        "openalbert.interop.show",
        "Show",
        "show",
        recipes="openalbert.interop.show",
    ),
    "convert": Verb("other people's models in, a model folder out", "openalbert.interop.convert", "Convert", "convert"),
    "fill": Verb("words for [MASK]", "openalbert.serve.fill", "Fill", "fill_texts"),
    "demo": Verb("all of it in minutes, on text of this machine", "openalbert.recipes.demo", "Demo", "demo"),
}


def main(words: list[str] | None = None) -> None:
    """Run one command line and exit with its code."""
    words = sys.argv[1:] if words is None else words
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Where both streams go into one pipe or file, results stay in order with what is said on standard error.
        sys.stdout.reconfigure(line_buffering=True)
    try:
        verb, rest = find_verb(words)
        with warnings_as_sentences():
            run_verb(verb, rest)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (`head`, say) has gone: nothing is wrong, and nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        advice = ": choose another folder, or have its rights changed" if error.errno in NOT_ALLOWED else ""
        print(f"error: {where}{error.strerror or error}{advice}", file=sys.stderr)
        sys.exit(1)


@contextlib.contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print a warning about the user's files once, as a sentence; other libraries' warnings are left as they are."""
    with warnings.catch_warnings():
        usual = warnings.showwarning
        printed: set[str] = set()

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, InputWarning):
                usual(message, category, *place, **more)
            elif str(message) not in printed and os.environ.get("RANK", "0") == "0":  # one of several processes
                print(f"warning: {message}", file=sys.stderr)
                printed.add(str(message))

        warnings.showwarning = show
        # Python's own "once" forgets what it has shown as soon as anything changes a filter.
        warnings.simplefilter("always", InputWarning)
        yield


def find_verb(words: list[str]) -> tuple[str, list[str]]:
    """Split a command line into its verb, of one word or two, and the rest."""
    for length in (2, 1):
        verb = " ".join(words[:length])
        if len(words) >= length and verb in VERBS:
            return verb, words[length:]
    asked = words[0] if words else "--help"
    family = {verb: VERBS[verb] for verb in VERBS if verb.split()[0] == asked}
    if asked in ("--help", "-h", "help"):
        print_help(VERBS)
        sys.exit(0)
    if asked == "--version":
        from openalbert.version import __version__

        print(f"openalbert {__version__}")
        sys.exit(0)
    if family and (len(words) == 1 or words[1] in ("--help", "-h")):
        print_help(family)
        sys.exit(0 if len(words) > 1 else 2)
    if family:
        known = [verb.split()[1] for verb in family]
        usage_error(f"'{asked} {words[1]}' is not a verb: {suggestion(words[1], known)}")
    usage_error(f"'{asked}' is not a verb: {suggestion(asked, sorted({verb.split()[0] for verb in VERBS}))}")


def usage_error(sentence: str) -> NoReturn:
    """Refuse a command line that cannot be understood."""
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


def print_help(verbs: dict[str, Verb]) -> None:
    """List the verbs, a line each."""
    width = max(map(len, verbs)) + 2
    print("usage: openalbert VERB [SETTINGS]\n")
    print("ALBERT, all of the paper: from your text to a pretrained encoder, to a task, and into other libraries.\n")
    for name, verb in verbs.items():
        print(f"  {name:{width}s}{verb.summary}")
    print("\n`openalbert VERB --help` lists the verb's settings.")


def run_verb(name: str, words: list[str]) -> None:
    """Read the verb's settings from the command line and carry it out."""
    verb = VERBS[name]
    module = importlib.import_module(verb.module)
    settings = parse(getattr(module, verb.settings), name, words)
    getattr(module, verb.function)(settings)


def parse(kind: Any, name: str, words: list[str]) -> Any:
    """Fill a settings class from the command line.

    Where the defaults hang on a model, its name is the first word after the verb, and the line is read over the
    defaults that follow from it; so it is where they hang on an option.
    """
    import tyro

    default = {}
    first = words[0] if words and not words[0].startswith("-") else ""
    recipes, named_by = VERBS[name].recipes, VERBS[name].named_by
    if recipes:
        recipe = value_of(named_by, words) if named_by else first
        default = {"default": importlib.import_module(recipes).defaults_for(recipe)}
    settings = tyro.cli(
        kind,
        prog=f"openalbert {name}",
        args=words,
        description=VERBS[name].summary,
        # A switch that is off has only `--switch`, one that is on only `--no-switch`.
        config=(tyro.conf.FlagCreatePairsOff,),
        **default,
    )
    if default and not named_by and settings.preset != first:
        usage_error(f"name the model right after the verb: openalbert {name} {settings.preset} …")
    return settings


def value_of(option: str, words: list[str]) -> str:
    """What a command line says of an option, the last time that it does; nothing if it does not."""
    value = ""
    for number, word in enumerate(words):
        if word == option:
            value = "".join(words[number + 1 : number + 2])
        elif word.startswith(f"{option}="):
            value = word.removeprefix(f"{option}=")
    return value
