"""The demo's text: prose is told from everything else in documentation, and what was said is not said again."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openalbert.errors import UserError
from openalbert.recipes.demo_corpus import (
    Novelty,
    docstrings,
    installed_roots,
    prose,
    source_files,
    texts_of,
    write_corpus,
)

NUMPY_STYLE = """Return the mean of all the values
in an array.

The mean is the sum divided by the number of values. It is
returned as a float.

Parameters
----------
values : array
    The values of which the mean is wanted, as an array or a list of numbers.

Returns
-------
float
    The mean of all values that are in the array.

Notes
-----
A mean of nothing is not a number, and a warning is given.

Examples
--------
Here is how to use it with a list of three numbers:

>>> mean([1, 2, 3])
2.0
"""
GOOGLE_STYLE = """Opens the file and reads all of its lines.

The :class:`~pkg.Reader` decides how ``lines`` end, see `the guide <https://x.org/guide>`_ of *readers*.

Args:
    path (str): The file that is to be opened, and read to its very end.
    mode: How it is opened. This is one of two letters.

Returns:
    The lines, in the order in which they stand in the file.

Example:
    ```python
    >>> lines = read("name")
    ```

This is what comes after the example, in words of its own.
"""
REST_STYLE = """Wait until the lock is free, and take it::

    with lock:
        the_work_is_done_here(with_this_argument)

.. note::

    Nobody else can have the lock while you hold it.

.. code-block:: python

    this is not prose, although it looks a bit like it.

:param seconds: how long to wait for the lock before giving up.
:class:`Lock` objects are shared by all threads of a process.

====== ===========
column another one
====== ===========

- The first item of this list is a sentence of its own.
- short
"""


def test_numpys_parameters_returns_and_examples_are_no_prose() -> None:
    assert prose(NUMPY_STYLE) == [
        "Return the mean of all the values in an array.",
        "The mean is the sum divided by the number of values. It is returned as a float.",
        "A mean of nothing is not a number, and a warning is given.",
    ]


def test_googles_arguments_and_code_are_no_prose_and_markup_is_taken_away() -> None:
    assert prose(GOOGLE_STYLE) == [
        "Opens the file and reads all of its lines.",
        "The pkg.Reader decides how lines end, see the guide of readers.",
        "This is what comes after the example, in words of its own.",
    ]


def test_literal_blocks_directives_fields_and_tables_are_no_prose() -> None:
    assert prose(REST_STYLE) == [
        "Wait until the lock is free, and take it:",
        "Nobody else can have the lock while you hold it.",
        "The first item of this list is a sentence of its own.",
    ]


@given(st.text(alphabet=st.sampled_from("aB. :\n->`*|=\t_(){}é"), max_size=200))
def test_any_text_gives_paragraphs_of_one_line(text: str) -> None:
    for paragraph in prose(text):
        assert paragraph == " ".join(paragraph.split())
        assert len(paragraph.split()) >= 6


def write_package(folder: Path) -> None:
    (folder / "pkg" / "tests").mkdir(parents=True)
    (folder / "pkg" / "a.py").write_text(
        f'"""{NUMPY_STYLE}"""\n\nclass A:\n    r"""{GOOGLE_STYLE}"""\n    def f(self):\n        """{REST_STYLE}"""\n'
    )
    (folder / "pkg" / "b.py").write_text(f'"""{NUMPY_STYLE}"""\nadd_newdoc("x", """{REST_STYLE}""")\n')
    (folder / "pkg" / "broken.py").write_text(f'"""{GOOGLE_STYLE}"""\ndef (:\n')
    (folder / "pkg" / "tests" / "c.py").write_text(f'"""{GOOGLE_STYLE}"""')
    (folder / "pydoc_data").mkdir()
    (folder / "pydoc_data" / "topics.py").write_text(
        "topics = {'if': 'The if statement\\n****************\\n\\n"
        "It is used for conditional execution of a suite.\\n\\n"
        '   if_stmt ::= "if" expression\\n\\nIt selects exactly one of the suites by evaluating the expressions.\'}\n'
    )


def test_docstrings_are_read_without_running_anything(tmp_path: Path) -> None:
    write_package(tmp_path)
    (tmp_path / "pkg" / "harm.py").write_text(f'"""{NUMPY_STYLE}"""\nraise SystemExit("it was run")\n')
    assert [len(docstrings(tmp_path / "pkg" / name)) for name in ("a.py", "b.py", "broken.py", "harm.py")] == [
        3,
        2,
        0,
        1,
    ]
    assert texts_of(tmp_path / "pydoc_data" / "topics.py") == [
        [
            "It is used for conditional execution of a suite.",
            "It selects exactly one of the suites by evaluating the expressions.",
        ]
    ]


def test_nothing_is_said_twice(tmp_path: Path) -> None:
    write_package(tmp_path)
    found = write_corpus(tmp_path / "corpus.txt", 10**6, [tmp_path], workers=1)
    text = (tmp_path / "corpus.txt").read_text()
    paragraphs = [line for line in text.split("\n") if line]
    assert len(set(paragraphs)) == len(paragraphs) == found.paragraphs
    assert (found.documents, text.count("\n\n") + 1) == (4, 4)  # three of a.py and the topic; b.py repeats
    assert found.repeated == 6
    assert found.packages[0][0] == "pkg"


def test_a_changed_number_does_not_make_a_sentence_new() -> None:
    novelty = Novelty()
    assert novelty.new(["Added in version 3.8, and changed since."])[1] == 1
    assert novelty.new(["Added in version 3.9, and changed since.", "This is another sentence."]) == (
        ["This is another sentence."],
        1,
    )


def test_the_corpus_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    write_package(tmp_path)
    for workers in (1, 2):
        write_corpus(tmp_path / f"{workers}.txt", 10**6, [tmp_path], workers)
    assert (tmp_path / "1.txt").read_bytes() == (tmp_path / "2.txt").read_bytes()


def test_this_python_has_text_for_the_demo(tmp_path: Path) -> None:
    found = write_corpus(tmp_path / "corpus.txt", 300_000, workers=1)
    assert 300_000 <= found.characters < 600_000
    assert found.files < len(source_files(installed_roots()))


def test_a_python_without_documentation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no documentation was found"):
        write_corpus(tmp_path / "corpus.txt", 10**6, [tmp_path], workers=1)
