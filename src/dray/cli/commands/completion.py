"""``dray completion``: the script that has a shell complete what is typed."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from dray.cli.output import put
from dray.cli.shared import shared

_INSTALL = {
    "bash": 'eval "$(dray completion bash)" in ~/.bashrc, or once: '
    "dray completion bash > ~/.local/share/bash-completion/completions/dray",
    "zsh": 'eval "$(dray completion zsh)" in ~/.zshrc, after compinit',
    "fish": "dray completion fish > ~/.config/fish/completions/dray.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@shared
def completion(shell: str) -> None:
    """Print the script that has SHELL complete commands, options, and values such as ids, queues and tasks."""
    from dray.cli.root import root  # noqa: PLC0415 - it lists this command

    made = get_completion_class(shell)
    assert made is not None
    # Not its own source(): for bash that starts a bash, to look at its version.
    script = ShellComplete.source(made(root, {}, "dray", "_DRAY_COMPLETE"))
    # Behind the script: a zsh that loads it from its path looks for #compdef in the first line.
    put(f"{script.rstrip()}\n# To install: {_INSTALL[shell]}")
