#!/bin/sh
# Prepares .venv for work on this repository: `make setup` calls it.
#
#   sh scripts/bootstrap.sh           check the machine, then create or refresh .venv for the tests
#   sh scripts/bootstrap.sh --tools   and what checks, builds and documents, and all nightly tests need
#   sh scripts/bootstrap.sh --check   only check the machine; install nothing
#
# Everything that is missing is named in one line, with the command that installs it on this system,
# before anything is started. PYTHON=/path/to/python chooses the interpreter; otherwise the first
# suitable one is taken of those on PATH, in ~/.local/bin, and of those that uv or pyenv installed.
# Python 3.9 to 3.11 is for Theano; only where there is none, a newer one is taken, for PyTensor.
# OS_RELEASE=/path/to/file stands for /etc/os-release.
set -eu

CDPATH='' cd -- "$(dirname -- "$0")/.."
here=$(pwd -P) # the same through every symbolic link
home=${HOME:-/nonexistent}
uv_pythons=${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$home/.local/share}/uv/python}
pyenv=${PYENV_ROOT:-$home/.pyenv}
venv=.venv
newer=.venv-newer
stamp=$venv/.ready
tools_stamp=$venv/.tools
place=$venv/.place
log=$venv/bootstrap.log
newer_log=$venv/bootstrap-newer.log
for_theano='3\.(9|1[01])'
for_pytensor='3\.1[234]'
# In the order of their layers; the tests start programs with the last.
packages="packages/synk-shm packages/synk-comm packages/synk-core"
adapters="packages/theano-compat packages/synk-theano"
newer_adapters="packages/synk-pytensor"
above="packages/synk-extensions[lasagne] dev/synk-testing" # the demonstration trains Lasagne's networks

# Says "ok <version>", or what keeps this interpreter from being used: "version", or "lacks <version>"
# with "venv", "headers" or both. It is run, not trusted: a pyenv shim exists for versions that are
# not chosen.
probe() {
    "$1" - <<'PROBE' 2>/dev/null || echo broken
import os, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
if not (3, 9) <= sys.version_info[:2] <= (3, 14):
    print("version")
    sys.exit()
lacks = []
try:
    import ensurepip, venv
except ImportError:
    lacks.append("venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    lacks.append("headers")
print(" ".join(["lacks", version] + lacks) if lacks else "ok " + version)
PROBE
}

# What PATH and ~/.local/bin have of these names.
on_path() {
    for name in "$@"; do
        old_ifs=$IFS
        IFS=:
        set -f # a folder's name may have a star in it
        for folder in ${PATH:-} "$home/.local/bin"; do
            if [ -x "${folder:-.}/$name" ]; then echo "${folder:-.}/$name"; fi
        done
        set +f
        IFS=$old_ifs
    done
}

# What uv and pyenv have installed of these versions.
kept() {
    for version in "$@"; do
        for path in "$uv_pythons/cpython-$version"[.-]*/bin/"python$version" \
            "$pyenv/versions/$version".*/bin/python; do
            if [ -x "$path" ]; then echo "$path"; fi
        done
    done
}

newer_candidates() {
    on_path python3.14 python3.13 python3.12
    kept 3.14 3.13 3.12
}

# Every interpreter worth a try, best first for Theano, then for PyTensor.
candidates() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" || echo "$PYTHON"
        return
    fi
    on_path python3.11 python3.10 python3.9 python3 python
    kept 3.11 3.10 3.9
    newer_candidates
}

# Writes before each path what its interpreter says of itself.
probed() {
    while IFS= read -r path; do echo "$(probe "$path" </dev/null)|$path"; done
}

# Sets `python` to the first usable interpreter and `engine` to what it is for; or `almost` to what
# the best of the others lacks, and `unfit` if there are some, of no use in any case.
find_python() {
    list=$(candidates | probed)
    unfit=$(echo "$list" | grep '^version|' || true)
    almost=$(echo "$list" | grep -m 1 '^lacks ' || true)
    almost=${almost%%|*}
    almost=${almost#lacks }
    engine=Theano
    python=$(echo "$list" | grep -m 1 -E "^ok $for_theano\|" || true)
    if [ -z "$python" ]; then
        engine=PyTensor
        python=$(echo "$list" | grep -m 1 '^ok ' || true)
    fi
    python=${python#*|}
}

# Prints a family of systems: "apt", "dnf", "pacman", "zypper" or "other".
system() (
    set +u
    file=${OS_RELEASE:-/etc/os-release}
    if [ ! -r "$file" ]; then file=/usr/lib/os-release; fi
    # shellcheck disable=SC1090 # the file is made to be read so
    if [ -r "$file" ]; then . "$file"; fi
    case " $ID $ID_LIKE " in
        *" debian "* | *" ubuntu "*) echo apt ;;
        *" fedora "* | *" rhel "* | *" centos "*) echo dnf ;;
        *" arch "*) echo pacman ;;
        *suse* | *" sles "*) echo zypper ;;
        *) echo other ;;
    esac
)

