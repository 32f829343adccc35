"""A small GPT: a decoder-only transformer with normalization before each part.

Radford, Wu, Child, Luan, Amodei, Sutskever: "Language Models are Unsupervised Multitask Learners", OpenAI 2019,
section 2.3; the head shares the tokens' embedding (Press, Wolf, EACL 2017) unless `tied` is False.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob

INIT_STD = 0.7
"""Standard deviation of initial weights, times the square root of the width: GPT-2's 0.02 is for a width of 768, and
keeps small models at the frequencies of bytes for long. Those of projections onto the residual stream are smaller."""


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_in, self.feed_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for `[batch, time, width]`."""
        heads = self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = heads.unbind(2)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(found.transpose(1, 2).flatten(2))
        output: Tensor = x + self.feed_out(nn.functional.gelu(self.feed_in(self.feed_norm(x))))
        return output


class GPT(nn.Module):
    """Tokens of integers `[batch, time]` to logits `float32[batch, time, vocabulary]`, for up to `context` tokens.

    Raises `InvalidJob` if `heads` does not divide `width`.
    """

    def __init__(
        self,
        vocabulary: int = 256,
        *,
        context: int = 64,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        tied: bool = True,
    ) -> None:
        super().__init__()
        if min(vocabulary, context, width, layers, heads) < 1 or width % heads:
            raise InvalidJob(
                f"no GPT has vocabulary {vocabulary}, context {context}, width {width}, layers {layers}, heads {heads}",
                hint="use numbers of at least 1, and a width that is a multiple of heads",
            )
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                depth = 2 * layers if name.endswith("_out.weight") else 1
                nn.init.normal_(parameter, std=INIT_STD / (width * depth) ** 0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        x = self.tokens(tokens.long()) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
