"""``python -m fedbac``: the command."""

from fedbac.cli.main import main

main()
