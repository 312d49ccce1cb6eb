"""``python -m fedbac``: the command."""

from fedbac.cli import main

main()
