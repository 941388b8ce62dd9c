"""Regenerate what the documentation says of results: `make results`, or `python docs/make_results.py`.

Reads `results/` (rows, results, peers, learning gates, earlier figures), the demonstrations of `configs/gail` and the
scores of `benchmarks/results`, and rewrites the generated blocks of README and of all pages, the pictures
`docs/images/results_*.png` (with the extra `plot`) and the cards of the zoo.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.reporting import results
from rl_training.reporting.results import Measured
from rl_training.tools.reproducing import read_measured
from rl_training.tools.rows import read_row, row_names
from rl_training.tools.zoo import CARD, card

ROOT = Path(__file__).resolve().parents[1]
RESULTS, ZOO, IMAGES = ROOT / "results", ROOT / "zoo", ROOT / "docs" / "images"
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
GAME = "gumbel_muzero/connect_four"
OPPONENTS = ("random", "minimax:4", "solver")
GAMES_PICTURE = IMAGES / "connect_four.png"
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]

# Blocks that are generated from other data: docs/diagnose.md, held by tests/reporting/test_diagnose.py.
DIAGNOSED = re.compile(r"<!-- (proofs|corpus) -->\n.*?<!-- /\1 -->", re.S)
TABLE = re.compile(r"^(.*\|.*)\n[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t:-]*)+\n((?:.*\|.*(?:\n|$))*)", re.M)
# A cell that begins with a number, in bold or not.
NUMBER = re.compile(r"\**[-+−±]?\d")
# Headers of tables with numbers that are no scores, so that they may stand outside of generated blocks.
NO_SCORES = {
    # settings
    "| preset | observations | action repeat | networks | train ratio | |",
    "| | `ppo/cartpole` | `ppo/acrobot` | `ppo/pendulum` | `ppo/halfcheetah` |",
    "| field | default | meaning |",
    "| key | default | what |",
    "| key | default | what it does |",
    "| knob | aliases | range |",
    "| you write | seeds |",
    # speed and sizes
    "| | 1 | 8 | 64 | 256 |",
    "| code | search | simulations | reanalysed values | steps per CPU-second | ratio to the first row |",
    "| simulations | operations, 10⁹ | an update | at the speed of our products | at that of torch's |",
    "| MB on disk | latest 2 | `ladder` (13 checkpoints) | `all` (64) |",
    "| `dreamer/cartpole` | torch | compiled | ratio | torch's products alone | its products at peak |",
    "| `dreamer/cartpole` | imagination | heads, forward | heads, losses and backward | sequences, both ways "
    "| encoder and decoder | weights into panels | optimizer | batches | torch and Python |",
    "| config | a, per step | l, per step | s | m | n* |",
    "| config | first compilation |",
    "| part of an update, milliseconds | 50 simulations | 16 simulations |",
    "| row | against | ratio per CPU-second, median (lowest–highest) | required |",
    # numbers that name or count something
    "| # | detail | here |",
    "| class | exit code | when |",
    "| exit code | meaning |",
    "| format | what it means |",
    "| name | meaning |",
    "| revision of convolutions | what changed |",
    "| revision of encoders | what changed |",
    "| revision of environments | what changed |",
    "| revision of frames | what changed |",
    "| room | mutants | killed within 10 CPU-seconds of tests | killed |",
    "| shared revision | what changed |",
}


# README's extract: a row of each family and of most algorithms, also those that fall short.
EXTRACT = (
    "ppo/cartpole",
    "ppo/lunarlander",
    "ppo/halfcheetah",
    "ppo/hopper",
    "ppo/minatar_breakout",
    "ppo/pong",
    "a2c/lunarlander",
    "trpo/hopper",
    "recurrent_ppo/cartpole_no_velocity",
    "impala/minatar_breakout",
    "dqn/lunarlander",
    "sac/halfcheetah",
    "gail/hopper",
    "gumbel_muzero/cartpole",
)


def measured(folder: Path = RESULTS) -> dict[str, Measured]:
    """All rows, with the results that are kept."""
    return {name: read_measured(read_row(name), folder) for name in row_names()}


def stray_scores(text: str) -> list[str]:
    """The headers of tables outside of generated blocks that may hold scores: those with a number in a cell."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    outside = DIAGNOSED.sub("", results.BLOCK.sub("", outside))
    found = []
    for header, body in TABLE.findall(outside):
        cells = [cell.strip() for line in body.splitlines() for cell in line.split("|")]
        if any(map(NUMBER.match, cells)) and header.strip() not in NO_SCORES:
            found.append(header.strip())
    return found


def by_family(rows: dict[str, Measured]) -> dict[str, list[Measured]]:
    families: dict[str, list[Measured]] = {}
    for each in rows.values():
        families.setdefault(each.row.family, []).append(each)
    return families


