"""Every route gives what the predictor gives, and other people's clients read it."""

import base64
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient
from tests.serve.http_api.serving import Running, running

import openalbert

TEXTS = ["the good school by the water", "a war", "great key and more water here"]


@pytest.fixture(scope="module")
def pretrained(tiny: Path) -> Iterator[Running]:
    with running(tiny) as server:
        yield server


@pytest.fixture(scope="module")
def several(quick_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model of every kind; a run's folder names its model."""
    folder = tmp_path_factory.mktemp("served")
    for kind, run in quick_runs.items():
        (folder / kind).symlink_to(run)
    with running(*(folder / kind for kind in quick_runs)) as server:
        yield server


def direct(server: Running, name: str = "") -> Any:
    """The same model without the server."""
    return openalbert.load(server.folders[name or next(iter(server.models))])


def test_embeddings_are_the_predictors_normalized_or_not(pretrained: Running) -> None:
    model = direct(pretrained)
    np.testing.assert_allclose(pretrained.ask("/embed", inputs=TEXTS), model.embed(TEXTS), atol=1e-5)
    [raw] = pretrained.ask("/embed", inputs=TEXTS[0], normalize=False)
    np.testing.assert_allclose(raw, model.embed(TEXTS[0], normalize=False), atol=1e-4)
    refused = pretrained.post("/embed", inputs="water " * 600, truncate=False)
    assert refused.status_code == 422
    assert "more than 64 tokens" in refused.json()["error"]
    assert len(pretrained.ask("/embed", inputs="water " * 600)) == 1


def test_similarity_rerank_and_tokens_are_the_predictors(pretrained: Running) -> None:
    model = direct(pretrained)
    rows = model.embed(TEXTS)
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    cosines = pretrained.ask("/similarity", inputs=inputs)
    np.testing.assert_allclose(cosines, rows[1:] @ rows[0], atol=1e-5)
    ranked = pretrained.ask("/rerank", query=TEXTS[0], texts=TEXTS[1:], return_text=True)
    assert [one["score"] for one in ranked] == sorted(cosines, reverse=True)
    assert [one["text"] for one in ranked] == [TEXTS[1 + one["index"]] for one in ranked]
    assert "text" not in pretrained.ask("/rerank", query="a", texts=["b"])[0]
    [tokens] = pretrained.ask("/tokenize", inputs=TEXTS[0])
    assert [one["id"] for one in tokens[1:-1]] == model.tokenizer.encode(TEXTS[0])
    assert [one["special"] for one in tokens] == [True, *[False] * (len(tokens) - 2), True]
    assert "".join(TEXTS[0][one["start"] : one["stop"]] for one in tokens[1:-1]).replace(" ", "") == TEXTS[0].replace(
        " ", ""
    )


def test_the_options_of_text_embeddings_inference_are_known_or_refused(pretrained: Running) -> None:
    model = direct(pretrained)
    reading = {"truncate": None, "truncation_direction": "Right", "prompt_name": None}
    np.testing.assert_allclose(pretrained.ask("/embed", inputs=TEXTS, **reading), model.embed(TEXTS), atol=1e-5)
    ids = [model.tokenizer.encode(text) for text in TEXTS]
    np.testing.assert_allclose(pretrained.ask("/embed", inputs=[ids[0], TEXTS[1]]), model.embed(TEXTS[:2]), atol=1e-5)
    np.testing.assert_allclose(pretrained.ask("/embed", inputs=ids[0]), model.embed(TEXTS[:1]), atol=1e-5)
    for wrong in ({"truncation_direction": "Left"}, {"prompt_name": "query"}, {"dimensions": 7}):
        [name] = wrong
        refused = pretrained.post("/embed", inputs="a", **wrong)
        assert (refused.status_code, refused.json()["error"].startswith(name)) == (422, True)
    sentences = {"source_sentence": "a", "sentences": ["water " * 600]}
    assert pretrained.ask("/similarity", inputs=sentences, parameters={"truncate": True})
    long = pretrained.post("/similarity", inputs=sentences, parameters={"truncate": False})
    assert (long.status_code, "more than 64 tokens" in long.text) == (422, True)
    ranked = pretrained.ask("/rerank", query="a", texts=TEXTS, raw_scores=True, truncate=None)
    assert ranked == pretrained.ask("/rerank", query="a", texts=TEXTS)


def test_raw_scores_are_the_logits_of_which_the_probabilities_are_made(several: Running) -> None:
    for kind in ("classification", "multi_label"):
        raw = several.ask("/predict", model=kind, inputs=TEXTS, raw_scores=True)
        usual = several.ask("/predict", model=kind, inputs=TEXTS)
        for logits, scored in zip(raw, usual, strict=True):
            assert [one["label"] for one in logits] == [one["label"] for one in scored]
            powers = np.exp([one["score"] for one in logits])
            expected = powers / powers.sum() if kind == "classification" else powers / (1 + powers)
            assert [one["score"] for one in scored] == pytest.approx(list(expected), abs=1e-5)
    value = several.ask("/predict", model="regression", inputs=TEXTS[0])
    assert several.ask("/predict", model="regression", inputs=TEXTS[0], raw_scores=True) == value
    tags = several.post("/predict", model="tagging", inputs=TEXTS[0], raw_scores=True)
    assert (tags.status_code, "raw_scores are for classes" in tags.text) == (422, True)


def test_masks_are_filled_as_the_predictor_fills_them(pretrained: Running) -> None:
    model, text = direct(pretrained), "the [MASK] of the [MASK]."
    first, second = pretrained.ask("/fill-mask", inputs=text, top_k=3)
    for masks, expected in zip((first, second), model.fill(text, 3).masks, strict=True):
        assert [one["token"] for one in masks] == [guess.id for guess in expected]
        assert [one["score"] for one in masks] == pytest.approx([guess.probability for guess in expected], abs=1e-5)
    assert first[0]["sequence"].endswith(" of the [MASK].")
    for found, guess in zip(first, model.fill(text, 3).masks[0], strict=True):
        word = guess.piece.removeprefix("\u2581")
        assert (found["token_str"], found["continues"]) == (word, word == guess.piece)
        assert found["sequence"] == f"the{'' if found['continues'] else ' '}{word} of the [MASK]."
    [[only]] = pretrained.ask("/fill-mask", inputs=["a [MASK]"], top_k=1)
    assert only["token"] == model.fill("a [MASK]", 1).masks[0][0].id
    missing = pretrained.post("/fill-mask", inputs="no mask")
    assert (missing.status_code, "without [MASK]" in missing.json()["error"]) == (422, True)
    assert pretrained.post("/fill-mask", inputs="a [MASK]", top_k=0).status_code == 422


@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_labels_come_with_the_predictors_probabilities_the_best_first(kind: str, several: Running) -> None:
    model = direct(several, kind)
    found = several.ask("/predict", model=kind, inputs=TEXTS)
    for rows, expected in zip(found, model.predict(TEXTS), strict=True):
        assert {one["label"]: pytest.approx(one["score"], abs=1e-5) for one in rows} == dict(expected.probabilities)
        assert [one["score"] for one in rows] == sorted((one["score"] for one in rows), reverse=True)
    alone = several.ask("/predict", model=kind, inputs=TEXTS[0])
    lists = several.ask("/predict", model=kind, inputs=[[TEXTS[0]], [TEXTS[1]]])
    for rows, expected in zip((alone, *lists), (found[0], *found[:2]), strict=True):
        assert [one["label"] for one in rows] == [one["label"] for one in expected]
        assert [one["score"] for one in rows] == pytest.approx([one["score"] for one in expected], abs=1e-5)


def test_values_entities_answers_and_choices_are_the_predictors(several: Running) -> None:
    [value] = several.ask("/predict", model="regression", inputs=TEXTS[0])
    assert value["score"] == pytest.approx(direct(several, "regression").predict(TEXTS[0]).value, abs=1e-4)
    tags = several.ask("/predict", model="tagging", inputs=TEXTS)
    for given, rows, expected in zip(TEXTS, tags, direct(several, "tagging").predict(TEXTS), strict=True):
        assert [(one["entity_group"], one["start"]) for one in rows] == [
            (one.label, one.start) for one in expected.entities
        ]
        assert all(one["word"] == given[one["start"] : one["end"]] for one in rows)
    answer = several.ask("/answer", model="question_answering", question="where is the key", context=TEXTS[2])
    expected = direct(several, "question_answering").answer("where is the key", TEXTS[2])
    assert (answer["answer"], answer["start"], answer["end"]) == (expected.answer, expected.start, expected.end)
    assert answer["score"] == pytest.approx(expected.probability, abs=1e-5)
    choice = {"question": "what is good", "options": ["the war", "the water", "a key"], "passage": TEXTS[0]}
    scored = several.ask("/predict", model="multiple_choice", inputs=choice)
    assert scored[0]["label"] == direct(several, "multiple_choice").predict(choice).option
    assert sum(one["score"] for one in scored) == pytest.approx(1)
    batch = several.ask("/predict", model="multiple_choice", inputs=[choice, choice])
    assert [one["label"] for one in batch[1]] == [one["label"] for one in scored]


def test_the_hugging_face_client_reads_what_each_model_answers(
    pretrained: Running, several: Running, quick_runs: dict[str, Path]
) -> None:
    client = InferenceClient(model=pretrained.url)
    filled = client.fill_mask("the [MASK]", top_k=3)
    assert [one.token for one in filled] == [guess.id for guess in direct(pretrained).fill("the [MASK]", 3).masks[0]]
    np.testing.assert_allclose(client.feature_extraction(TEXTS[0])[0], direct(pretrained).embed(TEXTS[0]), atol=1e-5)
    cosines = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    assert len(cosines) == 2
    with running(quick_runs["classification"]) as server:
        found = InferenceClient(model=server.url).text_classification(TEXTS[0])
        expected = direct(server).predict(TEXTS[0])
        assert (found[0].label, found[0].score) == (expected.label, pytest.approx(expected.probability, abs=1e-5))
    with running(quick_runs["question_answering"]) as server:
        answer = InferenceClient(model=server.url).question_answering(question="where is the key", context=TEXTS[2])
        assert answer.answer == direct(server).answer("where is the key", TEXTS[2]).answer
    with running(quick_runs["tagging"]) as server:
        entities = InferenceClient(model=server.url).token_classification(TEXTS[0])
        assert [one.word for one in entities] == [one.text for one in direct(server).predict(TEXTS[0]).entities]


def test_the_openai_client_gets_embeddings_as_floats_and_in_base64(pretrained: Running) -> None:
    client, model = openai.OpenAI(base_url=f"{pretrained.url}/v1", api_key="none"), direct(pretrained)
    assert [one.id for one in client.models.list()] == list(pretrained.models)
    assert client.models.retrieve(next(iter(pretrained.models))).object == "model"
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.models.retrieve("other")
    [name] = pretrained.models
    by_default = client.embeddings.create(model=name, input=TEXTS)  # the package asks for base64
    floats = client.embeddings.create(model=name, input=TEXTS, encoding_format="float")
    for found in (by_default, floats):
        np.testing.assert_allclose([one.embedding for one in found.data], model.embed(TEXTS), atol=1e-5)
    assert floats.usage.prompt_tokens == sum(len(model.tokenizer.encode(text)) + 2 for text in TEXTS)
    ids = client.embeddings.create(model=name, input=[model.tokenizer.encode(TEXTS[0])])
    np.testing.assert_allclose(ids.data[0].embedding, model.embed(TEXTS[0]), atol=1e-5)
    coded = pretrained.ask("/v1/embeddings", model=name, input=TEXTS[0], encoding_format="base64")["data"][0]
    decoded = np.frombuffer(base64.b64decode(coded["embedding"]), "<f4")
    np.testing.assert_allclose(decoded, model.embed(TEXTS[0]), atol=1e-5)
    with pytest.raises(openai.NotFoundError, match="there is no model 'text-embedding-3'"):
        client.embeddings.create(model="text-embedding-3", input="a")
    with pytest.raises(openai.UnprocessableEntityError, match="dimensions is 7"):
        client.embeddings.create(model=name, input="a", dimensions=7)


def test_a_request_chooses_its_model_and_else_gets_the_first_that_can_do_it(several: Running) -> None:
    info = several.client.get("/info").json()
    assert [one["name"] for one in info["models"]] == list(several.models)
    assert {one["name"]: one["kind"] for one in info["models"]}["tagging"] == "tagging"
    assert info["models"][0]["labels"] == list(direct(several, "classification").labels)
    assert several.ask("/predict", inputs=TEXTS[0]) == several.ask("/predict", model="classification", inputs=TEXTS[0])
    assert several.ask("/answer", question="where", context="the key is here")["answer"]
    cannot = several.post("/answer", model="tagging", question="where", context="here")
    assert cannot.status_code == 422
    assert "tagging cannot do answer (what there is: classification: predict, embed;" in cannot.json()["error"]
    unknown = several.post("/predict", model="../../etc", inputs="a")
    assert (unknown.status_code, "there is no model '../../etc'" in unknown.text) == (404, True)


def test_a_path_names_the_model_for_clients_that_send_none(several: Running) -> None:
    text = TEXTS[0]
    named = InferenceClient(model=f"{several.url}/models/multi_label").text_classification(text)
    assert named[0].label == several.ask("/predict", model="multi_label", inputs=text)[0]["label"]
    asked = InferenceClient(model=f"{several.url}/models/tagging").token_classification(text)
    assert [one.word for one in asked] == [one.text for one in direct(several, "tagging").predict(text).entities]
    assert several.ask("/models/regression/predict", inputs=text)[0]["label"] == "value"
    assert several.ask("/models/regression/predict", inputs=text, model="tagging") == several.ask(
        "/predict", inputs=text, model="tagging"
    )
    unknown = several.post("/models/other/predict", inputs=text)
    assert (unknown.status_code, "there is no model 'other'" in unknown.text) == (404, True)
    assert several.client.get("/models/tagging/info").status_code == 404
    values = several.client.get("/metrics").text
    assert 'route="/predict",status="404"' in values
    assert "/models/" not in values


def test_parameters_that_would_change_the_answer_are_refused(pretrained: Running, several: Running) -> None:
    client = InferenceClient(model=pretrained.url)
    with pytest.raises(Exception, match=r"parameters\.targets is not known here"):
        client.fill_mask("the [MASK]", targets=["water"])
    first = InferenceClient(model=f"{several.url}/models/classification").text_classification(TEXTS[0], top_k=1)
    assert len(first) == 1


def test_info_has_what_clients_of_text_embeddings_inference_read(pretrained: Running, several: Running) -> None:
    info = pretrained.client.get("/info").json()
    assert info["model_id"] == next(iter(pretrained.models))
    assert info["model_dtype"] == "float32"
    assert info["model_type"] == {"embedding": {"pooling": "weighted"}}
    assert (info["max_input_length"], info["max_client_batch_size"], info["max_concurrent_requests"]) == (64, 32, 512)
    assert {"max_batch_tokens", "auto_truncate", "tokenization_workers", "version"} <= set(info)
    labels = list(direct(several, "classification").labels)
    classifier = several.client.get("/info").json()["model_type"]["classifier"]
    assert list(classifier["id2label"].values()) == list(classifier["label2id"]) == labels


def test_requests_at_once_get_what_each_gets_alone(several: Running) -> None:
    texts = [" ".join([word] * count) for count in range(1, 9) for word in ("good", "war", "water", "school")]
    expected = direct(several, "classification").predict(texts)
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda text: several.ask("/predict", inputs=text), texts))
    assert [rows[0]["label"] for rows in found] == [one.label for one in expected]
    together = [rows[0]["score"] for rows in found]
    np.testing.assert_allclose(together, [one.probability for one in expected], atol=1e-5)


