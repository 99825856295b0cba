"""Trains the tokenizer on generated text and writes it as a vocabulary-only GGUF.

python tools/train/tokenizer.py --kvasir build/release/bin/kvasir --bootstrap ANY.gguf -o VOCAB.gguf

The generators count tokens, so the text for the first tokenizer needs some tokenizer already: any
GGUF with a vocabulary serves (--bootstrap); it decides only how long the texts are.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import gguf
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# What `tokenizer.ggml.pre = qwen2` names: words with their space, single digits, line ends apart.
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BOS, EOS = "<|begin|>", "<|end|>"
SEED = 4294967296  # of the texts; training seeds begin here, evaluation stays below
TASKS = (
    "passkey,number_string,needle,needle_multi_key,needle_multi_value,needle_multi_query,"
    "kv_retrieval,mqar,variable_tracking,filler,repeat"
)


def generated_text(kvasir: Path, bootstrap: Path, samples: int) -> list[str]:
    command = [str(kvasir), "task", "generate", "--task", TASKS, "--length", "512", "-n",
               str(samples), "--seed", str(SEED), "--format", "text", "--tokenizer", str(bootstrap)]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    return made.stdout.splitlines(keepends=True)


def train(lines: list[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ))
    return tokenizer


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer, vocab_size: int) -> None:
    """The keys that llama.cpp reads. Entries the text did not fill up are unused ones."""
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
    kinds = [gguf.TokenType.CONTROL if t in (BOS, EOS) else gguf.TokenType.NORMAL for t in tokens]
    for i in range(len(tokens), vocab_size):
        tokens.append(f"<|unused{i}|>")
        kinds.append(gguf.TokenType.UNUSED)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(EOS))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvasir", type=Path, required=True)
    parser.add_argument("--bootstrap", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=400, help="of each task, 512 tokens each")
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = train(generated_text(args.kvasir, args.bootstrap, args.samples), args.vocab_size)
    writer = gguf.GGUFWriter(str(args.output), "llama")
    writer.add_name("Kvasir retrieval vocabulary")
    writer.add_license("apache-2.0")
    add_vocabulary(writer, tokenizer, args.vocab_size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer.save(str(args.output.with_suffix(".json")))
    print(f"{args.output}: {tokenizer.get_vocab_size()} entries of {args.vocab_size} in use")


if __name__ == "__main__":
    main()
