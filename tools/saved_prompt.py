"""Reads what `kvasir run --prompt-cache` writes: which tokens of a prompt each layer and kv head keeps, and
the logits behind it. The format is that of tools/kvasir/session/prompt_cache.cc and
core/runtime/sequence/saved_sequence.cc.
SPDX-License-Identifier: Apache-2.0
"""
import numpy as np

PAGE_BLOCKS = 64  # core/runtime/step/strategy_run.cc
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


class SavedPrompt:
    """tokens: [n]; logits: [vocab]; kept[layer][kv head]: positions, ascending."""

    def __init__(self, path):
        self._bytes, self._at = open(path, "rb").read(), 0
        if self._take(16) != b"kvasir.prompt/1\n":
            raise ValueError(f"{path}: not what --prompt-cache writes")
        self.logits = self._array(self._u64(), "<f4")
        self._u64()  # a checksum
        if self._take(8) != b"KVASEQ02":
            raise ValueError(f"{path}: a saved sequence of another version")
        self._read_settings()
        self.tokens = self._list("<i4")
        self._take(3 * 4)  # begin and end of the prompt, tokens decoded
        self.kept = [self._read_layer() for _ in range(self._layers)]
        # The state of plugins and a checksum follow.
        if len(self._bytes) - self._at < 8:
            raise ValueError(f"{path}: ends too early, its format is another one")

    def _read_settings(self):
        settings = {}
        for _ in range(self._u64()):
            key = self._take(self._u64()).decode()
            settings[key] = self._take(self._u64()).decode()
        self._layers, self._heads = int(settings["layers"]), int(settings["kv heads"])
        self._block = int(settings["cache.block_size"])
        self._token_bytes = sum(int(settings[size]) * ELEMENT_BYTES[settings["type of " + what]]
                                for size, what in (("head_dim", "K"), ("v_dim", "V")))
        self._page_bytes = [int(value) * self._heads * PAGE_BLOCKS for key, value in settings.items()
                            if key.startswith(("records of ", "open records of "))]

    def _read_layer(self):
        n = len(self.tokens)
        self._skip_blocks(n, self._heads)
        if self._u32():  # the end of the part that is packed head by head
            for _ in range(self._heads):
                self._skip_blocks(len(self._list("<u4")), 1)
        kept = [np.arange(n) for _ in range(self._heads)]
        for head in range(self._u64()):
            size = self._u64()
            dead = np.unpackbits(self._array((size + 7) // 8, "u1"), bitorder="little")[:size]
            kept[head] = np.flatnonzero(np.pad(dead, (0, n - size)) == 0)
        for _ in range(self._u64()):  # what a restriction leaves within reach
            self._list("<u4")
        self._take(2 * 4)
        self._skip_selection()
        self._u32()  # final blocks
        for page_bytes in self._page_bytes:
            for _ in range(self._u64()):
                if self._u8():
                    self._take(page_bytes)
        return kept

    def _skip_blocks(self, n_tokens, n_heads):
        for block in range(self._u64()):
            if self._u8():
                tokens = min(self._block, n_tokens - block * self._block)
                self._take(tokens * n_heads * self._token_bytes)

    def _skip_selection(self):
        self._take(4 + 6 * 4)
        for _ in range(2):
            for _ in range(self._u64()):
                self._u8()
                self._list("<u4")
                self._list("<f4")

    def _take(self, n):
        self._at += n
        return self._bytes[self._at - n:self._at]

    def _u8(self):
        return int.from_bytes(self._take(1), "little")

    def _u32(self):
        return int.from_bytes(self._take(4), "little")

    def _u64(self):
        return int.from_bytes(self._take(8), "little")

    def _array(self, n, kind):
        return np.frombuffer(self._take(n * np.dtype(kind).itemsize), kind)

    def _list(self, kind):
        return self._array(self._u64(), kind)