# Adds to a list of words that `and` joins: and LIST WORD.
joined() {
    if [ -n "$1" ]; then echo "$1$2$3"; else echo "$3"; fi
}

# Sets `what` to what is missing, in words, and `cure` to the command that installs all of it.
# Arguments: cxx make python, those of them that are missing.
find_cure() {
    what=     # in words
    archive=  # packages of the system
    then=     # commands after them
    manager=$(system)
    for part in "$@"; do
        case $part in
            cxx)
                what=$(joined "$what" ", " g++)
                case $manager in
                    apt | other) archive="$archive g++" ;;
                    pacman) archive="$archive gcc" ;;
                    *) archive="$archive gcc-c++" ;;
                esac ;;
            make)
                what=$(joined "$what" ", " make)
                archive="$archive make" ;;
            python) python_missing ;;
        esac
    done
    sudo=
    if [ "$(id -u 2>/dev/null || echo 0)" != 0 ]; then sudo="sudo "; fi
    cure=
    if [ -n "$archive" ]; then
        case $manager in
            apt) cure="${sudo}apt update && ${sudo}apt install --yes$archive" ;;
            dnf) cure="${sudo}dnf install --assumeyes$archive" ;;
            pacman) cure="${sudo}pacman -S --needed --noconfirm$archive" ;;
            zypper) cure="${sudo}zypper --non-interactive install$archive" ;;
        esac
    fi
    if [ -n "$then" ]; then cure=$(joined "$cure" " && " "$then"); fi
    how="Install with"
    if [ "$manager:${archive:+some}" = other:some ]; then
        how="Install with the package manager of this system"
        cure="${archive# }${then:+; and then: $then}"
    fi
}

# What find_cure says of Python. Where the archive's own is of no use, uv brings one.
python_missing() {
    version=${almost%% *}
    case $almost in
        *" venv headers") words="the venv module and the C headers of Python $version" ;;
        *" venv") words="the venv module of Python $version" ;;
        *" headers") words="the C headers of Python $version" ;;
        *) words="Python 3.9 to 3.14${PYTHON:+ (PYTHON=$PYTHON is not one)}" ;;
    esac
    what=$(joined "$what" ", " "$words")
    case $manager:$almost:$unfit in
        apt::) archive="$archive python3 python3-venv python3-dev" ;;
        apt::*) uv_missing ;;
        apt:*)
            case $almost in *" venv"*) archive="$archive python$version-venv" ;; esac
            case $almost in *" headers"*) archive="$archive python$version-dev" ;; esac ;;
        dnf:*: | zypper:*:) archive="$archive python3 python3-devel" ;;
        pacman:*:) archive="$archive python" ;;
        *) uv_missing ;;
    esac
}

# Sets `then` to what has uv install a Python, after uv itself if it is not there.
uv_missing() {
    then="uv python install 3.11"
    if command -v uv >/dev/null; then return; fi
    if [ "$manager" = pacman ]; then archive="$archive uv"; fi
    case $manager in pacman | other) return ;; esac
    # shellcheck disable=SC2088 # who runs it expands it
    then="~/.local/bin/$then"
    if [ -x "$home/.local/bin/uv" ]; then return; fi
    if [ "$manager" = apt ]; then
        if ! command -v pipx >/dev/null; then archive="$archive pipx"; fi
        then="pipx install uv && $then"
    else
        archive="$archive python3-pip"
        then="python3 -m pip install --user --break-system-packages uv && $then"
    fi
}

