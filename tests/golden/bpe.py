#!/usr/bin/env python3
"""Writes tests/golden/bpe.txt: texts and their GPT-2 ids by Hugging Face's `tokenizers`.

    pip install tokenizers        (made with 0.23.3)
    tests/golden/bpe.py >tests/golden/bpe.txt

A line is the text in UTF-8 as hexadecimal digits ("-" for none), a tab, the ids. The vocabulary is
built from tests/data/vocab.bpe alone.
"""
import os
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = os.path.join(os.path.dirname(__file__), "..", "data", "vocab.bpe")

TEXTS = [
    "", " ", "  ", "\n", "\t", "\r\n", " \n", "\n ", "a", " a", "  a", "   a", "a ", "a  ", "a\n", "\na", "\n\na",
    " \na", "\n a", "\n  a", "a \n b", "a\n\n\nb", "\t\ta", "\ta", "a\tb", "\v\fa", "\x1c\x1da", "\x00\x01a",
    "Hello, world!", "Hello world", "hello world", "HELLO WORLD", "The quick brown fox jumps over the lazy dog.",
    "I'm you're he's they've we'll she'd can't", "I'M YOU'RE HE'S", "'s 't 're 've 'm 'll 'd", "'sss", "''s", "!'s",
    "a's b", " 's", "' s", "'", "''", "x'", "'r", "'v", "'l", "'re", "'rest", "don’t", "it's'", "l'll",
    "12345", " 12345", "1 2 3", "3.14159", "1,000,000", "a1b2", "v1.2.3-rc4", "$5.00", "50%", "x^2+y^2", "0x1F600",
    "if (a[i] == b) {\n\treturn a->next;\n}\n", "    indented\n        more\n", "trailing   ", "\n\n\n\n", "        ",
    "http://example.com/?q=1&r=2#top", "a_b-c+d=e", "...", "!!!???", "#", "##", "### title", "--- a/b.c", "<|endoftext|>",
    "text<|endoftext|>text", "naïve café", "Ünïcödé", "ß", "Привет, мир", "Γειά σου", "שלום", "مرحبا ١٢٣", "हिन्दी १२३",
    "ไทย", "日本語のテキスト", "中文 文字", "한국어", "e\u0301 combining", "\u0301", "½ ¼ Ⅷ ² ₃ ①", "Ⅷth", "x²y",
    "\u00a0", "a\u00a0b", "\u00a0 \u00a0b", " \u00a0b", "\u3000a", "\u3000\u3000a", "\u2028\u2029a", "\u0085a",
    "\u200bzero width", "\u202fa", "\u205fa", "\u1680a", "\u180ea", "\ufeffbom", "\u00ada", "“quoted” – dash…",
    "😀", "😀😀 🎉", "👩‍👩‍👧‍👦", "🇩🇪", "\U0001d504\U0001d505", "𝟘𝟙", "\U000e0001", "\U0010ffff", "\uffff\ufffe", "ﬁ ﬂ",
    "a" * 100, " " * 100, "\n" * 100, "!" * 100, "7" * 100, "ab" * 60, "=" * 80 + "\n", "-" * 79,
    "antidisestablishmentarianism", "supercalifragilisticexpialidocious", "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch",
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n",
]
PIECES = list(" \n\t'srtvmld!?.,-\"07ab\u00a0\u3000\u0085éßЯ中かा١½Ⅷ😀\u0301\u200d\u2028\x7f\x00") + [
    "  ", "\n\n", "'s", "'ll", "'re", " the", "ing", "tion", " 19", "Hello", "…", "“", "\r\n",
]


def gpt2():
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [c for c in range(256) if c not in shown]
    alphabet = [chr(c) for c in shown] + [chr(256 + i) for i in range(len(hidden))]
    with open(VOCAB, encoding="utf-8") as f:
        merges = [tuple(line.rstrip("\n").split(" ")) for line in f][1:]
    tokens = alphabet + [a + b for a, b in merges] + ["<|endoftext|>"]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    t.decoder = decoders.ByteLevel()
    return t


def main():
    t, rng = gpt2(), random.Random(1)
    for _ in range(120):
        TEXTS.append("".join(rng.choice(PIECES) for _ in range(rng.randint(2, 40))))
    for text in TEXTS:
        ids = t.encode(text).ids
        assert t.decode(ids) == text, text
        print(text.encode().hex() or "-", " ".join(map(str, ids)), sep="\t")


if __name__ == "__main__":
    main()
