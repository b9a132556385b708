"""Training rows: many questions about a picture at once must cost and teach what each alone does."""

from __future__ import annotations

import random

import pytest
from demo_vlm.dataset.questions import Question, questions
from demo_vlm.dataset.scenes import sample_scene
from support.builders.vision import text_model

torch = pytest.importorskip("torch")

_ONE = Question("colour", "What colour ?", "Red")
_TWO = Question("what", "What What ? system", "user user")


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory):
    from demo_vlm.training.language import FrozenLanguageModel

    return FrozenLanguageModel(text_model(tmp_path_factory.mktemp("text")))


def loss_of(language, tokens: torch.Tensor, asked: list[list[Question]], joined: bool = False) -> float:
    rows = language.dialogues.build(asked, joined)
    return float(language.loss(tokens, rows)[0])


@pytest.mark.model
def test_questions_in_one_row_do_not_see_each_other(language) -> None:
    tokens = torch.randn(2, 5, 576)
    together = loss_of(language, tokens, [[_ONE, _TWO], [_TWO]])
    # Answers of 1 and 2 tokens, and the end of the turn after each.
    alone = [loss_of(language, tokens[:1], [[_ONE]]) * 2, loss_of(language, tokens[:1], [[_TWO]]) * 3]
    alone.append(loss_of(language, tokens[1:], [[_TWO]]) * 3)
    assert together == pytest.approx(sum(alone) / 8, rel=1e-5)


@pytest.mark.model
@pytest.mark.parametrize("opening", [0, 1])
def test_the_loss_is_that_of_the_whole_conversation_in_one_forward(language, opening: int) -> None:
    from demo_vlm.dataset.dialogues import SYSTEM_PROMPTS

    tokens = torch.randn(1, 5, 576)
    dialogues = language.dialogues
    rows = dialogues.build([[_TWO, _ONE]], joined=True)
    before = torch.tensor(dialogues.opening(SYSTEM_PROMPTS[opening]))
    inputs = torch.cat([language.embeddings[before], tokens[0], language.embeddings[rows.input_ids[0]]])
    logits = language.model(inputs_embeds=inputs[None]).logits[0, len(before) + 5 :]
    wanted = torch.nn.functional.cross_entropy(logits, rows.targets[0])
    assert float(language.loss(tokens, rows, opening)[0]) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.model
def test_the_gradient_reaches_the_picture_and_nothing_else(language) -> None:
    tokens = torch.randn(1, 5, 576, requires_grad=True)
    language.loss(tokens, language.dialogues.build([[_ONE]], joined=False))[0].backward()
    assert tokens.grad is not None
    assert (tokens.grad.abs().sum(-1) > 0).all()
    assert all(parameter.grad is None for parameter in language.model.parameters())


def test_each_topic_has_its_share() -> None:
    from demo_vlm.dataset.dialogues import choose

    for seed in range(50):
        rng = random.Random(seed)
        every = questions(sample_scene(rng), rng)
        chosen = choose(every, 4, rng)
        assert len(chosen) == len(set(map(id, chosen))) <= 4
        topics = {question.topic for question in chosen}
        assert len(topics) >= min(len(chosen), len({question.topic for question in every}))
