# Programs on this host use the store that systemd runs.
if [ -z "${HOPLITE_SOCKET:-}" ] && [ -S /run/hoplite/store.sock ]; then
    export HOPLITE_SOCKET=/run/hoplite/store.sock
fi
