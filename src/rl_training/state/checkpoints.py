"""Checkpoints that survive kill -9, power cuts, full disks, flipped bits and malicious files.

`step-000000050000/` holds `weights.safetensors` (the tensors of the acting policy), `state.safetensors` (all
others) and `state.json` (everything else, with the sizes and SHA-256 of the two). `state.json` starts with
its own SHA-256 over all bytes that follow, so that no bit of the three files can change unnoticed. It may list
segments in `../../replay/` (see segments.py), again with their SHA-256: they belong to the checkpoint. All is
written aside, synced and renamed into place. Reading runs no code: no pickles, no imports, no links followed.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors

from rl_training.errors import CheckpointError, StorageError
from rl_training.state import files, segments
from rl_training.state.encoding import Decoder, Encoder
from rl_training.state.formats import FORMAT
from rl_training.state.ladder import LEAST, Keep
from rl_training.state.reading import Folder, digest, reason

POLICY, SEGMENTS = "policy", "segments"
WEIGHTS, STATE, SKELETON = "weights.safetensors", "state.safetensors", "state.json"
MAX_SKELETON_BYTES = 256 * 2**20
MAX_TENSOR_BYTES = 16 * 2**30
NAME = re.compile(r"step-[0-9]{12,}")
UPDATE = "was written by a newer version; update rl-training to read it"

Tree = dict[str, Any]


class NewerFormatError(CheckpointError):
    """A checkpoint that is not damaged, but from the future: an older one must not be used in its place."""


def save_checkpoint(folder: Path, step: int, tree: Mapping[str, object], keep: int | Keep) -> Path:
    """Write `tree` as `folder/step-<step>`, then remove those up to this step that are not to be kept.

    The tensors under tree["policy"] are the weights; tree["segments"], if there, lists the segments that belong
    to it; those that no checkpoint lists any more are removed at the end. Equal trees give equal bytes. Raises
    StorageError when a write fails; all earlier checkpoints are then still there.
    """
    contents = _encode(step, tree)
    final = folder / f"step-{step:012d}"
    try:
        files.make_directory(folder)
        _sweep(folder)
        _publish(final, contents)
    except OSError as error:
        raise StorageError(f"cannot write {final}: {reason(error)}; {_last_good(folder)}") from error
    prune(final, keep, SEGMENTS in tree)
    return final


def prune(newest: Path, keep: int | Keep, with_segments: bool) -> None:
    """Remove those up to `newest` that are not to be kept, and then the segments that none lists any more.

    The last step of every save, and the first of a resume: a kill may have come between a save and its end.
    """
    rule = keep if isinstance(keep, Keep) else Keep(keep)
    folder, last = newest.parent, step_of(newest)
    there = {step_of(path): path for path in listed(folder) if step_of(path) <= last}
    kept = rule.kept(list(there))
    if rule.most_bytes is not None:
        kept = _that_fit([there[step] for step in kept], rule.most_bytes)
    for step, path in there.items():
        if step not in kept:
            files.remove_directory(path)
    if with_segments:
        needed = {name for path in listed(folder) for name in _listed_segments(path)}
        segments.sweep(_segment_folder(folder), needed)


def _that_fit(paths: list[Path], most: int) -> list[int]:
    """The steps of the newest of these checkpoints that take `most` bytes with their segments, and of two at least."""
    taken, counted, kept = 0, set[str](), list[int]()
    for path in reversed(paths):
        entries = _listed_segments(path)
        taken += size_of(path) + sum(entry["bytes"] for name, entry in entries.items() if name not in counted)
        counted |= entries.keys()
        if taken > most and len(kept) >= LEAST:
            break
        kept.append(step_of(path))
    return kept


def size_of(folder: Path) -> int:
    """The bytes of the files in a directory."""
    try:
        return sum(path.stat(follow_symlinks=False).st_size for path in folder.iterdir())
    except OSError:
        return 0


def save_policy(path: Path, step: int, tree: Mapping[str, object]) -> Path:
    """Write tree["policy"] alone as the directory `path`, in place of the one there.

    At every instant a good one can be loaded from `path`: `load_checkpoint` finds it under its other name
    when a kill came between the two renames.
    """
    contents = _encode(step, {POLICY: tree[POLICY]})
    try:
        files.make_directory(path.parent)
        _settle(path)
        _publish(path, contents)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {reason(error)}; the previous one is kept") from error
    return path


def load_checkpoint(path: Path, *, only: str | None = None) -> Tree:
    """The tree saved at `path`, every byte of it verified; with `only="policy"` nothing but {"policy": ...}.

    Raises CheckpointError when it is missing, damaged, unsafe or written by a newer version.
    """
    for place in (path, _aside(path), _replaced(path)):
        if place == path or os.path.lexists(place):
            try:
                return _load(place, only)
            except FileNotFoundError:
                continue
            except CheckpointError:
                if place == path:
                    raise
    try:
        return _load(path, only)  # a running training may have renamed it while we looked elsewhere
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no checkpoint here") from None


def checkpoint_step(path: Path) -> int:
    """The step at which the checkpoint at `path` was saved."""
    try:
        with Folder(path) as folder:
            return int(_skeleton(folder)["step"])
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no checkpoint here") from None


def newest_progress(folder: Path) -> dict[str, Any] | None:
    """How far the run was at the newest checkpoint whose state.json can be read; no tensor is."""
    for path in reversed(listed(folder)):
        try:
            with Folder(path) as opened:
                progress = Decoder({}).decode(_skeleton(opened)["tree"]["progress"])
        except (OSError, CheckpointError, ValueError, TypeError, LookupError, RecursionError):
            continue
        if isinstance(progress, dict):
            return progress
    return None


def newest_good_checkpoint(
    folder: Path,
    *,
    only: str | None = None,
    warn: Callable[[str], None] | None = None,
    until: float = math.inf,
) -> tuple[Path, Tree] | None:
    """The newest checkpoint that loads, of those up to step `until`, and its tree; None where there is none.

    Damaged ones are skipped with a line to `warn`. Raises CheckpointError when all are damaged, or when one
    is from a newer version: to go on from an older one would throw away work that is still good.
    """
    candidates = [path for path in listed(folder) if step_of(path) <= until]
    for path in reversed(candidates):
        try:
            return path, load_checkpoint(path, only=only)
        except NewerFormatError:
            raise
        except CheckpointError as error:
            if warn is not None:
                warn(f"{error}; trying the previous one")
    if candidates:
        raise CheckpointError(f"{folder}: none of the {len(candidates)} checkpoints can be read")
    return None


def _encode(step: int, tree: Mapping[str, object]) -> dict[str, bytes]:
    """The contents of the files of a checkpoint, by name."""
    encoders = {WEIGHTS: Encoder(), STATE: Encoder()}
    skeleton: dict[str, Any] = {}
    for key, value in tree.items():
        if type(key) is not str:
            raise TypeError(f"the keys of a checkpoint are strings, not {key!r}")
        if key == SEGMENTS:
            continue
        if key == POLICY:
            skeleton[key] = encoders[WEIGHTS].encode(value)
        else:
            skeleton[key] = encoders[STATE].encode(value, (key,))
    # No metadata: with two keys of it or more, safetensors writes them in any order.
    contents = {name: format_tensors(encoder.tensors) for name, encoder in encoders.items()}
    body = {
        "format": FORMAT,
        "step": step,
        "files": {name: {"bytes": len(data), "sha256": digest(data)} for name, data in contents.items()},
        "tree": skeleton,
    }
    if SEGMENTS in tree:
        body[SEGMENTS] = segments.check_entries(tree[SEGMENTS])
    text = json.dumps(body, allow_nan=False, separators=(",", ":"))[1:].encode() + b"\n"
    return contents | {SKELETON: _checksum_line(text) + text}


def _publish(final: Path, contents: dict[str, bytes]) -> None:
    if final.is_dir() and _holds(final, contents):
        return
    aside = _aside(final)
    try:
        shutil.rmtree(aside, ignore_errors=True)
        os.mkdir(aside)
        for name, data in contents.items():
            files.write_file(aside / name, data)
        files.publish_directory(aside, final)
    except OSError:
        # Kept only where it may be the last good copy: when `final` stepped aside and could not come back.
        if final.exists() or not _replaced(final).exists():
            shutil.rmtree(aside, ignore_errors=True)
        raise


def _load(path: Path, only: str | None) -> Tree:
    """The tree in exactly this directory; FileNotFoundError when it is not there."""
    with Folder(path) as folder:
        skeleton = _skeleton(folder)
        tree = skeleton["tree"]
        if only is not None:
            if only not in tree:
                raise folder.error(f"holds no {only!r}")
            tree = {only: tree[only]}
        try:
            decoded = _decode(folder, skeleton["files"], tree, whole=only is None)
            if only is None and SEGMENTS in skeleton:
                decoded[SEGMENTS] = segments.check_entries(skeleton[SEGMENTS])
                segments.verify(_segment_folder(path.parent), decoded[SEGMENTS])
            return decoded
        except (
            SafetensorError,
            ValueError,
            TypeError,
            RuntimeError,
            OverflowError,
            MemoryError,
            RecursionError,
        ) as error:
            raise folder.error(f"cannot be read: {reason(error)}") from error


def _decode(folder: Folder, listed: Any, tree: dict[str, Any], *, whole: bool) -> Tree:
    decoders: dict[str, Decoder] = {}
    decoded = {}
    for key, node in tree.items():
        name = WEIGHTS if key == POLICY else STATE
        if name not in decoders:
            decoders[name] = Decoder(_tensors(folder, name, listed))
        decoded[key] = decoders[name].decode(node)
    for name in (WEIGHTS, STATE) if whole else ():
        if name not in decoders:
            decoders[name] = Decoder(_tensors(folder, name, listed))
        if decoders[name].used != decoders[name].tensors.keys():
            raise ValueError(f"{name} holds tensors that nothing refers to")
    return decoded


def _segment_folder(folder: Path) -> Path:
    """Where the segments of the checkpoints in `folder` lie."""
    return folder.parent / "replay"


def _listed_segments(path: Path) -> segments.Entries:
    """The segments a checkpoint lists; none if it is damaged, for then nobody will ask for them."""
    try:
        found = (path / SKELETON).stat(follow_symlinks=False)
        return _segments_in(path, found.st_ino, found.st_mtime_ns, found.st_size)
    except (OSError, CheckpointError, ValueError):
        return {}


@lru_cache(maxsize=1024)
def _segments_in(path: Path, *identity: int) -> segments.Entries:
    """The segments that the state.json with this identity lists: it is never changed, and every save asks for all."""
    with Folder(path) as folder:
        return segments.check_entries(_skeleton(folder).get(SEGMENTS, {}))


def _skeleton(folder: Folder) -> dict[str, Any]:
    """state.json, verified and of the right outer form."""
    data = folder.read(SKELETON, MAX_SKELETON_BYTES)
    line, end, text = data.partition(b"\n")
    if line + end != _checksum_line(text):
        raise folder.error(f"{SKELETON} is damaged (its checksum does not match)")
    try:
        skeleton = json.loads(b"{" + text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, MemoryError) as error:
        raise folder.error(f"{SKELETON} is no JSON: {reason(error)}") from error
    number = skeleton.get("format") if isinstance(skeleton, dict) else None
    if type(number) is not int:
        raise folder.error(f"{SKELETON} has no format number")
    if number > FORMAT:
        raise NewerFormatError(f"{folder.path}: {UPDATE} (format {number})")
    if type(skeleton.get("step")) is not int or not isinstance(skeleton.get("tree"), dict):
        raise folder.error(f"{SKELETON} is incomplete")
    if not isinstance(skeleton.get("files"), dict):
        raise folder.error(f"{SKELETON} lists no files")
    checked: dict[str, Any] = skeleton
    return checked


def _tensors(folder: Folder, name: str, listed: dict[str, object]) -> dict[str, torch.Tensor]:
    entry = listed.get(name)
    if not isinstance(entry, dict):
        raise ValueError(f"{SKELETON} does not list {name}")
    size = entry.get("bytes")
    data = folder.read(name, min(size, MAX_TENSOR_BYTES) if type(size) is int else 0)
    if len(data) != size or digest(data) != entry.get("sha256"):
        raise folder.error(f"{name} is damaged (its checksum does not match)")
    return parse_tensors(data)


def _holds(path: Path, contents: dict[str, bytes]) -> bool:
    """Whether the checkpoint at `path` has exactly these contents: a resumed run may save it again."""
    try:
        with Folder(path) as folder:
            return all(folder.read(name, len(data)) == data for name, data in contents.items())
    except (OSError, CheckpointError):
        return False


def _settle(final: Path) -> None:
    """End what a kill in the middle of publishing `final` left behind."""
    if not final.exists():
        for place in (_aside(final), _replaced(final)):
            try:
                _load(place, None)
            except (OSError, CheckpointError):
                continue
            os.rename(place, final)
            files.sync_directory(final.parent)
            break
    shutil.rmtree(_aside(final), ignore_errors=True)
    shutil.rmtree(_replaced(final), ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what kills left behind: torn writes, half removed checkpoints, half replaced ones."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(files.REPLACED):
            _settle(path.with_name(path.name.removeprefix(files.REPLACED)))
    for path in folder.iterdir():
        if path.name.startswith((files.WRITING, files.REMOVING)):
            shutil.rmtree(path, ignore_errors=True)


def listed(folder: Path) -> list[Path]:
    """All checkpoints by rising step, with those that a kill caught while they were being replaced."""
    try:
        names = {name.removeprefix(files.REPLACED) for name in os.listdir(folder)}
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((folder / name for name in names if NAME.fullmatch(name)), key=step_of)


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint's directory."""
    return int(path.name.removeprefix("step-"))


def _aside(final: Path) -> Path:
    return final.with_name(files.WRITING + final.name)


def _replaced(final: Path) -> Path:
    return final.with_name(files.REPLACED + final.name)


def _last_good(folder: Path) -> str:
    try:
        newest = newest_good_checkpoint(folder)
    except (OSError, CheckpointError) as error:
        return f"no good checkpoint is left ({reason(error)})"
    return f"the last good checkpoint is {newest[0]}" if newest else "there is no checkpoint before it"


def _checksum_line(text: bytes) -> bytes:
    """The first line of state.json, the opening brace included; `text` is all that follows it."""
    return b'{"sha256":"' + digest(text).encode() + b'",\n'


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
