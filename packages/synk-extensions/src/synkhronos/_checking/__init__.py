"""What ``synkhronos check`` runs: a script, with what it builds and calls looked at.

_watch.py    checks each function when it is built, and has lint look before a runtime closes
_script.py   runs a file as ``python file`` does
_report.py   the tables at the end
"""
