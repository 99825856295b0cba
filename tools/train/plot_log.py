"""Draws a run's log as a picture: losses and accuracy over the tokens seen, stage by stage.

python tools/train/plot_log.py RUN/log.jsonl -o models/kvasir-retrieval-3m-training.svg

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "kvasir"  # the same log gives the same file

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402


def draw_stages(axes: Axes, lines: list[dict[str, Any]]) -> None:
    begin = 0.0
    for i, line in enumerate(lines):
        last = i + 1 == len(lines) or lines[i + 1]["stage"] != line["stage"]
        if last:
            end = line["tokens"] / 1e6
            axes.axvline(end, color="0.8", linewidth=0.8)
            axes.text((begin + end) / 2, 1.01, str(line["length"]), ha="center", fontsize=7,
                      transform=axes.get_xaxis_transform())
            begin = end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.log.read_text().splitlines()]
    sources = sorted({key for line in lines for key, value in line.items()
                      if isinstance(value, dict)})
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 6), sharex=True)
    tokens = [line["tokens"] / 1e6 for line in lines]
    above.plot(tokens, [line["answer_loss"] for line in lines], label="answers")
    above.plot(tokens, [line["text_loss"] for line in lines], label="rest of the text")
    above.set_ylabel("loss, nats per token")
    for source in sources:
        points = [(t, 100 * line[source]["tokens"]) for t, line in zip(tokens, lines)
                  if source in line]
        below.plot(*zip(*points), label=source, linewidth=1)
    below.set_ylabel("answer tokens right, %")
    below.set_xlabel("million tokens seen (above: length of the samples)")
    for axes in (above, below):
        draw_stages(axes, lines)
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(args.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
