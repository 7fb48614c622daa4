"""Conversations in files and in memory: rows, text by a chat template, and windows."""

import json

import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import torch
from datasets import Dataset

import lrcore
from lrcore.data import Texts, load_texts, make_windows, tokenize_all, windows_aside
from lrcore.system.errors import InputError

MESSAGES = [
    {"role": "user", "content": "Where is the dog?"},
    {"role": "assistant", "content": "In the park."},
]
SHAREGPT = [
    {"from": "human", "value": "Where is the dog?"},
    {"from": "gpt", "value": "In the park."},
]
PAIR = {"prompt": "Where is the dog?", "completion": "In the park."}
ALPACA = {"instruction": "Where is the dog?", "input": "", "output": "In the park."}
PARTS = [MESSAGES[0] | {"content": [{"type": "text", "text": "Where is the dog?"}]}, MESSAGES[1]]
ROWS = {
    "messages": {"messages": MESSAGES, "source": "here"},
    "parts": {"messages": PARTS},
    "sharegpt": {"id": "1", "conversations": SHAREGPT},
    "roles": {"conversations": MESSAGES},
    "pair": PAIR,
    "lists": {"prompt": MESSAGES[:1], "completion": MESSAGES[1:]},
}
RENDERED = "<s><user> Where is the dog?\n<assistant> In the park.</s>\n"


@pytest.fixture(scope="module")
def model(chat_llama):
    return lrcore.load(str(chat_llama))


def in_file(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def text_of(model, name):
    return model.tokenizer.decode(tokenize_all(load_texts(name), model.tokenizer).ids)


@pytest.mark.parametrize("row", [*ROWS.values(), ALPACA], ids=[*ROWS, "alpaca"])
def test_each_format_is_rendered_by_the_chat_template_with_a_single_bos(row, model, tmp_path):
    assert text_of(model, in_file(tmp_path / "chat.jsonl", [row])) == RENDERED
    assert text_of(model, lrcore.write_texts([row], tmp_path / "again.jsonl")) == RENDERED


@pytest.mark.parametrize("row", [{"messages": MESSAGES, "n": 1}, ROWS["sharegpt"]])
def test_parquet_files_and_tables_in_memory_give_the_same_conversations(row, model, tmp_path):
    path = tmp_path / "chat.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row]), path)
    name = next(name for name in row if name in ("messages", "conversations"))
    arrays = pandas.DataFrame({name: [numpy.array(row[name], dtype=object)] * 2})
    dataset = Dataset.from_list([row, row])
    written = [
        lrcore.write_texts(table, tmp_path / "written.jsonl")
        for table in (pandas.read_parquet(path), arrays, dataset, [row, row])
    ]
    for data in (str(path), *written, lrcore.Recipe(data=dataset).data):
        assert text_of(model, data) == 2 * RENDERED


def test_null_and_empty_conversations_are_skipped_and_counted(tmp_path):
    without_answer = [MESSAGES[0], {"role": "assistant", "content": None}]
    rows = [None, [], MESSAGES, [{"role": "user", "content": " "}], without_answer, MESSAGES]
    name = in_file(tmp_path / "chat.jsonl", [{"messages": row, "id": "x"} for row in rows])
    texts = load_texts(name)
    assert (len(texts.documents), texts.skipped) == (2, 4)
    rows = [{"prompt": " ", "completion": ""}, {"prompt": None, "completion": "x"}]
    name = in_file(tmp_path / "none.jsonl", rows)
    with pytest.raises(InputError, match="all 2 conversations are empty"):
        load_texts(name)


def test_a_text_field_has_precedence_and_other_fields_are_chosen_by_name(model, tmp_path):
    row = {"text": "Plain.", "dialog": MESSAGES, "messages": MESSAGES[:1]}
    name = in_file(tmp_path / "chat.jsonl", [row])
    assert load_texts(name).documents == ("Plain.",)
    assert text_of(model, f"{name}#dialog") == RENDERED


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [{"role": "user", "content": 3}]}, "row 2, message 1: the content is int"),
        ({"messages": [{"content": "x"}]}, "row 2, message 1 has no role"),
        ({"messages": "x"}, "row 2: field 'messages' is str, not a list"),
        ({"other": "x"}, "row 2: field 'messages' is missing"),
        ({"messages": [{"from": "humman", "value": "x"}]}, "Did you mean 'human'"),
    ],
)
def test_a_damaged_conversation_is_reported_with_its_row(row, message, tmp_path):
    name = in_file(tmp_path / "chat.jsonl", [{"messages": MESSAGES}, row])
    with pytest.raises(InputError, match=message):
        load_texts(name)


