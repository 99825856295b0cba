#!/usr/bin/env python3
"""Makes pretokenizer_golden.h: texts and the pieces that the PyPI package `tokenizers` (0.23.3), an
implementation independent of ours, cuts them into. The chains are those of the published tokenizer.json
files as llama.cpp quotes them, and its own expressions for a model of which it quotes none.
Run: make_pretokenizer_golden.py > pretokenizer_golden.h

With --random N SEED it prints N lines `name <tab> hex of a text <tab> sizes` of random texts instead.
SPDX-License-Identifier: Apache-2.0
"""
import json
import random
import sys
import unicodedata

from tokenizers import Tokenizer
from tokenizers.models import BPE

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def chain(*stages):
    stages = [split(s) if isinstance(s, str) else s for s in stages]
    if not any(s["type"] == "ByteLevel" for s in stages):
        stages.append(byte_level(False))
    return {"type": "Sequence", "pretokenizers": stages}


def cased(tail, upper=UPPER, lower=LOWER):
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{tail}|{before}{upper}+{lower}*{tail}"


def gpt4o(tail, digits):
    return cased(tail) + r"|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES


def tiktoken(digits):
    return CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES


EACH_DIGIT = {"type": "Digits", "individual_digits": True}
HAN_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
O200K = gpt4o(CONTRACTION + "?", r"\p{N}{1,3}")
NO_HAN = [c[:-1] + r"&&[^\p{Han}]]" for c in (UPPER, LOWER)]
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"

