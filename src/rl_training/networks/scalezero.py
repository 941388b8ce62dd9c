"""The model of ScaleZero: an encoder per kind of observation, one transformer for all tasks, heads for each.

    zₜ = h(oₜ)        zₜ → policy, value        (zₜ, aₜ) → reward, zₜ₊₁

Latents and actions are the tokens of one sequence, so that a latent says what is seen and attention what was. A node
of a search holds the keys and values of the tokens on its way, and what is added there is two tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.muzero import decode
from rl_training.algorithms.scalezero import interleave, normalised
from rl_training.networks.adapters import StagedLinear, StagedWeight
from rl_training.networks.encoders import OURS, Own, brightest, is_image, make_encoder, orthogonal
from rl_training.networks.transformer import BlockWeights, Transformer
from rl_training.trees import Tensors

NOT_THERE = -1e9  # the logit of an action that a task has not


class Window(NamedTuple):
    """What the heads of one task say of windows of K steps."""

    policy: Tensor  # logits [N, K + 1, A]
    value: Tensor  # logits [N, K + 1, 2S + 1]
    reward: Tensor  # logits [N, K, 2S + 1]
    latent: Tensor  # [N, K, D], what the next one is expected to be


class Rows(NamedTuple):
    """Which rows of a batch belong to which tasks: one task after the other."""

    tasks: tuple[int, ...]
    counts: tuple[int, ...]


class TaskHeads(nn.Module):
    """What belongs to one task alone: its table of actions, and its heads behind the two kinds of tokens."""

    def __init__(self, num_actions: int, width: int, hidden: int, atoms: int) -> None:
        super().__init__()
        self.num_actions, self.atoms = num_actions, atoms
        self.action = nn.Embedding(num_actions, width)
        nn.init.normal_(self.action.weight, std=0.5)
        self.of_latent = _two_layers(width, hidden, num_actions + atoms)
        self.of_action = _two_layers(width, hidden, atoms + width)

    def policy_and_value(self, output: Tensor) -> tuple[Tensor, Tensor]:
        policy, value = self.of_latent(output).split([self.num_actions, self.atoms], -1)
        return policy, value

    def reward_and_change(self, output: Tensor) -> tuple[Tensor, Tensor]:
        reward, change = self.of_action(output).split([self.atoms, output.shape[-1]], -1)
        return reward, change


def _two_layers(width: int, hidden: int, outputs: int) -> nn.Sequential:
    """From zeros: every action is as good as any other, values and rewards are 0, and nothing changes."""
    last = nn.Linear(hidden, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(orthogonal(nn.Linear(width, hidden)), nn.GELU(), last)


class ScaleZeroNetwork(nn.Module):
    """One model for several tasks; `window` is the number of steps that it looks at in one piece."""

    atoms: Tensor

    def __init__(
        self,
        observation_spaces: Sequence[spaces.Space],
        num_actions: Sequence[int],
        *,
        latent_size: int,
        window: int,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        support_size: int,
        transformer: dict[str, Any],
        staged_encoders: bool = False,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        self.register_buffer("atoms", torch.arange(-support_size, support_size + 1.0))
        self.latent_size, self.most_actions = latent_size, max(num_actions)
        kinds = [_kind(task, space) for task, space in enumerate(observation_spaces)]
        several = list(dict.fromkeys(kinds))
        self.encoder_of = tuple(several.index(kind) for kind in kinds)
        self.encoders = nn.ModuleList()
        for kind in several:
            space = observation_spaces[kinds.index(kind)]
            encoder, width = make_encoder(space, hidden_sizes, activation, image_encoder, own)
            last: nn.Module
            if staged_encoders and kinds.count(kind) > 1:
                last = StagedLinear(
                    width,
                    latent_size,
                    **{name: transformer[name] for name in ("stages", "rank", "lora_alpha")},
                )
            else:
                last = orthogonal(nn.Linear(width, latent_size), 1.0)
            self.encoders.append(nn.Sequential(encoder, last))
        hidden = hidden_sizes[-1] if hidden_sizes else latent_size
        self.heads = nn.ModuleList(
            TaskHeads(actions, latent_size, hidden, 2 * support_size + 1) for actions in num_actions
        )
        self.transformer = Transformer(latent_size, length=2 * window + 1, **transformer)

    def encode(self, task: int, obs: Tensors, stage: int) -> Tensor:
        """A task's observations [N, ...] → latents [N, D]; a shared encoder is that of the stage."""
        layers = self.encoders[self.encoder_of[task]]
        if isinstance(layers[1], StagedLinear):  # type: ignore[index]
            return normalised(layers[1](layers[0](obs), stage))  # type: ignore[index]
        return normalised(layers(obs))

    def begin(self, stage: int) -> None:
        """Let a stage begin where the one before it stands."""
        for module in self.modules():
            if isinstance(module, StagedWeight):
                module.begin(stage)

    def windows(
        self, tasks: Sequence[int], latents: Sequence[Tensor], actions: Sequence[Tensor], stage: int
    ) -> tuple[list[Window], Tensor]:
        """Latents [N, K + 1, D] and actions [N, K] of each task → what its heads say, and the experts of all tokens.

        All tasks go through the transformer together, and each task's rows through its own heads.
        """
        tokens = interleave(torch.cat(list(latents)), self._look_up(tasks, actions))
        outputs, experts = self.transformer(tokens, self.transformer.weights(stage))
        windows = []
        by_task = outputs.split([len(part) for part in latents])
        for task, latent, rows in zip(tasks, latents, by_task, strict=True):
            policy, value = self._heads(task).policy_and_value(rows[:, 0::2])
            reward, change = self._heads(task).reward_and_change(rows[:, 1::2])
            windows.append(Window(policy, value, reward, normalised(latent[:, :-1] + change)))
        return windows, experts

    def weights(self, stage: int) -> list[BlockWeights]:
        return self.transformer.weights(stage)

    def initial(
        self, rows: Rows, latents: Tensor, actions: Tensor, past: Tensor, weights: list[BlockWeights]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The roots of a search, without gradients: policy logits [N, A], values [N], and their nodes.

        latents: [N, c + 1, D], in row i those of past[i] steps before and then the present one; the rest is not read
        actions: [N, c], those taken in between
        past:    [N], at most c
        """
        cache = self.transformer.empty_cache(len(latents))
        tokens = interleave(latents, self._look_up(rows.tasks, actions.split(rows.counts)))
        outputs, _ = self.transformer(tokens, weights, cache)
        each = torch.arange(len(latents), device=latents.device)
        policy, value = self._policy_and_value(rows, outputs[each, 2 * past])
        return policy, value, {"cache": cache, "latent": latents[each, past], "place": 2 * past + 1}

    def values(self, rows: Rows, latents: Tensor, actions: Tensor, past: Tensor, stage: int) -> Tensor:
        """The values [N] of latents with what came before them, as `initial` takes them."""
        tokens = interleave(latents, self._look_up(rows.tasks, actions.split(rows.counts)))
        outputs, _ = self.transformer(tokens, self.transformer.weights(stage))
        each = torch.arange(len(latents), device=latents.device)
        return self._policy_and_value(rows, outputs[each, 2 * past])[1]

    def recurrent(
        self, rows: Rows, node: dict[str, Tensor], action: Tensor, weights: list[BlockWeights]
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Nodes and actions [N] → rewards [N], policy logits [N, A], values [N], the next nodes; no gradients.

        A node's cache ends before its `place`: the action's token goes there, that of the latent expected after it.
        The cache is written to, so a parent with several children gives each a copy, as a search does.
        """
        cache, place = node["cache"], node["place"]
        table = self._look_up(rows.tasks, action.split(rows.counts))
        output = self.transformer.step(table, weights, cache, place)
        by_task = [
            self._heads(task).reward_and_change(part)
            for task, part in zip(rows.tasks, output.split(rows.counts), strict=True)
        ]
        reward = decode(torch.cat([part for part, _ in by_task]), self.atoms)
        latent = normalised(node["latent"] + torch.cat([part for _, part in by_task]))
        output = self.transformer.step(latent, weights, cache, place + 1)
        policy, value = self._policy_and_value(rows, output)
        return reward, policy, value, {"cache": cache, "latent": latent, "place": place + 2}

    def _look_up(self, tasks: Sequence[int], actions: Sequence[Tensor]) -> Tensor:
        """The tokens [N, ..., D] of each task's actions [n, ...]."""
        pairs = zip(tasks, actions, strict=True)
        return torch.cat([self._heads(task).action(part) for task, part in pairs])

    def _policy_and_value(self, rows: Rows, output: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, A] of the most actions that a task has, and values [N]."""
        by_task = [
            self._heads(task).policy_and_value(part)
            for task, part in zip(rows.tasks, output.split(rows.counts), strict=True)
        ]
        policy = [
            F.pad(part, (0, self.most_actions - part.shape[-1]), value=NOT_THERE) for part, _ in by_task
        ]
        return torch.cat(policy), decode(torch.cat([part for _, part in by_task]), self.atoms)

    def _heads(self, task: int) -> TaskHeads:
        heads = self.heads[task]
        assert isinstance(heads, TaskHeads)
        return heads

    def groups(self, stages: int) -> dict[str, list[nn.Parameter]]:
        """All parameters by when they learn: in a stage, with a task, or always."""
        groups = {f"stage {stage}": self.transformer.of_stage(stage) for stage in range(stages)}
        always: list[nn.Parameter] = []
        for place, encoder in enumerate(self.encoders):
            users = [task for task, of_task in enumerate(self.encoder_of) if of_task == place]
            last = encoder[1]  # type: ignore[index]
            if isinstance(last, StagedLinear):
                groups["stage 0"] += encoder[0].parameters()  # type: ignore[index]
                for stage in range(stages):
                    groups[f"stage {stage}"] += last.of_stage(stage)
                continue
            home = groups.setdefault(f"task {users[0]}", []) if len(users) == 1 else always
            home += encoder.parameters()
        for task, heads in enumerate(self.heads):
            groups.setdefault(f"task {task}", []).extend(heads.parameters())
        return groups | ({"always": always} if always else {})


def _kind(task: int, space: spaces.Space) -> str:
    """Pictures of one size share an encoder; what the numbers of a vector mean differs from task to task."""
    return f"{space.shape} {space.dtype} {brightest(space)}" if is_image(space) else f"own {task}"
