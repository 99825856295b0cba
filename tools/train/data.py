"""Training batches, streamed from `kvasir task generate --format ids`.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Source:
    """One kind of record: its share of the batches and the flags given to the generator."""

    name: str
    weight: float
    flags: tuple[str, ...]


class RecordStream:
    """Endless records of one length and one set of flags, from a generator process.

    A record is `length` little-endian uint16 ids, then `length` bytes that are 1 where the token
    belongs to an answer.
    """

    def __init__(self, kvasir: Path, vocabulary: Path, length: int, seed: int,
                 flags: tuple[str, ...]) -> None:
        self.length = length
        self._process = subprocess.Popen(
            [str(kvasir), "task", "generate", "--format", "ids", "--length", str(length), "-n", "0",
             "--seed", str(seed), "--tokenizer", str(vocabulary), *flags],
            stdout=subprocess.PIPE)

    def read(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        assert self._process.stdout is not None
        data = self._process.stdout.read(n * self.length * 3)
        if len(data) != n * self.length * 3:
            raise RuntimeError(f"the generator ended early: {self._process.args}")
        records = np.frombuffer(data, np.uint8).reshape(n, 3 * self.length)
        ids = records[:, : 2 * self.length].copy().view("<u2").astype(np.int64)
        return ids, records[:, 2 * self.length :]

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.terminate()
        self._process.wait()


class Batches:
    """Batches of n records mixed from several sources, one batch ahead of who asks for them.

    The choice of sources, and every record, follow from the seed.
    """

    def __init__(self, kvasir: Path, vocabulary: Path, length: int, n: int, seed: int,
                 sources: list[Source]) -> None:
        weights = np.array([s.weight for s in sources], np.float64)
        self._n, self._shares = n, weights / weights.sum()
        self._random = np.random.default_rng(seed)
        # Far apart, so that no two streams of a run draw the same samples.
        self._streams = [RecordStream(kvasir, vocabulary, length, seed + (i << 20), s.flags)
                         for i, s in enumerate(sources)]
        self._readers = ThreadPoolExecutor(len(sources))
        self._maker = ThreadPoolExecutor(1)
        self._coming = self._maker.submit(self._make)

    def next(self) -> tuple[Tensor, Tensor, Tensor]:
        """ids and mask [n, length], and the source of each record [n]."""
        batch = self._coming.result()
        self._coming = self._maker.submit(self._make)
        return batch

    def _make(self) -> tuple[Tensor, Tensor, Tensor]:
        counts = self._random.multinomial(self._n, self._shares)
        parts = list(self._readers.map(lambda s, c: s.read(int(c)), self._streams, counts))
        ids = np.concatenate([p[0] for p in parts])
        mask = np.concatenate([p[1] for p in parts])
        source = np.repeat(np.arange(len(counts)), counts)
        order = self._random.permutation(self._n)  # so that micro-batches are alike
        return (torch.from_numpy(ids[order]), torch.from_numpy(mask[order].astype(np.bool_)),
                torch.from_numpy(source[order]))

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        wait([self._coming])
        self._maker.shutdown()
        self._readers.shutdown()
        for stream in self._streams:
            stream.close()
