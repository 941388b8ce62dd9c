"""Checkpoints that are torn, flipped, forged, or written to a disk that fails."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import random
import re
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training.errors import CheckpointError, StorageError
from rl_training.state import checkpoints, files
from rl_training.state.checkpoints import (
    load_checkpoint,
    newest_good_checkpoint,
    newest_progress,
    save_checkpoint,
    save_policy,
)
from rl_training.state.formats import FORMAT
from rl_training.state.segments import SegmentStore

SKELETON, WEIGHTS, STATE = "state.json", "weights.safetensors", "state.safetensors"


def small_tree(step: int = 0) -> dict[str, Any]:
    return {
        "policy": {"weight": torch.full((3,), float(step)), "scale": 0.5},
        "trainer": {"steps": step, "mean": np.full(2, step), "pair": (1, None), 3: float("nan")},
    }


def save(folder: Path, step: int, keep: int = 2) -> Path:
    return save_checkpoint(folder, step, small_tree(step), keep)


def save_with_segments(folder: Path, step: int, keep: int = 2) -> Path:
    """A checkpoint that counts on two segments of its own and one that it shares with the others."""
    store = SegmentStore(folder.parent / "replay")
    store.write("replay-000000000000.safetensors", {"reward": np.arange(4.0)})
    for number in (2 * step, 2 * step + 1):
        store.write(f"replay-{number:012d}.safetensors", {"reward": np.full(3, float(number))})
    return save_checkpoint(folder, step, small_tree(step) | {"segments": store.entries}, keep)


def segment(number: int) -> str:
    return f"replay-{number:012d}.safetensors"


def step_in(tree: dict[str, Any]) -> int:
    assert int(tree["policy"]["weight"][0]) == tree["trainer"]["steps"]
    return int(tree["trainer"]["steps"])


def newest_step(folder: Path) -> int | None:
    found = newest_good_checkpoint(folder)
    return None if found is None else step_in(found[1])


def forge(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edit state.json as an attacker would: with a checksum that is right again, for all three files."""
    skeleton = json.loads((path / SKELETON).read_bytes())
    del skeleton["sha256"]
    for name, entry in skeleton["files"].items():
        if (path / name).is_file():
            data = (path / name).read_bytes()
            entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    replaced = edit(skeleton)
    forge_text(path, json.dumps(skeleton)[1:] if not isinstance(replaced, str) else replaced)


def forge_text(path: Path, text: str) -> None:
    data = text.encode()
    line = b'{"sha256":"' + hashlib.sha256(data).hexdigest().encode() + b'",\n'
    (path / SKELETON).write_bytes(line + data)


