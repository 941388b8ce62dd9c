"""`verify`: every algorithm's runs verify; a flip in a metric, a digest or a checkpoint is found and named."""

import copy
import json
import shutil
import zlib
from pathlib import Path

import pytest
import torch
from runs import RUNS
from test_cli import cli
from test_travelling import between, files_in

from rl_training.errors import RunError
from rl_training.runtime import paths
from rl_training.runtime.optim import Adam, flatten_parameters
from rl_training.runtime.trainer import Trainer
from rl_training.state import chain, checkpoints
from rl_training.state.run_directory import RunDirectory, versions
from rl_training.tools import verifying
from rl_training.tools.verifying import verify

ONE_OF_EACH = {RUNS[name]["algo"]: name for name in reversed(RUNS) if "wrapping:" not in str(RUNS[name])}


@pytest.mark.parametrize("name", sorted(ONE_OF_EACH.values()))
def test_a_run_of_every_algorithm_verifies(name, trained_run):
    run = trained_run(name)
    before, begin = files_in(run), checkpoints.step_of(checkpoints.listed(run / "checkpoints")[-2])
    verdict = verify(run, begin=begin)
    assert verdict.is_good, str(verdict)
    assert verdict.begins == begin < verdict.ends and verdict.lines >= 1 and verdict.checkpoints == 1
    assert files_in(run) == before


def test_a_whole_run_verifies_from_its_first_step(trained_run):
    run = trained_run("ppo-cartpole")
    verdict = verify(run)
    lines = len((run / "metrics.jsonl").read_text().splitlines())
    assert (verdict.is_good, verdict.begins, verdict.lines) == (True, 0, lines)
    assert verdict.checkpoints == len(checkpoints.listed(run / "checkpoints"))


def test_an_interval_ends_where_it_was_asked_to(trained_run):
    verdict = verify(trained_run("ppo-cartpole"), begin=0, end=600)
    assert verdict.is_good and verdict.ends == 600
    assert str(verdict) == "steps 0 to 600 verified, 0 of 2 lines differ"


def test_an_interval_that_begins_between_checkpoints_names_those_around_it(trained_run):
    run = trained_run("ppo-cartpole")
    before, last = (checkpoints.step_of(path) for path in checkpoints.listed(run / "checkpoints")[-2:])
    verdict = verify(run, begin=before + 1, end=last)
    assert verdict.is_good and verdict.begins == before
    assert verdict.note == f"step {before:,} is the nearest intact checkpoint at or before {before + 1:,}"
    assert str(verdict).endswith(", 1 checkpoint equal")
    early = verify(run, begin=1, end=before + 1)
    assert early.begins == 0 and early.note == (
        f"no intact checkpoint is kept at or before step 1, so it begins at 0; the next is --from {before}"
    )
    assert verify(run, begin=before, end=last).note == ""


@pytest.fixture
def copied(trained_run, tmp_path):
    """A run that may be changed, without its last checkpoint: the log after the one before it is covered by none."""
    run = Path(shutil.copytree(trained_run("ppo-cartpole"), tmp_path / "run"))
    shutil.rmtree(checkpoints.listed(run / "checkpoints")[-1])
    return run


def rewritten(run: Path, change) -> int:
    """Change the log's last line but one and give it and those after it hashes that fit; its step."""
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    place = max(n for n, line in enumerate(lines) if b"grad_norm" in line)
    value, new = chain.hash_of(lines[place - 1]), lines[:place]
    for line in lines[place:]:
        said = json.loads(line)
        said.pop("chain")
        if len(new) == place:
            change(said)
            step = said["step"]
        linked, value = chain.linked(value, said)
        new.append(linked)
    (run / "metrics.jsonl").write_bytes(b"".join(new))
    return step


def flip_metric(line: dict) -> None:
    line["value_loss"] = line["value_loss"] * (1 + 2**-52) or 1e-300


def flip_digest(line: dict) -> None:
    line["digest"] = f"{int(line['digest'], 16) ^ 1:08x}"


@pytest.mark.parametrize(("change", "name"), [(flip_metric, "value_loss"), (flip_digest, "digest")])
def test_one_flip_in_a_line_with_hashes_that_fit_is_found(change, name, copied):
    step = rewritten(copied, change)
    verdict = verify(copied, begin=step - 1)
    assert not verdict.is_good and f"step {step:,}, differs: {name} " in verdict.first
    assert verdict.first.count("(here ") == 1 and not verdict.why
    done = cli("verify", str(copied), "--from", str(step - 1))
    assert done.exit_code == 1 and name in done.output and "computation went wrong" in done.output


