"""Tree search: DeepMind's mctx on random models, trees and schedules by hand, and what must hold for any model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.kernels.tree import advance_puct, exploration_weights, halving_table
from rl_training.kernels.whole_search import search_puct
from rl_training.search import Root, SearchResult, gumbel_muzero_search, muzero_search, planning

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "search_mctx.npz")
CASES = sorted({key.split("/")[0] for key in GOLDEN})


def golden(case: str) -> tuple[dict[str, np.ndarray], Root, Callable[..., Any]]:
    """The numbers of a case, its root, and its model."""
    found = {key.split("/")[1]: GOLDEN[key] for key in GOLDEN if key.startswith(f"{case}/")}
    w, b, wr, wp, wv, start = (
        torch.from_numpy(found[name]) for name in ("w", "b", "wr", "wp", "wv", "embedding")
    )

    def recurrent(latent: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reward = (wr[action] * latent).sum(1)
        after = torch.tanh(torch.einsum("bij,bj->bi", w[action], latent) + b[action])
        return reward, torch.full_like(reward, float(found["discount"])), after @ wp, after @ wv, after

    return found, Root(start @ wp, start @ wv, start), recurrent


def assert_equals_golden(result: SearchResult, found: dict[str, np.ndarray], search: str) -> None:
    visits = found[f"{search}_visits"]
    np.testing.assert_array_equal(result.visit_counts.numpy(), visits)
    seen = visits > 0
    np.testing.assert_allclose(
        result.q_values.numpy()[seen], found[f"{search}_qvalues"][seen], rtol=0, atol=1e-4
    )
    np.testing.assert_allclose(result.value.numpy(), found[f"{search}_value"], rtol=0, atol=1e-4)


def test_there_are_thirty_golden_cases() -> None:
    assert len(CASES) == 30


@pytest.mark.parametrize("case", CASES)
def test_muzero_search_equals_mctx(case: str) -> None:
    found, root, recurrent = golden(case)
    simulations = int(found["num_simulations"])
    result = muzero_search(
        root,
        recurrent,
        num_simulations=simulations,
        value_bounds=(float(found["value_min"]), float(found["value_max"])),
        invalid_actions=found["invalid"],
    )
    assert_equals_golden(result, found, "muzero")
    np.testing.assert_allclose(
        result.action_weights.numpy(), found["muzero_visits"] / simulations, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("case", CASES)
def test_gumbel_muzero_search_equals_mctx(case: str) -> None:
    found, root, recurrent = golden(case)
    result = gumbel_muzero_search(
        root,
        recurrent,
        num_simulations=int(found["num_simulations"]),
        gumbel=found["root_gumbel"],
        max_considered_actions=int(found["max_considered"]),
        rescale_by="node",
        invalid_actions=found["invalid"],
    )
    assert_equals_golden(result, found, "gumbel")
    np.testing.assert_allclose(result.action_weights.numpy(), found["gumbel_weights"], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(result.action.numpy(), found["gumbel_action"])


Model = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Any]]


def random_model(
    roots: int, actions: int, seed: int = 0, gain: float = 1.0, shift: float = 0.0, discount: float = 0.9
) -> tuple[Root, Model]:
    """A random model in float64 whose rewards and values are `gain` times those of gain 1.

    A value moved by `shift`, and a reward by (1 - discount) · shift, move every Q by `shift`.
    """
    chance = torch.Generator().manual_seed(seed)
    w, wr, wp, wv, start = (
        torch.randn(shape, generator=chance, dtype=torch.float64)
        for shape in ((actions, 8, 8), (actions, 8), (8, actions), (8,), (roots, 8))
    )

    def recurrent(latent: torch.Tensor, action: torch.Tensor) -> Any:
        reward = gain * (wr[action] * latent).sum(1) + (1 - discount) * shift
        after = torch.tanh(torch.einsum("bij,bj->bi", w[action], latent))
        value = gain * (after @ wv) + shift
        return reward, torch.full_like(reward, discount), after @ wp, value, after

    return Root(start @ wp, gain * (start @ wv) + shift, start), recurrent


def bandit(logits: torch.Tensor, q: torch.Tensor) -> tuple[Root, Model]:
    """One decision: an action's reward is its q, nothing comes after; the network's value is right. [B, A] both."""
    value = (logits.softmax(1) * q).sum(1)
    nothing = torch.zeros(len(q), dtype=q.dtype)

    def recurrent(latent: torch.Tensor, action: torch.Tensor) -> Any:
        reward = q.gather(1, action[:, None])[:, 0] * (latent[:, 0] == 0)
        return reward, nothing, torch.zeros_like(q), nothing, latent + 1

    return Root(logits, value, torch.zeros(len(q), 1)), recurrent


def gumbel_noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gumbel(size=shape)


def search_either(kind: str, root: Root, recurrent: Model, num_simulations: int, **more: Any) -> SearchResult:
    if kind == "muzero":
        return muzero_search(root, recurrent, num_simulations=num_simulations, **more)
    noise = gumbel_noise(*root.prior_logits.shape)
    return gumbel_muzero_search(root, recurrent, num_simulations=num_simulations, gumbel=noise, **more)


either = pytest.mark.parametrize("kind", ["muzero", "gumbel"])


def test_the_schedule_of_sequential_halving_by_hand() -> None:
    def asked(considered: int, simulations: int) -> list[int]:
        return halving_table(16, simulations)[considered].tolist()

    assert asked(1, 5) == [0, 1, 2, 3, 4]
    assert asked(2, 5) == [0, 0, 1, 1, 2]  # one phase of 5 // 2 = 2 visits each, and again
    assert asked(3, 9) == [
        0,
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]  # two phases: 9 // 6 = 1 each of 3, 9 // 4 = 2 each of 2
    assert asked(4, 8) == [0, 0, 0, 0, 1, 1, 2, 2]  # 8 // 8 = 1 each of 4, 8 // 4 = 2 each of 2
    assert asked(16, 8) == [0] * 8  # the budget ends in the first phase
    # Four phases: 1 each of 16, 50 // 32 = 1 each of 8, 50 // 16 = 3 each of 4, 50 // 8 = 6 each of 2, and 2 more.
    phases = [0] * 16 + [1] * 8 + [2] * 4 + [3] * 4 + [4] * 4
    assert asked(16, 50) == phases + [n for n in range(5, 12) for _ in range(2)]


def test_a_small_tree_by_hand() -> None:
    """Action 1 is always worth 1, action 0 nothing, all values 0 and the discount ½; the root has value ½.

    1. Nothing is known: the larger prior, ¾, takes action 0. Q(0) = 0; the root's value is (½ + 0) / 2 = ¼.
    2. That is above all Q seen, so the untried action 1 counts as 1: it is taken. Q(1) = 1, value (½ + 0 + 1) / 3.
    3. 1 + 2.17 · ¼ / 2 beats 2.17 · ¾ / 2; below, both actions count 0 and the first is taken: Q 0, root (1.5 + 1) / 4.
    4. Action 1 again; below, 1.77 · ½ for the untried beats 1.77 · ½ / 2 for the tried. The child's mean becomes
       (0 + 0 + 1) / 3, Q(1) = 1 + ½ · ⅓, and 1 + ½ · 1 comes to the root: (2.5 + 1.5) / 5.
    """

    def recurrent(latent: torch.Tensor, action: torch.Tensor) -> Any:
        return action.float(), torch.full((1,), 0.5), torch.zeros(1, 2), torch.zeros(1), latent

    root = Root(torch.tensor([[0.75, 0.25]]).log(), torch.tensor([0.5]), torch.zeros(1, 1))
    visits = [[1, 0], [1, 1], [1, 2], [1, 3]]
    values = [0.25, 0.5, 0.625, 0.8]
    for simulations in range(1, 5):
        result = muzero_search(root, recurrent, num_simulations=simulations)
        assert result.visit_counts.tolist() == [visits[simulations - 1]]
        assert result.value.item() == pytest.approx(values[simulations - 1])
    assert result.q_values.tolist()[0] == pytest.approx([0.0, 1 + 0.5 / 3])
    assert result.action_weights.tolist()[0] == [0.25, 0.75]


def test_the_improved_policy_by_hand() -> None:
    """Two of three actions are visited once: q = 1 and 0; π = ½, ¼, ¼ and v = ½.

    v_mix = (½ + 2 · (½ · 1 + ¼ · 0) / ¾) / 3 = 11/18; completed Q (1, 0, 11/18) is within [0, 1] already, so
    σ = (50 + 1) · 0.1 times it.
    """
    prior = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    q = torch.tensor([[1.0, 0.0, 4.0]], dtype=torch.float64)
    root, recurrent = bandit(prior.log(), q)
    root = root._replace(value=torch.tensor([0.5]))
    result = gumbel_muzero_search(
        root, recurrent, num_simulations=2, gumbel=np.array([[0.0, 0.0, -9.0]]), max_considered_actions=2
    )
    assert result.visit_counts.tolist() == [[1, 1, 0]]
    expected = (prior.log() + 5.1 * torch.tensor([[1.0, 0.0, 11 / 18]])).softmax(1)
    np.testing.assert_allclose(result.action_weights.numpy(), expected.numpy(), atol=1e-6)
    assert result.action.tolist() == [0]


def test_the_other_side_counts_against_us_by_hand() -> None:
    def recurrent(latent: torch.Tensor, action: torch.Tensor) -> Any:
        return torch.full((1,), 0.2), torch.full((1,), -1.0), torch.zeros(1, 1), torch.full((1,), 0.7), latent

    root = Root(torch.zeros(1, 1), torch.tensor([0.1]), torch.zeros(1, 1))
    result = muzero_search(root, recurrent, num_simulations=1)
    assert result.q_values.item() == pytest.approx(0.2 - 0.7)
    assert result.value.item() == pytest.approx((0.1 - 0.5) / 2)
    # The second walk goes one deeper: the child's mean is (0.7 + (0.2 - 0.7)) / 2 = 0.1.
    result = muzero_search(root, recurrent, num_simulations=2)
    assert result.q_values.item() == pytest.approx(0.2 - 0.1)
    assert result.value.item() == pytest.approx((0.1 - 0.5 + 0.7) / 3)


@either
def test_two_players_find_the_winning_move(kind: str) -> None:
    """Sticks: take one or two, who takes the last one wins. Three left, or six, is lost for who is to move."""

    def recurrent(sticks: torch.Tensor, action: torch.Tensor) -> Any:
        left = (sticks - 1 - action).clamp(min=0)
        won = (sticks > 0) & (left == 0)
        discount = torch.where(left > 0, -1.0, 0.0)
        return won.float(), discount, torch.zeros(len(sticks), 2), torch.zeros(len(sticks)), left

    sticks = torch.tensor([2, 3, 4, 5, 6, 7, 8])
    root = Root(torch.zeros(7, 2), torch.zeros(7), sticks)
    result = search_either(kind, root, recurrent, 400)
    lost = sticks % 3 == 0
    best = result.action if kind == "gumbel" else result.visit_counts.argmax(1)
    assert (best == (sticks % 3 - 1))[~lost].all()
    q = result.q_values.max(1).values
    assert (q[lost] < -0.5).all() and (q[~lost] > 0.5).all(), q


@either
def test_gain_and_shift_of_rewards_change_nothing(kind: str) -> None:
    plain = search_either(kind, *random_model(16, 4), 40)
    for gain, shift in ((1000.0, 0.0), (1.0, -50.0), (0.5, 7.0)):
        other = search_either(kind, *random_model(16, 4, gain=gain, shift=shift), 40)
        assert torch.equal(other.visit_counts, plain.visit_counts)
        torch.testing.assert_close(other.value, gain * plain.value + shift, rtol=1e-4, atol=1e-4)
    fixed = search_either("muzero", *random_model(16, 4), 40, value_bounds=(-5, 5))
    other = search_either("muzero", *random_model(16, 4, gain=100.0), 40, value_bounds=(-5, 5))
    assert not torch.equal(other.visit_counts, fixed.visit_counts), "bounds do not follow the rewards"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), simulations=st.integers(2, 16), actions=st.integers(2, 16))
def test_the_improved_policy_is_no_worse_than_the_prior(seed: int, simulations: int, actions: int) -> None:
    """One random bandit, 256 draws of the noise.

    On average over the noise this holds for any bandit. In a single draw it must hold wherever the visited actions
    are on average no worse than the prior's value, which includes every draw that visits all: v_mix is then no
    further from the visited values than the unvisited actions' own mean.
    """
    chance = np.random.default_rng(seed)
    one = torch.from_numpy(chance.normal(size=(2, 1, actions)) * chance.uniform(0.1, 4, size=(2, 1, 1)))
    logits, q = one.expand(2, 256, actions)
    root, recurrent = bandit(logits, q)
    noise = chance.gumbel(size=(256, actions))
    result = gumbel_muzero_search(root, recurrent, num_simulations=simulations, gumbel=noise)
    gain = (result.action_weights.double() * q).sum(1) - root.value
    assert gain.mean() >= -1e-6
    prior = logits.softmax(1) * (result.visit_counts > 0)
    promising = (prior * q).sum(1) / prior.sum(1) >= root.value - 1e-9
    assert (gain[promising] >= -1e-5).all()
    if actions <= simulations:
        assert promising.all()
    # The largest gumbel + logits is a draw from the prior, so its value is the prior's on average; the action that is
    # taken instead, with the same noise, is never worse.
    drawn = (logits + torch.from_numpy(noise)).argmax(1, keepdim=True)
    taken = q.gather(1, result.action[:, None])
    assert (taken >= q.gather(1, drawn) - 1e-6).all()


def test_each_root_has_its_own_noise() -> None:
    root, recurrent = bandit(torch.zeros(512, 6), torch.zeros(512, 6))
    result = gumbel_muzero_search(root, recurrent, num_simulations=8, gumbel=gumbel_noise(512, 6))
    chosen = torch.bincount(result.action, minlength=6)
    assert (chosen > 512 / 6 - 40).all(), chosen
    assert len(result.visit_counts.unique(dim=0)) == 15, "any two of six may be the ones visited twice"
    still = gumbel_muzero_search(root, recurrent, num_simulations=8, gumbel=np.zeros((512, 6)))
    assert len(still.action.unique()) == 1


def test_noise_is_mixed_into_the_roots_prior_over_valid_actions() -> None:
    root, recurrent = random_model(8, 4)
    noise = torch.from_numpy(np.random.default_rng(0).dirichlet([0.3] * 4, size=8))
    mixed = 0.75 * root.prior_logits.softmax(1) + 0.25 * noise
    result = muzero_search(root, recurrent, num_simulations=30, root_noise=noise)
    same = muzero_search(root._replace(prior_logits=mixed.log()), recurrent, num_simulations=30)
    assert torch.equal(result.visit_counts, same.visit_counts)
    plain = muzero_search(root, recurrent, num_simulations=30)
    assert not torch.equal(result.visit_counts, plain.visit_counts)
    none = muzero_search(root, recurrent, num_simulations=30, root_noise=noise, root_exploration_fraction=0.0)
    assert torch.equal(none.visit_counts, plain.visit_counts)
    invalid = torch.zeros(8, 4)
    invalid[:, 2] = 1
    masked = muzero_search(root, recurrent, num_simulations=30, root_noise=noise, invalid_actions=invalid)
    assert (masked.visit_counts[:, 2] == 0).all()


@either
def test_one_valid_action_gets_every_visit(kind: str) -> None:
    root, recurrent = random_model(8, 4)
    invalid = torch.ones(8, 4, dtype=torch.bool)
    invalid[torch.arange(8), torch.arange(8) % 4] = False
    result = search_either(kind, root, recurrent, 12, invalid_actions=invalid)
    assert torch.equal(result.visit_counts, 12 * (~invalid).long())
    assert torch.equal(result.action_weights, (~invalid).float())
    if kind == "gumbel":
        assert torch.equal(result.action, torch.arange(8) % 4)


@either
def test_budget_considered_actions_and_masks_may_change_with_every_call(kind: str) -> None:
    root, recurrent = random_model(5, 6)
    first = search_either(kind, root, recurrent, 10)
    for simulations in (3, 25, 1):
        result = search_either(kind, root, recurrent, simulations)
        assert (result.visit_counts.sum(1) == simulations).all()
    again = search_either(kind, root, recurrent, 10)
    assert torch.equal(again.visit_counts, first.visit_counts)
    assert torch.equal(again.value, first.value)
    if kind == "gumbel":
        for considered in (2, 4, 16):
            result = search_either(kind, root, recurrent, 20, max_considered_actions=considered)
            assert ((result.visit_counts > 0).sum(1) == min(considered, 6)).all()


@either
def test_no_walk_is_longer_than_the_depth_allows(kind: str) -> None:
    depth = 0

    def recurrent(latent: dict[str, torch.Tensor], action: torch.Tensor) -> Any:
        nonlocal depth
        reward, discount, logits, value, after = model(latent["x"], action)
        depth = max(depth, int(latent["depth"].max()) + 1)
        return reward, discount, logits, value, {"x": after, "depth": latent["depth"] + 1}

    start, model = random_model(6, 3)
    root = start._replace(latent={"x": start.latent, "depth": torch.zeros(6, dtype=torch.int64)})
    for allowed in (1, 2, 3):
        depth = 0
        result = search_either(kind, root, recurrent, 30, max_depth=allowed)
        assert depth == allowed
        assert (result.visit_counts.sum(1) == 30).all()
        if allowed == 1:  # every visit to an action backs up the same number
            for a in range(3):
                reward, discount, _, value, _ = model(start.latent, torch.full((6,), a))
                seen = result.visit_counts[:, a] > 0
                torch.testing.assert_close(
                    result.q_values[seen, a].double(), (reward + discount * value)[seen], rtol=1e-5, atol=1e-5
                )
            backed_up = (result.visit_counts * result.q_values).sum(1) + start.value
            torch.testing.assert_close(result.value, (backed_up / 31).float())
    depth = 0
    search_either(kind, root, recurrent, 30)
    assert depth > 3


@either
def test_latents_of_any_parts_find_their_way_back(kind: str) -> None:
    """Each root's latent is the list of actions since the root, beside its number, in three dtypes."""

    def recurrent(latent: dict[str, torch.Tensor], action: torch.Tensor) -> Any:
        assert torch.equal(latent["number"], torch.arange(7))
        assert torch.equal(latent["length"][:, 0].float(), (latent["path"] >= 0).sum((1, 2)).float())
        path = latent["path"].clone()
        path[torch.arange(7), latent["length"][:, 0].long(), 0] = action.to(torch.int8)
        paths.update(enumerate(tuple(row) for row in path[:, :, 0].tolist()))
        reward, discount, logits, value, x = model(latent["x"], action)
        after = dict(number=latent["number"], length=latent["length"] + 1, path=path, x=x)
        return reward, discount, logits, value, after

    paths: set[tuple[int, tuple[int, ...]]] = set()
    start, model = random_model(7, 3)
    parts = dict(
        number=torch.arange(7),
        length=torch.zeros(7, 1, dtype=torch.float16),
        path=torch.full((7, 20, 1), -1, dtype=torch.int8),
        x=start.latent,
    )
    search_either(kind, start._replace(latent=parts), recurrent, 20)
    assert len(paths) == 7 * 20, "every simulation reaches a new place"


