from pathlib import Path

from vtoken_sdk.paths import expanded


def test_home_folders_are_put_in(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded("~/x.py") == expanded(Path("~/x.py")) == Path("/home/me/x.py")


def test_a_user_who_does_not_exist_is_no_error():
    assert expanded("~surely-no-user/x.py") == Path("~surely-no-user/x.py")
