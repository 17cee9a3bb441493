"""The sections of a profile that say what the hosts are sent and how they find each other."""

from __future__ import annotations

import re

import pytest

from profiles import library
from profiles.errors import ProfileError
from profiles.keys import MEANT_FOR, STRATEGIES
from profiles.schema import CodeSection, EnvSetupSection, NetworkSection, parse

SCRIPT = '[run]\nscript = "train.py"\n'


def said(text: str, *overrides: str) -> dict[str, str]:
    """Key -> the whole complaint, of a profile that must not be accepted."""
    with pytest.raises(ProfileError) as caught:
        parse(text + SCRIPT, "p.toml", overrides)
    return {fault.key: str(fault) for fault in caught.value.faults}


def test_everything_that_they_may_say() -> None:
    profile = parse(
        SCRIPT
        + """
        [code]
        path = "../project"
        max_mb = 500
        [env_setup]
        packages = ["wandb", "einops >= 0.8", "git+https://example.org/x.git"]
        pip_args = ["--extra-index-url", "https://example.org/simple"]
        [secrets]
        WANDB_API_KEY = "env:WANDB_API_KEY"
        HF_TOKEN = "file:~/.hf token"
        [network]
        interface = "eth0.100"
        rendezvous_host = "vast-a"
        rendezvous_port = 29500
        """,
        "p.toml",
    )
    assert profile.code == CodeSection("../project", 500)
    assert profile.env_setup == EnvSetupSection(
        ("wandb", "einops >= 0.8", "git+https://example.org/x.git"),
        ("--extra-index-url", "https://example.org/simple"),
    )
    assert profile.secrets == {"WANDB_API_KEY": "env:WANDB_API_KEY", "HF_TOKEN": "file:~/.hf token"}
    assert profile.network == NetworkSection("eth0.100", "vast-a", 29500)


def test_what_is_left_out() -> None:
    profile = parse(SCRIPT, "p.toml")
    assert (profile.code, profile.env_setup, profile.secrets) == (None, None, {})
    assert profile.network == NetworkSection("", "", 0)
    assert parse(SCRIPT + "[code]\n", "p.toml").code == CodeSection(".", 200)


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ('code = "."\n', "code", "must be a table: a line [code]"),
        ('[code]\npath = ""\n', "code.path", "must not be empty"),
        ("[code]\npath = 3\n", "code.path", "must be a string"),
        ("[code]\nmax_mb = 0\n", "code.max_mb", "a whole number of at least 1"),
        ("[code]\nmax_mb = true\n", "code.max_mb", "a whole number of at least 1"),
        ('[code]\npaht = "."\n', "code.paht", 'did you mean "path"'),
        ("max_mb = 3\n", "max_mb", 'did you mean "code.max_mb"'),
        ("[env_setup]\n", "env_setup.packages", "at least one package"),
        ("[env_setup]\npackages = []\n", "env_setup.packages", "at least one package"),
        ('[env_setup]\npackages = "wandb"\n', "env_setup.packages", "must be a list of strings"),
        ('[env_setup]\npackages = ["a", " "]\n', "env_setup.packages", "entry 2 must be one package"),
        ('[env_setup]\npackages = ["a\\nb"]\n', "env_setup.packages", "entry 1 must be one package"),
        ('[env_setup]\npackages = ["-r", "x.txt"]\n', "env_setup.packages", "env_setup.pip_args"),
        ('[env_setup]\npackages = ["a"]\npip_args = ["b"]\n', "env_setup.pip_args", "env_setup.packages"),
        ('[env_setup]\npackages = ["a"]\npip_args = [3]\n', "env_setup.pip_args", "entry 1 must be a string"),
        ('[secrets]\n"A-B" = "env:A"\n', "secrets.A-B", "is no name for a variable"),
        ('[secrets]\nRANK = "env:A"\n', "secrets.RANK", "is set by the launcher"),
        ("[secrets]\nA = 3\n", "secrets.A", '"env:VARIABLE" or "file:PATH"'),
        ('[secrets]\nA = "env:"\n', "secrets.A", '"env:VARIABLE" or "file:PATH"'),
        ('[secrets]\nA = "file: "\n', "secrets.A", '"env:VARIABLE" or "file:PATH"'),
        ('[secrets]\nA = "env:A"\n[env]\nA = "b"\n', "secrets.A", "is in [env] too"),
        ('[network]\ninterface = "a/b"\n', "network.interface", "name of a network interface"),
        ('[network]\ninterface = "a234567890123456"\n', "network.interface", "at most 15"),
        ("[network]\nrendezvous_host = 3\n", "network.rendezvous_host", "must be a string"),
        ("[network]\nrendezvous_port = 65536\n", "network.rendezvous_port", "from 1 to 65535"),
        ("[network]\nrendezvous_port = 0\n", "network.rendezvous_port", "from 1 to 65535"),
    ],
)
def test_wrong_values(text: str, key: str, what: str) -> None:
    assert what in said(text)[key]


def test_a_secret_that_was_written_down_is_not_repeated() -> None:
    assert "hunter2" not in said('[secrets]\nKEY = "hunter2"\n')["secrets.KEY"]
    complaint = said("", "secrets.KEY=hunter2")["secrets.KEY"]
    assert "hunter2" not in complaint
    assert complaint.startswith("--set secrets.KEY=...: secrets.KEY: must say where")


def test_they_can_be_set_on_the_command_line() -> None:
    profile = parse(
        SCRIPT,
        "p.toml",
        ["code.path=.", "secrets.KEY=env:KEY", 'env_setup.packages=["wandb"]', "network.interface=eth1"],
    )
    assert profile.code == CodeSection()
    assert profile.secrets == {"KEY": "env:KEY"}
    assert profile.env_setup == EnvSetupSection(("wandb",))
    assert profile.network.interface == "eth1"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_examples_in_the_shipped_profile_are_in_order(strategy: str) -> None:
    text = (library.SHIPPED / "gpt.toml").read_text()
    others = [key for key, (_, meant_for) in MEANT_FOR.items() if strategy not in meant_for]
    not_meant = "|".join(map(re.escape, others))
    text = re.sub(rf"(?m)^# (\[\w+\]$|(?!(?:{not_meant}) = )\w+ = )", r"\1", text)
    text = text.replace('strategy = "ddp"', f'strategy = "{strategy}"')
    profile = parse(text, "gpt.toml")
    assert profile.run.strategy == strategy
    assert profile.code and profile.env_setup and profile.secrets
    assert profile.network.rendezvous_host == "vast-a"
