"""Writes a checkpoint as a GGUF file of the `llama` architecture that llama.cpp's readers know.

python tools/train/export_gguf.py --weights RUN/weights.pt --vocabulary VOCAB.gguf \
    --original-context 2048 --rope-factor 4 -o models/kvasir-retrieval-3m-f16.gguf

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from model import ModelShape
from train import read_recipe

NAME = "Kvasir retrieval"
TENSORS = {  # of one layer: here -> in the file
    "attn_norm.weight": "attn_norm", "wq.weight": "attn_q", "wk.weight": "attn_k",
    "wv.weight": "attn_v", "wo.weight": "attn_output", "ffn_norm.weight": "ffn_norm",
    "w_gate.weight": "ffn_gate", "w_up.weight": "ffn_up", "w_down.weight": "ffn_down",
}


def interleaved(rows: Tensor, n_heads: int) -> Tensor:
    """Rows of wq or wk reordered from rotated halves to rotated neighbours, head by head."""
    n_rows, n_columns = rows.shape
    halves = rows.view(n_heads, 2, n_rows // n_heads // 2, n_columns)
    return halves.transpose(1, 2).reshape(n_rows, n_columns)


def add_shape(writer: gguf.GGUFWriter, shape: ModelShape, original_context: int,
              factor: float) -> None:
    writer.add_context_length(round(original_context * factor))
    if factor != 1.0:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(factor)
        writer.add_rope_scaling_orig_ctx_len(original_context)
    writer.add_embedding_length(shape.d_model)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.d_ffn)
    writer.add_head_count(shape.n_q_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_vocab_size(shape.vocab_size)


def copy_vocabulary(writer: gguf.GGUFWriter, vocabulary: Path) -> None:
    for field in gguf.GGUFReader(vocabulary).fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, inner)


def add_tensors(writer: gguf.GGUFWriter, weights: dict[str, Tensor], shape: ModelShape,
                dtype: type[np.floating]) -> None:
    def add(name: str, rows: Tensor) -> None:
        # Norms stay f32, as everywhere; they are a few hundred numbers.
        values = rows.float().cpu().numpy().astype(dtype if rows.ndim == 2 else np.float32)
        writer.add_tensor(name, values)

    add("token_embd.weight", weights["embedding.weight"])
    add("output_norm.weight", weights["norm.weight"])
    heads = {"wq.weight": shape.n_q_heads, "wk.weight": shape.n_kv_heads}
    for layer in range(shape.n_layers):
        for ours, theirs in TENSORS.items():
            rows = weights[f"layers.{layer}.{ours}"]
            add(f"blk.{layer}.{theirs}.weight",
                interleaved(rows, heads[ours]) if ours in heads else rows)


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, default=here / "recipes" / "cpu.toml")
    parser.add_argument("--original-context", type=int, required=True, help="tokens, as trained")
    parser.add_argument("--rope-factor", type=float, default=1.0,
                        help="YaRN: the context becomes this many times the original one")
    parser.add_argument("--type", choices=["f16", "f32"], default="f16")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    shape = read_recipe(args.recipe).shape
    weights = torch.load(args.weights, map_location="cpu", weights_only=True)
    weights = weights.get("weights", weights)
    writer = gguf.GGUFWriter(str(args.output), "llama")
    writer.add_name(NAME)
    writer.add_license("apache-2.0")
    writer.add_description("Trained on generated retrieval tasks to compare KV cache strategies; "
                           "it knows no language. See models/README.md.")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if args.type == "f16"
                         else gguf.LlamaFileType.ALL_F32)
    add_shape(writer, shape, args.original_context, args.rope_factor)
    copy_vocabulary(writer, args.vocabulary)
    add_tensors(writer, weights, shape, np.float16 if args.type == "f16" else np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{args.output}: {args.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