def test_one_flipped_bit_in_the_log_or_a_checkpoint_is_found(trained_run, tmp_path):
    run = Path(shutil.copytree(trained_run("ppo-cartpole"), tmp_path / "run"))
    path, log = checkpoints.listed(run / "checkpoints")[-1] / "weights.safetensors", run / "metrics.jsonl"
    for file, told in ((path, "its checksum does not match"), (log, "is damaged")):
        good = file.read_bytes()
        file.write_bytes(good[:-200] + bytes([good[-200] ^ 1]) + good[-199:])
        assert told in verify(run, begin=2900).first
        if file == path:
            before, last = map(checkpoints.step_of, checkpoints.listed(run / "checkpoints")[-2:])
            note = f"step {before:,} is the nearest intact checkpoint at or before {last:,}"
            assert verify(run, begin=last).note == note
        file.write_bytes(good)
    assert verify(run, begin=2900).is_good


def test_the_next_checkpoint_that_a_note_names_is_an_intact_one(trained_run, tmp_path):
    run = Path(shutil.copytree(trained_run("ppo-cartpole"), tmp_path / "run"))
    kept = checkpoints.listed(run / "checkpoints")[-2]
    assert f"the next is --from {checkpoints.step_of(kept)}" in verify(run, begin=1).note
    path = kept / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    verdict = verify(run, begin=1)
    assert kept.name in verdict.first and "--from" not in verdict.note


def test_a_log_that_is_gone_is_told_in_one_line(copied):
    step = checkpoints.step_of(checkpoints.listed(copied / "checkpoints")[-1])
    told = f"though the newest checkpoint is of step {step:,}"
    (copied / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match=f"metrics.jsonl: is empty, {told}"):
        verify(copied)
    (copied / "metrics.jsonl").unlink()
    done = cli("verify", str(copied))
    assert done.exit_code == 2 and f"metrics.jsonl: is missing, {told}" in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_forged_checkpoint_with_checksums_that_fit_is_found(trained_run, tmp_path):
    run = Path(shutil.copytree(trained_run("ppo-cartpole"), tmp_path / "run"))
    path = checkpoints.listed(run / "checkpoints")[-1]
    tree = checkpoints.load_checkpoint(path)
    name, weights = next(
        (name, part) for name, part in tree["policy"]["agent"]["network"].items() if part.dim() == 2
    )
    weights[0, 0] += 1e-3
    checkpoints.save_checkpoint(path.parent, checkpoints.step_of(path), tree, 9)
    first = verify(run, begin=between(trained_run("ppo-cartpole"))).first
    assert path.name in first and name in first and "1 of" in first


def test_old_lines_without_digests_verify(copied):
    lines = (copied / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert all("digest" in json.loads(line) for line in lines)
    step = rewritten(copied, lambda line: line.pop("digest"))
    assert verify(copied, begin=step - 1).is_good


def test_other_versions_and_the_order_of_the_clock_are_refused_unless_asked(copied, tmp_path):
    manifest = RunDirectory(copied).read_manifest()
    manifest["versions"]["numpy"] = "1.0"
    RunDirectory(copied)._write_manifest(manifest)
    with pytest.raises(RunError, match=r"numpy 1\.0.*--anyway"):
        verify(copied, begin=2900)
    verdict = verify(copied, begin=2900, anyway=True)
    assert verdict.is_good and any("numpy 1.0" in reason for reason in verdict.why)
    step = rewritten(copied, lambda line: line.pop("value_loss"))  # as if it were logged only since
    assert verify(copied, begin=step - 1, anyway=True).is_good
    manifest["versions"]["numpy"] = versions()["numpy"]
    RunDirectory(copied)._write_manifest(manifest)
    assert "value_loss None (here" in verify(copied, begin=step - 1).first


def test_a_digest_is_of_every_bit_of_every_parameter(trained_run):
    class Holder(Trainer):
        def __init__(self) -> None:
            self.agent = type("Agent", (), {})()
            self.agent.network = torch.nn.Linear(3, 2)
            self.critic = torch.nn.Linear(2, 1).to(torch.bfloat16)
            self.scale = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(1.0))])

    holder = Holder()
    digests = {holder.digest()}
    for _, parameter in holder.parameters():
        with torch.no_grad():
            parameter.view(-1)[-1:].view(torch.uint8)[0] ^= 1
        digests.add(holder.digest())
    assert len(digests) == 1 + 5


