"""What ALBERT learns from: masked n-grams and the order of sentences, made and scored (paper, sections 3.1 and 4.1)."""
