"""A chat on the command line: several turns with the chat template, compared with a manual loop."""

import io
import json

import pytest
import torch

import lrcore
from lrcore.cli import main

TURNS = ["Where is the dog?", "And the ball?"]


@pytest.fixture
def type_lines(monkeypatch):
    def enter(text):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    return enter


@torch.inference_mode()
def answer_by_hand(model, messages, count):
    text = model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = model.tokenizer(text, add_special_tokens=False).input_ids
    assert ids.count(model.tokenizer.bos_token_id) == 1
    new = []
    while len(new) < count:
        logits = model.network(input_ids=torch.tensor([ids + new]), use_cache=False).logits
        token = int(logits[0, -1].argmax())
        if token == model.tokenizer.eos_token_id:
            break
        new.append(token)
    return model.tokenizer.decode(new, skip_special_tokens=True)


def test_each_turn_is_answered_in_the_context_of_all_previous_turns(chat_llama, type_lines, capsys):
    model, expected = lrcore.load(str(chat_llama)), []
    for turn in TURNS:
        expected.append({"role": "user", "content": turn})
        answer = answer_by_hand(model, expected, 6)
        expected.append({"role": "assistant", "content": answer})
    arguments = ["generate", str(chat_llama), "--chat", "--max-new-tokens", "6"]
    type_lines("\n\n".join(TURNS))  # blank lines are ignored
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == expected
    type_lines("\n".join(TURNS) + "\n")
    assert main(arguments) == 0
    printed = "".join(f"{message['content']}\n" for message in expected[1::2])
    assert capsys.readouterr().out == printed


def test_an_invalid_chat_is_refused(chat_llama, tiny_llama, type_lines, refused):
    type_lines("Hello\n")
    assert "no chat template. Copy" in refused("generate", tiny_llama, "--chat")
    assert "either --prompt" in refused("generate", chat_llama, "--chat", "--prompt", "x")
    assert "either --prompt" in refused("generate", chat_llama)
    type_lines("\n")
    assert "Enter a line per message" in refused("generate", chat_llama, "--chat")
    type_lines("word " * 200)
    assert "context holds 128" in refused("generate", chat_llama, "--chat")
