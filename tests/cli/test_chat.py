"""A chat on the command line: several turns by the chat template, against a loop by hand."""

import io
import json

import pytest
import torch

import lrcore
from lrcore.cli import main

TURNS = ["Where is the dog?", "And the ball?"]


@pytest.fixture
def typed(monkeypatch):
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


def test_each_turn_is_answered_after_all_turns_before_it(chat_llama, typed, capsys):
    model, expected = lrcore.load(str(chat_llama)), []
    for turn in TURNS:
        expected.append({"role": "user", "content": turn})
        answer = answer_by_hand(model, expected, 6)
        expected.append({"role": "assistant", "content": answer})
    arguments = ["generate", str(chat_llama), "--chat", "--max-new-tokens", "6"]
    typed("\n\n".join(TURNS))  # blank lines are no messages
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == expected
    typed("\n".join(TURNS) + "\n")
    assert main(arguments) == 0
    printed = "".join(f"{message['content']}\n" for message in expected[1::2])
    assert capsys.readouterr().out == printed


def test_a_chat_that_cannot_be_is_refused(chat_llama, tiny_llama, typed, refused):
    typed("Hello\n")
    assert "no chat template. Copy" in refused("generate", tiny_llama, "--chat")
    assert "either --prompt" in refused("generate", chat_llama, "--chat", "--prompt", "x")
    assert "either --prompt" in refused("generate", chat_llama)
    typed("\n")
    assert "Enter a line per message" in refused("generate", chat_llama, "--chat")
    typed("word " * 200)
    assert "context holds 128" in refused("generate", chat_llama, "--chat")
