"""Creating environments from a config, with errors that say what to do."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from itertools import takewhile
from typing import Any

import gymnasium as gym

from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.registry import KNOWN
from rl_training.envs.action_masks import MaskInObservation, check_mask_space, gives_masks_in_info
from rl_training.envs.agents import AgentLanes, has_agents
from rl_training.envs.atari import AtariSettings, is_atari, make_atari_lanes
from rl_training.envs.compiled import AnyEnvironments, CompiledEnvironments, CompiledSpaces
from rl_training.envs.environments import Environments
from rl_training.envs.from_file import maker_of, maker_of_file, spec_of_file
from rl_training.envs.interface import Broken, check_has_spaces
from rl_training.envs.lanes import Lanes, LocalLanes, without_wrappers
from rl_training.envs.layers import Maker, Recipe, layered, make_directly
from rl_training.envs.packages import register_package
from rl_training.envs.spaces import check_action_space, check_observation_space
from rl_training.envs.trial import first_step, is_known, look_closer
from rl_training.envs.worker_lanes import WorkerLanes
from rl_training.errors import ConfigError, EnvironmentFault, about, add_extra, did_you_mean, one_line
from rl_training.networks.encoders import is_image, is_small_image
from rl_training.parts import GIVEN
from rl_training.runtime.controls import Controls
from rl_training.settings.config import Config
from rl_training.types import Env

STANDS_FOR = ("step", "reset", "_seen")  # methods of an environment that compiled ones never call
LONGEST_EVALUATION = 27_000  # steps, the field's limit for Atari: an evaluation must end


@about("env_id")
def make_environments(
    config: Config, count: int, seed: int, stream: str, through: Callable[[Lanes], Lanes] | None = None
) -> AnyEnvironments:
    """`count` of a config's environments, their episodes seeded by `seed` and `stream` ("train" or another).

    `through` may put something around them that looks on. Compiled environments are for training: published scores are
    always those of the environments that they stand for.
    """
    training = stream == "train"
    if config.vectorization in ("auto", "compiled"):
        config = with_lanes(config) if training else config.model_copy(update={"vectorization": "sync"})
    if config.vectorization == "compiled":
        return make_compiled(config, count, seed, stream)
    recipe = Recipe.of(config)
    if is_atari(config.env_id):
        refuse_layers_on_atari(config)
        if config.info_metrics:
            raise ConfigError("info_metrics: Atari's vector environment provides no info", ("info_metrics",))
        if config.vectorization != "sync":
            raise ConfigError(
                "vectorization: Atari games run in threads of their own; leave it at sync", ("vectorization",)
            )
        lanes: Lanes = make_atari_lanes(
            config.env_id, config.env_kwargs, config.max_episode_steps, count, training
        )
    elif (make := maker_of_worlds(recipe)) is not None:
        lanes = make_agent_lanes(config, make, count, training)
    else:
        if training:
            try_out(config)
        how = (count, config.vectorization, config.obeys_action_masks, config.env_timeout)
        lanes = make_lanes(recipe, *how)
        # Before the first reset, which stacks observations: a space nobody understands may not even stack.
        check_spaces(config.env_id, lanes)
        if not lanes.has_time_limit and training:
            warnings.warn(
                f"{config.env_id} has no time limit: resuming replays an open episode "
                f"from its start, and evaluation truncates episodes after {LONGEST_EVALUATION} steps; "
                "set max_episode_steps to limit episodes",
                stacklevel=2,
            )
        elif not lanes.has_time_limit:
            lanes.close()
            lanes = make_lanes(recipe._replace(max_episode_steps=LONGEST_EVALUATION), *how)
        if config.obeys_action_masks:
            check_mask_space(config.env_id, lanes.observation_space, lanes.action_space)
    lanes = lanes if through is None else through(lanes)
    arguments = Controls.of(config).arguments(0) if training else {}
    return Environments(lanes, seed, stream, config.env_id, config.info_metrics, arguments)


def maker_of_worlds(recipe: Recipe) -> Callable[[], Any] | None:
    """What makes an environment of several agents, if the id names one: anything that is no class of Gymnasium's."""
    try:
        make = maker_of(recipe.env_id) or maker_of_file(recipe.env_id)
        if make is None or (isinstance(make, type) and issubclass(make, gym.Env)):
            return None
        made: Any = make(**recipe.env_kwargs)
        made.close()
    except Exception:  # which is told where an environment of one agent is made
        return None
    if not has_agents(made):
        return None
    return partial(make, **recipe.env_kwargs)


