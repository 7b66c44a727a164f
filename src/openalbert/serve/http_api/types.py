"""Bodies of requests and answers: text-embeddings-inference's and OpenAI's where they have one, else our own."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _encodable(text: str) -> str:
    """Refuse half of a surrogate pair, which JSON can spell but no text contains."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a surrogate pair at character {error.start}: no text contains it") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Pair = Annotated[list[Text], Field(min_length=1, max_length=2)]
Ids = list[Annotated[int, Field(ge=0, strict=True)]]
Top = Annotated[int, Field(ge=1, le=1000)]
TextsOrIds = Text | Ids | list[Text | Ids]
"""One text or several, each as characters or as ids of the model's vocabulary."""


class Body(BaseModel):
    """What all requests may have. Fields that are not known are ignored, as clients send many."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    model: Annotated[Text | None, Field(description="Its name; not given: the first that can do it.")] = None


class Effort(Body):
    """How much may be computed for an input of a classifier or a regressor."""

    max_depth: Annotated[int | None, Field(ge=1, description="The most layers that are computed.")] = None
    deadline_ms: Annotated[float | None, Field(ge=0, description="It leaves as it is after so long.")] = None


class Reading(Body):
    """How texts are read, in text-embeddings-inference's words. What would be read otherwise here is refused."""

    truncate: Annotated[bool | None, Field(description="false: an input that is too long is refused, not cut.")] = None
    truncation_direction: Annotated[Literal["right", "Right"], Field(description="A text is cut at its end.")] = "right"
    prompt_name: Annotated[None, Field(description="There are no prompts here.")] = None

    @property
    def cuts(self) -> bool:
        """Whether an input that is too long is cut."""
        return self.truncate is not False


class EmbedBody(Reading):
    """POST /embed."""

    inputs: TextsOrIds
    normalize: bool = True
    dimensions: int | None = None


class Choice(BaseModel):
    """A question with options."""

    question: Text = ""
    options: list[Text]
    passage: Text = ""


class PredictBody(Effort, Reading):
    """POST /predict: a text; several; a pair as two texts, for a model of pairs; or a batch of lists or of choices."""

    inputs: Text | list[Text] | list[Pair] | Choice | list[Choice]
    raw_scores: Annotated[bool, Field(description="Logits in place of probabilities.")] = False


class RerankBody(Reading):
    """POST /rerank."""

    query: Text
    texts: list[Text]
    raw_scores: Annotated[bool, Field(description="Changes nothing: scores are cosines, or values as predicted.")] = (
        False
    )
    return_text: bool = False


class SimilarityInputs(BaseModel):
    """A sentence, and those that it is compared with."""

    source_sentence: Text
    sentences: list[Text]


class SimilarityBody(Body):
    """POST /similarity."""

    inputs: SimilarityInputs
    parameters: Reading | None = None


class TokenizeBody(Body):
    """POST /tokenize."""

    inputs: Text | list[Text]
    add_special_tokens: bool = True
    prompt_name: None = None


class FillBody(Body):
    """POST /fill-mask."""

    inputs: Text | list[Text]
    top_k: Top = 5


class Question(BaseModel):
    """A question on a passage."""

    question: Text
    context: Text


class AnswerBody(Body, Question):
    """POST /answer."""


class Parameters(BaseModel):
    """Those that InferenceClient sends and that are known here; another one would change the answer, and is refused."""

    model_config = ConfigDict(extra="forbid")
    top_k: Annotated[Top | None, Field(description="Pieces for a mask, or labels of a text.")] = None
    normalize: bool | None = None
    aggregation_strategy: Annotated[
        Literal["simple", "first"] | None, Field(description="Entities are made of words, by their first pieces.")
    ] = None


class AnyBody(Effort, Reading):
    """POST /: whatever the model is for, as InferenceClient sends it."""

    inputs: Text | SimilarityInputs | Question | list[Text] | list[Pair] | Choice | list[Choice]
    parameters: Parameters | None = None
    normalize: bool | None = None


class OpenAiBody(Body):
    """POST /v1/embeddings."""

    input: TextsOrIds
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Scored(BaseModel):
    """A label and its score."""

    label: str
    score: float
    depth: Annotated[int | None, Field(description="Layers that were computed, where inputs leave early.")] = None


class Ranked(BaseModel):
    """A text's place in the order of relevance."""

    index: int
    score: float
    text: str | None = None


class Token(BaseModel):
    """A token of a text and the characters that it stands for."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Filled(BaseModel):
    """A piece for a mask, in the shape of transformers' fill-mask pipeline."""

    score: float
    token: int
    token_str: str
    sequence: str
    continues: Annotated[bool, Field(description="Whether the piece continues the word before the mask.")]


class Answered(BaseModel):
    """An answer, as characters of the passage."""

    answer: str
    score: float
    start: int | None
    end: int | None


class Entity(BaseModel):
    """A tagged span, in the shape of transformers' token-classification pipeline."""

    entity_group: str
    word: str
    start: int
    end: int
    score: float


Predicted = list[Scored] | list[Entity]
