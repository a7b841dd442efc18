#!/bin/sh
# Prepares .venv for work on this repository: `make setup` calls it.
#
#   sh scripts/bootstrap.sh           check the machine, then create or refresh .venv
#   sh scripts/bootstrap.sh --check   only check the machine; install nothing
#
# Everything that is missing is named before anything is started, one line each, with its cure.
# PYTHON=/path/to/python chooses the interpreter; otherwise the first suitable one on PATH is taken.
set -eu

cd "$(dirname "$0")/.."
venv=.venv
stamp=$venv/.ready
wanted="3.11 3.10 3.9"
packages="synk-shm synk-comm synk-theano synk-extensions"

# Says "ok <version>", or what keeps this interpreter from being used: "version", "venv <version>",
# "headers <version>". It is run, not trusted: a pyenv shim exists for versions that are not chosen.
probe() {
    "$1" - <<'PROBE' 2>/dev/null || echo broken
import os, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
if not (3, 9) <= sys.version_info[:2] <= (3, 11):
    print("version")
    sys.exit()
try:
    import ensurepip, venv
except ImportError:
    print("venv " + version)
    sys.exit()
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("headers " + version)
    sys.exit()
print("ok " + version)
PROBE
}

# Every interpreter worth a try, best first: all of PATH for each name, then what pyenv has installed.
candidates() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" || echo "$PYTHON"
        return
    fi
    for name in python3.11 python3.10 python3.9 python3 python; do
        old_ifs=$IFS
        IFS=:
        for folder in $PATH; do
            if [ -x "$folder/$name" ]; then echo "$folder/$name"; fi
        done
        IFS=$old_ifs
    done
    pyenv=${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}
    for version in $wanted; do
        for path in "$pyenv/versions/$version".*/bin/python; do
            if [ -x "$path" ]; then echo "$path"; fi
        done
    done
}

# Sets `python` to the first usable interpreter, or `almost` to what the best of the others lacks.
find_python() {
    python=
    almost=
    list=$(candidates)
    old_ifs=$IFS
    IFS='
'
    for path in $list; do
        IFS=$old_ifs
        answer=$(probe "$path" </dev/null)
        case $answer in
            "ok "*) python=$path; return ;;
            "venv "* | "headers "*) if [ -z "$almost" ]; then almost=$answer; fi ;;
        esac
    done
    IFS=$old_ifs
}

missing=0
say_missing() {
    echo "missing: $1" >&2
    missing=$((missing + 1))
}

check_machine() {
    find_python
    if [ -z "$python" ]; then
        case $almost in
            "venv "*) v=${almost#venv }
                say_missing "the venv module of Python $v; cure: apt install python$v-venv" ;;
            "headers "*) v=${almost#headers }
                say_missing "the C headers of Python $v; cure: apt install python$v-dev" ;;
            *) say_missing "${PYTHON:+$PYTHON is not }Python 3.9, 3.10 or 3.11; cure: apt install python3.11 python3.11-venv python3.11-dev (or pyenv install 3.11)" ;;
        esac
    fi
    if ! g++ --version >/dev/null 2>&1; then
        say_missing "a C++ compiler (g++), which Theano calls at run time; cure: apt install g++"
    fi
    if ! make --version >/dev/null 2>&1; then
        say_missing "make; cure: apt install make"
    fi
    for package in $packages; do
        if [ ! -f "packages/$package/pyproject.toml" ]; then
            say_missing "packages/$package; cure: check out the whole repository"
        fi
    done
    if [ "$missing" -ne 0 ]; then exit 1; fi
}

# Changes when a declared dependency, this script, or the place of the checkout changes: editable
# installs hold absolute paths.
fingerprint() {
    pwd
    cat pyproject.toml packages/*/pyproject.toml scripts/bootstrap.sh | cksum
}

install() {
    case $(probe "$venv/bin/python" </dev/null) in
        "ok "*) ;;
        *) "$python" -m venv --clear "$venv" ;;
    esac
    rm -f "$stamp"
    echo "Installing into $venv (some minutes the first time) ..."
    PIP_DISABLE_PIP_VERSION_CHECK=1
    PIP_REQUIRE_VIRTUALENV=
    export PIP_DISABLE_PIP_VERSION_CHECK PIP_REQUIRE_VIRTUALENV
    # --group needs pip 25.1, and an interpreter brings whatever pip it was released with.
    "$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1"
    editable=
    for package in $packages; do
        case $package in
            synk-extensions) extras="[lasagne]" ;; # the demonstration trains Lasagne's networks
            *) extras= ;;
        esac
        editable="$editable --editable packages/$package$extras"
    done
    # One call for all, so that the members satisfy each other and one resolution holds for all.
    # shellcheck disable=SC2086 # the words of $editable are separate arguments
    "$venv/bin/python" -m pip install --quiet $editable --group dev
    # A wheel brings the import hook for Theano along; an editable install has to be told.
    "$venv/bin/python" -m synk_theano_compat --install
    fingerprint >"$stamp"
    echo "Ready: $("$venv/bin/python" --version) in $venv"
}

case ${1:-} in
    --check)
        check_machine
        echo "nothing is missing; Python: $python"
        ;;
    "")
        if [ -x "$venv/bin/python" ] && [ "$(fingerprint)" = "$(cat "$stamp" 2>/dev/null)" ]; then
            exit 0
        fi
        check_machine
        install
        ;;
    *)
        echo "usage: sh scripts/bootstrap.sh [--check]" >&2
        exit 2
        ;;
esac
