"""A text classifier with adapters: each node has reviews of its own, and the same `base`, which never travels."""

from pathlib import Path

import reviews
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from shoal.learn.hf import HFLearner

BASE = Path(__file__).with_name("base")


def accuracy(found):
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def adapted(base: Path):
    whole = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2, ignore_mismatched_sizes=True)
    return get_peft_model(whole, LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS"))


def learner(part: int = 0, base: Path = BASE) -> HFLearner:
    tokenizer = AutoTokenizer.from_pretrained(base)
    made = [{**tokenizer(text), "labels": last} for text, _, last in reviews.reviews(500, seed=10 + part)]
    args = TrainingArguments(lr_scheduler_type="constant")  # the job sets the rate, the batch size and the epochs
    return HFLearner(
        lambda: adapted(base), args, made[:400], made[400:], processing_class=tokenizer, compute_metrics=accuracy
    )