def test_a_digest_follows_whatever_is_exchanged():
    class Holder(Trainer):
        def __init__(self) -> None:
            self.agent = type("Agent", (), {})()
            self.agent.network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2, bias=False))
            self.network = torch.nn.Linear(2, 2)
            self.agent.empty = torch.nn.Linear(0, 2, bias=False)
            self.agent.grows = torch.nn.ModuleList()

    def expected(holder: Holder) -> str:
        parts = (holder.agent.network, holder.agent.empty, holder.agent.grows, holder.network)
        tensors = [each for part in parts for each in part.parameters()]
        value = 0
        for each in tensors:
            value = zlib.crc32(each.detach().contiguous().numpy().tobytes(), value)
        return f"{value:08x}"

    holder = Holder()
    network = holder.agent.network
    exchanges = [
        lambda: flatten_parameters(list(network.parameters())),  # as optimizers lay them
        lambda: setattr(network[0].weight, "data", network[0].weight.data.t()),
        lambda: setattr(network[0], "bias", torch.nn.Parameter(torch.ones(3))),
        lambda: setattr(network[0], "bias", None),
        lambda: network.append(torch.nn.Linear(2, 1)),
        lambda: holder.agent.grows.append(torch.nn.Linear(1, 1)),
        lambda: setattr(network[2].bias, "data", network[2].bias.data[:0]),
        lambda: setattr(holder, "network", torch.nn.Linear(1, 1)),
        lambda: holder.network.weight.data.fill_(7.0),
    ]
    assert holder.digest() == expected(holder)
    for exchange in exchanges:
        exchange()
        assert holder.digest() == expected(holder)
        assert copy.deepcopy(holder).digest() == expected(holder)


def test_a_digest_follows_networks_that_are_laid_out_anew():
    class Holder(Trainer):
        def __init__(self) -> None:
            self.agent = type("Agent", (), {})()
            self.agent.network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
            self.optimizer = Adam([self.agent.network])
            self.target, self.later = copy.deepcopy(self.agent.network), None

    def expected(holder: Holder) -> str:
        value = 0
        for _, each in holder.parameters():
            value = zlib.crc32(each.detach().contiguous().numpy().tobytes(), value)
        return f"{value:08x}"

    def replace_a_layer() -> None:
        holder.agent.network[1] = torch.nn.Linear(3, 2)
        holder.optimizer = Adam([holder.agent.network])

    def lay_out() -> None:
        vectors = flatten_parameters(list(holder.agent.network.parameters()))
        holder.optimizer.parameters, holder.optimizer.gradient = vectors

    holder = Holder()
    changes = [
        lambda: holder.optimizer.parameters.add_(1.0),
        lambda: setattr(holder.target[0], "bias", torch.nn.Parameter(torch.ones(3))),
        replace_a_layer,
        lay_out,
        lambda: holder.optimizer.parameters.add_(1.0),
        lambda: setattr(holder, "later", torch.nn.Linear(2, 2)),
        lambda: setattr(holder, "agent", copy.deepcopy(holder.agent)),
    ]
    digests = [holder.digest()]
    assert digests == [expected(holder)]
    for change in changes:
        change()
        digests.append(holder.digest())
        assert digests[-1] == expected(holder)
    assert len(set(digests)) == len(changes) - 1  # two of them change no number


def test_a_field_that_is_younger_than_the_run_is_no_difference(trained_run, tmp_path):
    newest = checkpoints.listed(trained_run("ppo-cartpole") / "checkpoints")[-1]
    tree = checkpoints.load_checkpoint(newest)
    config = {name: value for name, value in tree["policy"]["config"].items() if name != "log_std_init"}
    older = {**tree, "policy": {**tree["policy"], "config": config}}
    path = checkpoints.save_checkpoint(tmp_path / "checkpoints", checkpoints.step_of(newest), older, 9)
    assert verifying._unlike_checkpoints(path, newest) == ""
    assert "log_std_init: only in the first" in verifying._unlike_checkpoints(newest, path)


def test_a_knob_that_is_younger_than_the_run_is_no_difference(copied):
    step = rewritten(copied, lambda line: line.pop("gae_lambda"))
    assert "gae_lambda None (here" in verify(copied, begin=step - 1).first
    manifest = RunDirectory(copied).read_manifest()
    del manifest["config"]["gae_lambda"]
    RunDirectory(copied)._write_manifest(manifest)
    assert verify(copied, begin=step - 1).is_good


def test_another_revision_of_compiled_code_is_a_reason_and_no_refusal_if_asked(trained_run, monkeypatch):
    run = trained_run("ppo-cartpole")
    monkeypatch.setattr(paths, "REVISION", paths.REVISION + 1)
    with pytest.raises(RunError, match=r"of compiled code \(here .*--anyway"):
        verify(run, begin=2900)
    verdict = verify(run, begin=2900, anyway=True)
    assert verdict.is_good and any("of compiled code" in reason for reason in verdict.why)


def test_an_interval_without_anything_to_compare_is_no_verdict(trained_run):
    run = trained_run("ppo-cartpole")
    last = max(checkpoints.step_of(path) for path in checkpoints.listed(run / "checkpoints"))
    with pytest.raises(RunError, match=f"no line and no checkpoint after step {last}"):
        verify(run, begin=last)