check_machine() {
    for package in $packages $adapters $newer_adapters $above; do
        if [ ! -f "${package%[*}/pyproject.toml" ]; then
            echo "missing: ${package%[*}. Check out the whole repository" >&2
            exit 1
        fi
    done
    set --
    # Theano calls it at run time, and so do PyTensor's tests.
    if ! g++ --version >/dev/null 2>&1; then set -- "$@" cxx; fi
    if ! make --version >/dev/null 2>&1; then set -- "$@" make; fi
    find_python
    if [ -z "$python" ]; then set -- "$@" python; fi
    if [ $# -ne 0 ]; then
        find_cure "$@"
        echo "missing: $what. $how: $cure" >&2
        exit 1
    fi
    if [ $engine = PyTensor ]; then
        # A newer Python is of no use here, whether it lacks something or not.
        if ! echo "${almost%% *}" | grep -q -E "^$for_theano$"; then almost=; fi
        unfit=yes
        find_cure python
        echo "Using PyTensor, on $("$python" --version). For Theano: $cure && make clean setup"
    fi
}

# Changes when a declared dependency, this script, or the place of the checkout changes: editable
# installs hold absolute paths.
fingerprint() {
    echo "$here"
    cat pyproject.toml packages/*/pyproject.toml dev/*/pyproject.toml scripts/bootstrap.sh | cksum
}

# While pip is silent, says every few seconds how far it is. Ends with this script, however that ends;
# and holds nobody up who waits for the end of its output.
report_progress() {
    seconds=0
    while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + 1))
        if [ $((seconds % 10)) -ne 0 ]; then continue; fi
        set -- "$venv"*/lib/python3*/site-packages/*.dist-info
        echo "  ... $(grep -c -e '^Collecting ' -e '^Processing ' "$log") packages looked up, $# in place"
    done
}

# Neither a question, nor an install elsewhere, whatever the user has configured.
PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_REQUIRE_VIRTUALENV=0 PIP_USER=0
export PIP_DISABLE_PIP_VERSION_CHECK PIP_NO_INPUT PIP_REQUIRE_VIRTUALENV PIP_USER

# pip with its output in the log.
try_pip() {
    status=0
    "$venv/bin/python" -m pip "$@" >>"$log" 2>&1 || status=$?
    return "$status"
}

# The same; if it fails, one line says why.
pip() {
    if try_pip "$@"; then return; fi
    if grep -q -i -e "establish a new connection" -e "name resolution" -e "unreachable" \
        -e "connection refused" -e "name or service not known" -e "timed out" -e "ProxyError" \
        -e "connection broken" "$log"; then
        echo "failed: the package index could not be reached; check the network and the proxy, then run it again (what pip said is in $log)" >&2
    else
        tail -n 15 "$log" >&2
        echo "failed: pip ended with status $status; all that it said is in $log" >&2
    fi
    exit 1
}

# Sets `bundled` to the pip that this Python brings along, from where it runs as it is: to install
# it, as ensurepip does, only to replace it at once takes longer than the rest. Systems may keep it
# elsewhere: then it fails.
find_bundled_pip() {
    bundled=$("$python" -c "import ensurepip, glob, os
folder = os.path.dirname(ensurepip.__file__)
print(*glob.glob(os.path.join(glob.escape(folder), '_bundled', 'pip-*.whl'))[:1])")
    [ -n "$bundled" ] && {
        "$python" -m venv --clear --without-pip "$venv" &&
            PYTHONPATH=$bundled "$venv/bin/python" -m pip --version
    } >/dev/null 2>&1
}

# The interpreter itself and not a link to it: beside a link, Python 3.11 does not find its own
# library.
itself() {
    "$1" -c 'import os, sys; print(os.path.realpath(sys.executable))'
}

install() {
    # Scripts in the environment hold its path, so a checkout that was moved gets a new one; and so
    # does one whose creation was interrupted, or that is for the other engine.
    fresh=
    bundled=
    case $(probe "$venv/bin/python" </dev/null) in
        "ok "*)
            if [ "$here $engine" = "$(cat "$place" 2>/dev/null)" ]; then fresh=no; fi ;;
    esac
    if [ -z "$fresh" ]; then
        echo "Creating $venv ..."
        python=$(itself "$python")
        find_bundled_pip || {
            bundled=
            "$python" -m venv --clear "$venv"
        }
    fi
    rm -f "$stamp"
    : >"$log"
    # What pip builds with is installed once, and not for each package that it builds. --group needs
    # pip 25.1, and an interpreter brings whatever pip it was released with.
    # The first to need the network, so it also tells soon that there is none.
    echo "Getting pip and what it builds packages with ..."
    (
        if [ -n "$bundled" ]; then export PYTHONPATH="$bundled"; fi
        pip install --no-compile --retries 1 --timeout 15 \
            "pip>=25.1" "poetry-core>=2.0" setuptools wheel
    )
    echo "$here $engine" >"$place"
    echo "Installing the packages, and what they and their tests need (some minutes the first time) ..."
    report_progress &
    reporter=$!
    newest=
    rm -rf "$newer"
    group=test
    if [ $engine = Theano ]; then
        # At the same time: both mostly wait for the network.
        (log=$newer_log && : >"$log" && install_newer) &
        newest=$!
    else
        group=test-pytensor
        adapters=$newer_adapters
    fi
    trap 'kill $reporter $newest 2>/dev/null || true' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # One call for all, so that the members satisfy each other and one resolution holds for all.
    # Compiling all of it takes longer than the rest, and most of it is never imported.
    # shellcheck disable=SC2046,SC2086 # the words are separate arguments
    set -- --no-compile $(editable $packages $adapters $above) --group $group
    # Where a package has no wheel for this machine, it may want to be built with other tools.
    if ! try_pip install --prefer-binary --no-build-isolation "$@"; then
        echo "That failed; once more, with the tools that each package asks for ..."
        pip install "$@"
    fi
    echo "Compiling what every test imports ..."
    for package in "$venv"/lib/python3*/site-packages; do
        (
            cd "$package" && "$here/$venv/bin/python" -m compileall -q -j 0 -x '/tests?/' \
                theano lasagne pytensor numpy _pytest hypothesis
        ) >>"$here/$log" 2>&1 || true # what cannot be compiled is not imported either
    done
    if [ $engine = Theano ]; then
        # A wheel brings the import hook for Theano along; an editable install has to be told.
        "$venv/bin/python" -m synk_theano_compat --install >>"$log"
        wait $newest || true
    fi
    fingerprint >"$stamp"
    echo "Ready: $("$venv/bin/python" --version) in $venv"
}

