"""What a pretrained encoder is for: tasks, fine-tuning, evaluation."""
