"""How hooks are written in the file, in variables and in flags."""

import pytest

from batchline.config.kinds import COMMAND, FUNCTIONS, VARIABLES


def test_the_text_of_a_command_is_split_into_words_and_nothing_in_it_is_expanded() -> None:
    text = """notify "a b" '$HOME' $HOME * ; rm"""
    assert COMMAND.read(COMMAND.from_text(text)) == ("notify", "a b", "$HOME", "$HOME", "*", ";", "rm")


@pytest.mark.parametrize("text", ["", "   ", 'notify "open', "notify 'open", "notify \\"])
def test_a_text_that_is_no_command_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a program and its arguments"):
        COMMAND.read(COMMAND.from_text(text))


@pytest.mark.parametrize("value", ["notify a", [], ["notify", 1], ["notify", "a\0b"]])
def test_a_command_of_the_file_is_a_list_of_texts(value: object) -> None:
    with pytest.raises(ValueError, match="must be a program and its arguments"):
        COMMAND.read(value)


def test_functions_are_separated_by_commas() -> None:
    text = "reports:send, shop.reports:Sender.send,report-by-mail"
    assert FUNCTIONS.read(FUNCTIONS.from_text(text)) == (
        "reports:send",
        "shop.reports:Sender.send",
        "report-by-mail",
    )


@pytest.mark.parametrize(
    "text", ["", "a b", "reports:", ":send", "reports:send()", "a:b:c", "--check", "a;b"]
)
def test_what_names_no_function_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a list of module:function"):
        FUNCTIONS.read(FUNCTIONS.from_text(text))


def test_variables_are_names() -> None:
    assert VARIABLES.read(VARIABLES.from_text("CHAT_URL, B")) == ("CHAT_URL", "B")
    with pytest.raises(ValueError, match="names of environment variables"):
        VARIABLES.read(VARIABLES.from_text("CHAT_URL=https://chat.example"))