def make_agent_lanes(config: Config, make: Callable[[], Any], count: int, training: bool) -> AgentLanes:
    """Agents of PettingZoo's parallel API as lanes; refuses what cannot be put around them."""
    plain = Recipe.of(config)._replace(time_limit=None).is_plain and not config.env_kwargs_schedule
    if not plain or config.vectorization != "sync":
        raise ConfigError(
            "wrappers, action_repeat, frame_stack, env_kwargs_schedule and vectorization are for environments of one "
            f"agent; {config.env_id} has several",
            ("env_id",),
        )
    limits = [limit for limit in (config.max_episode_steps, config.time_limit) if limit is not None]
    lanes = AgentLanes(
        make, count, min(limits, default=None if training else LONGEST_EVALUATION), config.env_id
    )
    check_spaces(config.env_id, lanes)
    if training and config.num_envs % len(lanes.agents):
        raise ConfigError(
            f"num_envs: {config.num_envs} is not a multiple of the {len(lanes.agents)} agents of {config.env_id}; "
            "it counts agents",
            ("num_envs",),
        )
    return lanes


def with_lanes(config: Config) -> Config:
    """The config with a `vectorization` in the place of `auto`: compiled where all its environments are."""
    if config.vectorization != "auto":
        return config
    chosen = "sync" if why_not_compiled(config) else "compiled"
    return config.model_copy(update={"vectorization": chosen})


def why_not_compiled(config: Config) -> str:
    """Why no compiled environments are equal to those that a config names; empty where some are to each."""
    parts = [config.of_task(name) for name in config.tasks] or [config]
    return next(filter(None, map(_why_not, parts)), "")


def _why_not(config: Config) -> str:
    if more := asks_for_more(config) or (config.env_kwargs and "the config has env_kwargs"):
        return more
    try:
        if not is_atari(config.env_id):
            with closing(make_env(config.env_id, {}, config.max_episode_steps)) as env:
                found = compiled_dynamics(env, {})
                return found if isinstance(found, str) else ""
    except ConfigError:  # which whoever makes it to train in will say, with its place
        pass
    return f"{config.env_id} is not compiled"


def make_compiled(config: Config, count: int, seed: int, stream: str) -> CompiledEnvironments:
    """`count` compiled environments; refuses, in one line, a config that asks for what they are not."""
    if more := asks_for_more(config):
        raise ConfigError(f"vectorization: compiled cannot be used: {more}", ("vectorization",))
    with closing(make_env(config.env_id, config.env_kwargs, config.max_episode_steps)) as env:
        found = compiled_dynamics(env, config.env_kwargs)
        if isinstance(found, str):
            raise ConfigError(f"vectorization: compiled cannot be used: {found}", ("vectorization",))
        check_spaces(config.env_id, env)
        masked = config.obeys_action_masks and found.masked
        seen = MaskInObservation(env).observation_space if masked else env.observation_space
        limit = without_wrappers(env)[1]
        lanes = CompiledSpaces(seen, env.action_space, limit is not None)
        if limit is None and stream != "train":
            limit = LONGEST_EVALUATION
        if config.obeys_action_masks:
            check_mask_space(config.env_id, seen, env.action_space)
    how: dict[str, Any] = dict(count=count, limit=limit, seed=seed, stream=stream, env_id=config.env_id)
    return CompiledEnvironments(found, lanes, **how)


def compiled_dynamics(env: Env, env_kwargs: Mapping[str, object]) -> Dynamics | str:
    """The dynamics that are equal to those of an environment as it was made, or why there are none."""
    spec = env.spec
    if env_kwargs:
        return (
            f"env_kwargs ask for another {spec.id if spec else 'environment'} than the one that is compiled"
        )
    if spec is None or spec.additional_wrappers or without_wrappers(env)[0] is not env.unwrapped:
        return "a wrapper stands around the environment"
    own = getattr(env.unwrapped, "dynamics", None)
    if isinstance(own, Dynamics):
        instead = method_instead(env.unwrapped)
        return f"{spec.id} has dynamics, but its {instead} is its own" if instead else own
    known = KNOWN.get(spec.id)
    if known is None:
        return f"{spec.id} is not compiled (docs/compiled_environments.md lists what is)"
    if (spec.entry_point, spec.kwargs) != (known.entry_point, dict(known.kwargs)):
        return f"{spec.id} is registered as {spec.entry_point} {spec.kwargs or ''}".rstrip()
    return known.load()