def put_tensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> None:
    """A state.safetensors with any header, and a state.json that vouches for it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (path / STATE).write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    forge(path, lambda skeleton: None)


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    checked = 0
    for name in (SKELETON, WEIGHTS, STATE):
        data = (path / name).read_bytes()
        with open(path / name, "r+b", buffering=0) as file:
            for place in range(len(data)):
                for bit in range(8):
                    file.seek(place)
                    file.write(bytes([data[place] ^ 1 << bit]))
                    with pytest.raises(CheckpointError):
                        load_checkpoint(path)
                    checked += 1
                file.seek(place)
                file.write(data[place : place + 1])
    assert checked > 4000
    load_checkpoint(path)


def test_truncated_and_lengthened_files_are_detected(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    for name in (SKELETON, WEIGHTS, STATE):
        data = (path / name).read_bytes()
        for wrong in (b"", data[:-1], data[: len(data) // 2], data + b"\0", data + b"\n", data + data):
            (path / name).write_bytes(wrong)
            with pytest.raises(CheckpointError):
                load_checkpoint(path)
        (path / name).unlink()
        with pytest.raises(CheckpointError):
            load_checkpoint(path)
        (path / name).write_bytes(data)
    assert step_in(load_checkpoint(path)) == 1


def test_no_more_is_read_than_the_documentation_says(tmp_path: Path) -> None:
    """16 GiB of tensors and 256 MiB of state.json, whatever a checkpoint lists; the files here take no space."""
    path = save(tmp_path, 1)
    forge(path, lambda skeleton: skeleton["files"][STATE].update(bytes=2**40))
    os.truncate(path / STATE, 16 * 2**30 + 1)
    with pytest.raises(CheckpointError, match="more than the 17179869184 due"):
        load_checkpoint(path)
    os.truncate(path / SKELETON, 256 * 2**20 + 1)
    with pytest.raises(CheckpointError, match="more than the 268435456 due"):
        load_checkpoint(path)


def test_the_newest_progress_is_that_of_the_newest_that_has_any(tmp_path: Path) -> None:
    assert newest_progress(tmp_path) is None
    for step, progress in ((1, {"steps": 1}), (2, {"steps": 2}), (3, [3]), (4, {"steps": 4})):
        save_checkpoint(tmp_path, step, small_tree(step) | {"progress": progress}, 4)
    assert newest_progress(tmp_path) == {"steps": 4}
    (tmp_path / f"step-{4:012d}" / SKELETON).write_text("{")
    assert newest_progress(tmp_path) == {"steps": 2}, "no list is progress"


def test_only_the_policy_needs_only_the_weights(tmp_path: Path) -> None:
    path = save(tmp_path, 4)
    (path / STATE).unlink()
    assert load_checkpoint(path, only="policy")["policy"]["weight"].tolist() == [4.0] * 3
    with pytest.raises(CheckpointError):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="holds no 'actor'"):
        load_checkpoint(path, only="actor")
    (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:-1] + b"\1")
    with pytest.raises(CheckpointError, match="checksum"):
        load_checkpoint(path, only="policy")


def test_the_newest_good_one_is_used_and_damaged_ones_are_told(tmp_path: Path) -> None:
    assert newest_good_checkpoint(tmp_path / "missing") is None
    for step in (1, 2, 3):
        save(tmp_path, step, keep=3)
    (tmp_path / "step-000000000003" / STATE).write_bytes(b"torn")
    (tmp_path / "step-000000000002" / SKELETON).unlink()
    warnings: list[str] = []
    found = newest_good_checkpoint(tmp_path, warn=warnings.append)
    assert found is not None
    assert found[0] == tmp_path / "step-000000000001"
    assert [re.findall("step-0+(.)", line) for line in warnings] == [["3"], ["2"]]
    shutil.rmtree(found[0])
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
        newest_good_checkpoint(tmp_path)
    save(tmp_path, 3)
    assert newest_step(tmp_path) == 3, "a damaged checkpoint is replaced when its step is reached again"


def test_a_newer_format_is_refused_and_no_older_one_taken_instead(tmp_path: Path) -> None:
    save(tmp_path, 1)
    forge(save(tmp_path, 2), lambda skeleton: skeleton.update(format=FORMAT + 1, tree="something else"))
    for load in (
        lambda: newest_good_checkpoint(tmp_path),
        lambda: load_checkpoint(tmp_path / "step-000000000002"),
    ):
        with pytest.raises(CheckpointError, match="update rl-training"):
            load()


def test_old_checkpoints_go_only_after_a_new_one_is_there(tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path, step, keep=2)
        (tmp_path / ".writing-step-000000000009").mkdir(exist_ok=True)
    shutil.rmtree(tmp_path / ".writing-step-000000000009")
    assert sorted(os.listdir(tmp_path)) == ["step-000000000004", "step-000000000005"]


class Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


DEEP = '"format":1,"step":1,"files":{},"tree":{"a":' + "[" * 100_000 + "]" * 100_000 + "}}"
WIDE_HEADER = {"mean": {"dtype": "F64", "shape": [2**40, 2**40], "data_offsets": [0, 16]}}


def tensor_header(**changes: Any) -> dict[str, Any]:
    return {"trainer.mean": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]} | changes}


def zip_slip(path: Path) -> None:
    with zipfile.ZipFile(path / STATE, "w") as archive:
        archive.writestr("../../escaped", "x")
    forge(path, lambda skeleton: None)


def pickled(name: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        (path / name).write_bytes(pickle.dumps(Payload()))
        if name != SKELETON:
            forge(path, lambda skeleton: None)

    return make


def torch_saved(path: Path) -> None:
    torch.save({"trainer.mean": Payload()}, path / STATE)
    forge(path, lambda skeleton: None)


def linked(name: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        (path / name).rename(path.parent / "elsewhere")
        (path / name).symlink_to(path.parent / "elsewhere")

    return make


def linked_directory(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def pipe(path: Path) -> None:
    (path / STATE).unlink()
    os.mkfifo(path / STATE)


def device(path: Path) -> None:
    (path / SKELETON).unlink()
    (path / SKELETON).symlink_to("/dev/zero")


def directory(path: Path) -> None:
    (path / STATE).unlink()
    (path / STATE).mkdir()


def sparse(name: str, size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        os.truncate(path / name, size)
        if name != SKELETON:
            text = json.loads((path / SKELETON).read_bytes())
            text["files"][name]["bytes"] = size
            del text["sha256"]
            forge_text(path, json.dumps(text)[1:])

    return make


def value(node: Any) -> Callable[[Path], None]:
    """A checkpoint with this JSON in its tree."""
    return lambda path: forge(path, lambda skeleton: skeleton["tree"].update(extra=node))


def tagged(kind: Any, **fields: Any) -> Callable[[Path], None]:
    return value({"~": kind} | fields)


MALICIOUS: dict[str, Callable[[Path], Any]] = {
    "pickle as weights": pickled(WEIGHTS),
    "pickle as state": pickled(STATE),
    "pickle as json": pickled(SKELETON),
    "torch.save as state": torch_saved,
    "zip slip": zip_slip,
    "link for weights": linked(WEIGHTS),
    "link for state": linked(STATE),
    "link for json": linked(SKELETON),
    "link for the directory": linked_directory,
    "pipe": pipe,
    "endless device": device,
    "directory for a file": directory,
    "huge sparse json": sparse(SKELETON, 2**40),
    "huge sparse tensors": sparse(STATE, 2**40),
    "deep json": lambda path: forge_text(path, DEEP),
    "deep enough to decode": value(json.loads("[" * 150 + "]" * 150)),
    "no json": lambda path: forge_text(path, "import os"),
    "json array": lambda path: forge_text(path, "]"),
    "bare NaN": lambda path: forge_text(path, '"format":1,"step":1,"files":{},"tree":{"a":NaN}}'),
    "endless number": lambda path: forge_text(
        path, f'"format":1,"step":{"9" * 100_000}' + ',"files":{},"tree":{}}'
    ),
    "not utf-8": lambda path: (path / SKELETON).write_bytes(b"\xff" * 100),
    "no format": lambda path: forge(path, lambda skeleton: skeleton.pop("format")),
    "format of wrong type": lambda path: forge(path, lambda skeleton: skeleton.update(format="1")),
    "no tree": lambda path: forge(path, lambda skeleton: skeleton.pop("tree")),
    "tree of wrong type": lambda path: forge(path, lambda skeleton: skeleton.update(tree=[1])),
    "no files": lambda path: forge(path, lambda skeleton: skeleton.update(files=None)),
    "files of wrong type": lambda path: forge(path, lambda skeleton: skeleton["files"].update({STATE: 3})),
    "another file": lambda path: forge(path, lambda skeleton: skeleton.update(files={"../../escaped": {}})),
    "absurd shape": lambda path: put_tensors(path, WIDE_HEADER, bytes(16)),
    "absurd empty shape": lambda path: put_tensors(
        path, tensor_header(shape=[0, 2**62, 2**62], data_offsets=[0, 0]), b""
    ),
    "negative shape": lambda path: put_tensors(path, tensor_header(shape=[-2]), bytes(16)),
    "overlapping": lambda path: put_tensors(
        path, tensor_header() | {"b": tensor_header()["trainer.mean"]}, bytes(16)
    ),
    "outside the file": lambda path: put_tensors(path, tensor_header(data_offsets=[0, 2**50]), bytes(16)),
    "backwards": lambda path: put_tensors(path, tensor_header(data_offsets=[16, 0]), bytes(16)),
    "header beyond the file": lambda path: put_tensors(path, tensor_header(), bytes(16), length=2**63),
    "header that is no json": lambda path: put_tensors(path, b"[" * 1000),
    "unknown dtype": lambda path: put_tensors(path, tensor_header(dtype="object"), bytes(16)),
    "bool that is neither true nor false": lambda path: put_tensors(
        path, tensor_header(dtype="BOOL", shape=[16]), b"\2" * 16
    ),
    "dtype we never write": lambda path: put_tensors(
        path, tensor_header(dtype="F8_E4M3", shape=[16]), bytes(16)
    ),
    "tensor missing": lambda path: put_tensors(path, {}),
    "tensor too many": lambda path: put_tensors(
        path, tensor_header() | {"b": {"dtype": "U8", "shape": [1], "data_offsets": [16, 17]}}, bytes(17)
    ),
    "unknown kind": tagged("os.system", items=["mkdir executed"]),
    "kind that is no text": tagged(["tuple"], items=[]),
    "scalar of objects": tagged("scalar", dtype="object", bits="00" * 8),
    "scalar too long": tagged("scalar", dtype="float32", bits="00" * 8),
    "scalar that is no hex": tagged("scalar", dtype="float32", bits="zz"),
    "float too short": tagged("float", bits="00"),
    "tuple of a number": tagged("tuple", items=3),
    "tuple with more": tagged("tuple", items=[], more=1),
    "deque too short": tagged("deque", items=[1, 2], maxlen=1),
    "deque of no length": tagged("deque", items=[], maxlen="1"),
    "deque of absurd length": tagged("deque", items=[], maxlen=2**70),
    "dict of lists": tagged("dict", items=[[[], 1]]),
    "dict of floats": tagged("dict", items=[[0.5, 1]]),
    "dict without pairs": tagged("dict", items=[[1]]),
    "state of a list": tagged("state", items=[]),
    "tensor outside": tagged("tensor", name="../../escaped"),
    "tensor without a name": tagged("tensor", name=3),
}


def entry(**changes: Any) -> Callable[[Path], None]:
    """Another list of segments."""
    return lambda path: forge(path, lambda skeleton: skeleton["segments"].update(changes))


def renamed(name: str) -> Callable[[Path], None]:
    """A segment under a name that leads elsewhere, where a file with the right bytes lies."""

    def make(path: Path) -> None:
        data = (path.parents[1] / "replay" / segment(4)).read_bytes()
        (path.parents[2] / "outside.safetensors").write_bytes(data)
        forge(
            path, lambda skeleton: skeleton["segments"].update({name: skeleton["segments"].pop(segment(4))})
        )

    return make


def segment_as(kind: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        victim = path.parents[1] / "replay" / segment(4)
        victim.rename(victim.with_name("elsewhere"))
        if kind == "link":
            victim.symlink_to(victim.with_name("elsewhere"))
        elif kind == "pipe":
            os.mkfifo(victim)
        elif kind == "directory":
            victim.mkdir()
        elif kind == "sparse":
            victim.touch()
            os.truncate(victim, 2**40)
            forge(path, lambda skeleton: skeleton["segments"][segment(4)].update(bytes=2**40))
        elif kind == "pickle":
            victim.write_bytes(pickle.dumps(Payload()))

    return make


def linked_replay(path: Path) -> None:
    folder = path.parents[1] / "replay"
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


GOOD_ENTRY = {"bytes": 3, "sha256": "0" * 64}
MALICIOUS_SEGMENTS: dict[str, Callable[[Path], Any]] = {
    "list of wrong type": lambda path: forge(path, lambda skeleton: skeleton.update(segments=[1])),
    "entry of wrong type": entry(**{segment(4): 3}),
    "entry without checksum": entry(**{segment(4): {"bytes": 3}}),
    "entry with more": entry(**{segment(4): GOOD_ENTRY | {"path": "/etc/passwd"}}),
    "size of wrong type": entry(**{segment(4): GOOD_ENTRY | {"bytes": "3"}}),
    "size below zero": entry(**{segment(4): GOOD_ENTRY | {"bytes": -1}}),
    "checksum of wrong type": entry(**{segment(4): {"bytes": 3, "sha256": ["0"]}}),
    "path upwards": renamed("../../outside.safetensors"),
    "path upwards in a good form": renamed("../replay-000000000004.safetensors"),
    "absolute path": renamed("/etc/passwd"),
    "name with a line end": renamed(segment(4) + "\n"),
    "name of another kind": renamed("replay-000000000004.pickle"),
    "link for a segment": segment_as("link"),
    "pipe for a segment": segment_as("pipe"),
    "directory for a segment": segment_as("directory"),
    "huge sparse segment": segment_as("sparse"),
    "pickle for a segment": segment_as("pickle"),
    "missing segment": segment_as("nothing"),
    "link for the folder": linked_replay,
}


@pytest.mark.parametrize("make", MALICIOUS_SEGMENTS.values(), ids=MALICIOUS_SEGMENTS.keys())
def test_malicious_segments_execute_nothing_and_the_checkpoint_before_is_used(
    make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run" / "checkpoints"
    save_checkpoint(folder, 1, small_tree(1), 2)  # counts on no segment
    path = save_with_segments(folder, 2)
    assert newest_step(folder) == 2
    make(path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert newest_step(folder) == 1
    assert load_checkpoint(path, only="policy")["policy"]["weight"][0] == 2.0, "acting needs no replay"
    assert sorted(tmp_path.rglob("*")) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300 * 1024


def test_every_flipped_byte_of_a_segment_is_detected(tmp_path: Path) -> None:
    path = save_with_segments(tmp_path / "checkpoints", 1)
    victim = tmp_path / "replay" / segment(2)
    data = victim.read_bytes()
    for place in range(len(data)):
        victim.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match="checksum"):
            load_checkpoint(path)
    victim.write_bytes(data)
    load_checkpoint(path)


def test_segments_go_only_when_no_checkpoint_lists_them(tmp_path: Path) -> None:
    folder, replay = tmp_path / "checkpoints", tmp_path / "replay"
    for step in (1, 2, 3, 4):
        save_with_segments(folder, step)
        (replay / ".writing-replay-000000000099.safetensors").write_bytes(b"torn")
        (replay / "of the user").write_bytes(b"kept")
    save_with_segments(folder, 5)
    kept = sorted(name for name in os.listdir(replay) if name.startswith("replay"))
    assert kept == [segment(number) for number in (0, 8, 9, 10, 11)]
    assert sorted(os.listdir(replay)) == ["of the user", *kept]
    assert step_in(load_checkpoint(folder / "step-000000000004")) == 4


def test_a_kill_at_any_call_leaves_checkpoints_with_all_their_segments(tmp_path: Path) -> None:
    save_with_segments(tmp_path / "start" / "checkpoints", 1)
    save_with_segments(tmp_path / "start" / "checkpoints", 2)
    at, died = 0, True
    while died:
        at += 1
        folder = tmp_path / str(at) / "checkpoints"
        shutil.copytree(tmp_path / "start", folder.parent)
        child = os.fork()
        if child == 0:
            die_at(at)
            save_with_segments(folder, 3)
            os._exit(0)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        warnings: list[str] = []
        found = newest_good_checkpoint(folder, warn=warnings.append)
        assert found is not None and step_in(found[1]) in (2, 3) and not warnings
        save_with_segments(folder, 4)
        assert newest_step(folder) == 4
        listed = {name for step in (3, 4) for name in (segment(2 * step), segment(2 * step + 1))} | {
            segment(0)
        }
        there = set(os.listdir(folder.parent / "replay"))
        assert there <= listed | {segment(4), segment(5)}, "no more than two checkpoints count on"
    assert at > 25


@pytest.mark.parametrize("make", MALICIOUS.values(), ids=MALICIOUS.keys())
def test_a_malicious_checkpoint_executes_nothing_and_writes_nothing(
    make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run" / "checkpoints"
    path = save(folder, 2)
    make(path)
    save_aside = tmp_path / "run" / "good"
    save(save_aside, 1)
    shutil.copytree(save_aside / "step-000000000001", folder / "step-000000000001")
    workplace = tmp_path / "workplace"
    workplace.mkdir()
    monkeypatch.chdir(workplace)
    before = sorted(tmp_path.rglob("*"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert newest_step(folder) == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300 * 1024, (
        "in kB: memory is bounded"
    )


def test_the_payload_of_the_corpus_would_execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Payload()))
    assert (tmp_path / "executed").is_dir()


def test_a_forged_checkpoint_that_is_well_formed_loads(tmp_path: Path) -> None:
    """The corpus is refused for what is wrong in it, and not because the forging itself shows."""
    path = save(tmp_path, 1)
    forge(path, lambda skeleton: skeleton["tree"].update(extra={"~": "tuple", "items": [1]}))
    assert load_checkpoint(path)["extra"] == (1,)
    put_tensors(path, tensor_header(), struct.pack("<qq", 5, 6))
    assert load_checkpoint(path)["trainer"]["mean"].tolist() == [5, 6]


class Faults:
    """Makes the n-th call that changes the disk fail, and those after it too when `lasting`."""

    CALLS = ("write", "fsync", "rename", "replace", "open", "mkdir")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, lasting: bool, code: int) -> None:
        self.count, self.at, self.lasting, self.code = 0, at, lasting, code
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name), name))

    def wrap(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR):
                return real(*args, **kwargs)  # a full disk can be read
            self.count += 1
            if self.count == self.at or (self.lasting and self.count > self.at):
                if name == "write":
                    real(args[0], bytes(args[1])[:3])  # torn, as full disks do
                raise OSError(self.code, os.strerror(self.code))
            return real(*args, **kwargs)

        return call


def refusal(write: Callable[..., object], *arguments: Any) -> str:
    """What a failed write says; nothing when it did not fail."""
    try:
        write(*arguments)
    except StorageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step again"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["disk full", "bad disk"])
def test_a_failing_write_anywhere_keeps_the_last_good_checkpoint(
    tmp_path: Path, code: int, lasting: bool, again: bool
) -> None:
    save(tmp_path / "start", 1)
    save(tmp_path / "start", 2)
    step = 2 if again else 3
    tree = small_tree(step) | {"new": True}
    failures, at = 0, 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "start", folder)
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, lasting=lasting, code=code)
            message = refusal(save_checkpoint, folder, step, tree, 2)
        assert newest_step(folder) in (2, step), f"call {at}"
        if message:
            failures += 1
            assert os.strerror(code) in message
            assert "the last good checkpoint is" in message
        assert save_checkpoint(folder, step, tree, keep=2).is_dir(), "the disk is well again"
        found = newest_good_checkpoint(folder)
        assert found is not None
        assert found[1]["new"] is True
        assert not [name for name in os.listdir(folder) if name.startswith(".")], (
            "nothing is left lying about"
        )
        if failures and not message:
            break
    assert failures >= 13, "open, write and fsync of three files, mkdir, rename, two directories"


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
def test_a_failing_write_anywhere_keeps_a_best_policy(tmp_path: Path, lasting: bool) -> None:
    failures, at = 0, 0
    while True:
        at += 1
        best = tmp_path / str(at) / "best"
        save_policy(best, 1, small_tree(1))
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, lasting=lasting, code=errno.ENOSPC)
            message = refusal(save_policy, best, 2, small_tree(2))
        assert load_checkpoint(best, only="policy")["policy"]["weight"][0] in (1.0, 2.0), f"call {at}"
        failures += bool(message)
        save_policy(best, 3, small_tree(3))
        assert load_checkpoint(best)["policy"]["weight"][0] == 3.0
        assert "trainer" not in load_checkpoint(best)
        assert os.listdir(best.parent) == ["best"]
        if failures and not message:
            break
    assert failures >= 13


@pytest.mark.parametrize("what", ["new step", "same step again", "best"])
def test_a_kill_at_any_call_leaves_a_good_checkpoint(tmp_path: Path, what: str) -> None:
    """A child process dies right before its n-th call that changes the disk, cleaning up nothing."""
    save(tmp_path / "start", 1)
    save(tmp_path / "start", 2)
    save_policy(tmp_path / "start" / "best", 2, small_tree(2))
    at, died = 0, True
    while died:
        at += 1
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "start", folder)
        child = os.fork()
        if child == 0:
            die_at(at)
            if what == "best":
                save_policy(folder / "best", 3, small_tree(3))
            else:
                step = 2 if what == "same step again" else 3
                save_checkpoint(folder, step, small_tree(step) | {"new": True}, keep=2)
            os._exit(0)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert newest_step(folder) in (2, 3)
        assert load_checkpoint(folder / "best")["policy"]["weight"][0] in (2.0, 3.0)
        save(folder, 4)
        save_policy(folder / "best", 4, small_tree(4))
        assert newest_step(folder) == 4
        assert load_checkpoint(folder / "best")["policy"]["weight"][0] == 4.0
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
    assert at > 13


def die_at(number: int) -> None:
    count = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os._exit(9)
            return real(*args, **kwargs)

        return call

    for name in (*Faults.CALLS, "unlink", "rmdir"):
        setattr(os, name, wrap(getattr(os, name)))


def test_damage_at_random_is_never_read_as_good(tmp_path: Path) -> None:
    """Whole bytes changed, cut out and put in, with a good state.json checksum for none of them."""
    path = save(tmp_path, 5)
    chance = random.Random(0)
    for name in (SKELETON, WEIGHTS, STATE):
        data = (path / name).read_bytes()
        for _ in range(60):
            place, length = chance.randrange(len(data)), chance.randrange(1, 20)
            wrong = data[:place] + chance.randbytes(chance.randrange(20)) + data[place + length :]
            if wrong != data:
                (path / name).write_bytes(wrong)
                with pytest.raises(CheckpointError):
                    load_checkpoint(path)
        (path / name).write_bytes(data)


def test_nothing_in_the_package_can_execute_what_it_reads() -> None:
    forbidden = re.compile(
        r"\bpickle\b|torch\.load\b|\beval\(|\bexec\(|yaml\.load\(|\bmarshal\b|\bshelve\b|allow_pickle=True|dill\b|joblib"
    )
    sources = list(Path(rl_training.__file__).parent.rglob("*.py"))
    assert checkpoints.__file__ in map(str, sources)
    assert files.__file__ in map(str, sources)
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if forbidden.search(line)
    ]
    assert not found
