"""LlamaIndex' and LangChain's own clients, in an environment of theirs, get what the predictor gives."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from tests.serve.http_api.serving import running

import openalbert

PACKAGES = (
    "llama-index-embeddings-text-embeddings-inference",
    "llama-index-postprocessor-tei-rerank",
    "langchain-openai",
)
TEXTS = ["the good school by the water", "a war", "great key and more water here"]
CLIENT = """
import json, sys
from langchain_openai import OpenAIEmbeddings
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

url, name, *texts = sys.argv[1:]
embedder = TextEmbeddingsInference(model_name=name, base_url=url)
reranker = TextEmbeddingInference(model_name=name, base_url=url, top_n=2)
nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in texts[1:]]
ranked = reranker.postprocess_nodes(nodes, query_str=texts[0])
chain = OpenAIEmbeddings(model=name, base_url=url + "/v1", api_key="none", check_embedding_ctx_length=False)
print(json.dumps({
    "embeddings": embedder.get_text_embedding_batch(texts),
    "ranked": [[found.node.text, found.score] for found in ranked],
    "chain": chain.embed_documents(texts),
}))
"""


@pytest.mark.slow
def test_the_clients_of_llama_index_and_langchain_get_embeddings_and_ranks(tiny: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *PACKAGES]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        pytest.skip(f"{', '.join(PACKAGES)} cannot be installed: {installed.stderr[-300:]}")
    with running(tiny) as server:
        [name] = server.models
        asked = [str(python), "-c", CLIENT, server.url, name, *TEXTS]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rows = openalbert.load(tiny).embed(TEXTS)
    np.testing.assert_allclose(found["embeddings"], rows, atol=1e-5)
    np.testing.assert_allclose(found["chain"], rows, atol=1e-5)
    cosines = rows[1:] @ rows[0]
    best = np.argsort(-cosines)
    assert [text for text, _ in found["ranked"]] == [TEXTS[1 + number] for number in best]
    np.testing.assert_allclose([score for _, score in found["ranked"]], cosines[best], atol=1e-5)
