import pytest

from vtoken_sdk.bench.prompts import Prompt, encode, gather_prompts
from vtoken_sdk.errors import ConfigError


class Words:
    """A tokenizer of one token per word, with or without a chat template."""

    def __init__(self, chat_template=None):
        self.chat_template = chat_template

    def __call__(self, text):
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(self, turns, *, add_generation_prompt, return_dict):
        assert add_generation_prompt
        assert return_dict
        (turn,) = turns
        assert turn["role"] == "user"
        return {"input_ids": [1001, *self(turn["content"])["input_ids"], 1002]}


def test_prompts_come_from_texts_and_files_in_order(tmp_path):
    file = tmp_path / "letter.txt"
    file.write_text("grüße\n", encoding="utf-8")
    assert gather_prompts(["hello"], [file]) == [
        Prompt("prompt 1", "hello"),
        Prompt("letter.txt", "grüße\n"),
    ]


def test_no_prompt_says_which_options_give_one():
    with pytest.raises(ConfigError, match=r"--prompt.*--prompt-file"):
        gather_prompts([], [])


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_empty_prompts_are_refused(tmp_path, text):
    file = tmp_path / "empty.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"empty\.txt is empty"):
        gather_prompts([], [file])
    with pytest.raises(ConfigError, match="prompt 1 is empty"):
        gather_prompts([text], [])


def test_unreadable_files_are_refused(tmp_path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes("grüße".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.txt is not UTF-8 text \(byte 2\)"):
        gather_prompts([], [latin])
    with pytest.raises(ConfigError, match="does not exist"):
        gather_prompts([], [tmp_path / "missing.txt"])
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        gather_prompts([], [tmp_path])


def test_the_chat_template_is_used_where_there_is_one():
    assert encode(Words(), "ab cde", raw=False) == [2, 3]
    assert encode(Words("template"), "ab cde", raw=False) == [1001, 2, 3, 1002]
    assert encode(Words("template"), "ab cde", raw=True) == [2, 3]
