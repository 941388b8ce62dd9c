"""A causal transformer whose feed-forward layers are mixtures of experts, over whole windows or token by token.

    x ← x + attention(norm(x))        x ← x + shared(norm(x)) + p · expert(norm(x))

The expert is the one of N that the router likes best, with probability p. Token by token, the keys and values of what
came before lie in a cache that belongs to the caller: in a search every node of the tree has its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.scalezero import route
from rl_training.networks.adapters import StagedWeight


class BlockWeights(NamedTuple):
    """The weights of a block at one stage."""

    attend: Tensor  # [3 D, D], queries, keys and values
    project: Tensor  # [D, D]
    gate: Tensor  # [N, H, D]
    widen: Tensor  # [N, H, D]
    narrow: Tensor  # [N, D, H]
    shared_widen: Tensor  # [H, D]
    shared_narrow: Tensor  # [D, H]


class Block(nn.Module):
    """Attention and a mixture of experts, with the residual stream around both."""

    def __init__(self, width: int, heads: int, experts: int, hidden: int, layers: int, **staged: Any) -> None:
        super().__init__()
        self.heads, self.experts = heads, experts
        self.attention_norm, self.experts_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        # What is added to the stream starts small, the smaller the more layers add to it (as GPT-2's).
        small = 0.02 / (2 * layers) ** 0.5
        self.attend = StagedWeight(3 * width, width, **staged)
        self.project = StagedWeight(width, width, deviation=small, **staged)
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = StagedWeight(experts, hidden, width, **staged)
        self.widen = StagedWeight(experts, hidden, width, **staged)
        self.narrow = StagedWeight(experts, width, hidden, deviation=small, **staged)
        self.shared_widen = StagedWeight(hidden, width, **staged)
        self.shared_narrow = StagedWeight(width, hidden, deviation=small, **staged)
        self.attend_bias = nn.Parameter(torch.zeros(3 * width))
        self.project_bias = nn.Parameter(torch.zeros(width))
        self.shared_bias = nn.Parameter(torch.zeros(hidden))
        self.narrow_bias = nn.Parameter(torch.zeros(width))

    def weights(self, stage: int) -> BlockWeights:
        return BlockWeights(*(getattr(self, name)(stage) for name in BlockWeights._fields))

    def forward(
        self, tokens: Tensor, weights: BlockWeights, cache: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Windows of tokens [N, T, D] → the stream after the block, and the experts [N, T] they went to.

        A cache takes in their keys and values, for tokens that follow one by one.
        """
        query, key, value = self._heads(self.attention_norm(tokens), weights)
        if cache is not None:
            cache[:, :, :, : tokens.shape[1]] = torch.stack([key, value], 1)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended = attended.transpose(1, 2).flatten(2)
        tokens = tokens + F.linear(attended, weights.project, self.project_bias)
        normed = self.experts_norm(tokens).flatten(0, 1)
        chosen, probability = route(self.router(normed))
        mixed = self._shared(normed, weights) + probability[:, None] * self._routed(normed, chosen, weights)
        return tokens + mixed.view_as(tokens), chosen.view(tokens.shape[:2])

    def step(
        self, token: Tensor, weights: BlockWeights, cache: Tensor, place: Tensor, seen: Tensor
    ) -> Tensor:
        """One token [N, D] after those in the cache [N, 2, heads, T, D / heads], where its own keys and values go.

        place: [N], where in the cache
        seen:  [N, 1, T], 0 for places up to that one and -∞ beyond
        """
        attend = F.linear(self.attention_norm(token), weights.attend, self.attend_bias)
        query, new = attend.unflatten(-1, (3, self.heads, -1)).split([1, 2], 1)
        cache[torch.arange(len(token), device=token.device), :, :, place] = new
        # Sums of products: at this size they take half the time of products of many small matrices.
        scores = (query.movedim(1, 2) * cache[:, 0]).sum(-1) * query.shape[-1] ** -0.5 + seen
        attended = (scores.softmax(-1)[..., None] * cache[:, 1]).sum(2).flatten(1)
        token = token + F.linear(attended, weights.project, self.project_bias)
        normed = self.experts_norm(token)
        chosen, probability = route(self.router(normed))
        routed = self._routed_few(normed, chosen, weights)
        return token + self._shared(normed, weights) + probability[:, None] * routed

    def _heads(self, normed: Tensor, weights: BlockWeights) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [N, heads, T, D / heads] of tokens [N, T, D]."""
        attend = F.linear(normed, weights.attend, self.attend_bias)
        query, key, value = attend.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return query, key, value

    def _shared(self, normed: Tensor, weights: BlockWeights) -> Tensor:
        hidden = F.gelu(F.linear(normed, weights.shared_widen, self.shared_bias))
        return F.linear(hidden, weights.shared_narrow, self.narrow_bias)

    def _routed(self, normed: Tensor, chosen: Tensor, weights: BlockWeights) -> Tensor:
        """W₂ (silu(W₁ x) ∘ W₃ x) of each token's expert, [N, D]: expert by expert, on its own tokens alone."""
        order = chosen.argsort(stable=True)
        counts = chosen.bincount(minlength=self.experts).tolist()
        parts = []
        for expert, mine in enumerate(normed[order].split(counts)):
            hidden = F.silu(mine @ weights.gate[expert].t()) * (mine @ weights.widen[expert].t())
            parts.append(hidden @ weights.narrow[expert].t())
        return torch.cat(parts)[order.argsort()]

    def _routed_few(self, normed: Tensor, chosen: Tensor, weights: BlockWeights) -> Tensor:
        """The same for few tokens: all experts in three products, those not chosen set to 0, cost less than a loop."""
        wide = F.linear(normed, weights.gate.flatten(0, 1)), F.linear(normed, weights.widen.flatten(0, 1))
        hidden = (F.silu(wide[0]) * wide[1]).view(len(normed), self.experts, -1)
        hidden = hidden * F.one_hot(chosen, self.experts)[..., None]
        return hidden.flatten(1) @ weights.narrow.transpose(1, 2).flatten(0, 1)

    def frozen_after_stage_zero(self) -> list[nn.Parameter]:
        """All that is no staged weight."""
        staged = {
            id(p) for part in self.children() if isinstance(part, StagedWeight) for p in part.parameters()
        }
        return [parameter for parameter in self.parameters() if id(parameter) not in staged]