@either
def test_a_root_does_not_know_who_searches_beside_it(kind: str) -> None:
    root, recurrent = random_model(6, 4)
    alone = Root(root.prior_logits[2:3], root.value[2:3], root.latent[2:3])  # type: ignore[index]
    noise = gumbel_noise(6, 4)
    if kind == "muzero":
        both = [muzero_search(start, recurrent, num_simulations=25) for start in (root, alone)]
    else:
        both = [
            gumbel_muzero_search(start, recurrent, num_simulations=25, gumbel=given)  # type: ignore[misc]
            for start, given in ((root, noise), (alone, noise[2:3]))
        ]
    assert torch.equal(both[0].visit_counts[2:3], both[1].visit_counts)


@either
def test_of_equal_actions_the_first_is_tried_first(kind: str) -> None:
    """The root's one allowed action leads to a node whose three actions are equal until they are tried; they pay
    1, 10 and 100, in the order in which they are tried."""
    nothing = torch.zeros(1, dtype=torch.float64)
    root = Root(torch.zeros(1, 3), nothing, torch.zeros(1, 1))
    paid: list[float] = []

    def recurrent(latent: torch.Tensor, action: torch.Tensor) -> Any:
        if latent[0, 0] == 1:
            paid.append(10.0 ** action.item())
        return nothing, nothing, torch.zeros(1, 3), nothing, latent + 1

    only = np.array([[0, 1, 1]])
    search_either(kind, root, recurrent, 4, invalid_actions=only)
    assert paid == [1.0, 10.0, 100.0]


