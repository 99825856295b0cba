#!/usr/bin/env python3
"""Makes golden.h: logits and perplexities that Hugging Face transformers (5.23.0, torch 2.15.0, in double
precision on the CPU) computes with trained models, from the same GGUF files as the test reads.
Run: make_golden.py FOLDER_OF_MODELS war-and-peace.txt > golden.h   (about 10 GB of memory)
SPDX-License-Identifier: Apache-2.0
"""
import os
import sys

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

MODELS = ["smollm2-135m-instruct.Q4_1.gguf", "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf",
          "gemma-3-270m.Q4_K_M.gguf"]
LENGTHS = [1, 700, 3000]
CONTEXT, TEXT_BYTES = 2048, 12000
N_BEST, N_SPREAD = 8, 24  # logits kept: the largest, and others all over the vocabulary
LICENSE = os.path.join(os.path.dirname(__file__), "..", "..", "LICENSE")


def rotate_in_double(model):
    """transformers computes angles in float32: at position 3,000 they are wrong by 1e-4."""
    for module in model.modules():
        if not type(module).__name__.endswith("RotaryEmbedding"):
            continue
        kinds = [None]
        if hasattr(module, "layer_types"):
            kinds = sorted(set(module.layer_types))
        bases = {}
        for kind in kinds:
            parameters = module.config.rope_parameters
            bases[kind] = (parameters[kind] if kind else parameters)["rope_theta"]
        config = module.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        powers = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim

        def forward(x, position_ids, layer_type=None, bases=bases, powers=powers):
            base = bases[layer_type] if layer_type in bases else bases[None]
            angles = position_ids[0].double()[None, :, None] * (float(base) ** -powers)
            angles = torch.cat((angles, angles), dim=-1)
            return angles.cos(), angles.sin()

        module.forward = forward


def last_logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits[0, -1]


def read(tokenizer, name, text):
    ids = tokenizer(text)["input_ids"]
    if not name.startswith("gemma"):
        return ids
    # Runs of blanks are user-defined symbols, which SentencePiece matches longest first; transformers
    # merges them by rank. 31 and 2, not 16 and 17:
    for i in range(len(ids) - 1):
        if ids[i:i + 2] == [152, 153]:
            ids[i:i + 2] = [167, 138]
    return ids


def perplexity(model, ids, bos):
    """Of the second half of the first CONTEXT tokens, given what precedes each: llama-perplexity's rule."""
    ids = ids[:CONTEXT]
    if bos is not None:
        ids[0] = bos
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False, logits_to_keep=CONTEXT // 2).logits[0]
    predicted = torch.tensor(ids[CONTEXT // 2 + 1:])
    return torch.nn.functional.cross_entropy(logits[:-1], predicted).exp()


def number(x):
    return f"{float(x):.7g}f"


def main(folder, novel):
    logging.set_verbosity_error()
    text = open(LICENSE, encoding="utf-8").read() * 2
    print("// Made by make_golden.py; do not edit.")
    print("// SPDX-License-Identifier: Apache-2.0")
    print("#pragma once\n")
    print("#include <cstdint>\n#include <string_view>\n#include <vector>\n")
    print("namespace kvasir::test {\n")
    print("// Logits behind the first n_tokens of the text; deviation: of all of them.")
    print("struct GoldenLogits {\n  std::string_view file;\n  uint32_t n_tokens;\n  int64_t checksum;  // sum of (i + 1) * ids[i]")
    print("  double mean, deviation;\n  struct Logit {\n    int32_t id;\n    float value;\n  };")
    print("  std::vector<Logit> logits;\n};\n")
    print("// Over 2,048 tokens of the first 12,000 bytes of War and Peace.")
    print("struct GoldenPerplexity {\n  std::string_view file;\n  double perplexity;\n};\n")
    print("// clang-format off")
    perplexities = []
    print("inline const GoldenLogits kGoldenLogits[] = {")
    for name in MODELS:
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        if name.startswith("smollm2"):  # transformers takes the pre-tokenizer of GPT-2 for it
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False)])
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float64,
                                                     attn_implementation="eager").eval()
        rotate_in_double(model)
        ids = read(tokenizer, name, text)
        for n in LENGTHS:
            logits = last_logits(model, ids[:n])
            vocab = logits.numel()
            chosen = torch.topk(logits, N_BEST).indices.tolist()
            chosen += [i * vocab // N_SPREAD for i in range(N_SPREAD)]
            print(f'    {{"{name}", {n}, {sum((i + 1) * j for i, j in enumerate(ids[:n]))}, {float(logits.mean()):.9g}, '
                  f'{float(logits.std(correction=0)):.9g}, {{')
            for i in range(0, len(chosen), 4):
                print("        " + " ".join(f"{{{j}, {number(logits[j])}}}," for j in chosen[i:i + 4]))
            print("    }},")
            print(name, n, file=sys.stderr)
        ids = read(tokenizer, name, open(novel, "rb").read(TEXT_BYTES).decode())
        bos = ids[0] if ids[0] == tokenizer.bos_token_id and tokenizer("a")["input_ids"][0] == ids[0] else None
        perplexities.append((name, float(perplexity(model, ids, bos))))
        del model
    print("};\n\ninline const GoldenPerplexity kGoldenPerplexities[] = {")
    for name, value in perplexities:
        print(f'    {{"{name}", {value:.9g}}},')
    print("};\n// clang-format on\n\n}  // namespace kvasir::test")


main(*sys.argv[1:])
