"""``python -m fedbac``: the command."""

from fedbac_command import main

main()
