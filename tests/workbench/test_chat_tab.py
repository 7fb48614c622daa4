"""The chat of the Compare tab, with a conversation for each model."""

import pytest

import lrcore
from workbench.jobs import KINDS
from workbench.state.store import Store
from workbench.tabs.compare import chat
from workbench.widgets.form import input_values

SETTINGS = [5, 0, 1, 0]  # new tokens, temperature, top-p, seed


@pytest.fixture(scope="module")
def chatting(tmp_path_factory, chat_llama, story_file):
    """Return a store with one run, and the arguments of a listener: its id and the form."""
    recipe = lrcore.Recipe(
        str(chat_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4, method="svd"
    )
    store = Store(tmp_path_factory.mktemp("runs"), KINDS)
    run = store.save_run("small", recipe, lrcore.compress(store.dense(recipe), recipe))
    return store, [[run.id], *input_values(recipe)]


def replies(conversation):
    return [message["content"] for message in conversation if message["role"] == "assistant"]


def test_a_second_message_continues_the_conversation_of_each_model(chatting):
    store, values = chatting
    *_, (box, first, _) = chat.send(store, "Where is <b>Ben</b>?", SETTINGS, [], *values)
    *_, (_, second, page) = chat.send(store, "And the ball?", SETTINGS, first, *values)
    assert box == ""
    dense, small = second
    assert [message["role"] for message in dense] == ["user", "assistant"] * 2
    assert replies(dense)[0] == replies(first[0])[0]
    assert replies(dense) != replies(small)
    assert page.count("class='message user'") == page.count("class='message assistant'") == 4
    assert "&lt;b&gt;Ben" in page
    assert "<b>" not in page
    model = store.dense(store.runs.all()[0].recipe)
    text = model.tokenizer.apply_chat_template(
        dense[:3], tokenize=False, add_generation_prompt=True
    )
    ids = model.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    expected = model.network.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
    assert replies(dense)[1] == model.tokenizer.decode(expected, skip_special_tokens=True)


def test_a_blank_message_is_refused(chatting):
    store, values = chatting
    with pytest.raises(lrcore.InputError, match="empty"):
        next(chat.send(store, "  ", SETTINGS, [], *values))


def test_chat_is_offered_only_for_models_with_a_chat_template(chatting, tiny_llama):
    store, (ids, *form) = chatting
    other_form = input_values(lrcore.Recipe(str(tiny_llama)))
    assert chat.can_chat(store, ids, form)
    assert chat.can_chat(store, [], form)
    assert not chat.can_chat(store, [], other_form)
    store.dense(lrcore.Recipe(str(tiny_llama)))
    assert not chat.can_chat(store, [], other_form)
    chat_update, conversations, hint = chat.offer(store, ids, *form)
    assert chat_update["visible"] is True
    assert conversations == []
    assert "side by side" in hint
