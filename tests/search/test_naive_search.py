"""The searches as training calls them, against trees of plain objects written from the papers' equations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from test_search import CASES, golden

from rl_training.search import Root, gumbel_muzero_search, muzero_search


class Node:
    """A state: what the network says of it, its children by action, and the sum of all that was backed up."""

    def __init__(self, logits: np.ndarray, value: float, latent: torch.Tensor) -> None:
        self.logits, self.value, self.latent = logits.astype(np.float64), value, latent
        self.children: dict[int, Node] = {}
        self.reward = self.discount = 0.0
        self.total, self.count = value, 1

    def q(self, action: int) -> float:
        child = self.children[action]
        return child.reward + child.discount * child.total / child.count

    def visits(self, action: int) -> int:
        """How often a walk took this action: a child begins with its own evaluation, which is the first time."""
        return self.children[action].count if action in self.children else 0


class Tree:
    """One root; `choose` of a subclass selects."""

    def __init__(self, root: Root, row: int, model: Any, valid: np.ndarray) -> None:
        assert isinstance(root.latent, torch.Tensor)
        self.root = Node(root.prior_logits[row].numpy(), root.value[row].item(), root.latent[row : row + 1])
        self.model, self.valid = model, valid
        self.low, self.high = math.inf, -math.inf

    def allowed(self, node: Node) -> list[int]:
        return [a for a in range(len(node.logits)) if node is not self.root or self.valid[a]]

    def prior(self, node: Node) -> dict[int, float]:
        actions = self.allowed(node)
        shares = np.exp(node.logits[actions] - node.logits[actions].max())
        return dict(zip(actions, shares / shares.sum(), strict=True))

    def scaled(self, q: float) -> float:
        return (q - self.low) / max(self.high - self.low, 0.01)

    def simulate(self, number: int) -> None:
        path: list[tuple[Node, int]] = []
        node = self.root
        while True:
            action = self.choose(node, number)
            path.append((node, action))
            if action not in node.children:
                break
            node = node.children[action]
        reward, discount, logits, value, latent = self.model(node.latent, torch.tensor([action]))
        child = node.children[action] = Node(logits[0].numpy(), value.item(), latent)
        child.reward, child.discount = reward.item(), discount.item()
        gain = child.value
        for parent, taken in reversed(path):
            below = parent.children[taken]
            q = parent.q(taken)
            self.low, self.high = min(self.low, q), max(self.high, q)
            gain = below.reward + below.discount * gain
            parent.total += gain
            parent.count += 1

    def choose(self, node: Node, number: int) -> int:
        raise NotImplementedError


class PUCT(Tree):
    def choose(self, node: Node, number: int) -> int:
        n = node.count
        weight = math.sqrt(n) * (1.25 + math.log((n + 19652 + 1) / 19652))
        imputed = 0.0 if number == 0 else min(max(self.scaled(node.total / node.count), 0.0), 1.0)

        def score(item: tuple[int, float]) -> float:
            action, prior = item
            q = self.scaled(node.q(action)) if action in node.children else imputed
            return q + weight * prior / (1 + node.visits(action))

        return max(self.prior(node).items(), key=score)[0]


class Gumbel(Tree):
    def __init__(self, *root: Any, noise: np.ndarray, considered: int, simulations: int) -> None:
        super().__init__(*root)
        self.noise, self.simulations = noise, simulations
        scores = self.root.logits + noise
        ranked = sorted(self.allowed(self.root), key=lambda a: -scores[a])
        self.survivors = ranked[:considered]
        self.phases = max(1, math.ceil(math.log2(len(self.survivors))))
        self.asked: list[
            int
        ] = []  # the visits that survivors of the phase shall have, one entry per simulation

    def improved(self, node: Node) -> np.ndarray:
        """logits + σ(completed Q)."""
        actions, prior = list(node.children), self.prior(node)
        mixed = node.value
        if actions:
            mean = sum(prior[a] * node.q(a) for a in actions) / sum(prior[a] for a in actions)
            mixed = (node.value + (node.count - 1) * mean) / node.count
        most = max([node.visits(a) for a in actions], default=0)
        completed = [node.q(a) if a in actions else mixed for a in range(len(node.logits))]
        if not actions:
            return node.logits
        return node.logits + (50 + most) * 0.1 * np.clip([self.scaled(q) for q in completed], 0, 1)

    def choose(self, node: Node, number: int) -> int:
        score = self.improved(node)
        if node is not self.root:
            policy = np.exp(score - score.max())
            policy /= policy.sum()
            shares = np.array([node.visits(a) for a in range(len(policy))]) / node.count
            return int((policy - shares).argmax())
        if not self.asked:  # the next phase: the better half, never fewer than two
            if number > 0:
                ranked = sorted(self.survivors, key=lambda a: -(self.noise[a] + score[a]))
                self.survivors = ranked[: max(min(2, len(ranked)), len(ranked) // 2)]
            each = max(1, self.simulations // (self.phases * len(self.survivors)))
            done = node.visits(self.survivors[0])
            self.asked = [done + i for i in range(each) for _ in self.survivors]
        visits = self.asked.pop(0)
        eligible = [a for a in sorted(self.survivors) if node.visits(a) == visits]
        return max(eligible, key=lambda a: self.noise[a] + score[a])


@pytest.mark.parametrize("case", CASES)
def test_muzero_search_of_training_equals_plain_trees(case: str) -> None:
    """Q scaled by what the tree has seen, an unvisited action worth its node: no `value_bounds`."""
    found, root, model = golden(case)
    simulations = int(found["num_simulations"])
    result = muzero_search(root, model, num_simulations=simulations, invalid_actions=found["invalid"])
    for row in range(len(root.value)):
        tree = PUCT(root, row, model, found["invalid"][row] == 0)
        for number in range(simulations):
            tree.simulate(number)
        visits = [tree.root.visits(a) for a in range(root.prior_logits.shape[1])]
        assert result.visit_counts[row].tolist() == visits
        assert result.value[row].item() == pytest.approx(tree.root.total / tree.root.count, abs=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_gumbel_search_of_training_equals_plain_trees(case: str) -> None:
    """Q scaled by what the tree has seen: `rescale_by` as it is by default."""
    found, root, model = golden(case)
    simulations, considered = int(found["num_simulations"]), int(found["max_considered"])
    result = gumbel_muzero_search(
        root,
        model,
        num_simulations=simulations,
        gumbel=found["root_gumbel"],
        max_considered_actions=considered,
        invalid_actions=found["invalid"],
    )
    for row in range(len(root.value)):
        valid, noise = found["invalid"][row] == 0, found["root_gumbel"][row]
        tree = Gumbel(root, row, model, valid, noise=noise, considered=considered, simulations=simulations)
        for number in range(simulations):
            tree.simulate(number)
        visits = np.array([tree.root.visits(a) for a in range(len(noise))])
        np.testing.assert_array_equal(result.visit_counts[row].numpy(), visits)
        score = np.where(valid, tree.improved(tree.root), -np.inf)
        policy = np.exp(score - score.max())
        np.testing.assert_allclose(result.action_weights[row].numpy(), policy / policy.sum(), atol=1e-4)
        best = np.where(visits == visits.max(), score + noise, -np.inf).argmax()
        assert result.action[row].item() == best


@pytest.mark.parametrize(("rescale_by", "moves"), [("tree", 0.01), ("node", 2.4)])
def test_differences_that_mean_nothing_move_nothing(rescale_by: str, moves: float) -> None:
    """Two actions whose values differ by a millionth: by the node's own range the better one gains 5 nats."""
    q = torch.tensor([[0.0, 1e-6]], dtype=torch.float64)
    nothing = torch.zeros(1, dtype=torch.float64)

    def model(latent: torch.Tensor, action: torch.Tensor) -> Any:
        return q[0, action] * (latent[:, 0] == 0), nothing, torch.zeros(1, 2), nothing, latent + 1

    root = Root(torch.zeros(1, 2), nothing, torch.zeros(1, 1))
    result = gumbel_muzero_search(
        root, model, num_simulations=4, gumbel=np.zeros((1, 2)), rescale_by=rescale_by
    )
    moved = result.action_weights[0, 1].log() - result.action_weights[0, 0].log()
    assert (moved < moves) if rescale_by == "tree" else (moved > moves)


