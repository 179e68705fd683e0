# Sourced by the scripts that see to it that something is there which tests need, in the repository's root: by
# apt or otherwise, one at a time. Such a script says by is_complete whether all is there, and what it has to print then.

has() { command -v "$1" >/dev/null 2>&1; }
fail() { echo "$*" >&2; exit 1; }
as_root() {
    if [ "$(id -u)" = 0 ]; then
        timeout 300 "$@"
    elif has sudo && sudo -n true 2>/dev/null; then
        timeout 300 sudo -n "$@"
    else
        return 1
    fi
}

# with_apt COMMAND...: a command that needs apt's lists; with new lists where it fails with the old ones.
with_apt() {
    "$@" || { as_root apt-get update -qq >/dev/null 2>&1 9>&- && "$@"; }
}
install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 9>&-
}

# begin NAME WHAT: ends the script where everything is there. One script gets it at a time; the others wait for it, and look
# again. A failure is remembered for an hour, so that a machine without network does not try at every test.
begin() {
    is_complete && exit 0
    HOME_OF_IT=$PWD/target/$1
    FAILED=$HOME_OF_IT/failed
    mkdir -p "$HOME_OF_IT"
    exec 9>"$HOME_OF_IT/lock"
    if has flock; then flock 9; fi
    is_complete && exit 0
    [ -z "$(find "$FAILED" -mmin -60 2>/dev/null)" ] ||
        fail "$2 could not be got within the last hour; rm $FAILED to try again"
}
give_up() { touch "$FAILED"; fail "$*"; }