def earlier() -> dict[str, Any]:
    """Tables from before raw data was kept: what is known of those figures."""
    tables: dict[str, Any] = json.loads((RESULTS / "earlier.json").read_text("utf-8"))["tables"]
    return tables


def earlier_table(found: dict[str, Any]) -> str:
    header, *rows = (f"| {' | '.join(cells)} |\n" for cells in (found["header"], *found["rows"]))
    return "".join([header, f"|{'|'.join(found['rule'])}|\n", *rows])


def gates() -> dict[str, Any]:
    """The learning gates that were run, by their names: `tests/learning/gates.py --keep`."""
    kept: dict[str, Any] = json.loads((RESULTS / "gates.json").read_text("utf-8"))
    return kept


def gate_table(found: dict[str, Any]) -> str:
    """One line for each gate, with all its seeds."""
    header = ("gate", "steps", "seeds", "untrained", "trained", "required of each", "seeds that miss it")
    return results.table(header, [_gate_cells(name, gate) for name, gate in found.items()], right=(1,)) + "\n"


def _gate_cells(name: str, gate: dict[str, Any]) -> list[str]:
    seeds = gate["seeds"]
    before, after = (
        ", ".join(f"{seed[part]:.1f}".replace("-", "−") for seed in seeds)
        for part in ("untrained", "trained")
    )
    missed = [seed["seed"] for seed in seeds if (seed["trained"] >= gate["score"]) == gate["control"]]
    score = f"{gate['score']:g}".replace("-", "−")
    required = f"below {score}" if gate["control"] else f"at least {score}"
    allowed = f" ({gate['may_fail']} may)" if gate["may_fail"] else ""
    return [
        f"`{name}`",
        results.thousands(seeds[0]["steps"]),
        ", ".join(str(seed["seed"]) for seed in seeds),
        *(before, after, required),
        (", ".join(map(str, missed)) or "none") + allowed,
    ]


def edge_table() -> str:
    """What critics expect at the edge of CartPole's track: `python -m benchmarks.track_edge`."""
    header = ("seed", "episodes that ended", "value 1 step before", "truth", "value 10 steps before", "truth")
    cells = []
    for each in json.loads((RESULTS / "track_edge.json").read_text("utf-8")):
        told = [f"{part[name]:.1f}" for part in each["before"].values() for name in ("value", "truth")]
        cells.append([str(each["seed"]), f"{each['ended']} of {each['of']}", *told])
    return results.table(header, cells, right=range(6)) + "\n"


def games() -> dict[str, Any]:
    """The runs of Connect Four that were measured, by seed: `python tests/learning/connect_four.py RUN_DIR --keep`."""
    kept: dict[str, Any] = json.loads((RESULTS / "connect_four.json").read_text("utf-8"))
    return kept


def games_block() -> str:
    """What runs of Connect Four win and how they move, a column for each seed, and the picture of it."""
    runs = games()
    sides = ("first", "second")

    def played(run: dict[str, Any], name: str, side: str) -> str:
        return " / ".join(str(run[name][f"{outcome}_as_{side}"]) for outcome in ("won", "drawn", "lost"))

    def kept(run: dict[str, Any], simulations: str, what: str) -> str:
        return f"{100 * run['kept'][simulations][what]:.1f} %"

    def last(run: dict[str, Any]) -> str:
        return f"{[*run['elo'].values()][-1]:+.0f}".replace("-", results.MINUS)

    def length(run: dict[str, Any]) -> str:
        return f"{results.thousands(run['steps'])} of {results.thousands(run['total_timesteps'])}"

    def games_of(run: dict[str, Any]) -> str:
        return ", ".join(str(sum(run[name].values())) for name in OPPONENTS)

    def begun(run: dict[str, Any]) -> str:
        most = run["settings"]["env_kwargs"]["random_moves"]
        points = run["settings"]["env_kwargs_schedule"].get("random_moves", {"points": [[0, most]]})["points"]
        return ", then ".join(str(number) for _, number in points)

    def lost_sooner(run: dict[str, Any]) -> str:
        found = run.get("minimax:4, shorter searches", run["minimax:4"])
        return f"{sum(found[f'lost_as_{side}'] for side in sides)} of {sum(found.values())}"

    searched = [*next(iter(runs.values()))["kept"]]
    cells = [
        ["moves of both sides, of those that the config asks for", *map(length, runs.values())],
        ["channels at each square", *(str(run["settings"]["latent_size"]) for run in runs.values())],
        ["random moves before a game, at most", *map(begun, runs.values())],
        ["CPU-minutes", *(f"{run['cpu_seconds'] / 60:.0f}" for run in runs.values())],
        [
            "simulations for a move against random and minimax",
            *(str(run["game_simulations"]) for run in runs.values()),
        ],
        *(
            [
                f"against {name}, moving {side}: won / drawn / lost",
                *(played(run, name, side) for run in runs.values()),
            ]
            for name in OPPONENTS
            for side in sides
        ),
        [f"lost to minimax:4 with {searched[-1]} simulations", *map(lost_sooner, runs.values())],
        *(
            [
                f"moves kept, {each} simulation{'s' * (each != '1')}",
                *(kept(run, each, "kept") for run in runs.values()),
            ]
            for each in searched
        ),
        [
            f"the same untrained, {searched[-1]} simulations",
            *(kept(run, searched[-1], "untrained") for run in runs.values()),
        ],
        ["Elo of the last checkpoint, 0 is random play", *map(last, runs.values())],
        [
            "measured: games against each, positions judged",
            *(f"{games_of(run)}; {run['kept'][searched[-1]]['positions']}" for run in runs.values()),
        ],
        ["all that is required", *("met" if run["passed"] else "**not met**" for run in runs.values())],
    ]
    header = ("", *(f"seed {seed}" for seed in runs))
    table = results.table(header, cells, right=range(1, len(header)))
    return f"{table}\n\n![Connect Four: Elo over a run, and moves kept over simulations](images/{GAMES_PICTURE.name})\n"


