"""CoNLL files as people have them: tabs or spaces, carriage returns, comments, documents; and what is refused."""

from pathlib import Path

import pytest

from openalbert.errors import UserError
from openalbert.tasks.data.conll import LINES, read_conll


def sentences(path: Path, text: str, column: str = "1") -> list[list[str]]:
    path.write_bytes(text.encode())
    return [row.values[column] for row in read_conll(path).rows]


@pytest.mark.parametrize(
    "text",
    [
        "The\tO\nend\tB-x\n\nYes\tO\n",
        "The O\nend B-x\n\nYes O",
        "The\tO\r\nend\tB-x\r\n\r\nYes\tO\r\n",
        "\ufeffThe\tO\nend\tB-x\n\t\nYes\tO\n\n\n",
        "-DOCSTART- O\n\nThe O\nend B-x\n   \nYes O\n-DOCSTART- O\n",
        "# id 1\nThe\tO\nend\tB-x\n\n# id 2\n\nYes\tO\n",
        "-DOCSTART- -X- O O\nThe DT O O\nend NN O B-x\n\nYes UH O O\n",
        "# id 7c5e\tdomain=en\nThe _ _ O\nend _ _ B-x\n\nYes _ _ O\n",
    ],
)
def test_all_common_forms_have_the_same_words_and_tags(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    assert sentences(path, text) == [["The", "end"], ["Yes"]]
    last = read_conll(path).columns[-1]
    assert sentences(path, text, last) == [["O", "B-x"], ["O"]]


def test_a_hash_is_a_word_where_it_has_its_columns(tmp_path: Path) -> None:
    assert sentences(tmp_path / "a.conll", "#\tO\n#nlproc\tO\nis\tO\n") == [["#", "#nlproc", "is"]]


def test_a_word_knows_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    sentences(path, "# one\nThe\tO\n# two\nend\tO\n\n\nYes\tO\n")
    assert [row.values[LINES] for row in read_conll(path).rows] == [[2, 4], [7]]
    assert [row.place for row in read_conll(path).rows] == [f"{path}, line 2", f"{path}, line 7"]


def test_conll_u_has_no_contracted_words_and_empty_nodes(tmp_path: Path) -> None:
    rows = [("1-2", "im", "_"), ("1", "in", "ADP"), ("2", "dem", "DET"), ("2.1", "x", "_"), ("3", "Haus", "NOUN")]
    text = "# text = im Haus\n" + "".join(f"{n}\t{word}\t_\t{tag}" + "\t_" * 6 + "\n" for n, word, tag in rows)
    assert sentences(tmp_path / "a.conllu", text, "2") == [["in", "dem", "Haus"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("The\tO\nend\n\nYes\tO\n", "line 2: 1 column where most lines have 2: .* with a tab between them"),
        ("The O\nbig end B-x\nof O\n", "line 2: 3 columns where most lines have 2: .* with spaces"),
        ("", "has no words: a CoNLL file has a word and its tag on each line"),
        ("\n \n\t\n", "has no words"),
        ("-DOCSTART- O\n\n", "has no words: every line is a comment, or marks a document"),
    ],
)
def test_what_is_no_conll_file_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(text)
    with pytest.raises(UserError, match=message):
        read_conll(tmp_path / "a.conll")