def test_a_depth_or_a_deadline_is_kept_and_shown(several: Running) -> None:
    capped = several.ask("/predict", model="classification", inputs=TEXTS[0], max_depth=1)
    expected = direct(several, "classification").predict(TEXTS[0], depth=1)
    assert {one["depth"] for one in capped} == {1}
    assert capped[0]["score"] == pytest.approx(expected.probability, abs=1e-5)
    assert several.ask("/predict", inputs=TEXTS[0], deadline_ms=0)[0]["depth"] == 1
    assert "depth" not in several.ask("/predict", inputs=TEXTS[0])[0]
    deep = several.post("/predict", inputs=TEXTS[0], max_depth=3)
    assert (deep.status_code, deep.json()["error"]) == (422, "max_depth is 3: classification has 2 layers")
    tagged = several.post("/predict", model="tagging", inputs=TEXTS[0], max_depth=1)
    assert (tagged.status_code, "classifiers and regressors" in tagged.text) == (422, True)


def test_metrics_count_requests_waiting_batches_and_depths(several: Running) -> None:
    several.ask("/predict", inputs=TEXTS[0])
    several.client.get("/nowhere-" + "x" * 20)
    lines = several.client.get("/metrics").text.splitlines()
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
    assert values['openalbert_requests_total{route="/predict",status="200"}'] >= 1
    assert values['openalbert_requests_total{route="none",status="404"}'] >= 1
    assert not any("nowhere" in name for name in values)
    assert values["openalbert_requests_in_flight"] == 1
    assert values['openalbert_requests_waiting{model="classification"}'] == 0
    for name in ("queue_seconds", "compute_seconds", "batch_tokens", "exit_depth"):
        assert values[f"openalbert_{name}_count"] >= 1, name
        assert math.isfinite(values[f"openalbert_{name}_sum"])
    assert values['openalbert_request_seconds_count{route="/predict"}'] >= 1


