from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.plugins import install, policy_source
from vtoken_sdk import registry
from vtoken_sdk.errors import ConfigError, PolicyLoadError, UnknownPolicyError
from vtoken_sdk.policy import Policy

FAMILIES = {"kvpress"}
BUILTIN = FAMILIES | {
    *("h2o", "keydiff", "knorm", "r-kv", "random"),
    *("scissorhands", "snapkv", "streaming-llm", "tova"),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path, for packages of third parties."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    registry._warn.cache_clear()
    return folder


def names() -> set[str]:
    return {info.name for info in registry.list_policies()}


# Finding


def test_builtin_policies_are_announced_by_our_distribution() -> None:
    listed = {info.name: info for info in registry.list_policies()}
    assert set(listed) >= BUILTIN
    assert {listed[name].distribution for name in BUILTIN} == {"vtoken-sdk"}
    assert listed["random"].module == "vtoken_policies.random"


def test_listing_imports_no_policy(site: Path, run) -> None:
    install(site, "explosive", {"explosive": "explosive"}, {"explosive": "raise SystemExit(3)"})
    script = (
        "import json, sys; from vtoken_sdk import registry; found = registry.list_policies();"
        "print(json.dumps([[i.name for i in found], sorted(sys.modules)]))"
    )
    done = run("-c", script, PYTHONPATH=_path(site))
    listed, modules = json.loads(done.stdout)
    assert "explosive" in listed
    assert not {"explosive", "vtoken_policies", "torch", "vllm", "pydantic"} & set(modules)


def test_an_installed_package_is_found_and_loaded(site: Path) -> None:
    install(site, "vtoken-third", {"third": "third_ok"}, {"third_ok": policy_source("third")})
    info = registry.find_policy("third")
    assert (info.distribution, info.version, info.module) == ("vtoken-third", "1.0", "third_ok")
    assert registry.load_policy("third").name == "third"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("entry_points.txt", b"[vtoken.policies]\nno equals sign\n"),
        ("entry_points.txt", b"\xff\xfe\x00broken"),
        ("METADATA", b"Metadata-Version: 2.1\n"),
        ("METADATA", b""),
    ],
)
def test_broken_metadata_hides_nobody_else(
    site: Path, caplog: pytest.LogCaptureFixture, file: str, content: bytes
) -> None:
    info = install(site, "broken", {"broken": "broken"})
    (info / file).write_bytes(content)
    install(site, "fine", {"fine": "fine"})
    assert names() >= {"fine", *BUILTIN}
    assert "broken" not in names()
    if file == "METADATA" or b"equals" not in content:
        assert str(info) in caplog.text


def test_the_same_plugin_seen_twice_is_no_conflict(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(site, "twice", {"twice": "twice_mod"}, {"twice_mod": policy_source("twice")})
    monkeypatch.syspath_prepend(tmp_path / "checkout")
    install(tmp_path / "checkout", "Twice", {"twice": "twice_mod"}, version="2.0")
    assert [i.version for i in registry.list_policies() if i.name == "twice"] == ["2.0"]
    assert registry.load_policy("twice").name == "twice"
    assert caplog.text == ""


def test_a_name_claimed_twice_is_reported_with_both_distributions(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for owner in ("one", "other"):
        module = f"claims_{owner}"
        install(site, f"vtoken-{owner}", {"mine": module}, {module: policy_source("mine")})
    assert "mine" not in names()
    assert "vtoken-one 1.0" in caplog.text
    assert "vtoken-other 1.0" in caplog.text
    with pytest.raises(PolicyLoadError, match=r"vtoken-one 1\.0 .*vtoken-other 1\.0 "):
        registry.load_policy("mine")


def test_naming_one_distribution_settles_a_conflict(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in ("one", "other"):
        module = f"settles_{owner}"
        install(site, f"vtoken-{owner}", {"mine": module}, {module: policy_source("mine")})
    monkeypatch.setenv("VTOKEN_LOAD_PLUGINS", "vtoken-other")
    assert registry.find_policy("mine").distribution == "vtoken-other"


def test_nobody_takes_a_builtin_name(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "thief", {"random": "thief"}, {"thief": policy_source("random")})
    assert registry.load_policy("random").__module__ == "vtoken_policies.random"
    assert "thief 1.0" in caplog.text


# Restricting


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {"alpha", "beta-one", "beta-two"}),
        ("", set()),
        (" , ", set()),
        ("alpha", {"alpha"}),
        ("Vtoken_Beta", {"beta-one", "beta-two"}),
        ("beta-two, vtoken-alpha", {"alpha", "beta-two"}),
        ("random", set()),
    ],
)
def test_load_plugins_restricts_third_parties(
    site: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, expected: set[str]
) -> None:
    install(site, "vtoken-alpha", {"alpha": "alpha"})
    install(site, "vtoken.beta", {"beta-one": "beta_one", "beta-two": "beta_two"})
    if value is not None:
        monkeypatch.setenv("VTOKEN_LOAD_PLUGINS", value)
    assert names() & {"alpha", "beta-one", "beta-two"} == expected
    assert names() >= BUILTIN


