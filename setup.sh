#!/usr/bin/env bash
# Installs what Hoplite needs to build and test and what this machine lacks. Says what it does; does nothing twice.
# With --browser, also the browser that looks at the dashboard in tests, if that can be had: without it they are skipped.
set -euo pipefail

if ! command -v cargo >/dev/null; then
  # rustup's default place, in case its environment was not sourced.
  [ -x "$HOME/.cargo/bin/cargo" ] && { echo "cargo is in ~/.cargo/bin, which is not in PATH" >&2; exit 1; }
  echo "Rust is needed: install it with rustup, or with the packages rustc and cargo" >&2
  exit 1
fi

missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v c++ >/dev/null || missing+=(g++)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

if [ "${1-}" = --browser ] && ! command -v chromedriver >/dev/null; then
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium chromium-driver"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } ||
      echo "there is no browser: what needs one is skipped" >&2
  else
    echo "not root, or not Debian: what needs a browser (chromium, chromium-driver) is skipped" >&2
  fi
fi
