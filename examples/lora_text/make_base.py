"""Make the folder `base`: a small BERT that knows opinions, and its tokenizer. Downloads nothing."""

from pathlib import Path

import reviews
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, Trainer, TrainingArguments

BASE = Path(__file__).with_name("base")
WORDS = ["[PAD]", "[UNK]", *reviews.WORDS]


def make_base(folder: Path = BASE, examples: int = 2000) -> None:
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, num_labels=4, **sizes)
    opinions = [
        {**tokenizer(text), "labels": 2 * first + last} for text, first, last in reviews.reviews(examples, seed=1)
    ]
    options = {"per_device_train_batch_size": 32, "num_train_epochs": 3, "learning_rate": 1e-3, "save_strategy": "no"}
    args = TrainingArguments(str(folder), use_cpu=True, **options)
    trainer = Trainer(BertForSequenceClassification(config), args, train_dataset=opinions, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(str(folder))


if __name__ == "__main__":
    make_base()