def test_tool_calls_are_passed_to_the_template(model, tmp_path):
    tool_calls = [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    call = {"role": "assistant", "content": None, "tool_calls": tool_calls}
    name = in_file(tmp_path / "chat.jsonl", [{"messages": [MESSAGES[0], call]}])
    (conversation,) = load_texts(name).conversations
    assert json.loads(conversation)[1] == call | {"content": ""}


def test_a_tokenizer_without_a_chat_template_is_reported_with_a_remedy(tiny_llama, tmp_path):
    plain = lrcore.load(str(tiny_llama))
    name = in_file(tmp_path / "chat.jsonl", [{"messages": MESSAGES}] * 40)
    for action in (
        lambda: lrcore.compress(plain, lrcore.Recipe(str(tiny_llama), data=name, seq_len=16)),
        lambda: lrcore.evaluate(plain, name, seq_len=16),
    ):
        with pytest.raises(InputError, match=r"no chat template\. Copy chat_template\.jinja"):
            action()
    # rows of instruction and output are also valid as plain text
    alpaca = in_file(tmp_path / "alpaca.jsonl", [ALPACA] * 40)
    assert load_texts(alpaca).documents[0] == "Where is the dog?\nIn the park."
    assert lrcore.evaluate(plain, alpaca, seq_len=16).windows > 0


def test_the_error_of_a_chat_template_is_quoted(tiny_llama):
    tokenizer = lrcore.load(str(tiny_llama)).tokenizer
    tokenizer.chat_template = "{{ raise_exception('Roles must alternate') }}"
    with pytest.raises(InputError, match=r"Roles must alternate.*roles are user, assistant"):
        tokenize_all(chat(MESSAGES), tokenizer)


def test_protocols_for_plain_text_refuse_conversations(model, tmp_path):
    name = in_file(tmp_path / "chat.jsonl", [{"messages": MESSAGES}] * 40)
    for protocol in ("gptq-2048", "strided", "lm-eval-word"):
        with pytest.raises(InputError, match="Use protocol windows"):
            lrcore.evaluate(model, name, protocol=protocol)


# --- windows ---


class Letters:
    """Tokenizer with a token per letter and a template that concatenates the contents."""

    chat_template = "contents"

    def __call__(self, text, add_special_tokens=False, verbose=True):
        return {"input_ids": list(map(ord, text))}

    def apply_chat_template(self, messages, tokenize):
        return "".join(message["content"] for message in messages)


def chat(*conversations):
    documents = tuple(map(json.dumps, conversations))
    return Texts(documents, "here", conversations=documents)


def letters(*documents):
    return chat(*([{"role": "user", "content": document}] for document in documents))


def as_text(tokens):
    return ["".join(map(chr, row)) for row in tokens.tolist()]


def test_a_window_begins_with_a_conversation_unless_the_conversation_is_longer():
    texts = letters("abc", "defgh", "ijklmnopqr", "s", "tuvwxyz")
    windows = make_windows(texts, Letters(), None, 4)
    # "h" and "qr" are remainders of conversations, and "z" does not fill a window
    assert as_text(windows.tokens) == ["abcd", "ijkl", "mnop", "stuv"]
    assert make_windows(texts, Letters(), 2, 4, "first").starts.tolist() == [0, 8]
    random_starts = make_windows(texts, Letters(), 200, 4, "random").starts.unique()
    assert random_starts.tolist() == [0, 3, 8, 12, 18, 19]
    assert windows.protocol["join"] == ""
    assert len(windows.protocol["chat_template"]) == 16
    assert "messages of the user" in windows.protocol["long_conversations"]
    plain = Texts(("abcdefgh",), "here")
    assert "long_conversations" not in make_windows(plain, Letters(), None, 4).protocol


def turns(*contents, system=""):
    """Return a conversation of user and assistant in turn, after a message of the system."""
    roles = ("user", "assistant") * len(contents)
    messages = [
        {"role": role, "content": text} for role, text in zip(roles, contents, strict=False)
    ]
    return [{"role": "system", "content": system}, *messages] if system else messages


def test_a_long_conversation_is_divided_at_messages_of_the_user():
    long = turns("abc", "de", "fg", "hij", "k", "lm", system="S")
    windows = make_windows(chat(long, turns("no", "p")), Letters(), None, 6)
    assert as_text(windows.tokens) == ["Sabcde", "Sfghij", "Sklmno"]
    # "fghij" crosses the end of the first window, and the system fills more than half of a window
    windows = make_windows(chat(turns("abc", "de", "fg", "hij", "k", "lmn")), Letters(), None, 4)
    assert as_text(windows.tokens) == ["abcd", "fghi", "klmn"]
    long = turns("abc", "de", "fg", "hij", "k", "lm", system="STU")
    windows = make_windows(chat(long), Letters(), None, 5)
    assert as_text(windows.tokens) == ["STUab", "fghij"]


def test_a_long_message_is_cut_into_full_windows():
    long = turns("abcdefghij", "k", "l", "mno")
    windows = make_windows(chat(long), Letters(), None, 4)
    assert as_text(windows.tokens) == ["abcd", "efgh", "lmno"]
    monologue = [{"role": "assistant", "content": "abcdefgh"}]
    assert as_text(make_windows(chat(monologue), Letters(), None, 4).tokens) == ["abcd", "efgh"]


def test_windows_of_many_short_turns_begin_with_the_user_and_leave_out_less_than_a_turn():
    contents = [letter * 3 for letter in "uv" * 100]
    windows = make_windows(chat(turns(*contents)), Letters(), None, 50)
    # 50 tokens are 8 requests with their answers and 2 tokens of the ninth
    assert len(windows.tokens) == 100 // 9
    assert {row[:6] for row in as_text(windows.tokens)} == {"uuuvvv"}
    text = chat(turns(*contents))
    aside = windows_aside(text, Letters(), make_windows(text, Letters(), 2, 50, "first"), 100)
    assert len(aside) == 100 // 9 - 2
    assert {row[:6] for row in as_text(aside)} == {"uuuvvv"}


def test_parts_of_a_long_conversation_are_rendered_by_the_template(model, tmp_path):
    name = in_file(tmp_path / "chat.jsonl", [{"messages": MESSAGES * 9}])
    length = len(model.tokenizer(RENDERED, add_special_tokens=False).input_ids)
    windows = make_windows(load_texts(name), model.tokenizer, None, length)
    assert [model.tokenizer.decode(row) for row in windows.tokens] == [RENDERED] * 9


def test_windows_aside_begin_with_conversations_and_are_disjoint():
    texts = letters(*("abcde", "fgh", "ij") * 20)
    windows = make_windows(texts, Letters(), 6, 4, "random")
    aside = windows_aside(texts, Letters(), windows, 5)
    assert len(aside) == 5
    assert {row[0] for row in as_text(aside)} <= {"a", "f", "i"}
    seen = torch.zeros(len(tokenize_all(texts, Letters()).ids))
    for start in windows.starts.tolist():
        seen[start : start + 4] = 1
    possible = "".join("." if used else "x" for used in seen.tolist())
    assert possible.count("xxxx") >= 5


def test_the_held_out_tail_of_a_file_begins_with_a_conversation(tmp_path):
    long = [{"role": "user", "content": "word " * 1000}]
    name = in_file(tmp_path / "chat.jsonl", [{"messages": long}] * 12)
    head, tail = load_texts(name), load_texts(f"{name}:test")
    assert (len(head.documents), len(tail.documents)) == (11, 1)
    assert head.conversations + tail.conversations == load_texts(f"{name}:all").conversations
    single_document = in_file(
        tmp_path / "one.jsonl", [{"messages": [long[0] | {"content": "word " * 9000}]}]
    )
    assert load_texts(single_document).part == ""  # not divided


def test_bytes_of_conversations_are_counted_in_their_rendered_text(model, tmp_path):
    name = in_file(tmp_path / "chat.jsonl", [{"messages": MESSAGES}] * 3)
    text = tokenize_all(load_texts(name), model.tokenizer)
    assert text.bytes(0, len(text.ids)) == 3 * len(RENDERED.encode())
    assert text.begins.tolist() == [0, len(text.ids) // 3, 2 * len(text.ids) // 3]


def test_a_model_is_calibrated_on_conversations(model, chat_llama, tmp_path):
    name = in_file(tmp_path / "chat.jsonl", [{"messages": MESSAGES}] * 60)
    recipe = lrcore.Recipe(str(chat_llama), data=name, samples=4, seq_len=16, ratio=0.5)
    small = lrcore.compress(model, recipe)
    assert "chat_template" in small.history[0].calibration
    assert lrcore.evaluate(small, name, seq_len=16).perplexity > 1