@pytest.mark.parametrize("rescale_by", ["tree", "node"])
def test_actions_that_are_not_there_change_nothing(rescale_by: str) -> None:
    """Two actions padded to 18 with logits of -1e9, at the root and below it."""
    torch.manual_seed(3)
    w, wr, wp, wv = torch.randn(2, 8, 8), torch.randn(2, 8), torch.randn(8, 2), torch.randn(8)
    start, noise = torch.randn(16, 8), np.random.default_rng(1).gumbel(size=(16, 18))
    results = []
    for actions in (2, 18):

        def model(latent: torch.Tensor, action: torch.Tensor, actions: int = actions) -> Any:
            reward = (wr[action] * latent).sum(1)
            after = torch.tanh(torch.einsum("bij,bj->bi", w[action], latent))
            logits = torch.nn.functional.pad(after @ wp, (0, actions - 2), value=-1e9)
            return reward, torch.full_like(reward, 0.9), logits, after @ wv, after

        logits = torch.nn.functional.pad(start @ wp, (0, actions - 2), value=-1e9)
        invalid = np.broadcast_to(np.arange(actions) >= 2, (16, actions))
        results.append(
            gumbel_muzero_search(
                Root(logits, start @ wv, start),
                model,
                num_simulations=20,
                gumbel=noise[:, :actions],
                rescale_by=rescale_by,
                invalid_actions=invalid,
            )
        )
    plain, padded = results
    assert (
        torch.equal(padded.visit_counts[:, :2], plain.visit_counts) and not padded.visit_counts[:, 2:].any()
    )
    torch.testing.assert_close(padded.action_weights[:, :2], plain.action_weights)
    assert torch.equal(padded.action, plain.action)


def test_what_cannot_rescale_is_refused() -> None:
    root = Root(torch.zeros(1, 2), torch.zeros(1), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="rescale_by must be tree or node, not 'world'"):
        gumbel_muzero_search(
            root, lambda *_: (), num_simulations=1, gumbel=np.zeros((1, 2)), rescale_by="world"
        )