def games_card() -> str:
    """The card of the policy of Connect Four in the zoo."""
    run = shipped_game()
    searched, judged = [*run["kept"].items()][-1]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items() if version)
    lost = {
        name: (sum(run[name][f"lost_as_{side}"] for side in ("first", "second")), sum(run[name].values()))
        for name in OPPONENTS
    }
    lines = [
        f"# zoo:{GAME}",
        "",
        "`gumbel_muzero` on `rl_training/ConnectFour-v0`, the seed of this config that keeps the fewest moves.",
        "",
        f"- With {searched} simulations {100 * judged['kept']:.1f} % of its moves keep the theoretical value; "
        f"untrained {100 * judged['untrained']:.1f} %",
        *(
            f"- Lost against {name}, {searched if name == 'solver' else run['game_simulations']} simulations: "
            f"{count} of {of} games"
            for name, (count, of) in lost.items()
        ),
        f"- Seed {run['seed']}, {results.thousands(run['steps'])} moves of "
        f"{results.thousands(run['total_timesteps'])} that the config asks for",
        f"- Config: `{GAME}`",
        f"- Made with {versions}",
        f"- SHA-256 of weights.safetensors: `{run['weights_sha256']}`",
        "",
        f"    rl-training evaluate zoo:{GAME} --against me",
        f"    rl-training evaluate zoo:{GAME} --against minimax:4 --set num_simulations={run['game_simulations']}",
        "",
    ]
    return "\n".join(lines)


def shipped_game() -> dict[str, Any]:
    """The run whose policy is in the zoo."""
    ours = hashlib.sha256((ROOT / "zoo" / GAME / "weights.safetensors").read_bytes()).hexdigest()
    found: dict[str, Any] = next(run for run in games().values() if run["weights_sha256"] == ours)
    return found


def draw_games() -> None:
    """Elo over the checkpoints of each run, and moves kept over the simulations of a search."""
    from matplotlib.figure import Figure

    runs, digest = games(), games_digest()
    if drawn_digest(GAMES_PICTURE) == digest:
        return
    picture = Figure(figsize=(8, 3), layout="constrained")
    rated, judged = picture.subplots(1, 2)
    for (seed, run), line in zip(runs.items(), ("-", "--", ":", "-.") * len(runs), strict=False):
        curve = {int(step): rating for step, rating in run["elo"].items() if step.isdecimal()}
        rated.plot([*curve], [*curve.values()], line, color="#4051b5", marker=".", label=f"seed {seed}")
        simulations = [int(each) for each in run["kept"]]
        shares = {what: [100 * each[what] for each in run["kept"].values()] for what in ("kept", "untrained")}
        judged.plot(simulations, shares["kept"], line, color="#4051b5", marker=".", label=f"seed {seed}")
        judged.plot(
            simulations, shares["untrained"], line, color="#888", marker=".", label=f"seed {seed}, untrained"
        )
    rated.set(xlabel="moves", ylabel="Elo, random play is 0")
    judged.set(xlabel="simulations", ylabel="% of moves kept", xscale="log")
    for panel in (rated, judged):
        panel.legend(fontsize=7)
        panel.tick_params(labelsize=7)
    results.save_described(picture, GAMES_PICTURE, digest)


