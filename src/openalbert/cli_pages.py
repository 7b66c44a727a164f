"""What `openalbert VERB --help` says of each verb: what it does, three examples, and the settings that matter."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """The help of one verb. Names, kinds and defaults of its settings come from its settings class."""

    usage: str
    """What follows `openalbert VERB`."""
    about: str
    examples: tuple[str, str, str]
    settings: Mapping[str, str]
    """Option, or how its name begins, to what it does; with no text, the first sentence of the field's docstring."""


BUNDLED = "the bundled albert-base-wikibooks"
HUB = "`owner/name` on Hugging Face's hub"
READING = {
    "reading.format": "What the files are; auto goes by their ending.",
    "reading.text-field": "The field or column that holds the text, in JSONL, CSV, TSV, Parquet.",
    "reading.document": "",
}
TASK = (
    "sst2, mnli, squad2, race …, or for your own files classification, regression, multi_label, multiple_choice, "
    "question_answering, similarity, tagging."
)
WARM_UP = {"schedule.warmup": "Fraction of the run over which the learning rate rises from 0."}
FILES = {
    "data": "The folder of a known task, as it was published: GLUE, SQuAD, RACE.",
    "train": "Your own file to learn from: CSV, TSV, JSONL or Parquet.",
}
DEVICE = {"speed.device": ""}