def test_load_plugins_warns_of_a_name_nobody_has(
    site: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VTOKEN_LOAD_PLUGINS", "mistyped")
    assert names() == BUILTIN
    assert "'mistyped'" in caplog.text


def test_a_policy_left_out_says_so(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "vtoken-alpha", {"alpha": "alpha"})
    monkeypatch.setenv("VTOKEN_LOAD_PLUGINS", "")
    with pytest.raises(UnknownPolicyError, match="is installed, but VTOKEN_LOAD_PLUGINS="):
        registry.load_policy("alpha")


# Loading

FAULTS = {
    "raises": ("raise RuntimeError('boom')", "importing .*RuntimeError: boom"),
    "exits": ("import sys; sys.exit(1)", "importing .*SystemExit: 1"),
    "syntax": ("def", "importing .*SyntaxError"),
    "needs": ("import surely_not_installed", "No module named 'surely_not_installed'"),
    "no-hook": ("", "needs a function vtoken_policy with @hookimpl"),
    "unmarked": ("def vtoken_policy(): return int", "needs a function vtoken_policy"),
    "arguments": (
        "from vtoken_sdk import hookimpl\n@hookimpl\ndef vtoken_policy(engine): return int",
        "hook failed: .*engine",
    ),
    "unknown-hook": (
        policy_source("unknown-hook") + "\n@hookimpl\ndef vtoken_polices(): pass",
        "hook failed: .*unknown hook 'vtoken_polices'",
    ),
    "hook-raises": (
        "from vtoken_sdk import hookimpl\n@hookimpl\ndef vtoken_policy(): return 1 / 0",
        "hook failed: ZeroDivisionError",
    ),
    "no-policy": (
        "from vtoken_sdk import hookimpl\n@hookimpl\ndef vtoken_policy(): return int",
        "got <class 'int'>, but it should be a subclass of vtoken_sdk.Policy",
    ),
    "instance": (
        policy_source("instance").replace("return Example", "return Example()"),
        "should be a subclass",
    ),
    "misnamed": (policy_source("another-name"), "is named 'another-name'"),
    "nameless": (policy_source("x").replace('name = "x"', ""), "needs a name"),
    "newer": (policy_source("newer", "api_version = 99"), "version 99 .* this is version 1"),
    "undecorated": (
        policy_source("undecorated", "depth: int = 3").replace("@dataclass\n", ""),
        r"parameters \(depth\) but is no dataclass",
    ),
    "signals": (
        policy_source("signals", "signals = 'attention'"),
        "signals of the class Example should be a set of attention, keys .* got 'attention'",
    ),
    "signal": (
        policy_source("signal", "signals = {'attention', 'values'}"),
        "signals of the class Example should be a set of attention, keys",
    ),
    "presets": (
        policy_source("presets", "presets = ['paper']"),
        r"presets of the class Example should look like .* got \['paper'\]",
    ),
    "preset": (
        policy_source("preset", "presets = {'paper': None}"),
        "presets of the class Example should look like .* got {'paper': None}",
    ),
    "default": (
        policy_source(
            "default",
            "from dataclasses import field\n    x: int = field(default_factory=lambda: 1 / 0)",
        ),
        "the default of x of the class Example cannot be made: ZeroDivisionError",
    ),
    "scoreless": (
        policy_source("scoreless").replace("score", "scores"),
        r"the class Example needs a method score\(self, seq\) that rates the live tokens",
    ),
    "score-is-data": (
        policy_source("score-is-data", "score = 1.0").replace("def score", "def other"),
        r"the class Example needs a method score",
    ),
    "selectless": (
        policy_source("selectless").replace("ScoringPolicy", "Policy").replace("score", "other"),
        r"the class Example needs a method select\(self, seq, count\) .* or derive it from Scor",
    ),
    "score-never-asked": (
        policy_source("score-never-asked").replace("ScoringPolicy", "Policy"),
        r"the class Example has score\(\), which is never asked: derive it from ScoringPolicy",
    ),
    "select-never-asked": (
        policy_source("select-never-asked").replace("score", "select"),
        r"the class Example has select\(\), which a ScoringPolicy is .* derive it from Policy",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_policy_is_an_error_where_it_is_named(site: Path, fault: str) -> None:
    source, reason = FAULTS[fault]
    module = f"fault_{fault.replace('-', '_')}"
    install(site, "vtoken-faulty", {fault: module}, {module: source}, version="0.3")
    with pytest.raises(PolicyLoadError, match=f"(?s)'{fault}' of vtoken-faulty 0.3: .*{reason}"):
        registry.load_policy(fault)


def test_broken_policies_are_warnings_to_everybody_else(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for fault, (source, _) in FAULTS.items():
        module = f"all_{fault.replace('-', '_')}"
        install(site, f"vtoken-{fault}", {fault: module}, {module: source})
    install(site, "vtoken-sound", {"sound": "all_sound"}, {"all_sound": policy_source("sound")})
    with caplog.at_level(logging.WARNING):
        loaded = registry.load_all_policies()
    assert set(loaded) == {"sound", *BUILTIN} - FAMILIES
    for fault in FAULTS:
        assert f"'{fault}' of vtoken-{fault} 1.0" in caplog.text


def test_a_failure_keeps_its_cause(site: Path) -> None:
    install(site, "caused", {"caused": "caused"}, {"caused": "1 / 0"})
    with pytest.raises(PolicyLoadError) as caught:
        registry.load_policy("caused")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(UnknownPolicyError, match="did you mean 'streaming-llm'") as caught:
        registry.load_policy("steaming-llm")
    assert all(name in str(caught.value) for name in BUILTIN)


def test_without_any_metadata_the_advice_is_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.meta_path", [])
    with pytest.raises(UnknownPolicyError, match="pip install vtoken-sdk"):
        registry.find_policy("random")


def test_a_method_may_come_from_a_base(site: Path) -> None:
    source = policy_source("base") + (
        "\n@dataclass\nclass Mixin:\n    def select(self, seq, count): ...\n"
        "\nclass Heir(Example):\n    name = 'heir'\n"
        "\nfrom vtoken_sdk import Policy\n"
        "class Mixed(Mixin, Policy):\n    name = 'mixed'\n"
    )
    (site / "bases.py").write_text(source)
    for name in ("Heir", "Mixed"):
        assert registry.load_policy(f"{site / 'bases.py'}:{name}").__name__ == name


# Families

FAMILY = """
from dataclasses import dataclass
from vtoken_sdk import ScoringPolicy, hookimpl
from vtoken_sdk.errors import UsageError

@dataclass
class Sized(ScoringPolicy):
    \"\"\"One of a family.\"\"\"
    def score(self, seq):
        return seq.token_ids.float()

@hookimpl
def vtoken_policy_variant(variant):
    if variant not in ("small", "large", "misnamed"):
        raise UsageError(f"no size {variant!r}; there are small and large")
    name = "someone" if variant == "misnamed" else f"sized:{variant}"
    return type(variant, (Sized,), {"name": name})
"""


@pytest.fixture
def family(site: Path) -> None:
    install(site, "vtoken-sized", {"sized": "sized_mod"}, {"sized_mod": FAMILY}, version="3.0")


def test_a_variant_is_loaded_by_the_name_of_its_family(family: None) -> None:
    assert registry.make_policy("sized:large", {"recent": 3}).name == "sized:large"
    assert registry.find_policy("sized:large").origin == "vtoken-sized 3.0"
    assert "sized" in names()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sized:medium", "'sized:medium' of vtoken-sized 3.0: no size 'medium'; there are small"),
        ("sized", "'sized' of vtoken-sized 3.0: no size ''; there are small and large"),
        ("sized:misnamed", "is named 'someone'"),
        ("random:", "'random:' of vtoken-sdk .*random has no variants; leave the colon out"),
        ("random:x", "random has no variants; leave :x out"),
    ],
)
def test_a_wrong_variant_is_explained(family: None, name: str, reason: str) -> None:
    with pytest.raises(PolicyLoadError, match=reason):
        registry.load_policy(name)


def test_a_family_nobody_has_is_unknown(family: None) -> None:
    with pytest.raises(UnknownPolicyError, match="no policy 'sizes'; did you mean 'sized'"):
        registry.load_policy("sizes:small")


def test_families_are_left_out_of_all_policies(
    family: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert set(registry.load_all_policies()) == BUILTIN - FAMILIES
    assert caplog.text == ""


# Loading from a file


def test_a_class_in_a_file_needs_no_package(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(policy_source("mine", "depth: int = 3"))
    policy = registry.make_policy(f"{file}:Example", {"depth": "5"})
    assert (policy.name, policy.depth) == ("mine", 5)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("good.py", "say which class of good.py is the policy: good.py:Example"),
        ("good.py:", "say which class of good.py is the policy: good.py:Example"),
        ("two.py", "say which class of two.py is the policy: two.py:ClassName"),
        ("bad.py", "say which class of bad.py is the policy: bad.py:ClassName"),
        ("syntax.py", "say which class of syntax.py is the policy: syntax.py:ClassName"),
        ("good.py:Missing", "policy file good.py: it has no class Missing. Its policies: Example"),
        ("good.py:Exampel", "no class Exampel; did you mean 'Example'. Its policies: Example"),
        ("good.py:A:B", "policy file good.py: it has no class A:B"),
        ("empty.py:Example", "it has no class Example. It has no policies at all"),
        ("missing.py", "missing.py does not exist"),
        ("./folder:Example", "folder is a folder: name a file in it, folder/FILE.py:Example"),
        ("/dev/null", "/dev/null is no file that can be imported"),
        ("folder/", "folder is a folder: name a file in it, folder/FILE.py:Class"),
        (
            "folder.py:Example",
            "folder.py is a folder: name a file in it, folder.py/FILE.py:Example",
        ),
        ("./good:Example", "there is no file good; did you mean good.py:Example"),
        ("./notes.txt:Example", "notes.txt is no Python file"),
        ("no/such:Example", "policy file no/such does not exist"),
        ("~nobody-of-that-name/x.py:X", "does not exist"),
        ("good.py:dataclass", "should be a subclass"),
        ("missing.py:Example", "missing.py does not exist"),
        ("bad.py:Example", "policy file bad.py: running it failed: ZeroDivisionError"),
    ],
)
def test_a_wrong_file_reference_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text(policy_source("good"))
    Path("bad.py").write_text("1 / 0")
    Path("two.py").write_text("class A: ...\nclass B: ...\n")
    Path("syntax.py").write_text("class A")
    Path("empty.py").write_text("")
    Path("notes.txt").write_text("class Example: ...\n")
    Path("folder").mkdir()
    Path("folder.py").mkdir()
    with pytest.raises(PolicyLoadError, match=reason):
        registry.load_policy(reference)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder:Example", "folder is a folder: name a file in it, folder/FILE.py:Class"),
        ("folder", "folder is a folder: name a file in it, folder/FILE.py:Class"),
        ("good:Example", "no policy 'good'; for the file here, say which class: good.py:Class"),
        ("notes.txt:Example", "the file notes.txt is no Python file"),
        ("x" * 5000, "Known policies: "),
    ],
)
def test_a_name_that_was_meant_for_a_file_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text(policy_source("good"))
    Path("notes.txt").write_text("class Example: ...\n")
    Path("folder").mkdir()
    with pytest.raises(UnknownPolicyError, match=reason):
        registry.load_policy(name)


