#!/usr/bin/env python3
"""What InfiniGen's skew is worth on a trained model: the share of the attention that tokens chosen by a
fifth of the columns carry, at a tenth of the tokens, with keys as the model rotates them and with keys
before RoPE, as a model without RoPE would have them.
Run: skew_capture.py MODEL.gguf SAMPLE.txt TEXT.txt   (transformers 5.23.0; the skew is made from SAMPLE)
SPDX-License-Identifier: Apache-2.0
"""
import os
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

SAMPLE_TOKENS, TOKENS = 1536, 2560
COLUMNS, BUDGET = 0.2, 0.1  # shares of head_dim and of the tokens
SINKS, WINDOW = 16, 64      # where some are forced
QUERIES = range(-48, 0, 3)  # of the text, each choosing for itself
EVERY = 4                   # layers


def record(module, into):
    """Queries [heads, n, dim] and keys [kv heads, n, dim] of each layer, before and after RoPE."""
    rotate = module.apply_rotary_pos_emb

    def recording(q, k, *more, **named):
        rotated = rotate(q, k, *more, **named)
        into.append([x[0].double().numpy() for x in (q, k, *rotated)])
        return rotated

    module.apply_rotary_pos_emb = recording


def read(model, tokenizer, path, n, into):
    with open(path, encoding="utf-8", errors="replace") as file:
        ids = tokenizer(file.read(16 * n))["input_ids"][:n]
    into.clear()
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False, logits_to_keep=1)
    return list(into)


def column_scores(kind, q, k):
    """q [.., n, dim] and k [n, dim] in the basis whose columns are to be ranked."""
    if kind == "q":
        return np.abs(q).sum((0, 1))
    return np.sqrt((q ** 2).mean((0, 1))) * k.std(0)


def skew(kind, q, k):
    """The basis of the columns, [dim, dim], and its dual for the keys."""
    dim = k.shape[1]
    if kind == "none":
        return np.eye(dim), np.eye(dim)
    rows = q.reshape(-1, dim)
    cov_q = rows.T @ rows / len(rows)
    if kind == "q":
        basis = np.linalg.eigh(cov_q)[1]
        return basis, basis
    # The columns of which the scores lose least: eigenvectors of Cq^(1/2) Ck Cq^(1/2), keys less their
    # mean, which moves all scores of a query alike.
    centred = k - k.mean(0)
    w, u = np.linalg.eigh(cov_q)
    w = np.maximum(w, 1e-12 * w.max())
    root, inverse = u * np.sqrt(w) @ u.T, u / np.sqrt(w) @ u.T
    v = np.linalg.eigh(root @ (centred.T @ centred / len(k)) @ root)[1]
    return inverse @ v, root @ v


def captured(q, k, partial_q, partial_k, forced):
    """Attention of one kv head's group that the chosen tokens carry; q [group, n, dim]."""
    n, dim = k.shape
    budget, shares = int(BUDGET * n), []
    for t in QUERIES:
        end = n + t + 1
        logits = q[:, t] @ k[:end].T / np.sqrt(dim)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        score = (partial_q[:, t] @ partial_k[:end].T).max(0)
        keep = np.zeros(end, bool)
        keep[-1] = True
        if forced:
            keep[:SINKS] = keep[-WINDOW:] = True
        score[keep] = -np.inf
        keep[np.argsort(-score)[:budget - keep.sum() + (0 if forced else 1)]] = True
        shares.append(weights[:, keep].sum(1).mean())
    return np.mean(shares)


def main(path, sample, text):
    folder, name = os.path.split(path)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    states = []
    record(modeling_qwen2 if "qwen" in model.config.model_type else modeling_llama, states)
    seen = read(model, tokenizer, sample, SAMPLE_TOKENS, states)
    asked = read(model, tokenizer, text, TOKENS, states)
    print(f"{'keys':12}{'skew':8}{'columns by':12}{'nothing forced':>16}{'sinks, window':>16}")
    for keys, at in (("rotated", 2), ("before RoPE", 0)):
        for kind, score in (("all", ""), ("none", "q"), ("none", "q k"), ("q", "q"), ("q", "q k"),
                            ("q and k", "q k")):
            shares = {False: [], True: []}
            for layer in range(1, len(asked), EVERY):
                q, k = asked[layer][at:at + 2]
                q_sample, k_sample = seen[layer][at:at + 2]
                group, dim = len(q) // len(k), k.shape[2]
                for head in range(len(k)):
                    heads = slice(head * group, (head + 1) * group)
                    if kind == "all":
                        part_q, part_k = q[heads], k[head]
                    else:
                        a, b = skew(kind, q_sample[heads], k_sample[head])
                        part_q, part_k = q[heads] @ a, k[head] @ b
                        prompt = slice(0, QUERIES[0])
                        rank = column_scores(score, part_q[:, prompt], part_k[prompt])
                        best = np.argsort(-rank)[:int(COLUMNS * dim)]
                        part_q, part_k = part_q[:, :, best], part_k[:, best]
                    for forced in shares:
                        shares[forced].append(captured(q[heads], k[head], part_q, part_k, forced))
            print(f"{keys:12}{kind:8}{score:12}{np.mean(shares[False]):16.3f}"
                  f"{np.mean(shares[True]):16.3f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