@either
@pytest.mark.parametrize("shift", [-800.0, 800.0])
def test_only_differences_of_logits_matter(kind: str, shift: float) -> None:
    """eˣ of what the network says is infinite or 0 from there on."""
    root, recurrent = random_model(4, 3)

    def moved(latent: torch.Tensor, action: torch.Tensor) -> Any:
        reward, discount, logits, value, after = recurrent(latent, action)
        return reward, discount, logits + shift, value, after

    one = search_either(kind, root, recurrent, 12)
    other = search_either(kind, root._replace(prior_logits=root.prior_logits + shift), moved, 12)
    assert torch.equal(one.visit_counts, other.visit_counts)
    torch.testing.assert_close(one.action_weights, other.action_weights, atol=1e-3, rtol=0)


@either
def test_an_action_that_was_never_taken_has_the_value_0(kind: str) -> None:
    root, recurrent = bandit(torch.zeros(2, 5), torch.full((2, 5), 3.0))
    result = search_either(kind, root, recurrent, 2)
    taken = result.visit_counts > 0
    assert taken.sum() == 4 and (result.q_values[taken] == 3).all() and not result.q_values[~taken].any()


def test_the_model_is_asked_where_the_root_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees are walked on the CPU; places and actions are sent to the device of the root's tensors."""
    root, model = random_model(2, 3)
    asked = []

    def read(latents: Any, place: torch.Tensor) -> Any:
        asked.append(place.device.type)
        return root.latent

    def recurrent(latent: Any, action: torch.Tensor) -> Any:
        asked.append(action.device.type)
        return model(latent, torch.zeros(2, dtype=torch.int64))

    monkeypatch.setattr(planning._Latents, "read", read)
    for device in ("cpu", "meta"):
        trees = planning._Trees(root, 2, None, None)
        trees.device = torch.device(device)
        trees.search(recurrent, advance_puct, search_puct, exploration_weights(3, 1.25, 19652.0), (0.0, 0.0))
    assert asked == ["cpu"] * 4 + ["meta"] * 4