# Arguments of pip that install these folders.
editable() {
    for package in "$@"; do echo "--editable $package"; done
}

# Beside Theano, on the newest Python that there is, for what is tested with PyTensor.
# Where there is none, or it cannot be had, this is left out.
install_newer() {
    path=$(newer_candidates | probed | grep -m 1 -E "^ok $for_pytensor\|" || true)
    if [ -z "$path" ]; then return; fi
    version=${path%%|*}
    echo "Creating $newer, with Python ${version#ok }, for PyTensor ..."
    path=$(itself "${path#*|}")
    # shellcheck disable=SC2046,SC2086 # the words are separate arguments
    if "$path" -m venv --without-pip "$newer" >>"$log" 2>&1 &&
        try_pip --python "$newer/bin/python" install --no-compile poetry-core \
            numpy posix_ipc pyzmq 'pytensor>=3.3,<3.4' 'jax>=0.6,<0.13' cloudpickle threadpoolctl \
            rich click \
            --group smoke &&
        try_pip --python "$newer/bin/python" install --no-compile --no-deps --no-build-isolation \
            $(editable $packages $newer_adapters $above); then
        return
    fi
    echo "That failed, and is left out; what pip said is in $log"
    rm -rf "$newer"
}

# What `make test` does without, into both environments: beside PyTensor alone there is none of it.
install_tools() {
    case $(cat "$place") in *" PyTensor") return ;; esac
    echo "Installing the tools ..."
    pip install --no-compile --group dev
    if [ -x "$newer/bin/python" ]; then
        pip --python "$newer/bin/python" install --no-compile --group test-pytensor
    fi
    fingerprint >"$tools_stamp"
}

# Whether an environment is as this checkout wants it.
is_fresh() {
    [ -x "$venv/bin/python" ] && [ "$(fingerprint)" = "$(cat "$1" 2>/dev/null)" ]
}

case ${1:-} in
    --check)
        check_machine
        echo "nothing is missing; Python: $python"
        ;;
    "" | --tools)
        if ! is_fresh "$stamp"; then
            check_machine
            install
        fi
        if [ -n "${1:-}" ] && ! is_fresh "$tools_stamp"; then install_tools; fi
        ;;
    *)
        echo "usage: sh scripts/bootstrap.sh [--check | --tools]" >&2
        exit 2
        ;;
esac