def method_instead(env: Env) -> str:
    """The first method that a subclass of the class with the `dynamics`, or the instance, has put in their place."""
    above = takewhile(lambda holder: "dynamics" not in vars(holder), [env, *type(env).__mro__])
    methods = {name for holder in above for name in vars(holder)}
    return next((name for name in STANDS_FOR if name in methods), "")


def environment_protocol(config: Config) -> dict[str, Any]:
    """What of an environment's making is worth a line in the manifest, defaults included."""
    return dataclasses.asdict(AtariSettings.of(config.env_kwargs)) if is_atari(config.env_id) else {}


def asks_for_more(config: Config) -> str:
    """What a config asks for besides the plain environment (layers, moving arguments, reports); empty if nothing."""
    more = {
        "wrappers": config.wrappers,
        "action_repeat": config.action_repeat > 1,
        "frame_stack": config.frame_stack > 1,
        "time_limit": config.time_limit is not None,
        "env_kwargs_schedule": config.env_kwargs_schedule,
        "info_metrics": config.info_metrics,
    }
    asked = ", ".join(name for name, wanted in more.items() if wanted)
    return asked and f"the config has {asked}"


# What Atari's vector environment takes in the place of each layer: nothing of Python can stand between its games.
INSTEAD_ON_ATARI = {
    "wrappers": "takes no wrapper; its env_kwargs are on the page about Atari",
    "action_repeat": "repeats actions itself: env_kwargs: {frame_skip: 4}",
    "frame_stack": "stacks frames itself: env_kwargs: {frame_stack: 4}",
    "time_limit": "counts steps itself: max_episode_steps",
    "env_kwargs_schedule": "keeps the arguments that it was made with",
}


def refuse_layers_on_atari(config: Config) -> None:
    for name, instead in INSTEAD_ON_ATARI.items():
        if getattr(config, name) != type(config).model_fields[name].default:
            raise ConfigError(f"{name}: Atari's vector environment is compiled and {instead}", (name,))


def make_whole(recipe: Recipe) -> Env:
    """One environment with all that a config puts around it."""
    return layered(make_bare(*recipe[:3]), recipe)


def make_env(env_id: str, env_kwargs: Mapping[str, object], max_episode_steps: int | None) -> Env:
    """One environment with nothing around it that a config asks for."""
    return make_whole(Recipe(env_id, env_kwargs, max_episode_steps))


@about("env_id")
def make_bare(env_id: str, env_kwargs: Mapping[str, object], max_episode_steps: int | None) -> Env:
    """One environment: a registered id, `module:EnvId`, a class of a file, a callable, or an object given in Python."""
    try:
        register_package(env_id)
        env = _make(env_id, env_kwargs, max_episode_steps)
        check_has_spaces(env)
        return env
    except ConfigError:
        raise
    except Broken as broken:
        raise ConfigError(_unusable(env_id, str(broken))) from None
    except gym.error.DependencyNotInstalled as error:
        needs = add_extra("mujoco") if "mujoco" in str(error).lower() else f"a package: {one_line(error)}"
        raise ConfigError(f"env_id {env_id!r} needs {needs}") from error
    except gym.error.UnregisteredEnv as error:
        raise ConfigError(f"env_id {env_id!r} is not registered with Gymnasium{_nearest(env_id)}") from error
    except TypeError as error:
        raise ConfigError(
            f"env_kwargs {dict(env_kwargs)} are rejected by {env_id}: {one_line(error)}", ("env_kwargs",)
        ) from error
    except Exception as error:  # whatever an environment's constructor or its module raises
        raise ConfigError(
            f"env_id {env_id!r} cannot be made: {one_line(error)}{_hint(env_id, error)}"
        ) from error


def _hint(env_id: str, error: Exception) -> str:
    """What to do about an error of an environment's constructor, where that is known."""
    if isinstance(error, ModuleNotFoundError) and ":" in env_id:
        return "; a class of a file beside the config is named FILE.py:Class"
    renderer = os.environ.get("MUJOCO_GL", "")
    # Names of OpenGL's functions and libraries: eglQueryString, glGetError, libOSMesa.
    if renderer in ("egl", "osmesa") and re.search(r"GL|OSMesa|osmesa|\b(lib)?egl|\bgl[A-Z]", str(error)):
        packages = "libegl1 and libgl1-mesa-dri" if renderer == "egl" else "libosmesa6"
        return f"; MUJOCO_GL={renderer} renders with the system's {packages}"
    return ""


