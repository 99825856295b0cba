"""Trains the retrieval model after a recipe; resumes from its last checkpoint.

python tools/train/train.py --recipe tools/train/recipes/cpu.toml \
    --kvasir build/release/bin/kvasir --vocabulary VOCAB.gguf --run RUN_FOLDER

The run folder holds weights.pt and optimizer.pt (the last checkpoint) and log.jsonl. A run that is
interrupted and started again gives the same bits as one that was not.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data import Batches, Source
from model import ModelShape, RetrievalModel
from optimizer import make_optimizers

SEGMENT_SEED = 1 << 32  # seeds of the streams lie this far apart or more; all are training seeds


@dataclass(frozen=True)
class Stage:
    name: str
    length: int
    tokens: int
    batch_tokens: int
    sources: list[Source]
    lr: float
    lr_end: float


@dataclass(frozen=True)
class Recipe:
    seed: int
    shape: ModelShape
    stages: list[Stage]
    micro_tokens: int  # tokens of one forward and backward pass
    warmup_steps: int
    text_weight: float  # of the loss on what is no answer
    text_stride: int  # only every n-th of these positions is scored
    weight_decay: float
    segment_steps: int  # between checkpoints
    compile: bool = False


def read_recipe(path: Path) -> Recipe:
    with path.open("rb") as file:
        table = tomllib.load(file)
    stages = []
    for entry in table.pop("stage"):
        sources = [Source(s["name"], s["weight"], tuple(s["flags"].split()))
                   for s in entry.pop("sources")]
        entry.setdefault("lr_end", entry["lr"])
        stages.append(Stage(sources=sources, **entry))
    return Recipe(shape=ModelShape(**table.pop("shape")), stages=stages, **table)


@dataclass
class Tally:
    """Right answers of one source since the last line of the log."""

    tokens: int = 0
    right: int = 0
    samples: int = 0
    all_right: int = 0


@dataclass
class Progress:
    stage: int = 0
    stage_tokens: int = 0
    step: int = 0
    tokens: int = 0
    segment: int = 0
    seconds: float = 0.0


class Trainer:
    """f32 weights, and a bf16 copy of them that computes the gradients."""

    def __init__(self, recipe: Recipe, kvasir: Path, vocabulary: Path, run: Path) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.kvasir, self.vocabulary, self.run = recipe, kvasir, vocabulary, run
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.weights = RetrievalModel(recipe.shape).to(self.device)
        self.worker = RetrievalModel(recipe.shape).to(self.device, torch.bfloat16)
        self.hidden = torch.compile(self.worker) if recipe.compile else self.worker
        self.optimizers = make_optimizers(self.weights, recipe.weight_decay)
        self.progress = Progress()
        self.generator = torch.Generator().manual_seed(recipe.seed)
        run.mkdir(parents=True, exist_ok=True)
        if (run / "weights.pt").exists():
            self.load()

    def load(self) -> None:
        saved = torch.load(self.run / "weights.pt", map_location=self.device, weights_only=True)
        states = torch.load(self.run / "optimizer.pt", map_location=self.device, weights_only=True)
        if saved["progress"]["step"] != states["step"]:
            raise RuntimeError(f"{self.run}: weights.pt and optimizer.pt are of different steps")
        self.weights.load_state_dict(saved["weights"])
        for optimizer, state in zip(self.optimizers, states["optimizers"]):
            optimizer.load_state_dict(state)
        self.progress = Progress(**saved["progress"])

    def save(self) -> None:
        parts: dict[str, Any] = {
            "weights.pt": {"weights": self.weights.state_dict(), "progress": vars(self.progress)},
            "optimizer.pt": {"step": self.progress.step,
                             "optimizers": [o.state_dict() for o in self.optimizers]},
        }
        for name, part in parts.items():
            torch.save(part, self.run / (name + ".new"))
        for name in parts:
            os.replace(self.run / (name + ".new"), self.run / name)

    def train(self, seconds: float) -> None:
        """Until the recipe ends, or the first checkpoint after `seconds`."""
        begin = time.monotonic()
        p = self.progress
        while p.stage < len(self.recipe.stages) and time.monotonic() - begin < seconds:
            stage = self.recipe.stages[p.stage]
            if p.stage_tokens < stage.tokens:
                self.train_segment(stage)
            if p.stage_tokens >= stage.tokens:
                torch.save(self.weights.state_dict(), self.run / f"after-{stage.name}.pt")
                p.stage, p.stage_tokens = p.stage + 1, 0
            self.save()

    def train_segment(self, stage: Stage) -> None:
        p, begin = self.progress, time.monotonic()
        seed = self.recipe.seed + (p.segment + 1) * SEGMENT_SEED
        self.generator.manual_seed(seed)
        tallies = [Tally() for _ in stage.sources]
        loss_sums = [0.0, 0.0]
        n_records = max(1, stage.batch_tokens // stage.length)
        steps = 0
        with Batches(self.kvasir, self.vocabulary, stage.length, n_records, seed,
                     stage.sources) as batches:
            while steps < self.recipe.segment_steps and p.stage_tokens < stage.tokens:
                losses = self.train_step(batches.next(), stage, tallies)
                loss_sums = [a + b for a, b in zip(loss_sums, losses)]
                steps += 1
                p.step += 1
                p.tokens += n_records * stage.length
                p.stage_tokens += n_records * stage.length
        p.segment += 1
        seconds = time.monotonic() - begin
        p.seconds += seconds
        self.log(stage, [s / max(steps, 1) for s in loss_sums], tallies,
                 steps * n_records * stage.length / seconds)

    def learning_rate(self, stage: Stage) -> float:
        share = min(1.0, self.progress.stage_tokens / stage.tokens)
        warm = min(1.0, (self.progress.step + 1) / self.recipe.warmup_steps)
        return warm * (stage.lr + (stage.lr_end - stage.lr) * share)

    def train_step(self, batch: tuple[Tensor, Tensor, Tensor], stage: Stage,
                   tallies: list[Tally]) -> list[float]:
        ids, mask, source = batch
        answer_share, text_share = self.shares(mask)
        for master, copy in zip(self.weights.parameters(), self.worker.parameters()):
            copy.data.copy_(master.data)
            master.grad = torch.zeros_like(master)
        rows = max(1, self.recipe.micro_tokens // stage.length)
        losses = [0.0, 0.0]
        for at in range(0, len(ids), rows):
            part = slice(at, at + rows)
            answer, text = self.backward(ids[part], answer_share[part], text_share[part],
                                         source[part], tallies)
            losses = [losses[0] + answer, losses[1] + text]
        norm = torch.nn.utils.clip_grad_norm_(self.weights.parameters(), 1.0)
        if not torch.isfinite(norm):
            raise RuntimeError(f"step {self.progress.step}: the gradient is not finite")
        lr = self.learning_rate(stage)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        return losses

    def shares(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What each token weighs in the mean of answers and in the mean of the text, [n, length].

        A record with n answer tokens counts as sqrt(n): repeated spans are answers by half, a
        passkey has five, and neither shall drown the other.
        """
        answers = mask.float()
        answers[:, 0] = 0.0
        answers /= answers.sum(1, keepdim=True).clamp(min=1.0).sqrt()
        text = (~mask).float()
        text[:, 0] = 0.0
        phase = int(torch.randint(self.recipe.text_stride, (), generator=self.generator))
        chosen = torch.arange(mask.shape[1]) % self.recipe.text_stride == phase
        text *= chosen
        return answers / answers.sum().clamp(min=1.0), text / text.sum().clamp(min=1.0)

    def backward(self, ids: Tensor, answer_share: Tensor, text_share: Tensor, source: Tensor,
                 tallies: list[Tally]) -> tuple[float, float]:
        ids = ids.to(self.device)
        hidden = self.hidden(ids)
        weight = answer_share + self.recipe.text_weight * text_share
        row, column = weight.nonzero(as_tuple=True)  # the token at `column` is said by column - 1
        logits = self.worker.logits(hidden[row, column - 1]).float()
        target = ids[row, column]
        each = F.cross_entropy(logits, target, reduction="none")
        (each * weight[row, column].to(self.device)).sum().backward()
        for master, copy in zip(self.weights.parameters(), self.worker.parameters()):
            master.grad.add_(copy.grad)
            copy.grad = None
        each = each.detach().cpu()
        right = (logits.argmax(-1) == target).cpu()
        self.count(right, row, answer_share[row, column] > 0, source, tallies)
        return (float((each * answer_share[row, column]).sum()),
                float((each * text_share[row, column]).sum()))

    @staticmethod
    def count(right: Tensor, row: Tensor, answer: Tensor, source: Tensor,
              tallies: list[Tally]) -> None:
        n = torch.bincount(row[answer], minlength=len(source))
        good = torch.bincount(row[answer & right], minlength=len(source))
        for i, s in enumerate(source.tolist()):
            tally = tallies[s]
            tally.tokens += int(n[i])
            tally.right += int(good[i])
            tally.samples += int(n[i] > 0)
            tally.all_right += int(n[i] > 0 and good[i] == n[i])

    def log(self, stage: Stage, losses: list[float], tallies: list[Tally], speed: float) -> None:
        p = self.progress
        line: dict[str, Any] = {
            "step": p.step, "tokens": p.tokens, "seconds": round(p.seconds), "stage": stage.name,
            "length": stage.length, "lr": round(self.learning_rate(stage), 6),
            "answer_loss": round(losses[0], 4), "text_loss": round(losses[1], 4),
            "tokens_per_second": round(speed)}
        for source, tally in zip(stage.sources, tallies):
            if tally.tokens:
                line[source.name] = {"tokens": round(tally.right / tally.tokens, 4),
                                     "samples": round(tally.all_right / max(tally.samples, 1), 4)}
        with (self.run / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, default=here / "recipes" / "cpu.toml")
    parser.add_argument("--kvasir", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True, help="GGUF of tokenizer.py")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoints and log")
    parser.add_argument("--minutes", type=float, default=1e9, help="then stop at a checkpoint")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--smoke", action="store_true", help="50 steps of recipes/smoke.toml")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = read_recipe(here / "recipes" / "smoke.toml" if args.smoke else args.recipe)
    Trainer(recipe, args.kvasir, args.vocabulary, args.run).train(args.minutes * 60)


if __name__ == "__main__":
    main()