def test_health_and_the_description_of_the_routes(pretrained: Running) -> None:
    assert pretrained.client.get("/health").json() == {"status": "ok"}
    assert pretrained.client.head("/health").status_code == 200
    paths = pretrained.client.get("/openapi.json").json()["paths"]
    for route in ("/", "/embed", "/predict", "/rerank", "/similarity", "/tokenize", "/fill-mask", "/answer"):
        assert paths[route]["post"]["requestBody"], route
    assert paths["/v1/embeddings"]["post"]["description"]
    assert {"/health", "/info", "/metrics", "/v1/models"} <= set(paths)


def test_an_exported_model_and_one_without_exits_are_served_alike(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    from openalbert.interop import huggingface
    from openalbert.interop.onnx import write_export

    run = quick_runs["classification"]
    write_export(huggingface.load(run / "model"), tmp_path / "small", source=run / "model", int8=False)
    with running(run, tmp_path / "small") as server:
        first, second = server.models
        for route, given in (("/predict", {"inputs": TEXTS}), ("/embed", {"inputs": TEXTS})):
            ours, theirs = (server.ask(route, model=name, **given) for name in (first, second))
            assert np.allclose(*(_numbers(one) for one in (ours, theirs)), atol=1e-4)


def _numbers(rows: Any) -> list[float]:
    return [
        number for row in rows for number in (sorted(one["score"] for one in row) if isinstance(row[0], dict) else row)
    ]
