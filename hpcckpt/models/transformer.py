"""A GPT-like transformer over image patches: four pre-norm blocks, 3.2 million parameters.

Everything that model parallelism cuts is in it (attention by heads, wide dense layers), and the same
images train it. No dropout, as in current language models, so a step draws no random numbers.
"""

from __future__ import annotations

from hpcckpt.models.base import (
    Dense,
    Gelu,
    Layer,
    LayerNorm,
    MeanOverTokens,
    Model,
    Patches,
    Positions,
    Residual,
    SelfAttention,
)

PATCH, WIDTH, HEADS, BLOCKS = 4, 256, 8, 4


class Transformer(Model):
    name = "transformer"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        attention = Residual((LayerNorm(), SelfAttention(HEADS)))
        dense = Residual((LayerNorm(), Dense(4 * WIDTH), Gelu(), Dense(WIDTH)))
        stem = (Patches(PATCH), Dense(WIDTH), Positions())
        return (*stem, *((attention, dense) * BLOCKS), LayerNorm(), MeanOverTokens(), Dense(cls.classes))
