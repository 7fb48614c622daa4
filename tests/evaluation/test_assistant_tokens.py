"""Perplexity of assistant tokens, compared with a full pass over each conversation."""

import json
import math
from dataclasses import replace

import pytest
import torch

import lrcore
from lrcore.data import answers
from lrcore.evaluation.evaluate import window_losses
from lrcore.evaluation.protocols import answer_windows
from lrcore.system.errors import InputError

CONVERSATIONS = [
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Where is the dog?"},
        {"role": "assistant", "content": "In the park."},
        {"role": "user", "content": "And the ball?"},
        {"role": "assistant", "content": "In the basket with two apples."},
    ],
    [
        {"role": "user", "content": "Where is my kite?"},
        {"role": "assistant", "content": "It was in the tall tree."},
    ],
]
MESSAGE = "<{{ message.role }}> "
ANSWER = "{{ message.content }}{{ eos_token }}"
LOOP = "{% for message in messages %}"
PROMPT = "{% if add_generation_prompt %}<assistant> {% endif %}"
MARKED = (
    "{{ bos_token }}"
    + LOOP
    + MESSAGE
    + "{% if message.role == 'assistant' %}{% generation %}"
    + ANSWER
    + "{% endgeneration %}{% else %}{{ message.content }}{% endif %}{{ '\\n' }}{% endfor %}"
    + PROMPT
)
# Template of a reasoning model: previous answers are shown without the thought.
FORGETFUL = (
    LOOP + MESSAGE + "{{ message.content if loop.last else message.content.split('|')[-1] }}"
    "{{ '\\n' }}{% endfor %}" + PROMPT
)
COUNTING = "{{ messages | length }}" + LOOP + MESSAGE + "{{ message.content }}{% endfor %}" + PROMPT
THINKING = LOOP + MESSAGE + ANSWER + "{% endfor %}" + PROMPT.replace("> {", "> [think] {")


@pytest.fixture(scope="module")
def model(chat_llama):
    return lrcore.load(str(chat_llama))


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    rows = [json.dumps({"messages": messages}) for messages in CONVERSATIONS]
    path.write_text("\n".join(rows), encoding="utf-8")
    return str(path)


def with_template(model, template):
    tokenizer = type(model.tokenizer).from_pretrained(str(model.folder))
    tokenizer.chat_template = template
    return replace(model, tokenizer=tokenizer)


def written(tokenizer, messages):
    return [
        tokenizer.decode(answer.text.ids[-answer.scored :])
        for answer in answers(tokenizer, messages)
    ]


def losses_by_hand(model, messages):
    """Return loss and number of characters of the tokens of the answers and their ends, from one
    pass over the complete conversation.
    """
    text = model.tokenizer.apply_chat_template(messages, tokenize=False)
    encoding = model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    losses = window_losses(model, torch.tensor([encoding.input_ids]))[0]
    spans = []
    for message in messages:
        if message["role"] == "assistant":
            begin = text.index(message["content"])
            spans.append((begin, begin + len(message["content"]) + len("</s>")))
    return [
        (float(losses[number - 1]), end - start)
        for number, (start, end) in enumerate(encoding.offset_mapping)
        if any(first < end <= last for first, last in spans)
    ]


def test_only_tokens_of_the_answers_are_scored(model, chats):
    result = lrcore.evaluate(model, chats, protocol="assistant")
    by_hand = [pair for messages in CONVERSATIONS for pair in losses_by_hand(model, messages)]
    expected, sizes = zip(*by_hand, strict=True)
    assert result.tokens == len(expected)
    assert result.nll == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert (result.windows, result.protocol["documents"]) == (3, 2)
    assert result.protocol["name"] == "assistant"
    assert "half a window" in result.protocol["long_conversations"]
    assert result.bits_per_byte == pytest.approx(sum(expected) / math.log(2) / sum(sizes))
    assert lrcore.evaluate(model, chats, protocol="assistant", samples=1).windows == 2


def test_generation_marks_of_a_template_give_the_same_tokens(model, chats):
    marked = with_template(model, MARKED)
    results = [lrcore.evaluate(variant, chats, protocol="assistant") for variant in (model, marked)]
    assert results[1].protocol["assistant_tokens"] == "marked"
    assert results[0].protocol["assistant_tokens"] == "after the prompt"
    # the template marks the answer without the preceding space, which is a token of the prompt
    assert [text.strip() for text in written(model.tokenizer, CONVERSATIONS[0])] == [
        text.strip() for text in written(marked.tokenizer, CONVERSATIONS[0])
    ]


def test_answers_that_a_template_shortens_later_are_scored_in_full(model):
    tokenizer = with_template(model, FORGETFUL).tokenizer
    messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "Hm.|Here."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "So.|So."},
    ]
    first, second = answers(tokenizer, messages)
    assert tokenizer.decode(first.text.ids) == "<user> Where?\n<assistant> Hm.|Here."
    assert tokenizer.decode(second.text.ids).startswith("<user> Where?\n<assistant> Here.\n<user>")
    assert [text.strip() for text in written(tokenizer, messages)] == ["Hm.|Here.", "So.|So."]


def test_a_prompt_may_add_to_the_answer_but_a_changed_history_is_refused(model):
    tokenizer = with_template(model, THINKING).tokenizer
    assert written(tokenizer, CONVERSATIONS[1])[0].endswith("It was in the tall tree.</s>")
    with pytest.raises(InputError, match="changes previous messages"):
        written(with_template(model, COUNTING).tokenizer, CONVERSATIONS[1])


def test_empty_answers_and_answers_without_a_prompt_are_omitted(model):
    messages = [{"role": "assistant", "content": "Hello."}, *CONVERSATIONS[1]]
    assert len(written(model.tokenizer, messages)) == 1
    marked = with_template(model, MARKED.replace(ANSWER, "{{ message.content }}")).tokenizer
    assert written(marked, [*CONVERSATIONS[1][:1], {"role": "assistant", "content": ""}]) == []


@pytest.mark.parametrize("scored", [1, 7, 12, 29])
def test_tokens_of_a_long_answer_are_scored_once_with_half_a_window_of_context(scored):
    ids = torch.arange(30)
    windows = list(answer_windows(ids, scored, 8))
    scored_ids = torch.cat([tokens[-count:] for tokens, count in windows])
    assert torch.equal(scored_ids, ids[-scored:])
    assert all(len(tokens) <= 8 and count <= 4 for tokens, count in windows)
    assert next(answer_windows(ids, scored, 30))[1] == scored  # fits into a single window


def test_two_models_are_compared_on_the_answers(model, chats, small_of, chat_llama):
    comparison = lrcore.compare(model, small_of(chat_llama, "svd"), chats, protocol="assistant")
    assert comparison.dense.nll == pytest.approx(
        lrcore.evaluate(model, chats, protocol="assistant").nll, rel=1e-6
    )
    assert comparison.kl > 0


def test_plain_text_and_models_without_a_template_are_refused(model, tiny_llama, story_file, chats):
    with pytest.raises(InputError, match="Use protocol windows"):
        lrcore.evaluate(model, str(story_file), protocol="assistant")
    with pytest.raises(InputError, match="no chat template"):
        lrcore.evaluate(lrcore.load(str(tiny_llama)), chats, protocol="assistant")