def games_digest() -> str:
    """Of what the picture shows."""
    shown = {seed: [run["elo"], run["kept"]] for seed, run in games().items()}
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def experts_table() -> str:
    """The demonstrations that are shipped, from what `rl-training record` wrote beside them."""
    header = ("file", "made by", "episodes", "mean return", "lowest", "highest")
    cells = []
    for path in sorted((ROOT / "configs" / "gail").glob("*_expert.json")):
        told = json.loads(path.read_text("utf-8"))
        name, found = path.stem.removesuffix("_expert"), told["returns"]
        figures = [
            f"{each:.1f}".replace("-", results.MINUS) for each in (np.mean(found), min(found), max(found))
        ]
        made_by = f"`{told['algo']}/{name}`, seed {told['seed']}"
        cells.append([f"`configs/gail/{path.stem}.npz`", made_by, str(told["episodes"]), *figures])
    return results.table(header, cells, right=(2, 3, 4, 5)) + "\n"


def benchmark_scores() -> str:
    """The scores beside our speed and a peer's, of all comparisons that have some: `python -m benchmarks`."""
    header = ("row", "steps", "against", "ours, mean ± standard error", "theirs", "seeds")
    cells = []
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        data = json.loads(path.read_text("utf-8"))["data"]
        if "peer" in data:
            runs, against = (data["ours"]["ours"], data["theirs"]), data["peer"]["name"]
        elif "base" in data:
            (against, theirs), (_, ours) = data["runs"].items()
            runs = ours, theirs
        else:  # no comparison
            continue
        scores = [[run["score"] for run in side if run.get("score") is not None] for side in runs]
        if all(scores):
            errors = [np.std(one, ddof=1) / len(one) ** 0.5 for one in scores]
            means = [results.figure(float(np.mean(one))) for one in scores]
            told = [
                f"{mean} ± {error:.0f}" if error >= 1 else f"{mean} ± {error:.1g}"
                for mean, error in zip(means, errors, strict=True)
            ]
            steps = results.thousands(runs[0][0]["steps"])
            cells.append([f"`{path.stem}`", steps, against, *told, str(len(scores[0]))])
    return results.table(header, cells, right=(1, 3, 4, 5)) + "\n"


def family_block(family: str, members: list[Measured]) -> str:
    """The table of a family, and the picture of its learning curves once there are some."""
    text = results.family_table(members)
    if any(each.result is not None for each in members):
        text += f"\n![Learning curves, {family}](images/{picture_of(family).name})\n"
    return text


def blocks() -> dict[str, Callable[[], str]]:
    """The text of every generated block, by its name."""
    rows = measured()
    made: dict[str, Callable[[], str]] = {
        "extract": lambda: results.extract_table([rows[name] for name in EXTRACT])
    }
    for family, members in by_family(rows).items():
        made[f"family {family}"] = partial(family_block, family, members)
    kept = gates()
    made["gates"] = partial(gate_table, kept)
    for algo in sorted({gate["config"].partition("/")[0] for gate in kept.values()}):
        own = {name: gate for name, gate in kept.items() if gate["config"].startswith(f"{algo}/")}
        made[f"gates {algo}"] = partial(gate_table, own)
    made["track edge"] = edge_table
    made["experts"] = experts_table
    made["connect four"] = games_block
    made["benchmark scores"] = benchmark_scores
    for name, found in earlier().items():
        made[f"earlier {name}"] = partial(earlier_table, found)
    return made


def picture_of(family: str) -> Path:
    return IMAGES / f"results_{family.lower().replace(' ', '_')}.png"


def data_digest(members: list[Measured]) -> str:
    """Of all that a family's picture shows."""
    shown = [
        [each.row.name, [seed["curve"] for seed in each.seeds], [one.score for one in each.row.references]]
        for each in members
        if each.result is not None
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def drawn_digest(path: Path) -> str:
    """The digest that a picture carries."""
    text = path.read_bytes() if path.is_file() else b""
    return text.partition(b"Description\0")[2][:64].decode("ascii", errors="replace")


def draw(rows: dict[str, Measured]) -> None:
    for family, members in by_family(rows).items():
        path, digest = picture_of(family), data_digest(members)
        if any(each.result is not None for each in members) and drawn_digest(path) != digest:
            results.draw_family(members, path, family, digest)
    draw_games()


def main() -> None:
    made, rows = blocks(), measured()
    for page in PAGES:
        text = page.read_text("utf-8")
        again = results.rewritten(text, made)
        if again != text:
            page.write_text(again, "utf-8")
    for name, each in rows.items():
        if (ZOO / name).is_dir():
            (ZOO / name / CARD).write_text(card(each), "utf-8")
    (ZOO / GAME / CARD).write_text(games_card(), "utf-8")
    draw(rows)


if __name__ == "__main__":
    main()
