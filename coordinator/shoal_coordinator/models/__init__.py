"""Model versions of a job: history, labels, evaluation and retention."""
