"""The program behind ``synkhronos check``: run a script, and check what it builds and calls.

watch.py    checks each function when it is built, and calls lint before a runtime closes
script.py   runs a file as ``python file`` does
report.py   the tables at the end
"""
