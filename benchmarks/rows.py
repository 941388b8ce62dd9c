"""The rows of the benchmark. A new algorithm adds a `Comparison` here, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from benchmarks.actors import Actors
from benchmarks.actors import Case as Training
from benchmarks.checkpoints import Checkpoints
from benchmarks.comparison import Comparison, Options, Peer
from benchmarks.compiling import ColdStarts
from benchmarks.digests import Digests
from benchmarks.environments import Case, Throughput
from benchmarks.replay import ReplayCosts
from benchmarks.report import Report
from benchmarks.scaling import Scaling
from benchmarks.search import Case as Search
from benchmarks.search import SearchSpeed
from benchmarks.seeds import Seeds
from benchmarks.siblings import Siblings
from benchmarks.threads import Threads


class Row(Protocol):
    """Anything with a name that can be measured."""

    @property
    def name(self) -> str: ...

    def run(self, options: Options) -> Report: ...


SMALL_NETS = {"net_arch": [64, 64], "activation_fn": "Tanh"}

PPO_CARTPOLE: dict[str, Any] = dict(
    algo="ppo",
    env_id="CartPole-v1",
    num_envs=4,
    num_steps=128,
    num_minibatches=4,
    update_epochs=4,
    hidden_sizes=[64, 64],
    activation="tanh",
    learning_rate=2.5e-4,
    learning_rate_schedule="linear",
    gamma=0.99,
    gae_lambda=0.95,
    clip_coef=0.2,
    ent_coef=0.0,
    vf_coef=0.5,
    max_grad_norm=0.5,
)

# Fragments, batches and coefficients as RLlib has them by default; but ten environments an actor, where it has one,
# and networks of 64 units, where its own have 256.
ACTORS_CARTPOLE: dict[str, Any] = dict(
    env_id="CartPole-v1",
    num_envs=10,
    num_steps=50,
    batch_fragments=1,
    hidden_sizes=[64, 64],
    activation="tanh",
    learning_rate=5e-4,
    gamma=0.99,
    ent_coef=0.01,
    vf_coef=0.5,
    max_grad_norm=40.0,
)
OURS: dict[str, dict[str, Any]] = {
    "impala": ACTORS_CARTPOLE | dict(algo="impala", optimizer="adam"),
    "appo": ACTORS_CARTPOLE | dict(algo="appo", update_epochs=2, num_minibatches=1, clip_coef=0.4),
}
RLLIB: dict[str, dict[str, Any]] = {
    name: dict(
        algorithm=name.upper(),
        env_id="CartPole-v1",
        num_envs=10,
        num_steps=50,
        num_learners=0,
        arguments=dict(lr=5e-4, gamma=0.99, entropy_coeff=0.01, vf_loss_coeff=0.5, grad_clip=40.0) | own,
        model=dict(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False),
    )
    for name, own in {
        "impala": {},
        "appo": dict(clip_param=0.4, circular_buffer_num_batches=8, circular_buffer_iterations_per_batch=2),
    }.items()
}

REJAX = dict(
    algorithm="ppo",
    env_id="CartPole-v1",
    learning_rate=2.5e-4,
    linear=True,
    gains=dict(hidden=2**0.5, actor=0.01, critic=1.0),
    arguments=dict(
        num_steps=128,
        num_epochs=4,
        num_minibatches=4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_eps=0.2,
        ent_coef=0.0,
        vf_coef=0.5,
        max_grad_norm=1e9,  # none: theirs would be of each number, and ours is of the whole gradient
        agent_kwargs=dict(activation="tanh", hidden_layer_sizes=[64, 64]),
    ),
)
RECURRENT_CARTPOLE: dict[str, Any] = dict(
    algo="recurrent_ppo",
    env_id="CartPole-v1",
    num_envs=8,
    num_steps=32,
    num_minibatches=1,
    update_epochs=20,
    cell="lstm",
    recurrent_size=64,
    hidden_sizes=[64],
    activation="tanh",
    learning_rate=1e-3,
    learning_rate_schedule="linear",
    gamma=0.98,
    gae_lambda=0.8,
    clip_coef=0.2,
    clip_coef_schedule="linear",
    ent_coef=0.0,
    vf_coef=0.5,
    max_grad_norm=0.5,
)
A2C_CARTPOLE: dict[str, Any] = dict(
    algo="a2c",
    env_id="CartPole-v1",
    num_envs=8,
    num_steps=5,
    hidden_sizes=[64, 64],
    activation="tanh",
    learning_rate=3e-3,
    learning_rate_schedule="linear",
    gamma=0.99,
    gae_lambda=1.0,
    ent_coef=0.0,
    vf_coef=0.5,
    max_grad_norm=0.5,
)
MINATAR: dict[str, Any] = {"extends": "ppo/minatar_breakout", "num_envs": 64}
# stable-baselines3's names of what we have too.
SB3_NAMES = {
    "n_steps": "num_steps",
    "n_epochs": "update_epochs",
    "learning_rate": "learning_rate",
    "gamma": "gamma",
    "gae_lambda": "gae_lambda",
    "clip_range": "clip_coef",
    "ent_coef": "ent_coef",
    "max_grad_norm": "max_grad_norm",
}


def in_sb3(algorithm: str, config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """An on-policy config of ours as settings of `benchmarks.peers.sb3`, where every field is written out."""
    names = {theirs: ours for theirs, ours in SB3_NAMES.items() if ours in config}
    arguments = {theirs: config[ours] for theirs, ours in names.items()}
    arguments["vf_coef"] = config["vf_coef"] / 2  # of a squared error that ours halves
    if "num_minibatches" in config:
        arguments["batch_size"] = config["num_envs"] * config["num_steps"] // config["num_minibatches"]
    linear = [theirs for theirs, ours in names.items() if config.get(f"{ours}_schedule") == "linear"]
    where = {name: config[name] for name in ("env_id", "num_envs")}
    return dict(algorithm=algorithm, **where, arguments=arguments, linear=linear, **more)


def against_rejax(num_envs: int, required: float) -> Comparison:
    """PPO in compiled environments against a whole loop in JAX.

    Its learning rate falls with every minibatch, ours with every iteration: ours is that of the iteration's middle.
    """
    start, steps, iteration = PPO_CARTPOLE["learning_rate"], 100_000, 128 * num_envs
    end = -(-steps // iteration) * iteration
    half = iteration / end / 2
    return Comparison(
        name=f"ppo-cartpole-compiled-{num_envs}",
        title=f"PPO on CartPole-v1 in {num_envs} compiled environments × 128 steps, 4 minibatches, 4 epochs, two nets "
        "of 64-64 tanh units, clipped values, no limit on the gradient, ε = 1e-8, against rejax, which jits its whole "
        "loop. Compilation is counted on neither side. Initial weights are orthogonal, with our gains, on both sides.",
        steps=steps,
        required=required,
        # It always clips the change of values by `clip_eps`, and its Adam has optax's ε.
        config=PPO_CARTPOLE
        | dict(num_envs=num_envs, vectorization="compiled", max_grad_norm=1e9, value_clip_coef=0.2)
        | dict(optimizer_epsilon=1e-8, learning_rate_schedule=[[0, start * (1 + half)], [end, start * half]]),
        peer=Peer("rejax", REJAX | dict(num_envs=num_envs), "benchmarks.peers.rejax_train"),
        warm_up=2 * 128 * num_envs,
    )


ALL: list[Row] = [
    Comparison(
        name="ppo-cartpole-sbx",
        title="PPO on CartPole-v1 in 4 compiled environments, with the settings of `ppo-cartpole`, against sbx-rl, "
        "whose updates are jitted and whose environments are Gymnasium's own. It compiles in a first training of 1,024 "
        "steps, which is timed apart. Initial weights are each package's own.",
        steps=100_000,
        config=PPO_CARTPOLE | dict(vectorization="compiled"),
        peer=Peer("sbx-rl", in_sb3("PPO", PPO_CARTPOLE, package="sbx", jitted=True)),
    ),
    against_rejax(4, 1.15),
    against_rejax(16, 1.3),
    against_rejax(64, 1.3),
    against_rejax(256, 1.0),
    Comparison(
        name="ppo-cartpole",
        title="PPO on CartPole-v1: 4 environments × 128 steps, 4 minibatches, 4 epochs, two nets of 64-64 tanh units.",
        steps=100_000,
        required=6.5,
        goal=8.0,
        config=PPO_CARTPOLE,
        peer=Peer("stable-baselines3", in_sb3("PPO", PPO_CARTPOLE, policy_kwargs=SMALL_NETS)),
    ),
    Comparison(
        name="ppo-halfcheetah",
        title="PPO on HalfCheetah-v5: 2048 steps of one environment, 32 minibatches, 10 epochs, two nets of 64-64 tanh "
        "units. Ours normalises observations and rewards, theirs nothing. Too short to learn: no score.",
        steps=10_240,
        required=4.2,
        rounds=3,
        episodes=0,
        warm_up=2048,
        config={"extends": "ppo/halfcheetah"},
        peer=Peer(
            "stable-baselines3",
            dict(
                algorithm="PPO",
                env_id="HalfCheetah-v5",
                num_envs=1,
                arguments=dict(
                    n_steps=2048,
                    batch_size=64,
                    n_epochs=10,
                    learning_rate=3e-4,
                    gamma=0.99,
                    gae_lambda=0.95,
                    clip_range=0.2,
                    clip_range_vf=0.2,
                    ent_coef=0.0,
                    vf_coef=0.25,  # of a squared error that ours halves
                    max_grad_norm=0.5,
                ),
                linear=["learning_rate"],
                policy_kwargs=SMALL_NETS,
            ),
        ),
    ),
    Comparison(
        name="ppo-atari",
        title="PPO on Pong: 8 games × 128 steps, 4 minibatches, 4 epochs, Nature CNN, the same preprocessing (84 × 84 "
        "grey, 4 frames, skip 4, up to 30 no-ops, clipped rewards, no sticky actions). Too short to learn: no score.",
        steps=10_240,
        required=1.5,
        rounds=3,
        episodes=0,
        config={
            "extends": "ppo/pong",
            "update_epochs": 4,
            "num_minibatches": 4,
            "learning_rate_schedule": "linear",
        },
        variants={"bf16": {"precision": "bf16"}},
        peer=Peer(
            "stable-baselines3",
            dict(
                algorithm="PPO",
                policy="CnnPolicy",
                env_id="ALE/Pong-v5",
                env_kwargs=dict(frameskip=1, repeat_action_probability=0.0),
                atari=dict(
                    noop_max=30, frame_skip=4, screen_size=84, terminal_on_life_loss=True, clip_reward=True
                ),
                num_envs=8,
                arguments=dict(
                    n_steps=128,
                    batch_size=256,
                    n_epochs=4,
                    learning_rate=2.5e-4,
                    gamma=0.99,
                    gae_lambda=0.95,
                    clip_range=0.1,
                    ent_coef=0.01,
                    vf_coef=0.25,  # of a squared error that ours halves
                    max_grad_norm=0.5,
                ),
                linear=["learning_rate"],
            ),
        ),
    ),
    Comparison(
        name="sac-pendulum",
        title="SAC on Pendulum-v1: an update of 256 transitions a step, 256-256 ReLU units, a learned temperature.",
        steps=10_000,
        required=1.9,
        rounds=3,
        config={"extends": "sac/pendulum"},
        peer=Peer(
            "stable-baselines3",
            dict(
                algorithm="SAC",
                env_id="Pendulum-v1",
                num_envs=1,
                arguments=dict(
                    learning_rate=1e-3,
                    buffer_size=20_000,
                    learning_starts=500,
                    batch_size=256,
                    tau=0.005,
                    gamma=0.99,
                    train_freq=1,
                    gradient_steps=1,
                    ent_coef="auto",
                ),
                policy_kwargs=dict(net_arch=[256, 256]),
            ),
        ),
    ),
    Comparison(
        name="sac-pendulum-compiled",
        title="SAC on Pendulum-v1 as in `sac-pendulum`, in a compiled environment, against rejax, which jits its whole "
        "loop. Compilation is counted on neither side.",
        steps=10_000,
        required=1.0,
        rounds=3,
        config={"extends": "sac/pendulum", "vectorization": "compiled"},
        peer=Peer(
            "rejax",
            dict(
                algorithm="sac",
                env_id="Pendulum-v1",
                num_envs=1,
                learning_rate=1e-3,
                arguments=dict(
                    hidden_layer_sizes=[256, 256],
                    batch_size=256,
                    buffer_size=20_000,
                    fill_buffer=500,
                    gamma=0.99,
                    polyak=0.995,
                ),
            ),
            "benchmarks.peers.rejax_train",
        ),
    ),
    Comparison(
        name="dqn-cartpole",
        title="DQN on CartPole-v1: an update of 64 transitions every 4 steps, a net of 64-64 ReLU units.",
        steps=50_000,
        required=4.0,
        config=dict(
            algo="dqn",
            env_id="CartPole-v1",
            learning_starts=1_000,
            train_frequency=4,
            replay_ratio=0.25,
            batch_size=64,
            buffer_size=100_000,
            learning_rate=1e-3,
            gamma=0.99,
            epsilon_schedule={"type": "linear", "start": 1.0, "end": 0.04, "steps": 8_000},
            target_update_interval=125,  # updates: 500 steps
            max_grad_norm=10.0,
            hidden_sizes=[64, 64],
            activation="relu",
        ),
        peer=Peer(
            "stable-baselines3",
            dict(
                algorithm="DQN",
                env_id="CartPole-v1",
                num_envs=1,
                arguments=dict(
                    learning_rate=1e-3,
                    buffer_size=100_000,
                    learning_starts=1_000,
                    batch_size=64,
                    gamma=0.99,
                    train_freq=4,
                    gradient_steps=1,
                    target_update_interval=500,
                    exploration_fraction=0.16,
                    exploration_initial_eps=1.0,
                    exploration_final_eps=0.04,
                    max_grad_norm=10.0,
                ),
                policy_kwargs=dict(net_arch=[64, 64]),
            ),
        ),
    ),
    Comparison(
        name="a2c-cartpole",
        title="A2C on CartPole-v1: 8 environments × 5 steps, RMSprop as in TensorFlow 1, two nets of 64-64 tanh units.",
        steps=100_000,
        required=3.6,
        config=A2C_CARTPOLE,
        peer=Peer(
            "stable-baselines3",
            in_sb3(
                "A2C",
                A2C_CARTPOLE,
                policy_kwargs=SMALL_NETS
                | dict(
                    optimizer_class="stable_baselines3.common.sb2_compat.rmsprop_tf_like:RMSpropTFLike",
                    optimizer_kwargs=dict(alpha=0.99, eps=1e-5, weight_decay=0),
                ),
            ),
        ),
    ),
    Comparison(
        name="trpo-cartpole",
        title="TRPO on CartPole-v1: 2 environments × 512 steps, 10 conjugate gradient iterations, 20 epochs of the "
        "value function in 2 minibatches, two nets of 64-64 tanh units.",
        steps=100_000,
        required=4.5,
        config={"extends": "trpo/cartpole"},
        peer=Peer(
            "stable-baselines3",
            dict(
                package="sb3_contrib",
                algorithm="TRPO",
                env_id="CartPole-v1",
                num_envs=2,
                arguments=dict(
                    n_steps=512,
                    batch_size=512,
                    n_critic_updates=20,
                    learning_rate=1e-3,
                    gamma=0.99,
                    gae_lambda=0.98,
                    target_kl=0.01,
                    cg_max_steps=10,
                    cg_damping=1e-3,
                    line_search_max_iter=10,
                    line_search_shrinking_factor=0.8,
                ),
                policy_kwargs=SMALL_NETS,
            ),
        ),
    ),
    Comparison(
        name="recurrent-ppo-cartpole",
        title="Recurrent PPO on CartPole-v1: 8 environments × 32 steps in one minibatch, 20 epochs, an LSTM of 64 "
        "units for each of actor and critic, and a layer of 64 tanh units before it (ours) or after it (theirs).",
        steps=30_000,
        rounds=3,  # theirs takes minutes each
        required=4.2,
        config=RECURRENT_CARTPOLE,
        peer=Peer(
            "stable-baselines3",
            in_sb3(
                "RecurrentPPO",
                RECURRENT_CARTPOLE,
                package="sb3_contrib",
                policy="MlpLstmPolicy",
                policy_kwargs=dict(
                    net_arch=[64], activation_fn="Tanh", lstm_hidden_size=64, enable_critic_lstm=True
                ),
            ),
        ),
    ),
    Comparison(
        name="dreamer-cartpole",
        title="DreamerV3 on CartPole-v1, size 1M: batches of 16 sequences of 64 steps, 15 imagined steps, an update "
        "every 16 steps after the first 400, 4 environments; sheeprl's `dreamer_v3_5`, the same version of the "
        "algorithm at the same size, single precision, not compiled. Nearly all of the time is updates, of which both "
        "make 24. Too short to learn: no score.",
        steps=784,
        required=1.4,
        goal=1.7,
        rounds=3,
        warm_up=432,
        episodes=0,
        config=dict(
            algo="dreamer",
            env_id="CartPole-v1",
            num_envs=4,
            size="1M",
            batch_size=16,
            batch_length=64,
            imagination_horizon=15,
            train_ratio=64,
            learning_starts=400,
            buffer_size=100_000,
            refresh_latents=True,
        ),
        peer=Peer(
            "sheeprl",
            dict(
                overrides=[
                    "exp=dreamer_v3_5",
                    "algo=dreamer_v3_5_1M",
                    "env=gym",
                    "env.id=CartPole-v1",
                    "env.num_envs=4",
                    "algo.mlp_keys.encoder=[vector]",
                    "algo.cnn_keys.encoder=[]",
                    "algo.learning_starts=400",
                    "algo.replay_ratio=0.0625",
                    "buffer.size=100000",
                ]
            ),
            script="benchmarks.peers.sheeprl",
        ),
    ),
    Actors(
        name="actors",
        title="IMPALA and APPO on CartPole-v1 with 1 and 2 actors on all cores, by the clock: 10 environments × 50 "
        "steps per fragment, one fragment per update, two nets of 64-64 tanh units; APPO uses each batch twice. "
        "RLlib's side starts before it is measured. Then IMPALA alone where each step of the environment takes a "
        "millisecond of CPU.",
        required=3.0,
        speed_up=1.5,
        cases=[
            *(
                Training(OURS[name], count, 100_000, RLLIB[name], 15_000)
                for name in ("impala", "appo")
                for count in (1, 2)
            ),
            *(
                Training(
                    dict(
                        algo="impala",
                        env_id="rl_training/BusyCartPole-v1",
                        num_envs=4,
                        num_steps=16,
                        hidden_sizes=[64, 64],
                    ),
                    count,
                    6_000,
                )
                for count in (1, 2)
            ),
        ],
    ),
    Throughput(
        name="environments",
        title="Environments alone, with random actions, against Gymnasium's SyncVectorEnv. A transition is real if "
        "an action led to it: the step that only resets, in SyncVectorEnv's default mode, does not count.",
        cases=[
            Case("CartPole-v1", 4, 100_000),
            Case("CartPole-v1", 16, 200_000),
            Case("CartPole-v1", 64, 200_000),
            Case("ALE/Pong-v5", 8, 4_000, required=1.5),
        ],
    ),
    Throughput(
        name="minatar",
        title="MinAtar's Breakout alone, with random actions, compiled, against the package `minatar`, whose games are "
        "stepped one after the other. Both see every state.",
        cases=[Case("MinAtar/Breakout-v1", 64, 1_280_000, required=1.0)],
        peer="minatar",
        script="benchmarks.peers.minatar_games",
        theirs="minatar",
        vectorization="compiled",
        rounds=3,
    ),
    Siblings(
        name="ppo-minatar",
        title="PPO on MinAtar's Breakout, 64 environments, in compiled environments against the package's own "
        "(`vectorization: sync`), with the settings of `ppo/minatar_breakout`.",
        steps=65_536,
        at_least=1.0,
        warm_up=8192,
        episodes=50,
        labels=("the package", "compiled"),
        base=MINATAR | dict(vectorization="sync"),
        config=MINATAR | dict(vectorization="compiled"),
    ),
    Seeds(
        name="seeds",
        title="16 seeds of PPO on CartPole-v1, 100,000 steps each in 4 compiled environments, as one command with "
        "`--seeds 1-16` and as 16 commands: the CPU-seconds of all processes, start-up and evaluations included.",
        config=["ppo/cartpole", "num_envs=4", "num_steps=128", "num_minibatches=4", "update_epochs=4"],
        count=16,
        steps=100_000,
        share=0.6,
    ),
    ColdStarts(
        name="cold",
        title="numba's first compilation: CPU-seconds of a short run of a shipped config with an empty cache, less "
        "those of the same run with what the first one left there; and those of a whole command of 256 steps after "
        "that, imports included.",
        configs=(
            *(
                "ppo/cartpole",
                "ppo/pendulum",
                "ppo/minatar_space_invaders",
                "ppo/pong",
                "a2c/cartpole",
                "trpo/cartpole",
                "ppg/cartpole",
                "gail/pendulum",
            ),
            *("impala/cartpole", "appo/cartpole", "bc/cartpole", "recurrent_ppo/cartpole_no_velocity"),
            *("dqn/cartpole", "sac/pendulum", "muzero/cartpole", "gumbel_muzero/cartpole"),
            *("gumbel_muzero/pendulum", "gumbel_muzero/connect_four", "efficientzero/pendulum"),
            *("efficientzero/cartpole", "scalezero/cartpole", "muzero/tictactoe", "dqn/pong"),
            *("dreamer/cartpole", "dreamer/pendulum", "dreamer/cartpole_pixels"),
        ),
        most=10,
        command=("train", "ppo/cartpole"),
        steps=256,
        most_warm=4.5,
    ),
    Threads(
        name="threads",
        title="The three convolutions of the Nature CNN, forward and backward, on 256 frames with one thread and with "
        "two, by the clock on all cores; the fastest of 20 calls counts.",
        speed_up=1.7,
    ),
    Siblings(
        name="gail-cartpole",
        title="GAIL against our own PPO on CartPole-v1, with the settings of `ppo-cartpole`; 4 updates of the "
        "discriminator per rollout, with 128 pairs of each side, 64-64 tanh units and a gradient penalty. The section "
        "`discriminator` is those updates and the rewards.",
        steps=100_000,
        at_least=0.75,
        rounds=7,
        base=PPO_CARTPOLE,
        config=PPO_CARTPOLE
        | dict(
            algo="gail",
            demonstrations="gail/cartpole_expert.npz",
            discriminator_updates=4,
            discriminator_batch_size=128,
            discriminator_hidden_sizes=[64, 64],
            gradient_penalty_coef=0.1,
        ),
    ),
    SearchSpeed(
        name="search",
        title="Tree search with random models: 50 simulations, 6 actions, states of 64 numbers, noise at the root. "
        "Against LightZero's C++ trees with the layers of its vector model, its heads plain numbers or 601 atoms, and "
        "with the network that `muzero` trains on our side; against mctx, jitted, with two-layer nets.",
        cases=[
            *(
                Search("lightzero", search, "supports", {1: 5, 8: 5, 64: 5, 256: 4}, atoms)
                for atoms in (1, 601)
                for search in ("muzero", "gumbel")
            ),
            Search("lightzero", "muzero", "package", {1: 5, 8: 5, 64: 5, 256: 4}, 601),
            *(Search("mctx", search, "plain", {64: 1, 256: 1}) for search in ("muzero", "gumbel")),
        ],
    ),
    Scaling(
        name="scaling",
        title="How cost grows: PPO on CartPole-v1 as in `ppo-cartpole`, with other numbers of environments (the "
        "rollout and its 4 minibatches grow with them, up to 16,384 steps) and other networks, in compiled code and "
        "with torch and Gymnasium.",
        config=PPO_CARTPOLE,
        num_envs=(1, 4, 16, 64, 256, 1024, 4096),
        units=(16, 32, 64, 128, 256, 512, 1024),
        usual_envs=64,
        usual_units=64,
        inputs_and_outputs=2 * 4 + 2 + 1,
    ),
    ReplayCosts(
        name="replay",
        title="The replay of SAC and DQN, full with a million transitions: what a sample costs beside the update that "
        "it feeds, how far that update is above its matrix products alone, and the memory of Atari's frames.",
    ),
    Checkpoints(
        name="checkpoints",
        title="What checkpoints at the default interval cost in shipped configs, with logging and evaluations as they "
        "are shipped. A save is the whole of it: gathering the state, hashing, writing, and waiting for the disk.",
        configs=("ppo/cartpole", "ppo/pendulum"),
    ),
    Digests(
        name="digests",
        title="What the digests of log lines cost in the shortest shipped configs, as they are shipped: the CPU time "
        "of every digest of a run that follows another in its process, without that of the timer.",
        configs=(
            "bc/cartpole",
            "bc/pendulum",
            "gail/cartpole",
            "ppo/cartpole",
            "a2c/cartpole",
            "dqn/cartpole",
        ),
    ),
]

ROWS: dict[str, Any] = {row.name: row for row in ALL}