PAGES: dict[str, Page] = {
    "tokenizer train": Page(
        "PATH [PATH ...] --out PATH [SETTINGS]",
        "Train a SentencePiece vocabulary on your text, with ALBERT's normalization.",
        (
            "openalbert tokenizer train texts/ --out vocabulary",
            "openalbert tokenizer train texts/ --out vocabulary --vocab-size 1000",
            "cat *.txt | openalbert tokenizer train - --out vocabulary --cased",
        ),
        {
            "PATH [PATH ...]": "",
            "out": "",
            "vocab-size": "",
            "cased": "",
            "keep-accents": "",
            "byte-fallback": "",
            "sample-megabytes": "MB of text to train on, sampled uniformly; training needs about 25 times the memory.",
            **READING,
            "fresh": "",
        },
    ),
    "tokenizer encode": Page(
        "[PATH] --tokenizer PATH [SETTINGS]",
        "Turn lines of text into token ids, one JSON object a line.",
        (
            "openalbert tokenizer encode lines.txt --tokenizer vocabulary",
            "openalbert tokenizer encode lines.txt --tokenizer albert-base-wikibooks --pieces",
            "echo 'She left.' | openalbert tokenizer encode --tokenizer albert-base-wikibooks --offsets",
        ),
        {"PATH": "", "tokenizer": "", "pieces": "", "offsets": ""},
    ),
    "tokenizer decode": Page(
        "[PATH] --tokenizer PATH",
        "Turn token ids back into lines of text.",
        (
            "openalbert tokenizer decode ids.jsonl --tokenizer vocabulary",
            "openalbert tokenizer decode ids.jsonl --tokenizer albert-base-wikibooks",
            "echo '[2, 55, 811, 3]' | openalbert tokenizer decode --tokenizer albert-base-wikibooks",
        ),
        {"PATH": "", "tokenizer": ""},
    ),
    "prepare": Page(
        "PATH [PATH ...] --tokenizer PATH --out PATH [SETTINGS]",
        "Turn text into memory-mapped token shards, which `openalbert pretrain` reads. The same command again "
        "resumes where it was stopped.",
        (
            "openalbert prepare texts/ --tokenizer vocabulary --out shards --heldout 0.01",
            "openalbert prepare reviews.csv --tokenizer vocabulary --out shards --reading.text-field review",
            "openalbert prepare books/ --tokenizer albert-base-wikibooks --out shards --reading.document file",
        ),
        {
            "PATH [PATH ...]": "",
            "tokenizer": "",
            "out": "The folder to make.",
            "heldout": "",
            "drop-duplicates": "",
            **READING,
            "reading.wrapped": "Lines are wrapped: neighbouring lines are one paragraph.",
            "workers": "",
            "engine": "",
            "fresh": "",
        },
    ),
    "verify": Page(
        "PATH",
        "Read every bit of a folder of shards and compare it with the checksums in its manifest.",
        ("openalbert verify shards", "openalbert verify demo/shards", "openalbert verify book-shards"),
        {"PATH": ""},
    ),
    "inspect": Page(
        "PATH [SETTINGS]",
        "Show what a model will read: counts, histograms, and examples with their masks and segments.",
        (
            "openalbert inspect shards",
            "openalbert inspect shards --examples 2 --max-length 128",
            "openalbert inspect shards --split heldout --json",
        ),
        {
            "PATH": "",
            "examples": "",
            "split": "",
            "max-length": "",
            "masked-lm.rate": "",
            "masked-lm.max-ngram": "",
            "sentence-order.objective": "",
            "sentence-order.chunks": "How chunks are made: as Google's code does, or of whole sentences only.",
            "seed": "",
            "out": "",
            "json": "",
        },
    ),
    "pretrain": Page(
        "[NAME] --data PATH [SETTINGS]",
        "Pretrain a model on token shards: masked LM and sentence order, with LAMB, AdamW or Muon. The same command "
        "again resumes where it was stopped.",
        (
            "openalbert pretrain albert-base-budget --data shards --out runs/mine --minutes 60",
            "openalbert pretrain albert-base --data shards --out runs/base --dry-run",
            "openalbert pretrain albert-base-wikibooks --data shards --out runs/further --minutes 25",
        ),
        {
            "NAME": "A recipe, a preset, or a model to continue: `openalbert models` lists them. Right after the verb.",
            "data": "",
            "out": "",
            "steps": "Length of the run; or --tokens, or --minutes.",
            "minutes": "Length of the run in minutes of training.",
            "batch-size": "Examples of a step over all devices; the learning rate is scaled with its square root.",
            "optimizer.learning-rate": "The highest learning rate.",
            **WARM_UP,
            "objective.max-length": "",
            "depth-schedule": "Start shallow and grow: depths, and the fraction of the run at which each begins.",
            "distill": "A pretrained model to learn from in addition to the text, as a teacher.",
            "evaluate-every": "Steps between two evaluations on held-out text.",
            "save-every": "",
            "dry-run": "Take a few steps, print what the run would take, and leave nothing behind.",
            "fresh": "",
            **DEVICE,
        },
    ),
    "finetune": Page(
        "MODEL --task NAME (--data PATH | --train PATH) [SETTINGS]",
        "Fine-tune a model on a task: gives a model folder, with scores and a report page. The same "
        "command again resumes where it was stopped.",
        (
            "openalbert finetune albert-base-wikibooks --task classification --train mails.csv --out runs/mails",
            "openalbert finetune albert-base-wikibooks --task sst2 --data glue --out runs/sst2",
            "openalbert finetune runs/first --task rte --data glue --out runs/rte --from runs/mnli --seeds 3",
        ),
        {
            "MODEL": f"A model folder, a pretraining run, {BUNDLED}, or {HUB}.",
            "task": TASK,
            **FILES,
            "out": "Folder of the run.",
            "trainable": "Only the head, fast on a CPU; adapters of low rank; or all; not given: by data and device.",
            "epochs": "Length of the run in epochs; or --steps, or --minutes.",
            "steps": "",
            "batch-size": "Examples of a step.",
            "optimizer.learning-rate": "The highest learning rate.",
            **WARM_UP,
            "max-length": "The longest input in tokens; what is longer is cut.",
            "long-texts": "Longer texts: cut, or mean or max over windows.",
            "evaluate-every": "",
            "patience": "End after so many evaluations without a better score; not given: never.",
            "seeds": "So many runs; their median, mean and spread are shown.",
            "folds": "Cross-validation over so many folds, then a model of all data.",
            "exits": "Train a head after every layer too: easy examples leave early when predicting.",
            "dry-run": "Take a few steps, print what the run would take, and leave nothing behind.",
            "fresh": "",
            **DEVICE,
        },
    ),
    "evaluate": Page(
        "MODEL [MODEL ...] [SETTINGS]",
        "Score a fine-tuned model, or several as an ensemble, on a task; or predict for a file without labels.",
        (
            "openalbert evaluate runs/sst2 --data glue",
            "openalbert evaluate runs/reviews --test labelled.csv --predictions predictions",
            "openalbert evaluate runs/rte/seed-1 runs/rte/seed-2 --data glue --report runs/rte-ensemble.html",
        ),
        {
            "MODEL [MODEL ...]": "",
            "task": TASK + " Not given: what the model was fine-tuned for.",
            "data": FILES["data"],
            "dev": "Your own file to score on.",
            "test": "",
            "splits": "",
            "predictions": "",
            "report": "",
            "max-length": "",
            "tokens-at-a-time": "",
            "json": "",
            **DEVICE,
        },
    ),
    "study": Page(
        "[STUDY] [SETTINGS]",
        "Train the variants that a table of the paper compares, evaluate and fine-tune them, and write the table with "
        "the paper's numbers next to ours. The same command again resumes, and trains only what is not done.",
        (
            "openalbert study",
            "openalbert study sharing --budget tiny --data shards --out studies/sharing",
            "openalbert study sentence --budget small --data shards --task-data glue --parallel 6 --dry-run",
        ),
        {
            "STUDY": "One of those that `openalbert study` lists.",
            "budget": "Seconds a variant on a CPU, a minute of a large GPU, or the paper's own runs.",
            "data": "",
            "heldout": "",
            "out": "",
            "store": "",
            "seeds": "",
            "tasks": "Tasks to fine-tune on, or KIND:FILE; not given: the budget's, where --task-data is given.",
            "task-data": "",
            "only": "",
            "set": "Settings of `pretrain` for all variants; of fine-tuning with `finetune.` before the name.",
            "job": "",
            "parallel": "Runs at a time, each in a process of its own.",
            "engine": "On this machine, or on an existing Ray cluster.",
            "merge": "",
            "report-only": "Write the report of the results that are there.",
            "dry-run": "Print how many minutes each variant takes, and train nothing.",
            **DEVICE,
        },
    ),
    "predict": Page(
        "MODEL [TEXT ...|FILE|-] [--out PATH] [SETTINGS]",
        "Predict with a fine-tuned model for texts, standard input, or a CSV, TSV, JSONL, Parquet or text file of any "
        "size. Rows and columns stay as they are; prediction and probability are added. A pretrained model fills in "
        "[MASK], and of two texts it predicts whether they are in order.",
        (
            'openalbert predict runs/mails "Please send me the invoice again."',
            "openalbert predict runs/mails new-mails.csv --out predicted.csv --all-probabilities",
            'openalbert predict runs/squad "Who wrote the letter?" "Anna wrote it in May, and Tom read it."',
        ),
        {
            "MODEL": f"A model folder, a run, {BUNDLED}, or {HUB}.",
            "[TEXT ...|FILE|-]": "Texts (a pair, a question and its passage, or a question and its options are words "
            "in this order; tabs on standard input), or a file.",
            "out": "",
            "all-probabilities": "",
            "prefix": "",
            "text-column": "",
            "second-column": "",
            "question-column": "",
            "passage-column": "",
            "options-columns": "",
            "top": "",
            "max-length": "",
            "tokens-at-a-time": "",
            "depth": "How many layers are computed; not given: all, or with exits as many as each input needs.",
            "speedup": "With exits: a rule that computed so many times fewer layers where it was fitted.",
            "deadline-ms": "",
            "speed.device": "auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.",
        },
    ),
    "embed": Page(
        "MODEL [TEXT ...|FILE|-] [--out PATH] [SETTINGS]",
        "Embed texts, standard input, or the rows of a CSV, TSV, JSONL, Parquet or text file of any size: one vector "
        "for each, in their order. The dot product of two is their cosine.",
        (
            "openalbert embed albert-base-wikibooks mails.csv --out mails.npy",
            "openalbert embed runs/similar products.jsonl --text-column title --out products.parquet",
            'openalbert embed albert-base-wikibooks "She opened the door." "The door was open."',
        ),
        {
            "MODEL": f"A model folder, a run, {BUNDLED}, or {HUB}.",
            "[TEXT ...|FILE|-]": "",
            "out": "",
            "pooling": "",
            "layer": "",
            "no-normalize": "Leave embeddings as long as they are; the length of each is 1 otherwise.",
            "text-column": "",
            "max-length": "",
            "tokens-at-a-time": "",
            "speed.device": "auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.",
        },
    ),
    "serve": Page(
        "MODEL [MODEL ...] [SETTINGS]",
        "Serve models over HTTP, until Ctrl-C: a page to try them, and routes for the clients of "
        "text-embeddings-inference, Hugging Face and OpenAI. Requests that come together are computed together.",
        (
            "openalbert serve runs/mails",
            "openalbert serve albert-base-wikibooks runs/mails --port 9000",
            "openalbert serve runs/mails --host 0.0.0.0 --api-key-file key.txt",
        ),
        {
            "MODEL [MODEL ...]": "Model folders, runs, exported folders, or names of bundled checkpoints.",
            "host": "",
            "port": "",
            "max-body": "",
            "max-inputs": "",
            "max-requests": "",
            "seconds": "",
            "speedup": "",
            "tokens-at-a-time": "",
            "api-key-file": "",
            "cors": "",
            "log-texts": "",
            **DEVICE,
        },
    ),
    "search": Page(
        "MODEL FILE [QUERY ...] [SETTINGS]",
        "Search the rows of a CSV, TSV, JSONL, Parquet or text file by meaning. The file is embedded once; a file or a "
        "model that changed is embedded again.",
        (
            'openalbert search albert-base-wikibooks mails.csv "the parcel never came"',
            'openalbert search runs/similar products.jsonl "warm gloves" "a raincoat" --top 3 --json',
            "openalbert search runs/similar notes.txt --cache /tmp < queries.txt",
        ),
        {
            "MODEL": f"A model folder, a run, {BUNDLED}, or {HUB}.",
            "FILE": "",
            "[QUERY ...]": "",
            "top": "",
            "json": "",
            "cache": "",
            "exact": "",
            "pooling": "",
            "layer": "",
            "text-column": "",
            "max-length": "",
            "tokens-at-a-time": "",
            "speed.device": "auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.",
        },
    ),
    "report": Page(
        "RUN [RUN ...] [--out PATH]",
        "Write curves, scores, mistakes, settings, data and hardware of runs as one offline page.",
        (
            "openalbert report runs/mine",
            "openalbert report runs/first runs/second --out report.html",
            "openalbert report runs/sst2",
        ),
        {"RUN [RUN ...]": "Folders of runs of `openalbert pretrain` or `openalbert finetune`.", "out": ""},
    ),
    "models": Page(
        "[--json]",
        "List the models that have a name: bundled checkpoints, recipes and presets, with parameters and compute.",
        ("openalbert models", "openalbert models --json", "openalbert models | grep bert-"),
        {"json": ""},
    ),
    "show": Page(
        "[NAME] [SETTINGS]",
        "Show parameters, FLOPs and memory of a model; without a name, of all presets next to the paper's numbers.",
        (
            "openalbert show",
            "openalbert show albert-base --length 128",
            "openalbert show albert-base --model.sharing.ffn 12 --json",
        ),
        {
            "NAME": f"A preset, a recipe, a model folder, a run, {BUNDLED}, or {HUB}.",
            "length": "Tokens in a sequence, for FLOPs and activations.",
            "batch": "",
            "precision": "",
            "recompute": "",
            "model.num-layers": "",
            "model.hidden-size": "",
            "model.embedding-size": "",
            "model.ffn-size": "",
            "model.sharing.attention": "Distinct attention blocks: 1 is shared by all layers.",
            "model.sharing.ffn": "",
            "json": "",
        },
    ),
    "fill": Page(
        "MODEL [TEXT ...] [SETTINGS]",
        "Let a model fill in [MASK].",
        (
            'openalbert fill albert-base-wikibooks "She opened the [MASK] and walked into the room."',
            'openalbert fill runs/mine/model "She opened the [MASK] and went in." --top 10',
            "openalbert fill albert-base-wikibooks --json < lines.txt",
        ),
        {
            "MODEL": f"A model folder, a run, {BUNDLED}, or {HUB}.",
            "[TEXT ...]": "",
            "top": "",
            "json": "",
        },
    ),
    "convert": Page(
        "SOURCE --out PATH [SETTINGS]",
        "Make a model folder of a Hugging Face model or of Google's TensorFlow checkpoint, every tensor accounted for.",
        (
            "openalbert convert albert/albert-base-v2 --out models/albert-base-v2",
            "openalbert convert albert_base/model.ckpt-best --out models/google",
            "openalbert convert runs/mine --out models/mine --precision bfloat16",
        ),
        {"SOURCE": "", "out": "", "precision": "", "classifier": "", "fresh": ""},
    ),
    "export": Page(
        "MODEL --out PATH [SETTINGS]",
        "Write a model as ONNX graphs, which run on a CPU with and without openalbert, and compare them with the "
        "original.",
        (
            "openalbert export runs/sst2 --int8 --out exported/sst2 --data glue",
            "openalbert export runs/mails --int8 --keep-fp32 down --out exported/mails --dev more-mails.csv",
            "openalbert export albert-base-wikibooks --out exported/albert --dev text.txt",
        ),
        {
            "MODEL": f"A model folder, a run, {BUNDLED}, or {HUB}.",
            "out": "",
            "int8": "",
            "keep-fp32": "Parts that stay in fp32 with --int8: embedding, attention, up, down, heads.",
            "data": FILES["data"] + " Scores before and after.",
            "dev": "Your own file to score on; for a pretrained model a text, for MLM accuracy.",
            "task": "The task to score on; not given: what the model was fine-tuned for.",
            "fresh": "",
            "json": "",
        },
    ),
    "demo": Page(
        "[SETTINGS]",
        "Do the whole job in minutes, on text of this machine: vocabulary, shards, a tiny ALBERT, a report page.",
        ("openalbert demo", "openalbert demo --out /tmp/demo", "openalbert demo --steps 500 --fresh"),
        {"out": "", "corpus-megabytes": "", "vocab-size": "", "heldout": "", "steps": "", "fresh": ""},
    ),
}