# Names that cut alike, and how.
CHAINS = {
    "llama-bpe llama-v3 llama3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 chatglm-bpe glm4 dbrx smaug-bpe":
        chain(tiktoken(r"\p{N}{1,3}")),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2":
        chain(tiktoken(r"\p{N}")),
    "bailingmoe bailingmoe2 llada-moe":
        chain(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
              r"|\s*[\r\n]|\s+(?!\S)|\s+"),
    "qwen35":
        chain(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES),
    "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling":
        chain(byte_level(True)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2":
        chain(EACH_DIGIT, byte_level(True)),
    "gpt-4o llama4 kanana2 talkie minimax-m2": chain(O200K),
    "tekken": chain(gpt4o("", r"\p{N}")),
    "youtu":
        chain("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + HAN_KANA,
              gpt4o(CONTRACTION + "?", r"\p{N}")),
    "kimi-k2":
        chain(r"[\p{Han}]+|" + cased(CONTRACTION + "?", *NO_HAN)
              + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES),
    "tiny_aya cohere2moe": chain(r"\d{1,3}(?=(?:\d{3})*\b)", O200K),
    "superbpe": chain(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4":
        chain(r"\p{N}{1,3}", HAN_KANA, DEEPSEEK_WORDS + r"[\r\n]*|" + SPACES),
    "spark2_5":
        chain(r"\p{N}{1,3}", HAN_KANA, DEEPSEEK_WORDS + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"),
    "seed-coder":
        chain(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACES),
    "exaone-moe":
        chain(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"),
    "jais-2":
        chain(tiktoken(r"\p{N}{1,3}").removesuffix(r"\s+(?!\S)|\s+")
              + "".join(rf"\s{{{n}}}(?!\S)|" for n in "512 256 128 64 32 16 8 4 1,2".split()) + r"\s{1}"),
    "minicpm5": chain(r"\p{N}{1,3}", tiktoken(r"\p{N}+")),
    "laguna": chain(r"[^\n]+|[\n]+", tiktoken(r"\p{N}")),
    "ufakzeka": chain(tiktoken(r"\p{N}").removeprefix(CONTRACTION + "|")),
    # Its Digits stage comes after ByteLevel, where it sees the digits of ASCII and single bytes of some
    # other characters; the pieces of these are not characters, so the stage is written for ASCII here.
    "falcon":
        chain({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True), "[0-9]+", "[0-9][0-9][0-9]"),
    "bloom gpt3-finnish poro-chat": chain(BLOOM),
    "viking": chain(BLOOM, EACH_DIGIT),
    "chameleon":
        chain("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", EACH_DIGIT,
              {"type": "Punctuation", "behavior": "Isolated"}, byte_level(True)),
    "deepseek-coder":
        chain(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", EACH_DIGIT),
}

TEXTS = [
    # contractions in both cases, a long s, apostrophes of two kinds
    "I'll I'LL we'Ve it's IT'S 'tis y'all'd'VE don\u2019t '\u017f o'clock İstanbul'da ' 's'",
    # digits in runs, other numbers, other scripts' digits
    "3 33 333 3333 33333 1234567 3.14 1,000,000 12abc 1234abc _123_ x² ½ 5½ Ⅻ ٣٤٥٦ १२३४५ ①②",
    # runs of spaces, tabs and newlines
    "a  b   c    d     e\t\tf \t g\n\n\nh \n \n i\r\n\r\nj\r k  \n\n  l/\n/ m//\n\n!\n\n?? \n   ",
    # white space beyond ASCII, and what is not any: U+180E, U+200B, U+FEFF
    "a\u0085b\u00a0\u00a0c\u1680d\u180e.e\u2003\u2003f\u2028g\u2029 h\u202f\u205fi\u3000\u3000j\u200bk\ufeffl\v\f\x1c\x1fm",
    # CJK, kana, Hangul, Bopomofo, full-width punctuation
    "我想在apple工作1314151天～，。！…「漢字かなカナー々〇」\u3000한국어 텍스트ㄱㅎ ㄅㄆ 〆ヶ𠀀𪚥",
    # marks, letters of no case, capitals inside words
    "cafe\u0301 ne\u0301e \u0301x नमस्ते ไทยก็ CamelCase XMLHttpRequest iPhone ǅungla ʰx ªº STRASSE straße АБв ΑΣς MİX",
    # emoji with joiners and modifiers, symbols, currency, ASCII punctuation
    "👩\u200d👩\u200d👧\U0001f3fd ❤\ufe0f 🇫🇮 €5 £¥ ©® ±×÷ ``` ~~ ^^ |x| $a+b=c <tag/> {[(`_`)]} #!%&*@;:\\\"--==…—",
    # a program, an address, and what chameleon's files cut out
    "def f(x):\n\treturn x**2  # ok\nhttp://a.b/c?d=e&f=1_2\n<sentinel:12>IMGIMGABZ IMGIMGABCDEZ\n",
]


def sizes(pre, text):
    """Bytes of each piece; every character of a piece in the byte alphabet is a byte."""
    return [len(piece) for piece, _ in pre.pre_tokenize_str(text)]


def pre_tokenizer(spec):
    tokenizer = json.loads(Tokenizer(BPE()).to_str())
    tokenizer["pre_tokenizer"] = spec
    return Tokenizer.from_str(json.dumps(tokenizer)).pre_tokenizer


def c_string(text):
    out = ""
    for byte in text.encode():
        out += chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
    return '"' + out + '"'


def print_header():
    print("// Texts and the pieces they are cut into; made by make_pretokenizer_golden.py.")
    print("// SPDX-License-Identifier: Apache-2.0")
    print("#pragma once\n\n#include <string>\n#include <vector>\n")
    print("namespace kvasir::test {\n")
    print("// clang-format off")
    print("inline const std::vector<std::string> kPretokenizerTexts = {")
    for text in TEXTS:
        print(f"    {c_string(text)},")
    print("};\n")
    print("struct PretokenizerGolden {\n  const char* names;               // that cut alike, by spaces")
    print("  std::vector<const char*> sizes;  // bytes of the pieces of each text\n};\n")
    print("inline const std::vector<PretokenizerGolden> kPretokenizerGolden = {")
    for names, spec in CHAINS.items():
        pre = pre_tokenizer(spec)
        lists = ",\n      ".join('"' + " ".join(map(str, sizes(pre, text))) + '"' for text in TEXTS)
        print(f'    {{"{names}",\n     {{{lists}}}}},')
    print("};\n// clang-format on\n\n}  // namespace kvasir::test")


def print_random(n, seed):
    rng = random.Random(seed)
    parts = sorted(set("".join(TEXTS))) + ["  ", "    ", "\n\n", "\r\n", "'ll", "'S", " '", "123", "4567890", " a", "é"]
    parts += list(" \n'1aB") * 12
    # Characters that every engine knows: those of Unicode 3.2.
    known = [c for c in map(chr, range(0x30000)) if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs")]
    for names, spec in CHAINS.items():
        pre = pre_tokenizer(spec)
        for _ in range(n):
            text = "".join(rng.choice(known if rng.random() < 0.1 else parts) for _ in range(rng.randrange(1, 40)))
            print(names.split()[0], text.encode().hex(), " ".join(map(str, sizes(pre, text))), sep="\t")


if sys.argv[1:2] == ["--random"]:
    print_random(int(sys.argv[2]), int(sys.argv[3]))
else:
    print_header()