def test_a_folder_takes_no_policy_s_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("random").mkdir()
    assert registry.load_policy("random").name == "random"


# Making


def test_make_policy_sets_parameters() -> None:
    policy = registry.make_policy("random", {"sinks": "2", "recent": 8})
    assert isinstance(policy, Policy)
    assert (policy.sinks, policy.recent) == (2, 8)


def test_make_policy_passes_on_what_the_policy_refuses() -> None:
    with pytest.raises(ConfigError, match="policy 'random': sinks must be a whole number"):
        registry.make_policy("random", {"sinks": "-1"})


def test_a_policy_that_fails_when_it_is_made_is_at_fault(site: Path) -> None:
    body = "def __post_init__(self):\n        {}['key']"
    modules = {"unmade": policy_source("unmade", body)}
    install(site, "vtoken-unmade", {"unmade": "unmade"}, modules)
    with pytest.raises(PolicyLoadError, match="policy 'unmade' cannot be made: KeyError: 'key'"):
        registry.make_policy("unmade")


def test_presets_set_what_the_user_does_not() -> None:
    published = registry.make_policy("h2o", preset="paper")
    assert (published.sinks, published.normalize) == (0, False)  # type: ignore[attr-defined]
    mixed = registry.make_policy("h2o", {"sinks": "8"}, "paper")
    assert (mixed.sinks, mixed.normalize) == (8, False)  # type: ignore[attr-defined]
    assert registry.make_policy("h2o", preset="default") == registry.make_policy("h2o")


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no preset 'papr'; did you mean 'paper'"):
        registry.make_policy("h2o", preset="papr")


def test_a_preset_is_checked_like_what_a_user_sets(site: Path) -> None:
    for name, preset in (("unknown", "{'dept': 3}"), ("untyped", "{'depth': 'deep'}")):
        body = f"presets = {{'odd': {preset}}}\n    depth: int = 1"
        install(site, f"p-{name}", {name: f"p_{name}"}, {f"p_{name}": policy_source(name, body)})
    with pytest.raises(ConfigError, match="has no parameter 'dept'; did you mean 'depth'"):
        registry.make_policy("unknown", preset="odd")
    with pytest.raises(ConfigError, match="'depth' of policy 'untyped' is of type int"):
        registry.make_policy("untyped", preset="odd")


def _path(*folders: Path) -> str:
    import os

    return os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
