"""Three byte-level BPE tokenizers of 108 ids, each with a chat template, in the designs that real checkpoints have.

plain   splits digits, no start token, template in tokenizer_config.json (as SmolLM2)
start   Llama-3 pattern, post-processor adds a start token and so does the template (as Llama 3)
nfc     NFC and the Qwen-2 pattern, no start token, template in chat_template.jinja (as Qwen 3)

Only the bytes of the text below have an id: with 108 ids there is no room for all 256.
"""
import json
import pathlib

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SIZE = 108
SPECIAL = ["<|end_of_text|>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>"]
PAD, START, TURN, END = range(4)

TEXT = """
we count: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and then 10; the next is 11, and 12 after that.
the user asks, the assistant answers. the system says: add the numbers and sort the numbers.
what is 3 + 4? 3 + 4 = 7. what is 8 - 5? 8 - 5 = 3. what is 6 * 7? 6 * 7 = 42.
a jar holds nine beans, you take two, and seven are left. quick judges fix wax on every zinc box.
the café was open, so we had a crêpe there (it was good) and we don't regret it.
"""

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

TEMPLATES = {
    # A default system turn when there is none.
    "plain": ("{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
              "{{ '<|im_start|>system\nadd the numbers.<|im_end|>\n' }}{% endif %}"
              "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
    # Starts with bos_token and trims; the tokenizer would add the start token once more.
    "start": ("{{- bos_token }}\n{%- for m in messages %}\n"
              "    {{- '<|im_start|>' + m['role'] + '\n\n' + m['content'] | trim + '<|im_end|>' }}\n{%- endfor %}\n"
              "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n\n' }}\n{%- endif %}\n"),
    # A namespace, a reversed walk, string methods, an option with a default, an exception.
    "nfc": ("{%- set ns = namespace(last=-1) %}\n"
            "{%- for m in messages[::-1] %}\n    {%- set i = (messages | length - 1) - loop.index0 %}\n"
            "    {%- if ns.last < 0 and m.role == 'user' and m.content is string %}\n"
            "        {%- set ns.last = i %}\n    {%- endif %}\n{%- endfor %}\n"
            "{%- if ns.last < 0 %}\n    {{- raise_exception('no user message') }}\n{%- endif %}\n"
            "{%- for m in messages %}\n    {%- set text = m.content %}\n"
            "    {%- if m.role == 'assistant' and loop.index0 < ns.last and '(' in text %}\n"
            "        {%- set text = text.split(')')[-1].lstrip(' ') %}\n    {%- endif %}\n"
            "    {{- '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}\n{%- endfor %}\n"
            "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}\n"
            "    {%- if short is defined and short is true %}\n        {{- '(' }}\n    {%- endif %}\n{%- endif %}\n"),
}

STRINGS = [
    "", " ", "  ", "\n", "\n\n", " \n ", "a", "7", "42", "what is 12 + 34?", "6 * 7 = 42.", "1234567890",
    "  two before and two after  ", "many    spaces   inside", "line one\nline two\n", "we don't regret it",
    "café", "cafe\u0301", "crêpe there (it was good)", "the quick judges", "zzzz", "a<|im_end|>b",
    "<|im_start|>user\nadd 3 and 4<|im_end|>\n", "<|begin_of_text|>twice", "<|im_endx", "+ + +", "10;11;12",
]

TALK = [{"role": "user", "content": "what is 3 + 4?"}, {"role": "assistant", "content": "(3 and 4) 7"},
        {"role": "user", "content": " and 8 - 5? "}]


def build(style):
    """A trained tokenizer of exactly SIZE ids."""
    t = Tokenizer(models.BPE())
    if style == "plain":
        split = pre_tokenizers.Digits(individual_digits=True)
        t.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        split = pre_tokenizers.Split(Regex(QWEN2 if style == "nfc" else LLAMA3), behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        t.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    if style == "nfc":
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=SIZE, special_tokens=SPECIAL, show_progress=False))
    if style == "start":
        head = SPECIAL[START]
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{head} $A", pair=f"{head} $A {head} $B",
                                          special_tokens=[(head, START)])])
    assert t.get_vocab_size() == SIZE, t.get_vocab_size()
    return t


def write(style, folder):
    """tokenizer.json, tokenizer_config.json and, for nfc, chat_template.jinja."""
    folder = pathlib.Path(folder)
    build(style).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[START] if style == "start" else None,
        "eos_token": SPECIAL[END],
        "pad_token": SPECIAL[PAD],
        "model_max_length": 128,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                                          "single_word": False, "special": True} for i, s in enumerate(SPECIAL)},
    }
    if style == "nfc":
        (folder / "chat_template.jinja").write_text(TEMPLATES[style])
    else:
        config["chat_template"] = TEMPLATES[style]
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n")


def cases(tokenizer):
    """What the tokenizer makes of STRINGS, with and without its post-processor."""
    rows = []
    for text in STRINGS:
        ids = tokenizer(text).input_ids
        rows.append({"text": text, "ids": ids, "plain_ids": tokenizer(text, add_special_tokens=False).input_ids,
                     "decoded": tokenizer.decode(ids),
                     "decoded_without_special": tokenizer.decode(ids, skip_special_tokens=True)})
    return rows


def chat_cases(tokenizer):
    """Rendered chats and their ids; `ids` have one start token, because the template writes it."""
    system = [{"role": "system", "content": "sort the numbers."}]
    talks = [(TALK[:1], True, {}), (TALK, True, {}), (TALK[:2], False, {}), (system + TALK[:1], True, {}),
             (TALK[:1], True, {"short": True})]
    rows = []
    for messages, prompt, options in talks:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **options)
        ids = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=prompt, **options)
        rows.append({"messages": messages, "add_generation_prompt": prompt, "options": options, "text": text, "ids": ids})
    return rows
