"""The command line: a verb names a settings class and the function that carries it out.

Nothing of a verb is imported before it is asked for, so that `openalbert --help` answers at once.
"""

import contextlib
import errno
import importlib
import io
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
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
    """The option whose value is the recipe's name; not given: the first argument after the verb is."""
    first: str = "model"
    """The setting that is the first argument after the verb, where an option has the recipe's name."""
    effective: str = ""
    """The function of that module that gives what a run uses for settings that are not given, for the help."""


HELP, HELP_ALL = ("--help", "-h"), "--help-all"
NOT_ALLOWED = (errno.EACCES, errno.EPERM)
SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")
VERBS = {
    "tokenizer train": Verb(
        "a vocabulary from text", "openalbert.text.train_tokenizer", "TrainVocabulary", "train_vocabulary"
    ),
    "tokenizer encode": Verb("lines of text to ids", "openalbert.text.tokenizer", "Encode", "encode_lines"),
    "tokenizer decode": Verb("ids to lines of text", "openalbert.text.tokenizer", "Decode", "decode_lines"),
    "prepare": Verb("text to token shards", "openalbert.text.prepare", "Prepare", "prepare"),
    "verify": Verb("every bit of some shards checked", "openalbert.text.prepare", "Verify", "verify"),
    "inspect": Verb("what a model will read, shown", "openalbert.pretraining.inspect", "Inspect", "inspect"),
    "pretrain": Verb(
        "a model from shards: masked LM, sentence order, LAMB",
        "openalbert.pretraining.run",
        "Pretrain",
        "pretrain",
        recipes="openalbert.recipes.pretraining",
        effective="effective",
    ),
    "finetune": Verb(
        "a model learns a task: GLUE, SQuAD, RACE, your own files",
        "openalbert.finetuning.finetune",
        "Finetune",
        "finetune",
        recipes="openalbert.recipes.finetuning",
        named_by="--task",
        effective="effective",
    ),
    "evaluate": Verb(
        "scores of a model, or of several together, on a task",
        "openalbert.finetuning.evaluation.evaluate",
        "Evaluate",
        "evaluate",
    ),
    "study": Verb(
        "a table of the paper: its variants trained and compared",
        "openalbert.studies.runner",
        "RunStudy",
        "study",
        recipes="openalbert.studies.settings",
        named_by="--budget",
        first="study",
    ),
    "predict": Verb(
        "what a model predicts for texts, or for the rows of a file",
        "openalbert.serve.predict",
        "Predict",
        "predict",
    ),
    "embed": Verb("embeddings of texts, or of the rows of a file", "openalbert.serve.embed", "Embed", "embed"),
    "search": Verb("the rows of a file nearest to a query", "openalbert.serve.search", "Search", "search"),
    "serve": Verb("models over HTTP, and a page to try them", "openalbert.serve.http_api.server", "Serve", "serve"),
    "report": Verb("curves and scores of runs, as one page", "openalbert.report.report", "Report", "report"),
    "models": Verb(
        "every model that has a name, its size and what it is for",
        "openalbert.interop.models",
        "Models",
        "list_models",
    ),
    "show": Verb(
        "parameters, FLOPs and memory of a model",
        "openalbert.interop.show",
        "Show",
        "show",
        recipes="openalbert.interop.show",
    ),
    "convert": Verb("other people's models in, a model folder out", "openalbert.interop.convert", "Convert", "convert"),
    "export": Verb("a model as ONNX, in fp32 or int8, for a CPU", "openalbert.serve.export", "Export", "export"),
    "fill": Verb("words for [MASK]", "openalbert.serve.fill", "Fill", "fill_texts"),
    "demo": Verb("all of it in minutes, on text of this machine", "openalbert.recipes.demo", "Demo", "demo"),
}
# By what a user does, in the order of a whole job.
GROUPS = {
    "Text": ("tokenizer train", "tokenizer encode", "tokenizer decode", "prepare", "verify", "inspect"),
    "Pretrain": ("pretrain", "demo"),
    "Fine-tune": ("finetune", "evaluate"),
    "Use": ("predict", "embed", "search", "serve"),
    "Reproduce": ("study",),
    "Look": ("models", "show", "fill", "report"),
    "Convert": ("convert", "export"),
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command line and exit with its code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Where both streams go into one pipe or file, results stay in order with what is said on standard error.
        # Half a character, which JSON may hold, is printed as a question mark.
        sys.stdout.reconfigure(line_buffering=True, errors="replace")
    try:
        verb, rest = find_verb(arguments)
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
        print(f"error: {where}{error.strerror or error}{advice_on(error)}", file=sys.stderr)
        sys.exit(1)


def advice_on(error: OSError) -> str:
    """What to do where something cannot be read or written; empty where the error says enough."""
    if not error.filename:
        return ""
    path = Path(os.fsdecode(error.filename)).absolute()
    nearest = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    if any(nearest.is_relative_to(system) for system in SYSTEM_FOLDERS):
        return f": {nearest} belongs to the system, and no files can be made there: choose a folder of your own"
    if error.errno == errno.EROFS:
        return f": {nearest} is read-only: choose a folder elsewhere"
    if error.errno in NOT_ALLOWED:
        return f": you may not write or read {nearest}: choose another folder, or change its permissions"
    if error.errno in (errno.ENOTDIR, errno.EEXIST) and not nearest.is_dir():
        return f": {nearest} is a file, where a folder is needed: choose another name"
    return ""


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


def find_verb(arguments: list[str]) -> tuple[str, list[str]]:
    """Split a command line into its verb, of one word or two, and the rest."""
    for length in (2, 1):
        verb = " ".join(arguments[:length])
        if len(arguments) >= length and verb in VERBS:
            return verb, arguments[length:]
    asked = arguments[0] if arguments else "--help"
    family = {verb: VERBS[verb] for verb in VERBS if verb.split()[0] == asked}
    if asked in (*HELP, HELP_ALL, "help"):
        print_help(VERBS)
        sys.exit(0)
    if asked == "--version":
        from openalbert.version import __version__

        print(f"openalbert {__version__}")
        sys.exit(0)
    if family and (len(arguments) == 1 or arguments[1] in (*HELP, HELP_ALL)):
        print_help(family)
        sys.exit(0 if len(arguments) > 1 else 2)
    if family:
        known = [verb.split()[1] for verb in family]
        usage_error(f"'{asked} {arguments[1]}' is not a verb: {suggestion(arguments[1], known)}")
    usage_error(f"'{asked}' is not a verb: {suggestion(asked, sorted({verb.split()[0] for verb in VERBS}))}")


def usage_error(sentence: str) -> NoReturn:
    """Refuse a command line that cannot be understood."""
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


def print_help(verbs: dict[str, Verb]) -> None:
    """List the verbs, a line each, by what a user does."""
    width = max(map(len, verbs)) + 2
    print("usage: openalbert VERB [SETTINGS]\n")
    print("ALBERT, all of the paper: from your text to a pretrained encoder, to a task, and into other libraries.")
    for group, names in GROUPS.items():
        listed = [name for name in names if name in verbs]
        if listed:
            print(f"\n{group}")
        for name in listed:
            print(f"  {name:{width}s}{verbs[name].summary}")
    print("\n`openalbert VERB --help` shows examples and the settings that matter, `--help-all` all settings;")
    print("`openalbert --version` prints the version.")


def run_verb(name: str, arguments: list[str]) -> None:
    """Read the verb's settings from the command line and carry it out, or print the verb's help."""
    verb = VERBS[name]
    module = importlib.import_module(verb.module)
    kind = getattr(module, verb.settings)
    if HELP_ALL in arguments:
        arguments = [argument for argument in arguments if argument not in (*HELP, HELP_ALL)] + ["--help"]
    elif any(argument in HELP for argument in arguments):
        print(short_help(kind, name, [argument for argument in arguments if argument not in HELP]))
        sys.exit(0)
    settings = parse(kind, name, arguments)
    getattr(module, verb.function)(settings)


def parse(kind: Any, name: str, arguments: list[str]) -> Any:
    """Fill a settings class from the command line.

    Where the defaults depend on a model, its name is the first argument after the verb, and the line is read over the
    defaults that follow from it; so it is where they depend on an option.
    """
    import tyro

    from openalbert.cli_help import registry
    from openalbert.cli_pages import PAGES

    found = defaults_of(name, arguments)
    default = {} if found is None else {"default": found}
    settings = tyro.cli(
        kind,
        prog=f"openalbert {name}",
        args=arguments,
        description=PAGES[name].about,
        # A switch that is off has only `--switch`, one that is on only `--no-switch`.
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=registry,
        **default,
    )
    if default and not VERBS[name].named_by and settings.preset != first_positional(arguments):
        usage_error(f"name the model right after the verb: openalbert {name} {settings.preset} …")
    return settings


def short_help(kind: Any, name: str, arguments: list[str]) -> str:
    """The verb's page, with the values that follow from the model or the task that these arguments name."""
    from openalbert.cli_help import verb_page
    from openalbert.settings import Effective

    verb, settings = VERBS[name], defaults_of(name, arguments)
    if settings is None:
        return verb_page(name, kind)
    first, option = first_positional(arguments), verb.named_by
    if option and first:
        settings = replace(settings, **{verb.first: first})
    given = [first, *([option, value_of(option, arguments)] if option and value_of(option, arguments) else [])]
    recipes, heading = importlib.import_module(verb.recipes), f"Settings, as {first} has them" if first else "Settings"
    used = getattr(recipes, verb.effective)(settings) if verb.effective else Effective(settings, {}, heading)
    return verb_page(name, kind, used, shlex.join(argument for argument in given if argument))


def defaults_of(name: str, arguments: list[str]) -> Any:
    """The settings that follow from the model or the task that a command line names; None where nothing does."""
    verb = VERBS[name]
    if not verb.recipes:
        return None
    recipe = value_of(verb.named_by, arguments) if verb.named_by else first_positional(arguments)
    return importlib.import_module(verb.recipes).defaults_for(recipe)


def first_positional(arguments: list[str]) -> str:
    """The argument after the verb, where it is no option."""
    return arguments[0] if arguments and not arguments[0].startswith("-") else ""


def value_of(option: str, arguments: list[str]) -> str:
    """The value that a command line gives an option, the last one where there are several; empty if it has none."""
    value = ""
    for number, argument in enumerate(arguments):
        if argument == option:
            value = "".join(arguments[number + 1 : number + 2])
        elif argument.startswith(f"{option}="):
            value = argument.removeprefix(f"{option}=")
    return value