def _make(env_id: str, env_kwargs: Mapping[str, object], max_episode_steps: int | None) -> Env:
    make = maker_of(env_id)
    if make is not None:
        return make_directly(make, max_episode_steps, **env_kwargs)
    named = spec_of_file(env_id) or env_id
    # The passive checker costs a third of CartPole's step; `rl-training check-env` does its work once.
    return gym.make(named, max_episode_steps=max_episode_steps, disable_env_checker=True, **env_kwargs)


def maker_again(env: Env, recipe: Recipe) -> Callable[..., Env]:
    """What makes another environment like this one, also in a process that has registered nothing."""
    make = maker_of(recipe.env_id)
    if make is not None:
        return partial(make_directly, make, recipe.max_episode_steps, **recipe.env_kwargs)
    assert env.spec is not None
    return partial(gym.make, env.spec)


def sees_pictures(config: Config) -> bool:
    """Whether the observation is a picture as the Nature CNN was made for."""
    space = observation_space_of(config)
    return is_image(space) and not is_small_image(space)


def observation_space_of(config: Config) -> gym.Space:
    """What a run of a config sees, behind all wrappers."""
    recipe = Recipe.of(config)
    if (make := maker_of_worlds(recipe)) is not None:
        return AgentLanes(make, 1, None, config.env_id).observation_space
    with closing(make_whole(recipe)) as env:
        space: gym.Space = env.observation_space
        return space


def check_spaces(env_id: str, env: Any) -> None:
    check_observation_space(env.observation_space, f"env_id {env_id!r}: its observation")
    check_action_space(env.action_space, f"env_id {env_id!r}: its action")


def try_out(config: Config) -> None:
    """One reset and one step, so that an environment that cannot run is refused before a run is begun.

    Of one that nobody knows, what else is worth a warning.
    """
    make = partial(make_whole, Recipe.of(config))
    began = time.process_time()
    with closing(make()) as env:
        making = time.process_time() - began
        _try_first_step(config, env)
        findings = [] if is_known(env.spec) else look_closer(env, make, making)
    for finding in findings:
        warnings.warn(f"{config.env_id}: {finding}{_more(config.env_id, ' ({})')}", stacklevel=3)


def _try_first_step(config: Config, env: Env) -> None:
    try:
        check_spaces(config.env_id, env)
        first_step(env)
    except ConfigError:
        raise
    except Broken as broken:
        raise ConfigError(_unusable(config.env_id, str(broken))) from None
    except Exception as error:
        settings = f"env_kwargs {config.env_kwargs}: " if config.env_kwargs else ""
        raise ConfigError(
            f"{settings}env_id {config.env_id!r} fails at its first step: {one_line(error)}{_more(config.env_id)}"
        ) from error


def _unusable(env_id: str, why: str) -> str:
    return f"env_id {env_id!r} cannot be used: {why}{_more(env_id)}"


def _more(env_id: str, form: str = "; {}") -> str:
    """The command that gives details about an environment; none for one that only this process has."""
    given = env_id.startswith(GIVEN)
    return "" if given else form.format(f"`rl-training check-env {shlex.quote(env_id)}` gives details")


def make_lanes(
    recipe: Recipe,
    count: int,
    vectorization: str,
    action_masks: bool = False,
    timeout: float | None = None,
) -> Lanes:
    """`count` equal environments, stepped in this process ("sync") or in a process each ("async").

    `action_masks` puts masks that an environment gives in its info into its observations; `timeout` is for processes
    that do not answer, in seconds. A native vector environment enters here: anything with the methods of `Lanes`.
    """
    bare = make_bare(*recipe[:3])
    env = layered(bare, recipe)
    masked = action_masks and gives_masks_in_info(env)
    make = Maker(maker_again(bare, recipe), recipe, MaskInObservation if masked else None)
    env = MaskInObservation(env) if masked else env
    if vectorization == "sync":
        return LocalLanes([env, *(make() for _ in range(count - 1))], make)
    try:
        return WorkerLanes(env, count, timeout, make)
    except EnvironmentFault as fault:
        fault.env_id = recipe.env_id
        raise


def _nearest(env_id: str) -> str:
    """The newest version of the environment meant, or else the id spelled most like it."""
    name = env_id.rsplit("-v", 1)[0].lower()
    versions = [spec for spec in gym.registry.values() if spec.id.rsplit("-v", 1)[0].lower() == name]
    if versions:
        return f"; did you mean {max(versions, key=lambda spec: spec.version or 0).id}?"
    return did_you_mean(env_id, gym.registry)
