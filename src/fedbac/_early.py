"""Imported before all else: with ``python -m fedbac`` the package is imported before the command can see to Ctrl-C."""

import sys

if sys.orig_argv[1:3] == ["-m", "fedbac"]:
    from fedbac_command import leave_on_interrupt

    leave_on_interrupt()
