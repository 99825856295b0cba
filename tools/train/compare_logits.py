"""Compares the logits of `kvasir model logits` with those of PyTorch, for one GGUF file.

python tools/train/compare_logits.py --model MODEL.gguf --kvasir build/release/bin/kvasir

The weights are read back from the file with the `gguf` package, so that the file itself is tested,
by a reader that is not ours, and not the checkpoint it came from.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from export_gguf import TENSORS
from model import ModelShape, RetrievalModel


def read_shape(reader: gguf.GGUFReader) -> ModelShape:
    def value(key: str, default: float = 0.0) -> float:
        field = reader.fields.get(f"llama.{key}")
        return field.contents() if field else default

    return ModelShape(
        vocab_size=int(value("vocab_size")), d_model=int(value("embedding_length")),
        n_layers=int(value("block_count")), n_q_heads=int(value("attention.head_count")),
        n_kv_heads=int(value("attention.head_count_kv")),
        head_dim=int(value("attention.key_length")), d_ffn=int(value("feed_forward_length")),
        rope_base=value("rope.freq_base"), rms_eps=value("attention.layer_norm_rms_epsilon"),
        rope_factor=value("rope.scaling.factor", 1.0),
        rope_original_context=int(value("rope.scaling.original_context_length")))


def halves(rows: Tensor, n_heads: int) -> Tensor:
    n_rows, n_columns = rows.shape
    neighbours = rows.view(n_heads, n_rows // n_heads // 2, 2, n_columns)
    return neighbours.transpose(1, 2).reshape(n_rows, n_columns)


def read_model(path: Path) -> RetrievalModel:
    reader = gguf.GGUFReader(path)
    shape = read_shape(reader)
    tensors = {t.name: torch.from_numpy(t.data.astype(np.float32)) for t in reader.tensors}
    weights = {"embedding.weight": tensors["token_embd.weight"],
               "norm.weight": tensors["output_norm.weight"]}
    heads = {"wq.weight": shape.n_q_heads, "wk.weight": shape.n_kv_heads}
    for layer in range(shape.n_layers):
        for ours, theirs in TENSORS.items():
            rows = tensors[f"blk.{layer}.{theirs}.weight"]
            weights[f"layers.{layer}.{ours}"] = (
                halves(rows, heads[ours]) if ours in heads else rows)
    model = RetrievalModel(shape)
    model.load_state_dict(weights)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--kvasir", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    model = read_model(args.model)
    generator = torch.Generator().manual_seed(args.seed)
    half = torch.randint(256, 1024, (args.tokens // 2,), generator=generator)
    ids = torch.cat((half, half))  # a repeated text, so that retrieval is part of what is compared
    with torch.no_grad():
        expected = model.logits(model(ids[None])[0]).numpy()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "logits.npy"
        tokens = ",".join(map(str, ids.tolist()))
        subprocess.run([str(args.kvasir), "model", "logits", "-m", str(args.model), "--compute",
                        "f32", "-ctk", "f32", "-ctv", "f32", "--tokens", tokens, "-o", str(output)],
                       check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        given = np.load(output)
    worst = float(np.abs(given - expected).max())
    same = float((given.argmax(-1) == expected.argmax(-1)).mean())
    print(f"{len(ids)} tokens: largest difference {worst:.2e} of logits up to "
          f"{np.abs(expected).max():.1f}; same first choice at {100 * same:.2f} % of positions")
    if worst > 1e-3:
        raise SystemExit("the difference is above 1e-3")


if __name__ == "__main__":
    main()