@either
def test_no_gradient_is_kept_and_outputs_may_be_slices(kind: str) -> None:
    root, plain = random_model(4, 3)
    layer = torch.nn.Linear(8, 6).double()

    def recurrent(latent: torch.Tensor, action: torch.Tensor) -> Any:
        _, discount, _, _, after = plain(latent, action)
        heads = layer(after)
        assert not heads.requires_grad
        return heads[:, 0].float(), discount, heads[:, 2:5], heads[:, 5], after

    result = search_either(kind, root._replace(value=root.value.requires_grad_()), recurrent, 10)
    assert not result.value.requires_grad
    assert result.action_weights.dtype == result.q_values.dtype == torch.float32


ROOT, MODEL = random_model(3, 4)
NAN = torch.full((3,), float("nan"))


@either
@pytest.mark.parametrize(
    ("root", "more", "says"),
    [
        (ROOT, dict(num_simulations=0), "num_simulations must be at least 1"),
        (ROOT, dict(max_depth=0), "max_depth must be at least 1"),
        (ROOT, dict(invalid_actions=np.array([[0] * 4, [1] * 4, [0] * 4])), "root 1 has no valid"),
        (ROOT, dict(invalid_actions=np.zeros((3, 5))), r"invalid_actions must have the shape \[3, 4\]"),
        (ROOT._replace(value=NAN), {}, "value is not finite$"),
        (ROOT._replace(value=torch.zeros(3, 1)), {}, r"value must have the shape \[3\], not \[3, 1\]"),
        (
            ROOT._replace(prior_logits=torch.full((3, 4), -np.inf)),
            {},
            "prior_logits is not finite: forbid actions",
        ),
        (ROOT._replace(prior_logits=torch.zeros(3)), {}, r"prior_logits must be \[B, A\]"),
        (ROOT._replace(latent=torch.zeros(2, 8)), {}, "latent must have 3 rows"),
        (ROOT._replace(latent={"h": torch.zeros(2, 8)}), {}, "h must have 3 rows"),
    ],
)
def test_what_cannot_be_searched_is_refused(kind: str, root: Root, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        search_either(kind, root, MODEL, **{"num_simulations": 4, **more})


@either
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda out: out[:4], r"must return the tuple \(reward, .*, latent\), not 4 things"),
        (lambda out: None, "must return the tuple .* not NoneType"),
        (lambda out: (out[0].numpy(), *out[1:]), "reward must be a tensor, not ndarray"),
        (lambda out: (out[0][:, None], *out[1:]), r"reward must have the shape \[3\], not \[3, 1\]"),
        (
            lambda out: (*out[:4], out[4][:2]),
            r"latent must have the shape of the root's, \[3, 8\], not \[2, 8\]",
        ),
        (lambda out: (*out[:4], None), "latent must be a tensor, not NoneType"),
    ],
)
def test_a_model_that_answers_something_else_is_told_so(kind: str, change: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        search_either(kind, ROOT, lambda *inputs: change(MODEL(*inputs)), 4)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (dict(root_noise=torch.zeros(3, 3)), r"root_noise must have the shape \[3, 4\]"),
        (
            dict(root_noise=torch.ones(3, 4), root_exploration_fraction=1.5),
            "root_exploration_fraction must be in",
        ),
        (dict(value_bounds=(1.0, 1.0)), "value_bounds must be"),
    ],
)
def test_what_only_muzero_takes_is_checked(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        muzero_search(ROOT, MODEL, num_simulations=4, **more)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (dict(gumbel=np.zeros((4, 4))), r"gumbel must have the shape \[3, 4\]"),
        (dict(gumbel=np.full((3, 4), np.nan)), "gumbel is not finite"),
        (dict(max_considered_actions=0), "max_considered_actions must be at least 1"),
    ],
)
def test_what_only_gumbel_takes_is_checked(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        gumbel_muzero_search(ROOT, MODEL, **{"num_simulations": 4, "gumbel": np.zeros((3, 4)), **more})


@either
@pytest.mark.parametrize(
    ("place", "wrong", "says"),
    [
        (0, NAN, "recurrent's reward is not finite in simulation 1"),
        (1, NAN, "recurrent's discount is not finite"),
        (2, torch.full((3, 4), float("inf")), "recurrent's prior_logits is not finite"),
        (3, NAN, "recurrent's value is not finite"),
        (0, torch.zeros(3, 1), r"recurrent's reward must have the shape \[3\], not \[3, 1\]"),
        (2, torch.zeros(3, 5), r"recurrent's prior_logits must have the shape \[3, 4\]"),
        (4, torch.zeros(3, 7), "recurrent's latent must have the shape of the root's"),
        (4, {"h": torch.zeros(3, 8)}, "recurrent's latent has the parts"),
    ],
)
def test_a_model_that_goes_wrong_is_named(kind: str, place: int, wrong: Any, says: str) -> None:
    def recurrent(latent: torch.Tensor, action: torch.Tensor) -> Any:
        outputs = list(MODEL(latent, action))
        outputs[place] = wrong
        return tuple(outputs)

    with pytest.raises(ValueError, match=says):
        search_either(kind, ROOT, recurrent, 4)
