import torch

from openalbert.train.loop import score


def test_a_score_counts_valid_predictions_only() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 11, generator=generator, requires_grad=True)
    labels = torch.randint(0, 11, (3, 4), generator=generator)
    valid = torch.tensor([[True, True, False, False], [True] * 4, [False] * 4])
    scored = score(logits, labels, valid)
    by_hand = [
        -logits[i, j].double().log_softmax(-1)[labels[i, j]] for i in range(3) for j in range(4) if bool(valid[i, j])
    ]
    right = sum(int(logits[i, j].argmax() == labels[i, j]) for i in range(3) for j in range(4) if bool(valid[i, j]))
    torch.testing.assert_close(scored.loss_sum.double(), torch.stack(by_hand).sum(), rtol=1e-6, atol=1e-6)
    assert (int(scored.predictions), int(scored.correct)) == (6, right)
    scored.loss_sum.backward()
    assert logits.grad is not None
    assert bool((logits.grad[~valid] == 0).all())
    assert bool((logits.grad[valid] != 0).any(-1).all())


def test_scores_of_micro_batches_add_up_to_the_score_of_the_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, swapped = torch.randn(8, 2, generator=generator), torch.randint(0, 2, (8,), generator=generator)
    whole = score(logits, swapped)
    parts = [score(logits[i : i + 2], swapped[i : i + 2]) for i in range(0, 8, 2)]
    torch.testing.assert_close(sum(part.loss_sum for part in parts), whole.loss_sum)
    assert sum(int(part.correct) for part in parts) == int(whole.correct)
    torch.testing.assert_close(whole.mean, torch.nn.functional.cross_entropy(logits, swapped))
    assert int(whole.correct) == int((logits.argmax(1) == swapped).sum())


def test_no_prediction_at_all_gives_a_mean_of_zero() -> None:
    scored = score(torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bool))
    assert (float(scored.mean), int(scored.correct), int(scored.predictions)) == (0.0, 0, 0)


def test_a_single_prediction_is_its_own_mean() -> None:
    scored = score(torch.tensor([[[2.0, 0.0]]]), torch.tensor([[0]]), torch.tensor([[True]]))
    torch.testing.assert_close(scored.mean, torch.tensor(2.0).neg().exp().log1p())
    assert int(scored.correct) == 1