class Transformer(nn.Module):
    """Blocks over at most `length` tokens, each with a position."""

    def __init__(self, width: int, layers: int, length: int, **block: Any) -> None:
        super().__init__()
        self.length = length
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, layers=layers, **block) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def weights(self, stage: int) -> list[BlockWeights]:
        """The weights of all blocks at a stage: made once for many tokens."""
        return [block.weights(stage) for block in self.blocks]  # type: ignore[operator]

    def forward(
        self, tokens: Tensor, weights: list[BlockWeights], cache: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Windows [N, T, D] → outputs [N, T, D], each of its token and those before it, and experts [layers, N, T]."""
        stream, experts = tokens + self.position[: tokens.shape[1]], []
        for layer, (block, its_weights) in enumerate(zip(self.blocks, weights, strict=True)):
            stream, chosen = block(stream, its_weights, None if cache is None else cache[:, layer])
            experts.append(chosen)
        return self.norm(stream), torch.stack(experts)

    def empty_cache(self, count: int) -> Tensor:
        """[N, layers, 2, heads, T, D / heads] for no tokens yet."""
        heads, width = int(self.blocks[0].heads), self.position.shape[1]  # type: ignore[arg-type]
        shape = (count, len(self.blocks), 2, heads, self.length, width // heads)
        return self.position.new_zeros(shape)

    def step(self, token: Tensor, weights: list[BlockWeights], cache: Tensor, place: Tensor) -> Tensor:
        """Tokens [N, D] at places [N] of their windows → outputs [N, D]; the cache takes in their keys and values."""
        seen = torch.arange(self.length, device=place.device) > place[:, None]
        mask = torch.zeros(seen.shape, device=place.device).masked_fill_(seen, -torch.inf)[:, None]
        stream = token + self.position[place]
        for layer, (block, its_weights) in enumerate(zip(self.blocks, weights, strict=True)):
            stream = block.step(stream, its_weights, cache[:, layer], place, mask)  # type: ignore[operator]
        return self.norm(stream)

    def of_stage(self, stage: int) -> list[nn.Parameter]:
        """What learns in a stage: all of it in the first, later the stage's adapters and scales."""
        staged = [module for module in self.modules() if isinstance(module, StagedWeight)]
        learning = [parameter for module in staged for parameter in module.of_stage(stage)]
        if stage == 0:
            learning += [self.position, *self.norm.parameters()]
            for block in self.blocks:
                learning += block.frozen_after_stage_zero()  # type: ignore[operator]
        return learning
