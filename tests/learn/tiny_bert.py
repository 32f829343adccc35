"""A tiny BERT with adapters, and examples whose label a few words decide; nothing is downloaded."""

from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from shoal.learn.hf import HFLearner

WORDS, LENGTH = 60, 8


def base(seed: int = 0, **more: Any) -> BertForSequenceClassification:
    """The same base on every node: the model function's own seed is for what is trained."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=WORDS, max_position_embeddings=16, **{**sizes, **none, **more})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BertForSequenceClassification(config)


def adapted(rank: int = 4, seed: int = 0, **more: Any) -> PeftModel:
    lora = LoraConfig(r=rank, target_modules=["query", "value"], task_type="SEQ_CLS")
    return get_peft_model(base(seed, **more), lora)


def examples(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences of word numbers: are more words of the first half than of the second in them?"""
    ids = torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    labels = ((ids < WORDS // 2).sum(1) > LENGTH // 2).long()
    return [{"input_ids": one, "labels": label} for one, label in zip(ids, labels, strict=True)]


def accuracy(predictions: Any) -> dict[str, float]:
    return {"accuracy": float((predictions.predictions.argmax(1) == predictions.label_ids).mean())}


def arguments(**more: Any) -> TrainingArguments:
    """Plain SGD on the CPU."""
    plain = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "use_cpu": True}
    return TrainingArguments(**{**plain, **more})


def learner(model: Any = adapted, args: dict[str, Any] | None = None, count: int = 40, **more: Any) -> HFLearner:
    given = {"compute_metrics": accuracy, **more}
    train, test = given.pop("train", examples(count)), given.pop("test", examples(20, 1))
    return HFLearner(model, arguments(**(args or {})), train, test, **given)
