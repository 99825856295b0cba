#!/usr/bin/env python3
"""The same eviction methods here and in NVIDIA/kvpress, on the same weights and tokens, as one table:
  tools/compare_kvpress.py MODEL.gguf TEXT [--kept 512] [--tokens 64] [--kvasir build/release/bin/kvasir]
TEXT is read densely; both sides keep so many of its tokens per kv head (PyramidKV: on average over the
layers) and are then fed the tokens that dense attention chooses. KL: of dense attention's distribution to
theirs, mean over the fed tokens. "sets": kept token sets that are equal, of all layers and kv heads, and the
share of kept tokens that both sides keep; read after the prompt.
Needs kvpress 0.5.5 (transformers 5.2, torch) and gguf. Figures: docs/trained-models.md.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

os.environ["TQDM_DISABLE"] = "1"

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AttentionInterface, DynamicCache
from transformers.models.llama.modeling_llama import repeat_kv
from transformers.utils import logging

from kvpress import (BasePress, ObservedAttentionPress, PyramidKVPress, SnapKVPress, StreamingLLMPress,
                     TOVAPress)

from saved_prompt import SavedPrompt

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


@dataclass
class MaxPooled(PyramidKVPress):
    """With the pooling of the authors' LongBench runs: the largest of the neighbours, not their mean. It
    makes neighbours equal; of equal tokens the first stay, as in kvasir."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        w, n_kv = self.window_size, keys.shape[1]
        votes = attentions[0, :, -w:, :-w].mean(1).unflatten(0, (n_kv, -1)).mean(1)
        pooled = F.max_pool1d(votes[None], self.kernel_size, 1, self.kernel_size // 2)
        best_first = torch.argsort(pooled, dim=-1, descending=True, stable=True)
        places = torch.arange(pooled.shape[-1], 0, -1, dtype=pooled.dtype).expand_as(pooled)
        return F.pad(torch.empty_like(pooled).scatter_(-1, best_first, places), (0, w), value=torch.inf)


@dataclass
class AuthorsPyramid(MaxPooled):
    """And with the authors' budgets: integers, of the tokens before the window, which is kept on top."""
    kept: int = 0

    def get_layer_budget(self, module, q_len):
        w, n, layers = self.window_size, q_len - self.window_size, module.config.num_hidden_layers
        base = self.kept - w
        least = base // self.beta
        most = 2 * base - least
        if q_len < 2 * base:
            return self.kept
        if most >= n:
            most, least = n, 2 * base - n
        return most - module.layer_idx * ((most - least) // (layers - 1)) + w


@dataclass
class SummedAttention(ObservedAttentionPress):
    """H2O's rule, applied once: the largest sums of attention, not means, and the last `recent` tokens."""
    recent: int = 0

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        sums = attentions[0].sum(1).unflatten(0, (keys.shape[1], -1)).mean(1)
        sums[:, -self.recent:] = float("inf")
        return sums[None]


@dataclass
class Row:
    method: str
    preset: str
    options: list  # of the preset that are set, "key = value"
    press: BasePress
    press_options: str
    has_equal_sets: bool = True  # the two sides define the same
    kl: float = 0.0
    press_kl: float = 0.0
    kept: list = field(default_factory=list)        # [layer][kv head]: positions
    press_kept: list = field(default_factory=list)  # [layer]: [kv heads, kept]


def rows(kept, n_tokens):
    ratio = 1 - (kept + 1e-6) / n_tokens  # what is kept is rounded down
    half = kept // 2
    pyramid = PyramidKVPress(ratio, 8, 7, 20)
    observed = ObservedAttentionPress(ratio)
    capacity = f"selector.max_capacity_prompt = {kept}"
    in_halves = [f"selector.hh_size = {half}", f"selector.recent_size = {kept - half}"]
    in_means = [f"selector.hh_size = {kept - 1}", "selector.normalize = true"]
    once, mean = 'selector.evict_at = "prompt_end"', 'selector.pooling = "avgpool"'
    as_kvpress = 'selector.compat = "kvpress"'
    ends = ["cache.sink_tokens = 4", f"cache.window_tokens = {kept - 4}"]
    return [
        Row("SnapKV", "snapkv", [capacity], SnapKVPress(ratio, 32, 5), "window 32, kernel 5"),
        Row("StreamingLLM", "streaming", ends, StreamingLLMPress(ratio, 4), "4 sinks", False),
        Row("StreamingLLM", "streaming", ends + ['cache.window_mode = "prompt"', "selector.evict = true"],
            StreamingLLMPress(ratio, 4), "4 sinks"),
        Row("TOVA", "tova", [f"selector.cache_size = {kept}"], TOVAPress(ratio), "", False),
        Row("TOVA", "tova", [f"selector.cache_size = {kept}", once], TOVAPress(ratio), ""),
        Row("PyramidKV", "pyramidkv", [capacity], pyramid, "window 8, kernel 7", False),
        Row("PyramidKV", "pyramidkv", [capacity, as_kvpress], pyramid, "the same", False),
        Row("PyramidKV", "pyramidkv", [capacity, mean], pyramid, "the same", False),
        Row("PyramidKV", "pyramidkv", [capacity, mean, as_kvpress], pyramid, "the same"),
        Row("PyramidKV", "pyramidkv", [capacity, as_kvpress], MaxPooled(ratio, 8, 7, 20), "+ maxpool"),
        Row("PyramidKV", "pyramidkv", [capacity], AuthorsPyramid(ratio, 8, 7, 20, kept),
            "+ maxpool, authors' budgets"),
        Row("H2O", "h2o", in_halves, observed, "ObservedAttention", False),
        Row("H2O", "h2o", in_halves + [once], observed, "the same", False),
        Row("H2O", "h2o", in_halves + [once, "selector.normalize = true"], observed, "the same", False),
        Row("H2O", "h2o", in_means + [once], observed, "the same"),
        Row("H2O", "h2o", in_halves + [once], SummedAttention(ratio, kept - half), "+ sums, last tokens"),
    ]


# --- kvasir ---------------------------------------------------------------------------------------


# K and V, too, and those of dense attention: they round to f16 by default.
F32 = ["--compute", "f32", "--set", "storage.type_k=f32", "--set", "storage.type_v=f32"]


class Kvasir:
    def __init__(self, args, work):
        self.args, self.work = args, work

    def ask(self, *command):
        command = [self.args.kvasir, *command, "-m", self.args.model, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"compare_kvpress: {' '.join(command)} failed")
        return json.loads(done.stdout)

    def tokens(self):
        return self.ask("tokenize", "-f", self.args.text)["tokens"]

    def strategy(self, row):
        """A file with the preset and the options, one for all rows with the same."""
        tables = {}
        for option in row.options:
            table, key = option.split(".", 1)
            tables.setdefault(table, []).append(key)
        name = "-".join([row.preset, *map(short, row.options)]).replace(" ", "=")
        path = os.path.join(self.work, name + ".toml")
        with open(path, "w") as file:
            print(f'include = ["{os.path.abspath(ROOT)}/configs/strategies/{row.preset}.toml"]', file=file)
            for table, lines in tables.items():
                print(f"[{table}]", *lines, sep="\n", file=file)
        return path

    def compare(self, paths):
        """Mean KL of each strategy file."""
        strategies = [word for path in paths for word in ("-s", path)]
        result = self.ask("compare", "-f", self.args.text, "-n", str(self.args.tokens), *F32, *strategies)
        return [strategy["mean_kl"] for strategy in result["strategies"][1:]]

    def read_prompt(self, path):
        """Reads the prompt once per strategy file; kvasir refuses a saved prompt of other settings."""
        saved = os.path.splitext(path)[0] + ".prompt"
        self.ask("run", "-f", self.args.text, "-n", "0", *F32, "-s", path, "--prompt-cache", saved)
        return SavedPrompt(saved)


# --- kvpress --------------------------------------------------------------------------------------


@dataclass
class Watch(BasePress):
    """Asks several presses what they would keep of one dense pass, and lets the cache be."""
    presses: list

    def __post_init__(self):
        self.kept = [[] for _ in self.presses]

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        # These presses only move values, so the values may be positions.
        positions = torch.arange(keys.shape[2], dtype=torch.float64)[None, None, :, None].expand(keys.shape)
        for press, kept in zip(self.presses, self.kept):
            _, at = press.compress(module, hidden_states, keys, positions, attentions, kwargs)
            kept.append(at[0, :, :, 0].long().sort().values)
        return keys, values


def attend_to_all_before(module, query, key, value, mask, scaling, **_):
    """Causal over the last tokens, whatever the length of this layer's cache. Makes no mask for a model."""
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    n, n_keys = query.shape[2], key.shape[2]
    scores = query @ key.transpose(2, 3) * scaling
    scores += torch.full((n, n_keys), -torch.inf).triu(n_keys - n + 1)
    return (scores.softmax(-1) @ value).transpose(1, 2), None


class Transformers:
    def __init__(self, path):
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        AttentionInterface.register("all_before", attend_to_all_before)
        folder, name = os.path.split(os.path.abspath(path))
        self.model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32,
                                                          attn_implementation="eager").eval()
        self.cache = DynamicCache()

    @torch.no_grad()
    def read(self, tokens, presses):
        """The dense pass over the prompt. Returns its last logits."""
        watch = Watch(presses)
        with watch(self.model):
            out = self.model(torch.tensor([tokens]), past_key_values=self.cache, logits_to_keep=1)
        self.model.set_attn_implementation("all_before")
        self.prompt = [(layer.keys, layer.values) for layer in self.cache.layers]
        self.n_prompt = len(tokens)
        return out.logits[0, -1], watch.kept

    @torch.no_grad()
    def feed(self, tokens, cache, at=0):
        """Logits behind each of the tokens, which follow the prompt and `at` more."""
        positions = torch.arange(len(tokens)) + self.n_prompt + at
        return self.model(torch.tensor([tokens]), past_key_values=cache, cache_position=positions,
                          position_ids=positions[None]).logits[0]

    def choose(self, logits, n):
        """Dense attention's n tokens, its logits behind each, and the smallest lead of a first choice."""
        tokens, all_logits, lead = [], [], float("inf")
        for i in range(n):
            best = logits.topk(2)
            lead = min(lead, float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
            logits = self.feed(tokens[-1:], self.cache, i)[-1]
            all_logits.append(logits)
        return tokens, torch.stack(all_logits), lead

    def feed_kept(self, kept, tokens):
        cache = DynamicCache()
        for layer, ((keys, values), at) in enumerate(zip(self.prompt, kept)):
            at = at[None, :, :, None].expand(-1, -1, -1, keys.shape[-1])
            cache.update(keys.gather(2, at), values.gather(2, at), layer)
        return self.feed(tokens, cache)


def mean_kl(dense, other):
    p, q = dense.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


# --- the table ------------------------------------------------------------------------------------


def sets_of(row):
    """Equal sets of all, and the share of tokens that both keep."""
    if not row.kept:
        return "", ""
    pairs = [(set(here.tolist()), set(there.tolist())) for here_of, there_of in zip(row.kept, row.press_kept)
             for here, there in zip(here_of, there_of, strict=True)]
    equal = sum(here == there for here, there in pairs)
    both = sum(len(here & there) for here, there in pairs)
    most = sum(max(len(here), len(there)) for here, there in pairs)
    return f"{equal} of {len(pairs)}", f"{100 * both / most:.2f} %"


def short(option):
    return option.split(".", 1)[1].replace(" = ", " ").replace('"', "")


def show(table):
    lines = [["method", "kvasir", "kvpress", "KL here", "KL there", "apart", "equal sets", "same tokens"]]
    for row in table:
        apart = round(100 * (row.kl / row.press_kl - 1), 1) + 0.0  # no -0.0
        lines.append([row.method, ", ".join(map(short, row.options)), row.press_options, f"{row.kl:.4f}",
                      f"{row.press_kl:.4f}", f"{apart:+.1f} %", *sets_of(row)])
    width = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    lines.insert(1, ["-" * n for n in width])
    for line in lines:
        print("| " + " | ".join(cell.ljust(n) for cell, n in zip(line, width)) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument("--kept", type=int, default=512, help="tokens kept per layer and kv head")
    parser.add_argument("--tokens", type=int, default=64, help="tokens fed behind the prompt")
    parser.add_argument("--kvasir", default=os.path.join(ROOT, "build/release/bin/kvasir"))
    parser.add_argument("--only", default="", help="methods, such as snapkv,h2o")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch")
    parser.add_argument("--work", help="folder in which the prompts kvasir read stay, for the next time")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with contextlib.ExitStack() as stack:
        work = args.work or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(work, exist_ok=True)
        kvasir = Kvasir(args, work)
        tokens = kvasir.tokens()
        table = rows(args.kept, len(tokens))
        only = args.only.split(",") if args.only else {row.preset for row in table}
        table = [row for row in table if row.preset in only]
        paths = [kvasir.strategy(row) for row in table]
        different = list(dict.fromkeys(paths))
        kl = dict(zip(different, kvasir.compare(different), strict=True))
        for row, path in zip(table, paths):
            row.kl = kl[path]
            if row.has_equal_sets:
                saved = kvasir.read_prompt(path)
                row.kept = saved.kept
        there = Transformers(args.model)
        logits, kept = there.read(tokens, [row.press for row in table])
        apart = float((logits - torch.tensor(saved.logits)).abs().max())
        fed, dense, lead = there.choose(logits, args.tokens)
        for row, row.press_kept in zip(table, kept):
            row.press_kl = mean_kl(dense, there.feed_kept(row.press_kept, fed))
        print(f"{len(tokens)} tokens, {args.kept} kept, {args.tokens} fed; logits behind the prompt at most "
              f"{apart:.1e} apart, smallest lead of a fed token {lead:.1e}\n")
        show(table)


if __name__ == "__main__":
    main()
